"""A store server as a process: its folder, the pool, gRPC, HTTP, log, and a clean stop.

The pool serves first; gRPC and HTTP, whose libraries take ten times as long to import, follow while
clients already work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mooncake_store.config import GIB, MIB
from mooncake_store.coordination import Coordinator, Leader, open_coordinator
from mooncake_store.errors import InUseError, StoreError, UnavailableError
from mooncake_store.logs import configure, log_event
from mooncake_store.runtime import is_loopback, remove_dead_sockets, runtime_dir, shared_memory_dir
from mooncake_store.serving import ports
from mooncake_store.serving.connections import descriptors_wanted
from mooncake_store.serving.process import Check, raise_descriptor_limit, run
from mooncake_store.store.config import StoreServerConfig
from mooncake_store.store.objects import OpenObjects
from mooncake_store.store.service import (
    Place,
    ServerStatus,
    StoreService,
    logger,
    read_identity,
)
from mooncake_store.transfer_engine.topology import TopologyWatch
from mooncake_store.transfer_engine.topology_follower import TopologyFollower

if TYPE_CHECKING:
    from mooncake_store.serving.grpc_server import GrpcServer
    from mooncake_store.serving.http_server import HttpServer
    from mooncake_store.store.grpc_service import StoreGrpcService

__all__ = ["Endpoints", "StoreServerProcess", "run_server"]

_LIVE_S = 2.0  # I/O threads that did not turn for so long are stuck
_INSECURE_REMINDER_S = 3600.0
_ADOPTION_WAIT_S = 2.0
_NODES_MAX = 64  # on one host, without names of their own
_ASK_PAUSE_S = 0.2

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a running store server is reached, as its ready file says it in JSON.

    Attributes:
        address: Of all three ports.
        grpc_port: None: not served.
        http_port: None: not served.
        unix_path: Its socket for processes of this host; empty: none.
        is_adopted: A master has it already; else it joins when one is there.
    """

    pid: int
    name: str
    node_id: str
    incarnation: int
    address: str
    port: int
    grpc_port: int | None
    http_port: int | None
    unix_path: str
    master: str
    segment_dir: str
    size_bytes: int
    is_adopted: bool


