"""Two hosts on this machine with several cables between them: network namespaces, veth pairs, tbf.

Nothing of it outlives the process: namespaces and devices go with the two processes that hold them.
It takes root, and `ip`, `tc`, `nsenter`, `unshare` and `setpriv` on the path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

__all__ = ["RailNet", "why_not"]

_TOOLS = ("ip", "tc", "nsenter", "unshare", "setpriv", "mount")
_MTU = 9000
_QUEUE_MS = 50


def why_not() -> str | None:
    """Return what is missing for a `RailNet` here, None when nothing is."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"{', '.join(missing)} not found" if missing else None


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
        self.run("mount", "-t", "sysfs", "sysfs", "/sys")  # which shows the interfaces of there
        self.run("ip", "link", "set", "lo", "up")

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

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


class RailNet:
    """Host `here` and host `there` with a cable for each rate between them.

    Args:
        mbit_per_s: Of each cable, in each direction.
    """

    def __init__(self, mbit_per_s: Sequence[int]) -> None:
        self.mbit_per_s = tuple(mbit_per_s)
        self.here = _Host()
        try:
            self.there = _Host()
        except BaseException:
            self.here.close()
            raise
        try:
            for rail in range(len(self.mbit_per_s)):
                self._lay(rail)
        except BaseException:
            self.close()
            raise

    def _lay(self, rail: int) -> None:
        here, there = self.here, self.there
        here.run(
            "ip", "link", "add", f"r{rail}", "mtu", str(_MTU), "type", "veth",
            "peer", "name", f"r{rail}", "mtu", str(_MTU), "netns", str(there.pid),
        )  # fmt: skip
        for host, number in ((here, 1), (there, 2)):
            self._address(host, rail, number)
            host.run("ip", "link", "set", f"r{rail}", "up")
            rate = self.mbit_per_s[rail]
            burst = max(rate * 1000 * 1000 // 8 // 200, 64 * 1024)  # of a 5 ms timer
            host.run(
                "tc", "qdisc", "add", "dev", f"r{rail}", "root", "tbf", "rate", f"{rate}mbit",
                "burst", str(burst), "latency", f"{_QUEUE_MS}ms",
            )  # fmt: skip

    def _address(self, host: _Host, rail: int, number: int) -> None:
        host.run("ip", "addr", "add", f"10.77.{rail}.{number}/24", "dev", f"r{rail}")

    def pull(self, rail: int) -> None:
        """Pull a cable out at the far end."""
        self.there.run("ip", "link", "set", f"r{rail}", "down")

    def plug(self, rail: int) -> None:
        """Put it in again."""
        self.there.run("ip", "link", "set", f"r{rail}", "up")

    def carried_bytes(self, rail: int) -> int:
        """Return what a cable has carried so far, both ways."""
        counters = f"/sys/class/net/r{rail}/statistics"
        read = self.here.run("cat", f"{counters}/rx_bytes", f"{counters}/tx_bytes")
        return sum(map(int, read.split()))

    def lose(self, rail: int, *, from_here: bool) -> None:
        """Lose all packets of one direction until `keep`: they go to a card that is not there."""
        host, far = (self.here, 2) if from_here else (self.there, 1)
        host.run(
            "ip", "neigh", "replace", f"10.77.{rail}.{far}", "lladdr", "02:00:00:00:77:77",
            "nud", "permanent", "dev", f"r{rail}",
        )  # fmt: skip

    def keep(self, rail: int, *, from_here: bool) -> None:
        """End what `lose` began."""
        host, far = (self.here, 2) if from_here else (self.there, 1)
        host.run("ip", "neigh", "del", f"10.77.{rail}.{far}", "dev", f"r{rail}")

    def renumber(self, rail: int, number: int) -> None:
        """Give the far end's interface another address in the same network."""
        self.there.run("ip", "addr", "flush", "dev", f"r{rail}")
        self._address(self.there, rail, number)

    def close(self) -> None:
        """End both hosts."""
        self.here.close()
        self.there.close()

    def __enter__(self) -> RailNet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
