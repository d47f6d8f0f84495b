"""`mooncake-store version`."""

from __future__ import annotations

import platform
import sys

import click

from mooncake_store import __version__
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import output_options
from mooncake_store.cli.output import Output


@click.command("version")
@output_options
def command(output: Output) -> int:
    """Print the versions of the command, the protocol and what it runs on."""
    from mooncake_store.protocol.frames import WIRE_VERSION, WIRE_VERSION_OLDEST

    document = {
        "version": __version__,
        "protocol": WIRE_VERSION,
        "protocol_oldest": WIRE_VERSION_OLDEST,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        "kernel": platform.release(),
    }
    output.result(document, "\n".join([
        f"mooncake-store {__version__}",
        f"protocol       {WIRE_VERSION} (understands {WIRE_VERSION_OLDEST} to {WIRE_VERSION})",
        f"python         {document['python']}, {document['platform']}, {document['kernel']}",
    ]))  # fmt: skip
    return ExitCode.OK
