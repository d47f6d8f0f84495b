"""What happens to store servers."""

from __future__ import annotations

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.ledger import any_holder
from protocol_model.replicas.state import Extent, Server, State, Steps

__all__ = ["fault_steps"]


def fault_steps(state: State, config: Configuration) -> Steps:
    for s, server in enumerate(state.servers):
        if state.budget.kills:
            restarted = server._replace(
                incarnation=server.incarnation + 1, copies=frozenset(), fenced=frozenset()
            )
            after = state.spending("kills").with_server(s, restarted)
            yield f"server {s} is killed and restarted", after, None
        if state.budget.reboots:
            yield _reboot(state, config, s)


def _reboot(state: State, config: Configuration, s: int) -> tuple[str, State, None]:
    old = state.servers[s]
    # The coordinator's epoch is the floor for a header that is gone (epoch_floor).
    empty = Server(state.coordinator.epoch, old.incarnation + 1, (Extent(),) * len(old.extents))
    values = tuple(
        2 if status == 1 and not any_holder(state, config, value, without=s) else status
        for value, status in enumerate(state.values)
    )
    after = state.spending("reboots").with_server(s, empty)._replace(values=values)
    if state.view is not None and state.view.replica.server == s:
        after = after._replace(view=None)
    if values[state.noted[0]] != 1:
        after = after._replace(noted=(0, 0))
    return f"node {s} reboots: its memory is gone", after, None
