"""What an operator knows better than sysfs: a JSON file that is laid over what was found.

docs/topology.md describes the form, docs/topology.schema.json is its schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from mooncake_store.errors import ConfigError
from mooncake_store.transfer_engine.topology.document import Value, check_name, read_document
from mooncake_store.transfer_engine.topology.exchange import read_matrix
from mooncake_store.transfer_engine.topology.matrix import Topology
from mooncake_store.transfer_engine.topology.nic import Address, Nic
from mooncake_store.transfer_engine.topology.ranking import make_matrix

__all__ = ["NicOverride", "Override", "read_override"]

TOP_MEMBERS = ("discover", "only", "never", "nics", "matrix")
NIC_MEMBERS = ("addresses", "numa_node", "mbit_per_s", "link", "gid_index")


@dataclass(frozen=True, slots=True)
class NicOverride:
    """What is said about one interface; None leaves what was found."""

    addresses: tuple[Address, ...] | None = None
    numa_node: int | None = None
    mbit_per_s: int | None = None
    link: str | None = None
    gid_index: int | None = None


@dataclass(frozen=True, slots=True)
class Override:
    """A file that was read.

    Attributes:
        origin: The file, for errors.
        is_discovering: Whether the machine is looked at; else the file says everything.
        only: Patterns of interfaces or RDMA devices that may be used; empty: all.
        never: Patterns of interfaces that may not.
        nics: Facts about interfaces; one that was not found is added.
        matrix: Rows instead of computed ones.
    """

    origin: str = "override"
    is_discovering: bool = True
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    nics: Mapping[str, NicOverride] = field(default_factory=dict)
    matrix: Value | None = None

    def apply(self, found: Topology) -> Topology:
        """Return the topology as the operator wants it.

        Raises:
            ConfigError: A row names an interface that is not there, or none is left to use.
        """
        base = found if self.is_discovering else Topology(devices=found.devices)
        by_name = {nic.name: nic for nic in base.nics}
        for name, override in self.nics.items():
            by_name[name] = _overridden(by_name.get(name) or Nic(name), override)
        if self.only and not any(_matches(nic, self.only) for nic in by_name.values()):
            raise ConfigError(
                f"{self.origin}: only: no interface is called {' or '.join(self.only)}; "
                f"here are {', '.join(by_name) or 'none'}"
            )
        nics = tuple(self._permitted(nic) for nic in by_name.values())
        names = {nic.rdma.device: name for name, nic in by_name.items() if nic.rdma}
        names |= {name: name for name in by_name}
        rows = {} if self.matrix is None else read_matrix(self.matrix, names)
        return replace(
            base,
            nics=nics,
            matrix={**make_matrix(nics, base.devices), **rows},
            by_hand=frozenset(rows),
        )

    def _permitted(self, nic: Nic) -> Nic:
        if _matches(nic, self.never):
            return replace(nic, refused=f"ruled out by `never` in {self.origin}")
        if self.only and not _matches(nic, self.only):
            return replace(nic, refused=f"not in `only` of {self.origin}")
        return nic


def _matches(nic: Nic, patterns: tuple[str, ...]) -> bool:
    """Whether an interface, or its RDMA device, is called so."""
    names = [nic.name] if nic.rdma is None else [nic.name, nic.rdma.device]
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _overridden(nic: Nic, override: NicOverride) -> Nic:
    if override.addresses is not None:
        nic = replace(nic, addresses=override.addresses)
    if override.numa_node is not None:
        nic = replace(nic, numa_node=override.numa_node, path="")  # which would speak against it
    if override.mbit_per_s is not None:
        nic = replace(nic, link_mbit_per_s=override.mbit_per_s)
    if override.link is not None:
        nic = replace(nic, link=override.link)
    if override.gid_index is not None:
        nic = replace(nic, gid_index=override.gid_index)
    return nic


def read_override(path: Path | str) -> Override:
    """Read a file.

    Raises:
        ConfigError: It cannot be read or is not of that form; says where and what is wanted.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{path}: cannot be read: {reason}", cause=error) from error
    return parse_override(text, origin=str(path))


def parse_override(text: str, *, origin: str = "override") -> Override:
    """Read a file's text; see `read_override`."""
    members = read_document(text, origin).members(TOP_MEMBERS)
    nics = {}
    for name, value in (members["nics"].members() if "nics" in members else {}).items():
        check_name(value, name)
        nics[name] = _read_nic(value)
    return Override(
        origin,
        members["discover"].boolean() if "discover" in members else True,
        _patterns(members, "only"),
        _patterns(members, "never"),
        nics,
        members.get("matrix"),
    )


def _patterns(members: Mapping[str, Value], name: str) -> tuple[str, ...]:
    return tuple(item.name() for item in members[name].items()) if name in members else ()


def _read_nic(value: Value) -> NicOverride:
    if isinstance(value.raw, list):
        return NicOverride(tuple(item.address() for item in value.items()))
    members = value.members(NIC_MEMBERS)
    return NicOverride(
        tuple(item.address() for item in members["addresses"].items())
        if "addresses" in members
        else None,
        members["numa_node"].number(0, 1023) if "numa_node" in members else None,
        members["mbit_per_s"].number(1) if "mbit_per_s" in members else None,
        members["link"].name() if "link" in members else None,
        members["gid_index"].number(0, 255) if "gid_index" in members else None,
    )
