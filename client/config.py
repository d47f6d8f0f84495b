"""Settings of a client."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_store.config import MIB, setting
from mooncake_store.transfer_engine.priority import CLASS_WEIGHTS

__all__ = ["CHECKSUMS", "ClientConfig"]

CHECKSUMS = ("off", "put", "verify")  # cl_checksums, in this order


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How a client behaves; the master's address is given apart."""

    timeout_s: float = setting(5.0, "deadline of a call that names none")
    connect_timeout_s: float = setting(5.0, "deadline of opening a client")
    wait_for_master: bool = setting(
        True, "opening waits, up to connect_timeout_s, for a master that is not there yet"
    )
    strict: bool = setting(False, "reading calls raise instead of answering a failure as a miss")
    replicas: int = setting(1, "copies of an object, each on another node")
    tenant: str = setting("default", "name space of the keys; one exists in this version")
    token: str = setting("", "proof of the right to that tenant; empty in this version")
    name: str = setting("", "shown to operators; empty: the program's name and pid")
    location_count_max: int = setting(65536, "cached locations; about 150 bytes each")
    connections_max: int = setting(8, "connections to each peer")
    worker_threads: int = setting(
        2,
        "second halves of copies, further connections, async calls; 0: none, the caller does all",
        minimum=0,
        maximum=64,
    )
    staging_size_bytes: int = setting(
        4 * MIB, "shared memory of one put on the same host", minimum=65536
    )
    stream_copy_size_bytes: int = setting(
        0, "non-temporal stores from this size; 0: 256 KiB; lower where a device reads the memory"
    )
    class_weights: tuple[str, ...] = setting(
        CLASS_WEIGHTS,
        "how the priorities of this client's reads and writes share a network; each 1 to 1024",
    )
    use_local_paths: bool = setting(True, "shared memory and Unix sockets where the peer is here")
    checksums: str = setting(
        "off",
        "CRC32C of objects: computed at put, checked by the server and kept; or also compared "
        "when an object is read over the network",
        choices=CHECKSUMS,
    )
    use_relay: bool = setting(
        False, "let the store server pass put_end on to the master: fewer hops, more hand-overs"
    )
