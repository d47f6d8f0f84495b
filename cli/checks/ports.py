"""Are a master's ports free, or a master's?"""

from __future__ import annotations

import socket
from pathlib import Path

from mooncake_store.cli.checks.check import OK, WARN, Check
from mooncake_store.errors import StoreError

__all__ = ["ephemeral_ports", "free_ports_check", "ports_check"]


def ports_check(base: int) -> Check:
    """Are the default ports free, or taken by a master?"""
    taken = [port for port in range(base, base + 3) if _is_listened_on(port)]
    if not taken:
        return free_ports_check(base, *ephemeral_ports())
    from mooncake_store.serving.ports import holder_of_port

    holders = {port: holder_of_port(port) for port in taken}
    text = ", ".join(f"{port} by {holder}" for port, holder in holders.items())
    if base in taken and _is_master(base):
        return Check("ports", OK, f"a master runs here: {text}")
    return Check(
        "ports", WARN, f"in use: {text}", "stop that process, or start with another: up --port 0"
    )


def free_ports_check(base: int, ephemeral: range, reserved: frozenset[int]) -> Check:
    """Will they be free tomorrow?  The kernel gives ports of a range to whoever dials out.

    Args:
        base: The first of a master's three ports; none is in use.
        ephemeral: The kernel's range.
        reserved: Ports that the kernel leaves out.
    """
    lent = [port for port in range(base, base + 3) if port in ephemeral and port not in reserved]
    if lent:
        return Check(
            "ports", WARN,
            f"{base} to {base + 2} are free now, but the kernel lends {lent[0]} to connections "
            "that go out: a master may not start again",
            f"sysctl net.ipv4.ip_local_reserved_ports={base}-{base + 2}, or another --port",
        )  # fmt: skip
    return Check("ports", OK, f"{base} to {base + 2} are free for a master")


def ephemeral_ports(folder: Path = Path("/proc/sys/net/ipv4")) -> tuple[range, frozenset[int]]:
    """Return the kernel's range of ports for outgoing connections, and those left out of it."""
    try:
        low, high = map(int, (folder / "ip_local_port_range").read_text().split())
        text = (folder / "ip_local_reserved_ports").read_text().strip()
    except (OSError, ValueError):
        return range(0), frozenset()
    reserved: set[int] = set()
    for item in filter(None, text.split(",")):
        first, _, last = item.partition("-")
        reserved.update(range(int(first), int(last or first) + 1))
    return range(low, high + 1), frozenset(reserved)


def _is_listened_on(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_master(port: int) -> bool:
    from mooncake_store.client import Client

    try:
        with Client(f"127.0.0.1:{port}", connect_timeout_s=1.0, wait_for_master=False):
            return True
    except StoreError:
        return False
