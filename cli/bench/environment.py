"""The machine that a benchmark ran on, and which core runs what.

Where the scheduler puts the two ends of a connection decides a round trip more than the code does:
left alone, the same loop takes 20 or 50 us.  So both ends are held on cores of their own (what two
hosts look like), raw and ours alike, and the figure left alone is printed beside.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mooncake_store import __version__


@dataclass(frozen=True, slots=True)
class Placement:
    """Cores for the client and for everything that serves it; None leaves it to the scheduler."""

    client_core: int | None
    server_core: int | None

    @classmethod
    def apart(cls) -> Placement:
        """Put client and servers on different cores, as far as this process may use two."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            return cls(None, None)
        return cls(cores[0], cores[1])

    @property
    def is_pinned(self) -> bool:
        return self.client_core is not None


LEFT_ALONE = Placement(None, None)


def _tasks(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _move(pid: int, cores: set[int]) -> None:
    for task in _tasks(pid):
        try:
            os.sched_setaffinity(task, cores)
        except ProcessLookupError:
            continue  # that thread has just ended


@contextmanager
def placed(placement: Placement, server_pids: Iterable[int]) -> Iterator[None]:
    """Hold this process and the servers on their cores until the block ends."""
    with placed_processes(placement, [], server_pids):
        yield


@contextmanager
def placed_processes(
    placement: Placement, client_pids: Iterable[int], server_pids: Iterable[int]
) -> Iterator[None]:
    """Hold this process, further clients and the servers on their cores until the block ends.

    All threads that exist are moved; threads made inside the block inherit their maker's core.
    """
    every_core = os.sched_getaffinity(0)
    clients, servers = [os.getpid(), *client_pids], list(server_pids)
    if placement.client_core is not None and placement.server_core is not None:
        for pid in clients:
            _move(pid, {placement.client_core})
        for pid in servers:
            _move(pid, {placement.server_core})
    try:
        yield
    finally:
        for pid in [*clients, *servers]:
            _move(pid, every_core)


class MachineLoad:
    """Share of the machine's processor time that was busy, and stolen, while the block ran."""

    def __enter__(self) -> MachineLoad:
        self._begin = self._read()
        return self

    def __exit__(self, *exception: object) -> None:
        spent = [b - a for a, b in zip(self._begin, self._read(), strict=True)]
        total = sum(spent) or 1
        self.busy_ratio = round(1 - (spent[3] + spent[4]) / total, 3)
        self.steal_ratio = round(spent[7] / total, 3)

    @staticmethod
    def _read() -> list[int]:
        # user, nice, system, idle, iowait, irq, softirq, steal
        return [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def own_memory_bytes(pid: int | str) -> int:
    """Return a process's memory without pages that it shares with others."""
    fields = dict.fromkeys(("RssAnon", "RssFile"), 0)
    with open(f"/proc/{pid}/status") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in fields:
                fields[name] = int(value.split()[0]) * 1024
    return sum(fields.values())


def connections_to(ports: set[int]) -> int:
    """Count this process's established TCP connections to one of the ports."""
    mine = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:["):
                mine.add(target[len("socket:[") : -1])
    count = 0
    with open("/proc/self/net/tcp") as lines:
        next(lines)
        for line in lines:
            fields = line.split()
            remote_port, state, inode = int(fields[2].rpartition(":")[2], 16), fields[3], fields[9]
            count += state == "01" and remote_port in ports and inode in mine
    return count


def describe_machine() -> dict[str, object]:
    """Say what the figures were measured on, for people and for `--json`."""
    return {
        "cpu": _first(r"/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "is_virtual": "hypervisor" in (_first("/proc/cpuinfo", "flags") or "").split(),
        "transparent_huge_pages": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "shared_memory_huge_pages": _chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "python": platform.python_version(),
        "version": __version__,
        "commit": _commit(),
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def _first(path: str, field: str) -> str | None:
    try:
        with open(path) as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == field:
                    return value.strip()
    except OSError:
        pass
    return None


def _chosen(path: str) -> str | None:
    """Return the bracketed word of a kernel setting."""
    try:
        return Path(path).read_text().split("[", 1)[1].split("]", 1)[0]
    except (OSError, IndexError):
        return None


def _commit() -> str | None:
    """Return the commit when this runs from a checkout, with + when files differ from it."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
