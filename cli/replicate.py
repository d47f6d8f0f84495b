"""`mooncake-store replicate`."""

from __future__ import annotations

import click

from mooncake_store.cli import task_view
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import KEY_OR_PREFIX, Access, check_key, client_options
from mooncake_store.cli.output import Output, printable
from mooncake_store.cli.progress import Waiting
from mooncake_store.cli.servers import source_and_target


@click.command("replicate")
@click.argument("key", type=KEY_OR_PREFIX)
@click.argument("count", type=click.IntRange(0, 16))
@click.option("--to", "target", metavar="SERVER", help="the server that gets a new replica")
@click.option("--from", "source", metavar="SERVER", help="the server whose replica goes first")
@click.option(
    "--prefix", is_flag=True, help="all objects whose key begins with KEY ('': every object)"
)
@click.option("--wait/--no-wait", default=True, help="with --prefix: until it has ended (default)")
@client_options
def command(
    output: Output, access: Access, key: str, count: int, target: str | None, source: str | None,
    prefix: bool, wait: bool,
) -> int:  # fmt: skip
    """Make the object KEY have COUNT replicas; 0 moves one.

    \b
    mooncake-store replicate greeting 2
    mooncake-store replicate chat/ 2 --prefix
    mooncake-store replicate '' 2 --prefix
    """
    if prefix and (count == 0 or target or source):
        raise click.UsageError("--prefix takes a COUNT above 0, and neither --to nor --from")
    if not prefix:
        check_key(key)
    with access.client() as store:
        if prefix:
            task = store.replicate_prefix(key, count)
            if wait:
                task = task_view.follow(store, output, task)
            task = task_view.ask(store, task.id)
            document = {"key": key, "replicas": count, "task": task_view.document(task)}
            output.result(document, task_view.text_of(task))
            return ExitCode.PARTIAL if task.objects_failed else ExitCode.OK
        leaving, getting = source_and_target(store, source, target)
        with Waiting(output, f"replicating {printable(key)}"):
            made = store.change_replica(key, count, source=leaving, target=getting)
    output.result({"key": key, "replicas": made, "task": None}, "")
    output.note(f"{printable(key)} has {made} replica{'s' if made != 1 else ''}")
    return ExitCode.OK if made >= count else ExitCode.PARTIAL
