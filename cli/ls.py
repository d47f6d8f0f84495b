"""`mooncake-store ls`."""

from __future__ import annotations

import sys

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import Access, client_options
from mooncake_store.cli.output import Output, approximate_size, printable
from mooncake_store.config import format_duration


@click.command("ls")
@click.argument("prefix", default="")
@click.option("--regex", metavar="EXPRESSION", help="keys that match, instead of a prefix")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="stop after so many")
@click.option("--long", "-l", "is_long", is_flag=True, help="size, replicas and what keeps it")
@client_options
def command(
    output: Output, access: Access, prefix: str, regex: str | None, limit: int | None,
    is_long: bool,
) -> int:  # fmt: skip
    """List the objects whose key begins with PREFIX, in no order.

    \b
    mooncake-store ls model-a/ -l
    mooncake-store ls --regex '^p1-00' --json
    """
    rows = []
    with access.client() as store:
        for item in store.list(prefix, regex=regex, limit=limit):
            if output.is_json:
                output.document({
                    "key": item.key, "size_bytes": item.size_bytes,
                    "replicas": item.replica_count, "hard_pinned": item.is_hard_pinned,
                    "pinned": item.is_pinned, "ttl_seconds": item.ttl_s,
                })  # fmt: skip
            elif not is_long:
                print(printable(item.key))
            else:
                kept = [
                    "hard" if item.is_hard_pinned else "",
                    "pinned" if item.is_pinned else "",
                    f"ttl {format_duration(item.ttl_s)}" if item.ttl_s else "",
                ]
                size = str(item.size_bytes)
                if sys.stdout.isatty():
                    size = approximate_size(item.size_bytes)
                rows.append([
                    size, str(item.replica_count), ",".join(part for part in kept if part) or "-",
                    printable(item.key),
                ])  # fmt: skip
    if rows:
        output.table(rows, ["SIZE", "REPLICAS", "KEPT", "KEY"])
    return ExitCode.OK
