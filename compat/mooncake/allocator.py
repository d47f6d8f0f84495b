"""Device memory: not here."""

from __future__ import annotations

from mooncake._absent import absent

raise absent(
    "mooncake.allocator",
    "memory of the host is all that is registered",
)
