"""Blocking calls over the message channel, for services, tools and tests.

One call at a time per thread, several threads at once; nothing per key or byte of a hot path goes
through here.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from types import TracebackType
from typing import Any

from mooncake_store._native import ffi as _ffi
from mooncake_store._native import lib
from mooncake_store.errors import ClosedError, Status, error_from_status
from mooncake_store.protocol.frames import Hello, HelloAnswer, decode_body
from mooncake_store.protocol.methods import Kind, Method
from mooncake_store.runtime import boot_id

__all__ = ["Answer", "AskingEngine", "MessageChannel"]

ffi: Any = _ffi  # its structs have no types that a checker could know

_ERROR_BYTES = 256


class AskingEngine:
    """An engine that only asks; channels of one process share it."""

    def __init__(self) -> None:
        config = ffi.new("te_engine_config *")
        lib.te_engine_config_default(config)
        config.io_threads = 0
        config.worker_threads = 0
        engine = ffi.new("te_engine **")
        status = lib.te_engine_open(config, engine)
        if status != Status.OK:
            raise error_from_status(status, "the transfer engine does not open")
        self._engine: Any = engine[0]

    @property
    def handle(self) -> Any:
        if self._engine is None:
            raise ClosedError("the engine is closed")
        return self._engine

    def close(self) -> None:
        """Close it; its channels must have been closed."""
        if self._engine is not None:
            lib.te_engine_close(self._engine)
            self._engine = None


class Answer:
    """What a peer answered.

    Attributes:
        status: The answer's own status; a failed transport raises instead.
        body: Its bytes; with a status other than OK usually a sentence.
        payload: What follows the body, as EXISTS_KEYS has it.
    """

    __slots__ = ("body", "method", "payload", "status")

    def __init__(self, method: int, status: Status, body: bytes, payload: bytes) -> None:
        self.method = method
        self.status = status
        self.body = body
        self.payload = payload

    def check(self) -> None:
        """Raise what the peer refused with: the message is its sentence.

        Raises:
            StoreError: The status is not OK.
        """
        if self.status != Status.OK:
            raise error_from_status(self.status, self.body.decode(errors="replace"))

    def decode(self) -> Any:
        """Return the body as the method's value; raise as `check` does."""
        self.check()
        return decode_body(Kind.ANSWER, self.method, self.status, self.body)


class MessageChannel:
    """A pool of connections to one peer.

    Args:
        engine: Whose connections they are.
        address: `ip:port`, `[ip]:port` or `unix:PATH`.
        hello: What each connection says first. A session that the peer opens is taken over into
            the HELLO of further connections.
    """

    def __init__(self, engine: AskingEngine, address: str, hello: Hello) -> None:
        self._hello = hello
        self._address = address
        self._lock = threading.Lock()
        data = hello.encode()
        channel = ffi.new("te_channel **")
        status = lib.te_channel_open_simple(
            engine.handle, address.encode(), data, len(data), channel
        )
        if status != Status.OK:
            raise error_from_status(status, f"no channel to {address}", node=address)
        self._channel: Any = channel[0]

    @classmethod
    def hello_of(cls, role: int, name: str, **fields: Any) -> Hello:
        """Return a HELLO of this process."""
        return Hello(role=role, name=name.encode(), pid=os.getpid(), boot_id=boot_id(), **fields)

    def open_session(self, timeout_s: float) -> HelloAnswer:
        """Connect, and return what the peer said; later connections take its session up.

        Raises:
            StoreError: The peer cannot be reached, or refuses.
        """
        self.call(Method.PING, b"", timeout_s).decode()
        room = ffi.new("uint8_t[]", 4096)
        length = lib.te_channel_hello_answer(self._handle(), room, 4096)
        answer = HelloAnswer.decode(bytes(ffi.buffer(room, min(length, 4096))))
        hello = dataclasses.replace(self._hello, session=answer.session, epoch=answer.epoch)
        data = hello.encode()
        lib.te_channel_set_hello(self._handle(), data, len(data))
        return answer

    def call(self, method: int, body: bytes, timeout_s: float, *, flags: int = 0) -> Answer:
        """Send a request and wait for its answer; blocks without the interpreter lock.

        Raises:
            StoreError: Nothing was answered in time, or the connection failed.
        """
        answer = ffi.new("uint8_t **")
        length = ffi.new("size_t *")
        payload_offset = ffi.new("uint64_t *")
        answer_status = ffi.new("uint32_t *")
        error = ffi.new("char[]", _ERROR_BYTES)
        started_s = time.monotonic()
        status = lib.te_call_simple(
            self._handle(),
            method,
            flags,
            body,
            len(body),
            answer,
            length,
            payload_offset,
            answer_status,
            lib.te_now_ns() + int(timeout_s * 1e9),
            error,
        )
        try:
            if status != Status.OK:
                raise error_from_status(
                    status,
                    ffi.string(error).decode(errors="replace"),
                    node=self._address,
                    elapsed_s=time.monotonic() - started_s,
                )
            data = bytes(ffi.buffer(answer[0], length[0])) if length[0] else b""
        finally:
            if answer[0] != ffi.NULL:
                lib.te_release(answer[0])
        offset = payload_offset[0]
        return Answer(method, Status(answer_status[0]), data[:offset], data[offset:])

    def _handle(self) -> Any:
        if self._channel is None:
            raise ClosedError(f"the channel to {self._address} is closed")
        return self._channel

    def close(self) -> None:
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            lib.te_channel_close(channel)

    def __enter__(self) -> MessageChannel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
