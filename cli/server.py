"""`mooncake-store server`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import output_options, settings_options
from mooncake_store.cli.output import Output
from mooncake_store.config import Loaded
from mooncake_store.store.config import StoreServerConfig


@click.command("server")
@click.option(
    "--ready-file",
    metavar="FILE",
    type=click.Path(),
    help="written with the addresses once it serves",
)
@click.option(
    "--announce", is_flag=True, hidden=True, help="for parents: --json of the result only"
)
@output_options
@settings_options(StoreServerConfig, "server")
def command(
    output: Output, loaded: Loaded[StoreServerConfig], ready_file: str | None, announce: bool
) -> int:
    """Run a store server: the process that keeps objects in this node's memory.

    \b
    mooncake-store server --master 127.0.0.1:7700
    mooncake-store server --master 10.0.0.1:7700 --address 10.0.0.2 --insecure --pool-size 64GiB
    """
    from mooncake_store.store.process import run_server

    def ready(endpoints: Any) -> None:
        if output.is_json or announce:
            output.document(asdict(endpoints))
        output.note(f"{endpoints.name} serves {endpoints.master}")

    def open_objects(master: str) -> Any:
        from mooncake_store.client import Client

        return Client(master, strict=True, name="server-grpc")

    run_server(
        loaded.values,
        ready_file=Path(ready_file) if ready_file else None,
        on_ready=ready,
        open_objects=open_objects,
    )
    return ExitCode.OK
