"""`mooncake-store ready`."""

from __future__ import annotations

import time

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.interrupts import raise_if_interrupted
from mooncake_store.cli.options import DURATION, Access, client_options
from mooncake_store.cli.output import Output
from mooncake_store.errors import StoreError, UnavailableError


@click.command("ready")
@click.option("--wait", type=DURATION, default=0.0, metavar="TIME", help="try for so long")
@click.option(
    "--servers", type=click.IntRange(min=0), default=1, metavar="N", help="store servers needed (1)"
)
@client_options
def command(output: Output, access: Access, wait: float, servers: int) -> int:
    """Exit with 0 when a master answers and enough store servers are ready.

    \b
    mooncake-store ready --wait 10s && start-engine
    """
    end = time.monotonic() + wait
    while True:
        try:
            with access.client() as store:
                ready = sum(member.state == "ready" for member in store.members())
            if ready >= servers:
                output.result({"ready": True, "servers": ready, "master": access.target.shown}, "")
                output.note(f"ready: {ready} servers at {access.target.shown}")
                return ExitCode.OK
            error: StoreError = UnavailableError(f"{ready} of {servers} store servers are ready")
        except StoreError as failure:
            error = failure
        if time.monotonic() >= end:
            raise error
        time.sleep(0.05)
        raise_if_interrupted()
