"""Frames that lie are refused, in C and in Python."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mooncake_store._native import lib
from mooncake_store.errors import ProtocolError
from mooncake_store.protocol.frames import Frame

FOLDER = Path(__file__).parent
CORPUS = sorted((FOLDER / "corpus").glob("*.frame"))


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_corpus", FOLDER / "make_corpus.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_frame_that_lies_is_refused(path: Path) -> None:
    frame = Frame.decode(path.read_bytes())
    status = frame.status if frame.kind == 1 else 0
    assert not lib.ms_body_valid(frame.kind, frame.method, status, frame.body, len(frame.body))
    with pytest.raises(ProtocolError):
        frame.decode_body()


def test_corpus_is_what_its_maker_makes() -> None:
    module = maker()
    made = {
        f"{name}.frame": frame.encode()
        for name, frame in module.lies(module.golden_frames()).items()
    }
    committed = {path.name: path.read_bytes() for path in CORPUS}
    assert {name: committed.get(name) for name in made} == made
