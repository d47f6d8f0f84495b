"""What processes of one user leave for each other in the runtime folder."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from mooncake_store.runtime import remove_dead_sockets


def _bind(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    return bound


def _number_of_a_process_that_has_ended() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def test_sockets_of_dead_processes_go_and_all_others_stay(tmp_path: Path) -> None:
    ended = _number_of_a_process_that_has_ended()
    dead = tmp_path / f"server-{ended}.sock"
    _bind(dead).close()
    not_listening_yet = tmp_path / f"server-{os.getpid()}.sock"
    # Of a process in another container, which has no such number here.
    listening = tmp_path / f"server-{ended + (1 << 23)}.sock"
    other = tmp_path / "server-notes.sock"
    master = tmp_path / f"master-{ended}.sock"
    with _bind(not_listening_yet), _bind(listening) as heard, _bind(other), _bind(master):
        heard.listen()
        assert remove_dead_sockets(tmp_path) == 1
    assert not dead.exists()
    for path in (not_listening_yet, listening, other, master):
        assert path.exists(), path
