"""The commands, as processes, with the flags that users pass today."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib

from mooncake._commands.client import server_flags
from mooncake._commands.master import master_flags
from mooncake.store import MooncakeDistributedStore
from tests.compat.environment import COMPAT, ENVIRONMENT
from tests.ports import free_port

SCRIPTS = tomllib.loads((COMPAT / "pyproject.toml").read_text())["project"]["scripts"]
READY_S = 30.0


def ask(url: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, data=body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def wait_until(is_so: object, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(OSError, AssertionError):
            if is_so():  # type: ignore[operator]
                return
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < end, "it is not ready"
        time.sleep(0.05)


@contextlib.contextmanager
def running(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    module, _, _ = SCRIPTS[name].partition(":")
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=ENVIRONMENT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(20) in (0, -15)


@pytest.mark.slow
def test_a_store_from_the_commands_alone(tmp_path: Path) -> None:
    port, metrics, metadata, thin, rest = (free_port() for _ in range(5))
    master_arguments = [
        f"--rpc_port={port}", f"-metrics_port={metrics}", "--enable_http_metadata_server",
        "--http_metadata_server_port", str(metadata), "--eviction_high_watermark_ratio=0.9",
        "--default_kv_lease_ttl=5000", "--nologtostderr", "--enable_offload=false",
    ]  # fmt: skip
    client_arguments = [
        f"--master_server_address=127.0.0.1:{port}", "--host=127.0.0.1", f"--port={thin}",
        "--protocol=tcp", "--device_names=", "--global_segment_size=16 MB",
        "--metadata_server=P2PHANDSHAKE",
    ]  # fmt: skip
    metrics_url = f"http://127.0.0.1:{metrics}"
    with running("mooncake_master", *master_arguments) as master:
        wait_until(lambda: ask(f"{metrics_url}/health")[0] == 200, master)
        status, body = ask(f"{metrics_url}/get_all_segments")
        assert (status, body) == (200, b"\n")
        metadata_url = f"http://127.0.0.1:{metadata}/metadata?key=k"
        assert ask(metadata_url, "PUT", b"v") == (200, b"metadata updated")
        with running("mooncake_client", *client_arguments) as client:
            wait_until(lambda: len(ask(f"{metrics_url}/get_all_segments")[1]) > 8, client)
            store = MooncakeDistributedStore()
            assert store.setup_dummy(16 << 20, 1 << 20, f"127.0.0.1:{thin}") == 0
            assert store.put("k", b"value") == 0
            assert store.get("k") == b"value"
            assert ask(f"{metrics_url}/get_all_keys") == (200, b"k\n")
            assert b"mooncake_store_objects 1" in ask(f"{metrics_url}/metrics")[1]
            settings = tmp_path / "mooncake.json"
            settings.write_text(json.dumps({
                "local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE",
                "master_server_address": "127.0.0.1:1", "global_segment_size": 0,
            }))  # fmt: skip
            rest_arguments = ["--config", str(settings), "--port", str(rest),
                              "-D", f"master_server_address=127.0.0.1:{port}"]  # fmt: skip
            url = f"http://127.0.0.1:{rest}/api"
            with running("mc_store_rest_server", *rest_arguments) as server:
                wait_until(lambda: ask(f"{url}/exist/k")[0] == 200, server)
                assert ask(f"{url}/get/k") == (200, b"value")
                assert ask(f"{url}/get/absent")[0] == 404
                body = json.dumps({"key": "a/b", "value": "text"}).encode()
                assert ask(f"{url}/put", "PUT", body)[0] == 200
                assert ask(f"{url}/put", "PUT", b"{}")[0] == 400
                assert store.get("a/b") == b"text"
                assert json.loads(ask(f"{url}/exist/a/b")[1]) == {"exists": True}
                assert ask(f"{url}/remove/a/b", "DELETE")[0] == 200
                assert ask(f"{url}/remove/a/b", "DELETE")[0] == 404
                assert json.loads(ask(f"{url}/remove_all", "DELETE")[1])["removed"] == 1
            assert store.is_exist("k") == 0
            assert store.close() == 0


def test_the_metadata_server_keeps_values_under_keys() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/metadata"
    with running("mooncake_http_metadata_server", f"--port={port}", "--host=127.0.0.1") as server:
        wait_until(lambda: ask(f"{url}?key=k")[0] == 404, server)
        assert ask(f"{url}?key=k", "PUT", b"v") == (200, b"metadata updated")
        assert ask(f"{url}?key=k") == (200, b"v")
        assert ask(f"{url}?key=k", "POST", b"v")[0] == 405
        assert ask(f"{url}?key=k", "DELETE") == (200, b"metadata deleted")
        assert ask(f"{url}?key=k", "DELETE")[0] == 404
        assert ask(url)[0] == 400


def test_flags_of_the_master_become_ours() -> None:
    given = {
        "rpc_port": "7", "rpc_address": "10.1.2.3", "eviction_high_watermark_ratio": "0.8",
        "eviction_ratio": "0.1", "client_ttl": "20", "default_kv_soft_pin_ttl": "30m",
        "enable_ha": "true", "etcd_endpoints": "http://a:1;b:2", "cluster_id": "c",
    }  # fmt: skip
    assert master_flags(given) == [
        "--port", "7", "--no-grpc", "--no-http", "--insecure", "--address", "10.1.2.3",
        "--evict-above-permille", "800", "--evict-below-permille", "700",
        "--session-timeout", "20s", "--soft-pin", "1800000ms",
        "--coordinator", "etcd://a:1,b:2/c",
    ]  # fmt: skip
    assert master_flags({})[:2] == ["--port", "50051"]
    for wrong in ({"rpc_port": "x"}, {"eviction_ratio": "2"}, {"enable_ha": "true"}):
        with pytest.raises(SystemExit):
            master_flags(wrong)


def test_flags_of_the_client_become_ours() -> None:
    given = {"master_server_address": "10.0.0.1:5", "host": "10.0.0.2"}
    assert server_flags(given) == [
        "--master", "10.0.0.1:5", "--pool-size", f"{4 << 30}B", "--address", "10.0.0.2",
        "--insecure", "--no-keep", "--no-grpc", "--no-http",
    ]  # fmt: skip
    for wrong in ({"global_segment_size": "much"}, {"master_server_address": "10.0.0.1:5"}):
        with pytest.raises(SystemExit):
            server_flags(wrong)


@pytest.mark.parametrize(
    ("name", "argument", "problem"),
    [
        ("mooncake_master", "--no_such_flag=1", "there is no flag --no_such_flag"),
        ("mooncake_master", "--rpc_port", "--rpc_port needs a value"),
        ("mooncake_client", "stray", "'stray' is no flag"),
        ("mc_store_rest_server", "-Dx", "write name=value"),
    ],
)
def test_a_flag_that_cannot_be_is_named(name: str, argument: str, problem: str) -> None:
    module, _, _ = SCRIPTS[name].partition(":")
    done = subprocess.run(
        [sys.executable, "-m", module, argument],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2
    assert problem in done.stderr
