"""`mooncake-store up`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import click

from mooncake_store.cli.contexts import read_document, remove_local, write_local
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import SIZE, output_options
from mooncake_store.cli.output import Output, approximate_size
from mooncake_store.cli.processes import Child
from mooncake_store.config import Loaded, load
from mooncake_store.errors import UnavailableError
from mooncake_store.runtime import DEFAULT_PORT

READY_TIMEOUT_S = 30.0


def _seconds_since_start() -> float:
    """How long this process has been there, the interpreter's own start included."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started_s, 0.0)


def _flags(loaded: Loaded[Any], config: str | None, output: Output) -> list[str]:
    """What a child is told beside its own settings, which it reads for itself."""
    flags = ["--config", config] if config else []
    if output.is_json:
        flags.append("--json")
    if loaded.origins["log_level"] == "default" and not output.verbosity:
        flags += ["--log-level", "warning"]  # its result is what counts here
    return flags


def _text(document: dict[str, Any]) -> str:
    master, server = document["master"], document["server"]
    lines = [f"master   {master}", f"server   {server['name']}, "
             f"{approximate_size(server['size_bytes'])} of memory"]  # fmt: skip
    if document["grpc_port"]:
        lines.append(f"gRPC     {document['address']}:{document['grpc_port']}")
    if document["http_port"]:
        lines.append(f"metrics  http://{document['address']}:{document['http_port']}/metrics")
    lines.append("try      mooncake-store put greeting --text hello && mooncake-store cat greeting")
    lines.append(f"         python: mooncake_store.Client({master!r}).get('greeting')")
    return "\n".join(lines)


@click.command("up")
@click.option(
    "--port", type=click.IntRange(0, 65533), metavar="N",
    help=f"the master's port ({DEFAULT_PORT}); gRPC and HTTP take the next two; 0 = any",
)  # fmt: skip
@click.option(
    "--size", type=SIZE, metavar="SIZE", help="pool (default: 1GiB or a quarter of free /dev/shm)"
)
@click.option("--config", metavar="FILE", type=click.Path(), help="configuration file")
@click.option(
    "--announce", is_flag=True, hidden=True, help="for parents: --json of the result only"
)
@output_options
def command(
    output: Output, port: int | None, size: int | None, config: str | None, announce: bool
) -> int:
    """Start a complete store on this machine: one master, one store server; Ctrl-C ends it.

    Commands on this machine that name no master find it by themselves.

    \b
    mooncake-store up
    mooncake-store up --port 7800 --size 4GiB
    """
    from mooncake_store.master.config import MasterConfig
    from mooncake_store.serving import ports
    from mooncake_store.store.config import StoreServerConfig

    document, path = read_document(config)
    settings = load(MasterConfig, "master", flags={"port": port}, document=document, path=path)
    server_settings = load(StoreServerConfig, "server", document=document, path=path)
    settings.values.check()
    address, wanted = settings.values.address, settings.values.port
    if wanted and not ports.is_free(address, wanted):
        # Before anything is started: our server would join the master that is there.
        raise ports.in_use(address, wanted, "messages")

    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)

    server_flags = _flags(server_settings, config, output)
    is_kept = server_settings.values.keep and server_settings.origins["keep"] != "default"
    if server_settings.origins["keep"] == "default":
        server_flags.append("--no-keep")  # a trial on one machine ends with its memory given back
    if size is not None:
        server_flags += ["--pool-size", f"{size}B"]

    def start_server(master: str) -> Child:
        return Child(["server", "--master", master, *server_flags], is_muted_at_end=True)

    master_flags = ["--port", str(wanted), *_flags(settings, config, output)]
    children = [Child(["master", *master_flags], is_muted_at_end=True)]
    try:
        if wanted:
            # Both start at once: the server dials until the master is there.
            children.append(start_server(ports.format_address(address, wanted)))
        master = children[0].wait_ready(READY_TIMEOUT_S)
        where = ports.format_address(address, master["port"])
        if not wanted:
            children.append(start_server(where))
        server = children[1].wait_ready(READY_TIMEOUT_S)
        write_local(where, os.getpid())
        result = {
            "pid": os.getpid(), "master": where, "address": address, "port": master["port"],
            "grpc_port": master["grpc_port"], "http_port": master["http_port"], "server": server,
            "ready_seconds": _seconds_since_start(),
        }  # fmt: skip
        if announce:
            output.document(result)
        else:
            output.result(result, _text(result))
        end = "Ctrl-C ends it" if is_kept else "Ctrl-C ends it and gives its memory back"
        output.note(f"ready after {result['ready_seconds']:.2f} s; {end}")
        while not stopped:
            for child in children:
                if child.poll() is not None:
                    raise child.stopped()
            time.sleep(0.1)
        return ExitCode.OK
    except UnavailableError:
        if stopped:
            return ExitCode.INTERRUPTED  # before it was ready
        for child in children:
            code = child.poll()
            if code and code in list(ExitCode):
                return code  # it has said why
        raise
    finally:
        remove_local(os.getpid())
        for child in children:
            child.ask_to_end()
        for child in children:
            child.end()
