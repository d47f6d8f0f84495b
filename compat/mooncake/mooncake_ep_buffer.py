"""Expert parallelism on accelerators: not here."""

from __future__ import annotations

from mooncake._absent import absent

raise absent(
    "mooncake.mooncake_ep_buffer",
    "use another all-to-all backend of the engine",
)
