"""`mooncake-store up`."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

import click

from mooncake_store.cli.contexts import remove_local, write_local
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import output_options
from mooncake_store.cli.output import Output
from mooncake_store.cli.processes import Child, StoppedError
from mooncake_store.runtime import DEFAULT_PORT

READY_TIMEOUT_S = 30.0


@click.command("up")
@click.option(
    "--port", type=click.IntRange(0, 65533), default=DEFAULT_PORT, show_default=True,
    help="the master's port; gRPC and HTTP take the next two; 0 = any",
)  # fmt: skip
@click.option("--size", metavar="SIZE", help="pool (default: 1GiB or a quarter of free /dev/shm)")
@click.option("--config", metavar="FILE", help="configuration file of master and server")
@output_options
def command(output: Output, port: int, size: str | None, config: str | None) -> int:
    """Start a complete store on this machine: one master, one store server; Ctrl-C ends it.

    Commands on this machine that name no master find it by themselves.

    \b
    mooncake-store up
    mooncake-store up --port 7800 --size 4GiB
    """
    started = time.perf_counter()
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    shared = ["--config", config] if config else []
    children = [Child(["master", "--port", str(port), *shared])]
    try:
        if port:
            # Both start at once: the server dials until the master is there.
            children.append(_server(f"127.0.0.1:{port}", size, shared))
        master = children[0].wait_ready(READY_TIMEOUT_S)
        address = f"127.0.0.1:{master['port']}"
        if not port:
            children.append(_server(address, size, shared))
        server = children[1].wait_ready(READY_TIMEOUT_S)
        write_local(address, os.getpid())
        document = {
            "pid": os.getpid(), "master": address, "grpc_port": master["grpc_port"],
            "http_port": master["http_port"], "server": server,
            "ready_seconds": time.perf_counter() - started,
        }  # fmt: skip
        lines = [f"master  {address}"]
        if master["grpc_port"]:
            lines.append(f"gRPC    127.0.0.1:{master['grpc_port']}")
        if master["http_port"]:
            lines.append(f"HTTP    http://127.0.0.1:{master['http_port']}/metrics")
        lines.append(f"try     mooncake-store put greeting --text hello --master {address}")
        output.result(document, "\n".join(lines))
        output.note(f"ready after {document['ready_seconds']:.2f} s; Ctrl-C ends it")
        while not stopped:
            for child in children:
                code = child.poll()
                if code is not None:
                    raise StoppedError(f"the {child.name} ended by itself", exit_code=code)
            time.sleep(0.1)
        return ExitCode.OK
    except StoppedError as error:
        print(f"error: {error.message}; see above", file=sys.stderr)
        return error.exit_code if error.exit_code > 0 else ExitCode.FAILED
    finally:
        remove_local(os.getpid())
        for child in reversed(children):
            child.end()


def _server(master: str, size: str | None, shared: list[str]) -> Child:
    pool = ["--pool-size", size] if size else []
    return Child(["server", "--master", master, *pool, *shared])
