"""`mooncake-store stat`."""

from __future__ import annotations

from dataclasses import asdict

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import KEY, Access, client_options
from mooncake_store.cli.output import Output, approximate_size, printable
from mooncake_store.config import format_duration
from mooncake_store.errors import ObjectNotFoundError


@click.command("stat")
@click.argument("key", type=KEY)
@client_options
def command(output: Output, access: Access, key: str) -> int:
    """Tell all that the master knows of the object KEY.

    \b
    mooncake-store stat greeting
    """
    with access.client() as store:
        found = store.stat(key)
    if found is None:
        raise ObjectNotFoundError("there is no such object", key=key)
    checksum = None if found.checksum is None else f"{found.checksum:08x}"
    document = {
        "key": found.key, "size_bytes": found.size_bytes, "version": found.version,
        "replicas": [asdict(replica) for replica in found.replicas],
        "replicas_wanted": found.replicas_wanted,
        "age_seconds": found.age_s, "idle_seconds": found.idle_s, "ttl_seconds": found.ttl_s,
        "pins": found.pin_count, "uses": found.use_count,
        "hard_pinned": found.is_hard_pinned, "soft_pinned": found.is_soft_pinned,
        "crc32c": checksum,
    }  # fmt: skip
    kept = [
        "hard pin" if found.is_hard_pinned else "",
        "soft pin" if found.is_soft_pinned else "",
        f"{found.pin_count} session pins" if found.pin_count else "",
        f"expires in {format_duration(found.ttl_s)}" if found.ttl_s else "",
    ]
    nodes = ", ".join(f"{replica.node} ({replica.tier})" for replica in found.replicas)
    output.result(document, "\n".join([
        f"key       {printable(found.key)}",
        f"size      {approximate_size(found.size_bytes)} ({found.size_bytes:,} bytes)",
        f"version   {found.version}",
        f"replicas  {len(found.replicas)} of {found.replicas_wanted}: {printable(nodes)}",
        f"age       {found.age_s:.1f} s, last used {found.idle_s:.1f} s ago",
        f"uses      {found.use_count}",
        *([f"crc32c    {checksum}"] if checksum else []),
        f"kept by   {', '.join(part for part in kept if part) or 'nothing: it may be evicted'}",
    ]))  # fmt: skip
    return ExitCode.OK