class StoreServerProcess:
    """One store server and everything around it, inside a running asyncio loop.

    Args:
        config: Its settings; `check` has passed.
        open_objects: Makes the client by which gRPC puts and gets; None: it serves no objects.
    """

    def __init__(self, config: StoreServerConfig, open_objects: OpenObjects | None = None) -> None:
        self._config = config
        self._open_objects = open_objects
        self._service: StoreService | None = None
        self._place: Place | None = None
        self._unix_path: Path | None = None
        self._held: dict[str, socket.socket] = {}
        self._ports: dict[str, int] = {}
        self._grpc: GrpcServer | None = None
        self._grpc_service: StoreGrpcService | None = None
        self._http: HttpServer | None = None
        self._beside: asyncio.Task[None] | None = None
        self._reminder: asyncio.Task[None] | None = None
        self._follower: TopologyFollower | None = None
        self._coordinator: Coordinator | None = None
        self._following: asyncio.Task[None] | None = None
        self._leader: Leader | None = None  # as last heard of
        self._is_stopping = False
        self.ended = asyncio.Event()

    @property
    def service(self) -> StoreService:
        assert self._service is not None, "start it first"
        return self._service

    async def start(self) -> Endpoints:
        """Serve the pool; gRPC and HTTP follow by themselves.

        Returns when a master has adopted it, or after 2 s without one: it goes on dialling.

        Raises:
            InUseError: A port or the node's folder is taken; the message names the process.
            StoreError: Something else is missing: no room in /dev/shm, for instance.
        """
        try:
            return await self._start(self._config)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, config: StoreServerConfig) -> Endpoints:
        ports.family_of(config.address)
        if config.port and not ports.is_free(config.address, config.port):
            raise ports.in_use(config.address, config.port, "data")
        raise_descriptor_limit(
            descriptors_wanted(config.connections_max, grpc=config.grpc, http=config.http),
            logger,
        )
        for what, is_wanted, port in (
            ("gRPC", config.grpc, config.grpc_port),
            ("HTTP", config.http, config.http_port),
        ):
            if is_wanted:
                option = f"--{what.lower()}-port"
                self._held[what] = ports.reserve(config.address, port, what, option=option)
                self._ports[what] = int(self._held[what].getsockname()[1])
        if "HTTP" in self._held:
            self._held["HTTP"].listen(128)  # a probe that comes early waits for its answer
        self._unix_path = self._find_unix_path()
        if config.coordinator:
            self._coordinator = open_coordinator(config.coordinator, port=0)
        service, place = await self._open()
        self._service, self._place = service, place
        if self._coordinator is not None:
            self._following = asyncio.create_task(self._follow(self._coordinator, service))
        asyncio.get_running_loop().add_reader(service.log_descriptor(), service.pass_log_on)
        status = service.status()
        log_event(
            logger,
            logging.INFO,
            "listening",
            name=place.name,
            address=ports.format_address(config.address, status.port),
            grpc_port=self._ports.get("gRPC"),
            http_port=self._ports.get("HTTP"),
            unix_path=self._unix_path or "",
            incarnation=status.incarnation,
            size_bytes=status.size_bytes,
            folder=place.folder,
        )
        self._beside = asyncio.create_task(self._serve_beside())
        if not is_loopback(config.address):
            self._reminder = asyncio.create_task(self._remind_of_insecurity())
            self._follower = await asyncio.to_thread(_follow_interfaces, service)
        status = await self._wait_adopted(service)
        service.pass_log_on()  # what led here stands in the log before anybody is told
        return Endpoints(
            pid=os.getpid(),
            name=place.name,
            node_id=status.node_id,
            incarnation=status.incarnation,
            address=config.address,
            port=status.port,
            grpc_port=self._ports.get("gRPC"),
            http_port=self._ports.get("HTTP"),
            unix_path=str(self._unix_path or ""),
            master=self._master_name,
            segment_dir=str(place.folder),
            size_bytes=status.size_bytes,
            is_adopted=status.is_adopted,
        )

    def _find_unix_path(self) -> Path | None:
        """Return where processes of this host look; without it they use TCP."""
        try:
            folder = runtime_dir()
            remove_dead_sockets(folder)
            return folder / f"server-{os.getpid()}.sock"
        except StoreError as error:
            log_event(logger, logging.WARNING, "no_unix_socket", reason=error)
            return None

    async def _open(self) -> tuple[StoreService, Place]:
        """Take a folder and start the pool in it."""
        config = self._config
        root, hugetlb_dir = _root_of(config.segment_dir)
        size_bytes = config.pool_size_bytes or default_pool_size(hugetlb_dir or root)
        for name in _names(config.name):
            place = Place(name, root / name, hugetlb_dir)
            epoch, incarnation = await self._floors(place)
            try:
                # In a thread: it blocks while memory is touched.
                service = await asyncio.to_thread(
                    StoreService,
                    config,
                    place,
                    size_bytes=size_bytes,
                    unix_path=self._unix_path,
                    master=None if config.coordinator else config.master,
                    epoch_floor=epoch,
                    incarnation_floor=incarnation,
                )
            except InUseError:
                if config.name:
                    raise
                continue
            if self._coordinator is not None and not incarnation:
                await self._register(self._coordinator, service.status())
            return service, place
        raise InUseError(f"{_NODES_MAX} store servers run here already: give this one a --name")

    # ---- who leads ----

    @property
    def _master_name(self) -> str:
        """The master that it serves, for people."""
        if self._coordinator is None:
            return self._config.master
        return self._coordinator.name if self._leader is None else self._leader.address

    async def _floors(self, place: Place) -> tuple[int, int]:
        """Return what the coordinator says: no older epoch, no lower incarnation than these."""
        coordinator = self._coordinator
        if coordinator is None:
            return 0, 0
        epoch = await self._ask(coordinator.epoch)
        node_id = read_identity(place.folder)
        if node_id is None:
            return epoch, 0
        known = node_id  # its number is raised even if another process turns out to have the folder
        return epoch, await self._ask(lambda: coordinator.raise_member(known, 1))

    async def _register(self, coordinator: Coordinator, status: ServerStatus) -> None:
        """Make a new node known, so that a leader to come waits for it."""
        node_id = uuid.UUID(status.node_id).bytes
        await self._ask(lambda: coordinator.raise_member(node_id, status.incarnation))

    @staticmethod
    async def _ask(call: Callable[[], Awaitable[Result]]) -> Result:
        """Ask the coordinator until it answers: without one nobody leads anyway."""
        is_told = False
        while True:
            try:
                return await call()
            except UnavailableError as error:
                if not is_told:
                    log_event(logger, logging.WARNING, "coordinator_unreachable", reason=error)
                    is_told = True
                await asyncio.sleep(_ASK_PAUSE_S)

    async def _follow(self, coordinator: Coordinator, service: StoreService) -> None:
        """Dial whoever leads."""
        try:
            async with contextlib.aclosing(coordinator.watch_leader()) as leaders:
                async for leader in leaders:
                    if leader is None:
                        continue  # the one that we know may come back, or another is told of
                    if self._leader is None or leader.address != self._leader.address:
                        log_event(
                            logger,
                            logging.INFO,
                            "leader",
                            address=leader.address,
                            epoch=leader.epoch,
                        )
                    self._leader = leader
                    service.set_master(leader.address.partition(",")[0])
        except StoreError as error:
            log_event(logger, logging.ERROR, "leader_not_followed", reason=error)
            self.ended.set()  # one that cannot be told of the next leader is no use

    @staticmethod
    async def _wait_adopted(service: StoreService) -> ServerStatus:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _ADOPTION_WAIT_S
        while True:
            status = service.status()
            if status.is_adopted or loop.time() > deadline_s:
                return status
            await asyncio.sleep(0.005)

    # ---- gRPC and HTTP ----

    async def _serve_beside(self) -> None:
        try:
            # In threads: while a library is imported the loop goes on reading the log.
            if "HTTP" in self._held:
                await asyncio.to_thread(_import_http)
                self._start_http()
            if "gRPC" in self._held:
                await asyncio.to_thread(_import_grpc)
                await self._start_grpc()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log_event(logger, logging.ERROR, "service_failed", reason=error)
            logger.debug("traceback", exc_info=True)

    def _start_http(self) -> None:
        from mooncake_store.serving.http_server import HttpServer, application
        from mooncake_store.store.metrics import exposition

        app = application(
            live=self._live,
            ready=self._checks,
            about=self._about,
            exposition=lambda: exposition(self.service),
        )
        self._http = HttpServer(app, self._held["HTTP"])
        self._http.start()
        log_event(logger, logging.INFO, "http_serving", port=self._ports.get("HTTP"))

    async def _start_grpc(self) -> None:
        from mooncake_store.protocol import store_pb2_grpc
        from mooncake_store.serving.grpc_server import GrpcServer
        from mooncake_store.store.grpc_service import SERVICE_NAME, StoreGrpcService

        config = self._config
        service = StoreGrpcService(
            self.service.engine,
            self._open_objects,
            lambda: config.coordinator or config.master,
            config.grpc_object_size_bytes,
        )
        server = GrpcServer(
            lambda made: store_pb2_grpc.add_StoreServicer_to_server(service, made),  # type: ignore[no-untyped-call]
            [SERVICE_NAME],
            lambda: all(check.is_ok for check in self._checks()),
        )
        port = self._ports["gRPC"]
        self._grpc_service = service
        await server.start(config.address, port)
        self._grpc = server
        self._held["gRPC"].close()  # the server has the port now
        log_event(logger, logging.INFO, "grpc_serving", port=port)

    def is_live(self) -> bool:
        return self._service is None or self._live().is_ok

    def _live(self) -> Check:
        age_s = self.service.status().tick_age_s
        return Check("io_threads", age_s < _LIVE_S, f"they turned {age_s:.3f} s ago")

    def _checks(self) -> list[Check]:
        status = self.service.status()
        stopping = self._is_stopping
        master = self._master_name
        return [
            Check("running", not stopping, "it is stopping" if stopping else "it is running"),
            self._live(),
            Check(
                "master",
                status.is_adopted,
                f"{master} leads epoch {status.epoch}"
                if status.is_adopted
                else f"{master} has not adopted it",
            ),
            Check(
                "pool",
                status.ready_bytes > 0,
                f"{status.pool}: {status.ready_bytes} of {status.size_bytes} bytes",
            ),
        ]

    def _about(self) -> dict[str, Any]:
        status = self.service.status()
        place = self._place
        return {
            "name": place.name if place is not None else "",
            "node_id": status.node_id,
            "incarnation": status.incarnation,
            "epoch": status.epoch,
        }

    async def _remind_of_insecurity(self) -> None:
        while True:
            log_event(
                logger,
                logging.WARNING,
                "insecure",
                reason=f"{self._config.address} is open to the network, unencrypted",
            )
            await asyncio.sleep(_INSECURE_REMINDER_S)

    # ---- stop ----

    async def stop(self) -> None:
        """Stop everything; calls under way have `stop_timeout_s`. Can be called at any point."""
        self._is_stopping = True
        for task in (self._beside, self._following, self._reminder):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        timeout_s = self._config.stop_timeout_s
        stopping = [part.stop(timeout_s) for part in (self._http, self._grpc) if part is not None]
        await asyncio.gather(*stopping, return_exceptions=True)
        if self._grpc_service is not None:
            await self._grpc_service.aclose()
        for held in self._held.values():
            held.close()
        service, self._service = self._service, None
        follower, self._follower = self._follower, None
        if follower is not None:
            await asyncio.to_thread(follower.close)
        if service is not None:
            asyncio.get_running_loop().remove_reader(service.log_descriptor())
            service.pass_log_on()
            kept = service.status().extent_count if self._config.keep else 0
            await asyncio.to_thread(service.close)
            folder = self._place.folder if self._place is not None else ""
            if kept:
                log_event(logger, logging.INFO, "stopped", kept_extents=kept, folder=folder)
            else:
                log_event(logger, logging.INFO, "stopped")
        if self._coordinator is not None:
            await self._coordinator.close()
        if self._unix_path is not None:
            self._unix_path.unlink(missing_ok=True)


