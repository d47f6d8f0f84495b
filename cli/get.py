"""`mooncake-store get`."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import KEY, Access, client_options
from mooncake_store.cli.output import Output, approximate_size, printable
from mooncake_store.cli.progress import Waiting
from mooncake_store.errors import ConfigError, ObjectNotFoundError


def write_whole(path: Path, value: bytes) -> None:
    """Write a file so that nobody ever sees half of it."""
    draft = ""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            draft = file.name
            file.write(value)
            # As a new file would be: a temporary one is for its owner only.
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        os.replace(draft, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", cause=error) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@click.command("get")
@click.argument("key", type=KEY)
@click.argument("file", required=False, type=click.Path())
@click.option("--force", is_flag=True, help="overwrite a file that is there")
@client_options
def command(output: Output, access: Access, key: str, file: str | None, force: bool) -> int:
    """Fetch the object KEY into FILE (default: the last part of the key).

    \b
    mooncake-store get greeting greeting.txt
    mooncake-store cat greeting            # to standard output
    """
    name = file or key.rsplit("/", 1)[-1]
    path = Path(name)
    if not name or name in (".", "..") or "\0" in name or path.is_dir():
        raise click.UsageError(f"{name!r} is no file name: say which FILE")
    if file is None and name != printable(name):
        raise click.UsageError(f"{name!r} is not a name for a file: say which FILE")
    if path.exists() and not force:
        raise ConfigError(f"{path} is there already", hint="--force overwrites it")
    with access.client() as store:
        started = time.perf_counter()
        with Waiting(output, f"fetching {printable(key)}"):
            value = store.get(key)
        elapsed_s = time.perf_counter() - started
    if value is None:
        raise ObjectNotFoundError("there is no such object", key=key)
    write_whole(path, value)
    output.result(
        {"key": key, "file": str(path), "size_bytes": len(value), "elapsed_seconds": elapsed_s}, ""
    )
    size = approximate_size(len(value))
    output.note(f"{printable(str(path))}: {size} in {elapsed_s * 1e3:.1f} ms")
    return ExitCode.OK
