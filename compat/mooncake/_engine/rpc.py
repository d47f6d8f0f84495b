"""`RpcInterface`: messages and tensors from process to process, over TCP.

    server = create_rpc_server()
    server.initialize_server("10.0.0.5:9000")                 # True
    server.set_data_receive_callback(lambda got: ...)         # {"source": ..., "data": ...}
    server.start_server_async()                               # True
    client = create_rpc_client()
    client.initialize_client()                                # True
    client.send_data("10.0.0.5:9000", b"...")                 # 0: its callback has returned

A listening one trusts whoever reaches its address.  Answers are True and 0, or False and -1 with
the reason in the log (`mooncake.engine`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mooncake._engine import messages
from mooncake._engine.messages import MessageError, ReceivedData, ReceivedTensor

__all__ = ["CoroRPCInterface", "RpcInterface", "create_rpc_client", "create_rpc_server"]

log = logging.getLogger("mooncake.engine")

_CONNECTIONS_MAX = 1024
_THREADS, _ASYNC_THREADS = 8, 8
_TAKEN, _REFUSED = b"\0", b"\1"
# A peer that went without a word is noticed after so long, by a connection on which nothing comes.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 6}

DataCallback = Callable[[ReceivedData], object]
TensorCallback = Callable[[ReceivedTensor], object]
_Handle = Callable[[ReceivedData | ReceivedTensor], bool]


def _place(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`.

    Raises:
        ValueError: It is neither.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(f"an address is host:port, not {address!r}")
    try:
        host.encode("idna")
    except UnicodeError as error:  # bind() would raise TypeError
        raise ValueError(f"{host!r} cannot be a host's name: {error}") from error
    if "\0" in host:
        raise ValueError(f"{host!r} cannot be a host's name")
    return host, int(port)


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _is_quiet(connection: socket.socket) -> bool:
    # Not select(), which knows no descriptor from 1024 on.
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return not poll.poll(0)


class _Pool:
    """Open connections that nobody uses just now, by address."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self._size = size
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: dict[str, list[socket.socket]] = {}

    def take(self, address: str) -> socket.socket:
        """Return a connection; one that its peer has closed is none."""
        while True:
            with self._lock:
                idle = self._idle.get(address)
                connection = idle.pop() if idle else None
            if connection is None:
                made = socket.create_connection(_place(address), self._timeout_s)
                _tune(made)
                return made
            if _is_quiet(connection):  # nothing is due from the peer
                return connection
            connection.close()

    def give_back(self, address: str, connection: socket.socket) -> None:
        """Keep a connection for the next message."""
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if len(idle) < self._size:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all that are idle."""
        with self._lock:
            for idle in self._idle.values():
                for connection in idle:
                    connection.close()
            self._idle.clear()


class _Server:
    """Listens, and hands what comes to callbacks: as many at once as there are threads."""

    def __init__(self, place: tuple[str, int], threads: int, timeout_s: float) -> None:
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._listening = socket.create_server(place, family=family, backlog=128)
        self._timeout_s = timeout_s
        self._turns = threading.Semaphore(threads)
        # The collector may drop the interface, and so stop this, in a thread that has the lock.
        self._lock = threading.RLock()
        self._connections: set[socket.socket] = set()
        self.stopped = threading.Event()

    def start(self, handle: weakref.WeakMethod[_Handle]) -> None:
        """Accept from now on; `handle` is weak: who drops its owner wants no more messages."""
        self._handle = handle
        threading.Thread(target=self._accept, name="mooncake-rpc", daemon=True).start()

    def _accept(self) -> None:
        while not self.stopped.is_set():
            try:
                connection, source = self._listening.accept()
            except OSError:
                if not self.stopped.wait(0.05):  # else: out of descriptors, for a while
                    continue
                return
            with self._lock:
                is_one_too_many = len(self._connections) >= _CONNECTIONS_MAX
                if not is_one_too_many and not self.stopped.is_set():
                    self._connections.add(connection)
            if is_one_too_many or self.stopped.is_set():
                connection.close()
                continue
            host = f"[{source[0]}]" if ":" in source[0] else source[0]
            serving = threading.Thread(
                target=self._serve, args=(connection, f"{host}:{source[1]}"), daemon=True
            )
            try:
                serving.start()
            except RuntimeError as error:  # no more threads, for a while
                log.warning("from %s: %s", host, error)
                with self._lock:
                    self._connections.discard(connection)
                connection.close()

    def _serve(self, connection: socket.socket, source: str) -> None:
        with contextlib.closing(connection):
            try:
                _tune(connection)
                while (got := messages.receive(connection, source, self._timeout_s)) is not None:
                    with self._turns:
                        handle = self._handle()
                        is_taken = handle is not None and handle(got)
                        handle = None
                    del got
                    connection.sendall(_TAKEN if is_taken else _REFUSED)
            except (MessageError, OSError) as error:
                if not self.stopped.is_set():
                    log.warning("from %s: %s", source, error)
            finally:
                with self._lock:
                    self._connections.discard(connection)

    def stop(self) -> None:
        """End: nothing is received any more."""
        self.stopped.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class RpcInterface:
    """Sends messages, receives them, or both.  For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: _Pool | None = None
        self._receive_timeout_s = 30.0
        self._place: tuple[str, int] | None = None
        self._threads = _THREADS
        self._server: _Server | None = None
        self._on_data: DataCallback | None = None
        self._on_tensor: TensorCallback | None = None
        self._senders: ThreadPoolExecutor | None = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.stop_server()
            if self._pool is not None:
                self._pool.close()
            if self._senders is not None:
                self._senders.shutdown(wait=False)

    # ---- setting up ------------------------------------------------------------------------------

    def initialize(
        self,
        listen_address: str = "",
        thread_count: int = 0,
        timeout_seconds: int = 30,
        pool_size: int = 100,
    ) -> bool:
        """Prepare to send, and with an address to receive."""
        if not self.initialize_client(pool_size, timeout_seconds):
            return False
        if not listen_address:
            return True
        return self.initialize_server(listen_address, thread_count or _THREADS, timeout_seconds)

    def initialize_client(self, pool_size: int = 100, timeout_seconds: int = 30) -> bool:
        """Prepare to send, over as many connections to one address as `pool_size`."""
        if pool_size < 1 or timeout_seconds <= 0:
            log.error("pool_size and timeout_seconds are above 0")
            return False
        with self._lock:
            if self._pool is not None:
                self._pool.close()
            self._pool = _Pool(pool_size, float(timeout_seconds))
        return True

    def initialize_server(
        self, listen_address: str, thread_count: int = _THREADS, timeout_seconds: int = 30
    ) -> bool:
        """Prepare to receive at `host:port`, in as many callbacks at once as `thread_count`."""
        try:
            place = _place(listen_address)
        except ValueError as error:
            log.error("%s", error)
            return False
        if thread_count < 1 or timeout_seconds <= 0:
            log.error("thread_count and timeout_seconds are above 0")
            return False
        with self._lock:
            self._place, self._threads = place, thread_count
            self._receive_timeout_s = float(timeout_seconds)
        return True

    # ---- receiving -------------------------------------------------------------------------------

    def set_data_receive_callback(self, callback: DataCallback) -> None:
        """Have data handed to it, in a thread of the server's."""
        self._on_data = callback

    def set_tensor_receive_callback(self, callback: TensorCallback) -> None:
        """Have tensors handed to it, in a thread of the server's."""
        self._on_tensor = callback

    def start_server(self) -> bool:
        """Receive until `stop_server`; the interpreter is free meanwhile."""
        if not self.start_server_async():
            return False
        server = self._server
        if server is not None:
            server.stopped.wait()
        return True

    def start_server_async(self) -> bool:
        """Receive from now on."""
        with self._lock:
            if self._place is None or self._server is not None:
                log.error("a server is started once, after initialize_server")
                return False
            server = None
            try:
                server = _Server(self._place, self._threads, self._receive_timeout_s)
                server.start(weakref.WeakMethod(self._handle))
            except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no more threads
                log.error("cannot listen at %s:%d: %s", *self._place, error)
                if server is not None:
                    server.stop()
                return False
            self._server = server
        return True

    def stop_server(self) -> None:
        """Receive nothing any more; it may be started again."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.stop()

    def _handle(self, got: ReceivedData | ReceivedTensor) -> bool:
        callback: Any = self._on_tensor if isinstance(got, ReceivedTensor) else self._on_data
        if callback is None:
            log.error("%s came, and no callback is set", type(got).__name__)
            return False
        try:
            callback(got)
        except Exception:
            log.exception("the callback failed")
            return False
        return True

    # ---- sending ---------------------------------------------------------------------------------

    def send_data(self, target_address: str, data: bytes | bytearray | memoryview) -> int:
        """Send bytes; 0 when the receiver's callback has returned.

        Raises:
            TypeError: Not bytes.
        """
        return self._send(target_address, _bytes_of(data), None)

    def send_tensor(self, target_address: str, tensor: Any) -> int:
        """Send a tensor, in row order, with dtype and shape; -1 for anything else."""
        found = _tensor_bytes(tensor)
        if found is None:
            return -1
        data, dtype, shape = found
        return self._send(target_address, data, (dtype, shape))

    def send_data_async(
        self, target_address: str, data: bytes, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[int]:
        """Send bytes; the loop's future has what `send_data` answers."""
        view = _bytes_of(data)
        return self._later(loop, lambda: self._send(target_address, view, None))

    def send_tensor_async(
        self, target_address: str, tensor: Any, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[int]:
        """Send a tensor; the loop's future has what `send_tensor` answers."""
        return self._later(loop, lambda: self.send_tensor(target_address, tensor))

    def _later(
        self, loop: asyncio.AbstractEventLoop, send: Callable[[], int]
    ) -> asyncio.Future[int]:
        with self._lock:
            if self._senders is None:
                self._senders = ThreadPoolExecutor(_ASYNC_THREADS, "mooncake-rpc-send")
            senders = self._senders
        return asyncio.wrap_future(senders.submit(send), loop=loop)

    def _send(self, target: str, data: memoryview, tensor: tuple[str, list[int]] | None) -> int:
        pool = self._pool
        if pool is None:
            log.error("initialize_client comes before sending")
            return -1
        if data.nbytes > messages.BYTES_MAX:
            log.error("a message has at most %d bytes", messages.BYTES_MAX)
            return -1
        connection = None
        try:
            connection = pool.take(target)
            messages.send(connection, data, tensor)
            answer = connection.recv(1)
        except (OSError, ValueError) as error:
            # Not sent again: the receiver may have it.
            log.error("to %s: %s", target, error)
            if connection is not None:
                connection.close()
            return -1
        if answer not in (_TAKEN, _REFUSED):
            log.error("to %s: it ended before it answered", target)
            connection.close()
            return -1
        pool.give_back(target, connection)
        return 0 if answer == _TAKEN else -1


CoroRPCInterface = RpcInterface


def _bytes_of(data: Any) -> memoryview:
    if isinstance(data, bytes | bytearray | memoryview):
        return memoryview(data).cast("B")
    raise TypeError(f"data are bytes, not {type(data).__name__}")


def _tensor_bytes(tensor: Any) -> tuple[memoryview, str, list[int]] | None:
    """Return elements in row order, dtype and shape; None: it has none, as the log says."""
    try:
        import torch
    except ImportError:
        log.error("send_tensor needs torch")
        return None
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        what = getattr(tensor, "layout", type(tensor).__name__)
        log.error("send_tensor takes a dense torch tensor, not %s", what)
        return None
    if tensor.is_quantized:
        log.error(
            "send_tensor takes no quantised tensor, whose scale and zero point the receiver would "
            "not learn: send int_repr() and these, or dequantize()"
        )
        return None
    try:
        # Conjugated and negated ones are views, whose bytes are those of the original.
        here = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
        raw: Any = here.reshape(-1).view(torch.uint8).numpy()
    except RuntimeError as error:  # a meta tensor, a nested one
        log.error("a tensor whose bytes cannot be had: %s", error)
        return None
    return memoryview(raw).cast("B"), str(here.dtype).removeprefix("torch."), list(here.shape)


def create_rpc_client(local_rank: int = 0, world_size: int = 1) -> RpcInterface:
    """Return an interface; rank and size have no effect."""
    return RpcInterface()


def create_rpc_server(local_rank: int = 0, world_size: int = 1) -> RpcInterface:
    """Return an interface; rank and size have no effect."""
    return RpcInterface()
