"""`mooncake-store version`."""

from __future__ import annotations

import platform
import sys

import click

from mooncake_store import __version__
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import Access, client_options
from mooncake_store.cli.output import Output
from mooncake_store.errors import StoreError
from mooncake_store.version import version_text

MASTER_TIMEOUT_S = 1.0


def master_version(access: Access) -> str | None:
    """Return the master's version; None: no master answers, or it is older than this question."""
    try:
        with access.client(connect_timeout_s=access.timeout_s or MASTER_TIMEOUT_S) as store:
            number = store.counters(timeout_s=access.timeout_s or MASTER_TIMEOUT_S).totals.get(
                "master_version"
            )
    except StoreError:
        return None
    return version_text(number) if number else None


@click.command("version")
@client_options
def command(output: Output, access: Access) -> int:
    """Print the versions of the command, the protocol, the master and what it runs on."""
    from mooncake_store.protocol.frames import WIRE_VERSION, WIRE_VERSION_OLDEST

    of_master = master_version(access)
    described = f"{of_master or 'does not answer'} ({access.target.master})"
    document = {
        "version": __version__,
        "protocol": WIRE_VERSION,
        "protocol_oldest": WIRE_VERSION_OLDEST,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        "kernel": platform.release(),
        "master": {"address": access.target.master, "version": of_master},
    }
    output.result(document, "\n".join([
        f"mooncake-store {__version__}",
        f"protocol       {WIRE_VERSION} (understands {WIRE_VERSION_OLDEST} to {WIRE_VERSION})",
        f"python         {document['python']}, {document['platform']}, {document['kernel']}",
        f"master         {described}",
    ]))  # fmt: skip
    return ExitCode.OK
