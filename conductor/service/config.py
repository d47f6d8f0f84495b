"""The conductor's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mooncake_store.conductor.sim_config import POLICIES, SimConfig, with_policy
from mooncake_store.config import MIB, setting
from mooncake_store.errors import ConfigError
from mooncake_store.runtime import is_loopback

__all__ = ["DEFAULT_HTTP_PORT", "ConductorConfig"]

DEFAULT_HTTP_PORT = 7710
"""Of HTTP; the proxy is one above, gRPC two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorConfig:
    """What a conductor is told when it starts; `[conductor]` in the configuration file."""

    address: str = setting(
        "127.0.0.1",
        "numeric IPv4 or IPv6 address to listen on; beyond loopback only with --insecure",
    )
    insecure: bool = setting(
        False,
        "listen beyond loopback: whoever reaches the ports schedules and registers, unencrypted",
    )
    http_port: int = setting(
        DEFAULT_HTTP_PORT, "HTTP: API, health, metrics; 0 = any", minimum=0, maximum=65535
    )
    master: str = setting(
        "",
        "the store to follow: host:port, or etcd://... of a cluster; empty: none, instances tell "
        "of their blocks themselves",
    )
    index_file: str = setting(
        "",
        "file that keeps what the store holds, every 10 seconds and at the end: a conductor that "
        "is started again is warm from it and the events since then; empty: it lists the store",
    )
    proxy: bool = setting(
        False, "serve an OpenAI-compatible reverse proxy in front of the instances"
    )
    proxy_port: int = setting(
        DEFAULT_HTTP_PORT + 1, "of the proxy; 0 = any", minimum=0, maximum=65535
    )
    grpc: bool = setting(False, "serve the same API over gRPC")
    grpc_port: int = setting(DEFAULT_HTTP_PORT + 2, "of gRPC; 0 = any", minimum=0, maximum=65535)
    cluster: str = setting(
        "",
        "TOML file with cost model, service levels and policy, as `sim settings` prints it; what "
        "was simulated is what runs; empty: the defaults",
    )
    policy: str = setting(
        "earliest",
        "choice of the prefill instance: a policy of `sim`, or module:object of one in Python",
    )
    admission: str = setting(
        "early",
        "who is refused",
        choices=("all", "baseline", "early", "predicted", "forecast"),
    )
    block_tokens: int = setting(
        256, "tokens of a block, as the engines store them", minimum=1, maximum=65536
    )
    namespace: str = setting(
        "", "of prefix_keys, by which token ids become keys: what the engines use"
    )
    chain_start: str = setting(
        "", "h(0) of the engines' chain of hashes in hexadecimal, in place of a namespace"
    )
    key_prefixes: tuple[str, ...] = setting(
        ("p1-",),
        "what stands before a block's digest in the store's keys; several if a block is several "
        "objects, of which the first tells that it is there",
    )
    blocks_max: int = setting(
        2**20,
        "blocks that the prefix index knows, some 85 bytes each; the longest not seen is forgotten",
        minimum=1024,
        maximum=2**32,
    )
    instances_max: int = setting(64, "instances at a time", minimum=1, maximum=512)
    servers_max: int = setting(64, "store servers at a time", minimum=1, maximum=512)
    connections_max: int = setting(
        4096, "of HTTP at a time, and of the proxy: more are answered 503; and of gRPC: more are "
        "closed",
        minimum=8, maximum=65536,
    )  # fmt: skip
    grpc_calls_max: int = setting(
        1024, "calls of gRPC under way at a time; more are answered RESOURCE_EXHAUSTED",
        minimum=8, maximum=65536,
    )  # fmt: skip
    receive_timeout_s: float = setting(
        10.0, "how long a request's head, and then its body, may take to arrive", minimum=0.05,
        maximum=600,
    )  # fmt: skip
    requests_max: int = setting(65_536, "requests under way", minimum=16, maximum=2**20)
    heartbeat_interval_s: float = setting(
        1.0, "how often an instance shall tell that it lives", minimum=0.05, maximum=60
    )
    heartbeat_timeout_s: float = setting(
        5.0, "an instance that is silent for so long gets nothing", minimum=0.1, maximum=600
    )
    forget_after_s: float = setting(
        60.0, "and after this it is registered no more", minimum=0.2, maximum=86_400
    )
    report_s_max: float = setting(
        3.0, "a load report that is older counts no more", minimum=0.1, maximum=600
    )
    promise_s: float = setting(
        30.0,
        "how long the blocks of a prompt are believed to stay on the accelerator of an instance "
        "that does not tell",
        minimum=0,
        maximum=86_400,
    )
    request_s_max: float = setting(
        600.0,
        "a request is given up after this: its deadline in the proxy, and how long it counts when "
        "nobody reports its end",
        minimum=0.1,
        maximum=86_400,
    )
    copy_bandwidth_bytes_per_s: int = setting(
        100 * MIB,
        "bytes a second that the conductor lets the store copy for requests and hot blocks, all "
        "together; 0: it copies nothing",
        minimum=0,
        maximum=2**50,
    )
    take_back_s: float = setting(
        300.0,
        "replicas that the conductor has made are taken back when no request has asked for their "
        "block for so long; 0: they stay until their object is evicted",
        minimum=0,
        maximum=86_400 * 30,
    )
    learn_transfers: bool = setting(
        True,
        "predict transfers by those that instances have measured and reported, once there are "
        "some; else by the cluster file alone",
    )
    pin: bool = setting(
        True, "pin in the store what queued requests will read, until they are through"
    )
    decisions_max: int = setting(
        10_000, "decisions kept for `conductor explain`", minimum=1, maximum=2**20
    )
    log_format: str = setting("text", "how log lines look", choices=("text", "json"))
    log_level: str = setting(
        "info", "what is worth a line", choices=("debug", "info", "warning", "error")
    )
    stop_timeout_s: float = setting(
        5.0, "how long a stop waits for requests under way", minimum=0.0, maximum=600.0
    )

    @property
    def is_plugged(self) -> bool:
        """Whether the policy is a user's."""
        return ":" in self.policy

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: Two settings contradict each other.
        """
        if not self.insecure and not is_loopback(self.address):
            raise ConfigError(
                f"{self.address} can be reached from other hosts, and nothing is encrypted",
                hint="listen on 127.0.0.1, or say --insecure on a network that you trust",
            )
        if not self.is_plugged and self.policy not in POLICIES:
            raise ConfigError(
                f"there is no policy {self.policy!r}: {', '.join(POLICIES)} are known, or "
                "module:object of your own"
            )
        if self.heartbeat_timeout_s <= self.heartbeat_interval_s:
            raise ConfigError(
                f"heartbeat_timeout ({self.heartbeat_timeout_s:g}s) is not above "
                f"heartbeat_interval ({self.heartbeat_interval_s:g}s)"
            )
        if self.forget_after_s < self.heartbeat_timeout_s:
            raise ConfigError(
                f"forget_after ({self.forget_after_s:g}s) is below heartbeat_timeout "
                f"({self.heartbeat_timeout_s:g}s)"
            )

    def model(self) -> SimConfig:
        """Return cost model, service levels and policy.

        Raises:
            ConfigError: The cluster file says something that cannot be.
        """
        read = SimConfig.read(Path(self.cluster) if self.cluster else None)
        policy = "earliest" if self.is_plugged else self.policy
        return with_policy(read, policy, admission=self.admission)
