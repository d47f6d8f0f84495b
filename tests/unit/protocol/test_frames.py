"""Python's messages, the C header and the golden vectors say the same."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_store._native import lib
from mooncake_store.errors import ProtocolError, Status
from mooncake_store.protocol import frames as wire
from mooncake_store.protocol import methods
from mooncake_store.protocol.codec import Layout, Record
from mooncake_store.protocol.frames import ANSWERS, REQUESTS, Frame, Header
from mooncake_store.protocol.methods import Kind, Method, Role

ROOT = Path(__file__).resolve().parents[3]
HEADERS = ROOT / "mooncake_store" / "protocol" / "include"
WIRE_H = (HEADERS / "ms_wire.h").read_text()
FRAME_H = (HEADERS / "ms_frame.h").read_text()
GOLDEN = json.loads((ROOT / "tests" / "golden" / "frames.json").read_text())

C_TYPES = {"uint8_t": "B", "uint16_t": "H", "uint32_t": "I", "uint64_t": "Q", "ms_hash": "16s"}


def structs_of_header() -> dict[str, list[tuple[str, str]]]:
    """Return (field, code) of each struct in ms_wire.h."""
    text = re.sub(r"/\*.*?\*/", "", WIRE_H, flags=re.DOTALL)
    found = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.DOTALL):
        fields = []
        for kind, names in re.findall(r"(\w+) ([^;]+);", body):
            for field in names.replace("\n", " ").split(","):
                array = re.fullmatch(r"\s*(\w+)(?:\[(\d+)\])?\s*", field)
                assert array is not None, field
                fields.append((array[1], f"{array[2]}s" if array[2] else C_TYPES[kind]))
        found[name] = fields
    return found


def layouts() -> list[Layout]:
    classes = [value for value in vars(wire).values() if inspect.isclass(value)]
    found = [
        value.LAYOUT
        for value in classes
        if issubclass(value, Record) and isinstance(getattr(value, "LAYOUT", None), Layout)
    ]
    return [layout for layout in found if layout.c_name]


def test_layouts_are_those_of_the_c_header() -> None:
    structs = structs_of_header()
    del structs["ms_hash"]  # 16 bytes in Python
    for layout in layouts():
        of_c = [
            (name, f"{struct.calcsize(code)}x" if name == "reserved" else code)
            for name, code in structs[layout.c_name]
        ]
        mine = [
            (name, "4x" if (layout.c_name, name) == ("ms_header", "reserved") else code)
            for name, code in layout.fields
        ]
        if layout is wire.Pins.LAYOUT:  # of a match only what pins can have
            of_c = [(name, "4x" if name.startswith("pin") else code) for name, code in of_c]
        assert mine == of_c, layout.c_name
    assert {layout.c_name for layout in layouts()} == set(structs)


@pytest.mark.parametrize(
    ("mine", "prefix", "enum"),
    [
        (methods.Method, "MS_", "ms_method"),
        (methods.Kind, "MS_", "ms_kind"),
        (methods.FrameFlag, "MS_FLAG_", "ms_flag"),
        (methods.Right, "MS_RIGHT_", "ms_right"),
        (methods.Role, "MS_ROLE_", "ms_role"),
        (methods.MemberState, "MS_MEMBER_", "ms_member_state"),
        (methods.ObjectFlag, "MS_OBJECT_", "ms_object_flag"),
        (methods.PutFlag, "MS_PUT_", "ms_put_flag"),
        (methods.AnnotateField, "MS_ANNOTATE_", "ms_annotate_field"),
        (methods.EventKind, "MS_EVENT_", "ms_event_kind"),
        (methods.ExplainFlag, "MS_EXPLAIN_", "ms_explain_flag"),
        (methods.FateKind, "MS_FATE_", "ms_fate_kind"),
        (methods.TaskKind, "MS_TASK_", "ms_task_kind"),
        (methods.TaskState, "MS_TASK_", "ms_task_state"),
    ],
)
def test_enumerations_are_those_of_the_c_header(mine, prefix, enum) -> None:
    text = re.sub(r"/\*.*?\*/", "", WIRE_H, flags=re.DOTALL)
    body = re.search(rf"enum {enum} \{{(.*?)\}}", text, re.DOTALL)
    assert body is not None
    numbers = {}
    for name, value, shift in re.findall(r"(\w+)\s*=\s*(\w+)(?: << (\d+))?", body[1]):
        number = int(value.rstrip("u"), 0) << int(shift or 0)
        numbers[name.removeprefix(prefix)] = number
    if mine is Role:
        numbers["MASTER"] = 0  # a word for "none of these" in an answer
    assert numbers == {entry.name: entry.value for entry in mine}


def test_limits_are_those_of_the_c_header() -> None:
    seen = set()
    for name, text in re.findall(r"#define MS_(\w+) ([^/\n]+)", WIRE_H + FRAME_H):
        if not hasattr(wire, name):
            continue
        seen.add(name)
        assert eval(re.sub(r"(?<=[0-9a-f])u(ll)?\b", "", text)) == getattr(wire, name), name
    mine = {name for name in wire.__all__ if re.search("_MAX|MAGIC|VERSION|_BYTES$|_SIZE", name)}
    assert seen >= mine


def test_every_method_has_bodies_and_golden_frames(golden: ModuleType) -> None:
    assert set(REQUESTS) == set(Method)
    made = golden.frames().values()
    assert {frame.method for frame in made if frame.kind != Kind.ANSWER} == set(Method)
    assert {frame.method for frame in made if frame.kind == Kind.ANSWER} == set(ANSWERS)


def test_golden_file_is_what_python_writes(golden: ModuleType) -> None:
    assert golden.PATH.read_text() == golden.document()


@pytest.mark.parametrize("vector", GOLDEN["frames"], ids=lambda vector: vector["name"])
def test_golden_frames_are_read_as_what_was_written(vector, golden: ModuleType) -> None:
    frame = Frame.decode(bytes.fromhex(vector["hex"]))
    assert frame == golden.frames()[vector["name"]]
    body = frame.decode_body()
    if isinstance(body, str):
        assert body.encode() == frame.body
    else:
        assert body.encode() == frame.body
        if vector["name"] in golden.bodies():
            assert body == golden.bodies()[vector["name"]][3]


def test_results_of_a_read_are_its_trailer(golden: ModuleType) -> None:
    frame = golden.frames()["read answered"]
    results = wire.ReadResults.decode(frame.trailer).results
    assert [result.status for result in results] == [Status.OK, Status.OUT_OF_RANGE]
    assert frame.payload == b"hello"


# ---- properties ----------------------------------------------------------------------------------


def is_valid_in_c(kind: int, method: int, status: int, body: bytes) -> bool:
    return bool(lib.ms_body_valid(kind, method, status, body, len(body)))


def is_valid_in_python(kind: int, method: int, status: int, body: bytes) -> bool:
    try:
        wire.decode_body(kind, method, status, body)
    except ProtocolError:
        return False
    return True


INTEGERS = {"B": 8, "H": 16, "I": 32, "Q": 64}
TEXT_MAX = {"tenant": 64, "socket_path": 107, "key": 1024, "secret": 0}


@st.composite
def records(draw: st.DrawFn, kind: type[Record]) -> Any:
    """Build any value of a message from the types of its fields; then make it hang together."""
    codes = dict(kind.LAYOUT.fields) if isinstance(getattr(kind, "LAYOUT", None), Layout) else {}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        name, code = field.name, codes.get(field.name)
        if code in INTEGERS:
            top = 2 ** INTEGERS[code] - 1
            values[name] = draw(st.integers(0, 40) | st.integers(0, top))
        elif code is not None:
            values[name] = draw(st.binary(min_size=16, max_size=16))
        elif field.type == "bytes":
            values[name] = draw(st.binary(max_size=min(40, TEXT_MAX.get(name, 40))))
        elif name == "hashes":
            values[name] = tuple(draw(st.lists(st.binary(min_size=16, max_size=16), max_size=4)))
        elif name == "statuses":
            values[name] = tuple(draw(st.lists(st.sampled_from(Status), max_size=4)))
        elif nested := re.fullmatch(r"tuple\[(\w+), \.\.\.\]", str(field.type)):
            item = getattr(wire, nested[1])
            values[name] = tuple(draw(st.lists(records(item), min_size=1, max_size=3)))
        elif hasattr(wire, str(field.type)):
            values[name] = draw(records(getattr(wire, str(field.type))))
        elif name == "seal":
            values[name] = draw(st.none() | records(wire.Seal))
        elif name not in ("server", "stat"):
            raise AssertionError(f"{kind.__name__}.{name}: {field.type}")
    return draw(hanging_together(kind, values))


@st.composite
def hanging_together(draw: st.DrawFn, kind: type[Record], values: dict[str, Any]) -> Any:
    if kind is wire.Hello:
        is_server = values["role"] == Role.SERVER
        values["server"] = draw(records(wire.ServerInfo)) if is_server else None
    if kind is wire.ExplainAnswer:
        is_stored = values["flags"] & methods.ExplainFlag.STORED
        values["stat"] = draw(records(wire.StatAnswer)) if is_stored else None
    if {"page", "page_count"} <= set(values):
        values["page"] = draw(st.integers(0, 2**31))
        values["page_count"] = draw(st.integers(1, 2**20))
    if "part_count" in values:
        values["part_count"] = draw(st.integers(1, wire.EXTENTS_MAX))
        values["part"] = draw(st.integers(0, values["part_count"] - 1))
    if kind is wire.InventoryItem:
        values["state"] = draw(st.sampled_from([1, 2]))
    if kind in (wire.Seal, wire.InventoryItem):
        values["size"] = draw(st.integers(0, wire.VALUE_BYTES_MAX))
    if kind is wire.Location:
        values["status"] = Status.OK
        values["size"] = draw(st.integers(0, wire.PAGE_SIZE))
        if not draw(st.booleans()):
            values["status"], values["replicas"] = draw(st.sampled_from(Status)), ()
    if kind in (wire.Region, wire.ReadItem, wire.WriteItem):
        values["length"] = draw(st.integers(0, 2**30))
        for name in {"address", "offset", "source_offset"} & set(values):
            values[name] = draw(st.integers(0, 2**63))
    if kind is wire.ChangeReplica:
        values["replica_count"] = draw(st.integers(0, wire.REPLICAS_MAX))
    if kind is wire.HelloAnswer:
        values["secret"] = draw(st.sampled_from([b"", bytes(range(192))]))
    if kind is wire.Copy:
        source = dataclasses.replace(
            values["source"], status=Status.OK, replicas=(values["target"],)
        )
        values["source"] = source
        values["seal"] = dataclasses.replace(values["seal"], size=source.size)
    return kind(**values)


BODIES = [(Kind.REQUEST, method, kind) for method, kind in REQUESTS.items()]
BODIES += [(Kind.ANSWER, method, kind) for method, kind in ANSWERS.items()]
BODY_IDS = [f"{method.name}-{kind.name}" for kind, method, _ in BODIES]


@pytest.mark.parametrize(("kind", "method", "body_kind"), BODIES, ids=BODY_IDS)
def test_any_body_comes_back_and_c_accepts_it(kind, method, body_kind) -> None:
    @settings(max_examples=12)
    @given(value=records(body_kind))
    def check(value: wire.Empty) -> None:
        data = value.encode()
        assert body_kind.decode(data) == value
        assert is_valid_in_c(kind, method, Status.OK, data)

    check()


@pytest.mark.parametrize(("kind", "method", "body_kind"), BODIES, ids=BODY_IDS)
def test_c_and_python_refuse_the_same_bodies(kind, method, body_kind) -> None:
    """Damage a good body: what C says of it, Python must say too."""

    @settings(max_examples=25)
    @given(value=records(body_kind), data=st.data())
    def check(value: wire.Empty, data: st.DataObject) -> None:
        body = bytearray(value.encode())
        for _ in range(data.draw(st.integers(1, 3))):
            change = data.draw(st.sampled_from(["cut", "append", "byte", "word"]))
            if change == "append" or not body:
                body += data.draw(st.binary(min_size=1, max_size=16))
            elif change == "cut":
                del body[data.draw(st.integers(0, len(body) - 1)) :]
            elif change == "byte":
                at = data.draw(st.integers(0, len(body) - 1))
                body[at] = data.draw(st.integers(0, 255))
            elif len(body) >= 4:
                at = data.draw(st.integers(0, len(body) // 4 - 1)) * 4
                number = data.draw(st.sampled_from([0, 1, 2, 65_537, 2**31, 2**32 - 1]))
                body[at : at + 4] = number.to_bytes(4, "little")
        damaged = bytes(body)
        assert is_valid_in_c(kind, method, Status.OK, damaged) == is_valid_in_python(
            kind, method, Status.OK, damaged
        )

    check()


@given(st.integers(0, 2), st.integers(0, 0x60), st.integers(0, 40), st.binary(max_size=200))
def test_noise_is_judged_alike(kind: int, method: int, status: int, body: bytes) -> None:
    in_c = is_valid_in_c(kind, method, status, body)
    assert in_c == is_valid_in_python(kind, method, status, body)


# ---- frames and headers --------------------------------------------------------------------------


def test_frames_that_are_cut_or_too_long_are_refused(golden: ModuleType) -> None:
    data = golden.frames()["write with a seal"].encode()
    for length in range(len(data)):
        with pytest.raises(ProtocolError):
            Frame.decode(data[:length])
    with pytest.raises(ProtocolError):
        Frame.decode(data + b"\0")


@pytest.mark.parametrize(
    "change",
    [
        {"magic": 0},
        {"version": 2},
        {"kind": 3},
        {"body_length": wire.BODY_BYTES_MAX + 1},
        {"trailer_length": wire.BODY_BYTES_MAX + 1},
        {"payload_length": wire.VALUE_BYTES_MAX + 1},
        {"reserved": 1},
    ],
)
def test_headers_are_refused_as_in_c(change: dict[str, int]) -> None:
    good = Header(method=Method.LOOKUP)
    good.check(1)
    with pytest.raises(ProtocolError):
        dataclasses.replace(good, **change).check(1)


def test_only_a_small_hello_may_come_first() -> None:
    Header(method=Method.HELLO, body_length=wire.BODY_BYTES_MAX_HELLO).check(0)
    for header in (
        Header(method=Method.LOOKUP),
        Header(method=Method.HELLO, kind=Kind.ONEWAY),
        Header(method=Method.HELLO, body_length=wire.BODY_BYTES_MAX_HELLO + 1),
        Header(method=Method.HELLO, payload_length=1),
    ):
        with pytest.raises(ProtocolError):
            header.check(0)


def test_unknown_methods_and_statuses_are_refused() -> None:
    for kind, method, status in ((0, 0x7F, 0), (1, Method.TOUCH, 0), (1, Method.LOOKUP, 1000)):
        with pytest.raises(ProtocolError):
            wire.decode_body(kind, method, status, b"")


def test_values_that_do_not_fit_their_field_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="ms_adopt"):
        wire.Adopt(epoch=-1, server=0).encode()
    with pytest.raises(ValueError, match="16 bytes"):
        wire.Hashes((b"short",)).encode()
    with pytest.raises(ValueError, match="store server"):
        wire.Hello(role=Role.SERVER).encode()


def test_words_and_versions() -> None:
    assert wire.version(1, 0) == 1 << 43
    assert wire.word(5, live=True) == 11
    assert wire.word(5, live=False) == 10
    assert [wire.pages_of(size) for size in (0, 1, 4096, 4097)] == [1, 1, 1, 2]
