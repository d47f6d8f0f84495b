"""`mooncake-store master`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import output_options, settings_options
from mooncake_store.cli.output import Output
from mooncake_store.config import Loaded
from mooncake_store.master.config import MasterConfig


@click.command("master")
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
@settings_options(MasterConfig, "master")
def command(
    output: Output, loaded: Loaded[MasterConfig], ready_file: str | None, announce: bool
) -> int:
    """Run a master: the process that knows which objects exist and where.

    \b
    mooncake-store master
    mooncake-store master --address 10.0.0.1 --insecure
    """
    from mooncake_store.master.process import run_master

    def ready(endpoints: Any) -> None:
        if output.is_json or announce:
            output.document(asdict(endpoints))
        output.note(f"serving at {endpoints.master}")

    run_master(loaded.values, ready_file=Path(ready_file) if ready_file else None, on_ready=ready)
    return ExitCode.OK
