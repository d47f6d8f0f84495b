"""Process groups of accelerators: not here."""

from __future__ import annotations

from mooncake._absent import absent

raise absent(
    "mooncake.pg",
    "use the process groups of torch.distributed",
)
