"""How calls of gRPC end that are not answered."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import grpc

__all__ = ["abort", "refuse"]


async def abort(
    context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, details: str
) -> NoReturn:
    """End a call with a status."""
    await context.abort(code, details)
    raise AssertionError("abort raises")


async def refuse(
    context: grpc.aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    reason: str,
    message: str,
    retry_after_s: float | None,
) -> NoReturn:
    """End a call with `reason` and `retry-after-ms` beside the status.

    Where another try does not help (None) there is no `retry-after-ms`.
    """
    metadata = [("reason", reason)]
    if retry_after_s is not None:
        metadata.append(("retry-after-ms", str(math.ceil(retry_after_s * 1000))))
    context.set_trailing_metadata(tuple(metadata))
    await abort(context, code, f"{reason}: {message}")
