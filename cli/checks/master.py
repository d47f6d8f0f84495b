"""Does the master that commands would talk to answer?"""

from __future__ import annotations

import time

from mooncake_store.cli.checks.check import FAIL, OK, WARN, Check
from mooncake_store.cli.contexts import Target
from mooncake_store.errors import StoreError

__all__ = ["master_check"]


def master_check(target: Target, timeout_s: float) -> Check:
    """Does the master that commands would talk to answer?"""
    from mooncake_store.client import Client

    where = f"{target.shown} ({target.origin})"
    started = time.perf_counter()
    try:
        with Client(
            target.master, strict=True, connect_timeout_s=timeout_s, wait_for_master=False
        ) as store:
            members = store.members(timeout_s=timeout_s)
    except StoreError as error:
        # Nobody asked for one: a machine without a running store is a healthy machine.
        verdict = WARN if target.origin == "default" else FAIL
        return Check(
            "master", verdict, f"{where}: {error.message} [{error.code}]",
            "start one here with `mooncake-store up`, or name yours: --master HOST:PORT",
        )  # fmt: skip
    elapsed_ms = (time.perf_counter() - started) * 1e3
    ready = sum(member.state == "ready" for member in members)
    why = f"{where} answers in {elapsed_ms:.1f} ms; {ready} of {len(members)} store servers ready"
    if ready == 0:
        return Check("master", WARN, why, f"mooncake-store server --master {target.shown}")
    return Check("master", OK, why)
