"""Tensors of torch and numpy, stored and read back with dtype and shape."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.errors import RequestError

numpy = pytest.importorskip("numpy")

NUMPY_DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"]
TORCH_DTYPES = [
    "bool", "uint8", "int64", "float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2",
    "complex64",
]  # fmt: skip


@pytest.fixture(params=["local", "tcp"])
def store(request: pytest.FixtureRequest, shared_cluster: Cluster) -> Iterator[Client]:
    local = request.param == "local"
    with Client(shared_cluster.address, strict=True, use_local_paths=local) as client:
        yield client


@pytest.fixture
def key() -> str:
    return f"tensor/{uuid.uuid4().hex}"


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4, 5), (300, 1000)])
def test_numpy_round_trips(store: Client, key: str, dtype: str, shape: tuple) -> None:
    size = int(numpy.prod(shape))
    array = (numpy.arange(size) % 1000).reshape(shape).astype(dtype)
    assert store.put_tensor(key, array) is True
    back = store.get_tensor(key, library="numpy")
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert (back == array).all()
    target = numpy.empty_like(array)
    assert store.get_tensor_into(key, target) is True
    assert (target == array).all()


def test_array_that_lies_otherwise_is_stored_in_row_order(store: Client, key: str) -> None:
    array = numpy.arange(24, dtype=">i4").reshape(4, 6).T[::2]
    store.put_tensor(key, array)
    assert (store.get_tensor(key, library="numpy") == array).all()


def test_other_dtype_or_shape_leaves_the_target_alone(store: Client, key: str) -> None:
    store.put_tensor(key, numpy.ones((2, 3), dtype="float32"))
    for target in (
        numpy.zeros((3, 2), dtype="float32"),
        numpy.zeros((2, 3), dtype="int32"),
        numpy.zeros((7,), dtype="float32"),
    ):
        with pytest.raises(RequestError, match="stored is float32"):
            store.get_tensor_into(key, target)
        assert not target.any()
    with pytest.raises(RequestError, match="contiguous"):
        store.get_tensor_into(key, numpy.zeros((3, 2), dtype="float32").T)


def test_what_is_no_tensor_is_refused(store: Client, key: str) -> None:
    store.put(key, b"x" * 1000)
    with pytest.raises(RequestError, match="no tensor"):
        store.get_tensor(key)
    with pytest.raises(RequestError):
        store.put_tensor(key + "/o", numpy.array([object()]))
    with pytest.raises(RequestError):
        store.put_tensor(key + "/l", [1, 2, 3])
    assert store.get_tensor(key + "/absent") is None
    assert store.get_tensor_into(key + "/absent", numpy.empty(3)) is False


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_torch_round_trips(store: Client, key: str, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    kind = getattr(torch, dtype)
    tensor = torch.arange(60).reshape(3, 4, 5).to(torch.float32).to(kind)
    assert store.put_tensor(key, tensor) is True
    back = store.get_tensor(key)
    assert back.dtype == kind and back.shape == tensor.shape
    assert back.view(torch.uint8).equal(tensor.view(torch.uint8))
    target = torch.empty_like(tensor)
    assert store.get_tensor_into(key, target) is True
    assert target.view(torch.uint8).equal(tensor.view(torch.uint8))


def test_torch_slices_are_stored_in_row_order(store: Client, key: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.arange(24.0, requires_grad=True).reshape(4, 6).T[::2]
    store.put_tensor(key, tensor)
    assert store.get_tensor(key).equal(tensor.detach())
    with pytest.raises(RequestError, match="contiguous"):
        store.get_tensor_into(key, torch.empty(6, 4).T)
