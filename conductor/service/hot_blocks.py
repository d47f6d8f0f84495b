"""Which blocks are read so often that one holder's network would be the bottleneck."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_store.conductor.replication import wanted_replicas
from mooncake_store.conductor.service.block_names import Blocks

__all__ = ["HotBlock", "HotBlocks"]


@dataclass(frozen=True, slots=True)
class HotBlock:
    """A block that wants more replicas.

    Attributes:
        digest: Its name.
        key: The same as the index takes it.
        wanted: How many replicas it wants.
        reads_per_s: In the last interval.
    """

    digest: str
    key: bytes
    wanted: int
    reads_per_s: float


class HotBlocks:
    """Counts reads of blocks in intervals.

    Args:
        interval_s: Between two looks; 0: nothing is counted.
        share: Of a NIC that one replica serves at most.
        block_bytes: Size of a block.
        nic_bytes_per_s: Of a node; an attribute, for what is learned of it.
        blocks_max: Blocks that are counted in an interval: the first ones met.
    """

    def __init__(
        self,
        *,
        interval_s: float,
        share: float,
        block_bytes: float,
        nic_bytes_per_s: float,
        blocks_max: int = 65_536,
    ) -> None:
        self.interval_s = interval_s
        self._share = share
        self._block_bytes = block_bytes
        self.nic_bytes_per_s = nic_bytes_per_s
        self._blocks_max = blocks_max
        self._reads: dict[str, int] = {}
        self._began_s = 0.0

    def count(self, blocks: Blocks) -> None:
        """Note that a prompt's blocks were asked for."""
        if not self.interval_s:
            return
        reads = self._reads
        has_room = len(reads) < self._blocks_max
        for digest in blocks.digests:
            if digest in reads:
                reads[digest] += 1
            elif has_room:
                reads[digest] = 1

    def take(self, now_s: float, instances: int) -> list[HotBlock]:
        """Return, once an interval, who wants more than one replica, the hottest first."""
        elapsed_s = now_s - self._began_s
        if not self.interval_s or elapsed_s < self.interval_s:
            return []
        reads, self._reads, self._began_s = self._reads, {}, now_s
        if instances < 2:
            return []
        found = []
        for digest, count in reads.items():
            rate = count / elapsed_s
            wanted = wanted_replicas(
                rate,
                block_bytes=self._block_bytes,
                nic_bytes_per_s=self.nic_bytes_per_s,
                share=self._share,
                instances=instances,
            )
            if wanted > 1:
                found.append(HotBlock(digest, bytes.fromhex(digest[:32]), wanted, rate))
        return sorted(found, key=lambda one: -one.reads_per_s)
