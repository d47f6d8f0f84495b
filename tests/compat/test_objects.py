"""Behaviour of the calls that engines make: what the peer was measured to answer, row by row.

Rows that answer otherwise than the peer say so in their note; docs/migrating-from-mooncake.md has
them all.
"""

from __future__ import annotations

import numpy as np
import pytest

from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from tests.compat.rows import AT, TEXT, Row, covers, row, run

K1 = ("put", "k", b"value")
K2 = ("put", "k2", b"second")


def config(**wishes: object) -> ReplicateConfig:
    made = ReplicateConfig()
    for name, value in wishes.items():
        setattr(made, name, value)
    return made


ROWS = [
    # bytes
    row("put", "k", b"value", gives=0, after=[(("get", "k"), b"value")]),
    row("put", "k", b"other", gives=0, before=[K1], after=[(("get", "k"), b"value")]),
    row("put", "k", bytearray(b"v"), gives=0, after=[(("get", "k"), b"v")]),
    row("put", "k", memoryview(b"v"), gives=0, after=[(("get", "k"), b"v")]),
    row("put", "k", memoryview(b"abcdef")[::2], gives=0, after=[(("get", "k"), b"ace")]),
    row("put", "k", np.arange(3, dtype="u1"), gives=0, after=[(("get", "k"), b"\0\1\2")]),
    row("put", "k", "text", gives=TypeError),
    row("put", "k", b"", gives=-600, after=[(("is_exist", "k"), 0)]),
    row("put", "", b"x", gives=-600),
    row("put", "k", b"v", config(replica_num=3), gives=0),
    row("put", "k", b"v", config(preferred_segment="10.9.8.7:6"), gives=0),
    row("put", "k", b"v", config(group_ids=["g"], with_soft_pin=True), gives=0),
    row("put", "k", b"v", config(group_ids=["g", "h"]), gives=-600),
    row("put", "k", b"v", "no config", gives=TypeError),
    row("get", "k", gives=b"value", before=[K1]),
    row("get", "absent", gives=b""),
    row("get", "", gives=b""),
    row("get_batch", ["k", "absent", "k2"], gives=[b"value", b"", b"second"], before=[K1, K2]),
    row("get_batch", [], gives=[]),
    row("put_batch", ["a", "b"], [b"1", b"2"], gives=0, after=[(("get", "b"), b"2")]),
    row("put_batch", ["a", "b"], [b"1"], gives=-600),
    row("put_batch", ["a", "b"], [b"1", b""], gives=-600, after=[(("is_exist", "a"), 0)]),
    row("put_batch", ["a", "a"], [b"1", b"2"], gives=0, after=[(("get", "a"), b"1")]),
    row("put_batch", ["a", "b"], [b"1", b"2"], config(group_ids=["g", "h"]), gives=0),
    row("put_batch", ["a", "b"], [b"1", b"2"], config(group_ids=["g"]), gives=-600),
    row("put_parts", "k", b"a", bytearray(b"b"), memoryview(b"c"), gives=0,
        after=[(("get", "k"), b"abc")]),
    row("put_parts", "k", gives=0, after=[(("is_exist", "k"), 0)]),
    row("put_parts", "k", b"", gives=0, after=[(("is_exist", "k"), 0)]),
    row("put_parts", "k", b"a", gives=0, named={"config": config()}),
    row("put_parts", "k", "text", gives=TypeError),
    # upsert
    row("upsert", "k", b"new", gives=0, before=[K1], after=[(("get", "k"), b"new")]),
    row("upsert", "k", b"new", gives=0, after=[(("get", "k"), b"new")]),
    row("upsert", "k", b"", gives=-600, before=[K1], after=[(("get", "k"), b"value")]),
    row("upsert_parts", "k", b"a", b"b", gives=0, before=[K1], after=[(("get", "k"), b"ab")]),
    row("upsert_batch", ["k", "n"], [b"1", b"2"], gives=0, before=[K1],
        after=[(("get_batch", ["k", "n"]), [b"1", b"2"])]),
    row("upsert_batch", ["k", "n"], [b"1"], gives=-600),
    row("upsert_from", "k", AT, 3, gives=0, before=[K1], after=[(("get", "k"), b"abc")]),
    row("batch_upsert_from", ["k", "n"], [AT, AT + 1], [2, 2], gives=[0, 0], before=[K1],
        after=[(("get_batch", ["k", "n"]), [b"ab", b"bc"])]),
    # what there is
    row("is_exist", "k", gives=1, before=[K1]),
    row("is_exist", "absent", gives=0),
    row("is_exist", "", gives=0),
    row("batch_is_exist", ["k", "absent", "", "k2"], gives=[1, 0, 0, 1], before=[K1, K2]),
    row("batch_is_exist", [], gives=[]),
    row("batch_is_exist", ["k"] * 70_000, gives=[1] * 70_000, before=[K1], note="70,000 keys"),
    row("get_size", "k", gives=5, before=[K1]),
    row("get_size", "absent", gives=-704),
    # by address
    row("put_from", "k", AT, 4, gives=0, after=[(("get", "k"), b"abcd")]),
    row("put_from", "k", AT, 4, gives=0, before=[K1], after=[(("get", "k"), b"value")]),
    row("put_from", "k", AT, 0, gives=0),
    row("put_from", "", AT, 4, gives=-600),
    row("put_from", "k", 0, 4, gives=-600, note="null: refused, where the peer crashes"),
    row("put_from", "k", AT, -1, gives=-600),
    row("put_from", "k", AT, 1 << 40, gives=-200),
    row("put_from_with_metadata", "k", AT, AT + 4, 4, 8, gives=0,
        after=[(("get", "k"), b"efghijklabcd")]),
    row("get_into", "k", AT, 64, gives=5, before=[K1], memory=b"valuefgh"),
    row("get_into", "k", AT, 4, gives=-600, before=[K1], memory=TEXT),
    row("get_into", "absent", AT, 4, gives=-704),
    row("get_into", "k", 0, 4, gives=-600, note="null: refused"),
    row("batch_put_from", ["a", "b"], [AT, AT + 2], [2, 3], gives=[0, 0],
        after=[(("get_batch", ["a", "b"]), [b"ab", b"cde"])]),
    row("batch_put_from", ["a", "b"], [AT], [2], gives=[-600, -600]),
    row("batch_put_from", ["a", "a"], [AT, AT + 2], [2, 2], gives=[0, 0],
        after=[(("get", "a"), b"ab")]),
    row("batch_put_from", ["a", "b"], [AT, AT], [2, 2], config(group_ids=["g"]),
        gives=[-600, -600]),
    row("batch_put_from", ["a", "b", "c"], [AT, AT + 1, AT + 2], [1, 1, 1],
        config(group_ids=["g", "h", "g"]), gives=[0, 0, 0],
        after=[(("get_batch", ["a", "b", "c"]), [b"a", b"b", b"c"])]),
    row("batch_put_from", ["", "b"], [AT, AT], [2, 2], gives=[-600, 0]),
    row("batch_get_into", ["k", "absent", "k2"], [AT, AT + 8, AT + 9], [8, 1, 6],
        gives=[5, -704, 6], before=[K1, K2], memory=b"valuefghisecond"),
    row("batch_get_into", ["k", "k2"], [AT, AT + 8], [2, 6], gives=[-600, 6], before=[K1, K2]),
    row("batch_get_into", ["k", "k2"], [AT], [2], gives=[-600, -600]),
    row("batch_put_from_multi_buffers", ["a", "b"], [[AT + 3, AT], [AT + 9]], [[2, 1], [4]],
        gives=[0, 0], after=[(("get_batch", ["a", "b"]), [b"dea", b"jklm"])]),
    row("batch_put_from_multi_buffers", ["a"], [[AT, AT]], [[2]], gives=[-600]),
    row("batch_put_from_multi_buffers", ["a"], [[]], [[]], gives=[0]),
    row("batch_get_into_multi_buffers", ["k"], [[AT + 4, AT]], [[2, 3]], gives=[5], before=[K1],
        memory=b"luedvag"),
    row("batch_get_into_multi_buffers", ["k"], [[AT, AT + 8]], [[2, 2]], gives=[-600],
        before=[K1]),
    row("batch_get_into_multi_buffers", ["k"], [[AT, AT + 8]], [[2, 9]], gives=[-800],
        before=[K1]),
    row("batch_get_into_multi_buffers", ["k", "absent", "k2"], [[AT], [AT + 5], [AT + 6]],
        [[5], [1], [6]], gives=[5, -704, 6], before=[K1, K2], memory=b"valuefsecond"),
    row("batch_get_into_multi_buffers", ["k"], [[AT]], [[5]], True, gives=[5], before=[K1]),
    # ranges
    row("get_into_ranges", [AT], [["k", "absent"]], [[[10], [20]]], [[[1], [0]]], [[[3], [1]]],
        gives=[[[3], [-704]]], before=[K1], memory=TEXT[:10] + b"alu" + TEXT[13:]),
    row("get_into_ranges", [AT, AT + 20], [["k"], ["k2", "k"]], [[[0, 5]], [[0], [3]]],
        [[[0, 2]], [[3], [4]]], [[[1, 2]], [[3], [1]]], gives=[[[1, 2]], [[3], [1]]],
        before=[K1, K2], memory=b"vbcdelu" + TEXT[7:20] + b"onde"),
    row("get_into_ranges", [AT], [["k"]], [[[0]]], [[[3]]], [[[20]]], gives=[[[-600]]],
        before=[K1]),
    row("get_into_ranges", [AT], [["k"]], [[[0]]], [[[0, 1]]], [[[2]]], gives=[[[-600]]],
        before=[K1]),
    # removing
    row("remove", "k", gives=0, before=[K1], after=[(("is_exist", "k"), 0)]),
    row("remove", "k", gives=0, before=[K1, ("get", "k")], note="right after a read: it is gone"),
    row("remove", "k", True, gives=0, before=[K1, ("get", "k")]),
    row("remove", "absent", gives=-704),
    row("remove", "k", gives=-706, before=[("put", "k", b"v", config(with_hard_pin=True))]),
    row("remove", "k", True, gives=0, before=[("put", "k", b"v", config(with_hard_pin=True))]),
    row("batch_remove", ["absent", "k"], gives=[-704, 0], before=[K1]),
    row("batch_remove", ["k"], True, gives=[0], before=[K1]),
    row("remove_by_regex", "^k", gives=2, before=[K1, K2, ("put", "other", b"v")],
        after=[(("batch_is_exist", ["k", "k2", "other"]), [0, 0, 1])]),
    row("remove_by_regex", r"k\d", gives=1, before=[K1, K2]),
    row("remove_by_regex", "(", gives=-600),
    row("remove_all", gives=2, before=[K1, K2], after=[(("is_exist", "k"), 0)]),
    row("remove_all", gives=1, before=[K2, ("put", "k", b"v", config(with_hard_pin=True))],
        after=[(("is_exist", "k"), 1)]),
    row("remove_all", True, gives=1, before=[("put", "k", b"v", config(with_hard_pin=True))]),
    # memory
    row("register_buffer", AT, 4096, gives=0),
    row("register_buffer", AT, 4096, gives=-600, before=[("register_buffer", AT, 4096)]),
    row("register_buffer", AT + 8, 16, gives=-600, before=[("register_buffer", AT, 4096)]),
    row("register_buffer", AT, 8, gives=0, before=[("register_buffer", AT + 8, 8)]),
    row("register_buffer", AT, 0, gives=-600),
    row("register_buffer", 0, 4096, gives=-600),
    row("unregister_buffer", AT, gives=0, before=[("register_buffer", AT, 4096)]),
    row("unregister_buffer", AT, gives=-600),
    row("alloc_from_mem_pool", 4096, gives=lambda address: address > 0),
    row("alloc_from_mem_pool", 0, gives=0),
    # the client
    row("health_check", gives=0),
    row("get_hostname", gives=lambda name: name.startswith("127.0.0.1:")),
    row("close", gives=0, after=[(("close",), 0)]),
]  # fmt: skip


