"""`mooncake-store cat`."""

from __future__ import annotations

import base64
import sys

import click

from mooncake_store.cli.exit_codes import worst_of
from mooncake_store.cli.options import KEY, Access, client_options
from mooncake_store.cli.output import Output, printable
from mooncake_store.cli.progress import Waiting
from mooncake_store.errors import ObjectNotFoundError


@click.command("cat")
@click.argument("keys", nargs=-1, required=True, type=KEY)
@client_options
def command(output: Output, access: Access, keys: tuple[str, ...]) -> int:
    """Write objects to standard output, one after the other.

    \b
    mooncake-store cat greeting
    mooncake-store cat part/1 part/2 > whole
    """
    found, failures = 0, []
    with access.client() as store:
        for key in keys:
            with Waiting(output, f"fetching {printable(key)}"):
                value = store.get(key)
            if value is None:
                error = ObjectNotFoundError("there is no such object", key=key)
                failures.append(output.error(error))
                continue
            found += 1
            if output.is_json:
                encoded = base64.b64encode(value).decode()
                output.document({"key": key, "size_bytes": len(value), "base64": encoded})
            else:
                sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()
    return worst_of(found, failures)
