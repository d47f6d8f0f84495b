"""What is no conductor is told so, whatever it says, and none of its bytes reach the terminal."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from mooncake_store.cli.app import run

Serve = Callable[[bytes], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts what answers each connection with some bytes, and returns its address."""
    listening = []

    def begin(answer: bytes) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def work() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.recv(4096)
                        client.sendall(answer)

        threading.Thread(target=work, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield begin
    for server in listening:
        server.close()


def http(body: bytes, status: str = "200 OK") -> bytes:
    length = str(len(body)).encode()
    return b"HTTP/1.1 " + status.encode() + b"\r\ncontent-length: " + length + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\x00\x12\x04\x1b[2J\x00\x00\x00\x00\x00\r\n\r\n",  # HTTP/2, as of a gRPC port
        b"\x16\x03\x01\x02\x00\x01\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        http(b"\xff\xfe\x1b[2J"),
        http(b"[1, 2]"),
        http(b"3"),
        http(b'{"instances": 3}'),
        http(b'{"instances": [{"name": "x"}]}'),
        http(b"{}"),
        http(b"[]", "404 Not Found"),
        http(b'{"error": "no object"}', "500 Internal Server Error"),
        http(b'{"detail": "Not Found"}', "404 Not Found"),
        http(b'{"error": {"code": "unknown_path", "message": "no"}}', "404 Not Found"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        http(b"[" * 100_000),
    ],
)
@pytest.mark.parametrize("command", [["instances"], ["explain", "x"]])
def test_what_is_no_conductor_is_told_so(
    serve: Serve, capsys: pytest.CaptureFixture[str], answer: bytes, command: list[str]
) -> None:
    where = serve(answer)
    assert run(["conductor", *command, "--conductor", where, "--timeout", "5s"]) != 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"what answers at {where} is no conductor" in said.err
    assert "HTTP port" in said.err
    assert said.err.isprintable() or "\x1b" not in said.err
    assert "\\x" not in said.err and "Traceback" not in said.err


def test_nobody_and_silence_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        assert run(["conductor", "instances", "--conductor", where, "--timeout", "200ms"]) != 0
        assert f"no conductor answers at {where}" in capsys.readouterr().err
    assert run(["conductor", "instances", "--conductor", where]) != 0
    assert f"no conductor answers at {where}" in capsys.readouterr().err
