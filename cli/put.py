"""`mooncake-store put`."""

from __future__ import annotations

import mmap
import sys
import time
from typing import Any

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import DURATION, KEY, Access, client_options
from mooncake_store.cli.output import Output, approximate_size, printable
from mooncake_store.cli.progress import Waiting
from mooncake_store.errors import ConfigError


def _read(source: str | None, text: str | None) -> bytes | mmap.mmap:
    if (source is None) == (text is None):
        raise click.UsageError("give a file (- is standard input) or --text, not both")
    if text is not None:
        return text.encode(errors="surrogateescape")  # the very bytes of the command line
    if source == "-":
        return sys.stdin.buffer.read()
    try:
        with open(str(source), "rb") as file:
            try:
                # Sent from where it lies: a file of 16 GiB needs no memory here.
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:  # empty
                return file.read()
            except OSError:  # a pipe, a device
                return file.read()
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}", cause=error) from error


@click.command("put")
@click.argument("key", type=KEY)
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@click.option("--text", metavar="TEXT", help="store this text")
@click.option(
    "--replicas", type=click.IntRange(1, 16), metavar="N", help="copies, each on another node"
)
@click.option("--ttl", type=DURATION, metavar="TIME", help="the object expires after so long")
@click.option("--hard-pin", is_flag=True, help="never evict it")
@click.option("--soft-pin", is_flag=True, help="spare it while others can be evicted")
@click.option("--replace", is_flag=True, help="in place of an object that is there already")
@client_options
def command(
    output: Output, access: Access, key: str, file: str | None, text: str | None,
    replicas: int | None, ttl: float | None, hard_pin: bool, soft_pin: bool, replace: bool,
) -> int:  # fmt: skip
    """Store FILE (- is standard input) or a text under KEY.

    Objects never change: a key that is there already is left alone, with exit code 5, unless
    --replace is given.  Exit code 6: fewer replicas than asked.

    \b
    mooncake-store put greeting --text hello
    tar c folder | mooncake-store put backup -
    """
    value = _read(file, text)
    size = approximate_size(len(value))
    options: dict[str, Any] = {
        "replicas": replicas, "ttl_s": ttl, "hard_pin": hard_pin, "soft_pin": soft_pin,
    }  # fmt: skip
    wanted = replicas or access.settings.replicas
    with access.client() as store:
        started = time.perf_counter()
        with Waiting(output, f"storing {size}"):
            stored = (store.upsert if replace else store.put)(key, value, **options)
        elapsed_s = time.perf_counter() - started
        made = 1 if stored else 0
        if stored and wanted > 1:
            found = store.stat(key)
            made = len(found.replicas) if found is not None else 0
    document = {
        "key": key, "stored": stored, "replicas": made, "size_bytes": len(value),
        "elapsed_seconds": elapsed_s,
    }  # fmt: skip
    output.result(document, "")
    if not stored:
        output.note(
            f"{printable(key)} is there already and was left as it is "
            "(--replace puts this in its place)"
        )
        return ExitCode.REFUSED
    output.note(f"stored {printable(key)}: {size} in {elapsed_s * 1e3:.1f} ms")
    if made < wanted:
        output.note(f"it has {made} of {wanted} replicas: there are too few nodes with room")
        return ExitCode.PARTIAL
    return ExitCode.OK
