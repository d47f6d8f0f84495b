"""All checks of this machine, with the numbers that they judge."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mooncake_store.cli.checks.check import FAIL, Check
from mooncake_store.cli.checks.clock import clock_check, is_clock_kept, measure_clock_ns
from mooncake_store.cli.checks.installation import (
    extension_check,
    has_libibverbs,
    rdma_library_check,
    version_check,
)
from mooncake_store.cli.checks.kernel import kernel_check, missing_features
from mooncake_store.cli.checks.limits import descriptors_check
from mooncake_store.cli.checks.memory import (
    huge_pages_check,
    leftovers_check,
    memlock_check,
    memory_check,
    shared_memory_check,
)
from mooncake_store.cli.checks.network import (
    gid_check,
    mtu_check,
    neighbour_check,
    network_check,
)
from mooncake_store.cli.checks.ports import ports_check
from mooncake_store.cli.checks.runtime_folder import runtime_check
from mooncake_store.cli.checks.verbs import open_devices, verbs_check
from mooncake_store.config import MIB
from mooncake_store.errors import StoreError
from mooncake_store.transfer_engine.topology import Topology

__all__ = ["machine_checks"]

_SHM = Path("/dev/shm")


def machine_checks(base_port: int, topology: Topology) -> Iterator[Check]:
    """Look at everything but the master, in the order in which it matters.

    Args:
        base_port: The first of a master's three ports.
        topology: This machine's interfaces, as they will be used.
    """
    has_rdma = any(nic.rdma is not None for nic in topology.nics)
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
        has_rdma=has_rdma,
    )
    yield descriptors_check(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield clock_check(
        _text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        measure_clock_ns(),
        is_clock_kept(),
    )
    yield network_check(topology)
    neighbours = neighbour_check(
        topology, int(_text("/proc/sys/net/ipv4/conf/all/arp_ignore") or 0)
    )
    if neighbours is not None:
        yield neighbours
    yield mtu_check(topology)
    gid = gid_check(topology)
    if gid is not None:
        yield gid
    yield rdma_library_check(has_library=has_libibverbs(), has_rdma=has_rdma)
    if has_rdma and has_libibverbs():
        yield verbs_check(open_devices())
    yield runtime_check()
    yield ports_check(base_port)


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


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
