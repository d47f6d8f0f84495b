"""Does the kernel have what the store uses?"""

from __future__ import annotations

import mmap
import os

from mooncake_store.cli.checks.check import FAIL, OK, WARN, Check

__all__ = ["kernel_check", "missing_features"]

_MADV_POPULATE_WRITE = 23


def kernel_check(missing: list[str], release: str) -> Check:
    """Does the kernel have what the store uses?"""
    if not missing:
        return Check("kernel", OK, f"Linux {release}: memfd, pidfd, MADV_POPULATE")
    essential = "memfd" in missing
    return Check(
        "kernel", FAIL if essential else WARN, f"Linux {release} lacks {', '.join(missing)}",
        "use Linux 5.14 or newer" + ("" if essential else "; it works without, but starts slower"),
    )  # fmt: skip


def missing_features() -> list[str]:
    """Return what this kernel lacks, by trying."""
    missing = []
    try:
        os.close(os.memfd_create("doctor"))
    except (OSError, AttributeError):
        missing.append("memfd")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        missing.append("pidfd")
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            page.madvise(_MADV_POPULATE_WRITE)
    except (OSError, ValueError):
        missing.append("MADV_POPULATE")
    return missing
