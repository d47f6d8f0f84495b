"""`mooncake-store conductor`: run it, and ask it why."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mooncake_store.cli.conductor_explain import explain
from mooncake_store.cli.conductor_instances import instances
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import output_options, settings_options
from mooncake_store.cli.output import Output
from mooncake_store.conductor.service.config import ConductorConfig
from mooncake_store.config import Loaded

__all__ = ["command"]


@click.group("conductor", invoke_without_command=True)
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
@settings_options(ConductorConfig, "conductor")
@click.pass_context
def command(
    context: click.Context,
    output: Output,
    loaded: Loaded[ConductorConfig],
    ready_file: str | None,
    announce: bool,
) -> int:
    """Run a conductor: which instance prefills a request, which decodes it, whom to refuse.

    docs/conductor.md is the manual.

    \b
    mooncake-store conductor --master 127.0.0.1:7700
    mooncake-store conductor --cluster cluster.toml --policy earliest --proxy
    mooncake-store conductor explain REQUEST
    """
    if context.invoked_subcommand is not None:
        return ExitCode.OK
    from mooncake_store.conductor.service.process import run_conductor

    def open_store(address: str) -> Any:
        from mooncake_store.cli.conductor_store import open_link

        return open_link(address)

    def ready(endpoints: Any) -> None:
        if output.is_json or announce:
            output.document(asdict(endpoints))
        output.note(f"serving at {endpoints.url}")

    run_conductor(
        loaded.values,
        ready_file=Path(ready_file) if ready_file else None,
        on_ready=ready,
        open_store=open_store,
    )
    return ExitCode.OK


command.add_command(explain)
command.add_command(instances)
