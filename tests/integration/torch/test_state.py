"""Nested state and tensor-parallel slices of torch, through a real store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.errors import RequestError
from mooncake_store.torch import (
    get_slice,
    get_slice_into,
    get_state,
    get_state_into,
    put_slice,
    put_state,
)


@pytest.fixture(params=["local", "tcp"])
def store(request: pytest.FixtureRequest, shared_cluster: Cluster) -> Iterator[Client]:
    local = request.param == "local"
    with Client(shared_cluster.address, strict=True, use_local_paths=local) as client:
        yield client


@pytest.fixture
def key() -> str:
    return f"torch/{uuid.uuid4().hex}"


@dataclass
class Trained:
    model: dict[str, Any]
    steps: int = 0
    notes: list[str] = field(default_factory=list)


def model() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.BatchNorm1d(65))


def same(left: Any, right: Any) -> bool:
    return (
        left.dtype == right.dtype and left.shape == right.shape and bool(torch.equal(left, right))
    )


def test_a_state_dict_comes_back_equal(store: Client, key: str) -> None:
    state = model().state_dict()
    assert put_state(store, key, state) is True
    assert put_state(store, key, {}) is False
    back = get_state(store, key)
    assert list(back) == list(state)
    assert all(same(back[name], state[name]) for name in state)
    model().load_state_dict(back)


def test_an_optimizer_goes_on_where_it_was(store: Client, key: str) -> None:
    trained = model()
    optimizer = torch.optim.Adam(trained.parameters())
    trained(torch.randn(4, 33)).sum().backward()
    optimizer.step()
    put_state(store, key, optimizer.state_dict())
    other = torch.optim.Adam(model().parameters())
    other.load_state_dict(get_state(store, key))
    assert str(other.state_dict()) == str(optimizer.state_dict())


def test_a_dataclass_comes_back_by_the_readers_class(store: Client, key: str) -> None:
    state = Trained({"w": torch.arange(5)}, 3, ["a"])
    put_state(store, key, state)
    with pytest.raises(RequestError, match="Trained"):
        get_state(store, key)
    back = get_state(store, key, types=[Trained])
    assert (back.steps, back.notes) == (3, ["a"])
    assert same(back.model["w"], state.model["w"])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "bfloat16", "float8_e4m3fn", "complex64"])
def test_every_dtype_and_shape_comes_back(store: Client, key: str, dtype: str) -> None:
    kind = getattr(torch, dtype)
    tensors = [(torch.arange(n) % 2).reshape(shape).to(kind) for n, shape in
               [(1, ()), (0, (0, 3)), (7, (7,)), (100_000, (10, 100, 100))]]  # fmt: skip
    put_state(store, key, tensors)
    back = get_state(store, key)
    for left, right in zip(back, tensors, strict=True):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert torch.equal(left.view(-1).view(torch.uint8), right.view(-1).view(torch.uint8))


def test_tensors_that_lie_otherwise_are_stored_by_value(store: Client, key: str) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    state = [base.t(), base[:, ::2], base[1:3], torch.ones(1).expand(5), torch.conj(base + 1j)]
    put_state(store, key, state)
    back = get_state(store, key)
    assert all(torch.equal(left, right) for left, right in zip(back, state, strict=True))


def test_a_state_is_read_into_tensors_that_are_there(store: Client, key: str) -> None:
    state = {"a": torch.randn(100, 100), "b": [torch.arange(6).reshape(2, 3), 5]}
    put_state(store, key, state)
    strided = torch.zeros(3, 2, dtype=torch.int64).t()
    target = {"a": torch.zeros(100, 100), "b": [strided, 0]}
    address = target["a"].data_ptr()
    back = get_state_into(store, key, target)
    assert back["a"] is target["a"]
    assert target["a"].data_ptr() == address
    assert same(target["a"], state["a"])
    assert same(strided, state["b"][0])
    assert back["b"][1] == 5


def test_a_stored_tensor_with_two_places_fills_both(store: Client, key: str) -> None:
    tied = torch.arange(9.0)
    put_state(store, key, [tied, tied])
    target = [torch.zeros(9), torch.zeros(9)]
    get_state_into(store, key, target)
    assert same(target[0], tied)
    assert same(target[1], tied)


@pytest.mark.parametrize(
    "target",
    [
        {"a": torch.zeros(2)},
        {"a": torch.zeros(3).double()},
        {"b": torch.zeros(3)},
        [torch.zeros(3)],
    ],
)
def test_a_target_that_differs_is_left_alone(store: Client, key: str, target: Any) -> None:
    put_state(store, key, {"a": torch.ones(3)})
    with pytest.raises(RequestError):
        get_state_into(store, key, target)
    tensors = target.values() if isinstance(target, dict) else target
    assert all(not tensor.any() for tensor in tensors)


def test_a_target_whose_elements_share_memory_is_refused(store: Client, key: str) -> None:
    put_state(store, key, [torch.arange(3.0)])
    with pytest.raises(RequestError, match="expanded"):
        get_state_into(store, key, [torch.zeros(1).expand(3)])


def test_many_tensors_and_a_long_document(store: Client, key: str) -> None:
    state = {f"layer.{at}.{'x' * 40}": torch.full((at % 7,), at) for at in range(3000)}
    put_state(store, key, state)
    back = get_state(store, key)
    assert all(same(back[name], state[name]) for name in state)


def test_replaced_states_are_read_whole(store: Client, key: str) -> None:
    put_state(store, key, {"a": torch.zeros(10)})
    put_state(store, key, {"b": torch.ones(20_000)}, replace=True)
    assert torch.equal(get_state(store, key)["b"], torch.ones(20_000))


def test_what_is_not_there_is_none(store: Client, key: str) -> None:
    assert get_state(store, key) is None
    assert get_state_into(store, key, [torch.zeros(1)]) is None
    assert get_slice(store, key) is None
    assert get_slice_into(store, key, torch.zeros(1)) is False


@pytest.mark.parametrize("damage", ["other", "cut", "version", "document", "offset", "length"])
def test_what_is_no_state_is_refused(store: Client, key: str, damage: str) -> None:
    put_state(store, key, {"a": torch.ones(3)})
    data = bytearray(store.get(key) or b"")
    if damage == "other":
        data = bytearray(b"something else")
    elif damage == "cut":
        del data[40:]
    elif damage == "version":
        data[4] = 2
    elif damage == "document":
        data[20:24] = b"!!!!"
    elif damage == "offset":
        data = data.replace(b"[3],0,12", b"[3],8,12")
    else:
        data[8:16] = b"\xff" * 8
    store.upsert(key, data)
    with pytest.raises(RequestError):
        get_state(store, key)


def test_sparse_and_meta_tensors_are_refused(store: Client, key: str) -> None:
    for wrong in (torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
        with pytest.raises(RequestError):
            put_state(store, key, [wrong])


# ---- slices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("stored", [1, 2, 4])
@pytest.mark.parametrize("wanted", [1, 2, 4, 8])
def test_slices_are_read_by_any_number_of_ranks(
    store: Client, key: str, dim: int, stored: int, wanted: int
) -> None:
    whole = torch.arange(8 * 16 * 8, dtype=torch.int32).reshape(8, 16, 8)
    for rank, part in enumerate(whole.chunk(stored, dim)):
        assert put_slice(store, key, part, rank=rank, size=stored, dim=dim) is True
    for rank, part in enumerate(whole.chunk(wanted, dim)):
        assert same(get_slice(store, key, rank=rank, size=wanted), part)
        target = torch.zeros_like(part.contiguous())
        assert get_slice_into(store, key, target, rank=rank, size=wanted) is True
        assert same(target, part)


def test_a_slice_that_is_missing_is_a_miss(store: Client, key: str) -> None:
    whole = torch.arange(8)
    put_slice(store, key, whole[:4], rank=0, size=2)
    assert get_slice(store, key) is None
    assert get_slice(store, key, rank=1, size=2) is None
    assert same(get_slice(store, key, rank=1, size=4), whole[2:4])


def test_another_cut_of_the_same_key_is_refused(store: Client, key: str) -> None:
    put_slice(store, key, torch.zeros(4, 4), rank=0, size=2)
    with pytest.raises(RequestError, match="another cut"):
        put_slice(store, key, torch.zeros(4, 4), rank=0, size=2, dim=1)
    with pytest.raises(RequestError, match="equally"):
        get_slice(store, key, rank=0, size=3)
    with pytest.raises(RequestError, match="target"):
        get_slice_into(store, key, torch.zeros(4, 4))


@pytest.mark.parametrize("wrong", [{"rank": 2, "size": 2}, {"rank": 0, "size": 1, "dim": 2}])
def test_a_slice_that_cannot_be_is_refused(store: Client, key: str, wrong: Any) -> None:
    with pytest.raises(RequestError):
        put_slice(store, key, torch.zeros(4, 4), **wrong)
