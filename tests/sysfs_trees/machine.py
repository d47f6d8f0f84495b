"""The list of machines, each with its source and what is expected of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.sysfs_trees.tree import Tree

__all__ = ["MACHINES", "Machine", "machine"]


@dataclass(frozen=True)
class Machine:
    """A machine that can be built.

    Attributes:
        name: Of the function that builds it.
        source: The document, recording or manual page that its layout follows.
        build: Fills a tree.
        expected: `LOCATION TRANSPORT` to `PREFERRED | SECONDARY | OTHER`, each names in order.
    """

    name: str
    source: str
    build: Callable[[Tree], None]
    expected: Mapping[str, str]


MACHINES: dict[str, Machine] = {}


def machine(
    source: str, expected: Mapping[str, str]
) -> Callable[[Callable[[Tree], None]], Callable[[Tree], None]]:
    """Put a function that builds a machine on the list."""

    def keep(build: Callable[[Tree], None]) -> Callable[[Tree], None]:
        name = build.__name__
        assert name not in MACHINES
        MACHINES[name] = Machine(name, source, build, expected)
        return build

    return keep
