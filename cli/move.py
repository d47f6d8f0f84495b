"""`mooncake-store move`."""

from __future__ import annotations

import click

from mooncake_store.cli import task_view
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import KEY_OR_PREFIX, Access, check_key, client_options
from mooncake_store.cli.output import Output, printable
from mooncake_store.cli.progress import Waiting
from mooncake_store.cli.servers import source_and_target


@click.command("move")
@click.argument("key", type=KEY_OR_PREFIX)
@click.option("--to", "target", metavar="NODE", help="where it goes; else where most is free")
@click.option("--from", "source", metavar="NODE", help="whose replica moves; else the first")
@click.option(
    "--prefix",
    is_flag=True,
    help="all objects whose key begins with KEY ('': every object); needs --from",
)
@click.option("--wait/--no-wait", default=True, help="with --prefix: until it has ended (default)")
@client_options
def command(
    output: Output, access: Access, key: str, target: str | None, source: str | None,
    prefix: bool, wait: bool,
) -> int:  # fmt: skip
    """Move a replica of the object KEY from one store server to another.

    \b
    mooncake-store move greeting --to node-b
    mooncake-store move chat/ --prefix --from node-a --to node-b
    mooncake-store move '' --prefix --from node-a
    """
    if prefix and source is None:
        raise click.UsageError("--prefix needs --from NODE")
    if not prefix:
        check_key(key)
    with access.client() as store:
        if prefix and source is not None:
            task = store.move_prefix(key, source, target)
            if wait:
                task = task_view.follow(store, output, task)
            task = task_view.ask(store, task.id)
            document = {"key": key, "replicas": None, "task": task_view.document(task)}
            output.result(document, task_view.text_of(task))
            return ExitCode.PARTIAL if task.objects_failed else ExitCode.OK
        leaving, getting = source_and_target(store, source, target)
        with Waiting(output, f"moving {printable(key)}"):
            made = store.move(key, source=leaving, target=getting)
    output.result({"key": key, "replicas": made, "task": None}, "")
    output.note(f"{printable(key)} has {made} replica{'s' if made != 1 else ''}")
    return ExitCode.OK
