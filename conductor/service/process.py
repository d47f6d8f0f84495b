"""A conductor as a process: HTTP, proxy, the store's follower, log, and a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mooncake_store.conductor.service.config import ConductorConfig
from mooncake_store.conductor.service.core import ConductorCore
from mooncake_store.conductor.service.http_api import BODY_BYTES_MAX
from mooncake_store.conductor.service.index_file import IndexFile
from mooncake_store.conductor.service.proxy import Proxy
from mooncake_store.conductor.service.store_follower import StoreFollower
from mooncake_store.conductor.service.store_link import OpenStore
from mooncake_store.conductor.service.store_worker import StoreWorker
from mooncake_store.logs import configure, log_event
from mooncake_store.runtime import is_loopback
from mooncake_store.serving import ports
from mooncake_store.serving.connections import descriptors_wanted
from mooncake_store.serving.http_server import HttpServer, application
from mooncake_store.serving.process import Check, raise_descriptor_limit, run

__all__ = ["ConductorProcess", "Endpoints", "run_conductor"]

logger = logging.getLogger("mooncake_store.conductor")

_SWEEP_S = 0.2
_LIVE_S = 5.0
_LOOP_S = 10.0  # what a thread waits for the loop, or the loop for a thread, at the most


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a running conductor is reached, as its ready file says it in JSON."""

    pid: int
    address: str
    http_port: int
    proxy_port: int | None
    grpc_port: int | None

    @property
    def url(self) -> str:
        """Of the API."""
        return f"http://{ports.format_address(self.address, self.http_port)}"


