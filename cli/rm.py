"""`mooncake-store rm`."""

from __future__ import annotations

import sys

import click

from mooncake_store.cli.exit_codes import ExitCode, worst_of
from mooncake_store.cli.options import KEY, Access, client_options
from mooncake_store.cli.output import Output
from mooncake_store.cli.progress import Waiting
from mooncake_store.errors import ObjectNotFoundError, StoreError


@click.command("rm")
@click.argument("keys", nargs=-1, type=KEY)
@click.option("--prefix", metavar="PREFIX", help="every object whose key begins so; '' is all")
@click.option("--regex", metavar="EXPRESSION", help="every object whose key matches")
@click.option("--force", is_flag=True, help="hard-pinned ones too")
@click.option("--yes", "-y", is_flag=True, help="do not ask before removing many")
@client_options
def command(
    output: Output, access: Access, keys: tuple[str, ...], prefix: str | None,
    regex: str | None, force: bool, yes: bool,
) -> int:  # fmt: skip
    """Remove objects by key, prefix or regular expression.

    \b
    mooncake-store rm greeting
    mooncake-store rm --prefix model-a/ --yes
    """
    if bool(keys) + (prefix is not None) + (regex is not None) != 1:
        raise click.UsageError("say KEYS, --prefix or --regex: one of them")
    if not keys:
        what = f"with the prefix {prefix!r}" if prefix is not None else f"that match {regex!r}"
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(f"this removes all objects {what}: confirm with --yes")
            if not click.confirm(f"remove all objects {what}?", err=True):
                output.note("nothing was removed")
                return ExitCode.FAILED
        with access.client() as store, Waiting(output, f"removing objects {what}"):
            count = store.remove_matching(prefix or "", regex=regex, force=force)
        output.result({"removed": count}, "")
        output.note(f"removed {count} object{'s' if count != 1 else ''}")
        return ExitCode.OK
    with access.client() as store:
        results = store.remove(list(keys), force=force)
    removed = sum(1 for result in results if result is True)
    failures = []
    for key, result in zip(keys, results, strict=True):
        if result is False:
            missing = ObjectNotFoundError("there is no such object", key=key)
            failures.append(output.error(missing))
        elif isinstance(result, StoreError):
            result.key = result.key or key
            failures.append(output.error(result))
    output.result({"removed": removed}, "")
    return worst_of(removed, failures)
