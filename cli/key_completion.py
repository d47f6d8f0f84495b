"""Keys that complete what somebody has begun to type, from the master, at once or not at all."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["complete"]

BUDGET_S = 0.2
KEYS_MAX = 50
# A completed key lands on somebody's command line: only what no shell gives a meaning.
_HARMLESS = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


def complete(parameters: Mapping[str, Any], begun: str) -> list[str]:
    """Return keys that begin so; none when the master does not answer within 200 ms.

    Args:
        parameters: What the command line says so far: --master, --context, --config.
        begun: The beginning of the key.
    """
    try:
        return _complete(parameters, begun)
    except Exception:  # a completion that complains is worse than none
        return []


def _complete(parameters: Mapping[str, Any], begun: str) -> list[str]:
    from mooncake_store.cli.contexts import read_document, resolve
    from mooncake_store.client import Client

    document, _ = read_document(parameters.get("config"))
    target = resolve(parameters.get("master"), parameters.get("context"), document)
    end = time.monotonic() + BUDGET_S
    with Client(
        target.master, strict=True, connect_timeout_s=BUDGET_S, wait_for_master=False
    ) as store:
        left_s = end - time.monotonic()
        if left_s <= 0:
            return []
        found = [item.key for item in store.list(begun, limit=KEYS_MAX, timeout_s=left_s)]
    return sorted(key for key in found if _HARMLESS.fullmatch(key))
