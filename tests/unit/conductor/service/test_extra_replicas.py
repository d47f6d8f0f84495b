"""Extra replicas are remembered, and given out once they are cold."""

from __future__ import annotations

from mooncake_store.conductor.service.extra_replicas import Extra, ExtraReplicas


def extra(name: str, server: str = "s", had: int = 1) -> Extra:
    return Extra(name, server, had, 100)


def test_what_nobody_asks_for_is_cold_and_given_out_once() -> None:
    extras = ExtraReplicas(cold_s=10)
    extras.made("a", extra("a"), 0.0)
    extras.made("b", extra("b"), 1.0)
    assert extras.take_cold(9.9, 100) == []
    assert extras.take_cold(10.0, 100) == [extra("a")]
    assert extras.take_cold(100.0, 100) == [extra("b")]
    assert len(extras) == 0 and extras.take_cold(1000.0, 100) == []


def test_asking_keeps_a_block_warm_and_others_do_not_wait_for_it() -> None:
    extras = ExtraReplicas(cold_s=10)
    for number, digest in enumerate("abc"):
        extras.made(digest, extra(digest), float(number))
    extras.asked(["x", "a"], 9.0)
    assert extras.take_cold(12.5, 100) == [extra("b"), extra("c")]
    assert extras.take_cold(19.0, 100) == [extra("a")]


def test_the_newest_replica_of_a_block_goes_first() -> None:
    extras = ExtraReplicas(cold_s=1)
    extras.made("a", extra("a", "s1", 1), 0.0)
    extras.made("a", extra("a", "s2", 2), 0.0)
    assert [one.server for one in extras.take_cold(5.0, 100)] == ["s2", "s1"]


def test_a_turn_is_bounded_and_so_is_what_is_remembered() -> None:
    extras = ExtraReplicas(cold_s=1, blocks_max=50)
    for number in range(80):
        extras.made(str(number), extra(str(number)), 0.0)
    assert len(extras) == 50
    taken = [len(extras.take_cold(5.0, 20)) for _ in range(4)]
    assert taken == [20, 20, 10, 0]
