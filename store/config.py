"""The store server's settings."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_store.config import GIB, MIB, setting
from mooncake_store.errors import ConfigError
from mooncake_store.runtime import is_loopback

__all__ = ["StoreServerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreServerConfig:
    """What a store server is told when it starts; `[server]` in the configuration file."""

    master: str = setting(
        "127.0.0.1:7700", "the master to join: host:port; dialled until it answers"
    )
    name: str = setting(
        "",
        "name of this node for people, and of its folder of segments; empty = the host's name; two "
        "servers of a host need two names",
    )
    host: str = setting("", "replicas go to distinct hosts; empty = this host's boot id")
    address: str = setting(
        "127.0.0.1",
        "numeric IPv4 or IPv6 address to listen on; beyond loopback only with --insecure",
    )
    advertise: tuple[str, ...] = setting(
        (), "addresses told to clients, ip:port; empty = the one that it listens on"
    )
    port: int = setting(0, "port for data; 0 = any: clients learn it", minimum=0, maximum=65535)
    insecure: bool = setting(
        False, "listen beyond loopback: whoever reaches the port reads, unencrypted"
    )
    pool_size_bytes: int = setting(
        0,
        "memory for objects; 0 = 1GiB or a quarter of what the segment folder has free, whichever "
        "is less",
        minimum=0,
    )
    segment_dir: str = setting(
        "", "folder of the segments' files; empty = a private one under /dev/shm"
    )
    hugetlb_dir: str = setting("", "hugetlbfs folder for the bytes; empty = none")
    huge_pages: bool = setting(False, "ask for transparent huge pages")
    ready_size_bytes: int = setting(
        64 * MIB, "memory that is there at once; the rest is touched in the background"
    )
    touch_core_permille: int = setting(
        250, "share of a core for touching the rest", minimum=1, maximum=1000
    )
    view_size_max_bytes: int = setting(
        0, "bytes under open views at a time, kept out of the pool; 0 = half of the pool", minimum=0
    )
    copies_max: int = setting(
        2, "objects pulled from other servers at a time", minimum=1, maximum=64
    )
    io_threads: int = setting(2, "threads that serve connections", minimum=1, maximum=64)
    worker_threads: int = setting(2, "threads that help with large copies", minimum=1, maximum=64)
    connections_max: int = setting(4096, "connections at a time", minimum=8, maximum=2**20)
    grpc: bool = setting(True, "serve gRPC, for other languages and tools (costs 40 MiB)")
    grpc_port: int = setting(0, "port for gRPC; 0 = any", minimum=0, maximum=65535)
    http: bool = setting(True, "serve health, version and metrics over HTTP")
    http_port: int = setting(0, "port for HTTP; 0 = any", minimum=0, maximum=65535)
    log_format: str = setting("text", "how log lines look", choices=("text", "json"))
    log_level: str = setting(
        "info", "what is worth a line", choices=("debug", "info", "warning", "error")
    )
    stop_timeout_s: float = setting(
        5.0, "how long a stop waits for calls under way", minimum=0.0, maximum=10.0
    )

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: Two settings contradict each other.
        """
        if not self.insecure and not is_loopback(self.address):
            raise ConfigError(
                f"{self.address} can be reached from other hosts, and nothing is encrypted yet",
                hint="listen on 127.0.0.1, or say --insecure on a network that you trust",
            )
        if "/" in self.name or self.name in (".", "..") or len(self.name.encode()) > 60:
            raise ConfigError("name: 1 to 60 bytes without a slash, it names a folder too")


DEFAULT_POOL_BYTES = 1 * GIB
