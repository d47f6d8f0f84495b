"""The verbs about objects, against a running store."""

from __future__ import annotations

import base64
import json
import os
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(120)

HOSTILE = "evil/\x1b[31mred\x1b]0;title\x07\nnew line\r\x9b\u202e"


@pytest.fixture
def prefix() -> str:
    """Of this test's own keys: the store is shared."""
    return f"t-{uuid.uuid4().hex[:8]}/"


def test_what_is_put_is_got(
    mooncake: Callable[..., Any], prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = os.urandom(300_000)
    (tmp_path / "value").write_bytes(value)
    key = f"{prefix}value"
    stored = mooncake("put", key, str(tmp_path / "value"), "--json")
    assert (stored.code, stored.err) == (
        0,
        f"stored {key}: 293 KiB in " + stored.err.split(" in ")[1],
    )
    document = stored.json("put")
    assert (document["key"], document["stored"], document["size_bytes"]) == (key, True, len(value))
    assert mooncake("cat", key).out == value
    line = mooncake("cat", key, "--json").json("cat")
    assert base64.b64decode(line["base64"]) == value
    monkeypatch.chdir(tmp_path / "..")
    got = mooncake("get", key, str(tmp_path / "copy"), "--json")
    assert got.code == 0
    assert got.json("get")["size_bytes"] == len(value)
    assert (tmp_path / "copy").read_bytes() == value


def test_standard_input_texts_and_empty_values_are_put(
    mooncake: Callable[..., Any], prefix: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    assert mooncake("put", f"{prefix}a", "-", stdin=b"\x00from a pipe\n").code == 0
    assert mooncake("put", f"{prefix}b", "--text", "a text").code == 0
    assert mooncake("put", f"{prefix}c", str(tmp_path / "empty")).code == 0
    everything = mooncake("cat", f"{prefix}a", f"{prefix}b", f"{prefix}c")
    assert (everything.code, everything.out) == (0, b"\x00from a pipe\na text")
    both = mooncake("put", f"{prefix}d", "-", "--text", "x")
    assert both.code == 2
    assert mooncake("put", f"{prefix}d").code == 2
    assert mooncake("put", f"{prefix}d", str(tmp_path / "none")).code == 2


def test_a_key_that_is_there_is_left_alone_unless_replaced(
    mooncake: Callable[..., Any], prefix: str
) -> None:
    key = f"{prefix}k"
    assert mooncake("put", key, "--text", "one").code == 0
    again = mooncake("put", key, "--text", "two", "--json")
    assert (again.code, again.json("put")["stored"]) == (5, False)
    assert "--replace" in again.err
    assert mooncake("cat", key).out == b"one"
    assert mooncake("put", key, "--text", "three", "--replace").code == 0
    assert mooncake("cat", key).out == b"three"


def test_a_miss_has_exit_code_4_and_some_misses_6(
    mooncake: Callable[..., Any], prefix: str, tmp_path: Path
) -> None:
    assert mooncake("put", f"{prefix}here", "--text", "x").code == 0
    missing = f"{prefix}missing"
    for command in (
        ["cat", missing], ["get", missing, str(tmp_path / "none")], ["stat", missing],
        ["rm", missing], ["pin", missing], ["replicate", missing, "2"],
    ):  # fmt: skip
        miss = mooncake(*command)
        assert miss.code == 4, (command, miss.err)
        assert "[MS-1001]" in miss.err and missing in miss.err
        assert mooncake(*command, "--json").error()["key"] == missing
    assert not (tmp_path / "none").exists()
    some = mooncake("cat", f"{prefix}here", missing)
    assert (some.code, some.out) == (6, b"x")
    assert mooncake("pin", f"{prefix}here", missing).code == 6
    assert mooncake("pin", f"{prefix}here", "--off").code == 0
    assert mooncake("rm", f"{prefix}here", missing).code == 6


def test_stat_tells_what_the_master_knows(mooncake: Callable[..., Any], prefix: str) -> None:
    key = f"{prefix}s"
    assert mooncake("put", key, "--text", "12345", "--ttl", "1h", "--soft-pin").code == 0
    document = mooncake("stat", key, "--json").json("stat")
    assert document["size_bytes"] == 5
    assert document["soft_pinned"] is True and document["hard_pinned"] is False
    assert 3500 < document["ttl_seconds"] <= 3600
    assert len(document["replicas"]) == 1
    text = mooncake("stat", key).text
    assert "5 B (5 bytes)" in text and "soft pin" in text


def test_a_hard_pin_refuses_removal_until_it_is_off(
    mooncake: Callable[..., Any], prefix: str
) -> None:
    key = f"{prefix}p"
    assert mooncake("put", key, "--text", "x", "--hard-pin").code == 0
    refused = mooncake("rm", key)
    assert refused.code == 5 and "[MS-1005]" in refused.err
    assert mooncake("pin", key, "--off", "--json").json("pin") == {
        "changed": 1, "hard_pinned": False,
    }  # fmt: skip
    assert mooncake("rm", key, "--json").json("rm") == {"removed": 1}
    assert mooncake("put", key, "--text", "x").code == 0
    assert mooncake("pin", key, "--json").json("pin")["hard_pinned"] is True
    assert mooncake("rm", key, "--force").code == 0


def test_lists_are_streams(mooncake: Callable[..., Any], prefix: str) -> None:
    keys = {f"{prefix}{number:03}" for number in range(20)}
    for key in keys:
        assert mooncake("put", key, "--text", "abc", "-q").code == 0
    assert set(mooncake("ls", prefix).text.splitlines()) == keys
    documents = mooncake("ls", prefix, "--json").lines("ls")
    assert {document["key"] for document in documents} == keys
    assert {document["size_bytes"] for document in documents} == {3}
    assert len(mooncake("ls", prefix, "--limit", "7").text.splitlines()) == 7
    found = mooncake("ls", "--regex", f"^{prefix}00[12]$").text.splitlines()
    assert sorted(found) == [f"{prefix}001", f"{prefix}002"]
    assert mooncake("ls", prefix, "-l").text.splitlines()[0].startswith("3\t1\t-\tt-")
    assert mooncake("ls", f"{prefix}none").out == b""


def test_many_are_removed_only_when_confirmed(mooncake: Callable[..., Any], prefix: str) -> None:
    for number in range(5):
        assert mooncake("put", f"{prefix}{number}", "--text", "x", "-q").code == 0
    unconfirmed = mooncake("rm", "--prefix", prefix)
    assert unconfirmed.code == 2 and "--yes" in unconfirmed.err
    assert len(mooncake("ls", prefix).text.splitlines()) == 5
    assert mooncake("rm", "--regex", f"^{prefix}[01]$", "--yes", "--json").json("rm") == {
        "removed": 2
    }
    assert mooncake("rm", "--prefix", prefix, "--yes", "--json").json("rm") == {"removed": 3}
    assert mooncake("rm").code == 2
    assert mooncake("rm", "a", "--prefix", "b").code == 2


def test_replicas_are_made_and_missing_ones_are_told(
    mooncake: Callable[..., Any], prefix: str
) -> None:
    key = f"{prefix}r"
    two = mooncake("put", key, "--text", "x", "--replicas", "2", "--json")
    assert (two.code, two.json("put")["replicas"]) == (0, 2)
    three = mooncake("put", f"{key}3", "--text", "x", "--replicas", "3", "--json")
    assert (three.code, three.json("put")["replicas"]) == (6, 2)
    assert "2 of 3 replicas" in three.err
    fewer = mooncake("replicate", key, "1", "--json")
    assert (fewer.code, fewer.json("replicate")) == (0, {"key": key, "replicas": 1, "task": None})
    (replica,) = mooncake("stat", key, "--json").json("stat")["replicas"]
    more = mooncake("replicate", key, "2")
    assert more.code == 0, more.err
    nodes = {r["node"] for r in mooncake("stat", key, "--json").json("stat")["replicas"]}
    assert "node-b" in nodes and replica["node"] in nodes and len(nodes) == 2
    unknown = mooncake("replicate", key, "2", "--to", "node-z")
    assert unknown.code == 2 and "node-b" in unknown.err


def test_hostile_keys_are_stored_and_shown_harmlessly(
    mooncake: Callable[..., Any], prefix: str, tmp_path: Path
) -> None:
    key = f"{prefix}{HOSTILE}"
    for arguments in (
        ["put", key, "--text", "x"], ["put", key, "--text", "x"], ["stat", key], ["ls", prefix],
        ["ls", prefix, "-l"], ["pin", key], ["rm", key], ["pin", key, "--off"],
        ["replicate", key, "1"], ["get", key, str(tmp_path / "f")], ["get", key],
        ["ls", "--json", prefix], ["stat", "--json", key], ["rm", key], ["cat", key],
        ["rm", "--prefix", key],
    ):  # fmt: skip
        result = mooncake(*arguments)
        for line in (result.text + result.err).splitlines():
            assert line.replace("\t", "").isprintable(), (arguments, line)
            assert "\x1b" not in line
    assert mooncake("ls", prefix).out == b""


def test_a_value_larger_than_the_pool_is_refused(
    mooncake: Callable[..., Any], prefix: str, tmp_path: Path
) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(200 << 20)
    refused = mooncake("put", f"{prefix}large", str(tmp_path / "large"), "--json")
    assert refused.code == 5
    assert refused.error()["code"] == "MS-1404"


def test_get_spares_files_that_are_there(
    mooncake: Callable[..., Any], prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{prefix}name"
    assert mooncake("put", key, "--text", "new").code == 0
    target = tmp_path / "target"
    target.write_text("old")
    spared = mooncake("get", key, str(target))
    assert spared.code == 2 and "--force" in spared.err
    assert target.read_text() == "old"
    assert mooncake("get", key, str(target), "--force").code == 0
    assert target.read_text() == "new"
    mask = os.umask(0o022)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask
    monkeypatch.chdir(tmp_path)
    assert mooncake("get", key).code == 0  # the last part of the key
    assert (tmp_path / "name").read_text() == "new"
    for bad in (str(tmp_path), str(tmp_path / "no" / "folder")):
        assert mooncake("get", key, bad).code == 2
    assert sorted(os.listdir(tmp_path)) == ["name", "target"]  # no draft is left
    monkeypatch.undo()


def test_quiet_leaves_the_result_alone(mooncake: Callable[..., Any], prefix: str) -> None:
    assert mooncake("put", f"{prefix}q", "--text", "x", "--quiet").err == ""
    assert json.loads(mooncake("put", f"{prefix}q2", "--text", "x", "-q", "--json").out)["stored"]
