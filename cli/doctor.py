"""`mooncake-store doctor`."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from mooncake_store.cli.checks import FAIL, OK, WARN, Check, machine_checks, master_check
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.locations import document_of, lines_of
from mooncake_store.cli.options import Access, client_options
from mooncake_store.cli.output import Output, printable
from mooncake_store.errors import DeviceError
from mooncake_store.runtime import DEFAULT_PORT
from mooncake_store.transfer_engine.topology import discover, read_override

_COLORS = {OK: "\x1b[32m", WARN: "\x1b[33m", FAIL: "\x1b[31m"}
_MASTER_TIMEOUT_S = 2.0


def line_of(check: Check, *, has_color: bool, is_verbose: bool = False) -> str:
    """Return a check for people: verdict, name, why, and what to do."""
    color, plain = (_COLORS[check.verdict], "\x1b[0m") if has_color else ("", "")
    line = f"{color}{check.verdict:4}{plain}  {check.name:14}  {printable(check.why)}"
    if not check.fix or (check.verdict == OK and not is_verbose):
        return line
    return f"{line}\n      {'':14}  fix: {printable(check.fix)}"


@click.command("doctor")
@click.option(
    "--port", type=click.IntRange(1, 65533), default=DEFAULT_PORT, show_default=True, metavar="N",
    help="the master's port that should be free or a master's",
)  # fmt: skip
@click.option(
    "--topology", "topology_file", type=click.Path(), metavar="FILE",
    help="JSON that overrules what is found of network interfaces (docs/topology.md)",
)  # fmt: skip
@client_options
def command(output: Output, access: Access, port: int, topology_file: str | None) -> int:
    """Check this machine for what the store needs; changes nothing.

    Each line says ok, warn (it works, but could be better) or fail, why, and what to do.  Then come
    the locations of memory, with the network interfaces that are chosen for each; -v has every
    reason.  Exit code 1 when something fails.

    \b
    mooncake-store doctor
    mooncake-store doctor --json > doctor.json
    mooncake-store doctor --topology nics.json
    """
    try:
        topology = discover()
    except DeviceError as error:  # a sandbox without netlink: the checks say what that means
        output.note(error.message)
        topology = discover(addresses={})
    if topology_file is not None:
        topology = read_override(topology_file).apply(topology)
    checks = []
    has_color = output.has_color(sys.stdout)

    def tell(check: Check) -> None:
        checks.append(check)
        if not output.is_json:
            is_verbose = output.verbosity > 0
            print(line_of(check, has_color=has_color, is_verbose=is_verbose), flush=True)

    for check in machine_checks(port, topology):
        tell(check)
    tell(master_check(access.target, access.timeout_s or _MASTER_TIMEOUT_S))
    if not output.is_json:
        for head, sentence in lines_of(topology, is_verbose=output.verbosity > 0):
            print(f"      {head:14}  {printable(sentence)}", flush=True)
    failed = [check.name for check in checks if check.verdict == FAIL]
    warned = [check.name for check in checks if check.verdict == WARN]
    if output.is_json:
        output.document(
            {
                "ok": not failed,
                "checks": [asdict(check) for check in checks],
                "topology": document_of(topology),
            }
        )
    elif failed:
        output.note(f"{len(failed)} to be fixed: {', '.join(failed)}")
    elif warned:
        output.note(f"it works; {len(warned)} could be better: {', '.join(warned)}")
    else:
        output.note("all is well")
    return ExitCode.FAILED if failed else ExitCode.OK
