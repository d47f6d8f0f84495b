"""The store server of a client that adds memory to the pool: lives as long as its standard input.

`python -m mooncake._store.segment_process FLAGS` is `mooncake-store server FLAGS` that ends when
the process that holds the other end of its standard input has gone, however it went.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the store server."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    from mooncake_store.cli.app import run

    sys.exit(run(["server", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
