"""Where replicas are, copies and moves of them, sessions, pools and what there is besides."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from mooncake.store import (
    BufferPool,
    EngramStore,
    EngramStoreConfig,
    MooncakeDistributedNoFRegister,
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ReplicaStatus,
    ReplicateConfig,
    TaskStatus,
    TaskType,
    _get_pyclient_from_wrapper,
    bind_to_numa_node,
    get_alloc_func_addr,
    get_free_func_addr,
)
from tests.compat.rows import AT, TEXT, Row, covers, row, run

K = ("put", "k", b"abcdefgh")
START = ("batch_put_session_start", ["s"], [10])
READ = ("batch_get_session_start", ["k"])
RANGES = ("batch_put_from_multi_buffer_ranges", ["s"], [[AT, AT + 5]], [[5, 5]], [[5, 0]])

ROWS = [
    # sessions of puts
    row("batch_put_session_start", ["s", "k", "z", ""], [10, 10, 0, 5],
        gives=[0, -705, -600, -600], before=[K], after=[(("is_exist", "s"), 0)]),
    row("batch_put_session_start", ["s"], [10], gives=[-600], before=[START]),
    row("batch_put_session_start", ["s"], [], gives=[-600]),
    row("batch_put_session_start", ["s"], [1 << 40], gives=[-10]),
    row("batch_put_from_multi_buffer_ranges", ["s", "none"], [[AT, AT + 5], [AT]],
        [[5, 5], [1]], [[5, 0], [0]], gives=[10, -600], before=[START]),
    row("batch_put_from_multi_buffer_ranges", ["s"], [[AT]], [[11]], [[0]], gives=[-600],
        before=[START]),
    row("batch_put_from_multi_buffer_ranges", ["s"], [[AT]], [[2]], [[9]], gives=[-600],
        before=[START]),
    row("batch_put_from_multi_buffer_ranges", ["s"], [[AT]], [[2]], [[-1]], gives=[-600],
        before=[START]),
    row("batch_put_from_multi_buffer_ranges", ["s"], [[0]], [[2]], [[0]], gives=[-600],
        before=[START]),
    row("batch_put_from_multi_buffer_ranges", ["s"], [[AT]], [[2, 3]], [[0]], gives=[-600],
        before=[START]),
    row("batch_put_session_end", ["s", "none"], gives=[0, -600], before=[START, RANGES],
        after=[(("get", "s"), b"fghijabcde"), (("batch_put_session_end", ["s"]), [-600])]),
    row("batch_put_session_revoke", ["s", "none"], gives=[0, -600], before=[START, RANGES],
        after=[(("is_exist", "s"), 0), (("batch_put_session_start", ["s"], [3]), [0])]),
    # sessions of reads
    row("batch_get_session_start", ["k", "absent"], gives=[0, -704], before=[K]),
    row("batch_get_into_multi_buffer_ranges", ["k"], [[AT + 10, AT]], [[2, 3]], [[1, 5]],
        gives=[5], before=[K, READ], memory=b"fgh" + TEXT[3:10] + b"bc" + TEXT[12:]),
    row("batch_get_into_multi_buffer_ranges", ["k"], [[AT]], [[2]], [[7]], gives=[-600],
        before=[K, READ]),
    row("batch_get_into_multi_buffer_ranges", ["k", "none"], [[AT], [AT]], [[1], [1]],
        [[0], [0]], gives=[-600, -600], before=[K], note="without a session"),
    row("batch_get_into_multi_buffer_ranges", ["k"], [[]], [[]], [[]], gives=[0],
        before=[K, READ]),
    row("batch_get_session_end", ["k", "none"], gives=0, before=[K, READ],
        after=[(("batch_get_into_multi_buffer_ranges", ["k"], [[AT]], [[1]], [[0]]), [-600])]),
    # places and tasks
    row("get_replica_desc", "absent", gives=[]),
    row("batch_get_replica_desc", [], gives={}),
    row("create_copy_task", "absent", ["127.0.0.1:1"], gives=((0, 0), -704)),
    row("create_copy_task", "k", ["127.0.0.1:1"], gives=((0, 0), -600), before=[K]),
    row("create_copy_task", "k", [], gives=((0, 0), -600), before=[K]),
    row("create_move_task", "k", "127.0.0.1:1", "127.0.0.1:1", gives=((0, 0), -600), before=[K]),
    row("query_task", (1, 2), gives=(None, -1400)),
    row("batch_replica_clear", ["k", "absent"], "", gives=["k"], before=[K],
        after=[(("is_exist", "k"), 0)]),
    row("batch_replica_clear", ["k"], "127.0.0.1:1", gives=[], before=[K],
        after=[(("is_exist", "k"), 1)]),
    # what there is none of
    row("mount_segment", "/dev/shm/none", 4096, gives={"ret": -1, "segment_ids": []}),
    row("unmount_local_disk_segment", gives=0),
    row("get_offload_rpc_read_count", gives=0),
    row("setup_dummy", 1, 1, "127.0.0.1:1", gives=-1),
    row("_get_pyclient_capsule", gives=NotImplementedError),
]  # fmt: skip


@pytest.mark.parametrize("each", ROWS, ids=str)
def test_row(store: MooncakeDistributedStore, each: Row) -> None:
    run(store, each)


def endpoints_of(store: MooncakeDistributedStore, key: str) -> list[str]:
    return [
        each.get_memory_descriptor().buffer_descriptor.transport_endpoint
        for each in store.get_replica_desc(key)
    ]


def all_endpoints(store: MooncakeDistributedStore) -> list[str]:
    assert store._client is not None
    return [each.addresses[0] for each in store._client.members() if each.state == "ready"]


@covers("get_replica_desc", "batch_get_replica_desc")
def test_a_descriptor_tells_where_a_replica_is(store: MooncakeDistributedStore) -> None:
    wish = ReplicateConfig()
    wish.replica_num = 2
    assert store.put("k", b"value", wish) == 0
    found = store.batch_get_replica_desc(["k", "absent", "k"])
    assert set(found) == {"k"}
    assert sorted(endpoints_of(store, "k")) == sorted(all_endpoints(store))
    for replica in found["k"]:
        assert replica.status == ReplicaStatus.COMPLETE
        assert replica.is_memory_replica()
        assert not replica.is_disk_replica()
        assert not replica.is_local_disk_replica()
        assert replica.get_memory_descriptor().buffer_descriptor.size == 5
        with pytest.raises(RuntimeError):
            replica.get_disk_descriptor()


@covers("create_copy_task", "create_move_task", "query_task", "batch_replica_clear")
def test_copies_and_moves_are_tasks_that_end(store: MooncakeDistributedStore) -> None:
    def wait_for(task: tuple[int, int]) -> TaskStatus:
        end = time.monotonic() + 10
        while True:
            answer, number = store.query_task(task)
            assert answer is not None
            assert (number, answer.id) == (0, task)
            if answer.status in (TaskStatus.SUCCESS, TaskStatus.FAILED):
                assert answer.last_updated_at_ms_epoch >= answer.created_at_ms_epoch > 0
                return answer.status
            assert time.monotonic() < end
            time.sleep(0.01)

    one, two = all_endpoints(store)
    wish = ReplicateConfig()
    wish.preferred_segment = one
    assert store.put("k", b"value", wish) == 0
    assert endpoints_of(store, "k") == [one]
    task, number = store.create_move_task("k", one, two)
    assert (number, wait_for(task)) == (0, TaskStatus.SUCCESS)
    assert endpoints_of(store, "k") == [two]
    task, number = store.create_copy_task("k", [one])
    assert (number, wait_for(task)) == (0, TaskStatus.SUCCESS)
    assert sorted(endpoints_of(store, "k")) == sorted([one, two])
    answer, _ = store.query_task(task)
    assert answer is not None
    assert answer.type == TaskType.REPLICA_COPY
    assert "SUCCESS" in repr(answer)
    assert store.batch_replica_clear(["k"], two) == ["k"]
    assert endpoints_of(store, "k") == [one]
    task, _ = store.create_move_task("k", two, one)  # it has none there
    assert wait_for(task) == TaskStatus.FAILED
    assert store.batch_replica_clear(["k"], one) == ["k"]
    assert store.is_exist("k") == 0


def test_a_read_session_keeps_its_objects_from_being_evicted(
    store: MooncakeDistributedStore,
) -> None:
    assert store.put("k", b"value") == 0
    assert store.batch_get_session_start(["k"]) == [0]
    assert store._client is not None
    stat = store._client.stat(store._key("k"))
    assert stat is not None
    assert stat.pin_count == 1
    assert store.batch_get_session_end(["k"]) == 0
    stat = store._client.stat(store._key("k"))
    assert stat is not None
    assert stat.pin_count == 0


def test_ranges_of_one_put_may_be_written_by_many_threads(
    store: MooncakeDistributedStore,
) -> None:
    size, parts = 1 << 20, 8
    source = np.random.default_rng(1).integers(0, 256, size, dtype="u1")
    base, step = source.ctypes.data, size // parts
    assert store.batch_put_session_start(["big"], [size]) == [0]

    def write(part: int) -> None:
        at = part * step
        answer = store.batch_put_from_multi_buffer_ranges(["big"], [[base + at]], [[step]], [[at]])
        assert answer == [step]

    threads = [threading.Thread(target=write, args=(part,)) for part in range(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.batch_put_session_end(["big"]) == [0]
    assert store.get("big") == source.tobytes()


# ---- pools and memory ----


def test_a_pool_lends_registered_buffers_again_and_again(store: MooncakeDistributedStore) -> None:
    pool = BufferPool(store, max_bytes=1 << 20, min_size_class=4096, prewarm_size=5000,
                      prewarm_count=2)  # fmt: skip
    lease = pool.acquire(5000)
    address = lease.ptr
    assert (lease.size, len(lease.buffer)) == (5000, 5000)
    assert store.register_buffer(address, 4096) == -600  # it is registered
    lease.buffer[:4] = b"data"
    assert store.put_from("k", lease.ptr, 4) == 0
    lease.release()
    lease.release()
    with pytest.raises(RuntimeError, match="lease is closed"):
        _ = lease.ptr
    with pool.buffer(6000) as again:
        assert again.ptr == address
    with pytest.raises(RuntimeError, match="exceeds pool capacity"):
        pool.acquire(2 << 20)
    with pytest.raises(ValueError, match="above 0"):
        pool.acquire(0)
    held = [pool.acquire(1 << 18, False) for _ in range(4)]
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(1 << 18, block=False)
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(1 << 18, timeout=0.05)
    threading.Timer(0.05, held[0].release).start()
    assert pool.acquire(1 << 18, timeout=5).size == 1 << 18
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.acquire(10)
    kept = held[1].ptr
    held[1].release()
    assert store.unregister_buffer(kept) == -600  # given back


def test_host_memory_is_allocated_by_address() -> None:
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(8192)
    assert address % 4096 == 0
    ctypes.memset(address, 7, 8192)
    assert allocator.free(address) == 0
    assert allocator.free(address) == -1
    with pytest.raises(RuntimeError):
        allocator.alloc(0)
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(get_alloc_func_addr())
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(get_free_func_addr())
    memory = allocate(64)
    ctypes.memset(memory, 1, 64)
    free(memory)


def test_a_thread_is_bound_to_a_node_that_there_is() -> None:
    failed: list[BaseException] = []

    def bind() -> None:
        try:
            bind_to_numa_node(0)
            with pytest.raises(ValueError, match="no NUMA node"):
                bind_to_numa_node(4000)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=bind)  # the binding is this thread's only
    thread.start()
    thread.join()
    assert not failed


def test_what_there_is_none_of_says_so() -> None:
    register = MooncakeDistributedNoFRegister()
    assert register.real_register("e", 1, "n", 0, 1, 1, "m") == -1011
    assert register.real_unregister_by_endpoint("e", 1, "n", 1, "m") == -1011
    with pytest.raises(NotImplementedError):
        _get_pyclient_from_wrapper(MooncakeDistributedStore())


# ---- embedding tables ----


def test_rows_of_embedding_tables_are_read_alone(
    open_store: Callable[..., MooncakeDistributedStore],
) -> None:
    store = open_store()
    config = EngramStoreConfig()
    assert (config.table_vocab_sizes, config.embedding_dim) == ([1024], 64)
    config.table_vocab_sizes, config.embedding_dim = [8, 4], 3
    tables = EngramStore(7, config, store)
    assert tables.get_store_keys() == ["engram:l7:h0", "engram:l7:h1"]
    assert (tables.get_num_heads(), tables.get_embedding_dim()) == (2, 3)
    assert tables.get_table_vocab_sizes() == [8, 4]
    one = np.arange(24, dtype=np.float32).reshape(8, 3)
    two = np.arange(12, dtype=np.float32).reshape(4, 3)
    with pytest.raises(RuntimeError, match="not stored"):
        tables.lookup(np.array([[[1, 2]]]))
    tables.populate([one, two])
    assert [store.get_size(key) for key in tables.get_store_keys()] == [96, 48]
    found = tables.lookup(np.array([[[1, 2], [7, 3]]]))
    assert found.dtype == np.float32
    assert found.tolist() == [[[[3, 4, 5], [6, 7, 8]], [[21, 22, 23], [9, 10, 11]]]]
    with pytest.raises(RuntimeError, match="beyond its table"):
        tables.lookup(np.array([[[8, 2]]]))
    with pytest.raises(RuntimeError, match="shape"):
        tables.populate([one, one])
    assert tables.remove_from_store(True) == 2
