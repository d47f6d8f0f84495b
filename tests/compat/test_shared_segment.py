"""Memory that processes of one host share: `SharedSegment`, and tensors in it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from mooncake._engine.shared import _available_bytes
from mooncake.engine import SharedSegment
from tests.compat.environment import ENVIRONMENT

SIZE = 1 << 16

RANK = """
import ctypes, sys
from mooncake.engine import SharedSegment
segment, blob = SharedSegment.create("kv", int(sys.argv[1]), 2, 1)
print(blob.hex(), flush=True)
try:
    segment.complete([bytes.fromhex(sys.stdin.readline()), blob])
except RuntimeError as error:
    print(error)
    sys.exit()
at = segment.base_addr()
ctypes.memmove(at + 100, b"from 1", 6)
print(ctypes.string_at(at, 5).decode(), segment.ready(), segment.size(), flush=True)
sys.stdin.readline()
print(ctypes.string_at(at, 5).decode(), flush=True)
"""


def rank_1(size: int = SIZE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RANK, str(size)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=ENVIRONMENT,
    )  # fmt: skip


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def test_two_processes_have_the_same_bytes_which_outlive_the_owners_segment() -> None:
    segment, blob = SharedSegment.create("kv", SIZE, 2, 0)
    assert not segment.ready()
    with rank_1() as other:
        segment.complete([blob, bytes.fromhex(line(other))])
        at = segment.base_addr()
        assert (segment.ready(), segment.size(), segment.device_addr()) == (True, SIZE, 0)
        assert ctypes.string_at(at, SIZE) == bytes(SIZE)
        ctypes.memmove(at, b"hello", 5)
        tell(other, blob.hex())
        assert line(other) == f"hello True {SIZE}"
        assert ctypes.string_at(at + 100, 6) == b"from 1"
        ctypes.memmove(at, b"later", 5)
        del segment  # the other's mapping stays
        tell(other, "")
        assert line(other) == "later"


def test_ranks_that_disagree_are_told() -> None:
    segment, blob = SharedSegment.create("kv", SIZE, 2, 0)
    with rank_1(SIZE * 2) as other:
        theirs = bytes.fromhex(line(other))
        with pytest.raises(RuntimeError, match="rank 1 has another name, size"):
            segment.complete([blob, theirs])
        tell(other, blob.hex())
        assert line(other).startswith("rank 0 has another name, size")
    for blobs, reason in {
        (blob,): "one blob of each of 2 ranks, not 1",
        (blob, blob): "rank 1: this is the blob of rank 0",
        (blob, b"\0" * len(blob)): "rank 1: this is no blob",
        (blob, b""): "rank 1: this is no blob",
        (blob, "\0" * len(blob)): "rank 1: this is no blob",
        (blob, (300,) * len(blob)): "rank 1: this is no blob",
        (blob, None): "rank 1: this is no blob",
    }.items():
        with pytest.raises(RuntimeError, match=reason):
            segment.complete(blobs)
    assert not segment.ready()


@pytest.mark.parametrize("as_sent", [list, bytearray, memoryview])
def test_a_blob_is_what_bytes_can_be_made_of(as_sent: type) -> None:
    segment, blob = SharedSegment.create("kv", SIZE, 1, 0)
    segment.complete([as_sent(blob)])
    assert segment.ready()


def test_an_owner_that_has_gone_is_named() -> None:
    segment, blob = SharedSegment.create("kv", SIZE, 2, 0)
    del segment
    other, theirs = SharedSegment.create("kv", SIZE, 2, 1)
    with pytest.raises(RuntimeError, match="comes before base_addr"):
        other.base_addr()
    with pytest.raises(RuntimeError, match="the owner"):
        other.complete([blob, theirs])
    _, elsewhere = SharedSegment.create("kv", SIZE, 2, 0)
    boot_at = 4 + 4 + 32
    changed = elsewhere[:boot_at] + bytes(16) + elsewhere[boot_at + 16 :]
    with pytest.raises(RuntimeError, match="on another host"):
        other.complete([changed, theirs])


def test_what_there_is_none_of() -> None:
    assert SharedSegment.supported()
    assert not SharedSegment.supported(mmap=False)
    assert not SharedSegment.supported(host_register=True)
    for given, reason in (
        ({"size": 0}, "from 1 to"),
        ({"size": 1 << 47}, "from 1 to"),
        ({"size": 1 << 46}, "bytes of shared memory"),
        ({"rank_id": 2}, "below world_size"),
        ({"owner_rank": 2}, "below world_size"),
        ({"mmap": False}, "only memory of the host"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            SharedSegment.create(**{"name": "n", "size": 1, "world_size": 2, "rank_id": 0, **given})


GROUP = """
import sys
import torch, torch.distributed as dist
from mooncake.shared_segment import SharedSegmentError, create_shared_segment
rank, file, difference = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
blocks = {
    "v": {"count": 2, "shape": (3, 5), "dtype": torch.bfloat16},
    "k": {"count": 1 + rank * (difference == 1), "shape": (1000,), "dtype": torch.float32},
}
if difference == 2 and rank == 1:
    del blocks["k"]["count"]
