"""The other end of the raw exchanges: a process of its own, with nothing but the C loop in it.

Run as `python -m mooncake_store.cli.bench.raw_server --memory-bytes N --unix PATH`.  It prints one
JSON line with its TCP ports and serves until it is ended or its parent is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import threading

from mooncake_store._native import ffi, lib

PR_SET_PDEATHSIG = 1


def unpace(tcp: socket.socket) -> None:
    """Have no timers between the ends, as the engine has none within a machine (pacing.c)."""
    with contextlib.suppress(OSError):
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def _end_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends, however that happens."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(0)


def main() -> None:
    """Serve two TCP listeners, one of them unpaced, and a Unix one from the same memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--unix", required=True)
    arguments = parser.parse_args()
    _end_with_parent()

    memory = lib.te_bench_memory_open(arguments.memory_bytes, 1)
    if memory == ffi.NULL:
        raise SystemExit(f"no {arguments.memory_bytes} bytes of shared memory")
    tcp, unpaced = (socket.create_server(("127.0.0.1", 0), backlog=64) for _ in range(2))
    unpace(unpaced)
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(arguments.unix)
    unix.listen(64)
    ports = {"tcp": tcp.getsockname()[1], "unpaced": unpaced.getsockname()[1]}
    print(json.dumps({"pid": os.getpid(), "ports": ports}), flush=True)

    def serve(listener: socket.socket) -> None:
        lib.te_bench_serve(listener.fileno(), memory, arguments.memory_bytes)

    for listener in (unix, unpaced):
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
    serve(tcp)


if __name__ == "__main__":
    main()
