"""docs/getting-started.md and README.md do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def shell(home: Any, tmp_path: Path) -> Any:
    """Run a shell command with `mooncake-store` on its path and an `up` beside it."""
    program = tmp_path / "mooncake-store"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mooncake_store.cli.main "$@"\n')
    program.chmod(0o755)
    environment = {**home.environment, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    return run


def commands_of(block: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].strip(), ""))
        else:
            command, output = found.pop()
            found.append((command, output + line))
    return found


def test_the_boxes_of_getting_started_run_in_order(
    home: Any, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = home.start("up", "--port", "0", "--size", "64MiB", "--json")
    try:
        monkeypatch.setenv("MOONCAKE_STORE_MASTER", up.first_document("up")["master"])
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(home.runtime))
        blocks = BLOCK.findall((ROOT / "docs/getting-started.md").read_text())
        assert [kind for kind, _ in blocks] == ["console", "python", "python", "console"]
        for kind, block in blocks:
            if kind == "python":
                exec(compile(block, "getting-started.md", "exec"), {})
                continue
            for command, output in commands_of(block):
                assert shell(command).rstrip("\n") == output.rstrip("\n"), command
    finally:
        up.end()


def test_every_command_that_the_pages_name_exists() -> None:
    from mooncake_store.cli.app import COMMANDS

    named = set()
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        named |= {
            (path.name, word)
            for word in re.findall(
                r"(?:`|\$ |^ {4,})mooncake-store ([a-z][a-z-]*)", path.read_text(), re.MULTILINE
            )
        }
    assert {word for _, word in named} >= {"up", "put", "cat", "status", "doctor"}
    assert {pair for pair in named if pair[1] not in COMMANDS} == set()


def test_every_link_of_the_pages_leads_somewhere() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name}: {target}"
