"""What `setup` is given: positional arguments, keywords, or one dict of strings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mooncake._store.tenant import DEFAULT_TENANT, key_prefix

__all__ = ["DEFAULT_MASTER", "SetupSettings", "master_address", "parse_size"]

DEFAULT_MASTER = "127.0.0.1:50051"
DEFAULT_SIZE_BYTES = 16 << 20  # of segment and buffer, where a dict names none
CLUSTER = "mooncake_cluster"  # the folder at etcd of a cluster that is given no name
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}

# Of the accelerators' and fabrics' protocols the store has none: their memory is no address here.
_PROTOCOLS = ("", "tcp", "rdma", "efa", "rpc_only", "shm")

# Both spellings that are in use.
_NAMES = {"master_server_address": "master_server_addr", "device_name": "rdma_devices"}
_KNOWN = frozenset(
    (
        "client_http_port",
        "enable_client_http_server",
        "enable_ssd_offload",
        "global_segment_size",
        "ipc_socket_path",
        "local_buffer_size",
        "local_hostname",
        "master_server_addr",
        "metadata_server",
        "protocol",
        "rdma_devices",
        "ssd_offload_path",
        "tenant_id",
    )
)


@dataclass(frozen=True, slots=True)
class SetupSettings:
    """What of the arguments counts here.

    Attributes:
        local_hostname: Of this host, as others reach it; a port is left out.
        segment_bytes: Memory that this client adds to the pool; 0: none.
        master: As `mooncake_store.Client` takes it.
        ignored: Arguments that have no meaning here and were given, for the log.
    """

    local_hostname: str
    segment_bytes: int
    buffer_bytes: int
    master: str
    tenant: str
    ignored: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        local_hostname: str,
        metadata_server: str = "",
        global_segment_size: int | str = DEFAULT_SIZE_BYTES,
        local_buffer_size: int | str = DEFAULT_SIZE_BYTES,
        protocol: str = "tcp",
        rdma_devices: str = "",
        master_server_addr: str = DEFAULT_MASTER,
        enable_ssd_offload: bool = False,
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
    ) -> SetupSettings:
        """Check the arguments.

        Raises:
            ValueError: One of them cannot be.
        """
        if protocol.lower() not in _PROTOCOLS:
            raise ValueError(
                f"protocol {protocol!r}: this store moves host memory over tcp, rdma and shared "
                "memory; take tcp"
            )
        ignored = {"enable_ssd_offload": enable_ssd_offload,
                   "enable_client_http_server": enable_client_http_server}  # fmt: skip
        tenant = tenant_id or DEFAULT_TENANT
        key_prefix(tenant)
        host = local_hostname.strip()
        if host.count(":") == 1:
            host = host.partition(":")[0]
        return cls(
            local_hostname=host,
            segment_bytes=parse_size(global_segment_size),
            buffer_bytes=parse_size(local_buffer_size),
            master=master_address(master_server_addr),
            tenant=tenant,
            ignored=tuple(name for name, is_given in ignored.items() if is_given),
        )

    @classmethod
    def of_dict(cls, given: Mapping[str, Any]) -> SetupSettings:
        """Check a dict whose values may all be text.

        Raises:
            ValueError: It has a name that is not known, or a value that cannot be.
        """
        named: dict[str, Any] = {}
        for name, value in given.items():
            known = _NAMES.get(name, name)
            if known not in _KNOWN:
                raise ValueError(
                    f"setup: {name!r} is no setting; there are {', '.join(sorted(_KNOWN))}"
                )
            if known in named and named[known] != value:
                raise ValueError(f"setup: {name!r} and {known!r} are the same and differ")
            named[known] = value
        if "local_hostname" not in named:
            raise ValueError("setup: local_hostname is needed")
        for name in ("enable_ssd_offload", "enable_client_http_server"):
            if isinstance(named.get(name), str):
                named[name] = named[name].strip().lower() in ("1", "true", "yes", "on")
        for name in ("ipc_socket_path", "ssd_offload_path", "client_http_port"):
            named.pop(name, None)
        return cls.of(**named)


def parse_size(text: int | str) -> int:
    """Return the bytes that `64MB`, `1.5 GiB` or a number means; all units are powers of 1024.

    Raises:
        ValueError: It means none.
    """
    if isinstance(text, int):
        size = text
    else:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", text.lower())
        if found is None:
            raise ValueError(f"{text!r} is no size: write 64MB, 4GiB or a number of bytes")
        size = int(float(found[1]) * (1 << _UNITS[found[2]])) if found[2] else int(float(found[1]))
    if size < 0:
        raise ValueError(f"a size is not negative, as {size} is")
    return size


def master_address(text: str) -> str:
    """Return an address of a master, or of etcd, as `mooncake_store.Client` takes it."""
    text = text.strip() or DEFAULT_MASTER
    if not text.startswith("etcd://"):
        return text
    hosts, _, prefix = text.removeprefix("etcd://").replace(";", ",").partition("/")
    return f"etcd://{hosts}/{prefix or CLUSTER}"
