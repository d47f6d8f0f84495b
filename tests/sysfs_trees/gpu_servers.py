"""Servers with GPUs, from their makers' documents.

Bus numbers, NUMA nodes and who shares a switch with whom are the documents'; the bridges in between
are simplified to one root port and one switch.
"""

from __future__ import annotations

from tests.sysfs_trees.machine import machine
from tests.sysfs_trees.tree import AMD, INFINIBAND, NVIDIA, NVSWITCH, Tree

TWO_SOCKETS = ((10, 21), (21, 10))


def switch(bridge: str, port: int) -> str:
    """Return the path of a PCIe switch below a root port."""
    up = f"{int(bridge, 16) + port:02x}"
    return f"pci0000:{bridge}/0000:{bridge}:{port:02x}.1/0000:{up}:00.0"


@machine(
    "NVIDIA DGX A100 User Guide: PCIe bus numbers of GPUs and network ports, output of "
    "`nvidia-smi topo -m` (two GPUs and two NICs a switch, four nodes a socket)",
    {
        "cuda:0 rdma": "ib0 ib1 | ib2 ib3 ib6 ib7 ib8 ib9 |",
        "cuda:3 rdma": "ib2 ib3 | ib0 ib1 ib6 ib7 ib8 ib9 |",
        "cuda:5 rdma": "ib6 ib7 | ib8 ib9 ib0 ib1 ib2 ib3 |",
        "cuda:7 rdma": "ib8 ib9 | ib6 ib7 ib0 ib1 ib2 ib3 |",
        "cpu:0 rdma": "ib0 ib1 ib2 ib3 | ib6 ib7 ib8 ib9 |",
        "cpu:3 rdma": "ib0 ib1 | ib2 ib3 ib6 ib7 ib8 ib9 |",
        "cpu:5 rdma": "ib8 ib9 | ib6 ib7 ib0 ib1 ib2 ib3 |",
        "cuda:0 tcp": "enp97s0f0 | enp225s0f0 | enp226s0 lo",
        "cpu:7 tcp": "enp225s0f0 | enp97s0f0 | enp226s0 lo",
    },
)
def dgx_a100(tree: Tree) -> None:
    near, far = 12, 32
    tree.nodes([[10 if a == b else near if a // 4 == b // 4 else far for b in range(8)]
                for a in range(8)])  # fmt: skip
    gpus = ("07", "0f", "47", "4e", "87", "90", "b7", "bd")
    ports = {0: "0c", 1: "12", 2: "4b", 3: "54", 6: "8d", 7: "94", 8: "ba", 9: "cc"}
    places = {0: ("00", 3), 1: ("40", 1), 2: ("80", 7), 3: ("a0", 5)}
    for index, bus in enumerate(gpus):
        bridge, node = places[index // 2]
        tree.gpu(f"{switch(bridge, 1)}/0000:{bus}:00.0", node)
    for index in range(6):
        place = f"{switch('c0', 1)}/0000:{0xC4 + index:02x}:00.0"
        tree.pci(place, node=5, vendor=NVIDIA, kind=NVSWITCH)
    for order, (number, bus) in enumerate(ports.items()):
        bridge, node = places[order // 2]
        card = tree.pci(f"{switch(bridge, 1)}/0000:{bus}:00.0", node=node, kind=INFINIBAND)
        tree.infiniband(f"mlx5_{number}", card, lid=number + 1)
        tree.net(f"ib{number}", card, type=32, state="down", flags="0x1002")  # no IPoIB here
    for number, bus, bridge, node in ((4, "61", "60", 1), (10, "e1", "e0", 5)):
        card = tree.pci(f"pci0000:{bridge}/0000:{bridge}:03.1/0000:{bus}:00.0", node=node)
        name = f"enp{int(bus, 16)}s0f0"
        tree.net(name, card, f"10.30.0.{number}/24", speed=100_000, mtu=9000)
    card = tree.pci("pci0000:e0/0000:e0:03.2/0000:e2:00.0", node=5)
    tree.net("enp226s0", card, "10.0.0.5/24", speed=1_000)
    tree.loopback()


@machine(
    "NVIDIA DGX H100/H200 User Guide: each GPU shares a PCIe switch with one ConnectX-7; two more "
    "cards for storage and in-band management, one 10 Gbit/s port on the board",
    {
        "cuda:0 rdma": "mlx5_0 | mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7 |",
        "cuda:6 rdma": "mlx5_6 | mlx5_4 mlx5_5 mlx5_7 mlx5_0 mlx5_1 mlx5_2 mlx5_3 |",
        "cpu:1 rdma": "mlx5_4 mlx5_5 mlx5_6 mlx5_7 | mlx5_0 mlx5_1 mlx5_2 mlx5_3 |",
        "cpu:0 tcp": "ens1 | ens2 | eno1 lo",
        "cuda:7 tcp": "ens2 | ens1 | eno1 lo",
    },
)
def dgx_h100(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    for index, bridge in enumerate(("15", "37", "48", "59", "97", "b7", "c7", "d7")):
        node = index // 4
        gpu, nic = f"{int(bridge, 16) + 6:02x}", f"{int(bridge, 16) + 3:02x}"
        tree.gpu(f"{switch(bridge, 1)}/0000:{gpu}:00.0", node)
        card = tree.pci(f"{switch(bridge, 1)}/0000:{nic}:00.0", node=node, kind=INFINIBAND)
        tree.infiniband(f"mlx5_{index}", card, lid=index + 1, rate="400 Gb/sec (4X NDR)")
    for name, bridge, node in (("ens1", "28", 0), ("ens2", "a7", 1)):
        card = tree.pci(f"pci0000:{bridge}/0000:{bridge}:01.0/0000:{bridge[0]}b:00.0", node=node)
        tree.net(name, card, f"10.8.0.{node + 1}/24", speed=400_000, mtu=9000)
    board = tree.pci("pci0000:00/0000:00:1c.0/0000:0b:00.0", node=0)
    tree.net("eno1", board, "10.0.0.9/24", speed=10_000)
    tree.loopback()


@machine(
    "NVIDIA HGX A100/H100 reference layouts with four NICs: two GPUs share a switch with one NIC",
    {
        "cuda:0 rdma": "eth0 | eth1 eth2 eth3 |",
        "cuda:1 rdma": "eth0 | eth1 eth2 eth3 |",
        "cuda:5 rdma": "eth2 | eth3 eth0 eth1 |",
        "cuda:7 tcp": "eth3 | eth2 eth0 eth1 | lo",
        "cpu:0 tcp": "eth0 eth1 | eth2 eth3 | lo",
    },
)
def hgx_eight_gpus_four_nics(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    for group, bridge in enumerate(("10", "40", "80", "c0")):
        node = group // 2
        for bus in (4, 5):
            tree.gpu(f"{switch(bridge, 1)}/0000:{int(bridge, 16) + bus:02x}:00.0", node)
        card = tree.pci(f"{switch(bridge, 1)}/0000:{int(bridge, 16) + 6:02x}:00.0", node=node)
        name, address = f"eth{group}", f"10.1.{group}.7/24"
        tree.net(name, card, address, speed=200_000, mtu=9000)
        tree.roce(f"mlx5_{group}", card, name, address)
    tree.loopback()


@machine(
    "NVIDIA HGX A100 4-GPU: no switch, each GPU on root ports of its socket",
    {
        "cuda:0 rdma": "mlx5_0 | mlx5_1 |",
        "cuda:2 rdma": "mlx5_1 | mlx5_0 |",
        "cpu:1 rdma": "mlx5_1 | mlx5_0 |",
    },
)
def hgx_four_gpus_two_nics(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    for index, bridge in enumerate(("17", "3a", "97", "b1")):
        tree.gpu(
            f"pci0000:{bridge}/0000:{bridge}:00.0/0000:{int(bridge, 16) + 1:02x}:00.0", index // 2
        )
    for index, bridge in enumerate(("4b", "c9")):
        card = tree.pci(
            f"pci0000:{bridge}/0000:{bridge}:00.0/0000:{int(bridge, 16) + 1:02x}:00.0",
            node=index, kind=INFINIBAND,
        )  # fmt: skip
        tree.infiniband(f"mlx5_{index}", card, lid=10 + index)


@machine(
    "PCI Express switches in a row (Supermicro and Gigabyte 8-GPU servers, block diagrams): a NIC "
    "on the GPU's own switch is nearer than one on the switch above",
    {
        "cuda:0 rdma": "mlx5_0 | mlx5_1 |",
        "cuda:1 rdma": "mlx5_0 | mlx5_1 |",
        "cuda:2 rdma": "mlx5_1 | mlx5_0 |",
    },
)
def cascaded_switches(tree: Tree) -> None:
    tree.nodes([[10]])
    outer = "pci0000:20/0000:20:01.1/0000:21:00.0"
    for index, inner in enumerate(("0000:22:00.0/0000:23:00.0", "0000:22:01.0/0000:33:00.0")):
        bus = f"{0x24 + 0x10 * index:02x}"
        for port in range(2 - index):
            tree.gpu(
                f"{outer}/{inner}/0000:{bus}:0{port}.0/0000:{int(bus, 16) + 1 + port:02x}:00.0", 0
            )
        card = tree.pci(f"{outer}/{inner}/0000:{bus}:08.0/0000:{int(bus, 16) + 8:02x}:00.0", node=0)
        tree.infiniband(f"mlx5_{index}", card, lid=index + 1)


@machine(
    "NVIDIA GB200 NVL72 compute tray: two Grace CPUs, four GPUs, four ConnectX-7 in PCI domains of "
    "their own; GPU memory is a NUMA node too (NVIDIA Grace Performance Tuning Guide)",
    {
        "cuda:0 rdma": "mlx5_0 mlx5_1 | mlx5_2 mlx5_3 |",
        "cuda:3 rdma": "mlx5_2 mlx5_3 | mlx5_0 mlx5_1 |",
        "cpu:1 rdma": "mlx5_2 mlx5_3 | mlx5_0 mlx5_1 |",
        "cpu:2 rdma": "mlx5_0 mlx5_1 | mlx5_2 mlx5_3 |",  # memory of the first GPU
        "cpu:1 tcp": "enP22p3s0f0np0 | enP6p3s0f0np0 | lo",
    },
)
def gb200_tray(tree: Tree) -> None:
    tree.nodes([
        [10, 40, 80, 80, 120, 120],
        [40, 10, 120, 120, 80, 80],
        [80, 120, 10, 90, 130, 130],
        [80, 120, 90, 10, 130, 130],
        [120, 80, 130, 130, 10, 90],
        [120, 80, 130, 130, 90, 10],
    ])  # fmt: skip
    for index, domain in enumerate(("0008", "0009", "0018", "0019")):
        tree.gpu(f"pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0", index // 2)
    for index, domain in enumerate(("0000", "0002", "0010", "0012")):
        card = tree.pci(
            f"pci{domain}:00/{domain}:00:00.0/{domain}:03:00.0", node=index // 2, kind=INFINIBAND
        )
        tree.infiniband(f"mlx5_{index}", card, lid=index + 40, rate="400 Gb/sec (4X NDR)")
    for index, domain in enumerate(("0006", "0016")):
        card = tree.pci(f"pci{domain}:00/{domain}:00:00.0/{domain}:03:00.0", node=index)
        name = f"enP{int(domain, 16)}p3s0f0np0"
        tree.net(name, card, f"10.9.0.{index + 1}/24", speed=200_000)
    tree.loopback()


@machine(
    "AMD Instinct MI300X platform (AMD ROCm documentation): no CUDA, so nodes are all there is",
    {"cpu:0 rdma": "rdma0 | rdma1 |", "cpu:1 rdma": "rdma1 | rdma0 |"},
)
def mi300x(tree: Tree) -> None:
    tree.nodes(((10, 32), (32, 10)))
    for index, bridge in enumerate(("20", "a0")):
        tree.pci(
            f"{switch(bridge, 1)}/0000:{bridge[0]}4:00.0", node=index, vendor=AMD, kind="0x038000"
        )
        card = tree.pci(f"{switch(bridge, 1)}/0000:{bridge[0]}5:00.0", node=index, vendor="0x14e4")
        name, address = f"rdma{index}", f"10.3.{index}.2/31"
        tree.net(name, card, address, speed=400_000, mtu=9000)
        tree.roce(f"bnxt_re{index}", card, name, address)


@machine(
    "A workstation: one socket that tells no node, a GeForce with its audio function",
    {"cuda:0 tcp": "enp6s0 | | lo", "cpu:0 tcp": "enp6s0 | | lo"},
)
def workstation(tree: Tree) -> None:
    tree.nodes([[10]])
    tree.pci("pci0000:00/0000:00:01.0/0000:01:00.0", vendor=NVIDIA, kind="0x030000")
    tree.pci("pci0000:00/0000:00:01.0/0000:01:00.1", vendor=NVIDIA, kind="0x040300")
    card = tree.pci("pci0000:00/0000:00:1c.4/0000:06:00.0")
    tree.net("enp6s0", card, "192.168.1.20/24", speed=2_500)
    tree.net("enp7s0", card, state="down", flags="0x1003")
    tree.loopback()
