"""`mooncake-store get`."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import Access, client_options
from mooncake_store.cli.output import Output
from mooncake_store.config import format_size
from mooncake_store.errors import ConfigError, ObjectNotFoundError


def write_whole(path: Path, value: bytes) -> None:
    """Write a file so that nobody ever sees half of it."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(value)
        os.replace(file.name, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", cause=error) from error


@click.command("get")
@click.argument("key")
@click.argument("file", required=False)
@click.option("--force", is_flag=True, help="overwrite a file that is there")
@client_options
def command(output: Output, access: Access, key: str, file: str | None, force: bool) -> int:
    r"""Fetch the object KEY into FILE (default: the last part of the key).

    \b
    mooncake-store get greeting greeting.txt
    mooncake-store cat greeting            # to standard output
    """
    name = file or key.rsplit("/", 1)[-1]
    path = Path(name)
    if not name or name in (".", "..") or "\0" in name or path.is_dir():
        raise click.UsageError(f"{key!r} gives no file name: say which FILE")
    if path.exists() and not force:
        raise ConfigError(f"{path} is there already", hint="--force overwrites it")
    with access.client() as store:
        started = time.perf_counter()
        value = store.get(key)
        elapsed_s = time.perf_counter() - started
    if value is None:
        raise ObjectNotFoundError("there is no such object", key=key)
    write_whole(path, value)
    output.result(
        {"key": key, "file": str(path), "size_bytes": len(value), "elapsed_seconds": elapsed_s}, ""
    )
    output.note(f"{path}: {format_size(len(value))} in {elapsed_s * 1e3:.1f} ms")
    return ExitCode.OK
