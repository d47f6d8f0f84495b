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
@click.option("--ready-file", metavar="FILE", help="written with the addresses once it serves")
@output_options
@settings_options(MasterConfig, "master")
def command(output: Output, loaded: Loaded[MasterConfig], ready_file: str | None) -> int:
    """Run a master: the process that knows which objects exist and where.

    \b
    mooncake-store master
    mooncake-store master --address 10.0.0.1 --insecure
    """
    from mooncake_store.master.process import run_master

    def ready(endpoints: Any) -> None:
        output.result(asdict(endpoints), "")
        output.note(f"serving at {endpoints.master}")

    run_master(loaded.values, ready_file=Path(ready_file) if ready_file else None, on_ready=ready)
    return ExitCode.OK
