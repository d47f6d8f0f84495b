"""vLLM's connector before its own ones: not here."""

from __future__ import annotations

from mooncake._absent import absent

raise absent(
    "mooncake.mooncake_connector_v1",
    "use vLLM's MooncakeConnector or MooncakeStoreConnector",
)
