"""What is not built says so at its import, and the page for users says it too."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import mooncake

PAGE = (Path(__file__).parents[2] / "docs" / "migrating-from-mooncake.md").read_text()
_, _, SECTION = PAGE.partition("\n## The other modules\n")
ROWS = re.findall(r"^\| (.*?) \| (.*) \|$", SECTION.partition("\n## ")[0], re.MULTILINE)
MODULES = sorted(
    name
    for modules, told in ROWS
    if told.startswith("not there")
    for name in re.findall(r"`mooncake\.(\w+)`", modules)
)
CLASSES = [
    ("mooncake_store_service", "MooncakeStoreService"),
    ("http_metadata_server", "KVBootstrapServer"),
    ("http_metadata_server", "KVPoll"),
]


def test_the_page_names_every_module_that_is_not_built_and_no_other() -> None:
    folder = Path(mooncake.__path__[0])
    raising = [
        path.stem for path in folder.glob("[!_]*.py") if "\nraise absent(" in path.read_text()
    ]
    assert sorted(raising) == MODULES
    assert len(MODULES) >= 5
    told = next(told for modules, told in ROWS if "`mooncake.http_metadata_server`" in modules)
    assert re.findall(r"`(\w+)`", told) == [name for _, name in CLASSES]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_is_not_built(name: str) -> None:
    wanted = rf"mooncake-store-compat has no mooncake\.{name}: .*migrating-from-mooncake\.md"
    for again in range(2):
        with pytest.raises(ModuleNotFoundError, match=wanted):
            importlib.import_module(f"mooncake.{name}")
        with pytest.raises(ModuleNotFoundError, match=wanted):
            exec(f"from mooncake import {name}")
        with pytest.raises(ModuleNotFoundError, match=wanted):
            exec(f"from mooncake.{name} import Anything{again}")


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_a_class_that_is_not_built(module: str, name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"has no mooncake\.{module}\.{name}: "):
        exec(f"from mooncake.{module} import {name}")
    there = importlib.import_module(f"mooncake.{module}")
    with pytest.raises(ImportError, match=name):
        getattr(there, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = there.nonsense
