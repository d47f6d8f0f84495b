"""The file is read as it was written, or not at all."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from mooncake_store.conductor.service.index_file import IndexFile, Kept
from mooncake_store.errors import ConfigError

_KEYS = random.Random(1).randbytes(160)
KEPT = Kept(0xC1, 7, 1234, [("a", _KEYS), ("b/é", b""), ("c", b"\0" * 16)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index"


def written(path: Path, kept: Kept = KEPT) -> IndexFile:
    file = IndexFile(path, "the store")
    assert file.write(kept) == path.stat().st_size
    return file


def test_what_was_written_is_read_and_private(path: Path) -> None:
    old = os.umask(0)
    try:
        file = written(path)
    finally:
        os.umask(old)
    assert file.read() == (KEPT, "")
    assert path.stat().st_mode & 0o777 == 0o600
    file.write(Kept(0xC1, 8, 1, []))
    assert file.read() == (Kept(0xC1, 8, 1, []), "")
    assert [one.name for one in path.parent.iterdir()] == ["index"]


def test_a_file_that_is_torn_anywhere_is_dropped(path: Path) -> None:
    file = written(path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        found, reason = file.read()
        assert found is None and reason, length
    path.write_bytes(data + b"x")
    assert file.read()[0] is None


def test_a_flipped_bit_is_noticed_wherever_it_is(path: Path) -> None:
    file = written(path)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        assert file.read()[0] is None, place


@pytest.mark.parametrize("header", [b"{}", b"[]", b"{", b'{"about": "the store", "servers": [[1]]}',
                                    b'{"about": "the store", "servers": [["a", 5]], "epoch": 1, '
                                    b'"sequence": 2, "cluster": "c1"}',
                                    b'{"about": "the store", "servers": [], "epoch": 1, '
                                    b'"sequence": 2}'])  # fmt: skip
def test_a_header_of_somebody_else_is_dropped(path: Path, header: bytes) -> None:
    body = b"MSCIDX02" + len(header).to_bytes(4, "little") + header
    path.write_bytes(body + hashlib.blake2b(body, digest_size=32).digest())
    path.chmod(0o600)
    assert IndexFile(path, "the store").read()[0] is None


def test_a_file_of_another_store_or_other_keys_is_dropped(path: Path) -> None:
    written(path)
    found, reason = IndexFile(path, "another store").read()
    assert found is None and "the store" in reason


def test_what_others_may_write_and_what_is_no_file_is_dropped(path: Path) -> None:
    file = written(path)
    path.chmod(0o620)
    assert file.read() == (None, "others may have written it")
    path.chmod(0o600)
    path.rename(path.with_name("target"))
    path.symlink_to("target")
    assert file.read()[0] is None
    path.unlink()
    os.mkfifo(path)  # does not hold it up either
    assert file.read()[0] is None
    path.unlink()
    assert file.read() == (None, "there is none yet")


def test_a_write_that_fails_leaves_the_file_before(path: Path) -> None:
    file = written(path)
    with pytest.raises(TypeError):
        file.write(Kept(0xC1, 9, 9, [("a", "no bytes")]))  # type: ignore[list-item]
    assert file.read() == (KEPT, "")
    assert [one.name for one in path.parent.iterdir()] == ["index"]


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder"):
        IndexFile(tmp_path / "not" / "there", "")
