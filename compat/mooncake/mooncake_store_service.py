"""The REST server, under the name of the module that users start with `python -m`."""

from __future__ import annotations

from typing import NoReturn

from mooncake._absent import absent
from mooncake._commands.rest import main as sync_main

__all__ = ["sync_main"]

_ABSENT = {
    "MooncakeStoreService": "the command mc_store_rest_server is the service",
}


def __getattr__(name: str) -> NoReturn:
    if name in _ABSENT:
        raise absent(f"mooncake.mooncake_store_service.{name}", _ABSENT[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    sync_main()
