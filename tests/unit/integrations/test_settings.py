"""Settings that engines hand over, and what a model is called in keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from mooncake_store.errors import ConfigError
from mooncake_store.integrations.model_revision import name_and_revision
from mooncake_store.integrations.settings import read_settings


@dataclass(frozen=True)
class Settings:
    master: str = ""
    timeout_s: float = 1.0
    replicas: int = 1
    is_eager: bool = False


def test_settings_are_taken_by_name() -> None:
    given = {"master": "m:1", "timeout_s": 2, "is_eager": True}
    assert read_settings(Settings, given, "extra") == Settings("m:1", 2.0, 1, True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mastr": "x"}, "extra has no 'mastr'; did you mean master"),
        ({"zzzz": 1}, "extra has no 'zzzz'; there are master, timeout_s, replicas, is_eager"),
        ({"replicas": "2"}, "replicas is a int, not '2'"),
        ({"replicas": True}, "replicas is a int, not True"),
        ({"timeout_s": 0}, "timeout_s is above 0, not 0"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(Settings, given, "extra")


def test_a_model_is_known_by_its_name_or_by_what_is_in_its_folder(tmp_path: Path) -> None:
    assert name_and_revision("org/llama", fallback="main") == ("org/llama", "main")
    assert name_and_revision("org/llama", model="mine", revision="3") == ("mine", "3")
    names = []
    for place in ("here", "there"):
        folder = tmp_path / place
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        names.append(name_and_revision(str(folder)))
    assert names[0] == names[1]  # wherever it lies
    assert names[0][0] == "folder"
    (tmp_path / "there/config.json").write_text("{ }")
    assert name_and_revision(str(tmp_path / "there")) != names[0]
    assert name_and_revision(str(tmp_path / "there"), revision="3") == (
        str(tmp_path / "there"),
        "3",
    )
