"""A store server's process: the C server and what operators see of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from mooncake_store.errors import ConfigError
from mooncake_store.logs import configure
from mooncake_store.store.config import StoreServerConfig
from mooncake_store.store.service import StoreService

__all__ = ["Endpoints", "StoreProcess", "run_server"]

_ADOPTED_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a running store server is reached, as its ready file says it in JSON."""

    pid: int
    name: str
    address: str
    port: int
    unix_path: str
    node_id: str
    incarnation: int
    size_bytes: int
    grpc_port: int | None
    http_port: int | None


class StoreProcess:
    """One store server inside a running asyncio loop."""

    def __init__(self, config: StoreServerConfig) -> None:
        self.config = config
        self.service: StoreService | None = None

    async def start(self) -> Endpoints:
        """Serve; returns before a master has adopted it.

        Raises:
            StoreError: It cannot start.
        """
        service = self.service = StoreService(self.config)
        asyncio.get_running_loop().add_reader(service.log_descriptor(), service.pass_log_on)
        status = service.status()
        return Endpoints(
            pid=os.getpid(),
            name=service.name,
            address=self.config.address,
            port=status.port,
            unix_path=service.unix_path,
            node_id=status.node_id,
            incarnation=status.incarnation,
            size_bytes=service.size_bytes,
            grpc_port=None,
            http_port=None,
        )

    async def wait_adopted(self) -> None:
        """Return once a master knows this server."""
        assert self.service is not None
        while not self.service.status().is_adopted:
            await asyncio.sleep(_ADOPTED_POLL_S)

    async def stop(self) -> None:
        """End in order."""
        service, self.service = self.service, None
        if service is not None:
            service.pass_log_on()
            asyncio.get_running_loop().remove_reader(service.log_descriptor())
            await asyncio.get_running_loop().run_in_executor(None, service.close)


def write_ready_file(path: Path, endpoints: Endpoints) -> None:
    """Write where the server is reached, so that whoever waits for the file reads all of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        draft.write_text(json.dumps(asdict(endpoints)) + "\n")
        os.replace(draft, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", cause=error) from error


def run_server(
    config: StoreServerConfig,
    *,
    ready_file: Path | None = None,
    on_ready: Callable[[Endpoints], None] | None = None,
) -> None:
    """Run a store server until SIGTERM or SIGINT.

    Args:
        config: Its settings.
        ready_file: Written, with its `Endpoints` as JSON, once a master has adopted it; removed at
            the end.
        on_ready: Called at the same moment.

    Raises:
        StoreError: It cannot start.
    """
    config.check()
    configure(config.log_format, config.log_level)
    asyncio.run(_run(config, ready_file, on_ready))


async def _run(
    config: StoreServerConfig,
    ready_file: Path | None,
    on_ready: Callable[[Endpoints], None] | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    process = StoreProcess(config)
    endpoints = await process.start()
    stopping = asyncio.ensure_future(stop.wait())
    adopted = asyncio.ensure_future(process.wait_adopted())
    try:
        await asyncio.wait({stopping, adopted}, return_when=asyncio.FIRST_COMPLETED)
        if adopted.done() and not stop.is_set():
            if ready_file is not None:
                write_ready_file(ready_file, endpoints)
            if on_ready is not None:
                on_ready(endpoints)
        await stopping
    finally:
        adopted.cancel()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
        await process.stop()
