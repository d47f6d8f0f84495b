"""Is this installation whole: versions, the C extension, libraries that are opened when needed?"""

from __future__ import annotations

import ctypes
import platform
import sys
from importlib import metadata

from mooncake_store import __version__
from mooncake_store.cli.checks.check import FAIL, OK, WARN, Check

__all__ = ["extension_check", "has_libibverbs", "rdma_library_check", "version_check"]

_LIBRARIES = ("cffi", "grpcio", "protobuf")


def version_check(python: tuple[int, int] = sys.version_info[:2]) -> Check:
    """Versions; old Pythons."""
    text = f"mooncake-store {__version__}, Python {python[0]}.{python[1]}"
    if python < (3, 10):
        return Check("versions", FAIL, f"{text}: too old", "use Python 3.10 or newer")
    libraries = ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES)
    system = f"Linux {platform.release()}, {platform.machine()}, {' '.join(platform.libc_ver())}"
    return Check("versions", OK, f"{text}, {libraries}, {system}")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "without version"


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


def rdma_library_check(*, has_library: bool, has_rdma: bool) -> Check:
    """Is the library there that RDMA devices are driven by?"""
    if has_library:
        return Check("libibverbs", OK, "installed")
    if has_rdma:
        return Check(
            "libibverbs", WARN, "not installed, so the RDMA devices here lie idle",
            "apt-get install rdma-core libibverbs1 ibverbs-providers, or dnf install rdma-core",
        )  # fmt: skip
    return Check("libibverbs", OK, "not installed; only RDMA would need it, no device is here")


def has_libibverbs() -> bool:
    """Return whether it can be opened, as the engine would."""
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return False
    return True
