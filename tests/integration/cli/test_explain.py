"""`explain`, word for word: where an object is, or when and why it went."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(120)

MIB = 1 << 20


@pytest.fixture
def store(home: Any) -> Iterator[tuple[str, Any]]:
    """A master that waits for a lost store server for half a second only, and one such server."""
    processes = [home.start("master", "--json", "--port", "0", "--member-grace", "500ms",
                            "--no-grpc", "--no-http")]  # fmt: skip
    try:
        master = f"127.0.0.1:{processes[0].first_document('master')['port']}"
        processes.append(
            home.start("server", "--json", "--master", master, "--name", "node-a", "--pool-size",
                       "16MiB", "--no-keep", "--no-grpc", "--no-http")
        )  # fmt: skip
        processes[1].first_document("server")
        yield master, processes[1]
    finally:
        for process in reversed(processes):
            process.end()


def plain(text: str) -> str:
    """What is different each time, replaced by letters."""
    text = re.sub(r"\d+\.\d (s|min)\b", "T", text)
    text = re.sub(r"(version +)\d+", r"\1V", text)
    return re.sub(r"\b\d+\+(\d+)", r"P+\1", text)


def test_each_answer_word_for_word(
    store: Any, mooncake: Callable[..., Any], until: Callable[..., None], tmp_path: Path
) -> None:
    master, server = store

    def call(*arguments: str) -> Any:
        result = mooncake(*arguments, "--master", master)
        assert result.code == 0, (arguments, result.err)
        return result

    def explained(key: str) -> str:
        document = call("explain", key, "--json").json("explain")
        assert document["key"] == key
        return plain(call("explain", key).text)

    assert explained("none") == (
        "key       none\n"
        "state     not stored\n"
        "why       never seen since this master leads, for T\n"
    )

    call("put", "here", "--text", "12345", "--soft-pin")
    assert explained("here") == (
        "key       here\n"
        "state     stored\n"
        "size      5 B (5 bytes)\n"
        "version   V\n"
        "replica   node-a (ready), dram segment 0, pages P+1, complete\n"
        "age       T, last used T ago, 0 uses\n"
        "kept by   soft pin\n"
    )

    call("put", "gone", "--text", "x")
    call("rm", "gone")
    assert explained("gone") == (
        "key       gone\n"
        "state     not stored\n"
        "why       T ago: removed by mooncake-store command (1 B, version V, on node-a)\n"
    )

    call("put", "short", "--text", "xy", "--ttl", "50ms")
    until(lambda: "TTL" in explained("short"), "its TTL is over")
    assert explained("short") == (
        "key       short\n"
        "state     not stored\n"
        "why       T ago: its TTL was over (2 B, version V, on node-a)\n"
    )

    for name, size in (("old", 9 * MIB), ("big", 12 * MIB)):
        (tmp_path / name).write_bytes(bytes(size))
        call("put", name, str(tmp_path / name))
    assert explained("old") == (
        "key       old\n"
        "state     not stored\n"
        "why       T ago: evicted (lru): a put of 12 MiB by mooncake-store command needed room "
        "(9 MiB, version V, on node-a)\n"
    )
    (tmp_path / "old").write_bytes(b"again")
    call("put", "old", str(tmp_path / "old"))
    call("put", "old", "--text", "other", "--replace")
    assert explained("old").splitlines()[-2:] == [
        "before    T ago: replaced by a put of 5 B by mooncake-store command "
        "(5 B, version V, on node-a)",
        "before    T ago: evicted (lru): a put of 12 MiB by mooncake-store command needed room "
        "(9 MiB, version V, on node-a)",
    ]

    server.end(9)
    until(lambda: "state     not stored" in explained("here"), "the grace is over")
    assert explained("here") == (
        "key       here\n"
        "state     not stored\n"
        "why       T ago: its last store server was gone for longer than the grace "
        "(5 B, version V, on node-a)\n"
    )


def test_a_miss_says_how_to_ask_why(mooncake: Callable[..., Any]) -> None:
    miss = mooncake("stat", "t-explain/none")
    assert miss.code == 4
    assert "mooncake-store explain KEY" in miss.err