@pytest.mark.parametrize("each", ROWS, ids=str)
def test_row(store: MooncakeDistributedStore, each: Row) -> None:
    run(store, each)


@covers("get_buffer", "batch_get_buffer")
def test_get_buffer_is_memory_of_its_own_with_the_format_that_engines_expect(
    store: MooncakeDistributedStore,
) -> None:
    store.put("k", b"value")
    handle = store.get_buffer("k")
    assert handle is not None
    view = memoryview(handle)
    assert (view.format, view.itemsize, view.readonly) == ("b", 1, False)
    assert (len(handle), handle.size(), bytes(view)) == (5, 5, b"value")
    assert handle.ptr() == np.frombuffer(handle, "u1").ctypes.data
    assert store.get_buffer("absent") is None
    handles = store.batch_get_buffer(["k", "absent", "k"])
    assert handles[1] is None
    assert [bytes(each) for each in handles if each is not None] == [b"value", b"value"]
    assert store.batch_get_buffer([]) == []


def test_beyond_capacity_earlier_objects_of_the_batch_stay(
    store: MooncakeDistributedStore,
) -> None:
    big = bytearray(24 << 20)
    address = np.frombuffer(big, "u1").ctypes.data
    keep = config(with_hard_pin=True)
    keys = [f"big/{index}" for index in range(8)]
    answers = store.batch_put_from(keys, [address] * 8, [len(big)] * 8, keep)
    stored = answers.count(0)
    assert 2 <= stored < 8
    assert answers == [0] * stored + [-200] * (8 - stored)
    assert store.batch_is_exist(keys) == [1] * stored + [0] * (8 - stored)


