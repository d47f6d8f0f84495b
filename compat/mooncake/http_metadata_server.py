"""The HTTP metadata server, under the name of the module that users start with `python -m`."""

from __future__ import annotations

from mooncake._commands.metadata import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
