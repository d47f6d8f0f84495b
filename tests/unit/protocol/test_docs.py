"""docs/protocol.md says what the code says."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from mooncake_store.errors import Status
from mooncake_store.protocol import frames as wire
from mooncake_store.protocol.codec import Layout
from mooncake_store.protocol.frames import ANSWERS
from mooncake_store.protocol.methods import Method

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "protocol.md").read_text()


def layouts() -> dict[str, Layout]:
    found = [getattr(value, "LAYOUT", None) for value in vars(wire).values()]
    found += [wire.metadata._BATCH]
    return {layout.c_name: layout for layout in found if isinstance(layout, Layout)}


def test_every_struct_has_a_table_with_its_offsets() -> None:
    tables = {}
    for name, size, rows in re.findall(
        r"\*\*(ms_\w+)\*\*, (\d+) bytes\n\n\|.*\n\|.*\n((?:\|.*\n)+)", TEXT
    ):
        fields = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", rows, re.MULTILINE)
        tables[name] = (int(size), [(int(at), int(length), field) for at, length, field in fields])
    wanted = {}
    for name, layout in layouts().items():
        if name:
            at, fields = 0, []
            for field, code in layout.fields:
                fields.append((at, struct.calcsize("<" + code), field))
                at += struct.calcsize("<" + code)
            wanted[name] = (layout.size, fields)
    assert tables == wanted


def test_methods_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| 0x(\w\w) \| (\w+) \| (.*?) \| (.*?) \|$", TEXT, re.MULTILINE)
    assert {name: int(number, 16) for number, name, _, _ in rows} == {
        method.name: method.value for method in Method
    }
    for _, name, _, kind in rows:
        has_answer = Method[name] in ANSWERS
        assert ("request" in kind) == has_answer, name
        assert len(re.findall(rf"\*\*{name}\b", TEXT)) >= (name != "HELLO"), f"{name} is not told"


def test_statuses_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", TEXT, re.MULTILINE)
    assert {name: int(number) for number, name in rows} == {
        status.name: status.value for status in Status
    }


def test_limits_are_those_of_the_code() -> None:
    section = TEXT.split("\n## Limits\n")[1].split("\n## ")[0]
    for text in (
        f"| body before HELLO is answered | {wire.BODY_BYTES_MAX_HELLO >> 10} KiB",
        f"| body and trailer after that | {wire.BODY_BYTES_MAX >> 20} MiB",
        f"| payload of a frame; an object | {wire.VALUE_BYTES_MAX >> 30} GiB",
        f"| items of a batch | {wire.BATCH_ITEMS_MAX:,} |",
        f"| replicas of an object | {wire.REPLICAS_MAX} |",
        f"| extents of a replica | {wire.EXTENTS_MAX} |",
        f"| views of a VIEW_OPEN or VIEW_CLOSE | {wire.VIEWS_MAX:,} |",
        f"| key | {wire.KEY_BYTES_MAX} bytes |",
        f"| tenant | {wire.TENANT_BYTES_MAX} bytes |",
        f"| token | {wire.TOKEN_BYTES_MAX} bytes |",
        f"callers, locations of memory | {wire.NAME_BYTES_MAX} bytes |",
        f"| path of a Unix socket | {wire.SOCKET_PATH_BYTES_MAX} bytes |",
        f"| addresses of a server | {wire.ADDRESSES_BYTES_MAX} bytes |",
        f"| pattern of LIST | {wire.PATTERN_BYTES_MAX} bytes |",
        f"| NOTIFY's message, topology | {wire.NOTIFY_BYTES_MAX >> 20} MiB each |",
        f"| sentence of NO_SPACE | {wire.SENTENCE_BYTES_MAX} bytes |",
    ):
        assert text in section, text
    assert wire.NOTIFY_BYTES_MAX == wire.TOPOLOGY_BYTES_MAX


def test_every_rule_that_code_quotes_is_told() -> None:
    """C sources name rules in comments, between asterisks; the table must have them."""
    known = set(re.findall(r"\*([a-z]+(?:_[a-z]+)+)\*", TEXT)) | {"drain", "fence", "seal"}
    for room in ("master", "store", "client", "transfer_engine", "mooncake_store/protocol"):
        for path in (ROOT / room).glob("**/*.[ch]"):
            for name in re.findall(r"(?<!\*)\*([a-z]+(?:_[a-z]+)+)\*(?!\*)", path.read_text()):
                assert name in known, f"{path.relative_to(ROOT)} quotes the rule {name}"
