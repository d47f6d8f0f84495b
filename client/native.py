"""The extension module with this room's functions added, and how its errors come out."""

from __future__ import annotations

import functools
from typing import Any

from mooncake_store import _native as _module
from mooncake_store.errors import BufferTooSmallError, Status, StoreError, error_from_status

__all__ = ["deadline_ns", "failure_error", "ffi", "lib", "metric_names", "native"]

ffi: Any = _module.ffi
lib: Any = _module.lib
native: Any = _module


def _make_error(
    status: int,
    stage: str,
    node: str,
    message: str,
    key: str | None,
    elapsed_s: float,
    object_bytes: int,
    room_bytes: int,
) -> StoreError:
    """C calls this for every failure."""
    if status == Status.BUFFER_TOO_SMALL:
        message = f"the object has {object_bytes} bytes, the buffer only {room_bytes}"
        return BufferTooSmallError(message, key=key, stage=stage or "get", elapsed_s=elapsed_s)
    return error_from_status(
        status,
        message,
        key=key if key is None or len(key) <= 200 else key[:200] + "...",
        node=node or None,
        stage=stage or None,
        elapsed_s=elapsed_s,
    )


if lib.cl_install(id(_module), id(_make_error)) != 0:
    raise ImportError("the extension module of mooncake_store could not be completed")
# C keeps a reference; this one makes it visible.
_installed = _make_error


def deadline_ns(timeout_s: float) -> int:
    """Return the absolute deadline that C wants."""
    return int(lib.te_now_ns() + timeout_s * 1e9)


def failure_error(failure: Any, key: str | None = None) -> StoreError:
    """Return the exception for a `cl_failure`."""

    def text(field: Any) -> str:
        return bytes(ffi.string(field)).decode(errors="replace")

    return error_from_status(
        failure.status,
        text(failure.message),
        key=key,
        node=text(failure.node) or None,
        stage=text(failure.stage) or None,
    )


@functools.cache
def metric_names() -> dict[int, str]:
    """Return the names of what a master counts, by the numbers that STATUS has for them."""
    metric = ffi.new("ma_metric *")
    names = {}
    for index in range(lib.ma_metric_count()):
        lib.ma_metric_get(index, metric)
        names[metric.number] = ffi.string(metric.name).decode()
    return names
