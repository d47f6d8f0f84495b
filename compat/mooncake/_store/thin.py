"""How a thin client finds the master behind a `mooncake_client` process: it asks over HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request

from mooncake_store.errors import UnavailableError

__all__ = ["MASTER_PATH", "master_behind"]

MASTER_PATH = "/master"
_TIMEOUT_S = 5.0


def master_behind(server_address: str) -> str:
    """Return the master that the process at `host:port` serves.

    Raises:
        UnavailableError: It does not answer, or is no `mooncake_client` of this distribution.
    """
    try:
        with urllib.request.urlopen(
            f"http://{server_address}{MASTER_PATH}", timeout=_TIMEOUT_S
        ) as answer:
            return str(answer.read(1024).decode())
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise UnavailableError(
            f"no mooncake_client answers at {server_address}: {error}", cause=error
        ) from error