if difference == 3:  # one rank has no addresses for so much
    blocks = {"v": {"count": 1, "shape": (1 << 28,), "dtype": torch.uint8}}
    if rank == 1:
        import resource
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 27), hard))
if difference == 4 and rank == 1:
    rank = 1.0
try:
    segment = create_shared_segment("kv", blocks, 2, rank, comm_group=dist.group.WORLD)
except SharedSegmentError as error:
    print(error)
    sys.exit()
v = segment.tensors("v")
if rank == 0:
    v[1].copy_(torch.arange(15).reshape(3, 5))
    segment.tensors("k")[0].fill_(7)
del segment
dist.barrier()
print(v[1].sum().item(), v[0].sum().item(), [tuple(each.shape) for each in v])
dist.barrier()
"""


# 1: blocks that differ; 2: one that cannot be; 3: memory that one rank cannot map; 4: a rank that
# is no whole number.
@pytest.mark.parametrize("difference", [0, 1, 2, 3, 4])
def test_tensors_of_a_group(tmp_path: Path, difference: int) -> None:
    pytest.importorskip("torch")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", GROUP, str(rank), str(tmp_path / "group"), str(difference)],
            stdout=subprocess.PIPE, text=True,
            env=ENVIRONMENT,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        told = [rank.communicate(timeout=60)[0].strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if difference:
        assert told[0] == told[1]
    if difference == 3:
        assert "rank 1: the owner's memory cannot be mapped" in told[0]
    elif difference == 4:
        assert told[0].startswith("rank 1: ")
    elif difference == 2:
        assert told[0] == "rank 1: block 'k' needs count, shape and dtype"
    elif difference:
        assert "rank 0: rank 1 has another name, size" in told[0]
        assert "rank 1: rank 0 has another name, size" in told[0]
    else:
        assert told == ["105.0 0.0 [(3, 5), (3, 5)]"] * 2


def test_blocks_that_cannot_be() -> None:
    torch = pytest.importorskip("torch")
    from mooncake.shared_segment import (
        SharedSegmentError,
        create_shared_segment,
        shared_segment_supported,
    )

    assert shared_segment_supported()
    assert not shared_segment_supported(mmap=False)
    good = {"count": 1, "shape": (4,), "dtype": torch.uint8}
    for blocks, reason in (
        ({}, "at least one block"),
        ({"k": {"count": 1}}, "needs count, shape and dtype"),
        ({"k": {**good, "count": 0}}, "above 0"),
        ({"k": {**good, "shape": ()}}, "above 0"),
        ({"k": {**good, "dtype": "uint8"}}, "one of torch's"),
    ):
        with pytest.raises(SharedSegmentError, match=reason):
            create_shared_segment("n", blocks, 1, 0)
    with pytest.raises(SharedSegmentError, match="need a comm_group"):
        create_shared_segment("n", {"k": good}, 2, 0)
    with pytest.raises(SharedSegmentError, match="rank 0: only memory of the host"):
        create_shared_segment("n", {"k": good}, 1, 0, mmap=False)
    segment = create_shared_segment("n", {"k": good}, 1, 0)
    assert segment.total_size() == 4096
    (tensor,) = segment.tensors("k")
    assert tensor.data_ptr() == segment.base_addr()
    with pytest.raises(SharedSegmentError, match="there is no block 'v', but k"):
        segment.tensors("v")


@pytest.mark.parametrize(
    ("limits", "available"),
    [
        ({}, 1 << 30),  # no such files: no limit but the host's
        ({"a/b": ("max", "5")}, 1 << 30),
        ({"a/b": ("8192", "4096")}, 4096),
        ({"a": ("9000", "1000"), "a/b": ("max", "900")}, 8000),
        ({"": ("7000", "0"), "a": ("8000", "0"), "a/b": ("9000", "0")}, 7000),
        ({"a": ("4096", "5000")}, 0),
        ({"a/c": ("1", "0")}, 1 << 30),  # of others
    ],
)
def test_memory_that_is_available_is_the_least_of_host_and_control_groups(
    tmp_path: Path, limits: dict[str, tuple[str, str]], available: int
) -> None:
    meminfo, own, groups = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "groups"
    meminfo.write_text("MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n")
    own.write_text("4:memory:/x\n0::/a/b\n")
    for name, (most, taken) in limits.items():
        (groups / name).mkdir(parents=True, exist_ok=True)
        (groups / name / "memory.max").write_text(most + "\n")
        (groups / name / "memory.current").write_text(taken + "\n")
    assert _available_bytes(meminfo, own, groups) == available
    (tmp_path / "cgroup").unlink()
    assert _available_bytes(meminfo, own, groups) == 1 << 30
