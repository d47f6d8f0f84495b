"""`mc_store_rest_server`: objects over HTTP, for tools without a client."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mooncake._commands.flags import refuse
from mooncake._commands.http import Answer, Request, Server
from mooncake.mooncake_config import MooncakeConfig, _from
from mooncake.store import MooncakeDistributedStore

__all__ = ["RestServer", "main"]

_JSON = "application/json"
_COMMAND = "mc_store_rest_server"


def _json(code: int, /, **facts: Any) -> Answer:
    return Answer(code, json.dumps(facts).encode(), _JSON)


class RestServer:
    """`/api/put`, `/api/get/K`, `/api/exist/K`, `/api/remove/K`, `/api/remove_all`, segments."""

    def __init__(self, store: MooncakeDistributedStore) -> None:
        self._store = store

    def handle(self, request: Request) -> Answer:
        """Answer a request."""
        call, _, key = request.path.removeprefix("/api/").partition("/")
        asked = (request.method, call, bool(key))
        if not request.path.startswith("/api/"):
            return _json(404, error="there is only /api/...")
        if asked == ("PUT", "put", False):
            return self._put(request.body)
        if asked == ("GET", "get", True):
            if (size := self._store.get_size(key)) < 0:
                return _json(404 if size == -704 else 500, error="Key not found", code=size)
            return Answer(200, self._store.get(key), "application/octet-stream")
        if asked == ("GET", "exist", True):
            return _json(200, exists=self._store.is_exist(key) == 1)
        if asked == ("DELETE", "remove", True):
            code = self._store.remove(key)
            if code == 0:
                return _json(200, status="success")
            return _json(404 if code == -704 else 500, error="Key not removed", code=code)
        if asked == ("DELETE", "remove_all", False):
            count = self._store.remove_all()
            if count < 0:
                return _json(500, error="remove_all failed", code=count)
            return _json(200, status="success", removed=count)
        return _json(404, error=f"there is no {request.method} {request.path}")

    def _put(self, body: bytes) -> Answer:
        try:
            given = json.loads(body)
            key, value = given["key"], given["value"]
        except (ValueError, KeyError, TypeError):
            return _json(400, error="Missing key or value")
        if not isinstance(key, str) or not isinstance(value, str) or not key:
            return _json(400, error="Missing key or value")
        code = self._store.put(key, value.encode())
        return _json(200, status="success") if code == 0 else _json(500, error="PUT", code=code)


def _settings(given: argparse.Namespace) -> MooncakeConfig:
    overrides = {}
    for definition in given.define:
        name, is_there, value = definition.partition("=")
        if not is_there:
            refuse(_COMMAND, f"-D {definition}: write name=value")
        overrides[name] = value
    try:
        if not given.config and "master_server_address" not in overrides:
            loaded = asdict(MooncakeConfig.load_from_env())
        elif given.config:
            loaded = asdict(MooncakeConfig.from_file(given.config))
        else:
            loaded = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE"}
        return _from({**loaded, **overrides}, "the command line")
    except (ValueError, OSError) as error:
        refuse(_COMMAND, str(error))


def _is_set_up(store: MooncakeDistributedStore, settings: MooncakeConfig) -> bool:
    answer = store.setup(
        settings.local_hostname,
        settings.metadata_server,
        settings.global_segment_size,
        settings.local_buffer_size,
        settings.protocol,
        settings.device_name or "",
        settings.master_server_address,
        tenant_id=settings.tenant_id,
    )
    return answer == 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `mc_store_rest_server`."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description="the store over HTTP")
    parser.add_argument("--config", help="JSON file with the client's settings")
    parser.add_argument("-D", "--define", action="append", default=[], help="name=value, over it")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on (8080)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument(
        "--max-wait-time", type=float, default=60.0, help="seconds to wait for the master (60)"
    )
    given = parser.parse_args(arguments)
    settings = _settings(given)
    store = MooncakeDistributedStore()
    server = Server(_COMMAND, given.host, given.port, RestServer(store).handle)
    end = time.monotonic() + given.max_wait_time
    while not _is_set_up(store, settings):
        if time.monotonic() > end:
            refuse(_COMMAND, f"no master answers at {settings.master_server_address}")
        time.sleep(0.5)
    server.start()
    print(f"serving at http://{given.host}:{server.server_address[1]}/api", flush=True)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
    server.stop()
    store.close()
    sys.exit(0)


if __name__ == "__main__":
    main()
