"""The policy that chooses prefill instances: one of C, or one that a user wrote in Python."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from mooncake_store.conductor.costs import Costs
from mooncake_store.conductor.prefill_choice import PrefillChoice, PrefillView
from mooncake_store.errors import ConfigError

__all__ = ["Selector", "load_selector"]


class Selector(Protocol):
    """What a policy has to be able to do; `PrefillSelector` is one."""

    def choose(
        self, num_tokens: int, views: Sequence[PrefillView], *, turn: int = 0
    ) -> PrefillChoice | None:
        """Return who computes a prompt; None: nobody can."""
        ...


def load_selector(name: str, costs: Costs) -> Selector:
    """Return a policy that is written in Python.

    Args:
        name: `module:object`; the object is called with the costs and returns a `Selector`.
        costs: What it predicts with.

    Raises:
        ConfigError: There is no such module or object, or it makes no policy.
    """
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
        made = found(costs)
    except Exception as error:
        raise ConfigError(
            f"policy {name!r} cannot be loaded: {type(error).__name__}: {error}", cause=error
        ) from error
    if not callable(getattr(made, "choose", None)):
        raise ConfigError(f"policy {name!r} makes something without `choose`")
    selector: Selector = made
    return selector
