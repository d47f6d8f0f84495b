"""A name and a password, for which etcd gives a token that it forgets after some minutes."""

from __future__ import annotations

import asyncio

import grpc

from mooncake_store.coordination.etcd_client.endpoints import (
    ATTEMPT_TIMEOUT_S,
    Endpoint,
    Method,
    Tokens,
)
from mooncake_store.protocol import etcd_pb2 as pb

__all__ = ["Password"]

_AUTHENTICATE = Method(
    "/etcdserverpb.Auth/Authenticate",
    pb.AuthenticateRequest.SerializeToString,
    pb.AuthenticateResponse.FromString,
)


class Password(Tokens):
    """Asks for a token with the first call, and again whenever one is refused."""

    def __init__(self, user: str, password: str) -> None:
        self._request = pb.AuthenticateRequest(name=user, password=password)
        self._lock = asyncio.Lock()
        self._metadata: tuple[tuple[str, str], ...] | None = None

    async def metadata(self, endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
        async with self._lock:  # many calls at once need one token
            if self._metadata is None:
                self._metadata = await self._ask(endpoint)
            return self._metadata

    async def _ask(self, endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
        try:
            answer = await endpoint.unary(_AUTHENTICATE)(self._request, timeout=ATTEMPT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                return ()  # passwords are not (yet) asked for
            raise
        return (("token", answer.token),)

    def forget(self, metadata: tuple[tuple[str, str], ...]) -> bool:
        if self._metadata == metadata:
            self._metadata = None
        return True