def test_what_was_found_can_be_read_when_the_pool_overflows(
    store: MooncakeDistributedStore,
) -> None:
    big = bytearray(2 << 20)
    address = np.frombuffer(big, "u1").ctypes.data
    keys = [f"old/{index}" for index in range(8)]
    assert store.batch_put_from(keys, [address] * 8, [len(big)] * 8) == [0] * 8
    assert store.batch_is_exist(keys[:4]) == [1] * 4  # found, and so leased
    for index in range(80):  # 160 MiB into 128
        assert store.put_from(f"new/{index}", address, len(big)) == 0
    assert store.batch_get_into(keys[:4], [address] * 4, [len(big)] * 4) == [len(big)] * 4
    assert store.batch_get_into(keys[4:], [address] * 4, [len(big)] * 4) == [-704] * 4


def test_an_ended_read_session_leaves_no_pin_behind_on_what_was_found(
    store: MooncakeDistributedStore,
) -> None:
    assert store.put("k", b"value") == 0
    assert store.batch_is_exist(["k"]) == [1]
    assert store.batch_get_session_start(["k"]) == [0]
    assert store._client is not None
    stat = store._client.stat(store._key("k"))
    assert stat is not None
    assert stat.pin_count == 2  # the lease's, and the session's, which lasts minutes
    assert store.batch_get_session_end(["k"]) == 0
    stat = store._client.stat(store._key("k"))
    assert stat is not None
    assert stat.pin_count == 1
