"""Extra replicas are remembered, and given out once they are cold."""

from __future__ import annotations

from mooncake_store.conductor.service.extra_replicas import Extra, ExtraReplicas


def extra(name: str, server: str = "s", had: int = 1) -> Extra:
    return Extra(name, server, had, 100)


def test_what_nobody_asks_for_is_cold_and_given_out_once() -> None:
    extras = ExtraReplicas(cold_s=10)
    extras.made("a", extra("a"), 0.0)
    extras.made("b", extra("b"), 1.0)
    assert extras.take_cold(9.9) is None and not extras.has_cold(9.9)
    assert extras.has_cold(10.0)
    assert extras.take_cold(10.0) == (extra("a"), 10.0)
    assert extras.take_cold(10.0) is None
    assert extras.take_cold(100.0) == (extra("b"), 99.0)
    assert len(extras) == 0 and extras.take_cold(1000.0) is None


def test_asking_keeps_a_block_warm_and_others_do_not_wait_for_it() -> None:
    extras = ExtraReplicas(cold_s=10)
    for number, digest in enumerate("abc"):
        extras.made(digest, extra(digest), float(number))
    extras.asked(["x", "a"], 9.0)
    assert extras.take_cold(12.5) == (extra("b"), 11.5)
    assert extras.take_cold(12.5) == (extra("c"), 10.5)
    assert extras.take_cold(12.5) is None
    assert extras.take_cold(19.0) == (extra("a"), 10.0)


def test_the_newest_replica_of_a_block_goes_first_and_who_asks_keeps_the_rest() -> None:
    extras = ExtraReplicas(cold_s=1)
    for number in (1, 2, 3):
        extras.made("a", extra("a", f"s{number}", number), 0.0)
    assert extras.take_cold(5.0) == (extra("a", "s3", 3), 5.0)
    extras.asked(["a"], 5.1)  # it has become hot again between one and the next
    assert extras.take_cold(5.2) is None and len(extras) == 2
    assert extras.take_cold(9.0) == (extra("a", "s2", 2), 9.0 - 5.1)
    assert extras.take_cold(9.0) == (extra("a", "s1", 1), 9.0 - 5.1)


def test_what_is_remembered_is_bounded() -> None:
    extras = ExtraReplicas(cold_s=1, blocks_max=50)
    for number in range(80):
        extras.made(str(number), extra(str(number)), 0.0)
    assert len(extras) == 50
    taken = [extras.take_cold(5.0) for _ in range(51)]
    assert [one[0].key for one in taken if one] == [str(number) for number in range(30, 80)]
