"""`mooncake-store drain`."""

from __future__ import annotations

import click

from mooncake_store.cli import task_view
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import Access, client_options
from mooncake_store.cli.output import Output, printable


@click.command("drain")
@click.argument("node")
@click.option("--undo", is_flag=True, help="let it get new objects again")
@click.option("--wait/--no-wait", default=True, help="until nothing is left there (default)")
@client_options
def command(output: Output, access: Access, node: str, undo: bool, wait: bool) -> int:
    """Empty the store server NODE: nothing new goes there, and what it has moves elsewhere.

    Objects that are nowhere else go first. The drain outlives this command and masters; it has
    ended when the node can go without loss. Exit code 6: what is listed cannot move now.

    \b
    mooncake-store drain node-a
    mooncake-store drain node-a --undo
    """
    with access.client() as store:
        if undo:
            was_draining = store.undrain(node)
            output.result({"node": node, "undone": was_draining}, "")
            state = "gets new objects again" if was_draining else "was not draining"
            output.note(f"{printable(node)} {state}")
            return ExitCode.OK
        task = store.drain(node)
        if wait:
            task = task_view.follow(store, output, task)
        if task.state == "blocked":
            task = task_view.ask(store, task.id)
    return task_view.finish(output, task)
