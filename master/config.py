"""The master's settings."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_store.config import MIB, setting
from mooncake_store.errors import ConfigError
from mooncake_store.runtime import DEFAULT_PORT, is_loopback

__all__ = ["POLICIES", "MasterConfig"]

_WILDCARDS = ("0.0.0.0", "::")

POLICIES = ("lru", "lfu", "length_aware", "sieve")
"""Eviction policies, in the order of the C enum `md_policy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterConfig:
    """What a master is told when it starts; `[master]` in the configuration file."""

    address: str = setting(
        "127.0.0.1",
        "numeric IPv4 or IPv6 address to listen on; beyond loopback only with --insecure",
    )
    port: int = setting(
        DEFAULT_PORT,
        "port for messages; gRPC takes the next one and HTTP the one after; 0 = any for all three",
        minimum=0,
        maximum=65533,
    )
    insecure: bool = setting(
        False,
        "listen beyond loopback: whoever reaches the port reads and writes, unencrypted",
    )
    grpc: bool = setting(True, "serve gRPC, for other languages and tools (costs 40 MiB)")
    http: bool = setting(True, "serve health, version and metrics over HTTP")
    name: str = setting("", "name of this master for people; empty = the host's name")
    coordinator: str = setting(
        "local",
        "who says which master leads: local (files of this host, one cluster a port), local:FOLDER "
        "or etcd://[USER@]HOST,HOST/PREFIX; with etcd a second master stands by",
    )
    advertise: tuple[str, ...] = setting(
        (),
        "numeric addresses of this host that others are told, with the port for messages; empty: "
        "the one listened on",
    )
    eviction: str = setting(
        "lru",
        "which objects leave first: the least recently used, least frequently used, tails of long "
        "chains, or SIEVE",
        choices=POLICIES,
    )
    evict_above_permille: int = setting(
        950,
        "background eviction starts when so much of the pool is used: puts then find room at once",
        minimum=1,
        maximum=1000,
    )
    evict_below_permille: int = setting(
        920, "background eviction stops below this", minimum=0, maximum=1000
    )
    session_timeout_ms: int = setting(
        10_000,
        "a client that is silent for so long loses its pins and unfinished puts; it says something "
        "each third of this",
        minimum=300,
        maximum=3_600_000,
    )
    location_lifetime_ms: int = setting(
        120_000,  # renewed at half: a minute without a master passes unnoticed
        "how long a client may read an object without asking again; a stale read is a miss, so "
        "this only bounds how long a removed object's bytes can be asked for in vain",
        minimum=100,
        maximum=3_600_000,
    )
    member_grace_ms: int = setting(
        10_000,
        "a store server that is gone for so long loses its objects; long enough for a restart",
        minimum=0,
        maximum=86_400_000,
    )
    server_silence_ms: int = setting(
        5_000,
        "a store server that says nothing for so long (it is frozen, or cut off) is given up; it "
        "says something each second",
        minimum=1_500,
        maximum=600_000,
    )
    forget_after_ms: int = setting(
        86_400_000,
        "a store server that is gone for so long is a member no more: nobody waits for it, and "
        "should it come back, what it held does not count; 0 = never",
        minimum=0,
        maximum=2**31,
    )
    copy_bandwidth_bytes_per_s: int = setting(
        100 * MIB,
        "bytes a second that drains, repair and other tasks copy, all together; 0 = no bound",
        minimum=0,
        maximum=2**50,
    )
    repair: bool = setting(
        True, "what has fewer replicas than wanted is copied again, in the background"
    )
    repair_delay_ms: int = setting(
        60_000,
        "repair waits so long after a store server went, or this master began: most come back",
        minimum=0,
        maximum=86_400_000,
    )
    ramp_share_permille: int = setting(
        200,
        "a store server that joins empty gets this share of new replicas at first ...",
        minimum=0,
        maximum=1000,
    )
    ramp_ms: int = setting(
        300_000,
        "... and as much as its free space says after this; in between it grows; 0 = at once",
        minimum=0,
        maximum=86_400_000,
    )
    soft_pin_ms: int = setting(
        1_800_000,
        "a soft-pinned object is spared while it was used within this",
        minimum=0,
        maximum=2_073_600_000,
    )
    events_max: int = setting(
        65_536,
        "events kept for subscribers; one that falls further behind takes a snapshot (60 B each)",
        minimum=1,
        maximum=2**24,
    )
    fates_max: int = setting(
        65_536,
        "ends of objects kept for `explain`: evicted, expired, removed, ... (64 B each)",
        minimum=0,
        maximum=2**20,
    )
    puts_open_max: int = setting(
        2**20, "puts begun and not ended, of all clients together", minimum=1, maximum=2**24
    )
    sessions_max: int = setting(65_536, "clients at a time", minimum=1, maximum=2**20)
    connections_max: int = setting(
        16_384, "connections at a time; needs as many file descriptors", minimum=8, maximum=2**20
    )
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
        if self.address in _WILDCARDS and not self.advertise and "etcd:" in self.coordinator:
            raise ConfigError(
                f"{self.address} is every address of this host: others must be told which to use",
                hint="say --advertise with this host's addresses",
            )
        if self.evict_below_permille > self.evict_above_permille:
            raise ConfigError(
                f"evict_below_permille ({self.evict_below_permille}) is above "
                f"evict_above_permille ({self.evict_above_permille})"
            )
