"""Two hosts on this machine with several cables between them: network namespaces, veth pairs, tbf.

Nothing of it outlives the process: namespaces and devices go with the two processes that hold them.
It takes root, and `ip`, `tc`, `nsenter`, `unshare` and `setpriv` on the path.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

__all__ = ["RailNet", "why_not"]

_TOOLS = ("ip", "tc", "nsenter", "unshare", "setpriv", "mount", "sysctl")
_MTU = 9000
_QUEUE_MS = 50

# <linux/sockios.h>, <linux/if.h>, <linux/if_arp.h>
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCDARP, _SIOCSARP = 0x8953, 0x8955
_IFF_UP = 1
_ARPHRD_ETHER = 1
_ATF_COM, _ATF_PERM = 2, 4
_CLONE_NEWNET = 0x40000000


def why_not() -> str | None:
    """Return what is missing for a `RailNet` here, None when nothing is."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"{', '.join(missing)} not found" if missing else None


def _socket_in(pid: int) -> socket.socket:
    """Return a socket in the network namespace of a process: what it is asked for happens there."""
    made: list[socket.socket | str] = []

    def make() -> None:  # on a thread of its own, which stays in that namespace until it ends
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/proc/{pid}/ns/net").open() as namespace:
            if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                made.append(os.strerror(ctypes.get_errno()))
                return
        made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made or not isinstance(made[0], socket.socket):
        raise RuntimeError(f"cannot enter a network namespace: {made}")
    return made[0]


