"""Channels to the members of an etcd cluster, and which of them is used.

Each member has a channel of its own and one is used until it fails: a balancing channel would send
a third of all calls to a frozen one. A transport's keep-alive cannot find that in time either,
because etcd refuses pings more often than every 5 s; so each attempt has a deadline of its own,
after which the next member is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc

from mooncake_store.coordination.etcd_client.address import EtcdAddress, Tls
from mooncake_store.coordination.etcd_client.store import CompactedError
from mooncake_store.errors import (
    AccessRefusedError,
    ConfigError,
    InternalError,
    LimitError,
    StoreError,
    UnavailableError,
)

__all__ = ["ATTEMPT_TIMEOUT_S", "Endpoint", "Endpoints", "Method", "error_of", "is_stale_token"]

ATTEMPT_TIMEOUT_S = 1.5
_CALL_TIMEOUT_S = 5.0  # all attempts together
_PAUSE_S = 0.05  # between rounds over all members, when each refuses at once

_OPTIONS = [
    ("grpc.enable_retries", 0),  # what may be repeated is decided here
    ("grpc.use_local_subchannel_pool", 1),  # nobody else's channel to the same address
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # also how long a connection may take
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd ends connections that ping more often than 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.max_receive_message_length", 64 << 20),
]

Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True)
class Method(Generic[Request, Response]):
    """A method of etcd: where it is, and what it speaks."""

    path: str
    encode: Callable[[Request], bytes]
    decode: Callable[[bytes], Response]


class Endpoint:
    """One member."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self.channel = (
            grpc.aio.insecure_channel(address, options=_OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        )
        self._calls: dict[str, Any] = {}

    def unary(self, method: Method[Request, Response]) -> Any:
        """Return the callable of a method with one request and one response."""
        if method.path not in self._calls:
            self._calls[method.path] = self.channel.unary_unary(
                method.path, request_serializer=method.encode, response_deserializer=method.decode
            )
        return self._calls[method.path]

    def stream(self, method: Method[Request, Response]) -> Any:
        """Return the callable of a method with two streams."""
        if method.path not in self._calls:
            self._calls[method.path] = self.channel.stream_stream(
                method.path, request_serializer=method.encode, response_deserializer=method.decode
            )
        return self._calls[method.path]


class Tokens:
    """What proves who we are; the password gives one, `password.Password`."""

    async def metadata(self, endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
        """Return what a call carries."""
        return ()

    def forget(self, metadata: tuple[tuple[str, str], ...]) -> bool:
        """Say that this was refused; return whether another one can be had."""
        return False


class Endpoints:
    """All members, and the one in use. Made inside a running loop.

    Args:
        address: Of the cluster.
        tokens: What every call carries.
    """

    def __init__(self, address: EtcdAddress, tokens: Tokens) -> None:
        credentials = None if address.tls is None else _credentials(address.tls)
        self._all = tuple(Endpoint(each, credentials) for each in address.endpoints)
        self._at = 0
        self.tokens = tokens

    @property
    def current(self) -> Endpoint:
        return self._all[self._at]

    @property
    def count(self) -> int:
        return len(self._all)

    def leave(self, endpoint: Endpoint) -> None:
        """Use the next member from now on, if this one is still in use."""
        if self.current is endpoint:
            self._at = (self._at + 1) % len(self._all)

    async def close(self) -> None:
        for endpoint in self._all:
            await endpoint.channel.close(None)

    async def call(
        self, method: Method[Request, Response], request: Request, *, is_repeatable: bool
    ) -> Response:
        """Ask one member after the other until one answers.

        Raises:
            UnavailableError: None did; if it was not repeatable, it may have been carried out.
            StoreError: One refused it.
        """
        end_s = time.monotonic() + _CALL_TIMEOUT_S
        refused = 0
        while True:
            endpoint = self.current
            metadata: tuple[tuple[str, str], ...] = ()
            was_sent = False
            try:
                metadata = await self.tokens.metadata(endpoint)
                was_sent = True
                response: Response = await endpoint.unary(method)(
                    request, timeout=ATTEMPT_TIMEOUT_S, metadata=metadata
                )
                return response
            except grpc.aio.AioRpcError as error:
                # A token that is not taken: nothing was done, so it is no repetition.
                if is_stale_token(error) and refused < 2 and self.tokens.forget(metadata):
                    refused += 1
                    continue
                failure = error_of(error, endpoint.address)
            if not isinstance(failure, UnavailableError):
                raise failure
            self.leave(endpoint)
            if was_sent and not is_repeatable:
                raise failure
            if time.monotonic() + _PAUSE_S >= end_s:
                raise failure
            if self._at == 0:
                await asyncio.sleep(_PAUSE_S)


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    def read(path: str) -> bytes | None:
        try:
            return Path(path).read_bytes() if path else None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}", cause=error) from error

    return grpc.ssl_channel_credentials(read(tls.ca), read(tls.key), read(tls.cert))


def is_stale_token(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a call was refused before it did anything, because of its token."""
    text = error.details() or ""
    return error.code() == grpc.StatusCode.UNAUTHENTICATED or "user name is empty" in text


def error_of(error: grpc.aio.AioRpcError, address: str) -> StoreError:
    """Return the error of ours for one of gRPC's, or raise CompactedError."""
    code, text = error.code(), error.details() or ""
    facts: dict[str, Any] = {"node": f"etcd {address}", "cause": error}
    if "has been compacted" in text:
        raise CompactedError(0) from error
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED) or (
        code == grpc.StatusCode.INVALID_ARGUMENT and ("authentication" in text or "user" in text)
    ):
        return AccessRefusedError(f"etcd refuses: {text}", **facts)
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "too many requests" not in text:
        return LimitError(f"etcd has no room: {text}", **facts)
    if code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,  # a stream that was reset
        grpc.StatusCode.UNKNOWN,  # what etcd has no code for: its own deadline, without a quorum
    ):
        return UnavailableError(f"no answer from etcd: {text or code.name.lower()}", **facts)
    return InternalError(f"etcd did not understand: {code.name.lower()}: {text}", **facts)
