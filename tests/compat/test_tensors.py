"""Tensors, whole and in parts."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from mooncake.store import (
    MooncakeDistributedStore,
    ParallelAxis,
    ReadTarget,
    ReplicateConfig,
    TensorParallelism,
    _deserialize_tensor,
    _serialize_tensor,
    _tensor_metadata_size,
)
from tests.compat.rows import AT, MEMORY, covers

torch = pytest.importorskip("torch", reason="needs torch")
pytestmark = pytest.mark.torch
ROOM = len(MEMORY)
Store = MooncakeDistributedStore

DTYPES = [
    *("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("int64", "uint64", "bool", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
]


def ordered(*shape: int) -> torch.Tensor:
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)


def axes(kind: str = "tp", rank: int = 0, size: int = 2, dim: int | None = 1, **more: int):
    axis = ParallelAxis()
    axis.kind, axis.rank, axis.size, axis.split_dim = kind, rank, size, dim
    for name, value in more.items():
        setattr(axis, name, value)
    parallelism = TensorParallelism()
    parallelism.axes = [axis]
    return parallelism


def target(mode: str, parallelism: TensorParallelism | None = None) -> ReadTarget:
    made = ReadTarget()
    made.mode, made.parallelism = mode, parallelism
    return made


@covers("put_tensor", "get_tensor")
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back(store: Store, name: str) -> None:
    dtype = getattr(torch, name)
    given = (torch.arange(6) % 2).to(dtype).reshape(2, 3)
    assert store.put_tensor("t", given) == 0
    assert store.get_size("t") == _tensor_metadata_size() + given.numel() * given.element_size()
    found = store.get_tensor("t")
    assert (found.dtype, found.shape) == (given.dtype, given.shape)
    assert torch.equal(found.view(torch.uint8), given.view(torch.uint8))


def test_shapes_of_all_kinds_come_back(store: Store) -> None:
    for name, given in {
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 4),
        "eight": ordered(1, 2, 1, 2, 1, 2, 1, 2),
        "transposed": ordered(4, 6).t(),
        "part": ordered(4, 6)[:, 1:3],
        "gradient": ordered(2, 2).requires_grad_(),
    }.items():
        assert store.put_tensor(name, given) == 0, name
        found = store.get_tensor(name)
        assert found.shape == given.shape, name
        assert torch.equal(found, given.detach()), name
    assert store.put_tensor("eight", ordered(2)) == 0  # the first one stays
    assert store.get_tensor("eight").dim() == 8
    assert store.put_tensor("nine", ordered(*[1] * 9)) == -600
    assert store.put_tensor("none", 5) == -600
    assert store.put_tensor("numpy", np.zeros(3)) == -600
    assert store.put_tensor("complex", torch.zeros(2, dtype=torch.complex64)) == -600
    store.put("bytes", b"x" * 400)
    assert store.get_tensor("bytes") is None
    assert store.get_tensor("absent") is None


@covers("batch_put_tensor", "batch_get_tensor", "batch_pub_tensor", "pub_tensor")
def test_batches_fail_one_by_one(store: Store) -> None:
    one, two = ordered(4, 6), ordered(2, 2)
    assert store.batch_put_tensor(["a", "bad", "b"], [one, 5, two]) == [0, -600, 0]
    found = store.batch_get_tensor(["b", "absent", "a"])
    assert torch.equal(found[0], two)
    assert found[1] is None
    assert torch.equal(found[2], one)
    assert store.batch_put_tensor(["a", "b"], [one]) == [-600, -600]
    wish = ReplicateConfig()
    wish.replica_num = 2
    assert store.pub_tensor("c", one, wish) == 0
    assert len(store.get_replica_desc("c")) == 2
    wish.group_ids = ["g", "h"]
    assert store.batch_pub_tensor(["d", "e"], [one, two], wish) == [0, 0]
    assert store.batch_pub_tensor(["f", "bad"], [one, 5], wish) == [-600, -600]


@covers(
    "upsert_tensor", "batch_upsert_tensor", "upsert_pub_tensor", "batch_upsert_pub_tensor",
    "upsert_tensor_from", "batch_upsert_tensor_from",
)  # fmt: skip
def test_an_upsert_takes_the_place_of_a_tensor(store: Store) -> None:
    store.put_tensor("t", ordered(2))
    for given, call in enumerate(
        [
            lambda new: store.upsert_tensor("t", new),
            lambda new: store.batch_upsert_tensor(["t"], [new])[0],
            lambda new: store.upsert_pub_tensor("t", new, ReplicateConfig()),
            lambda new: store.batch_upsert_pub_tensor(["t"], [new], ReplicateConfig())[0],
        ],
        start=3,
    ):
        assert call(ordered(given)) == 0
        assert store.get_tensor("t").shape == (given,)
    size = write(ordered(7))
    assert store.upsert_tensor_from("t", AT, size) == 0
    assert store.get_tensor("t").shape == (7,)
    size = write(ordered(8))
    assert store.batch_upsert_tensor_from(["t"], [AT], [size]) == [0]
    assert store.get_tensor("t").shape == (8,)


def write(tensor: torch.Tensor, at: int = AT) -> int:
    """Lay a tensor with its header at an address; return how many bytes that are."""
    header, address, size, kept = _serialize_tensor(tensor)
    ctypes.memmove(at, header, len(header))
    ctypes.memmove(at + len(header), address, size)
    assert kept is not None
    return len(header) + size


@covers("get_tensor_into", "batch_get_tensor_into", "put_tensor_from", "batch_put_tensor_from")
def test_tensors_in_memory_of_the_caller(store: Store) -> None:
    given = ordered(4, 6)
    store.put_tensor("t", given)
    found = store.get_tensor_into("t", AT, ROOM)
    assert torch.equal(found, given)
    assert found.data_ptr() == AT + _tensor_metadata_size()
    assert store.put_tensor_from("from", AT, store.get_size("t")) == 0
    assert torch.equal(store.get_tensor("from"), given)
    assert torch.equal(_deserialize_tensor(store.get("from")), given)
    assert store.get_tensor_into("t", AT, 10) is None
    assert store.get_tensor_into("absent", AT, ROOM) is None
    assert store.put_tensor_from("bad", AT + 100, 64) == -600
    assert store.put_tensor_from("bad", AT, 310) == -600  # not all of it
    assert store.put_tensor_from("bad", 0, 400) == -600
    half = ROOM // 2
    found = store.batch_get_tensor_into(["t", "absent"], [AT, AT + half], [half, half])
    assert torch.equal(found[0], given)
    assert found[1] is None
    assert store.batch_get_tensor_into(["t"], [AT], []) == [-600]
    sizes = [write(ordered(2)), write(ordered(3), AT + half)]
    assert store.batch_put_tensor_from(["x", "y"], [AT, AT + half], sizes) == [0, 0]
    assert [each.shape[0] for each in store.batch_get_tensor(["x", "y"])] == [2, 3]
    assert store.batch_put_tensor_from(["x"], [AT], []) == [-600]


@covers("get_tensor_into_cuda", "batch_get_tensor_into_cuda")
def test_reading_into_a_tensor_that_is_there(store: Store) -> None:
    given = ordered(4, 6)
    store.put_tensor("t", given)
    into = torch.empty(4, 6)
    assert store.get_tensor_into_cuda("t", into) == 0
    assert torch.equal(into, given)
    others = [torch.empty(4, 5), torch.empty(4, 6, dtype=torch.float16), torch.empty(4, 6)]
    keys = ["t", "t", "absent"]
    assert store.batch_get_tensor_into_cuda(keys, others) == [-600, -600, -704]
    assert store.batch_get_tensor_into_cuda(["t"], []) == [-600]


@covers(
    "put_tensor_with_tp", "batch_put_tensor_with_tp", "pub_tensor_with_tp",
    "batch_pub_tensor_with_tp", "put_tensor_with_tp_from", "batch_put_tensor_with_tp_from",
    "get_tensor_with_tp", "batch_get_tensor_with_tp", "get_tensor_with_tp_into",
    "batch_get_tensor_with_tp_into",
)  # fmt: skip
def test_a_whole_tensor_is_stored_as_shards(store: Store) -> None:
    given = ordered(4, 6)
    size = write(given)
    wish = ReplicateConfig()
    calls = {
        "one": lambda key: store.put_tensor_with_tp(key, given, 0, 2, 1),
        "many": lambda key: store.batch_put_tensor_with_tp([key], [given], 1, 2, 1)[0],
        "pub": lambda key: store.pub_tensor_with_tp(key, given, wish, 0, 2, 1),
        "pubs": lambda key: store.batch_pub_tensor_with_tp([key], [given], wish, 0, 2, 1)[0],
        "from": lambda key: store.put_tensor_with_tp_from(key, AT, size, 0, 2, 1),
        "froms": lambda key: store.batch_put_tensor_with_tp_from([key], [AT], [size], 0, 2, 1)[0],
    }
    for key, call in calls.items():
        assert call(key) == 0, key
        assert store.batch_is_exist([key, f"{key}_tp_0", f"{key}_tp_1"]) == [0, 1, 1]
        assert torch.equal(store.get_tensor_with_tp(key, 1, 2, 1), given[:, 3:])
        (found,) = store.batch_get_tensor_with_tp([key], 0, 2)
        assert torch.equal(found, given[:, :3])
    found = store.get_tensor_with_tp_into("one", AT, ROOM, 1, 2, 1)
    assert torch.equal(found, given[:, 3:])
    (found,) = store.batch_get_tensor_with_tp_into(["one"], [AT], [ROOM], 0, 2)
    assert torch.equal(found, given[:, :3])
    assert store.get_tensor_with_tp("one", 2, 2) is None
    assert store.get_tensor_with_tp("one") is None
    assert store.put_tensor_with_tp("odd", ordered(5), 0, 2, 0) == -600
    assert store.put_tensor_with_tp("odd", ordered(4), 0, 2, 1) == -600
    assert store.put_tensor_with_tp("odd", 5, 0, 2, 0) == -600
    assert store.put_tensor_with_tp("whole", given) == 0
    assert torch.equal(store.get_tensor_with_tp("whole"), given)
    assert store.batch_put_tensor_with_tp_from(["x"], [AT], [], 0, 2, 0) == [-600]


@covers(
    "put_tensor_with_parallelism", "get_tensor_with_parallelism",
    "batch_put_tensor_with_parallelism", "batch_get_tensor_with_parallelism",
)  # fmt: skip
def test_parts_come_back_in_any_other_split(store: Store) -> None:
    whole = ordered(4, 12)
    parts = whole.chunk(2, 1)
    assert store.put_tensor_with_parallelism("t", parts[0], axes(rank=0)) == 0
    assert store.get_tensor_with_parallelism("t", target("full")) is None  # one is missing
    assert store.batch_put_tensor_with_parallelism(["t"], [parts[1]], [axes(rank=1)]) == [0]
    read = store.get_tensor_with_parallelism
    assert torch.equal(read("t", target("full")), whole)
    assert torch.equal(read("t", target("as_stored", axes(rank=1))), parts[1])
    assert torch.equal(read("t", target("shard", axes(rank=1))), parts[1])
    for size, dim in ((1, 1), (2, 1), (3, 1), (4, 1), (6, 1), (2, 0), (4, 0)):
        for rank in range(size):
            found = read("t", target("shard", axes(rank=rank, size=size, dim=dim)))
            assert torch.equal(found, whole.chunk(size, dim)[rank]), (size, dim, rank)
    assert read("t", target("shard", axes(size=5))) is None
    assert read("t", target("shard", axes(dim=2))) is None
    assert read("t", target("shard")) is None
    assert read("absent", target("full")) is None
    with pytest.raises(RuntimeError, match=r"ReadTarget\.mode"):
        read("t", target("backwards"))
    many = store.batch_get_tensor_with_parallelism(["t", "absent"], [target("full"), None])
    assert torch.equal(many[0], whole)
    assert many[1] is None
    assert store.batch_get_tensor_with_parallelism(["t"], []) == [None]


def test_axes_that_cannot_be_are_refused(store: Store) -> None:
    put, given = store.put_tensor_with_parallelism, ordered(4, 6)
    assert put("t", given, axes(rank=2)) == -600
    assert put("t", given, axes(dim=None)) == -600
    assert put("t", given, axes(dim=2)) == -600
    assert put("t", given, axes(kind="zz")) == -600
    assert put("t", given, axes(kind="ep")) == -600  # of which expert?
    assert put("t", given, None, None, object()) == -600  # writer_partition
    twice = axes()
    twice.axes *= 2
    assert put("t", given, twice) == -600
    assert put("t", 5, axes()) == -600
    assert put("t", given, axes()) == 0
    assert put("t", given, axes(rank=1, size=4)) == -600  # contradicts what is stored
    assert put("t", given, axes(rank=1, dim=0)) == -600
    assert store.upsert_tensor_with_parallelism("t", given, axes(size=4)) == 0
    assert store.batch_put_tensor_with_parallelism(["t"], [], None) == [-600]


def test_experts_stages_and_replicas_have_keys_of_their_own(store: Store) -> None:
    put, read = store.put_tensor_with_parallelism, store.get_tensor_with_parallelism
    for number in (1, 2):
        expert = axes("ep", size=8, dim=None, expert_id=number)
        stage = axes("pp", size=8, dim=None, stage_id=number)
        assert put("t", ordered(number), expert) == 0
        assert put("t", ordered(number + 2), stage) == 0
        assert read("t", target("as_stored", expert)).shape == (number,)
        assert read("t", target("full", stage)).shape == (number + 2,)
    assert store.batch_is_exist(["t_ep_1", "t_pp_2", "t"]) == [1, 1, 0]
    assert put("d", ordered(3), axes("dp", rank=1, size=4, dim=None)) == 0
    assert torch.equal(read("d"), ordered(3))
    assert torch.equal(read("d", target("shard", axes(rank=2, size=3, dim=0))), ordered(3)[2:])
    assert read("d", target("shard", axes(rank=1, size=2, dim=0))) is None


@covers(
    "put_tensor_with_parallelism_from", "upsert_tensor_with_parallelism_from",
    "batch_put_tensor_with_parallelism_from", "batch_upsert_tensor_with_parallelism_from",
    "upsert_tensor_with_parallelism", "batch_upsert_tensor_with_parallelism",
    "get_tensor_with_parallelism_into", "batch_get_tensor_with_parallelism_into",
)  # fmt: skip
def test_parts_in_memory_of_the_caller(store: Store) -> None:
    whole = ordered(4, 6)
    parts = whole.chunk(2, 1)
    one, two = axes(rank=0), axes(rank=1)
    size = write(parts[0])
    assert store.put_tensor_with_parallelism_from("t", AT, size, one) == 0
    size = write(parts[1])
    assert store.batch_put_tensor_with_parallelism_from(["t"], [AT], [size], [two]) == [0]
    found = store.get_tensor_with_parallelism_into("t", AT, ROOM, target("full"))
    assert torch.equal(found, whole)
    assert found.data_ptr() == AT + _tensor_metadata_size()
    assert store.get_tensor_with_parallelism_into("t", AT, 310, target("full")) is None
    found = store.batch_get_tensor_with_parallelism_into(
        ["t", "absent"], [AT, AT + ROOM // 2], [ROOM // 2] * 2, [target("full"), None]
    )
    assert torch.equal(found[0], whole)
    assert found[1] is None
    assert store.batch_get_tensor_with_parallelism_into(["t"], [AT], []) == [-600]
    size = write(parts[0] + 1)
    assert store.upsert_tensor_with_parallelism_from("t", AT, size, one) == 0
    assert store.batch_upsert_tensor_with_parallelism(["t"], [parts[1] + 1], [two]) == [0]
    assert torch.equal(store.get_tensor_with_parallelism("t", target("full")), whole + 1)
    size = write(parts[0] + 2)
    answer = store.batch_upsert_tensor_with_parallelism_from(["t"], [AT], [size], [one])
    assert answer == [0]
    assert store.upsert_tensor_with_parallelism("t", parts[1] + 2, two) == 0
    assert torch.equal(store.get_tensor_with_parallelism("t", target("full")), whole + 2)
    assert store.put_tensor_with_parallelism_from("bad", AT, 10, one) == -600


@covers("save_tensor_to_safetensor", "load_tensor_from_safetensor")
@pytest.mark.parametrize("name", DTYPES)
def test_files_of_safetensors(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given = (torch.arange(6) % 2).to(getattr(torch, name)).reshape(2, 3)
    store.put_tensor("t", given)
    assert store.save_tensor_to_safetensor("t", "file.safetensors") == 0
    assert store.save_tensor_to_safetensor("t") == 0
    assert (tmp_path / "t.safetensors").read_bytes() == Path("file.safetensors").read_bytes()
    for key in ("loaded", None):
        store.remove("t")
        found = store.load_tensor_from_safetensor(key, "file.safetensors")
        again = store.get_tensor(key or "t")
        for tensor in (found, again):
            assert tensor.dtype == given.dtype
            assert torch.equal(tensor.view(torch.uint8), given.view(torch.uint8))


def test_files_that_are_none_are_refused(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    assert store.save_tensor_to_safetensor("absent", path) == -1100
    store.put_tensor("t", ordered(4))
    assert store.save_tensor_to_safetensor("t", tmp_path / "no" / "folder") == -1101
    assert store.load_tensor_from_safetensor("k", path) is None
    assert store.save_tensor_to_safetensor("t", path) == 0
    good = path.read_bytes()
    for bad in (b"", good[:20], good[:-1], b"\xff" * 8 + good[8:], good.replace(b"F32", b"F99")):
        path.write_bytes(bad)
        assert store.load_tensor_from_safetensor("k", path) is None
    assert store.is_exist("k") == 0
