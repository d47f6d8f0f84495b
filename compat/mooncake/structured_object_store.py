"""Batches of training data: not here."""

from __future__ import annotations

from mooncake._absent import absent

raise absent(
    "mooncake.structured_object_store",
    "`mooncake_store.torch` stores nested state",
)
