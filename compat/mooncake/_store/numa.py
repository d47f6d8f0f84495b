"""Threads near their memory, and the allocation functions that frameworks ask for by address."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

__all__ = ["bind_to_numa_node", "get_alloc_func_addr", "get_free_func_addr"]

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_PREFERRED = 1
_libc = ctypes.CDLL(None, use_errno=True)


def bind_to_numa_node(node: int) -> None:
    """Run this thread on the CPUs of a NUMA node, and prefer its memory.

    On a machine that tells of no nodes, node 0 is all of it.

    Raises:
        ValueError: There is no such node.
    """
    path = Path(f"/sys/devices/system/node/node{node}/cpulist")
    if not path.exists():
        if node == 0:
            return
        raise ValueError(f"there is no NUMA node {node}")
    cpus: set[int] = set()
    for part in filter(None, path.read_text().strip().split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    allowed = cpus & os.sched_getaffinity(0)
    if allowed:
        os.sched_setaffinity(0, allowed)
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is not None:  # where the kernel has no such call, the CPUs alone decide
        mask = ctypes.c_ulong(1 << node)
        _libc.syscall(number, _PREFERRED, ctypes.byref(mask), ctypes.sizeof(mask) * 8)


def get_alloc_func_addr() -> int:
    """Return the address of a function that takes a size and returns memory."""
    return ctypes.cast(_libc.malloc, ctypes.c_void_p).value or 0


def get_free_func_addr() -> int:
    """Return the address of the function that gives such memory back."""
    return ctypes.cast(_libc.free, ctypes.c_void_p).value or 0
