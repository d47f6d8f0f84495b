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
    retry_after_s: float,
) -> NoReturn:
    """End a call that may be tried again, with `reason` and `retry-after-ms` beside the status."""
    retry_ms = math.ceil(retry_after_s * 1000)
    context.set_trailing_metadata((("reason", reason), ("retry-after-ms", str(retry_ms))))
    await abort(context, code, f"{reason}: {message}")
