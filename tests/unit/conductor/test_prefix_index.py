"""The prefix index: against a dict of sets, at its bound, and the work of a look-up."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_store._native import ffi, lib
from mooncake_store.conductor.prefix_index import PrefixIndex, PrefixMatch, Tier, pack_keys
from mooncake_store.errors import RequestError


def test_a_hole_in_the_middle_ends_the_match() -> None:
    index = PrefixIndex(2)
    index.store(0, pack_keys([1, 2, 4, 5]))
    index.store(1, pack_keys([1, 2, 3, 4]))
    assert index.match_lengths(pack_keys([1, 2, 3, 4, 5])) == [2, 4]
    assert index.match_lengths(pack_keys([9, 1, 2])) == [0, 0]
    assert index.match_lengths(b"") == [0, 0]


def test_tiers_are_told_apart() -> None:
    index = PrefixIndex(1)
    index.store(0, pack_keys([1, 2]), Tier.DEVICE)
    index.store(0, pack_keys([3]), Tier.DRAM)
    index.store(0, pack_keys([1, 4]), Tier.SSD)
    keys = pack_keys([1, 2, 3, 4, 5])
    assert index.match(keys) == [PrefixMatch(2, 3, 4)]
    index.remove(0, pack_keys([1]), Tier.DEVICE)
    assert index.match(keys) == [PrefixMatch(0, 0, 4)]  # 1 is on the SSD only
    index.remove(0, pack_keys([1]), Tier.SSD)
    assert index.match(keys) == [PrefixMatch(0, 0, 0)]


def test_holders_are_named() -> None:
    index = PrefixIndex(130)
    for instance in (0, 63, 64, 129):
        index.store(instance, pack_keys([7]))
    assert index.holders(pack_keys([7])) == [0, 63, 64, 129]
    assert index.holders(pack_keys([8])) == []


def test_a_block_without_holders_takes_no_room() -> None:
    index = PrefixIndex(3, blocks_max=4)
    for _ in range(10):
        index.store(1, pack_keys([1, 2, 3, 4]))
        index.remove(1, pack_keys([1, 2, 3, 4]))
    assert len(index) == 0
    assert index.forgotten == 0


def test_at_the_bound_the_block_that_was_not_seen_is_forgotten() -> None:
    index = PrefixIndex(2, blocks_max=100)
    index.store(0, pack_keys(list(range(100))))
    index.store(0, pack_keys([1000]))  # the clock takes everybody's mark, and one block
    for key in range(1001, 1040):
        index.match_lengths(pack_keys([50]))  # asked for again and again
        index.store(0, pack_keys([key]))
    assert len(index) == 100
    assert index.forgotten == 40
    # 50 survives unless it was the very first victim, when all marks were alike.
    assert index.holders(pack_keys([50])) == [0]


_CHANGE = st.tuples(
    st.sampled_from(["store", "remove", "clear"]),
    st.integers(0, 69),
    st.integers(0, 2),
    st.lists(st.integers(0, 40), max_size=8),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_CHANGE, max_size=40), st.lists(st.integers(0, 40), max_size=10))
def test_the_index_is_a_dict_of_sets(
    changes: list[tuple[str, int, int, list[int]]], wanted: list[int]
) -> None:
    index = PrefixIndex(70, blocks_max=41)
    model: dict[int, set[tuple[int, int]]] = {}
    for kind, instance, tier, keys in changes:
        if kind == "store":
            index.store(instance, pack_keys(keys), Tier(tier))
            for key in keys:
                model.setdefault(key, set()).add((instance, tier))
        elif kind == "remove":
            index.remove(instance, pack_keys(keys), Tier(tier))
            for key in keys:
                model.get(key, set()).discard((instance, tier))
        else:
            index.clear(instance)
            for holders in model.values():
                holders -= {(instance, tier) for tier in range(3)}
    assert len(index) == sum(bool(holders) for holders in model.values())
    matches = index.match(pack_keys(wanted))
    for instance in range(70):
        expected = []
        for last_tier in range(3):
            length = 0
            for key in wanted:
                tiers = {tier for holder, tier in model.get(key, set()) if holder == instance}
                if not tiers or min(tiers) > last_tier:
                    break
                length += 1
            expected.append(length)
        assert matches[instance] == PrefixMatch(*expected)


def test_keys_may_be_hashes_and_are_told_apart_by_all_their_bits() -> None:
    index = PrefixIndex(1)
    index.store(0, pack_keys([b"\x01" * 32]))
    assert index.match_lengths(pack_keys([b"\x01" * 16])) == [1]
    assert index.match_lengths(pack_keys([b"\x01" * 15 + b"\x02"])) == [0]


def test_events_of_strangers_are_counted_out() -> None:
    index = PrefixIndex(2)
    events = ffi.new("cd_event[]", 3)
    events[0].instance, events[0].tier, events[0].key.low = 0, 1, 5
    events[1].instance, events[1].tier = 2, 1
    events[2].instance, events[2].tier, events[2].kind = 0, 1, 7
    assert index.apply(bytes(ffi.buffer(events))) == 1
    assert index.holders(pack_keys([5])) == [0]


@pytest.mark.parametrize(
    "call",
    [
        lambda index: index.store(4, b""),
        lambda index: index.store(-1, b""),
        lambda index: index.store(0, b"short"),
        lambda index: index.clear(4),
        lambda index: index.match(b"x" * 17),
        lambda index: index.apply(b"x"),
        lambda index: index.holders(b""),
        lambda index: pack_keys([-1]),
        lambda index: pack_keys([b"short"]),
        lambda index: PrefixIndex(0),
        lambda index: PrefixIndex(1025),
        lambda index: PrefixIndex(1, blocks_max=0),
    ],
)
def test_what_cannot_be_is_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RequestError):
        call(PrefixIndex(4))


def test_memory_is_what_is_stated() -> None:
    # 16 bytes of key, 3 tiers of 128 bits, a byte of state, and a quarter of empty slots.
    assert PrefixIndex.bytes_per_block(128) == (16 + 48 + 1) * 5 // 4 + 1
    assert PrefixIndex.bytes_per_block(128, 1) <= 42


def slots_looked_at(index: PrefixIndex) -> float:
    """Return how many slots a look-up of a block goes through at most, on average.

    It goes from a slot of the run of taken ones in which its block lies to that, or to the run's
    end.  Instance 0 holds all blocks, in DRAM.
    """
    key, cursor = ffi.new("cd_key *"), ffi.new("uint64_t *")
    runs = [0]
    for slot in itertools.count():
        is_taken = lib.cd_index_dump(index._handle, 0, int(Tier.DRAM), cursor, 1, key)
        if cursor[0] == slot:
            break  # that was the last one
        if is_taken:
            runs[-1] += 1
        else:
            runs.append(0)
    assert sum(runs) == len(index)
    return sum(run * run for run in runs) / len(index)


@pytest.mark.parametrize("shift", [None, 0, 64, 100])
def test_a_look_up_goes_through_few_slots_also_where_others_are_forgotten(
    shift: int | None,
) -> None:
    """Four of five slots are taken: 30 where keys spread well, and all 20,000 where they do not."""
    draw = random.Random(1)
    keys = [draw.getrandbits(128) if shift is None else i << shift for i in range(70_000)]
    index = PrefixIndex(1, blocks_max=20_000)
    for first in range(0, 70_000, 10_000):
        index.store(0, pack_keys(keys[first : first + 10_000]))
        assert slots_looked_at(index) < 60
    assert index.forgotten == 50_000


def test_a_match_of_many_blocks_is_told_of_each_of_many_instances() -> None:
    draw = random.Random(1)
    packed = pack_keys([draw.getrandbits(128) for _ in range(2000)])
    index = PrefixIndex(128, blocks_max=2000)
    for instance in (0, 1, 64, 127):
        index.store(instance, packed)
    lengths = [200 if instance in (0, 1, 64, 127) else 0 for instance in range(128)]
    assert index.match_lengths(packed[: 200 * 16]) == lengths
