"""How a client is set up and ends, and whose objects it sees."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from mooncake_store.cli.bench.cluster import Cluster
from tests.compat.rows import covers

MIB = 1 << 20
Open = Callable[..., MooncakeDistributedStore]


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@covers("setup")
def test_a_dict_of_texts_sets_up_with_either_spelling(cluster: Cluster) -> None:
    for master in ("master_server_addr", "master_server_address"):
        for devices in ("rdma_devices", "device_name"):
            store = MooncakeDistributedStore()
            given = {
                "local_hostname": "127.0.0.1",
                "metadata_server": "P2PHANDSHAKE",
                "global_segment_size": "0",
                "local_buffer_size": "16MB",
                "protocol": "tcp",
                "enable_ssd_offload": "false",
                devices: "",
                master: cluster.address,
            }
            assert store.setup(given) == 0
            assert store.setup(config=given) == 0  # a second time nothing happens
            assert store.is_exist("absent") == 0
            assert store.close() == 0


def test_a_dict_with_an_unknown_name_or_two_masters_raises(cluster: Cluster) -> None:
    given = {"local_hostname": "127.0.0.1", "master_server_addr": cluster.address}
    with pytest.raises(ValueError, match="'transfer_timeout' is no setting"):
        MooncakeDistributedStore().setup({**given, "transfer_timeout": "1"})
    with pytest.raises(ValueError, match="are the same and differ"):
        MooncakeDistributedStore().setup({**given, "master_server_address": "127.0.0.1:1"})
    with pytest.raises(ValueError, match="local_hostname is needed"):
        MooncakeDistributedStore().setup({"protocol": "tcp"})


def test_an_unknown_keyword_is_named_by_a_type_error(cluster: Cluster) -> None:
    arguments = ("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", cluster.address)
    with pytest.raises(TypeError, match="no_such_setting"):
        MooncakeDistributedStore().setup(*arguments, no_such_setting=1)
    with pytest.raises(ValueError, match="take tcp"):
        MooncakeDistributedStore().setup("h", "", 0, 0, "ascend", "", cluster.address)
    for word in ("enable_ssd_offload", "ssd_offload_path", "tenant_id"):
        assert word in (MooncakeDistributedStore.setup.__doc__ or "")


def test_eight_positional_arguments_and_the_later_keywords_are_taken(cluster: Cluster) -> None:
    store = MooncakeDistributedStore()
    assert (
        store.setup(
            "127.0.0.1:12345",
            "http://127.0.0.1:8080/metadata",
            0,
            16 * MIB,
            "rdma",
            "mlx5_0",
            cluster.address,
            None,
            enable_ssd_offload=True,
            ssd_offload_path="/tmp",
            tenant_id="t",
        )
        == 0
    )
    assert store.close() == 0


def test_an_unreachable_master_is_told_within_seconds() -> None:
    began = time.monotonic()
    arguments = ("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", "127.0.0.1:1")
    store = MooncakeDistributedStore()
    assert store.setup(*arguments) == -1
    with pytest.raises(RuntimeError, match="setup failed"):
        store.setup({"local_hostname": "127.0.0.1", "master_server_addr": "127.0.0.1:1"})
    assert time.monotonic() - began < 15
    assert store.is_exist("k") == 0  # as before any setup


@pytest.mark.parametrize("is_closed", [False, True])
def test_calls_before_setup_and_after_close_answer_a_number(
    open_store: Open, is_closed: bool
) -> None:
    store = open_store() if is_closed else MooncakeDistributedStore()
    store.close()
    assert store.put("k", b"v") == -600
    assert store.get("k") == b""
    assert store.get_batch(["k"]) == [b""]
    assert store.get_buffer("k") is None
    assert store.is_exist("k") == 0
    assert store.batch_is_exist(["k", "l"]) == [-600, -600]
    assert store.batch_put_from(["k"], [1], [1]) == [-600]
    assert store.batch_get_into(["k"], [1], [1]) == [-600]
    assert store.remove("k") == -600
    assert store.remove_all() == -600
    assert store.register_buffer(4096, 1) == -600
    assert store.close() == 0


def test_a_segment_is_a_store_server_that_ends_with_its_client(open_store: Open) -> None:
    store = open_store(8 * MIB)
    (segment,) = store._segments.values()
    assert store.get_hostname() == segment.endpoint
    assert is_alive(segment.pid)
    wish = ReplicateConfig()
    wish.preferred_segment = store.get_hostname()
    assert store.put("k", b"value", wish) == 0
    client = store._client
    assert client is not None
    stat = client.stat(store._key("k"))
    assert stat is not None
    assert [replica.node for replica in stat.replicas] == [segment.name]
    assert store.close() == 0
    assert not is_alive(segment.pid)
    assert store.setup("127.0.0.1", "", 0, 0, "tcp", "", "127.0.0.1:1") == -1


@covers("init_all")
def test_init_all_takes_the_master_of_the_environment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONCAKE_MASTER", cluster.address)
    store = MooncakeDistributedStore()
    assert store.init_all("tcp", "", 0) == 0
    assert store.health_check() == 0
    assert store.close() == 0


@covers("allocate_and_mount_segment", "unmount_segment", "unmount_and_free_segment")
def test_segments_come_and_go_with_or_without_their_objects(open_store: Open) -> None:
    store = open_store()
    mounted = store.allocate_and_mount_segment(16 * MIB)
    assert (mounted["ret"], mounted["allocated_size"]) == (0, 16 * MIB)
    (segment,) = mounted["segment_ids"]
    process = store._segments[segment]
    wish = ReplicateConfig()
    wish.preferred_segments = ["10.9.8.7:6", process.endpoint]
    assert store.put("k", b"value", wish) == 0
    (replica,) = store.get_replica_desc("k")
    place = replica.get_memory_descriptor().buffer_descriptor.transport_endpoint
    assert place == process.endpoint
    assert store.unmount_segment([segment, "unknown"]) == -1
    assert store.unmount_and_free_segment([segment], 20) == 0
    assert not is_alive(process.pid)
    assert store.get("k") == b"value"  # it was moved
    assert store.unmount_segment([segment]) == -1
    assert store.allocate_and_mount_segment(0)["ret"] == -1
    assert store.mount_segment("/dev/shm/none", MIB) == {"ret": -1, "segment_ids": []}
    assert store.unmount_local_disk_segment() == 0
    store.remove_all(True)


def test_tenants_see_and_remove_their_own_objects_only(open_store: Open) -> None:
    one, two = open_store(tenant_id="one"), open_store(tenant_id="two")
    default = open_store(tenant_id="default")
    for store in (one, two, default):
        assert store.put("k", store._prefix.encode() + b".") == 0
        assert store.put("k2", b"v") == 0
    assert one.get("k") != two.get("k") != default.get("k")
    assert one.remove_all(True) == 2
    assert (two.is_exist("k"), default.is_exist("k")) == (1, 1)
    assert default.remove_by_regex("k$") == 1
    assert default.remove_by_regex(r"^k\d") == 1
    assert (two.is_exist("k"), default.is_exist("k")) == (1, 0)
    assert default.put("k", b"v") == 0
    assert default.remove_all() == 1
    assert two.batch_is_exist(["k", "k2"]) == [1, 1]
    assert two.remove_by_regex("^k2") == 1
    assert two.remove_all() == 1


def test_a_tenant_that_can_be_none_is_refused(cluster: Cluster) -> None:
    given = ("127.0.0.1", "", 0, 0, "tcp", "", cluster.address)
    with pytest.raises(ValueError, match="tenant_id"):
        MooncakeDistributedStore().setup(*given, tenant_id="a\x1fb")


def test_memory_of_a_read_may_be_registered_or_not(open_store: Open) -> None:
    store = open_store()
    memory = bytearray(b"x" * 4096)
    import numpy as np

    address = np.frombuffer(memory, "u1").ctypes.data
    assert store.register_buffer(address, 4096) == 0
    assert store.put_from("k", address, 4096) == 0
    assert store.unregister_buffer(address) == 0
    memory[:] = bytes(4096)
    assert store.get_into("k", address, 4096) == 4096
    assert memory == b"x" * 4096
    store.remove_all()
