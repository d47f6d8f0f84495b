"""`config show`, `config check` and `config example`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mooncake_store.cli.app import run
from mooncake_store.cli.configuration import components
from mooncake_store.config import settings_of


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOONCAKE_STORE_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text('[server]\npool_size = "64MiB"\n')
    return tmp_path / "config.toml"


def shown(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> dict[str, dict[str, dict[str, str]]]:
    assert run(["config", "show", "--json", *arguments]) == 0
    document: dict[str, dict[str, dict[str, str]]] = json.loads(capsys.readouterr().out)
    return document


def test_every_setting_is_shown_with_its_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setenv("MOONCAKE_STORE_CLIENT_TIMEOUT", "2s")
    document = shown(capsys)
    assert document["server"]["pool_size"] == {"value": "64MiB", "origin": f"file {file}"}
    assert document["client"]["timeout"]["origin"] == "environment MOONCAKE_STORE_CLIENT_TIMEOUT"
    assert document["master"]["port"] == {"value": "7700", "origin": "default"}
    for component, config_class in components().items():
        assert list(document[component]) == [s.name for s in settings_of(config_class, component)]


def test_one_component_can_be_shown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(shown(capsys, "client")) == ["client"]
    assert run(["config", "show", "clint"]) == 2
    assert "'clint'" in capsys.readouterr().err


def test_origins_are_shown_to_people_who_ask(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "server", "--origin"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("server.pool_size\t64MiB\tfile ") for line in lines)
    assert run(["config", "show", "server"]) == 0
    assert "server.pool_size\t64MiB\n" in capsys.readouterr().out


def test_the_example_can_be_used_as_it_is_and_uncommented(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["config", "example"]) == 0
    example = capsys.readouterr().out
    for text in (example, example.replace("\n#", "\n").replace("\n ", "\n# ")):
        path = tmp_path / "example.toml"
        path.write_text(text)
        assert run(["config", "check", str(path)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[master]\nprot = 1\n", "did you mean 'port'?"),
        ("[mastr]\nport = 1\n", "did you mean 'master'?"),
        ("[master]\nport = 99999\n", "at most"),
        ('[server]\npool_size = "4G"\n', "write 4GiB"),
        ("[server", "is not TOML"),
        ('[master]\naddress = "0.0.0.0"\n', "--insecure"),
        ('[server]\naddress = "0.0.0.0"\n', "--insecure"),
        ('[client]\ntimeout = "5"\n', "has no unit"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    text: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    assert run(["config", "check", str(path)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_flag_that_contradicts_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("master", "server"):
        assert run([command, "--address", "0.0.0.0", "--port", "0"]) == 2
        assert "--insecure" in capsys.readouterr().err
