"""The HTTP metadata server, under the name of the module that users start with `python -m`."""

from __future__ import annotations

from typing import NoReturn

from mooncake._absent import absent
from mooncake._commands.metadata import main

__all__ = ["main"]

_ABSENT = {
    "KVBootstrapServer": "the command mooncake_http_metadata_server is the server",
    "KVPoll": "SGLang has a KVPoll of its own",
}


def __getattr__(name: str) -> NoReturn:
    if name in _ABSENT:
        raise absent(f"mooncake.http_metadata_server.{name}", _ABSENT[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    main()
