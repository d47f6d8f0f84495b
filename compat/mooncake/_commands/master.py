"""`mooncake_master`: our master, with the flags and HTTP paths that users of that command know."""

from __future__ import annotations

import ipaddress
import json
import sys
import threading
from collections.abc import Callable, Sequence

from mooncake._commands.flags import parse, refuse
from mooncake._commands.http import Answer, Request, Server
from mooncake._commands.metadata import MetadataServer
from mooncake_store.client import Client
from mooncake_store.errors import StoreError

__all__ = ["main"]

_COMMAND = "mooncake_master"
_KNOWN: dict[str, object] = {
    "rpc_port": 0, "port": 50051, "rpc_address": "", "metrics_port": 9003, "metrics_host": "",
    "enable_http_metadata_server": False, "http_metadata_server_port": 8080,
    "http_metadata_server_host": "", "eviction_high_watermark_ratio": 0.95, "eviction_ratio": 0.05,
    "client_ttl": 10, "default_kv_soft_pin_ttl": "", "enable_ha": False, "etcd_endpoints": "",
    "ha_backend_connstring": "", "cluster_id": "mooncake_cluster",
}  # fmt: skip
_IGNORED = (
    "allocation_strategy", "allow_evict_soft_pinned_objects", "alsologtostderr", "batch_oplog_*",
    "colorlogtostderr", "config_path", "cxl_*", "default_kv_lease_ttl", "dynamic_replication_*",
    "enable_cxl", "enable_disk_eviction", "enable_kv_events", "enable_metadata_cleanup_on_timeout",
    "enable_metric_reporting", "enable_multi_tenants", "enable_offload", "enable_oplog",
    "enable_snapshot*", "flagfile", "global_file_segment_size", "ha_backend_type", "kv_events_*",
    "log*", "max_*", "memory_allocator", "minloglevel", "mmap_arena_pool_size", "nof_*",
    "offload*", "oplog_*", "pending_task_timeout_sec", "pod_*", "processing_task_timeout_sec",
    "promotion_*", "put_start_*", "quota_bytes", "root_fs_dir", "rpc_*", "snapshot_*",
    "stderrthreshold", "stop_logging_if_full_disk", "tenant_quota_*", "use_mmap_arena_allocator",
    "v", "vmodule",
)  # fmt: skip
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def _milliseconds(name: str, text: str) -> int:
    for unit, factor in _UNITS_MS.items():
        number = text.removesuffix(unit)
        if number != text and number.isdigit():
            return int(number) * factor
    if not text.isdigit():
        refuse(_COMMAND, f"--{name}={text} is no time: write 1800000, 30m or 1h")
    return int(text)


def _number(name: str, given: dict[str, str], default: float) -> float:
    try:
        return float(given.get(name, default))
    except ValueError:
        refuse(_COMMAND, f"--{name}={given[name]} is no number")


def master_flags(given: dict[str, str]) -> list[str]:
    """Return the flags of `mooncake-store master` for those of this command."""
    port = int(_number("rpc_port", given, 0)) or int(_number("port", given, 50051))
    flags = ["--port", str(port), "--no-grpc", "--no-http"]
    address = given.get("rpc_address", "")
    if address:
        if address == "0.0.0.0" or not _is_loopback(address):
            flags.append("--insecure")
        flags += ["--address", "127.0.0.1" if address == "localhost" else address]
    high = _number("eviction_high_watermark_ratio", given, 0.95)
    part = _number("eviction_ratio", given, 0.05)
    if not 0 < high <= 1 or not 0 <= part < high:
        refuse(_COMMAND, "eviction_ratio is from 0 to eviction_high_watermark_ratio, that to 1")
    flags += ["--evict-above-permille", str(round(high * 1000))]
    flags += ["--evict-below-permille", str(max(round((high - part) * 1000), 1))]
    if "client_ttl" in given:
        flags += ["--session-timeout", f"{int(_number('client_ttl', given, 10))}s"]
    if "default_kv_soft_pin_ttl" in given:
        pin_ms = _milliseconds("default_kv_soft_pin_ttl", given["default_kv_soft_pin_ttl"])
        flags += ["--soft-pin", f"{pin_ms}ms"]
    hosts = given.get("ha_backend_connstring") or given.get("etcd_endpoints", "")
    if given.get("enable_ha") in ("true", "1"):
        if not hosts:
            refuse(_COMMAND, "--enable_ha needs --etcd_endpoints")
        hosts = hosts.replace("http://", "").replace("etcd://", "").replace(";", ",")
        cluster = given.get("cluster_id", "mooncake_cluster")
        flags += ["--coordinator", f"etcd://{hosts}/{cluster}"]
    return flags


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


class MetricsServer:
    """What the HTTP port of the command answers; it asks the master as any client does."""

    def __init__(self, master: str) -> None:
        self._master = master
        self._client: Client | None = None
        self._lock = threading.Lock()

    def _open(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = Client(
                    self._master, strict=True, connect_timeout_s=2.0, name=_COMMAND
                )
            return self._client

    def handle(self, request: Request) -> Answer:
        """Answer a request."""
        answers: dict[str, Callable[[Client], bytes]] = {
            "/get_all_segments": self._segments,
            "/get_all_keys": self._keys,
            "/metrics": self._metrics,
            "/metrics/summary": self._summary,
            "/health": self._health,
            "/role": lambda _: b"leader",
        }
        found = answers.get(request.path)
        if found is None:
            return Answer(404, b"there are " + ", ".join(answers).encode())
        try:
            return Answer(200, found(self._open()))
        except StoreError as error:
            return Answer(503, str(error).encode())

    @staticmethod
    def _segments(client: Client) -> bytes:
        """One line a segment; never empty, because callers take that for a failure."""
        lines = [(member.addresses or (member.name,))[0] for member in client.members()]
        return ("\n".join(lines) + "\n").encode()

    @staticmethod
    def _keys(client: Client) -> bytes:
        return "".join(f"{found.key}\n" for found in client.list()).encode()

    @staticmethod
    def _metrics(client: Client) -> bytes:
        totals = client.counters().totals
        return "".join(f"mooncake_store_{name} {totals[name]}\n" for name in totals).encode()

    @staticmethod
    def _summary(client: Client) -> bytes:
        totals = client.counters().totals
        return f"Keys: {totals.get('objects', 0)} | Segments: {len(client.members())}\n".encode()

    @staticmethod
    def _health(client: Client) -> bytes:
        client.members()
        return json.dumps({"status": "ok", "role": "leader", "service_ready": True}).encode()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `mooncake_master`."""
    given = parse(_COMMAND, sys.argv[1:] if arguments is None else arguments, _KNOWN, _IGNORED)
    flags = master_flags(given)
    address = given.get("rpc_address", "") or "127.0.0.1"
    asked_at = "127.0.0.1" if address in ("0.0.0.0", "localhost") else address
    master = f"{asked_at}:{flags[flags.index('--port') + 1]}"
    host = given.get("metrics_host", "") or address
    port = int(_number("metrics_port", given, 9003))
    Server(_COMMAND, host, port, MetricsServer(master).handle).start()
    if given.get("enable_http_metadata_server") in ("true", "1"):
        host = given.get("http_metadata_server_host", "") or address
        port = int(_number("http_metadata_server_port", given, 8080))
        Server(_COMMAND, host, port, MetadataServer().handle).start()
    from mooncake_store.cli.app import run

    sys.exit(run(["master", *flags]))


if __name__ == "__main__":
    main()
