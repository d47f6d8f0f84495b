"""`mooncake-store bench`."""

from __future__ import annotations

from mooncake_store.cli.bench.command import bench as command

__all__ = ["command"]
