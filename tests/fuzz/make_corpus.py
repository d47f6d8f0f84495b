"""Makes tests/fuzz/corpus: frames that lie, one lie each; every decoder must refuse them.

The fuzzer begins with them and with the golden frames. An input that broke a decoder once belongs
here, as a frame, for ever. Run it with the package installed:

    python tests/fuzz/make_corpus.py
"""

from __future__ import annotations

import json
from pathlib import Path

from mooncake_store.protocol.frames import Frame
from mooncake_store.protocol.methods import Kind, Method

FOLDER = Path(__file__).with_name("corpus")
GOLDEN = Path(__file__).parents[1] / "golden" / "frames.json"


def patched(body: bytes, at: int, value: int, width: int = 4) -> bytes:
    return body[:at] + value.to_bytes(width, "little") + body[at + width :]


def lies(golden: dict[str, Frame]) -> dict[str, Frame]:
    """Return the hostile frames by file name."""

    def lie(name: str, at: int, value: int, width: int = 4) -> Frame:
        frame = golden[name]
        return Frame(
            method=frame.method,
            kind=frame.kind,
            status=frame.status,
            body=patched(frame.body, at, value, width),
        )

    largest, wrap = 2**32 - 1, 2**64 - 1
    return {
        "lookup-of-2-to-the-32-keys": lie("lookup", 0, largest),
        "lookup-one-key-too-many": lie("lookup", 0, 5),
        "hello-tenant-longer-than-the-body": lie("hello from a client to a master", 48, 64),
        "hello-tenant-of-2-to-the-32-bytes": lie("hello from a client to a master", 48, largest),
        "hello-server-of-2-to-the-32-segments": lie("hello from a store server", 116, largest),
        "read-range-wraps-round": lie("read", 16, wrap, 8),
        "read-of-more-than-a-value": lie("read", 24, (16 << 30) + 1, 8),
        "write-seal-longer-than-the-body": lie("write with a seal", 8 + 56 + 48, 4096),
        "write-seal-shorter-than-a-seal": lie("write with a seal", 8 + 56 + 48, 8),
        "write-seal-key-longer-than-the-seal": lie("write with a seal", 8 + 168 + 72, 1024, 2),
        "write-pages-wrap-round": lie("write with a seal", 8 + 8, largest),
        "location-of-17-replicas": lie("change_replica answered", 4, 17),
        "location-extent-wraps-round": lie("change_replica answered", 40 + 16, largest),
        "location-extent-without-pages": lie("change_replica answered", 40 + 16 + 4, 0),
        "location-larger-than-its-pages": lie("change_replica answered", 16, 1 << 20, 8),
        "location-miss-with-replicas": lie("change_replica answered", 0, 2),
        "put-key-longer-than-the-body": lie("put_start", 24 + 56, 1024, 2),
        "put-of-65537-items": lie("put_start", 16, 65_537),
        "list-pattern-longer-than-the-body": lie("list", 16, 4096),
        "inventory-part-2-of-2": lie("inventory", 8 + 84, 2, 2),
        "inventory-of-no-state": lie("inventory", 8 + 93, 0, 1),
        "free-of-no-pages": lie("free", 8 + 8 + 24, 0),
        "members-of-2-to-the-32-servers": lie("members answered", 4, largest),
        "copy-of-two-sources": lie("copy", 16 + 4, 2),
        "copy-seal-of-another-size": lie("copy", len(golden["copy"].body) - 128 + 16, 1, 8),
        "explain-of-more-fates-than-allowed": lie("explain answered", 56, 17),
        "explain-of-a-fate-that-is-missing": lie("explain answered", 56, 3),
        "explain-name-longer-than-the-body": lie("explain answered", 64, 200),
        "explain-stored-without-a-stat": lie("explain answered, nothing known", 44, 1),
        "events-key-longer-than-the-body": lie("events answered", 16 + 32, 1024),
        "pin-of-2-to-the-32-keys": lie("pin", 8, largest),
        "view-open-of-2-to-the-32-extents": lie("view_open", 0, largest),
        "view-close-answered-with-more-statuses-than-sent": lie("view_close answered", 0, 2),
        "status-that-nobody-knows": Frame(
            method=Method.PIN,
            kind=Kind.ANSWER,
            body=(1).to_bytes(8, "little") + (1000).to_bytes(4, "little"),
        ),
    }


def golden_frames() -> dict[str, Frame]:
    vectors = json.loads(GOLDEN.read_text())["frames"]
    return {vector["name"]: Frame.decode(bytes.fromhex(vector["hex"])) for vector in vectors}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, frame in lies(golden_frames()).items():
        (FOLDER / f"{name}.frame").write_bytes(frame.encode())
