"""One peer over four unequal cables, in network namespaces: no byte notices what they suffer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from mooncake_store.cli.bench.rail_net import why_not
from mooncake_store.cli.bench.rails import Pair, StorePair

KIB, MIB = 1 << 10, 1 << 20
MEMORY = 8 * MIB
WORDS = ("read", "write")

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(120),
]


def await_rails(pair: Pair, remotes: list[str], direction: str) -> None:
    """Wait until exactly these far ends are up."""
    until = time.monotonic() + 20
    while True:
        up = sorted(
            remote.partition(":")[0]
            for _, remote, way, is_up, _, _ in pair.asking.do("rails")["rails"]
            if way == direction and is_up
        )
        if up == sorted(remotes):
            return
        assert time.monotonic() < until, (up, remotes)
        pair.asking.do("move", opcode=WORDS.index(direction), size=MIB, total=MIB, count=1)
        time.sleep(0.05)


ALL = [f"10.77.{rail}.2" for rail in range(4)]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair((400, 400, 200, 100), MEMORY) as made:
        for opcode in (0, 1):
            made.asking.do("move", opcode=opcode, size=MIB, total=MEMORY, count=2)
        for direction in WORDS:
            await_rails(made, ALL, direction)  # the peer's topology may come with the next question
        yield made


def during(
    pair: Pair, direction: str, trouble: Callable[[], None], mend: Callable[[], None]
) -> None:
    """Move bytes without end while there is trouble, and after it: every request ends well."""
    opcode = WORDS.index(direction)
    seed = 1
    if opcode == 1:
        pair.asking.do("fill", seed=1)
    pair.asking.do("start", opcode=opcode, size=256 * KIB)
    time.sleep(0.3)
    trouble()
    time.sleep(0.7)
    mend()
    time.sleep(0.5)
    ended = pair.asking.do("stop")
    assert ended["failures"] == []
    assert ended["wrong"] == 0
    if opcode == 1:
        assert pair.serving.tell(str(seed))["same"]


@pytest.mark.parametrize("size", [3 * KIB, 64 * KIB, 256 * KIB, 8 * MIB])
def test_every_byte_arrives_whatever_the_size(pair: Pair, size: int) -> None:
    total = 2000 * size if size < 64 * KIB else MEMORY
    asking = pair.asking
    asking.do("fill", seed=2)
    asking.do("move", opcode=0, size=size, total=MEMORY, count=1)
    assert asking.do("check", seed=1)["same"]
    asking.do("fill", seed=size)
    asking.do("move", opcode=1, size=size, total=min(total, MEMORY), count=1)
    asking.do("move", opcode=1, size=MIB, total=MEMORY, count=1)
    assert pair.serving.tell(str(size))["same"]
    asking.do("fill", seed=1)
    asking.do("move", opcode=1, size=size if size >= 64 * KIB else MIB, total=MEMORY, count=1)
    assert pair.serving.tell("1")["same"]


def test_all_interfaces_are_found_and_used(pair: Pair) -> None:
    for direction in WORDS:
        await_rails(pair, ALL, direction)
    rails = pair.asking.do("rails")["rails"]
    ends = {(local, remote.partition(":")[0]) for local, remote, *_ in rails}
    assert ends == {(f"10.77.{rail}.1", f"10.77.{rail}.2") for rail in range(4)}


@pytest.mark.parametrize("direction", WORDS)
def test_a_cable_is_pulled_and_put_in_again(pair: Pair, direction: str) -> None:
    during(pair, direction, lambda: pair.net.pull(1), lambda: pair.net.plug(1))
    await_rails(pair, ALL, direction)


@pytest.mark.parametrize("direction", WORDS)
def test_three_of_four_cables_are_pulled(pair: Pair, direction: str) -> None:
    def pull() -> None:
        for rail in (0, 1, 2):
            pair.net.pull(rail)

    def plug() -> None:
        for rail in (0, 1, 2):
            pair.net.plug(rail)

    during(pair, direction, pull, plug)
    await_rails(pair, ALL, direction)


@pytest.mark.parametrize("from_here", [True, False], ids=["there", "back"])
@pytest.mark.parametrize("direction", WORDS)
def test_packets_of_one_direction_are_lost(pair: Pair, direction: str, from_here: bool) -> None:
    during(
        pair,
        direction,
        lambda: pair.net.lose(0, from_here=from_here),
        lambda: pair.net.keep(0, from_here=from_here),
    )
    await_rails(pair, ALL, direction)


@pytest.mark.parametrize("direction", WORDS)
def test_an_address_of_the_peer_changes(pair: Pair, direction: str) -> None:
    try:
        during(pair, direction, lambda: pair.net.renumber(2, 22), lambda: None)
        changed = [*ALL[:2], "10.77.2.22", ALL[3]]
        await_rails(pair, changed, direction)
    finally:
        pair.net.renumber(2, 2)
    await_rails(pair, ALL, direction)


def test_the_store_uses_all_cables_and_survives_a_pulled_one() -> None:
    with StorePair((400, 400, 200, 100), MEMORY) as store:
        asking, net = store.asking, store.net
        for opcode in (0, 1):
            asking.do("move", opcode=opcode, size=MEMORY, total=MEMORY, count=3)
            before = [net.carried_bytes(rail) for rail in range(4)]
            asking.do("start", opcode=opcode, size=MIB)
            time.sleep(0.5)
            net.pull(1)  # the master is reached over the first
            time.sleep(1.0)
            net.plug(1)
            time.sleep(0.5)
            ended = asking.do("stop")
            assert (ended["failures"], ended["wrong"]) == ([], 0)
            carried = [net.carried_bytes(rail) - before[rail] for rail in range(4)]
            assert min(carried) > MIB, carried


@pytest.fixture(scope="module")
def store_in_one_network() -> Iterator[StorePair]:
    with StorePair((200, 200), MEMORY, is_one_network=True) as made:
        for opcode in (0, 1):
            made.asking.do("move", opcode=opcode, size=MEMORY, total=MEMORY, count=3)
        yield made


def carried_while(
    store: StorePair, opcode: int, rails: int, trouble: Callable[[], None]
) -> list[list[int]]:
    """Move bytes before and after a change; what each interface carried afterwards, here and there.

    Of a get the bytes that come in here and leave there, of a put the others.
    """
    net = store.net
    asking = store.asking

    def carried() -> list[list[int]]:
        return [
            [net.carried(host, rail)[opcode ^ is_far] for rail in range(rails)]
            for is_far, host in enumerate((net.here, net.there))
        ]

    asking.do("start", opcode=opcode, size=MIB)
    time.sleep(0.5)
    trouble()
    time.sleep(1.5)
    before = carried()
    time.sleep(1.0)
    after = carried()
    ended = asking.do("stop")
    assert (ended["failures"], ended["wrong"]) == ([], 0)
    return [[b - a for a, b in zip(*ends, strict=True)] for ends in zip(before, after, strict=True)]


@pytest.mark.parametrize("opcode", [0, 1], ids=["get", "put"])
def test_the_store_tells_two_interfaces_in_one_network_apart(
    store_in_one_network: StorePair, opcode: int
) -> None:
    carried = carried_while(store_in_one_network, opcode, 2, lambda: None)
    for ends in carried:
        assert min(ends) > 0.35 * sum(ends), carried


@pytest.mark.parametrize("opcode", [0, 1], ids=["get", "put"])
def test_a_client_follows_its_own_interfaces(store_in_one_network: StorePair, opcode: int) -> None:
    """A link goes down and up, an address changes, an interface is taken away and put in again."""
    net = store_in_one_network.net

    def share(trouble: Callable[[], None]) -> float:
        (here, _) = carried_while(store_in_one_network, opcode, 2, trouble)
        return here[1] / sum(here)

    assert share(lambda: net.switch_off(1)) < 0.02
    assert share(lambda: net.switch_on(1)) > 0.35
    assert share(lambda: net.renumber(1, 5, is_here=True)) > 0.35
    net.take_out(1)
    assert share(lambda: net.plug_in(net.here, 1)) > 0.35


@pytest.fixture(scope="module")
def store_at_one_cable() -> Iterator[StorePair]:
    with StorePair((200,), MEMORY) as made:
        yield made


@pytest.mark.parametrize("opcode", [0, 1], ids=["get", "put"])
def test_tenants_share_one_cable_by_their_weights(
    store_at_one_cable: StorePair, opcode: int
) -> None:
    flows = [
        {"priority": "normal", "tenant": "large", "weight": 3},
        {"priority": "normal", "tenant": "small", "weight": 1},
    ]
    moved = store_at_one_cable.asking.do(
        "contend", opcode=opcode, size=MIB, seconds=4.0, flows=flows
    )["moved"]
    assert 2.0 < moved[0] / moved[1] < 4.5, moved


@pytest.mark.parametrize("opcode", [0, 1], ids=["get", "put"])
def test_prefetching_leaves_the_cable_to_who_waits(
    store_at_one_cable: StorePair, opcode: int
) -> None:
    flows = [{"priority": "urgent"}, {"priority": "prefetch"}]
    moved = store_at_one_cable.asking.do(
        "contend", opcode=opcode, size=MIB, seconds=4.0, flows=flows
    )["moved"]
    assert moved[0] > 6 * moved[1], moved
