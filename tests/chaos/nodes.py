"""Hosts of a run: each is a network and a mount namespace with memory and a boot of its own.

Nothing of it outlives the run: namespaces, devices and mounts go with the processes that hold them,
and those end when this one does.
"""

from __future__ import annotations

import subprocess
import time
import uuid
from pathlib import Path

_START_TIMEOUT_S = 10.0
_COMMAND_TIMEOUT_S = 20.0
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
MEMORY = Path("/mnt")
"""Where each host mounts a file system of its own, unseen by the others: sockets in it have short
paths, as they must."""


class NodeError(Exception):
    """A host could not be made or changed."""


class Node:
    """One host.

    Args:
        name: Of it.
        number: Its address ends with this and one more.
        folder: Of its own, outside of it too.
        memory_bytes: What its memory file system holds.
    """

    def __init__(self, name: str, number: int, folder: Path, memory_bytes: int) -> None:
        self.name = name
        self.number = number
        self.address = f"10.66.0.{number + 1}"
        self.memory_bytes = memory_bytes
        self._boot_id = folder / "boot_id"
        folder.mkdir(parents=True)
        self._holder = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount"),
                *("--propagation", "private", "sleep", "infinity"),
            ],
            stdin=subprocess.DEVNULL,
        )
        self.pid = self._holder.pid
        self._wait_for_spaces()
        self.boot()

    def _wait_for_spaces(self) -> None:
        """Until it has left ours: setpriv and unshare run first, in the same process."""
        end_s = time.monotonic() + _START_TIMEOUT_S
        while self._holder.poll() is None and time.monotonic() < end_s:
            if Path(f"/proc/{self.pid}/comm").read_text().strip() == "sleep":
                return
            time.sleep(0.005)
        raise NodeError(f"no namespaces for {self.name}: they take root")

    def enter(self) -> list[str]:
        """What runs a command there: in front of it."""
        spaces = f"/proc/{self.pid}/ns"
        return ["nsenter", f"--net={spaces}/net", f"--mount={spaces}/mnt", "--"]

    def run(self, *command: str) -> str:
        """Run a command there, and return what it says.

        Raises:
            NodeError: It failed.
        """
        done = subprocess.run(
            [*self.enter(), *command], capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S
        )
        if done.returncode != 0:
            raise NodeError(f"{self.name}: {' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def boot(self) -> None:
        """Begin with empty memory and a boot of its own; processes there have ended."""
        self._boot_id.write_text(f"{uuid.uuid4()}\n")
        options = f"size={self.memory_bytes},mode=700"
        self.run(
            "sh",
            "-ec",
            f"umount -l {MEMORY} 2>/dev/null || true; "
            f"umount -l {_BOOT_ID} 2>/dev/null || true; "
            f"mount -t tmpfs -o {options} store {MEMORY}; "
            f"mount --bind {self._boot_id} {_BOOT_ID}",
        )

    def fill(self) -> None:
        """Leave no room in its memory."""
        # dd fails when nothing is left, which is what it is for.
        self.run("sh", "-c", f"dd if=/dev/zero of={MEMORY}/ballast bs=64k 2>/dev/null; true")

    def empty(self) -> None:
        """Take that back."""
        self.run("rm", "-f", f"{MEMORY}/ballast")

    def limit_rate(self, bits_per_s: float) -> None:
        """Send no more than this from here; what waits for longer than 400 ms is dropped."""
        self.run(
            *("tc", "qdisc", "replace", "dev", "store0", "root", "tbf"),
            *("rate", f"{int(bits_per_s)}bit", "burst", "32kb", "latency", "400ms"),
        )

    def unlimit_rate(self) -> None:
        self.run("tc", "qdisc", "del", "dev", "store0", "root")

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
