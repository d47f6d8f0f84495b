"""Machines with something easily got wrong: stacked, virtual, shared, slow, down, unknown."""

from __future__ import annotations

from tests.sysfs_trees.machine import machine
from tests.sysfs_trees.tree import INFINIBAND, INTEL, Tree, roce_gids

TWO_SOCKETS = ((10, 21), (21, 10))
BONDING = "Linux kernel, Documentation/networking/bonding.rst"
SR_IOV = "Linux kernel, Documentation/PCI/pci-iov-howto.rst"


def card(tree: Tree, bus: str, node: int | None = 0, function: int = 0, **more: str) -> str:
    """Make a NIC's function below a root port of its own."""
    bridge = f"{int(bus, 16) - 1:02x}"
    return tree.pci(
        f"pci0000:{bridge}/0000:{bridge}:00.0/0000:{bus}:00.{function}", node=node, **more
    )


# ---- stacked on others ---------------------------------------------------------------------------


@machine(
    f"{BONDING}: LACP over both ports of one card; RoCE LAG makes one RDMA device (MLNX_OFED)",
    {
        "cpu:0 tcp": "bond0 | | lo",
        "cpu:1 tcp": "bond0 | | lo",
        "cpu:0 rdma": "bond0 | |",
    },
)
def bonded(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    tree.net("bond0", "", "10.0.0.7/24", folders=["bonding"], devtype="bond", speed=50_000)
    for port in (0, 1):
        function = card(tree, "3b", 0, port)
        tree.net(f"ens1f{port}", function, speed=25_000, master="bond0")
    tree.rdma(
        "mlx5_bond_0", "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0",
        gids=roce_gids("bond0", "10.0.0.7/24"),
    )  # fmt: skip
    tree.loopback()


@machine(
    f"{BONDING}: active-backup over cards of both sockets, which is near to neither",
    {"cpu:0 tcp": "eth5 | bond0 | lo", "cpu:1 tcp": "bond0 | eth5 | lo"},
)
def bonded_over_sockets(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    tree.net("bond0", "", "10.0.0.7/24", folders=["bonding"], speed=25_000)
    for node, bus in enumerate(("3b", "af")):
        tree.net(f"eth{node}", card(tree, bus, node), speed=25_000, master="bond0")
    tree.net("eth5", card(tree, "5e", 0), "10.0.5.7/24", speed=25_000)
    tree.loopback()


@machine(
    "Linux team driver (libteam): lower links as a bond has them, and no bonding folder",
    {"cpu:0 tcp": "team0 | | lo"},
)
def teamed(tree: Tree) -> None:
    tree.nodes([[10]])
    tree.net("team0", "", "10.0.0.7/24")
    for port in (0, 1):
        tree.net(f"eth{port}", card(tree, "3b", 0, port), speed=10_000, master="team0")
    tree.loopback()


@machine(
    "Linux 8021q: storage on a VLAN of a bond; the bond itself has no address",
    {"cpu:0 tcp": "bond0.40 | | lo"},
)
def vlan_on_bond(tree: Tree) -> None:
    tree.nodes([[10]])
    tree.net("bond0", "", folders=["bonding"])
    for port in (0, 1):
        tree.net(f"eth{port}", card(tree, "3b", 0, port), speed=100_000, master="bond0")
    tree.net("bond0.40", "", "10.40.0.7/24", devtype="vlan", lowers=["bond0"])
    tree.loopback()


@machine(
    "Linux 8021q: a VLAN beside its interface adds no bandwidth; its GIDs are in the same table",
    {"cpu:0 tcp": "eth0 | | eth0.7 lo", "cpu:0 rdma": "eth0 | |"},
)
def vlan_beside_its_interface(tree: Tree) -> None:
    tree.nodes([[10]])
    function = card(tree, "3b")
    tree.net("eth0", function, "10.0.0.7/24", speed=100_000)
    tree.net("eth0.7", "", "10.7.0.7/24", devtype="vlan", lowers=["eth0"])
    gids = [*roce_gids("eth0.7", "10.7.0.7"), *roce_gids("eth0", "10.0.0.7")]
    tree.rdma("mlx5_0", function, gids=gids, rate="100 Gb/sec (4X EDR)")
    tree.loopback()


@machine(
    "libvirt documentation: the host's address is on a bridge with the NIC and guests' taps in it",
    {"cpu:0 tcp": "br0 | | virbr0 lo"},
)
def bridged_host(tree: Tree) -> None:
    tree.nodes([[10]])
    tree.net("br0", "", "192.168.0.7/24", devtype="bridge", folders=["bridge"])
    tree.net("eno1", card(tree, "3b"), speed=10_000, master="br0")
    tree.net("vnet0", "", "fe80::1/64", master="br0")
    tree.net("virbr0", "", "192.168.122.1/24", devtype="bridge", folders=["bridge"], state="up")
    tree.net("vnet1", "", master="virbr0")
    tree.loopback()


@machine(
    "Proxmox VE Administration Guide: a bridge over a bond",
    {"cpu:0 tcp": "vmbr0 | | lo", "cpu:1 tcp": "vmbr0 | | lo"},
)
def bridge_over_bond(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    tree.net("vmbr0", "", "10.2.0.7/24", folders=["bridge"], devtype="bridge")
    tree.net("bond0", "", folders=["bonding"], master="vmbr0")
    for port in (0, 1):
        tree.net(f"eno{port}", card(tree, "18", 0, port), speed=25_000, master="bond0")
    tree.net("tap100i0", "", master="vmbr0")
    tree.loopback()


@machine(
    "Open vSwitch documentation: the bridge's own interface tells nothing of the NIC below it",
    {"cpu:0 tcp": "br-ex | | lo"},
)
def open_vswitch(tree: Tree) -> None:
    tree.nodes([[10]])
    tree.net("ovs-system", "", state="down", flags="0x1002")
    tree.net("eth0", card(tree, "3b"), speed=25_000, master="ovs-system")
    tree.net("br-ex", "", "10.0.0.7/24", state="unknown")
    tree.loopback()


# ---- containers and guests -----------------------------------------------------------------------


@machine(
    "Docker documentation, bridge network driver: docker0 and the hosts' ends of containers' pairs",
    {"cpu:0 tcp": "eth0 | | br-7f docker0 lo"},
)
def docker_host(tree: Tree) -> None:
    tree.nodes([[10]])
    tree.net("eth0", card(tree, "3b"), "10.0.0.7/24", speed=10_000)
    tree.net("docker0", "", "172.17.0.1/16", folders=["bridge"], devtype="bridge")
    tree.net("br-7f", "", "172.18.0.1/16", folders=["bridge"], devtype="bridge")
    tree.net("vethc0ffee", "", "fe80::42/64", master="docker0")
    tree.loopback()


@machine(
    "Kubernetes documentation, cluster networking: a pod sees one end of a pair, and all of the "
    "host's PCIe devices",
    {"cpu:0 tcp": "eth0 | | lo", "cuda:0 tcp": "eth0 | | lo"},
)
def pod(tree: Tree) -> None:
    tree.nodes([[10]])
    tree.gpu("pci0000:20/0000:20:00.0/0000:21:00.0", 0)
    card(tree, "3b")
    tree.net("eth0", "", "10.244.1.7/24", mtu=1450)
    tree.loopback()


@machine(
    "SR-IOV network device plugin for Kubernetes: a virtual function beside the pod's own "
    "interface; its physical function is in the host's network namespace",
    {"cpu:0 tcp": "net1 | | eth0 lo", "cpu:0 rdma": "net1 | |"},
)
def pod_with_virtual_function(tree: Tree) -> None:
    tree.nodes([[10]])
    physical = card(tree, "3b")
    function = card(tree, "3b", 0, 2)
    tree.link(f"{function}/physfn", tree.root / physical)
    tree.net("eth0", "", "10.244.1.7/24", mtu=1450)
    tree.net("net1", function, "10.56.0.7/24", speed=100_000)
    # The kernel shows the namespace its own devices only, and the host's GIDs name interfaces that
    # are not here.
    tree.roce("mlx5_2", function, "net1", "10.56.0.7")
    tree.loopback()


@machine(
    "Linux macvlan: a pod whose interface is another name for the host's, which is not to be seen",
    {"cpu:0 tcp": "eth0 net1 | | lo"},
)
def pod_with_macvlan(tree: Tree) -> None:
    tree.nodes([[10]])
    tree.net("net1", "", "10.56.0.7/24")
    tree.net("eth0", "", "10.244.1.7/24")
    tree.loopback()


@machine(
    f"{SR_IOV}: a host that sees a port and its virtual functions, one of them with an address",
    {"cpu:0 tcp": "ens1 | | ens1v1 lo", "cpu:0 rdma": "ens1 | | mlx5_1"},
)
def host_with_virtual_functions(tree: Tree) -> None:
    tree.nodes([[10]])
    physical = card(tree, "3b")
    tree.net("ens1", physical, "10.0.0.7/24", speed=100_000)
    tree.roce("mlx5_0", physical, "ens1", "10.0.0.7", rate="100 Gb/sec (4X EDR)")
    for number in (1, 2):
        function = card(tree, "3b", 0, number)
        tree.link(f"{function}/physfn", tree.root / physical)
        addresses = ("10.0.0.71/24",) if number == 1 else ()
        tree.net(f"ens1v{number}", function, *addresses, speed=100_000)
    # The second has no interface of its own any more: it was given to a container.
    tree.rdma("mlx5_1", "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.3", gids=[
        ("fe80::9", "RoCE v2", ""),
    ], rate="10 Gb/sec (1X)")  # fmt: skip
    tree.loopback()


@machine(
    "A guest of Soft-RoCE devices over macvlan on a dummy switch, built by hand after rdma_rxe of "
    "Linux 6.1 (`rdma link add rxe0 type rxe netdev eth0`)",
    {
        "cpu:0 tcp": "eth0 eth1 eth2 eth3 | | lo",
        "cpu:0 rdma": "eth0 eth1 eth2 eth3 | |",
    },
)
def soft_roce_guest(tree: Tree) -> None:
    tree.net("sw0", "", mtu=9000, state="unknown")
    for index in range(4):
        address = f"10.77.0.{index + 1}/24"
        tree.net(f"eth{index}", "", address, "fe80::1/64", mtu=9000, lowers=["sw0"])
        tree.rdma(
            f"rxe{index}", rate="2.5 Gb/sec (1X SDR)", parent=f"eth{index}",
            gids=[(f"fe80::{index + 1}", "RoCE v2", f"eth{index}"),
                  (f"::ffff:10.77.0.{index + 1}", "RoCE v2", f"eth{index}")],
        )  # fmt: skip
    tree.loopback()


@machine(
    "Soft-RoCE beside a real adapter: for RDMA the hardware first, for TCP both alike",
    {"cpu:0 rdma": "eth0 | | eth1", "cpu:0 tcp": "eth0 eth1 | | lo"},
)
def soft_roce_beside_hardware(tree: Tree) -> None:
    tree.nodes([[10]])
    function = card(tree, "3b")
    tree.net("eth0", function, "10.0.0.7/24", speed=25_000)
    tree.roce("mlx5_0", function, "eth0", "10.0.0.7", rate="25 Gb/sec (1X EDR)")
    tree.net("eth1", card(tree, "5e"), "10.1.0.7/24", speed=25_000)
    tree.roce("rxe0", "", "eth1", "10.1.0.7", rate="25 Gb/sec (1X EDR)")
    tree.loopback()


# ---- InfiniBand and RoCE -------------------------------------------------------------------------


@machine(
    "Mixed fabric: two InfiniBand HCAs for compute, one RoCE card for storage (NVIDIA MLNX_OFED)",
    {
        "cuda:0 rdma": "ib0 | eth0 ib1 |",
        "cpu:1 rdma": "ib1 | ib0 eth0 |",
        "cpu:0 tcp": "ib0 eth0 | ib1 | lo",
    },
)
def infiniband_and_roce(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    up = "pci0000:30/0000:30:01.0/0000:31:00.0"
    tree.gpu(f"{up}/0000:33:00.0", 0)
    near = tree.pci(f"{up}/0000:34:00.0", node=0, kind=INFINIBAND)
    for index, function in enumerate((near, card(tree, "b1", 1, kind=INFINIBAND))):
        tree.net(f"ib{index}", function, f"10.10.{index}.7/24", type=32, mtu=4092, speed=200_000)
        tree.infiniband(f"mlx5_{index}", function, lid=index + 5)
    storage = card(tree, "3b", 0)
    tree.net("eth0", storage, "10.0.0.7/24", speed=100_000, mtu=9000)
    tree.roce("mlx5_2", storage, "eth0", "10.0.0.7", rate="100 Gb/sec (4X EDR)")
    tree.loopback()


@machine(
    "Linux kernel, Documentation/infiniband/ipoib.rst: a second partition's interface on the port; "
    "the second port has no address, which verbs need not",
    {"cpu:0 tcp": "ib0 ib0.8001 | | lo", "cpu:0 rdma": "ib0 ib1 | |"},
)
def ip_over_infiniband(tree: Tree) -> None:
    tree.nodes([[10]])
    for index, bus in enumerate(("3b", "5e")):
        function = card(tree, bus, kind=INFINIBAND)
        addresses = ("10.10.0.7/24",) if index == 0 else ()
        state = "up" if index == 0 else "down"
        tree.net(f"ib{index}", function, *addresses, type=32, mtu=2044, state=state)
        if index == 0:
            tree.net("ib0.8001", function, "10.81.0.7/24", type=32, mtu=2044)
            tree.write(f"{function}/net/ib0.8001", parent="ib0")
        tree.infiniband(f"mlx5_{index}", function, lid=index + 5)
    tree.loopback()


@machine(
    "InfiniBand without a subnet manager: ports that stay in INIT carry nothing (opensm manual)",
    {"cpu:0 rdma": "| |", "cpu:0 tcp": "eth0 | | lo"},
)
def no_subnet_manager(tree: Tree) -> None:
    tree.nodes([[10]])
    tree.infiniband("mlx5_0", card(tree, "3b", kind=INFINIBAND), lid=0, state="2: INIT")
    tree.net("eth0", card(tree, "5e"), "10.0.0.7/24", speed=25_000)
    tree.loopback()


@machine(
    "NVIDIA ConnectX-3 VPI: both ports on one PCI function, the first InfiniBand, the second "
    "Ethernet with RoCE v1 only (mlx4 driver)",
    {"cpu:0 rdma": "eth0 ib0 | |", "cpu:0 tcp": "eth0 ib0 | | lo"},
)
def two_ports_one_function(tree: Tree) -> None:
    tree.nodes([[10]])
    function = card(tree, "04")
    tree.net("ib0", function, "10.10.0.7/24", type=32, mtu=2044, speed=40_000)
    tree.net("eth0", function, "10.0.0.7/24", speed=40_000, dev_port=1)
    tree.infiniband("mlx4_0", function, lid=3, rate="40 Gb/sec (4X QDR)")
    gids = [gid for gid in roce_gids("eth0", "10.0.0.7") if gid[1] == "IB/RoCE v1"]
    tree.rdma("mlx4_0", function, port=2, gids=gids, rate="40 Gb/sec (4X QDR)")
    tree.loopback()


@machine(
    "Chelsio T6 / Intel E810 in iWARP mode: node type RNIC, one GID made of the MAC address",
    {"cpu:0 rdma": "eth0 | |"},
)
def iwarp(tree: Tree) -> None:
    tree.nodes([[10]])
    function = card(tree, "3b", vendor=INTEL)
    tree.net("eth0", function, "10.0.0.7/24", speed=100_000)
    tree.rdma(
        "irdma0", function, node_type="4: RNIC", rate="100 Gb/sec (4X EDR)",
        gids=[("2:fc:0:1::", "IB/RoCE v1", "")],
    )  # fmt: skip
    tree.loopback()


@machine(
    "RoCE in a network with IPv6 only (RFC 8950 style fabrics): no IPv4-mapped GID",
    {"cpu:0 tcp": "eth0 eth1 | | lo", "cpu:0 rdma": "eth0 eth1 | |"},
)
def ipv6_only(tree: Tree) -> None:
    tree.nodes([[10]])
    for index, bus in enumerate(("3b", "5e")):
        function = card(tree, bus)
        address = f"2001:db8:{index}::7/64"
        tree.net(f"eth{index}", function, address, "fe80::7/64", speed=100_000)
        tree.roce(f"mlx5_{index}", function, f"eth{index}", address, rate="100 Gb/sec (4X EDR)")
    tree.loopback()


# ---- slow, wireless, down, unknown ---------------------------------------------------------------


@machine(
    "A management port beside two fast ones: near, but a hundredth of their speed",
    {"cpu:0 tcp": "ens1 | ens2 | eno1 lo", "cpu:1 tcp": "ens2 | ens1 | eno1 lo"},
)
def management_port(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    tree.net("eno1", card(tree, "02", 0), "10.0.0.7/24", speed=1_000)
    tree.net("ens1", card(tree, "3b", 0), "10.1.0.7/24", speed=100_000)
    tree.net("ens2", card(tree, "b1", 1), "10.2.0.7/24", speed=100_000)
    tree.loopback()


@machine(
    "DMTF Redfish host interface (DGX, many servers): a USB interface to the board's controller",
    {"cpu:0 tcp": "eth0 | | usb0 lo"},
)
def redfish_over_usb(tree: Tree) -> None:
    tree.nodes([[10]])
    host = tree.pci("pci0000:00/0000:00:14.0", node=0)
    tree.write(f"{host}/usb1/1-14/1-14:2.0")
    tree.net("usb0", f"{host}/usb1/1-14/1-14:2.0", "10.111.0.2/30")
    tree.net("eth0", card(tree, "3b"), "10.0.0.7/24", speed=1_000)
    tree.loopback()


@machine(
    "A laptop: wireless, no cable, a VPN's tunnel (Linux cfg80211; WireGuard)",
    {"cpu:0 tcp": "wlp2s0 | | wg0 lo"},
)
def laptop(tree: Tree) -> None:
    tree.nodes([[10]])
    tree.net("enp1s0", card(tree, "01", None), state="down")
    tree.net(
        "wlp2s0", card(tree, "02", None), "192.168.1.7/24", devtype="wlan", folders=["wireless"]
    )
    tree.net("wg0", "", "10.99.0.7/32", type=65534, state="unknown", mtu=1420)
    tree.loopback()


@machine(
    "A laptop at its dock: the cable before the wireless, although both are up",
    {"cpu:0 tcp": "enp1s0 | | wlp2s0 tailscale0 lo"},
)
def laptop_at_its_dock(tree: Tree) -> None:
    tree.nodes([[10]])
    tree.net("enp1s0", card(tree, "01", None), "192.168.1.8/24", speed=1_000)
    tree.net("wlp2s0", card(tree, "02", None), "192.168.1.7/24", folders=["phy80211"])
    tree.net("tailscale0", "", "100.64.0.7/32", type=65534, state="unknown")
    tree.loopback()


@machine(
    "All cables pulled (Linux, operstates.rst): loopback is left, for processes of one host",
    {"cpu:0 tcp": "lo | |", "cpu:1 tcp": "lo | |", "cpu:0 rdma": "| |"},
)
def all_down(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    for index, state in enumerate(("down", "lowerlayerdown", "dormant", "notpresent")):
        function = card(tree, f"{0x3B + 16 * index:02x}", index % 2)
        tree.net(f"eth{index}", function, f"10.0.{index}.7/24", state=state)
    function = card(tree, "8a")
    tree.net("eth9", function, "10.0.9.7/24", flags="0x1002")  # switched off, its cable in place
    tree.rdma("mlx5_0", function, gids=[], state="1: DOWN")
    tree.loopback()


@machine(
    "Routing on the host (RFC 7938, Cumulus Linux): interfaces without addresses of their own, the "
    "host's address on loopback",
    {"cpu:0 tcp": "lo | |"},
)
def routing_on_the_host(tree: Tree) -> None:
    tree.nodes([[10]])
    for index, bus in enumerate(("3b", "5e")):
        tree.net(f"eth{index}", card(tree, bus), f"fe80::{index + 1}/64", speed=100_000)
    tree.loopback("10.255.0.7/32")


@machine(
    "Two sockets whose firmware tells no node (numa_node is -1 everywhere): all alike",
    {"cpu:0 tcp": "eth0 eth1 | | lo", "cpu:1 tcp": "eth0 eth1 | | lo"},
)
def nodes_not_told(tree: Tree) -> None:
    tree.nodes(TWO_SOCKETS)
    for index, bus in enumerate(("3b", "b1")):
        tree.net(f"eth{index}", card(tree, bus, -1), f"10.0.{index}.7/24", speed=25_000)
    tree.loopback()


@machine(
    "A kernel without NUMA (small arm64 boards): no folder of nodes, no numa_node file",
    {"cpu:0 tcp": "eth0 | | lo"},
)
def no_numa(tree: Tree) -> None:
    tree.net("eth0", card(tree, "01", None), "10.0.0.7/24", speed=10_000)
    tree.loopback()


@machine(
    "Raspberry Pi 4 (device tree bcm2711): the interface belongs to the platform, not to PCI",
    {"cpu:0 tcp": "eth0 | | lo"},
)
def no_pci(tree: Tree) -> None:
    place = "devices/platform/scb/fd580000.ethernet"
    tree.write(place, modalias="of:Nethernet")
    tree.net("eth0", place, "192.168.1.9/24", speed=1_000)
    tree.net("eth1", place, type=280)  # CAN: no IP goes there
    tree.loopback()


@machine(
    "Four sockets, one hop and two (ACPI SLIT; Intel Xeon Platinum 4S): the nearer node first",
    {
        "cpu:0 tcp": "eth0 | eth1 eth2 | lo",
        "cpu:1 tcp": "eth1 | eth0 eth2 | lo",
        "cpu:3 tcp": "eth0 eth2 | eth1 | lo",
    },
)
def four_sockets(tree: Tree) -> None:
    tree.nodes(((10, 21, 31, 21), (21, 10, 21, 31), (31, 21, 10, 21), (21, 31, 21, 10)))
    for index, (bus, node) in enumerate((("3b", 0), ("5e", 1), ("b1", 2))):
        tree.net(f"eth{index}", card(tree, bus, node), f"10.0.{index}.7/24", speed=25_000)
    tree.loopback()


@machine(
    "A CXL memory expander (Linux, Documentation/driver-api/cxl): a node with memory and no CPU",
    {"cpu:2 tcp": "eth1 | eth0 | lo", "cpu:0 tcp": "eth0 | eth1 | lo"},
)
def cxl_memory(tree: Tree) -> None:
    tree.nodes(((10, 21, 34), (21, 10, 14), (34, 14, 10)))
    for index, bus in enumerate(("3b", "b1")):
        tree.net(f"eth{index}", card(tree, bus, index), f"10.0.{index}.7/24", speed=25_000)
    tree.loopback()


@machine(
    "InfiniBand devices by PCI name (systemd net naming scheme), ten and more: numbers are numbers",
    {"cpu:0 rdma": " ".join(f"mlx5_{i}" for i in range(12)) + " | |"},
)
def many_ports(tree: Tree) -> None:
    tree.nodes([[10]])
    for index in range(12):
        function = card(tree, f"{0x11 + 2 * index:02x}", kind=INFINIBAND)
        tree.infiniband(f"mlx5_{index}", function, lid=index + 1)