class ConductorProcess:
    """One conductor and everything around it, inside a running asyncio loop.

    Args:
        config: Its settings; `check` has passed.
        open_store: Opens links to the store that `config.master` names.
    """

    def __init__(self, config: ConductorConfig, open_store: OpenStore | None = None) -> None:
        self._config = config
        self._open_store = open_store
        self._follower: StoreFollower | None = None
        self._worker: StoreWorker | None = None
        self._proxy: Proxy | None = None
        self._proxy_http: HttpServer | None = None
        self._grpc: Any = None  # a GrpcServer
        self._gate: Any = None  # its Gate
        self.core = ConductorCore(config)
        self._held: dict[str, socket.socket] = {}
        self._http: HttpServer | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._swept_s = time.monotonic()
        self._is_stopping = False
        self.ended = asyncio.Event()

    async def start(self) -> Endpoints:
        """Serve.

        Raises:
            InUseError: A port is taken; the message names the process.
            StoreError: Something else is missing.
        """
        try:
            return await self._start(self._config)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, config: ConductorConfig) -> Endpoints:
        ports.family_of(config.address)
        doors = 1 + 3 * config.proxy + config.grpc
        raise_descriptor_limit(
            descriptors_wanted(config.connections_max * doors, grpc=False, http=False), logger
        )
        self._reserve("HTTP", config.http_port).listen(1024)
        app = application(
            live=self._live,
            ready=self._checks,
            about=self._about,
            exposition=self._exposition,
            more=self._routes(),
        )
        bounds: dict[str, Any] = {
            "connections_max": config.connections_max,
            "head_timeout_s": config.receive_timeout_s,
        }
        self._http = HttpServer(app, self._held["HTTP"], **bounds)
        self._http.start()
        if config.proxy:
            self._reserve("proxy", config.proxy_port).listen(1024)
            self._proxy = Proxy(self.core)
            self._proxy_http = HttpServer(self._proxy.application(), self._held["proxy"], **bounds)
            self._proxy_http.start()
        if config.grpc:
            await self._start_grpc(config)
        self._sweeper = asyncio.create_task(self._sweep())
        if config.master and self._open_store is not None:
            self._begin_store(config, self._open_store)
        # What exists now stays: the collector need not walk over it, decision after decision.
        gc.collect()
        gc.freeze()
        log_event(
            logger,
            logging.INFO,
            "listening",
            address=ports.format_address(config.address, self._port_of("HTTP") or 0),
            policy=config.policy,
            admission=config.admission,
        )
        return Endpoints(
            pid=os.getpid(),
            address=config.address,
            http_port=self._port_of("HTTP") or 0,
            proxy_port=self._port_of("proxy"),
            grpc_port=self._port_of("gRPC"),
        )

    async def _start_grpc(self, config: ConductorConfig) -> None:
        # Imported only where it is wanted: it takes as long as all the rest.
        from mooncake_store.conductor.service.grpc_api import SERVICE_NAME, ConductorGrpcService
        from mooncake_store.protocol import conductor_pb2_grpc
        from mooncake_store.serving.grpc_gate import Gate
        from mooncake_store.serving.grpc_server import GrpcServer

        self._reserve("gRPC", config.grpc_port)
        self._gate = Gate(config.grpc_calls_max, config.receive_timeout_s)
        service = ConductorGrpcService(self.core)
        self._grpc = GrpcServer(
            lambda made: conductor_pb2_grpc.add_ConductorServicer_to_server(service, made),  # type: ignore[no-untyped-call]
            (SERVICE_NAME,),
            lambda: not self._is_stopping,
            gate=self._gate,
            connections_max=config.connections_max,
            message_bytes_max=BODY_BYTES_MAX,
        )
        await self._grpc.start(config.address, self._port_of("gRPC") or 0)

    def _begin_store(self, config: ConductorConfig, open_store: OpenStore) -> None:
        """Follow the store, and let decisions act on it."""
        loop, core = asyncio.get_running_loop(), self.core

        def on_loop(call: Callable[[], object]) -> object:
            async def run_it() -> object:
                return call()

            return asyncio.run_coroutine_threadsafe(run_it(), loop).result(_LOOP_S)

        file = None
        if config.index_file:
            about = f"the keys {core.names.prefixes[0]}* of {config.master}"
            file = IndexFile(Path(config.index_file).absolute(), about)
        follower = StoreFollower(
            open_store, config.master, core.scheduler, core.names, on_loop, file
        )
        worker = StoreWorker(
            open_store,
            config.master,
            core.names,
            lambda name: follower.numbers.get(name),
            bytes_per_s=config.copy_bandwidth_bytes_per_s,
            pins=config.pin,
            pin_timeout_s=config.request_s_max,
            take_back_s=config.take_back_s,
        )
        self._follower, self._worker = follower, worker
        core.effects = worker
        worker.start()
        follower.start()

    def _replicate(self, worker: StoreWorker) -> None:
        """Let hot blocks have the replicas that they want, on servers beside instances."""
        scheduler = self.core.scheduler
        near = scheduler.holders.near
        for block in scheduler.hot.take(self.core.now_s(), len(near)):
            holding = set(scheduler.index.holders(block.key))
            lacking = [name for name, slot in near if slot not in holding]
            has = len(near) - len(lacking)
            for name in lacking[: max(block.wanted - max(has, 1), 0)]:
                worker.replicate(block.digest, name)

    def _routes(self) -> list[Any]:
        from mooncake_store.conductor.service.http_api import routes

        return list(routes(self.core))

    def _reserve(self, what: str, port: int) -> socket.socket:
        held = self._held[what] = ports.reserve(
            self._config.address, port, what, option=f"--{what.lower()}-port"
        )
        return held

    def _port_of(self, what: str) -> int | None:
        held = self._held.get(what)
        return None if held is None else int(held.getsockname()[1])

    async def _sweep(self) -> None:
        while True:
            self._swept_s = time.monotonic()
            try:
                silent, gone = self.core.sweep()
                if self._worker is not None:
                    self._replicate(self._worker)
                    while self._worker.told:
                        self.core.log.add_taken_back(self._worker.told.popleft())
            except Exception as error:  # a fault of ours must not end the scheduling
                log_event(logger, logging.ERROR, "sweep_failed", reason=error)
                logger.debug("traceback", exc_info=True)
            else:
                for one in silent:
                    log_event(logger, logging.WARNING, "instance_silent", instance=one.name)
                for one in gone:
                    log_event(logger, logging.WARNING, "instance_forgotten", instance=one.name)
            await asyncio.sleep(_SWEEP_S)

    # ---- what HTTP says of the process -----------------------------------------------------------

    def is_live(self) -> bool:
        """Whether the loop turns."""
        return self._live().is_ok

    def _live(self) -> Check:
        age_s = time.monotonic() - self._swept_s
        return Check("loop", age_s < _LIVE_S, f"it turned {age_s:.3f} s ago")

    def _checks(self) -> list[Check]:
        scheduler = self.core.scheduler
        total = len(scheduler.instances)
        has_prefill, has_decode = scheduler.table.has_open, scheduler.decode.has_open
        return [
            Check(
                "running",
                not self._is_stopping,
                "it is stopping" if self._is_stopping else "it is running",
            ),
            self._live(),
            # Not conditions: instances register only once the service is ready.
            Check(
                "prefill",
                True,
                f"{'some' if has_prefill else 'none'} of {total} instances take prompts",
            ),
            *self._store_checks(),
            Check(
                "decode",
                True,
                f"{'some' if has_decode else 'none'} of {total} instances take answers",
            ),
        ]

    def _store_checks(self) -> list[Check]:
        follower = self._follower
        if follower is None:
            return []
        is_there = follower.is_connected
        reason = f"{'followed' if is_there else 'not followed'} at {self._config.master}"
        return [Check("store", True, reason)]  # without it prompts are computed, and answered

    def _about(self) -> dict[str, Any]:
        return {"policy": self._config.policy, "admission": self._config.admission}

    def _exposition(self) -> bytes:
        from mooncake_store.conductor.service.metrics import exposition

        return exposition(self.core, self._counted)

    def _counted(self) -> dict[str, float]:
        counted = {**self._counted_of_store(), **self._counted_of_proxy()}
        if self._gate is not None:
            counted["grpc_calls"] = self._gate.calls
            counted["grpc_refused_total"] = self._gate.refused
        return counted

    def _counted_of_proxy(self) -> dict[str, float]:
        proxy = self._proxy
        if proxy is None:
            return {}
        statuses = {
            f"proxy_requests_total{{{status}}}": count
            for status, count in proxy.counts.statuses.items()
        }
        return {"proxy_retries_total": proxy.counts.retries, **statuses}

    def _counted_of_store(self) -> dict[str, float]:
        follower, worker = self._follower, self._worker
        if follower is None or worker is None:
            return {}
        return {
            "store_connected": float(follower.is_connected),
            "store_sequence": follower.feed.sequence,
            "store_events_total": follower.events_applied,
            "store_gaps_total": follower.feed.gaps,
            "store_snapshots_total": follower.snapshots,
            "store_from_file": float(follower.is_from_file),
            **{f"moves_total{{{name}}}": count for name, count in tuple(worker.moves.items())},
            "moved_bytes_total": worker.moved_bytes,
            "moves_waiting": worker.waiting,
            "extra_replicas": len(worker.extras),
            **{
                f"taken_back_total{{{name}}}": count
                for name, count in tuple(worker.taken_back.items())
            },
            "taken_back_bytes_total": worker.taken_back_bytes,
            "pinned_blocks": worker.pinned_blocks,
        }

    # ---- stop ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop everything; calls under way have `stop_timeout_s`."""
        self._is_stopping = True
        for task in (self._sweeper,):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._proxy_http is not None:
            await self._proxy_http.stop(self._config.stop_timeout_s)
        if self._follower is not None:
            await asyncio.to_thread(self._follower.stop, _LOOP_S)
        if self._worker is not None:
            await asyncio.to_thread(self._worker.stop, _LOOP_S)
        if self._grpc is not None:
            await self._grpc.stop(self._config.stop_timeout_s)
        if self._http is not None:
            await self._http.stop(self._config.stop_timeout_s)
        for held in self._held.values():
            held.close()
        log_event(logger, logging.INFO, "stopped")


def run_conductor(
    config: ConductorConfig,
    *,
    ready_file: Path | None = None,
    on_ready: Callable[[Endpoints], None] | None = None,
    open_store: OpenStore | None = None,
) -> None:
    """Run a conductor until SIGTERM or SIGINT.

    Args:
        config: Its settings.
        ready_file: Written, with its `Endpoints` as JSON, once it serves; removed at the end.
        on_ready: Called at the same moment.
        open_store: Opens links to the store that the settings name.

    Raises:
        StoreError: It cannot start.
    """
    config.check()
    configure(config.log_format, config.log_level)
    if not is_loopback(config.address):
        log_event(
            logger, logging.WARNING, "insecure",
            reason=f"{config.address} is open to the network, unencrypted",
        )  # fmt: skip

    async def serve() -> None:
        process = ConductorProcess(config, open_store)
        await run(process, ready_file=ready_file, on_ready=on_ready, describe=asdict)

    asyncio.run(serve())
