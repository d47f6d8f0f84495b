from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = ROOT / "native" / "generate_metrics_page.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_the_list_of_metrics(generator: ModuleType) -> None:
    assert generator.PAGE.read_text() == generator.page(), "make metrics-page"


def test_every_metric_has_a_name_of_its_own_and_a_sentence(generator: ModuleType) -> None:
    for rows in (generator.master_rows(), generator.server_rows()):
        names = [name for name, *_ in rows]
        assert len(names) == len(set(names))
        for name, kind, _, meaning in rows:
            assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
            assert (kind == "counter") == name.endswith("_total")
            assert re.fullmatch(r"[A-Z0-9].*\.", meaning), f"{name}: {meaning!r}"
