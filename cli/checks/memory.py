"""Is there memory: shared, locked, in huge pages, and none left behind by others?"""

from __future__ import annotations

import fcntl
import os
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mooncake_store.cli.checks.check import FAIL, OK, WARN, Check
from mooncake_store.cli.output import approximate_size
from mooncake_store.config import GIB, MIB

__all__ = [
    "huge_pages_check",
    "leftovers_check",
    "memlock_check",
    "memory_check",
    "shared_memory_check",
]


def shared_memory_check(total_bytes: int, free_bytes: int, *, is_container: bool) -> Check:
    """Is there room in /dev/shm for a pool?"""
    size = approximate_size
    why = f"/dev/shm: {size(free_bytes)} of {size(total_bytes)} free; pools live there"
    fix = "mount -o remount,size=8G /dev/shm"
    if is_container:
        fix = "start the container with --shm-size=8g (Kubernetes: an emptyDir of medium Memory)"
    if free_bytes < total_bytes // 2:
        fix = f"ls -l /dev/shm shows who uses it; or {fix}"
    if free_bytes < 16 * MIB:
        return Check("shared memory", FAIL, f"{why}; too little for any", fix)
    if free_bytes < 4 * GIB:
        return Check("shared memory", WARN, f"{why}; `up` takes 1 GiB or a quarter of it", fix)
    return Check("shared memory", OK, why)


def leftovers_check(folder: Path) -> Check:
    """Are there pools of servers that were killed and did not come back?"""
    found, total = [], 0
    for name, size_bytes in sorted(_abandoned(folder)):
        found.append(name)
        total += size_bytes
    if not found:
        return Check("old pools", OK, "no killed server has left memory behind")
    return Check(
        "old pools", WARN,
        f"{approximate_size(total)} of servers that do not run: {', '.join(found[:3])}",
        f"start them again under the same name, or: rm -r {folder / found[0]}",
    )  # fmt: skip


def _abandoned(folder: Path) -> Iterator[tuple[str, int]]:
    """Server folders with memory in them that no process has locked."""
    with suppress(OSError):
        for server in folder.iterdir():
            size_bytes = sum(
                file.lstat().st_blocks * 512 for file in server.iterdir() if file.is_file()
            )
            if size_bytes >= MIB and not _is_locked(server / "lock"):
                yield server.name, size_bytes


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # Shared, and at once: a server that starts at this very moment is not kept from its own.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def memory_check(available_bytes: int) -> Check:
    """Is there memory for a pool beside everything else?"""
    why = f"{approximate_size(available_bytes)} of memory available"
    if available_bytes < 2 * GIB:
        return Check(
            "memory", WARN, f"{why}: a pool is memory like any other",
            "give the pool a size that fits: --pool-size, `up --size`",
        )  # fmt: skip
    return Check("memory", OK, why)


def memlock_check(soft_bytes: int, *, has_rdma: bool) -> Check:
    """May memory be locked?  RDMA needs it; shared memory and TCP do not."""
    unlimited = soft_bytes == resource.RLIM_INFINITY
    why = f"memlock: {'unlimited' if unlimited else approximate_size(soft_bytes)}"
    if unlimited or soft_bytes >= GIB:
        return Check("memlock", OK, why)
    if has_rdma:
        return Check(
            "memlock", WARN, f"{why}, too little to register a pool with the RDMA devices here",
            "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1)",
        )  # fmt: skip
    return Check("memlock", OK, f"{why}; only RDMA would need more, and no RDMA device is here")


def huge_pages_check(free: int, page_bytes: int, shmem: str) -> Check:
    """Are there huge pages to ask for?  Without them everything works."""
    chosen = re.search(r"\[(\w+)\]", shmem)
    mode = chosen[1] if chosen else "unknown"
    reserved = f"{free} free of {approximate_size(page_bytes)}" if free else "none reserved"
    why = f"huge pages: {reserved}; transparent ones in /dev/shm: {mode}"
    if free or mode in ("always", "advise", "within_size", "force"):
        return Check("huge pages", OK, why)
    return Check(
        "huge pages", OK, f"{why}; optional, for pools of many GiB",
        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, then server --huge-pages",
    )  # fmt: skip
