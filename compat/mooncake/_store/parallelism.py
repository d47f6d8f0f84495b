"""How a tensor lies over the ranks of a model, and how it is wanted."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Layout", "ParallelAxis", "ReadTarget", "TensorParallelism", "layout_of"]


class ParallelAxis:
    """One kind of parallelism, and a rank's place in it.

    Attributes:
        kind: `tp` (a shard along split_dim), `dp` (the same on every rank), `ep` (an expert,
            expert_id) or `pp` (a stage, stage_id).
    """

    def __init__(self) -> None:
        self.kind = ""
        self.rank = 0
        self.size = 1
        self.split_dim: int | None = None
        self.expert_id: int | None = None
        self.stage_id: int | None = None


class TensorParallelism:
    """The axes of a rank."""

    def __init__(self) -> None:
        self.axes: list[ParallelAxis] = []


class ReadTarget:
    """What is wanted of a tensor: `as_stored`, `shard` (of `parallelism`), or `full`."""

    def __init__(self) -> None:
        self.mode = "as_stored"
        self.parallelism: TensorParallelism | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """A rank's place, checked.

    Attributes:
        suffix: Of the key: expert and stage.
        size: Ranks of tensor parallelism; 1: there is none.
    """

    suffix: str
    rank: int
    size: int
    split_dim: int


def layout_of(parallelism: TensorParallelism | None) -> Layout | None:
    """Return the place that the axes name; None: they name none."""
    suffix, rank, size, split_dim = "", 0, 1, 0
    seen: set[str] = set()
    for axis in () if parallelism is None else parallelism.axes:
        if axis.kind in seen or axis.size < 1 or not 0 <= axis.rank < axis.size:
            return None
        seen.add(axis.kind)
        if axis.kind == "tp":
            if axis.split_dim is None:
                return None
            rank, size, split_dim = axis.rank, axis.size, axis.split_dim
        elif axis.kind == "ep" and axis.expert_id is not None:
            suffix += f"_ep_{axis.expert_id}"
        elif axis.kind == "pp" and axis.stage_id is not None:
            suffix += f"_pp_{axis.stage_id}"
        elif axis.kind != "dp":
            return None
    return Layout(suffix, rank, size, split_dim)
