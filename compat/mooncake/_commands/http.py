"""Small HTTP servers in threads of a command's process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from mooncake._commands.flags import refuse

__all__ = ["Answer", "Request", "Server"]

_BODY_BYTES_MAX = 100 << 20
_TIMEOUT_S = 10.0  # for a client that sends slowly, or nothing


class Request(NamedTuple):
    """What was asked: the path without its query, decoded."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    """What is answered."""

    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"


Handler = Callable[[Request], Answer]


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_S

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > _BODY_BYTES_MAX:
            answer = Answer(413, b"the body is too large")
            self.close_connection = True
        else:
            body = self.rfile.read(int(length))
            request = Request(self.command, unquote(parts.path), query, body)
            assert isinstance(self.server, Server)
            try:
                answer = self.server.handler(request)
            except Exception as error:
                answer = Answer(500, str(error).encode())
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_PUT = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: they have keys in them."""


class Server(ThreadingHTTPServer):
    """An HTTP server that is bound when it is made.

    Args:
        command: For the message when the port is taken.
        host: Where it listens.
        port: 0: any; see `server_address`.
        handler: Answers, in threads.
    """

    daemon_threads = True

    def __init__(self, command: str, host: str, port: int, handler: Handler) -> None:
        self.handler = handler
        try:
            super().__init__((host, port), _Requests)
        except OSError as error:
            refuse(command, f"port {port} of {host} cannot be listened on: {error}")

    def start(self) -> None:
        """Serve in a thread that ends with the process."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is nobody's fault."""

    def stop(self) -> None:
        """Listen no more."""
        with contextlib.suppress(OSError):
            self.shutdown()
            self.server_close()
