"""The verdicts of doctor, on machines that are not like this one."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
from dataclasses import replace
from ipaddress import IPv6Address, ip_interface
from pathlib import Path

import pytest

from mooncake_store.cli.checks import (
    Check,
    clock,
    installation,
    kernel,
    limits,
    master,
    memory,
    network,
    ports,
    runtime_folder,
    verbs,
)
from mooncake_store.cli.contexts import Target
from mooncake_store.cli.locations import document_of, lines_of
from mooncake_store.config import GIB, MIB
from mooncake_store.transfer_engine.topology import (
    Device,
    Gid,
    GidType,
    Nic,
    NicKind,
    RdmaPort,
    Topology,
    make_matrix,
)

INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        (memory.shared_memory_check(64 * GIB, 60 * GIB, is_container=False), "ok"),
        (memory.shared_memory_check(2 * GIB, 2 * GIB, is_container=False), "warn"),
        (memory.shared_memory_check(64 * MIB, 63 * MIB, is_container=True), "warn"),
        (memory.shared_memory_check(64 * GIB, 1 * MIB, is_container=False), "fail"),
        (memory.memory_check(64 * GIB), "ok"),
        (memory.memory_check(1 * GIB), "warn"),
        (memory.memlock_check(INFINITE, has_rdma=True), "ok"),
        (verbs.verbs_check(None), "ok"),
        (verbs.verbs_check([]), "fail"),
        (verbs.verbs_check([verbs.VerbsDevice("mlx5_0", "", 131072, 1 << 40)]), "ok"),
        (verbs.verbs_check([verbs.VerbsDevice("rxe0", "", 256, 1 << 40)]), "warn"),
        (
            verbs.verbs_check(
                [
                    verbs.VerbsDevice("mlx5_0", "", 131072, 1 << 40),
                    verbs.VerbsDevice("mlx5_1", "Permission denied"),
                ]
            ),
            "fail",
        ),
        (memory.memlock_check(8 * MIB, has_rdma=False), "ok"),
        (memory.memlock_check(8 * MIB, has_rdma=True), "warn"),
        (memory.huge_pages_check(0, 2 * MIB, "always within_size advise [never] deny"), "ok"),
        (memory.huge_pages_check(512, 2 * MIB, "[never]"), "ok"),
        (memory.huge_pages_check(0, 2 * MIB, ""), "ok"),
        (limits.descriptors_check(1024, INFINITE), "ok"),
        (limits.descriptors_check(1024, 1 << 20), "ok"),
        (limits.descriptors_check(1024, 4096), "warn"),
        (limits.descriptors_check(1024, 20_000), "warn"),  # too few for gRPC beside the rest
        (limits.descriptors_check(256, 256), "fail"),
        (clock.clock_check("tsc", 60.0), "ok"),
        (clock.clock_check("hpet", 2500.0), "warn"),
        (clock.clock_check("tsc", 60.0, True), "ok"),
        (clock.clock_check("tsc", 60.0, False), "warn"),
        (clock.clock_check("tsc", 60.0, None), "ok"),
        (installation.rdma_library_check(has_library=False, has_rdma=True), "warn"),
        (installation.rdma_library_check(has_library=False, has_rdma=False), "ok"),
        (installation.rdma_library_check(has_library=True, has_rdma=True), "ok"),
        (ports.free_ports_check(7700, range(32768, 61000), frozenset()), "ok"),
        (ports.free_ports_check(7700, range(1024, 65536), frozenset()), "warn"),
        (ports.free_ports_check(7700, range(1024, 65536), frozenset({7700, 7701})), "warn"),
        (ports.free_ports_check(7700, range(1024, 65536), frozenset({7700, 7701, 7702})), "ok"),
        (kernel.kernel_check([], "6.1"), "ok"),
        (kernel.kernel_check(["pidfd", "MADV_POPULATE"], "5.4"), "warn"),
        (kernel.kernel_check(["memfd"], "3.10"), "fail"),
        (installation.version_check((3, 9)), "fail"),
        (installation.version_check((3, 13)), "ok"),
        (installation.extension_check(), "ok"),
    ],
)
def test_verdicts(check: Check, verdict: str) -> None:
    assert check.verdict == verdict
    assert check.name and check.why
    if verdict != "ok":
        assert check.fix


def test_a_container_is_told_what_its_host_would_not_be() -> None:
    inside = memory.shared_memory_check(64 * MIB, 64 * MIB, is_container=True)
    outside = memory.shared_memory_check(64 * MIB, 64 * MIB, is_container=False)
    assert "--shm-size" in inside.fix
    assert "mount" in outside.fix


def test_pools_that_killed_servers_left_are_found(tmp_path: Path) -> None:
    for name, size_bytes in (("dead", 2 * MIB), ("alive", 2 * MIB), ("empty", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").write_text("1\n")
        (tmp_path / name / "payload-0").write_bytes(b"x" * size_bytes)
    with open(tmp_path / "alive" / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        check = memory.leftovers_check(tmp_path)
    assert check.verdict == "warn"
    assert check.why.endswith(": dead")
    assert str(tmp_path / "dead") in check.fix
    assert memory.leftovers_check(tmp_path / "none").verdict == "ok"


def test_the_process_on_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check = ports.ports_check(port)
    assert check.verdict == "warn"
    assert f"{port} by pid {os.getpid()} (" in check.why


def test_a_master_that_was_named_and_is_away_is_a_failure() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens, and nobody else can
        address = f"127.0.0.1:{held.getsockname()[1]}"
        named = master.master_check(Target(address, "flag --master"), 2.0)
        unnamed = master.master_check(Target(address, "default"), 2.0)
    assert (named.verdict, unnamed.verdict) == ("fail", "warn")
    assert "MS-1201" in named.why
    assert "mooncake-store up" in named.fix


def test_a_runtime_folder_with_a_long_path_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    assert runtime_folder.runtime_check().verdict == "fail"


def test_a_runtime_folder_that_is_open_to_others_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "mooncake-store").mkdir(mode=0o755)
    check = runtime_folder.runtime_check()
    assert check.verdict == "fail"
    assert "chmod 700" in check.why


def test_this_machine_s_clock_is_measured() -> None:
    assert 1 < clock.measure_clock_ns() < 1e6
    assert clock.is_clock_kept() in (True, False, None)


def test_the_kernel_s_ports_are_read(tmp_path: Path) -> None:
    (tmp_path / "ip_local_port_range").write_text("1024\t65535\n")
    (tmp_path / "ip_local_reserved_ports").write_text("7700-7702,8080\n")
    assert ports.ephemeral_ports(tmp_path) == (
        range(1024, 65536),
        frozenset({7700, 7701, 7702, 8080}),
    )
    assert ports.ephemeral_ports(tmp_path / "none") == (range(0), frozenset())
    assert len(ports.ephemeral_ports()[0]) > 1000


# ---- network -------------------------------------------------------------------------------------


def nic(name: str, *addresses: str, **more: object) -> Nic:
    return Nic(name, tuple(map(ip_interface, addresses)), **more)  # type: ignore[arg-type]


def roce(*gids: tuple[str, GidType], **more: object) -> RdmaPort:
    table = tuple(Gid(i, IPv6Address(value), kind) for i, (value, kind) in enumerate(gids))
    return RdmaPort("mlx5_0", gids=table, **more)  # type: ignore[arg-type]


LO = nic("lo", "127.0.0.1/8", kind=NicKind.LOOPBACK)
V2 = roce(("fe80::1", GidType.ROCE_V2), ("::ffff:10.0.0.7", GidType.ROCE_V2))


@pytest.mark.parametrize(
    ("nics", "verdict", "words"),
    [
        ((nic("eth0", "10.0.0.7/24"), LO), "ok", "TCP by eth0; RDMA by none"),
        ((nic("eth0", "10.0.0.7/24", rdma=V2), LO), "ok", "RDMA by eth0"),
        ((LO,), "warn", "there is no interface"),
        ((nic("eth0", "10.0.0.7/24", is_up=False), LO), "warn", "eth0: link is down"),
        ((nic("eth0"), LO), "warn", "eth0: no IP address"),
        # Routing on the host: the address of loopback is the host's.
        ((nic("lo", "127.0.0.1/8", "10.255.0.7/32", kind=NicKind.LOOPBACK),), "ok", "TCP by lo"),
        (
            (
                nic("eth0", "10.0.0.7/24"),
                nic("ib0", rdma=RdmaPort("m", is_active=False, state="INIT")),
            ),
            "warn",
            "ib0: cabled, but no subnet manager",
        ),
        (tuple(nic(f"eth{i}", f"10.0.{i}.7/24") for i in range(9)), "ok", "eth5, 3 more"),
    ],
)
def test_the_way_to_others(nics: tuple[Nic, ...], verdict: str, words: str) -> None:
    check = network.network_check(Topology(nics))
    assert check.verdict == verdict and words in check.why
    assert bool(check.fix) == (verdict != "ok")


@pytest.mark.parametrize(
    ("arp_ignore", "verdict", "words"),
    [
        (0, "warn", "eth0, eth1 are in one network, 10.0.0.0/24, and each answers"),
        (1, "ok", "eth0, eth1 are in one network, 10.0.0.0/24"),
    ],
)
def test_interfaces_in_one_network(arp_ignore: int, verdict: str, words: str) -> None:
    two = Topology((nic("eth0", "10.0.0.7/24"), nic("eth1", "10.0.0.8/24"), LO))
    check = network.neighbour_check(two, arp_ignore)
    assert check is not None
    assert check.verdict == verdict and words in check.why
    assert bool(check.fix) == (verdict != "ok")
    apart = Topology((nic("eth0", "10.0.0.7/24"), nic("eth1", "10.0.1.8/24"), LO))
    assert network.neighbour_check(apart, arp_ignore) is None


@pytest.mark.parametrize(
    ("nics", "verdict", "words"),
    [
        ((nic("eth0", "10.0.0.7/24", mtu=1500), LO), "ok", "eth0 1500"),
        (
            (nic("eth0", "10.0.0.7/24", mtu=9000), nic("eth1", "10.0.1.7/24", mtu=1500)),
            "warn",
            "they differ",
        ),
        # What is of a lesser grade, or another kind, is not compared.
        (
            (
                nic("eth0", "10.0.0.7/24", mtu=9000),
                nic("docker0", "172.17.0.1/16", mtu=1500, kind=NicKind.VIRTUAL),
                nic("ib0", "10.9.0.7/24", mtu=2044, kind=NicKind.INFINIBAND),
            ),
            "ok",
            "eth0 9000, ib0 2044",
        ),
        (
            (
                nic("bond0", "10.0.0.7/24", mtu=9000, kind=NicKind.BOND),
                nic("eth0", mtu=1500, master="bond0"),
            ),
            "warn",
            "bond0 sends packets of 9000 bytes by eth0, which takes 1500",
        ),
        (
            (
                nic("eth0", "10.0.0.7/24", mtu=1500),
                nic("eth0.5", "10.5.0.7/24", mtu=9000, kind=NicKind.VLAN, lowers=("eth0",)),
            ),
            "warn",
            "eth0.5 sends packets of 9000 bytes by eth0",
        ),
        ((nic("eth0", "10.0.0.7/24", mtu=1500, rdma=V2),), "warn", "RoCE packets of 1024 bytes"),
        ((nic("eth0", "10.0.0.7/24", mtu=4200, rdma=V2),), "ok", "eth0 4200"),
        (
            (nic("eth0", "10.0.0.7/24", mtu=1500, rdma=replace(V2, is_software=True)),),
            "ok",
            "eth0 1500",
        ),
        ((), "ok", "no interface"),
    ],
)
def test_sizes_of_packets(nics: tuple[Nic, ...], verdict: str, words: str) -> None:
    check = network.mtu_check(Topology(nics))
    assert check.verdict == verdict and words in check.why
    assert bool(check.fix) == (verdict != "ok")


@pytest.mark.parametrize(
    ("port", "index", "verdict", "words"),
    [
        (V2, None, "ok", "mlx5_0: 1, ::ffff:a00:7 (RoCE v2, IPv4-mapped"),
        (V2, 0, "warn", "reaches its own link only"),
        (V2, 7, "fail", "no GID has the index 7"),
        (roce(("fe80::1", GidType.ROCE_V2)), None, "warn", "reaches its own link only"),
        (roce(("::ffff:10.0.0.7", GidType.ROCE_V1)), None, "warn", "RoCE v1"),
    ],
)
def test_gids(port: RdmaPort, index: int | None, verdict: str, words: str) -> None:
    topology = Topology((nic("eth0", "10.0.0.7/24", rdma=port, gid_index=index),))
    check = network.gid_check(topology)
    assert check is not None
    assert check.verdict == verdict and words in check.why
    assert bool(check.fix) == (verdict != "ok")


def test_without_roce_there_is_no_gid_to_choose() -> None:
    assert network.gid_check(Topology((nic("eth0", "10.0.0.7/24"), LO))) is None


# ---- locations -----------------------------------------------------------------------------------


def test_locations_say_what_is_chosen_and_why() -> None:
    nics = (
        nic("eth0", "10.0.0.7/24", numa_node=0, rdma=V2),
        nic("eth1", "10.0.1.7/24", numa_node=1),
        nic("eth2", "10.0.2.7/24", is_up=False),
        LO,
    )
    devices = (Device("cpu:0", 0), Device("cpu:1", 1, node_distances={0: 21}))
    topology = Topology(nics, make_matrix(nics, devices), devices)
    assert list(lines_of(topology)) == [
        ("cpu:0 tcp", "eth0/mlx5_0 (same NUMA node 0); then eth1; last lo"),
        ("cpu:1 tcp", "eth1 (same NUMA node 1); then eth0/mlx5_0; last lo"),
        ("cpu:0 rdma", "eth0/mlx5_0 (same NUMA node 0)"),
        ("cpu:1 rdma", "eth0/mlx5_0 (NUMA node 0, not 1, distance 21)"),
        ("not used", "eth2 (link is down)"),
    ]
    verbose = list(lines_of(topology, is_verbose=True))
    assert ("cpu:1 tcp", "secondary: eth0/mlx5_0, NUMA node 0, not 1, distance 21") in verbose
    document = document_of(topology)
    assert json.loads(json.dumps(document)) == document
    assert document["nics"][0]["rdma"]["gid"]["index"] == 1
    assert document["nics"][2]["unusable"] == {"tcp": "link is down", "rdma": "no RDMA device"}
    first = document["locations"][0]
    assert (first["location"], first["transport"]) == ("cpu:0", "tcp")
    assert [item["tier"] for item in first["nics"]] == ["preferred", "secondary", "other"]
