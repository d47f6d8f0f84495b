"""Machines of clouds, from their documents."""

from __future__ import annotations

from tests.sysfs_trees.machine import machine
from tests.sysfs_trees.tree import AMAZON, INFINIBAND, Tree

TWO_SOCKETS = ((10, 21), (21, 10))


def efa(tree: Tree, name: str, card: str, index: int) -> None:
    """Make an Elastic Fabric Adapter: a port without link layer and IP address."""
    tree.rdma(
        name, card, layer="Unspecified", node_type="7: <unknown>",
        rate="100 Gb/sec (4X EDR)", gids=[(f"fe80::{index + 1:x}:2ff:fe00:1", "IB/RoCE v1", "")],
    )  # fmt: skip


@machine(
    "Amazon EC2 User Guide, P4d: four network cards, each with an ENA interface and an EFA, on the "
    "PCIe switch of two GPUs (also aws-ofi-nccl, p4d-24xl-topo.xml)",
    {
        "cuda:0 rdma": "rdmap16s27 | rdmap32s27 rdmap144s27 rdmap160s27 |",
        "cuda:3 rdma": "rdmap32s27 | rdmap16s27 rdmap144s27 rdmap160s27 |",
        "cuda:7 rdma": "rdmap160s27 | rdmap144s27 rdmap16s27 rdmap32s27 |",
        "cpu:0 tcp": "ens32 ens64 | ens96 ens128 | lo",
    },
)
def aws_p4d(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    for index, bus in enumerate(("10", "20", "90", "a0")):
        node = index // 2
        for slot in ("1c", "1d"):
            tree.gpu(f"pci0000:{bus}/0000:{bus}:{slot}.0", node)
        card = tree.pci(f"pci0000:{bus}/0000:{bus}:1b.0", node=node, vendor=AMAZON)
        efa(tree, f"rdmap{int(bus, 16)}s27", card, index)
        ena = tree.pci(f"pci0000:{bus}/0000:{bus}:19.0", node=node, vendor=AMAZON)
        tree.net(f"ens{32 * (index + 1)}", ena, f"10.0.{index}.9/24", mtu=9001)
    tree.loopback()


@machine(
    "Amazon EC2 User Guide, P5: 32 network cards with EFA, four on the PCIe switch of each of the "
    "eight GPUs; the first has an IP address",
    {
        "cuda:0 rdma": "rdmap80s0 rdmap81s0 rdmap82s0 rdmap83s0 | "
        + " ".join(f"rdmap{bus + i}s0" for bus in range(96, 208, 16) for i in range(4))
        + " |",
        "cpu:0 tcp": "ens32 | | lo",
    },
)  # fmt: skip
def aws_p5(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    for group in range(8):
        bus = 0x50 + 0x10 * group
        switch = f"pci0000:{bus - 2:02x}/0000:{bus - 2:02x}:01.0/0000:{bus - 1:02x}:00.0"
        for i in range(4):
            card = tree.pci(f"{switch}/0000:{bus + i:02x}:00.0", node=group // 4, vendor=AMAZON)
            efa(tree, f"rdmap{bus + i}s0", card, 4 * group + i)
        tree.gpu(f"{switch}/0000:{bus + 4:02x}:00.0", group // 4)
    ena = tree.pci("pci0000:44/0000:44:00.0", node=0, vendor=AMAZON)
    tree.net("ens32", ena, "10.0.0.9/20", "2600:1f13::9/128", mtu=9001)
    tree.loopback()


@machine(
    "Amazon EC2 User Guide, M5: one Elastic Network Adapter, whose speed cannot be read",
    {"cpu:0 tcp": "ens5 | | lo", "cpu:0 rdma": "| |"},
)
def aws_m5(tree: Tree) -> None:
    tree.nodes([[10]])
    card = tree.pci("pci0000:00/0000:00:05.0", vendor=AMAZON)
    tree.net("ens5", card, "172.31.5.7/20", mtu=9001)
    tree.loopback()


def _ports(first: int) -> str:
    return " ".join(f"ibP{number}s0" for number in range(first, first + 4))


@machine(
    "Microsoft Azure, ND A100 v4 and NDv4 documents: eight InfiniBand ports as virtual functions, "
    "each in a PCI domain of its own below VMBus; Ethernet with accelerated networking",
    {
        "cuda:0 rdma": f"{_ports(257)} | {_ports(261)} |",
        "cuda:7 rdma": f"{_ports(261)} | {_ports(257)} |",
        "cpu:0 tcp": "ibP257s0 eth0 | | lo",
    },
)
def azure_nd_a100(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    bus = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00"
    for index in range(8):
        node = index // 4
        domain = f"{index + 1:04x}"
        tree.gpu(f"{bus}/5b1e-{index}/pci{domain}:00/{domain}:00:00.0", node)
        domain = f"01{index + 1:02x}"
        card = tree.pci(
            f"{bus}/47505500-{index}/pci{domain}:00/{domain}:00:00.0", node=node, kind=INFINIBAND
        )
        name = f"ibP{int(domain, 16)}s0"
        # Only the first has been given an address.
        addresses = ("172.16.1.7/16",) if index == 0 else ()
        tree.net(name, card, *addresses, type=32, mtu=2044, speed=None)
        tree.infiniband(f"mlx5_{index}", card, lid=900 + index)
    hyperv = f"devices/{bus}/f8615163-eth0"
    tree.write(hyperv, vendor="0x1414")
    tree.net("eth0", hyperv, "10.0.0.4/24", speed=50_000)
    vf = tree.pci(f"{bus}/cd16-vf/pci9f2b:00/9f2b:00:02.0", node=0)
    tree.net("enP40747s1", vf, speed=50_000, master="eth0")
    tree.rdma("mlx5_an0", vf, gids=[])
    tree.loopback()


@machine(
    "Microsoft Azure, how accelerated networking works in Linux: a synthetic interface with a "
    "virtual function below it, which must not be used by itself",
    {"cpu:0 tcp": "eth0 | | lo"},
)
def azure_accelerated(tree: Tree) -> None:
    tree.nodes([[10]])
    hyperv = "devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/000d3a-eth0"
    tree.write(hyperv, vendor="0x1414")
    tree.net("eth0", hyperv, "10.1.0.4/24", speed=40_000)
    vf = tree.pci("LNXSYSTM:00/VMBUS:00/aa-bb/pcie27d:00/e27d:00:02.0")
    tree.net("enP57981s1", vf, "10.1.0.4/24", speed=40_000, master="eth0")
    tree.loopback()


@machine(
    "Google Cloud, A3 High: one gVNIC for everything and four for GPU traffic, each on the PCIe "
    "switch of two GPUs",
    {
        "cuda:0 tcp": "enp6s0 | enp12s0 enp0s12 enp134s0 enp140s0 | lo",
        "cuda:6 tcp": "enp140s0 | enp134s0 enp0s12 enp6s0 enp12s0 | lo",
        "cpu:1 tcp": "enp134s0 enp140s0 | enp0s12 enp6s0 enp12s0 | lo",
    },
)
def gcp_a3_high(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    for index, bus in enumerate((0x04, 0x0A, 0x84, 0x8A)):
        node = index // 2
        switch = f"pci0000:{bus - 1:02x}/0000:{bus - 1:02x}:00.0/0000:{bus:02x}:00.0"
        for slot in (0, 1):
            tree.gpu(f"{switch}/0000:{bus + 1:02x}:0{slot}.0", node)
        card = tree.pci(f"{switch}/0000:{bus + 2:02x}:00.0", node=node, vendor="0x1ae0")
        tree.net(f"enp{bus + 2}s0", card, f"10.{index + 1}.0.2/32", speed=200_000, mtu=8244)
    card = tree.pci("pci0000:00/0000:00:0c.0", node=None, vendor="0x1ae0")
    tree.net("enp0s12", card, "10.0.0.2/32", speed=100_000, mtu=8244)
    tree.loopback()


@machine(
    "Google Cloud, N2 with VirtIO: one interface, no speed, no node",
    {"cpu:0 tcp": "ens4 | | lo"},
)
def gcp_n2(tree: Tree) -> None:
    tree.nodes([[10]])
    function = tree.pci("pci0000:00/0000:00:04.0", vendor="0x1af4")
    tree.write(f"{function}/virtio1", vendor="0x1af4")
    tree.net("ens4", f"{function}/virtio1", "10.128.0.7/32", speed=-1, mtu=1460)
    tree.loopback()


@machine(
    "Oracle Cloud, BM.GPU.A100-v2.8 in a cluster network: 16 RoCE ports, two a GPU; a front end",
    {
        "cuda:0 rdma": "rdma0 rdma1 | " + " ".join(f"rdma{i}" for i in range(2, 16)) + " |",
        "cuda:7 rdma": "rdma14 rdma15 | "
        + " ".join(f"rdma{i}" for i in [8, 9, 10, 11, 12, 13, *range(8)]) + " |",
        "cpu:1 rdma": " ".join(f"rdma{i}" for i in range(8, 16)) + " | "
        + " ".join(f"rdma{i}" for i in range(8)) + " |",
        "* tcp": " ".join([*(f"rdma{i}" for i in range(16)), "eth0"]) + " | | lo",
    },
)  # fmt: skip
def oci_bm_gpu_a100(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    for index, bus in enumerate((0x0A, 0x13, 0x4A, 0x53, 0x8A, 0x93, 0xCA, 0xD3)):
        node = index // 4
        switch = f"pci0000:{bus - 2:02x}/0000:{bus - 2:02x}:01.1/0000:{bus - 1:02x}:00.0"
        tree.gpu(f"{switch}/0000:{bus + 3:02x}:00.0", node)
        for port in (0, 1):
            number = 2 * index + port
            card = tree.pci(f"{switch}/0000:{bus:02x}:00.{port}", node=node)
            name, address = f"rdma{number}", f"192.168.{number}.7/16"
            tree.net(name, card, address, speed=100_000, mtu=4220)
            tree.roce(f"mlx5_{number}", card, name, address, rate="100 Gb/sec (4X EDR)")
    card = tree.pci("pci0000:e0/0000:e0:03.1/0000:e1:00.0", node=1)
    tree.net("eth0", card, "10.0.0.9/24", speed=50_000, mtu=9000)
    tree.loopback()
