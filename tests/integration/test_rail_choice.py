"""Several addresses of a peer, priorities and `explain`, over the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mooncake_store.errors import RequestError
from mooncake_store.transfer_engine.engine import (
    Priority,
    Segment,
    TransferEngine,
    TransferRequest,
)

MIB = 1 << 20


class Net:
    """Two engines of this process and two ways between them."""

    def __init__(self, keep: ExitStack) -> None:
        self.serving = keep.enter_context(TransferEngine())
        self.asking = keep.enter_context(TransferEngine())
        self.there = bytearray(b"rail" * MIB)
        self.here = bytearray(len(self.there))
        far = self.serving.register_local_memory(self.there)
        self.asking.register_local_memory(self.here)
        first = self.serving.listen("127.0.0.1", local=False)
        port = int(first.rpartition(":")[2])
        second = self.serving.listen("127.0.0.2", port, local=False)
        self.one: Segment = self.asking.open_segment(first)
        self.both: Segment = self.asking.open_segment(f"127.0.0.1>{first},127.0.0.2>{second}")
        self.far = far

    def read(self, segment: Segment) -> TransferRequest:
        return TransferRequest.read(segment, self.here, self.far)


@pytest.fixture
def net() -> Iterator[Net]:
    with ExitStack() as keep:
        yield Net(keep)


def test_a_request_says_over_which_rails_it_went(net: Net) -> None:
    batch = net.asking.allocate_batch_id(1)
    net.asking.submit_transfer(batch, [net.read(net.both)], priority=Priority.URGENT, tenant=3)
    assert net.asking.wait(batch)
    told = net.asking.explain(batch, 0)
    assert net.here == net.there
    assert (told.state, told.bytes, told.retries) == ("COMPLETED", len(net.here), 0)
    assert told.waiting_s is not None and told.moving_s is not None and told.moving_s > 0
    assert [use.rail.local for use in told.rails] == ["127.0.0.1", "127.0.0.2"]
    assert sum(use.group_bytes for use in told.rails) == len(net.here)
    assert "tcp 127.0.0.2 > 127.0.0.2:" in str(told)
    net.asking.free_batch_id(batch)
    rails = net.asking.rails(net.both)
    assert [rail.direction for rail in rails] == ["read", "read", "write", "write"]
    assert any(rail.is_up and rail.bandwidth_bytes_per_s > 0 for rail in rails)


def test_one_address_has_no_rails_until_somebody_has_a_priority(net: Net) -> None:
    batch = net.asking.allocate_batch_id(2)
    net.asking.submit_transfer(batch, [net.read(net.one)])
    assert net.asking.wait(batch)
    assert net.asking.explain(batch, 0).rails == ()
    assert net.asking.rails(net.one) == []
    net.here[:] = bytes(len(net.here))
    net.asking.submit_transfer(
        batch, [net.read(net.one)], priority=Priority.BACKGROUND, tenant=1, weight=7
    )
    assert net.asking.wait(batch)
    assert net.here == net.there
    assert [use.was_used for use in net.asking.explain(batch, 1).rails] == [True]
    net.asking.free_batch_id(batch)


@pytest.mark.parametrize("weight", [0, 1025])
def test_a_weight_that_there_is_not_is_refused(net: Net, weight: int) -> None:
    with pytest.raises(RequestError, match="weight must be 1 to 1024"):
        net.asking.transfer([net.read(net.one)], weight=weight)
    with pytest.raises(RequestError, match="64 bits"):
        net.asking.transfer([net.read(net.one)], tenant=1 << 64)
