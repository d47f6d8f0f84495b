"""Requests to inference servers: HTTP/1.1 over a connection each, answers as they come."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import SplitResult, urlsplit

import h11

from mooncake_store.errors import ProtocolError, RequestError, UnavailableError

__all__ = ["Head", "Headers", "Upstream"]

Headers = Sequence[tuple[bytes, bytes]]

_READ_BYTES = 64 << 10
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Head:
    """Of an answer.

    Attributes:
        status: Of HTTP.
        headers: Those of `PASSED_BACK` that it has; names in lower case.
    """

    status: int
    headers: Headers

    PASSED_BACK = frozenset((b"content-type", b"content-length", b"retry-after"))

    @property
    def is_event_stream(self) -> bool:
        """Whether events follow, each of which may be the last."""
        return dict(self.headers).get(b"content-type", b"").startswith(b"text/event-stream")


class Upstream:
    """One request; a context manager, at whose end the connection is gone, read or not.

    No wait has a deadline here but that for a connection: cancel the caller.  Messages name the
    server by its name, never by its URL, which may hold credentials.

    Args:
        name: Of the server, for messages.
        url: `http://host:port` or `https://...`, perhaps with a path before the request's.
    """

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url
        self._connection = h11.Connection(our_role=h11.CLIENT)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def __enter__(self) -> Upstream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.transport.abort()  # at once: a server that still computes shall notice

    async def ask(self, method: str, path: str, body: bytes, headers: Headers) -> Head:
        """Send a request and return the head of its answer.

        Args:
            method: Of the request.
            path: What comes after the URL.
            body: Of the request.
            headers: Beside host, connection and content-length.

        Raises:
            UnavailableError: Nobody is there, or the connection broke.
            ProtocolError: What came is no HTTP.
            RequestError: A header cannot be sent.
        """
        parts, port = self._where()
        request = self._request(method, parts, path, headers, len(body))
        is_secure = parts.scheme == "https"
        try:
            self._reader, writer = await asyncio.wait_for(
                asyncio.open_connection(
                    parts.hostname, port, ssl=_trusted() if is_secure else None
                ),
                _CONNECT_S,
            )
        except (OSError, asyncio.TimeoutError) as error:
            raise self._broken("cannot be connected to", error) from error
        self._writer = writer
        data = self._connection.send(request) or b""
        data += self._connection.send(h11.Data(data=body)) or b""
        data += self._connection.send(h11.EndOfMessage()) or b""
        try:
            writer.write(data)
            await writer.drain()
        except OSError as error:
            raise self._broken("broke the connection", error) from error
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                break
        passed = [(name, value) for name, value in event.headers if name in Head.PASSED_BACK]
        return Head(event.status_code, passed)

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the answer's bytes as they come.

        Raises:
            UnavailableError: The connection broke before the answer's end.
            ProtocolError: What came is no HTTP.
        """
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return

    async def whole_body(self, bytes_max: int) -> bytes:
        """Return all of the answer.

        Raises:
            UnavailableError: The connection broke before the answer's end.
            ProtocolError: It is longer than allowed, or no HTTP.
        """
        found = bytearray()
        async for part in self.body():
            found += part
            if len(found) > bytes_max:
                raise ProtocolError(
                    f"{self._name} answered more than {bytes_max} bytes", node=self._name
                )
        return bytes(found)

    def _where(self) -> tuple[SplitResult, int]:
        try:
            parts = urlsplit(self._url)
            port = parts.port
        except ValueError:
            port, parts = None, urlsplit("")
        is_known = parts.scheme in ("http", "https") and self._url.isascii()
        if not is_known or not parts.hostname:
            raise UnavailableError(
                f"{self._name} is registered without a URL that can be used", node=self._name,
                hint="register it with a url of the form http://host:port",
            )  # fmt: skip
        return parts, port or (443 if parts.scheme == "https" else 80)

    @staticmethod
    def _request(
        method: str, parts: SplitResult, path: str, headers: Headers, size: int
    ) -> h11.Request:
        own = [
            (b"host", parts.netloc.rpartition("@")[2].encode()),
            (b"connection", b"close"),
            (b"content-length", str(size).encode()),
        ]
        try:
            return h11.Request(
                method=method, target=parts.path.rstrip("/") + path, headers=[*own, *headers]
            )
        except (h11.LocalProtocolError, UnicodeError) as error:
            raise RequestError("a header cannot be passed on", cause=error) from error

    async def _next(self) -> h11.Event:
        assert self._reader is not None
        try:
            while True:
                event = self._connection.next_event()
                if event is h11.NEED_DATA:
                    self._connection.receive_data(await self._reader.read(_READ_BYTES))
                elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                    raise self._broken("closed the connection", None)
                else:
                    return event  # type: ignore[return-value]
        except h11.RemoteProtocolError as error:
            if self._reader.at_eof():
                raise self._broken("closed the connection", error) from error
            raise ProtocolError(
                f"{self._name} answered no HTTP", node=self._name, cause=error,
                hint="check the URL that it is registered with",
            ) from error  # fmt: skip
        except OSError as error:
            raise self._broken("broke the connection", error) from error

    def _broken(self, what: str, error: BaseException | None) -> UnavailableError:
        return UnavailableError(
            f"{self._name} {what}", node=self._name, cause=error,
            hint="does that inference server run?",
        )  # fmt: skip


@functools.cache
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context()
