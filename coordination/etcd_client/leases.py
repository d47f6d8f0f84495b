"""Leases: granted, renewed one by one, revoked."""

from __future__ import annotations

import asyncio

import grpc

from mooncake_store.coordination.etcd_client.endpoints import (
    Endpoint,
    Endpoints,
    Method,
    error_of,
    is_stale_token,
)
from mooncake_store.coordination.etcd_client.store import Grant
from mooncake_store.errors import StoreError, UnavailableError
from mooncake_store.protocol import etcd_pb2 as pb

__all__ = ["Leases"]

_GRANT = Method(
    "/etcdserverpb.Lease/LeaseGrant",
    pb.LeaseGrantRequest.SerializeToString,
    pb.LeaseGrantResponse.FromString,
)
_REVOKE = Method(
    "/etcdserverpb.Lease/LeaseRevoke",
    pb.LeaseRevokeRequest.SerializeToString,
    pb.LeaseRevokeResponse.FromString,
)
_RENEW = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive",
    pb.LeaseKeepAliveRequest.SerializeToString,
    pb.LeaseKeepAliveResponse.FromString,
)


class Leases:
    """The calls of etcd's Lease service."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    async def grant(self, ttl_s: int) -> Grant:
        # A grant whose answer is lost ends by itself.
        request = pb.LeaseGrantRequest(ttl_s=ttl_s)
        answer = await self._endpoints.call(_GRANT, request, is_repeatable=True)
        return Grant(answer.id, answer.ttl_s)

    async def revoke(self, lease: int) -> None:
        try:
            await self._endpoints.call(_REVOKE, pb.LeaseRevokeRequest(id=lease), is_repeatable=True)
        except StoreError as error:
            if "lease not found" not in error.message:
                raise

    async def renew(self, lease: int, timeout_s: float, patience_s: float | None = None) -> int:
        """Renew once: etcd's method is a pair of streams, used here for one request each time.

        A stream that stays open would save little and could freeze with its member.
        """
        endpoint = self._endpoints.current
        if patience_s is None:
            return await self._renew_at(endpoint, lease, timeout_s)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(patience_s, self._endpoints.leave, endpoint)
        try:
            return await self._renew_at(endpoint, lease, timeout_s)
        finally:
            timer.cancel()

    async def _renew_at(self, endpoint: Endpoint, lease: int, timeout_s: float) -> int:
        tokens = self._endpoints.tokens
        metadata: tuple[tuple[str, str], ...] = ()
        try:
            metadata = await tokens.metadata(endpoint)
            call = endpoint.stream(_RENEW)(timeout=timeout_s, metadata=metadata)
            try:
                # The call's own deadline ends both; no read is ever cancelled.
                await call.write(pb.LeaseKeepAliveRequest(id=lease))
                answer = await call.read()
                if answer is grpc.aio.EOF:
                    raise UnavailableError("etcd ended the stream", node=f"etcd {endpoint.address}")
                return int(answer.ttl_s)
            finally:
                call.cancel()
        except grpc.aio.AioRpcError as error:
            if is_stale_token(error):
                tokens.forget(metadata)
            self._endpoints.leave(endpoint)
            raise error_of(error, endpoint.address) from error
        except asyncio.InvalidStateError as error:  # the stream had ended before it was written to
            self._endpoints.leave(endpoint)
            raise UnavailableError(
                "etcd ended the stream", node=f"etcd {endpoint.address}", cause=error
            ) from error
        except UnavailableError:
            self._endpoints.leave(endpoint)
            raise
