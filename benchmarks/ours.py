"""Our processes, with the same interface as peer.PeerCluster."""

from __future__ import annotations

import sys
from pathlib import Path

from processes import Process, WorkerProcess

from mooncake_store.cli.bench.cluster import Cluster

HERE = Path(__file__).resolve().parent


class OurCluster:
    """A master and store servers on loopback, and the clients started from here.

    Args:
        folder: For logs.
        segment_bytes: Size of each server's pool.
        holders: How many servers.
    """

    def __init__(self, folder: Path, segment_bytes: int, *, holders: int = 1) -> None:
        self._folder = folder
        self._clients: list[Process] = []
        self._cluster = Cluster(pool_size_bytes=segment_bytes, servers=holders)
        self.master = self._cluster.master
        self.holders = self._cluster.servers

    def client(
        self, buffer_bytes: int, *, is_local: bool = True, replicas: int = 1
    ) -> WorkerProcess:
        """Start a client that may use shared memory, or only TCP."""
        command = [sys.executable, str(HERE / "our_worker.py"), "--master", self._cluster.address]
        command += ["--buffer", str(buffer_bytes), "--replicas", str(replicas)]
        command += [] if is_local else ["--tcp"]
        log = self._folder / f"ours-{len(self._clients)}.log"
        client = WorkerProcess(command, log, self._cluster.environment)
        self._clients.append(client)
        return client

    @property
    def server_pids(self) -> list[int]:
        return self._cluster.pids

    def close(self) -> None:
        """End every process, clients first."""
        for client in reversed(self._clients):
            client.end()
        self._clients.clear()
        self._cluster.close()