def _follow_interfaces(service: StoreService) -> TopologyFollower | None:
    """Tell peers about this machine's interfaces, and use them; None where nobody can look."""
    try:
        return TopologyFollower(service.engine, TopologyWatch())
    except (StoreError, OSError) as error:
        log_event(logger, logging.WARNING, "interfaces_not_followed", reason=error)
        return None


def _import_http() -> None:
    import mooncake_store.serving.http_server
    import mooncake_store.store.metrics  # noqa: F401


def _import_grpc() -> None:
    import mooncake_store.store.grpc_service  # noqa: F401


# ---- where the pool lies -------------------------------------------------------------------------


def _root_of(segment_dir: str) -> tuple[Path, Path | None]:
    """Return the folder of the nodes' folders, and the one for payload in huge pages, if any."""
    if not segment_dir:
        return shared_memory_dir(), None
    folder = Path(segment_dir).absolute()
    if _is_hugetlbfs(folder):
        return shared_memory_dir(), folder
    return folder, None


def _is_hugetlbfs(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        found = Path("/proc/self/mounts").read_text()
        for line in found.splitlines():
            mount, kind = line.split(" ")[1:3]
            if kind == "hugetlbfs" and folder.is_relative_to(mount):
                return True
    return False


def default_pool_size(folder: Path) -> int:
    """Return 1 GiB or a quarter of what is free in a folder's file system, whichever is less."""
    state = os.statvfs(folder)
    quarter = state.f_bavail * state.f_frsize // 4
    return max(MIB, min(GIB, quarter // MIB * MIB))


def _names(given: str) -> Iterator[str]:
    """Yield names for this node: the one given, else the host's, then with numbers."""
    if given:
        yield given
        return
    host = re.sub(r"[^\w.-]", "-", socket.gethostname()).lstrip(".")[:200] or "node"
    yield host
    for number in range(2, _NODES_MAX + 1):
        yield f"{host}-{number}"


def run_server(
    config: StoreServerConfig,
    *,
    ready_file: Path | None = None,
    on_ready: Callable[[Endpoints], None] | None = None,
    open_objects: OpenObjects | None = None,
) -> None:
    """Run a store server until SIGTERM or SIGINT.

    Args:
        config: Its settings.
        ready_file: Written, with its `Endpoints` as JSON, once it serves; removed at the end.
        on_ready: Called at the same moment.
        open_objects: Makes the client by which gRPC puts and gets.

    Raises:
        StoreError: It cannot start.
    """
    config.check()
    configure(config.log_format, config.log_level)

    async def serve() -> None:
        process = StoreServerProcess(config, open_objects)
        await run(process, ready_file=ready_file, on_ready=on_ready, describe=asdict)

    asyncio.run(serve())
