"""The committed stubs are those of the protos, and the protos those of the wire."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mooncake_store.errors import Status
from mooncake_store.protocol import master_pb2, methods, store_pb2, types_pb2

ROOT = Path(__file__).resolve().parents[3]

MASTER = """
    OpenSession KeepAlive CloseSession Exists Lookup MatchPrefix PutStart PutEnd Revoke Remove
    RemoveMatching Touch Pin Unpin Annotate ChangeReplica List Stat Explain StartTask
    ListTasks CancelTask Members ForgetMember Status Events
"""
STORE = """
    Put Get ChangeReplica RegisterLocalMemory UnregisterLocalMemory OpenSegment AllocateBatchId
    SubmitTransfer GetTransferStatus FreeBatchId
"""


def test_generating_again_gives_the_committed_stubs(protos: ModuleType, tmp_path: Path) -> None:
    generated = protos.generate(tmp_path)
    committed = (ROOT / "mooncake_store" / "protocol").glob("*_pb2*.py*")
    assert generated == sorted(path.relative_to(ROOT) for path in committed)
    assert len(generated) == 13
    for name in generated:
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes(), name


@pytest.mark.parametrize(
    ("proto", "prefix", "mine"),
    [
        (types_pb2.Status, "STATUS_", Status),
        (types_pb2.Tier, "TIER_", methods.Tier),
        (types_pb2.ReplicaState, "REPLICA_STATE_", methods.ReplicaState),
        (master_pb2.MemberState, "MEMBER_STATE_", methods.MemberState),
        (master_pb2.EventKind, "EVENT_KIND_", methods.EventKind),
        (master_pb2.FateKind, "FATE_KIND_", methods.FateKind),
    ],
)
def test_enumerations_have_the_numbers_of_the_frames(proto, prefix, mine) -> None:
    numbers = {name.removeprefix(prefix): number for name, number in proto.items()}
    if proto in (master_pb2.EventKind, master_pb2.FateKind):
        assert numbers.pop("UNSPECIFIED") == 0  # proto3 wants a zero
    assert numbers == {entry.name: entry.value for entry in mine}


def test_services_have_the_complete_api() -> None:
    master = master_pb2.DESCRIPTOR.services_by_name["Master"].methods_by_name
    assert set(master) == set(MASTER.split())
    assert master["Events"].server_streaming
    store = store_pb2.DESCRIPTOR.services_by_name["Store"].methods_by_name
    assert set(store) == set(STORE.split())
    assert store["Put"].client_streaming
    assert store["Get"].server_streaming


def test_importing_frames_brings_neither_grpc_nor_protobuf() -> None:
    code = (
        "import sys, mooncake_store.protocol.frames\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('grpc', 'google')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "[]"
