"""`mooncake_client`: our store server, with the flags that users of that command know."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Sequence

from mooncake._commands.flags import parse, refuse
from mooncake._commands.http import Answer, Request, Server
from mooncake._store.segment import host_address
from mooncake._store.settings import DEFAULT_MASTER, master_address, parse_size
from mooncake._store.thin import MASTER_PATH
from mooncake_store.errors import StoreError

__all__ = ["main"]

_COMMAND = "mooncake_client"
_KNOWN: dict[str, object] = {
    "master_server_address": DEFAULT_MASTER, "host": "0.0.0.0", "port": 50052,
    "global_segment_size": "4 GB", "protocol": "tcp",
}  # fmt: skip
_IGNORED = (
    "alsologtostderr", "colorlogtostderr", "device_names", "device_name", "enable_http_server",
    "enable_offload", "flagfile", "http_port", "local_buffer_size", "log*", "max_log_size",
    "metadata_server", "minloglevel", "mmap_arena_pool_size", "start_offload_rpc_server",
    "stderrthreshold", "tenant_id", "threads", "use_mmap_arena_allocator", "v", "vmodule",
)  # fmt: skip


def server_flags(given: dict[str, str]) -> list[str]:
    """Return the flags of `mooncake-store server` for those of this command."""
    master = master_address(given.get("master_server_address", DEFAULT_MASTER))
    try:
        size = parse_size(given.get("global_segment_size", "4 GB"))
        address = host_address(given.get("host", "0.0.0.0"), master)
    except (ValueError, StoreError) as error:
        refuse(_COMMAND, str(error))
    if ipaddress.ip_address(address).is_unspecified:
        refuse(_COMMAND, "the master is on another host: give this one's address with --host")
    where = "--coordinator" if master.startswith("etcd://") else "--master"
    flags = [where, master, "--pool-size", f"{size}B", "--address", address]
    if not ipaddress.ip_address(address).is_loopback:
        flags.append("--insecure")
    return [*flags, "--no-keep", "--no-grpc", "--no-http"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `mooncake_client`."""
    given = parse(_COMMAND, sys.argv[1:] if arguments is None else arguments, _KNOWN, _IGNORED)
    flags = server_flags(given)
    master = flags[1]

    def handle(request: Request) -> Answer:
        if request.path == MASTER_PATH:
            return Answer(200, master.encode())
        return Answer(200, b"OK") if request.path == "/health" else Answer(404, b"")

    port = given.get("port", "50052")
    if not port.isdigit():
        refuse(_COMMAND, f"--port={port} is no number")
    Server(_COMMAND, "127.0.0.1", int(port), handle).start()  # thin clients are on this host
    from mooncake_store.cli.app import run

    sys.exit(run(["server", *flags]))


if __name__ == "__main__":
    main()
