"""The store server's settings."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_store.config import GIB, MIB, setting
from mooncake_store.errors import ConfigError
from mooncake_store.runtime import is_loopback
from mooncake_store.transfer_engine.priority import CLASS_WEIGHTS

__all__ = ["StoreServerConfig"]

_WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreServerConfig:
    """What a store server is told when it starts; `[server]` in the configuration file."""

    master: str = setting("127.0.0.1:7700", "the master to serve, as ip:port or [ip]:port")
    coordinator: str = setting(
        "",
        "follow whichever master leads, instead of --master: etcd://[USER@]HOST,HOST/PREFIX or "
        "local:FOLDER",
    )
    pool_size_bytes: int | None = setting(
        None,
        "memory of this node that the store uses; not given: 1GiB or a quarter of what is free in "
        "/dev/shm, whichever is less",
        minimum=MIB,
        maximum=16 * 1024 * GIB - MIB,
    )
    address: str = setting(
        "127.0.0.1",
        "numeric IPv4 or IPv6 address to listen on; beyond loopback only with --insecure",
    )
    port: int = setting(
        0, "port for data; 0 = any: the master tells clients", minimum=0, maximum=65535
    )
    advertise: tuple[str, ...] = setting(
        (),
        "numeric addresses of this host that clients are told, with the data port; empty: the one "
        "listened on",
    )
    insecure: bool = setting(
        False,
        "listen beyond loopback: whoever reaches the port reads and writes, unencrypted",
    )
    name: str = setting(
        "",
        "name of this node for people and its folder; empty: the host's name, with a number when "
        "several run on it",
    )
    host: str = setting(
        "",
        "replicas of an object go to distinct hosts while there are any; empty: this machine (its "
        "boot id), so that its nodes count as one host",
    )
    segment_dir: str = setting(
        "",
        "folder under which this node's folder is made; empty: in /dev/shm; a hugetlbfs mount "
        "takes the payload in huge pages",
    )
    keep: bool = setting(
        True,
        "leave the objects in memory when the server is stopped, for its next start (an upgrade); "
        "a killed one leaves them in any case",
    )
    huge_pages: bool = setting(
        False, "ask for huge pages in /dev/shm: touching the pool is ten times as fast"
    )
    ready_size_bytes: int = setting(
        64 * MIB,
        "part of the pool that is there at once; the rest follows in the background",
        minimum=0,
    )
    touch_permille: int = setting(
        250,
        "share of a core that making the rest of the pool ready may take",
        minimum=1,
        maximum=1000,
    )
    view_size_bytes: int | None = setting(
        None,
        "bytes that may lie under open views: freed ones are lost to the pool as long as a process "
        "looks at them; not given: half of the pool",
        minimum=0,
    )
    views_max: int = setting(65_536, "views open at a time", minimum=1, maximum=2**24)
    copies_max: int = setting(
        2, "objects pulled from other servers at a time", minimum=1, maximum=64
    )
    class_weights: tuple[str, ...] = setting(
        CLASS_WEIGHTS,
        "how the priorities of what this server fetches from others share a network (copies are "
        "background); each 1 to 1024",
    )
    io_threads: int = setting(
        2,
        "threads that serve connections; more than cores gain nothing",
        minimum=1,
        maximum=64,
    )
    connections_max: int = setting(
        4096, "connections at a time; needs as many file descriptors", minimum=8, maximum=65_000
    )
    grpc: bool = setting(
        True, "serve gRPC: objects for clients without the engine, batch transfers (costs 40 MiB)"
    )
    grpc_port: int = setting(0, "port for gRPC; 0 = any", minimum=0, maximum=65535)
    grpc_object_size_bytes: int = setting(
        GIB,
        "largest object that gRPC puts and gets; all calls together hold no more than this in "
        "memory",
        minimum=MIB,
    )
    http: bool = setting(True, "serve health, version and metrics over HTTP")
    http_port: int = setting(0, "port for HTTP; 0 = any", minimum=0, maximum=65535)
    log_format: str = setting("text", "how log lines look", choices=("text", "json"))
    log_level: str = setting(
        "info", "what is worth a line", choices=("debug", "info", "warning", "error")
    )
    stop_timeout_s: float = setting(
        5.0, "how long a stop waits for gRPC and HTTP calls under way", minimum=0.0, maximum=10.0
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
        if self.address in _WILDCARDS and not self.advertise:
            raise ConfigError(
                f"{self.address} is every address of this host: clients must be told which to use",
                hint="say --advertise with this host's addresses",
            )
        if self.coordinator and not self.coordinator.startswith(("etcd://", "local:/")):
            raise ConfigError(
                f"{self.coordinator!r} is no coordinator to follow: etcd://HOST,HOST or "
                "local:FOLDER, with the folder's absolute path"
            )
        if "/" in self.name or self.name.startswith("."):
            raise ConfigError(f"{self.name!r} names a folder: no '/' in it, no '.' in front")
