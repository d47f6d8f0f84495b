"""What the vLLM connector plans, its settings, and a model's fingerprint: no engine, no store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store import CacheIdentity
from mooncake_store.errors import ConfigError
from mooncake_store.integrations.model_revision import folder_fingerprint
from mooncake_store.integrations.vllm.plan import NO_BLOCK, BlockNames, Request, mm_extras
from mooncake_store.integrations.vllm.settings import VllmSettings

BASE = CacheIdentity(model="m", dtype="bfloat16", layout="l", block_size=4)


def test_images_name_every_block_that_they_lie_in() -> None:
    extras = mm_extras([("image", 3, 6), ("other", 9, 1), ("none", 2, 0)], 4)
    assert sorted(extras) == [0, 1, 2]
    assert extras != mm_extras([("image", 2, 7), ("other", 9, 1)], 4)
    assert extras != mm_extras([("other", 3, 6), ("image", 9, 1)], 4)


@given(
    st.lists(st.tuples(st.text("ab:1", max_size=3), st.integers(0, 9), st.integers(1, 5))),
    st.lists(st.tuples(st.text("ab:1", max_size=3), st.integers(0, 9), st.integers(1, 5))),
)
def test_other_images_name_other_blocks(left: Any, right: Any) -> None:
    assert (mm_extras(left, 100) == mm_extras(right, 100)) == (left == right)


def test_names_are_those_of_the_prompts_common_prefix() -> None:
    names = BlockNames(BASE)
    one, other = names.of(range(12), [], []), names.of([*range(8), 9, 9, 9, 9, 9], [], [])
    assert (len(one), len(other)) == (3, 3)
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert not set(one) & set(names.of(range(12), ["adapter", ""], []))
    assert not set(one) & set(names.of(range(12), [], [("image", 0, 2)]))
    assert all(len(name) == 32 for name in one)


def test_a_request_is_loaded_once_and_saved_from_what_was_loaded_on() -> None:
    request = Request([b"0", b"1", b"2", b"3"])
    request.restart([[10, 11]], 2)
    request.load = (0, 2)
    load = request.take_load("r")
    assert load is not None
    assert (load.names, load.block_ids) == ([b"0", b"1"], [[10, 11]])
    assert request.take_load("r") is None
    assert request.take_save("r", 2) is None
    request.extend([[12, 13, 14]])
    save = request.take_save("r", 3)
    assert save is not None
    assert (save.names, save.block_ids) == ([b"2"], [[12]])
    save = request.take_save("r", 9)  # what is generated has no name
    assert save is not None
    assert (save.names, save.block_ids) == ([b"3"], [[13]])
    assert request.take_save("r", 9) is None


def test_groups_of_layers_have_blocks_of_their_own() -> None:
    request = Request([b"0", b"1", b"2"])
    request.restart([[1, 2], [NO_BLOCK, 4]], 0)
    request.load = (0, 2)
    load = request.take_load("r")
    assert load is not None
    assert load.block_ids == [[1, 2], [NO_BLOCK, 4]]
    request.extend([[5], []])  # what not every group has is not whole yet
    request.stored = 2
    assert request.take_save("r", 3) is None
    request.extend([[], [6]])
    save = request.take_save("r", 3)
    assert save is not None
    assert (save.names, save.block_ids) == ([b"2"], [[5], [6]])


def test_a_preempted_request_begins_again_elsewhere() -> None:
    request = Request([b"0", b"1", b"2"])
    request.restart([[1, 2, 3]], 0)
    request.take_save("r", 2)
    request.restart([[7, 8, 9]], 1)
    save = request.take_save("r", 3)
    assert save is not None
    assert (save.names, save.block_ids) == ([b"1", b"2"], [[8, 9]])


def test_settings_are_read_and_wrong_ones_are_named() -> None:
    settings = VllmSettings.read({"master": "h:1", "layer_slices": 4, "load_timeout_s": 3})
    assert (settings.master, settings.layer_slices, settings.load_timeout_s) == ("h:1", 4, 3.0)
    for wrong, message in [
        ({"layer_slice": 4}, "did you mean layer_slices"), ({"zzz": 1}, "there are master"),
        ({"layer_slices": 0}, "above 0"), ({"layer_slices": "4"}, "is a int"),
        ({"replicas": True}, "is a int"), ({"master": 7}, "is a str"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            VllmSettings.read(wrong)


def test_a_folders_fingerprint_is_that_of_its_files_and_of_no_place(tmp_path: Path) -> None:
    big = bytes(9 << 20)
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(big)
        (folder / ".cache").write_text(name)
    same = folder_fingerprint(tmp_path / "a")
    assert same == folder_fingerprint(str(tmp_path / "b"))
    for path, data in [
        ("config.json", b"{ }"), ("model.safetensors", big[:-1] + b"x"),
        ("model.safetensors", big + b"\0"), ("more.json", b""),
    ]:  # fmt: skip
        old = (tmp_path / "b" / path).read_bytes() if (tmp_path / "b" / path).exists() else None
        (tmp_path / "b" / path).write_bytes(data)
        assert folder_fingerprint(tmp_path / "b") != same, path
        (tmp_path / "b" / path).unlink()
        if old is not None:
            (tmp_path / "b" / path).write_bytes(old)
