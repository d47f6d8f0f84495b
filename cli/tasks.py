"""`mooncake-store tasks`."""

from __future__ import annotations

import click

from mooncake_store.cli import task_view
from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import Access, client_options
from mooncake_store.cli.output import Output


@click.group("tasks")
def command() -> None:
    """Show and stop what the master does to many objects: drain, repair, replicate, move."""


@command.command("list")
@click.option("--all", "-a", "is_all", is_flag=True, help="those that have ended, too")
@client_options
def list_tasks(output: Output, access: Access, is_all: bool) -> int:
    """List the tasks, the newest first.

    \b
    mooncake-store tasks list --all
    """
    with access.client() as store:
        tasks = [task for task in store.tasks() if is_all or not task.has_ended]
    if output.is_json:
        output.document({"tasks": [task_view.document(task) for task in tasks]})
        return ExitCode.OK
    rows = [
        [task.id, task.state, task_view.subject(task), task_view.progress(task)] for task in tasks
    ]
    if rows:
        output.table(rows, ["TASK", "STATE", "WHAT", "DONE"])
    else:
        output.note("no task is known" if is_all else "no task runs")
    return ExitCode.OK


@command.command("show")
@click.argument("task")
@client_options
def show(output: Output, access: Access, task: str) -> int:
    """Tell all about the task TASK, and which objects it could not treat.

    \b
    mooncake-store tasks show 7-3
    """
    with access.client() as store:
        found = task_view.ask(store, task)
    output.result(task_view.document(found), task_view.text_of(found))
    return ExitCode.OK


@command.command("cancel")
@click.argument("task")
@client_options
def cancel(output: Output, access: Access, task: str) -> int:
    """Stop the task TASK; what it has done stays. A drain is undone.

    \b
    mooncake-store tasks cancel 7-3
    """
    with access.client() as store:
        store.cancel_task(task)
    output.result({"cancelled": task}, "")
    output.note(f"task {task} is cancelled")
    return ExitCode.OK


@command.command("wait")
@click.argument("task")
@client_options
def wait(output: Output, access: Access, task: str) -> int:
    """Wait until the task TASK has ended. Exit code 6: it could not treat all objects.

    \b
    mooncake-store tasks wait 7-3
    """
    with access.client() as store:
        found = task_view.follow(store, output, task_view.ask(store, task))
        if found.objects_failed:
            found = task_view.ask(store, task)
    return task_view.finish(output, found)
