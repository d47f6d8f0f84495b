"""Which master a command talks to."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from mooncake_store.cli.contexts import (
    read_document,
    remove_local,
    resolve,
    write_local,
)
from mooncake_store.errors import ConfigError

DOCUMENT = {"context": {"lab": {"master": "10.0.0.1:7700"}, "broken": {"address": "x"}}}


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder of this test's own, where no `up` runs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("MOONCAKE_STORE_MASTER", "MOONCAKE_STORE_CONTEXT", "MOONCAKE_STORE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "mooncake-store"


def test_flag_beats_context_beats_environment_beats_up_beats_default() -> None:
    environment = {"MOONCAKE_STORE_MASTER": "env:1", "MOONCAKE_STORE_CONTEXT": "lab"}
    write_local("up:1", os.getpid())
    assert resolve("flag:1", "lab", DOCUMENT, environment).master == "flag:1"
    assert resolve(None, "lab", DOCUMENT, environment).master == "10.0.0.1:7700"
    assert resolve(None, None, DOCUMENT, environment).master == "10.0.0.1:7700"
    del environment["MOONCAKE_STORE_CONTEXT"]
    assert resolve(None, None, DOCUMENT, environment).master == "env:1"
    assert resolve(None, None, DOCUMENT, {}).master == "up:1"
    assert resolve(None, "local", DOCUMENT, environment).master == "up:1"
    remove_local(os.getpid())
    assert resolve(None, None, DOCUMENT, {}).master == "127.0.0.1:7700"


def test_the_origin_says_which_it_was() -> None:
    assert resolve("a:1", None, {}, {}).origin == "flag --master"
    assert resolve(None, "lab", DOCUMENT, {}).origin == "context lab"
    assert "MOONCAKE_STORE_MASTER" in resolve(None, None, {}, {"MOONCAKE_STORE_MASTER": "a"}).origin
    assert resolve(None, None, {}, {}).origin == "default"


@pytest.mark.parametrize("name", ["lba", "broken"])
def test_an_unknown_context_names_those_that_are_known(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(None, name, DOCUMENT, {})
    assert "lab" in caught.value.message
    assert "[context." in caught.value.hint


def test_the_context_local_needs_a_running_up() -> None:
    with pytest.raises(ConfigError, match="no `mooncake-store up` runs here"):
        resolve(None, "local", {}, {})


def test_the_context_of_a_dead_up_does_not_count(runtime: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    write_local("gone:1", child)
    assert resolve(None, None, {}, {}).origin == "default"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"master": "x"}', '{"pid": "x", "master": "y"}'])
def test_a_damaged_context_does_not_count(text: str, runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    (runtime / "context-local.json").write_text(text)
    assert resolve(None, None, {}, {}).origin == "default"


def test_an_up_removes_only_its_own_context(runtime: Path) -> None:
    write_local("first:1", os.getpid())
    write_local("second:1", os.getppid())
    remove_local(os.getpid())
    assert json.loads((runtime / "context-local.json").read_text())["master"] == "second:1"
    remove_local(os.getppid())
    assert list(runtime.iterdir()) == []


def test_the_runtime_folder_is_private(runtime: Path) -> None:
    write_local("a:1", os.getpid())
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700


def test_contexts_stand_in_the_user_s_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[context.lab]\nmaster = "h:1"\n')
    monkeypatch.setenv("MOONCAKE_STORE_CONFIG", str(file))
    document, path = read_document(None)
    assert path == str(file)
    assert resolve(None, "lab", document, {}).master == "h:1"


def test_a_file_that_is_named_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_document(None)[0] == {}  # the default one need not
    with pytest.raises(ConfigError, match="does not exist"):
        read_document(str(tmp_path / "none.toml"))
