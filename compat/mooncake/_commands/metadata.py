"""The metadata server of transfer engines: values under keys, in memory."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence

from mooncake._commands.http import Answer, Request, Server

__all__ = ["MetadataServer", "main"]

_KEYS_MAX = 100_000


class MetadataServer:
    """`/metadata?key=K`: PUT, GET and DELETE."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def handle(self, request: Request) -> Answer:
        """Answer a request."""
        if request.path == "/health":
            return Answer(200, b"OK")
        if request.path != "/metadata":
            return Answer(404, b"there is only /metadata?key=KEY")
        key = request.query.get("key", "")
        if not key:
            return Answer(400, b"a key is needed: /metadata?key=KEY")
        with self._lock:
            if request.method == "PUT":
                if key not in self._values and len(self._values) >= _KEYS_MAX:
                    return Answer(507, b"there are too many keys")
                self._values[key] = request.body
                return Answer(200, b"metadata updated")
            if key not in self._values:
                return Answer(404, b"metadata not found")
            if request.method == "GET":
                return Answer(200, self._values[key])
            if request.method == "DELETE":
                del self._values[key]
                return Answer(200, b"metadata deleted")
        return Answer(405, b"PUT, GET or DELETE")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `mooncake_http_metadata_server`."""
    parser = argparse.ArgumentParser(
        prog="mooncake_http_metadata_server", description="HTTP metadata server, in memory"
    )
    parser.add_argument("--port", type=int, default=8080, help="port to listen on (8080)")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (0.0.0.0)")
    parser.add_argument(
        "--log-level",
        default="INFO",
        choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
        help="taken, and without effect",
    )
    given = parser.parse_args(arguments)
    server = Server(parser.prog, given.host, given.port, MetadataServer().handle)
    server.start()
    print(f"serving at http://{given.host}:{server.server_address[1]}/metadata", flush=True)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
    server.stop()
    sys.exit(0)


if __name__ == "__main__":
    main()
