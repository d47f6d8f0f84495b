"""A conductor as a process of its own, and its API."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from mooncake_store.cli.processes import Child

READY_TIMEOUT_S = 30.0


@dataclass
class Conductor:
    """A running one.

    Attributes:
        ports: By what they serve.
    """

    child: Child
    ports: dict[str, int]

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        port: str = "http",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any, dict[str, str]]:
        """Return status, document and headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=20)
        try:
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, raw, headers or {})
            answer = connection.getresponse()
            data = answer.read()
            found = {name.lower(): value for name, value in answer.getheaders()}
            is_json = found.get("content-type", "").startswith("application/json")
            return answer.status, json.loads(data) if is_json else data.decode(), found
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        """Return the document of an answer that is fine."""
        status, document, _ = self.ask(method, path, body)
        assert status == 200, document
        return document

    def register(self, name: str, role: str, **more: Any) -> Any:
        return self.ok("POST", "/v1/instances", {"name": name, "role": role, **more})


Start = Callable[..., Conductor]


@contextlib.contextmanager
def starting() -> Iterator[Start]:
    """Starts conductors with flags, and ends them."""
    children = []

    def begin(*flags: str) -> Conductor:
        child = Child(
            [
                "conductor",
                "--http-port",
                "0",
                "--log-level",
                "error",
                "--heartbeat-timeout",
                "100s",
                "--forget-after",
                "100s",
                *flags,
            ]
        )
        children.append(child)
        ready = child.wait_ready(READY_TIMEOUT_S)
        return Conductor(child, {what: ready[f"{what}_port"] for what in ("http", "proxy", "grpc")})

    try:
        yield begin
    finally:
        for child in children:
            child.end()


@pytest.fixture
def start() -> Iterator[Start]:
    """`starting`, for a test."""
    with starting() as begin:
        yield begin


@pytest.fixture
def conductor(start: Start) -> Conductor:
    return start("--block-tokens", "16")
