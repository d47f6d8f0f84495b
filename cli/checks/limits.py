"""Are the process's limits wide enough?"""

from __future__ import annotations

import resource

from mooncake_store.cli.checks.check import FAIL, OK, WARN, Check
from mooncake_store.master.config import MasterConfig
from mooncake_store.serving.connections import descriptors_wanted

__all__ = ["descriptors_check"]

# A master's, with its defaults.
_DESCRIPTORS_WANTED = descriptors_wanted(MasterConfig().connections_max, grpc=True, http=True)


def descriptors_check(soft: int, hard: int) -> Check:
    """Are there descriptors for all connections?  A master raises the soft limit by itself."""
    infinite = resource.RLIM_INFINITY
    text = ["unlimited" if limit == infinite else f"{limit:,}" for limit in (soft, hard)]
    why = f"open files: {text[0]}, can be raised to {text[1]}"
    if hard == infinite or hard >= _DESCRIPTORS_WANTED:
        return Check("open files", OK, why)
    if hard >= 1024:
        return Check(
            "open files", WARN, f"{why}; a master's connections_max needs {_DESCRIPTORS_WANTED:,}",
            "raise it (systemd: LimitNOFILE=65536), or set --connections-max lower",
        )  # fmt: skip
    return Check("open files", FAIL, f"{why}: too few", "ulimit -Hn 65536")
