"""A master as a process: coordination, message channel, gRPC, HTTP, log, and a clean stop.

The message channel is up first (a few dozen milliseconds after the start); gRPC and HTTP, whose
libraries take ten times as long to import, follow while clients already work.

With etcd it may stand by first: another master leads, and only HTTP is served, which says so. It
tells where it is once it listens. From its lease's deadline on it answers no client; when the lease
is lost it ends, and `run_master` begins anew as a standby.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mooncake_store.coordination import (
    Coordinator,
    Leader,
    Leadership,
    Lease,
    LeaseState,
    open_coordinator,
)
from mooncake_store.errors import StoreError, UnavailableError
from mooncake_store.logs import configure
from mooncake_store.master.cluster import CLUSTER_FIELDS, Applied, apply, cluster_settings
from mooncake_store.master.config import MasterConfig
from mooncake_store.master.ledger import Ledger
from mooncake_store.master.service import MasterService, log, logger
from mooncake_store.runtime import DEFAULT_PORT, boot_id, is_loopback, master_socket, runtime_dir
from mooncake_store.serving import ports
from mooncake_store.serving.connections import descriptors_wanted
from mooncake_store.serving.notify import notify
from mooncake_store.serving.process import Check, raise_descriptor_limit, run

if TYPE_CHECKING:
    from mooncake_store.master.grpc_service import MasterGrpcService
    from mooncake_store.serving.grpc_server import GrpcServer
    from mooncake_store.serving.http_server import HttpServer

__all__ = ["Endpoints", "MasterProcess", "run_master"]

_LIVE_S = 2.0  # an I/O thread that did not turn for so long is stuck
_INSECURE_REMINDER_S = 3600.0
_ASK_PAUSE_S = 0.1
_INDEX_FIRST_S = 0.7  # gRPC and HTTP wait for the servers that there were, so long at most
_INDEX_LOOK_S = 0.02

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a running master is reached, as its ready file says it in JSON.

    Attributes:
        address: Of all three ports.
        grpc_port: None: not served.
        http_port: None: not served.
        unix_path: The message channel for processes of this host; empty: none.
    """

    pid: int
    address: str
    port: int
    grpc_port: int | None
    http_port: int | None
    unix_path: str
    epoch: int
    cluster: str
    coordinator: str

    @property
    def master(self) -> str:
        """What clients are told: `127.0.0.1:7700`."""
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


