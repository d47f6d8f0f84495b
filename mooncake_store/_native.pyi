"""The C extension: made from the rooms' public headers by native/build_ffi.py.

What is listed here by name is checked against the extension by a test; the rest is untyped.
"""

from typing import Any, TypeAlias

from cffi import FFI

_Pointer: TypeAlias = (
    Any  # what ffi.new, ffi.cast, ffi.gc or ffi.from_buffer gave; bytes for const char *
)

class _TransferEngine:
    """transfer_engine/include/te.h; an int that is no number is an `ms_status`."""

    TE_READ: int
    TE_WRITE: int
    TE_WAITING: int
    TE_PENDING: int
    TE_COMPLETED: int
    TE_FAILED: int
    TE_TIMED_OUT: int
    TE_CANCELLED: int
    TE_PRIORITY_NORMAL: int
    TE_PRIORITY_URGENT: int
    TE_PRIORITY_BACKGROUND: int
    TE_PRIORITY_PREFETCH: int
    def te_engine_config_default(self, config: _Pointer) -> None: ...
    def te_engine_open(self, config: _Pointer, engine: _Pointer) -> int: ...
    def te_engine_close(self, engine: _Pointer) -> None: ...
    def te_now_ns(self) -> int: ...
    def te_spinners_share(self, path: bytes) -> int: ...
    def te_engine_log_next(self, engine: _Pointer, line: _Pointer) -> bool: ...
    def te_rdma_look(self, engine: _Pointer, view: _Pointer) -> None: ...
    def te_engine_set_epoch(self, engine: _Pointer, epoch: int) -> None: ...
    def te_listen_tcp(
        self, engine: _Pointer, address: _Pointer, port: int, bound: _Pointer, error: _Pointer
    ) -> int: ...
    def te_listen_unix(self, engine: _Pointer, path: _Pointer, error: _Pointer) -> int: ...
    def te_shared_alloc(self, engine: _Pointer, length: int, address: _Pointer) -> int: ...
    def te_shared_free(self, engine: _Pointer, address: _Pointer) -> None: ...
    def te_shared_unmap(self, address: _Pointer, length: int) -> None: ...
    def te_register_local_memory(
        self, engine: _Pointer, address: int, length: int, location: _Pointer
    ) -> int: ...
    def te_register_device_memory(
        self,
        engine: _Pointer,
        address: int,
        length: int,
        location: _Pointer,
        descriptor: int,
        offset: int,
        error: _Pointer,
    ) -> int: ...
    def te_unregister_local_memory(self, engine: _Pointer, address: int) -> int: ...
    def te_serve_memory(self, engine: _Pointer) -> int: ...
    def te_set_topology(
        self, engine: _Pointer, json: _Pointer, length: int, error: _Pointer
    ) -> int: ...
    def te_publish_unix(self, engine: _Pointer, path: _Pointer) -> int: ...
    def te_open_segment(
        self,
        engine: _Pointer,
        peer_address: _Pointer,
        segment: _Pointer,
        deadline_ns: int,
        error: _Pointer,
    ) -> int: ...
    def te_close_segment(self, engine: _Pointer, segment: int) -> int: ...
    def te_segment_region(
        self, engine: _Pointer, segment: int, index: int, address: _Pointer, length: _Pointer
    ) -> int: ...
    def te_allocate_batch_id(self, engine: _Pointer, size: int, batch: _Pointer) -> int: ...
    def te_submit_transfer(
        self, engine: _Pointer, batch: int, requests: _Pointer, count: int, deadline_ns: int
    ) -> int: ...
    def te_submit_transfer_as(
        self,
        engine: _Pointer,
        batch: int,
        requests: _Pointer,
        count: int,
        options: _Pointer,
        deadline_ns: int,
    ) -> int: ...
    def te_explain_transfer(
        self, engine: _Pointer, batch: int, index: int, explanation: _Pointer
    ) -> int: ...
    def te_explain_rail(
        self,
        engine: _Pointer,
        batch: int,
        index: int,
        rail: int,
        view: _Pointer,
        bytes: _Pointer,
    ) -> int: ...
    def te_topology_eventfd(self, engine: _Pointer) -> int: ...
    def te_channel_rail(self, channel: _Pointer, index: int, view: _Pointer) -> int: ...
    def te_segment_rail(
        self, engine: _Pointer, segment: int, index: int, view: _Pointer
    ) -> int: ...
    def te_segment_set_rails(
        self, engine: _Pointer, segment: int, rails: _Pointer, error: _Pointer
    ) -> int: ...
    def te_segment_topology(
        self, engine: _Pointer, segment: int, json: _Pointer, size: int, length: _Pointer
    ) -> int: ...
    def te_get_transfer_status(
        self, engine: _Pointer, batch: int, index: int, status: _Pointer
    ) -> int: ...
    def te_wait_batch(self, engine: _Pointer, batch: int, deadline_ns: int) -> int: ...
    def te_cancel_batch(self, engine: _Pointer, batch: int) -> int: ...
    def te_free_batch_id(self, engine: _Pointer, batch: int) -> int: ...
    def te_batch_eventfd(self, engine: _Pointer, batch: int) -> int: ...
    def te_transfer(
        self,
        engine: _Pointer,
        requests: _Pointer,
        count: int,
        statuses: _Pointer,
        deadline_ns: int,
    ) -> int: ...
    def te_transfer_as(
        self,
        engine: _Pointer,
        requests: _Pointer,
        count: int,
        options: _Pointer,
        statuses: _Pointer,
        deadline_ns: int,
    ) -> int: ...
    def te_send_notify(
        self, engine: _Pointer, segment: int, name: _Pointer, message: _Pointer, deadline_ns: int
    ) -> int: ...
    def te_next_notify(
        self, engine: _Pointer, name: _Pointer, message: _Pointer, size: int, length: _Pointer
    ) -> int: ...
    def te_notify_eventfd(self, engine: _Pointer) -> int: ...
    def te_channel_open_simple(
        self,
        engine: _Pointer,
        address: _Pointer,
        hello: _Pointer,
        hello_length: int,
        channel: _Pointer,
    ) -> int: ...
    def te_channel_set_hello(
        self, channel: _Pointer, hello: _Pointer, hello_length: int
    ) -> None: ...
    def te_channel_hello_answer(self, channel: _Pointer, answer: _Pointer, size: int) -> int: ...
    def te_channel_close(self, channel: _Pointer) -> None: ...
    def te_call_simple(
        self,
        channel: _Pointer,
        method: int,
        flags: int,
        body: _Pointer,
        body_length: int,
        answer: _Pointer,
        answer_length: _Pointer,
        payload_offset: _Pointer,
        answer_status: _Pointer,
        deadline_ns: int,
        error: _Pointer,
    ) -> int: ...
    def te_release(self, answer: _Pointer) -> None: ...

class _Lib(_TransferEngine):
    def __getattr__(self, name: str) -> Any: ...  # the other rooms' functions and constants

ffi: FFI
lib: _Lib

def __getattr__(name: str) -> Any: ...  # the functions that C adds to the module by itself