class _Host:
    """A network and mount namespace, held by a process that sleeps."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount"),
                *("--propagation", "private", "sleep", "infinity"),
            ],
            stdin=subprocess.DEVNULL,
        )
        self.pid = self._holder.pid
        until = time.monotonic() + 10
        while Path(f"/proc/{self.pid}/comm").read_text().strip() != "sleep":
            if self._holder.poll() is not None or time.monotonic() > until:
                raise RuntimeError("cannot make a network namespace")
            time.sleep(0.005)
        self._socket = _socket_in(self.pid)
        self.run("mount", "-t", "sysfs", "sysfs", "/sys")  # which shows the interfaces of there
        self.set_link("lo", is_up=True)

    def enter(self) -> list[str]:
        """Return what runs a command there, in front of it."""
        spaces = f"/proc/{self.pid}/ns"
        return ["nsenter", f"--net={spaces}/net", f"--mount={spaces}/mnt", "--"]

    def run(self, *command: str) -> str:
        """Run a command there; what it prints."""
        done = subprocess.run([*self.enter(), *command], capture_output=True, text=True, timeout=20)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def set_link(self, name: str, *, is_up: bool) -> float:
        """Take an interface up or down; the time (`time.monotonic`) at which that began.

        One ioctl: a command takes tens of milliseconds to start on a busy machine.
        """
        asked = struct.pack("16sh22x", name.encode(), 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(self._socket, _SIOCGIFFLAGS, asked))[1]
        flags = flags | _IFF_UP if is_up else flags & ~_IFF_UP
        wanted = struct.pack("16sh22x", name.encode(), flags)
        begun = time.monotonic()
        fcntl.ioctl(self._socket, _SIOCSIFFLAGS, wanted)
        return begun

    def set_neighbour(self, name: str, address: str, card: str | None) -> float:
        """Say which card an address has, None: ask again; the time at which that began."""
        of_card = struct.pack("H6s8x", _ARPHRD_ETHER, bytes.fromhex((card or "").replace(":", "")))
        wanted = struct.pack(
            "HH4s8x16si16x16s",
            *(socket.AF_INET, 0, socket.inet_aton(address), of_card),
            *(_ATF_COM | _ATF_PERM, name.encode()),
        )
        begun = time.monotonic()
        fcntl.ioctl(self._socket, _SIOCDARP if card is None else _SIOCSARP, wanted)
        return begun

    def close(self) -> None:
        self._socket.close()
        self._holder.kill()
        self._holder.wait()


class RailNet:
    """Host `here` and host `there` with a cable for each rate between them.

    Args:
        mbit_per_s: Of each cable, in each direction.
        is_one_network: All interfaces of both are at one switch and in one network, instead of each
            cable being a network of its own. Each answers for its own address only, as it is to be
            set where a machine has several interfaces in a network.
    """

    def __init__(self, mbit_per_s: Sequence[int], *, is_one_network: bool = False) -> None:
        self.mbit_per_s = tuple(mbit_per_s)
        self._hosts: list[_Host] = []
        try:
            self.here = self._add_host()
            self.there = self._add_host()
            self._switch = self._add_host() if is_one_network else None
            if self._switch is not None:
                self._switch.run("ip", "link", "add", "switch", "type", "bridge")
                self._switch.run("ip", "link", "set", "switch", "up")
                for host in (self.here, self.there):
                    for name, value in (("arp_ignore", 1), ("arp_announce", 2)):
                        host.run("sysctl", "-q", "-w", f"net.ipv4.conf.all.{name}={value}")
            for rail in range(len(self.mbit_per_s)):
                self._lay(rail)
        except BaseException:
            self.close()
            raise

    def _add_host(self) -> _Host:
        host = _Host()
        self._hosts.append(host)
        return host

    def _lay(self, rail: int) -> None:
        if self._switch is None:
            self.here.run(
                "ip", "link", "add", f"r{rail}", "mtu", str(_MTU), "type", "veth",
                "peer", "name", f"r{rail}", "mtu", str(_MTU), "netns", str(self.there.pid),
            )  # fmt: skip
            self._set_up(self.here, rail)
            self._set_up(self.there, rail)
        else:
            self.plug_in(self.here, rail)
            self.plug_in(self.there, rail)

    def plug_in(self, host: _Host, rail: int) -> None:
        """Add an interface to a host and connect it with the switch."""
        assert self._switch is not None
        far = f"{'here' if host is self.here else 'there'}{rail}"
        number = 1 if host is self.here else 2
        # Plugged in again it is the same one: neighbours remember an address for seconds.
        host.run(
            "ip", "link", "add", f"r{rail}", "address", f"02:77:00:00:{number:02x}:{rail:02x}",
            "mtu", str(_MTU), "type", "veth",
            "peer", "name", far, "mtu", str(_MTU), "netns", str(self._switch.pid),
        )  # fmt: skip
        self._switch.run("ip", "link", "set", far, "master", "switch", "up")
        self._set_up(host, rail)

    def _set_up(self, host: _Host, rail: int) -> None:
        self._address(host, rail, 1 if host is self.here else 2)
        host.run("ip", "link", "set", f"r{rail}", "up")
        rate = self.mbit_per_s[rail]
        burst = max(rate * 1000 * 1000 // 8 // 200, 64 * 1024)  # of a 5 ms timer
        host.run(
            "tc", "qdisc", "add", "dev", f"r{rail}", "root", "tbf", "rate", f"{rate}mbit",
            "burst", str(burst), "latency", f"{_QUEUE_MS}ms",
        )  # fmt: skip

    def address(self, rail: int, number: int) -> str:
        """Return the address of an interface; 1 is here, 2 there."""
        return f"10.77.{rail}.{number}" if self._switch is None else f"10.77.0.{10 * rail + number}"

    def _address(self, host: _Host, rail: int, number: int) -> None:
        host.run("ip", "addr", "add", f"{self.address(rail, number)}/24", "dev", f"r{rail}")

    def pull(self, rail: int) -> float:
        """Pull a cable out at the far end; when that began."""
        return self.there.set_link(f"r{rail}", is_up=False)

    def plug(self, rail: int) -> float:
        """Put it in again."""
        return self.there.set_link(f"r{rail}", is_up=True)

    def switch_off(self, rail: int) -> float:
        """Take the near end's link down."""
        return self.here.set_link(f"r{rail}", is_up=False)

    def switch_on(self, rail: int) -> float:
        """Take it up again."""
        return self.here.set_link(f"r{rail}", is_up=True)

    def take_out(self, rail: int) -> None:
        """Remove the near end's interface; `plug_in` adds it again."""
        self.here.run("ip", "link", "del", f"r{rail}")

    def carried_bytes(self, rail: int) -> int:
        """Return what a cable has carried so far, both ways."""
        return sum(self.carried(self.here, rail))

    def carried(self, host: _Host, rail: int) -> tuple[int, int]:
        """Return what has come in by an interface so far, and what has left by it."""
        counters = f"/sys/class/net/r{rail}/statistics"
        read = host.run("cat", f"{counters}/rx_bytes", f"{counters}/tx_bytes")
        received, sent = map(int, read.split())
        return received, sent

    def lose(self, rail: int, *, from_here: bool) -> float:
        """Lose all packets of one direction until `keep`: they go to a card that is not there."""
        host, far = (self.here, 2) if from_here else (self.there, 1)
        return host.set_neighbour(f"r{rail}", self.address(rail, far), "02:00:00:00:77:77")

    def keep(self, rail: int, *, from_here: bool) -> float:
        """End what `lose` began."""
        host, far = (self.here, 2) if from_here else (self.there, 1)
        return host.set_neighbour(f"r{rail}", self.address(rail, far), None)

    def renumber(self, rail: int, number: int, *, is_here: bool = False) -> None:
        """Give an interface, of the far end, another address in the same network."""
        host = self.here if is_here else self.there
        host.run("ip", "addr", "flush", "dev", f"r{rail}")
        self._address(host, rail, number)

    def close(self) -> None:
        """End all hosts."""
        while self._hosts:
            self._hosts.pop().close()

    def __enter__(self) -> RailNet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
