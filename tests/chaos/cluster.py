"""The cluster of a run: etcd, masters, store servers and clients, on hosts of their own."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .faults import CLIENTS, ETCD, HOST_OF, MASTERS, SERVERS, Plan
from .network import Network
from .nodes import MEMORY, Node, NodeError
from .planted import planted_path
from .processes import Process, without_settings

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
READY_TIMEOUT_S = 60.0
LOCATION_LIFETIME_S = 3.0
_NATIVE = Path(__file__).resolve().parent / "native"
_BUILD = ROOT / "build" / "chaos"
_OWN_HOST = "h"
"""Of the run itself: nothing is done to it."""
_HOSTS = (*MASTERS, *SERVERS, *ETCD, *(c for c in CLIENTS if c not in HOST_OF), _OWN_HOST)
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

_POOL_BYTES = {False: 64 * MIB, True: 6 * MIB}
_MEMORY_BYTES = 512 * MIB
_KEYS_FACTOR = {False: 1, True: 4}


def missing_tools() -> str:
    """What a run needs and this machine lacks, for people; empty: nothing."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    needed = ("etcd", "gcc", "nsenter", "setpriv", "tc", "unshare")
    lacking = [tool for tool in needed if shutil.which(tool) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    return ""


def build_tools() -> tuple[Path, Path]:
    """Compile the switch and the clock, when they have changed."""
    _BUILD.mkdir(parents=True, exist_ok=True)
    made = []
    for name, flags in (("switch", []), ("clock", ["-shared", "-fPIC", "-ldl"])):
        source, target = _NATIVE / f"{name}.c", _BUILD / name
        if not target.exists() or target.stat().st_mtime_ns < source.stat().st_mtime_ns:
            unfinished = target.with_suffix(f".{os.getpid()}")
            subprocess.run(
                [
                    *("gcc", "-std=gnu11", "-O2", "-D_GNU_SOURCE"),
                    *("-Wall", "-Wextra", "-Wconversion", "-Werror"),
                    *(str(source), "-o", str(unfinished), *flags),
                ],
                check=True,
            )
            unfinished.rename(target)  # another run may be starting it
        made.append(target)
    return made[0], made[1]


class Cluster:
    """All hosts and processes of a run.

    Args:
        plan: What it is made of.
        folder: For logs, the history and everything else; it stays.
        history: Where clients record.
    """

    def __init__(self, plan: Plan, folder: Path, history: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.history = history
        self.nodes: dict[str, Node] = {}
        self.processes: dict[str, Process] = {}
        self._lives = 0
        switch, self._clock = build_tools()
        try:
            for number, name in enumerate(_HOSTS):
                self.nodes[name] = Node(name, number, folder / "hosts" / name, _MEMORY_BYTES)
            self.network = Network(switch, list(self.nodes.values()), plan.seed)
            self._enter_network()
            self._make_processes()
        except BaseException:
            self.close()
            raise

    @property
    def uri(self) -> str:
        return f"etcd://{','.join(self.nodes[name].address for name in ETCD)}/chaos"

    def host(self, name: str) -> str:
        """The host of a process."""
        return HOST_OF.get(name, name)

    def _enter_network(self) -> None:
        """What this process dials from now on it dials in the hosts' network, from a host."""
        with open(f"/proc/{self.nodes[_OWN_HOST].pid}/ns/net", "rb") as space:
            if _libc.setns(space.fileno(), _CLONE_NEWNET) != 0:
                raise NodeError(f"setns: {os.strerror(ctypes.get_errno())}")

    # ---- processes ----

    def _make_processes(self) -> None:
        peers = ",".join(f"{name}=http://{self.nodes[name].address}:2380" for name in ETCD)
        for name in ETCD:
            self._add(name, partial(self._etcd, name, peers), None)
        for name in MASTERS:
            self._add(name, partial(self._master, name), self._ready_file(name))
        for name in SERVERS:
            self._add(name, partial(self._server, name), self._ready_file(name))
        for name in CLIENTS:
            self._add(name, partial(self._client, name), None)

    def _add(self, name: str, command: Callable[[], Sequence[str]], ready: Path | None) -> None:
        node = self.nodes[self.host(name)]
        path = [str(ROOT / "tests"), str(ROOT)]
        environment = without_settings() | {
            "XDG_RUNTIME_DIR": str(MEMORY),
            "XDG_CONFIG_HOME": str(MEMORY),
            "PYTHONWARNINGS": "ignore",
            "PYTHONFAULTHANDLER": "1",
        }
        if self.plan.planted:
            path.insert(0, str(planted_path()))
            environment["MOONCAKE_STORE_PLANTED"] = self.plan.planted
        environment["PYTHONPATH"] = os.pathsep.join(path)
        if name not in ETCD:
            environment["LD_PRELOAD"] = str(self._clock)
        log = self.folder / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        self.processes[name] = Process(
            name, node, command, environment=environment, log=log, ready_file=ready
        )

    def _ready_file(self, name: str) -> Path:
        return self.folder / f"{name}.ready"

    def _etcd(self, name: str, peers: str) -> list[str]:
        node = self.nodes[name]
        client, peer = f"http://{node.address}:2379", f"http://{node.address}:2380"
        return [
            *("etcd", "--name", name, "--data-dir", str(MEMORY / "etcd")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", peers, "--log-level", "warn", "--logger", "zap"),
        ]

    def _command(self, name: str, *arguments: str) -> list[str]:
        return [
            *(sys.executable, "-m", "mooncake_store.cli.main", *arguments),
            *("--coordinator", self.uri, "--address", self.nodes[name].address, "--insecure"),
            *("--name", name, "--no-grpc", "--no-http"),
            *("--ready-file", str(self._ready_file(name))),
        ]

    def _master(self, name: str) -> list[str]:
        settings = {
            "location-lifetime": f"{LOCATION_LIFETIME_S:g}s",
            "session-timeout": "4s",
            "server-silence": "3s",
        } | self.plan.settings
        flags = [text for flag, value in settings.items() for text in (f"--{flag}", str(value))]
        return self._command(name, "master", "--port", "7700", *flags)

    def _server(self, name: str) -> list[str]:
        pool = f"{_POOL_BYTES[self.plan.evicts] // MIB}MiB"
        flags = ["--pool-size", pool, "--segment-dir", str(MEMORY)]
        return self._command(name, "server", *flags, "--touch-permille", "1000")

    def _client(self, name: str) -> list[str]:
        self._lives += 1
        plan = self.plan
        seed = plan.seed * 1_000_003 + self._lives
        flags = ["--remote"] if name not in HOST_OF else []
        flags += ["--relay"] if plan.relay else []
        flags += ["--copies"] if plan.copies else []
        return [
            *(sys.executable, "-m", "chaos.worker", "--master", self.uri),
            *("--history", str(self.history), "--name", f"{name}/{self._lives}"),
            *("--number", str(self._lives), "--seed", str(seed)),
            *("--keys", str(self.keys), "--rate", str(plan.rate_per_s)),
            *("--checksums", plan.checksums, *flags),
        ]

    @property
    def keys(self) -> int:
        return self.plan.keys * _KEYS_FACTOR[self.plan.evicts]

    # ---- the whole ----

    def start(self) -> None:
        """Start everything, and wait until it serves.

        Raises:
            NodeError: Something does not.
        """
        for name in ETCD:
            self.processes[name].start()
        for name in (*MASTERS, *SERVERS):
            self.processes[name].start()
        for name in SERVERS:
            self.processes[name].wait_ready(READY_TIMEOUT_S)
        for name in CLIENTS:
            self.processes[name].start()
        for name in CLIENTS:
            self.wait_client(name)

    def wait_client(self, name: str) -> None:
        """Until a client has its session.

        Raises:
            NodeError: It has ended instead.
        """
        process = self.processes[name]
        if process.hear(READY_TIMEOUT_S) != "ready":
            raise NodeError(f"{name} has no session: {process.log()[-2000:]}")

    def leader(self) -> str:
        """The master that leads, or led last."""
        return max(MASTERS, key=self._epoch_of)

    def _epoch_of(self, name: str) -> int:
        try:
            ready: dict[str, Any] = json.loads(self._ready_file(name).read_text())
        except (OSError, ValueError):
            return -1
        return int(ready["epoch"])

    def close(self) -> None:
        """End everything, by pid."""
        for process in self.processes.values():
            process.close()
        if hasattr(self, "network"):
            self.network.close()
        for node in self.nodes.values():
            node.close()
