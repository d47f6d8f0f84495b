"""`mooncake-store put`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import DURATION, Access, client_options
from mooncake_store.cli.output import Output
from mooncake_store.config import format_size
from mooncake_store.errors import ConfigError


def _read(source: str | None, text: str | None) -> bytes:
    if (source is None) == (text is None):
        raise click.UsageError("give a file (- is standard input) or --text, not both")
    if text is not None:
        return text.encode()
    if source == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(str(source)).read_bytes()
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}", cause=error) from error


@click.command("put")
@click.argument("key")
@click.argument("file", required=False)
@click.option("--text", metavar="TEXT", help="store this text")
@click.option("--replicas", type=int, metavar="N", help="copies, each on another node")
@click.option("--ttl", type=DURATION, metavar="TIME", help="the object expires after so long")
@click.option("--hard-pin", is_flag=True, help="never evict it")
@click.option("--soft-pin", is_flag=True, help="spare it while others can be evicted")
@click.option("--replace", is_flag=True, help="in place of an object that is there already")
@client_options
def command(
    output: Output, access: Access, key: str, file: str | None, text: str | None,
    replicas: int | None, ttl: float | None, hard_pin: bool, soft_pin: bool, replace: bool,
) -> int:  # fmt: skip
    r"""Store FILE (- is standard input) or a text under KEY.

    Objects never change: a key that is there already is left alone, with exit code 5, unless
    --replace is given.

    \b
    mooncake-store put greeting --text hello
    tar c folder | mooncake-store put backup -
    """
    value = _read(file, text)
    options: dict[str, Any] = {
        "replicas": replicas, "ttl_s": ttl, "hard_pin": hard_pin, "soft_pin": soft_pin,
    }  # fmt: skip
    with access.client() as store:
        started = time.perf_counter()
        stored = (store.upsert if replace else store.put)(key, value, **options)
        elapsed_s = time.perf_counter() - started
    document = {
        "key": key, "stored": stored, "size_bytes": len(value), "elapsed_seconds": elapsed_s,
    }  # fmt: skip
    if stored:
        output.result(document, "")
        output.note(f"stored {key!r}: {format_size(len(value))} in {elapsed_s * 1e3:.1f} ms")
        return ExitCode.OK
    output.result(document, "")
    output.note(
        f"{key!r} is there already and was left as it is (--replace puts this in its place)"
    )
    return ExitCode.REFUSED
