"""What the store needs of a machine: each check looks at one thing and says what to do about it.

A check that can be judged from numbers takes them as arguments, so that every verdict can be tested
on a machine where it is fine; `machine_checks` brings the numbers.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import re
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mooncake_store import __version__
from mooncake_store.cli.contexts import Target
from mooncake_store.cli.output import approximate_size
from mooncake_store.config import GIB, MIB
from mooncake_store.errors import StoreError

__all__ = ["Check", "machine_checks", "master_check"]

OK, WARN, FAIL = "ok", "warn", "fail"

_MADV_POPULATE_WRITE = 23
_SOCKET_PATH_MAX = 107  # sun_path without its final zero
_SHM = Path("/dev/shm")
_DESCRIPTORS_WANTED = 16_384 + 256  # a master with connections_max at its default


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        verdict: ok, warn (it works, but not as well as it could) or fail.
        why: What was found, and what it matters for.
        fix: A command or a setting; empty when nothing is to be done.
    """

    name: str
    verdict: str
    why: str
    fix: str = ""


# ---- this installation ---------------------------------------------------------------------------


def version_check(python: tuple[int, int] = sys.version_info[:2]) -> Check:
    """Versions; old Pythons."""
    text = f"mooncake-store {__version__}, Python {python[0]}.{python[1]}"
    if python < (3, 10):
        return Check("versions", FAIL, f"{text}: too old", "use Python 3.10 or newer")
    return Check("versions", OK, f"{text}, Linux {platform.release()}, {platform.machine()}")


def extension_check() -> Check:
    """Does the C extension load, and does it count as the Python side does?"""
    try:
        from mooncake_store import _native
        from mooncake_store.protocol.frames import WIRE_VERSION, WIRE_VERSION_OLDEST

        started_ns = _native.lib.te_now_ns()
    except Exception as error:
        return Check(
            "extension", FAIL, f"mooncake_store._native does not load: {error}",
            "install again: pip install --force-reinstall mooncake-store (or, here: make native)",
        )  # fmt: skip
    if started_ns <= 0:
        return Check("extension", FAIL, "its clock stands still", "please report it")
    return Check(
        "extension", OK,
        f"loads; speaks protocol {WIRE_VERSION}, understands {WIRE_VERSION_OLDEST} and newer",
    )  # fmt: skip


# ---- memory --------------------------------------------------------------------------------------


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


# ---- limits, clock, kernel -----------------------------------------------------------------------


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


def clock_check(source: str, read_ns: float) -> Check:
    """Is reading the clock cheap?  Every call does it a few times."""
    why = f"clock: {source or 'unknown source'}, {read_ns:.0f} ns a reading"
    if read_ns > 1000:
        return Check(
            "clock", WARN, f"{why}: a system call each time, which adds microseconds to every get",
            "cat /sys/devices/system/clocksource/clocksource0/available_clocksource: take tsc",
        )  # fmt: skip
    return Check("clock", OK, why)


def measure_clock_ns() -> float:
    """Return what one reading of the monotonic clock takes here, the interpreter included."""
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter_ns()
        for _ in range(200):
            time.monotonic_ns()
        best = min(best, (time.perf_counter_ns() - started) / 200)
    return best


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


# ---- where processes find each other -------------------------------------------------------------


def runtime_check() -> Check:
    """Can sockets be made in the runtime folder?"""
    from mooncake_store.runtime import runtime_dir

    try:
        folder = runtime_dir()
    except StoreError as error:
        return Check(
            "runtime folder", FAIL, error.message, "set XDG_RUNTIME_DIR to a folder of yours"
        )
    longest = len(str(folder / "server-4194304.sock"))
    if longest > _SOCKET_PATH_MAX:
        return Check(
            "runtime folder", FAIL, f"{folder}: too long for a Unix socket's path",
            "set XDG_RUNTIME_DIR to a shorter one",
        )  # fmt: skip
    if not os.access(folder, os.W_OK):
        return Check("runtime folder", FAIL, f"{folder} cannot be written", f"chmod 700 {folder}")
    return Check("runtime folder", OK, f"{folder}: private, for sockets and the context `local`")


def ports_check(base: int) -> Check:
    """Are the default ports free, or taken by a master?"""
    taken = [port for port in range(base, base + 3) if _is_listened_on(port)]
    if not taken:
        return Check("ports", OK, f"{base} to {base + 2} are free for a master")
    from mooncake_store.serving.ports import holder_of_port

    holders = {port: holder_of_port(port) for port in taken}
    text = ", ".join(f"{port} by {holder}" for port, holder in holders.items())
    if base in taken and _is_master(base):
        return Check("ports", OK, f"a master runs here: {text}")
    return Check(
        "ports", WARN, f"in use: {text}", "stop that process, or start with another: up --port 0"
    )


def _is_listened_on(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_master(port: int) -> bool:
    from mooncake_store.client import Client

    try:
        with Client(f"127.0.0.1:{port}", connect_timeout_s=1.0, wait_for_master=False):
            return True
    except StoreError:
        return False


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


# ---- all of them ---------------------------------------------------------------------------------


def machine_checks(base_port: int) -> Iterator[Check]:
    """Look at everything but the master, in the order in which it matters."""
    from mooncake_store.runtime import shared_memory_dir

    yield version_check()
    yield extension_check()
    yield kernel_check(missing_features(), platform.release())
    try:
        disk = shutil.disk_usage(_SHM)
        yield shared_memory_check(disk.total, disk.free, is_container=_is_container())
    except OSError as error:
        yield Check(
            "shared memory", FAIL, f"/dev/shm: {error.strerror}", "mount -t tmpfs tmpfs /dev/shm"
        )
    with suppress(StoreError):
        yield leftovers_check(shared_memory_dir(create=False))
    memory = _meminfo()
    yield memory_check(memory.get("MemAvailable", 0))
    yield huge_pages_check(
        memory.get("HugePages_Free", 0),
        memory.get("Hugepagesize", 2 * MIB),
        _text("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
    )
    yield memlock_check(
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        has_rdma=_has_entries("/sys/class/infiniband"),
    )
    yield descriptors_check(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield clock_check(
        _text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        measure_clock_ns(),
    )
    yield runtime_check()
    yield ports_check(base_port)


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _has_entries(path: str) -> bool:
    with suppress(OSError):
        return bool(os.listdir(path))
    return False


def _is_container() -> bool:
    return Path("/.dockerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ


def _meminfo() -> dict[str, int]:
    """Bytes, and counts of pages."""
    found = {}
    for line in _text("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        value, _, unit = rest.strip().partition(" ")
        if value.isdigit():
            found[name] = int(value) * (1024 if unit == "kB" else 1)
    return found
