"""What deploy/ says is what the command takes, and what systemd reads."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from mooncake_store.cli.app import cli
from mooncake_store.cli.configuration import components
from mooncake_store.cli.contexts import TABLES
from mooncake_store.config import load, read_file, settings_of

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
SETTING = re.compile(r"MOONCAKE_STORE_[A-Z_]+")


def lines_of(unit: Path, name: str) -> list[str]:
    found = [line for line in unit.read_text().splitlines() if line.startswith(f"{name}=")]
    return [line.partition("=")[2] for line in found]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_every_flag_in_a_unit_exists(unit: Path) -> None:
    (start,) = lines_of(unit, "ExecStart")
    program, name, *arguments = shlex.split(start)
    assert program.endswith("/mooncake-store")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    known = {flag for parameter in command.params for flag in parameter.opts}
    flags = [each for each in arguments if each.startswith("--")]
    assert flags and set(flags) <= known


def test_every_setting_that_a_unit_names_exists() -> None:
    known = {
        item.environment
        for name, config_class in components().items()
        for item in settings_of(config_class, name)
    }
    named = {found for unit in UNITS for found in SETTING.findall(unit.read_text())}
    assert named and named <= known


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_reads_the_units(unit: Path, tmp_path: Path) -> None:
    # It wants the program to be there, whichever it is.
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE)
    name = unit.name.replace("@.", "@a.")
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    about_it = [line for line in done.stderr.splitlines() if "mooncake" in line]
    assert not about_it, done.stderr


def test_the_sample_configuration_can_be_used() -> None:
    path = DEPLOY / "config/config.toml"
    document = read_file(path, TABLES)
    for component, config_class in components().items():
        assert component in document
        values = load(config_class, component, document=document, environment={}).values
        if hasattr(values, "check"):
            values.check()