class MasterProcess:
    """One master and everything around it, inside a running asyncio loop.

    Args:
        config: Its settings; `check` has passed.
    """

    def __init__(self, config: MasterConfig) -> None:
        self._config = config
        self._coordinator: Coordinator | None = None
        self._service: MasterService | None = None
        self._held: dict[str, socket.socket] = {}
        self._endpoints: Endpoints | None = None
        self._grpc: GrpcServer | None = None
        self._grpc_service: MasterGrpcService | None = None
        self._http: HttpServer | None = None
        self._beside: list[asyncio.Task[None]] = []
        self._reminder: asyncio.Task[None] | None = None
        self._ledger: Ledger | None = None
        self._lease_changes: AsyncGenerator[Lease, None] | None = None
        self._lease: Lease | None = None  # as last heard of; None: it does not lead yet
        self._leading: list[asyncio.Task[None]] = []  # what a leader does besides serving
        self._is_stopping = False
        self.is_lead_lost = False
        self.ended = asyncio.Event()  # it leads no more

    @property
    def service(self) -> MasterService:
        assert self._service is not None, "start it first"
        return self._service

    async def start(self) -> Endpoints:
        """Wait for the lead, and serve the message channel; gRPC and HTTP follow by themselves.

        Raises:
            InUseError: A port is taken, or another master leads; the message names the process.
            StoreError: Something else is missing.
        """
        config = self._config
        try:
            return await self._start(config)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, config: MasterConfig) -> Endpoints:
        ports.family_of(config.address)
        if config.port and not ports.is_free(config.address, config.port):
            raise ports.in_use(config.address, config.port, "messages")
        raise_descriptor_limit(
            descriptors_wanted(config.connections_max, grpc=config.grpc, http=config.http),
            logger,
        )
        self._coordinator = open_coordinator(config.coordinator, port=config.port)
        if self._coordinator.waits_to_lead and config.http:
            # A probe of a standby must find it alive, so HTTP does not wait for the lead.
            self._reserve("HTTP", config.port + 2 if config.port else 0)
            self._beside.append(asyncio.create_task(self._serve_http()))
        leadership = await self._lead(self._coordinator)
        config = await self._settings_of_all(self._coordinator, config)
        service = self._service = MasterService(config, leadership)
        service.set_lease_deadline(self._lease_now.deadline_ns)
        asyncio.get_running_loop().add_reader(service.event_descriptor(), self._on_events)
        self._leading.append(asyncio.create_task(self._follow_lease(service)))
        ledger = self._ledger = Ledger(self._coordinator, service, self._lose_lead)
        tombstones = await self._insist(self._coordinator.tombstones)
        numbers = await self._insist(self._coordinator.numbers)
        members = await self._insist(self._coordinator.members)
        drains = await self._insist(self._coordinator.drains)
        ledger.begin(tombstones, numbers, members, drains)
        if tombstones:
            await self._coordinator.drop_tombstones(())  # what is left is kept once a key
        try:
            port = service.listen_tcp(config.address, config.port)
        except StoreError:
            if config.port and not ports.is_free(config.address, config.port):
                raise ports.in_use(config.address, config.port, "messages") from None
            raise
        for offset, what, is_wanted in ((1, "gRPC", config.grpc), (2, "HTTP", config.http)):
            if is_wanted and what not in self._held:
                wanted = (
                    config.port + offset if config.port else _beside(config.address, port, offset)
                )
                self._reserve(what, wanted)
        self._endpoints = Endpoints(
            pid=os.getpid(),
            address=config.address,
            port=port,
            grpc_port=self._port_of("gRPC"),
            http_port=self._port_of("HTTP"),
            unix_path=self._listen_unix(port),
            epoch=leadership.epoch,
            cluster=f"{leadership.cluster:016x}",
            coordinator=self._coordinator.name,
        )
        log(
            logging.INFO,
            "listening",
            master=self._endpoints.master,
            grpc_port=self._endpoints.grpc_port,
            http_port=self._endpoints.http_port,
            unix_path=self._endpoints.unix_path,
        )
        if not self._beside and config.http:
            self._beside.append(asyncio.create_task(self._serve_http()))
        if config.grpc:
            self._beside.append(asyncio.create_task(self._serve_grpc(self._endpoints)))
        self._leading.append(asyncio.create_task(self._publish(self._endpoints)))
        self._leading.append(asyncio.create_task(self._follow_settings(self._coordinator, config)))
        if not is_loopback(config.address):
            self._reminder = asyncio.create_task(self._remind_of_insecurity())
        return self._endpoints

    def _reserve(self, what: str, port: int) -> None:
        # Beside a port of the user's own choice any other will do: it is printed.
        below = f", which is {port - self._config.port} below it" if self._config.port else ""
        held = self._held[what] = ports.reserve(
            self._config.address,
            port,
            what,
            option=f"--port{below}",
            any_if_taken=self._config.port != DEFAULT_PORT,
        )
        if what == "HTTP":
            held.listen(128)  # a probe that comes early waits for its answer

    def _port_of(self, what: str) -> int | None:
        held = self._held.get(what)
        return None if held is None else int(held.getsockname()[1])

    def _listen_unix(self, port: int) -> str:
        """Listen where processes of this host look; without it they use TCP."""
        try:
            runtime_dir()
            path = str(master_socket(port))
            self.service.listen_unix(path)
        except StoreError as error:
            log(logging.WARNING, "no_unix_socket", reason=error)
            return ""
        return path

    # ---- leading ----

    async def _lead(self, coordinator: Coordinator) -> Leadership:
        config = self._config
        if coordinator.waits_to_lead:
            log(logging.INFO, "standing_by", coordinator=coordinator.name)
            notify("READY=1\nSTATUS=standing by")  # it has started: it may wait for ever
        address = f"{config.address} port {config.port or 'any'}"
        http_port = self._port_of("HTTP")  # a standby has no other yet
        if http_port is not None:
            address += f", HTTP port {http_port}"
        leadership = await coordinator.lead(address)
        self._lease_changes = coordinator.lease()
        self._lease = await anext(self._lease_changes)
        return leadership

    @property
    def _lease_now(self) -> Lease:
        assert self._lease is not None, "it does not lead"
        return self._lease

    async def _follow_lease(self, service: MasterService) -> None:
        """Let C know until when it may answer; end when somebody else leads."""
        assert self._lease_changes is not None
        async for lease in self._lease_changes:
            service.set_lease_deadline(lease.deadline_ns)
            before, self._lease = self._lease_now.state, lease
            if lease.state is LeaseState.SUSPENDED:
                log(logging.WARNING, "lease_suspended", reason="the coordinator does not answer")
            elif lease.state is LeaseState.VALID and before is not LeaseState.VALID:
                log(logging.INFO, "lease_valid_again")
            elif lease.state is LeaseState.LOST:
                service.set_lease_deadline(1)  # long ago
                self._lose_lead("its lease has ended")

    # ---- settings of all masters ----

    async def _settings_of_all(
        self, coordinator: Coordinator, config: MasterConfig
    ) -> MasterConfig:
        applied = apply(config, await self._insist(coordinator.cluster_settings))
        _tell(applied)
        return applied.config

    async def _follow_settings(self, coordinator: Coordinator, applied: MasterConfig) -> None:
        """Take up what changes of the settings of all masters."""
        with _reported():
            await self._take_up_settings(coordinator, applied)

    async def _take_up_settings(self, coordinator: Coordinator, applied: MasterConfig) -> None:
        by_field = {item.field: item for item in cluster_settings().values()}
        async for told in _until_refused(coordinator.watch_cluster_settings()):
            found = apply(self._config, told)
            changed = [
                field
                for field in CLUSTER_FIELDS
                if getattr(found.config, field) != getattr(applied, field)
            ]
            if not changed:
                continue
            _tell(found)
            self.service.reconfigure(found.config)
            for field in changed:
                item = by_field[field]
                event = "setting_changed" if CLUSTER_FIELDS[field] else "setting_needs_restart"
                value = item.format(getattr(found.config, field))
                log(logging.INFO, event, setting=item.name, value=value)
            applied = found.config

    def _lose_lead(self, reason: object) -> None:
        if not self.is_lead_lost:
            log(logging.ERROR, "lead_lost", reason=reason)
        self.is_lead_lost = True
        self.ended.set()

    async def _publish(self, endpoints: Endpoints) -> None:
        """Tell others where we are. What needs the inventories of servers waits for them in C."""
        leader = Leader(
            address=_advertised(self._config, endpoints.port),
            epoch=endpoints.epoch,
            unix_path=endpoints.unix_path,
            boot_id=boot_id().hex(),
        )
        coordinator = self._coordinator
        assert coordinator is not None
        try:
            await self._insist(lambda: coordinator.publish(leader))
        except StoreError as error:
            self._lose_lead(error)  # whom nobody finds leads nothing
            return
        log(logging.INFO, "published", address=leader.address, epoch=leader.epoch)

    async def _insist(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Ask the coordinator until it answers, or the lease is lost."""
        while True:
            try:
                return await call()
            except UnavailableError as error:
                if self._lease_now.state is LeaseState.LOST:
                    raise
                log(logging.WARNING, "coordinator_unreachable", reason=error)
                await asyncio.sleep(_ASK_PAUSE_S)

    # ---- gRPC and HTTP ----

    async def _let_index_come(self) -> None:
        """Wait while inventories come in, which want the cores that imports would take."""
        until_s = time.monotonic() + _INDEX_FIRST_S
        while self._service is not None and time.monotonic() < until_s:
            if all(member.state == "ready" for member in self._service.members()):
                return
            await asyncio.sleep(_INDEX_LOOK_S)

    async def _serve_http(self) -> None:
        await self._let_index_come()
        # In a thread: while a library is imported the loop goes on reading the log.
        with _reported():
            await asyncio.to_thread(_import_http)
            await self._start_http()

    async def _serve_grpc(self, endpoints: Endpoints) -> None:
        with _reported():
            await self._let_index_come()
            if len(self._beside) > 1:  # one after the other: imports want the whole core
                await asyncio.wait(self._beside[:1])
            await asyncio.to_thread(_import_grpc)
            await self._start_grpc(endpoints)

    async def _start_http(self) -> None:
        from mooncake_store.master.metrics import exposition
        from mooncake_store.serving.http_server import HttpServer, application

        app = application(
            live=self._live,
            ready=self._checks,
            about=self._about,
            exposition=lambda: exposition(self._service),
        )
        self._http = HttpServer(app, self._held["HTTP"])
        self._http.start()
        log(logging.INFO, "http_serving", port=self._port_of("HTTP"))

    async def _start_grpc(self, endpoints: Endpoints) -> None:
        from mooncake_store.master.grpc_service import SERVICE_NAME, MasterGrpcService
        from mooncake_store.protocol import master_pb2_grpc
        from mooncake_store.serving.grpc_server import GrpcServer

        inside = f"unix:{endpoints.unix_path}" if endpoints.unix_path else endpoints.master
        names = {metric.number: metric.name for metric in self.service.metrics}
        service = self._grpc_service = MasterGrpcService(inside, names, endpoints.epoch)
        server = GrpcServer(
            lambda made: master_pb2_grpc.add_MasterServicer_to_server(service, made),  # type: ignore[no-untyped-call]
            [SERVICE_NAME],
            lambda: all(check.is_ok for check in self._checks()),
        )
        assert endpoints.grpc_port is not None
        await server.start(endpoints.address, endpoints.grpc_port)
        self._grpc = server
        self._held["gRPC"].close()  # the server has the port now
        log(logging.INFO, "grpc_serving", port=endpoints.grpc_port)

    def _about(self) -> dict[str, Any]:
        if self._service is None:
            return {"epoch": 0, "cluster": ""}
        leadership = self._service.leadership
        return {"epoch": leadership.epoch, "cluster": f"{leadership.cluster:016x}"}

    def is_live(self) -> bool:
        return self._live().is_ok

    def _live(self) -> Check:
        if self._service is None:
            return Check("io_thread", True, "it starts with the lead")
        age_s = self._service.tick_age_s()
        return Check("io_thread", age_s < _LIVE_S, f"it turned {age_s:.3f} s ago")

    def _checks(self) -> list[Check]:
        if self._service is None or self._is_stopping:
            reason = "it is stopping" if self._is_stopping else "it stands by: another master leads"
            return [Check("leading", False, reason), self._live()]
        members = self._service.members()
        ready = sum(member.state == "ready" for member in members)
        lease = self._lease_now
        reason = f"epoch {self._service.leadership.epoch}"
        if lease.deadline_ns:
            reason += f", its lease is {lease.state.value}"
        return [
            Check("leading", lease.state is LeaseState.VALID, reason),
            self._live(),
            # Not a condition: servers find a master only once it is said to be ready.
            Check("store_servers", True, f"{ready} of {len(members)} are ready"),
        ]

    # ---- what C hands over ----

    def _on_events(self) -> None:
        self.service.pass_log_on()
        if self._ledger is not None:
            self._ledger.on_events()

    async def _remind_of_insecurity(self) -> None:
        while True:
            log(
                logging.WARNING,
                "insecure",
                reason=f"{self._config.address} is open to the network, unencrypted",
            )
            await asyncio.sleep(_INSECURE_REMINDER_S)

    # ---- stop ----

    async def stop(self) -> None:
        """Stop everything; calls under way have `stop_timeout_s`. Can be called at any point."""
        self._is_stopping = True
        for task in (*self._beside, *self._leading, self._reminder):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._lease_changes is not None:
            await self._lease_changes.aclose()
        timeout_s = self._config.stop_timeout_s
        stopping = [part.stop(timeout_s) for part in (self._http, self._grpc) if part is not None]
        await asyncio.gather(*stopping, return_exceptions=True)
        if self._grpc_service is not None:
            await self._grpc_service.close()
        for held in self._held.values():
            held.close()
        service, self._service = self._service, None
        if service is not None:
            asyncio.get_running_loop().remove_reader(service.event_descriptor())
            if self._ledger is not None:
                await self._ledger.finish()
            service.pass_log_on()
            await asyncio.to_thread(service.close)
        if self._endpoints is not None and self._endpoints.unix_path:
            Path(self._endpoints.unix_path).unlink(missing_ok=True)
        if self._coordinator is not None:
            await self._coordinator.close()
        log(logging.INFO, "stopped")


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """A service beside the message channel that fails is told of, and no more."""
    try:
        yield
    except Exception as error:
        log(logging.ERROR, "service_failed", reason=error)
        logger.debug("traceback", exc_info=True)


async def _until_refused(
    changes: AsyncGenerator[dict[str, str], None],
) -> AsyncGenerator[dict[str, str], None]:
    try:
        async for told in changes:
            yield told
    except StoreError as error:
        log(logging.WARNING, "settings_not_followed", reason=error)


def _tell(applied: Applied) -> None:
    for name, (own, told) in applied.overridden.items():
        log(logging.INFO, "setting_of_all_masters", setting=name, value=told, own=own)
    for name, reason in applied.ignored.items():
        log(logging.WARNING, "setting_ignored", setting=name, reason=reason)


def _advertised(config: MasterConfig, port: int) -> str:
    """Return where others reach us: `ip:port`, one or several with commas."""
    hosts = config.advertise or (config.address,)
    return ",".join(ports.format_address(host, port) for host in hosts)


def _import_http() -> None:
    import mooncake_store.master.metrics
    import mooncake_store.serving.http_server  # noqa: F401


def _import_grpc() -> None:
    import mooncake_store.master.grpc_service  # noqa: F401


def _beside(address: str, port: int, offset: int) -> int:
    """Return the port next to one that the kernel chose, if it is free, else 0."""
    wanted = port + offset
    return wanted if wanted < 65536 and ports.is_free(address, wanted) else 0


def run_master(
    config: MasterConfig,
    *,
    ready_file: Path | None = None,
    on_ready: Callable[[Endpoints], None] | None = None,
) -> None:
    """Run a master until SIGTERM or SIGINT; one that loses the lead stands by again.

    Args:
        config: Its settings.
        ready_file: Written, with its `Endpoints` as JSON, once clients can connect; removed when it
            leads no more.
        on_ready: Called at the same moment.

    Raises:
        StoreError: It cannot start.
    """
    config.check()
    configure(config.log_format, config.log_level)

    async def serve() -> None:
        while True:
            process = MasterProcess(config)
            was_told = await run(process, ready_file=ready_file, on_ready=on_ready, describe=asdict)
            if was_told or not process.is_lead_lost:
                return

    asyncio.run(serve())
