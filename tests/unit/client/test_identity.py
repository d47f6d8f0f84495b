"""Identities of caches: the golden vectors, and that nothing that differs shares a key."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mooncake_store import CacheIdentity, ParallelShape
from mooncake_store.errors import RequestError

ROOT = Path(__file__).parents[3]
VECTORS = json.loads((ROOT / "tests/golden/identity.json").read_text())
SHAPE_FIELDS = tuple(ParallelShape.__dataclass_fields__)
BASE = CacheIdentity(model="m", dtype="bfloat16", layout="l", block_size=4)


def identity_of(fields: dict[str, Any]) -> CacheIdentity:
    shape = {name: fields[name] for name in SHAPE_FIELDS if name in fields}
    rest = {name: value for name, value in fields.items() if name not in shape}
    return CacheIdentity(**rest, parallel=ParallelShape(**shape))


@st.composite
def shapes(draw: st.DrawFn) -> ParallelShape:
    fields: dict[str, int] = {}
    for kind in ("tp", "pp", "cp"):
        size = draw(st.integers(1, 3))
        fields |= {f"{kind}_size": size, f"{kind}_rank": draw(st.integers(0, size - 1))}
    return ParallelShape(**fields)


# Few letters, and those that look like frames: texts that run together are met often.
TEXT = st.text(alphabet="ab\0\x01é", max_size=4)
NAMED = st.text(alphabet="ab\0\x01é", min_size=1, max_size=4)
IDENTITIES = st.builds(
    CacheIdentity, tenant=TEXT, model=NAMED, revision=TEXT, dtype=NAMED, layout=NAMED,
    block_size=st.integers(1, 4), parallel=shapes(),
)  # fmt: skip


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["identity"]["model"])
def test_golden_vectors_hold(vector: dict[str, Any]) -> None:
    identity = identity_of(vector["identity"])
    extras = {int(block): bytes.fromhex(data) for block, data in vector.get("extras", {}).items()}
    assert identity.digest.hex() == vector["digest"]
    keys = identity.prefix_keys(
        range(vector["token_range"]), salts=vector.get("salts", ()), extras=extras
    )
    assert keys == vector["keys"]
    assert [identity.key(name) for name in vector["names"]] == vector["named"]


def test_the_page_shows_every_golden_key() -> None:
    page = (ROOT / "docs/identity.md").read_text()
    for vector in VECTORS:
        for text in (vector["digest"], *vector["keys"], *vector["named"]):
            assert text in page


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_another_process_makes_the_same_keys_whatever_its_hash_seed(seed: str) -> None:
    code = """
from mooncake_store import CacheIdentity
print(CacheIdentity(model="m", dtype="bfloat16", layout="l", block_size=4).prefix_keys(range(9)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout == f"{BASE.prefix_keys(range(9))}\n"


@given(IDENTITIES, IDENTITIES)
def test_identities_that_differ_share_no_key(left: CacheIdentity, right: CacheIdentity) -> None:
    keys = [set(each.prefix_keys(range(8))) | {each.key("x")} for each in (left, right)]
    assert (left == right) == (left.digest == right.digest) == (left.prefix == right.prefix)
    assert keys[0] == keys[1] if left == right else not keys[0] & keys[1]


@given(IDENTITIES, st.data())
def test_each_field_alone_makes_another_identity(
    identity: CacheIdentity, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["tenant", "model", "revision", "dtype", "layout"]))
    other = replace(identity, **{name: getattr(identity, name) + data.draw(NAMED)})
    assert other.digest != identity.digest
    assert replace(identity, block_size=identity.block_size + 1).digest != identity.digest


@given(st.lists(NAMED, min_size=5, max_size=5), st.integers(0, 3), st.data())
def test_a_letter_that_moves_to_the_next_field_makes_another_identity(
    texts: list[str], at: int, data: st.DataObject
) -> None:
    names = ("tenant", "model", "revision", "dtype", "layout")
    assume(len(texts[at]) > 1)
    moved = list(texts)
    moved[at], moved[at + 1] = texts[at][:-1], texts[at][-1] + texts[at + 1]
    left = CacheIdentity(**dict(zip(names, texts, strict=True)), block_size=1)
    right = CacheIdentity(**dict(zip(names, moved, strict=True)), block_size=1)
    assert left.digest != right.digest


@given(shapes(), shapes())
def test_parts_of_a_block_share_no_key(left: ParallelShape, right: ParallelShape) -> None:
    ours, others = BASE.with_parallel(left), BASE.with_parallel(right)
    assert (ours.digest == others.digest) == (left == right)


@given(shapes())
def test_ranks_are_all_parts_once(shape: ParallelShape) -> None:
    ranks = shape.ranks()
    assert len(ranks) == len(set(ranks)) == shape.tp_size * shape.pp_size * shape.cp_size
    assert shape in ranks


@given(st.lists(TEXT, max_size=3), st.lists(TEXT, max_size=3))
def test_salts_separate_requests(left: list[str], right: list[str]) -> None:
    keys = [BASE.prefix_keys(range(4), salts=salts) for salts in (left, right)]
    assert (keys[0] == keys[1]) == (left == right)


def test_what_tokens_do_not_tell_changes_its_block_and_those_after_it() -> None:
    plain = BASE.prefix_keys(range(16))
    image = BASE.prefix_keys(range(16), extras={1: b"image"})
    other = BASE.prefix_keys(range(16), extras={1: b"other"})
    empty = BASE.prefix_keys(range(16), extras={1: b""})
    assert len({keys[0] for keys in (plain, image, other, empty)}) == 1
    for block in (1, 2, 3):
        assert len({keys[block] for keys in (plain, image, other, empty)}) == 4


@given(st.binary(min_size=1, max_size=80), st.binary(min_size=1, max_size=80))
def test_names_of_an_engine_stay_apart(left: bytes, right: bytes) -> None:
    assert (BASE.key(left) == BASE.key(right)) == (left == right)
    assert BASE.key(left) not in BASE.prefix_keys(range(4))
    assert re.fullmatch(r"c1-[0-9a-f]{32}-[nh][0-9a-f]{2,128}", BASE.key(left))


@pytest.mark.parametrize(
    "fields",
    [
        {"model": ""}, {"dtype": ""}, {"layout": ""}, {"model": 7}, {"tenant": "\ud800"},
        {"block_size": 0}, {"block_size": 2**32}, {"block_size": True}, {"block_size": "4"},
        {"parallel": None},
    ],
)  # fmt: skip
def test_what_cannot_be_an_identity_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        replace(BASE, **fields)


@pytest.mark.parametrize(
    "fields",
    [{"tp_rank": 1}, {"tp_rank": -1}, {"pp_size": 0}, {"cp_size": 2**32}, {"tp_size": 1.5}],
)
def test_what_cannot_be_a_shape_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        ParallelShape(**fields)


def test_an_engine_names_no_block_with_nothing() -> None:
    with pytest.raises(RequestError):
        BASE.key(b"")
