"""Settings that the coordinator keeps for all masters, over a master's own."""

from __future__ import annotations

import dataclasses

import pytest

from mooncake_store.config import settings_of
from mooncake_store.coordination.coordinator import Leadership
from mooncake_store.master.cluster import CLUSTER_FIELDS, apply, cluster_settings
from mooncake_store.master.config import MasterConfig
from mooncake_store.master.service import native_config


def test_what_is_told_beats_what_is_given() -> None:
    own = MasterConfig(member_grace_ms=7_000, eviction="lfu", soft_pin_ms=1)
    applied = apply(own, {"member_grace": "30s", "eviction": "sieve", "session_timeout": "10s"})
    assert (applied.config.member_grace_ms, applied.config.eviction) == (30_000, "sieve")
    assert applied.config.soft_pin_ms == 1
    assert applied.overridden == {"member_grace": ("7s", "30s"), "eviction": ("lfu", "sieve")}
    assert applied.ignored == {}


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"port": "7800"}, "no setting of all masters"),
        ({"eviction": "random"}, "random"),
        ({"member_grace": "5"}, "no unit"),
        ({"location_lifetime": "1ms"}, "at least"),
        ({"soft_pin": "100d"}, "at most"),
        ({"soft_pin": "9" * 400 + "d"}, "too long"),
        ({"copy_bandwidth": "5s"}, "unknown unit"),
        ({"evict_below_permille": "990"}, "is above"),
    ],
)
def test_what_makes_no_sense_is_left_out_and_told(told: dict[str, str], reason: str) -> None:
    applied = apply(MasterConfig(), told)
    (said,) = applied.ignored.values()
    assert reason in said
    assert applied.config == MasterConfig() and applied.overridden == {}


def test_the_rest_counts_when_one_makes_no_sense() -> None:
    applied = apply(MasterConfig(), {"port": "7800", "soft_pin": "1h"})
    assert applied.config == dataclasses.replace(MasterConfig(), soft_pin_ms=3_600_000)


@pytest.mark.parametrize("bound", ["minimum", "maximum"])
def test_a_master_takes_every_value_within_the_bounds(bound: str) -> None:
    items = [item for item in settings_of(MasterConfig, "master") if item.kind is int]
    assert all(item.minimum is not None and item.maximum is not None for item in items)
    values = {item.field: getattr(item, bound) for item in items}
    config = dataclasses.replace(MasterConfig(), **values)
    native = native_config(config, Leadership(epoch=1, cluster=1, secret=b""))
    for field in set(values) & set(dir(native)):
        assert getattr(native, field) == values[field]


def test_every_field_is_a_setting_of_the_master() -> None:
    assert {item.field for item in cluster_settings().values()} == set(CLUSTER_FIELDS)
