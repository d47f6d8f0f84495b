"""The REST server, under the name of the module that users start with `python -m`."""

from __future__ import annotations

from mooncake._commands.rest import main as sync_main

__all__ = ["sync_main"]

if __name__ == "__main__":
    sync_main()
