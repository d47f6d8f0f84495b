"""The peer's processes: its master, a segment holder, and the `mooncake_client` of thin clients."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from processes import Process, WorkerProcess, free_port, wait_for_port

HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv-peer"
HOST = "127.0.0.1"

P = TypeVar("P", bound=Process)


def is_installed() -> bool:
    return (VENV / "bin" / "mooncake_master").exists()


class PeerCluster:
    """A master and holders of segments on loopback.

    Args:
        folder: For logs.
        segment_bytes: Size of each holder's segment.
        is_thin: Hold the segment in a `mooncake_client` process whose memory clients share.
        holders: How many holders; a thin cluster has one.
        settings: Environment of all its processes (MC_...), to try what the peer can be tuned to.
    """

    def __init__(
        self,
        folder: Path,
        segment_bytes: int,
        *,
        is_thin: bool = False,
        holders: int = 1,
        settings: dict[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._processes: list[Process] = []
        self._environment = {**_library_path(), **(settings or {})}
        self._real = ""
        port = free_port()
        self._master_address = f"{HOST}:{port}"
        try:
            ports = [f"--rpc_port={port}", f"--metrics_port={free_port()}"]
            self.master = self._start(Process, [str(VENV / "bin" / "mooncake_master"), *ports])
            wait_for_port(port, self.master)
            self.holders: list[Process] = []
            if is_thin:
                self._start_thin_side(segment_bytes)
            else:
                for _ in range(holders):
                    command = self._worker_command("--segment", str(segment_bytes))
                    self.holders.append(self._start(WorkerProcess, command))
        except BaseException:
            self.close()
            raise

    def _start_thin_side(self, segment_bytes: int) -> None:
        port = free_port()
        command = [
            str(VENV / "bin" / "mooncake_client"),
            f"--host={HOST}",
            f"--port={port}",
            f"--master_server_address={self._master_address}",
            "--metadata_server=P2PHANDSHAKE",
            f"--global_segment_size={segment_bytes}",
            "--protocol=tcp",
        ]
        process = self._start(Process, command)
        wait_for_port(port, process)
        self.holders.append(process)
        self._real = f"{HOST}:{port}"

    def _start(self, kind: type[P], command: Sequence[str]) -> P:
        log = self._folder / f"peer-{len(self._processes)}.log"
        process = kind(command, log, self._environment)
        self._processes.append(process)
        return process

    def _worker_command(self, *arguments: str) -> list[str]:
        python = str(VENV / "bin" / "python")
        return [python, str(HERE / "peer_worker.py"), "--master", self._master_address, *arguments]

    def client(self, buffer_bytes: int, *, replicas: int = 1) -> WorkerProcess:
        """Start a client with memory of its own and no segment."""
        arguments = ["--buffer", str(buffer_bytes), "--replicas", str(replicas)]
        if self._real:
            arguments += ["--thin", self._real]
        return self._start(WorkerProcess, self._worker_command(*arguments))

    @property
    def server_pids(self) -> list[int]:
        return [self.master.pid, *(holder.pid for holder in self.holders)]

    def close(self) -> None:
        """End every process, clients first."""
        for process in reversed(self._processes):
            process.end()
        self._processes.clear()


def _library_path() -> dict[str, str]:
    """Return where install-peer put libibverbs, if the system has none."""
    native = VENV / "native"
    if not native.is_dir():
        return {}
    triplet = f"{platform.machine()}-linux-gnu"
    folders = [native / "usr" / "lib" / triplet, native / "lib" / triplet]
    return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
