"""The terms of a decision: what each candidate would have taken, and why it was not chosen."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mooncake_store.conductor.prefill_choice import PrefillChoice
from mooncake_store.conductor.service.config import ConductorConfig
from mooncake_store.conductor.service.core import ConductorCore
from mooncake_store.conductor.service.decision import Decision, Refusal, Request
from mooncake_store.conductor.service.documents import Registration, Report
from mooncake_store.conductor.service.instances import LoadReport, Role
from mooncake_store.conductor.service.transfer_fit import Fetched

BLOCK = 512


def core_of(policy: str, prefill: int = 4, decode: int = 2, **given: Any) -> ConductorCore:
    config = ConductorConfig(policy=policy, block_tokens=BLOCK, **given)
    core = ConductorCore(config)
    for number in range(prefill):
        core.register(Registration(f"p{number}", Role.PREFILL, "", "", 1))
    for number in range(decode):
        core.register(Registration(f"d{number}", Role.DECODE, "", "", 1))
    return core


def keys(seed: int, count: int) -> list[str]:
    return [random.Random(f"{seed}/{i}").randbytes(32).hex() for i in range(count)]


def ask(core: ConductorCore, name: str, blocks: list[str], **fields: Any) -> Decision | Refusal:
    wanted = Request(
        request_id=name, num_tokens=len(blocks) * BLOCK + 7, blocks=core.names.of_keys(blocks),
        **fields,
    )  # fmt: skip
    return core.schedule(wanted, is_tracked=True)


def by_name(core: ConductorCore, request: str, what: str = "candidates") -> dict[str, Any]:
    return {one["name"]: one for one in core.explain(request)[what]}


@pytest.mark.parametrize("policy", ["random", "least-load", "least-count", "local", "global",
                                    "earliest", "ours"])  # fmt: skip
def test_the_chosen_ones_terms_are_the_decisions_and_nobody_is_better(policy: str) -> None:
    core = core_of(policy)
    for number in range(60):
        asked = keys(number % 7, 10 + number % 7)
        found = ask(core, f"r{number}", asked)
        assert isinstance(found, Decision)
        there = by_name(core, f"r{number}")
        assert set(there) == {"p0", "p1", "p2", "p3"}
        chosen = there[found.prefill]
        assert chosen["why"] == "chosen"
        assert chosen["used_tokens"] == found.prefix_tokens
        assert chosen["source"] == found.source
        for name in ("queue_s", "ready_s", "transfer_s", "prefill_s", "ttft_s"):
            assert chosen[name] == pytest.approx(getattr(found, name)), name
        score = {
            "random": lambda one: 0, "least-load": lambda one: one["queue_s"],
            "least-count": lambda one: one["requests"],
        }.get(policy, lambda one: one["ttft_s"])  # fmt: skip
        for one in there.values():
            assert score(one) >= score(chosen) - 1e-9
            if one is not chosen and policy not in ("random",):
                is_alike = score(one) - score(chosen) <= 1e-9
                assert (one["why"] == "as good, but not its turn") is is_alike, one["why"]
        decoding = by_name(core, f"r{number}", "decode_candidates")
        assert decoding[found.decode]["why"] == "chosen"
        assert decoding[found.decode]["tbt_s"] == pytest.approx(found.tbt_s)
        assert decoding[found.decode]["load"] == pytest.approx(found.decode_load)
        assert min(one["load"] for one in decoding.values()) == pytest.approx(found.decode_load)


def test_what_was_known_is_kept_though_it_changes() -> None:
    core = core_of("global", prefill=2)
    first = ask(core, "a", keys(1, 40))
    assert isinstance(first, Decision)
    before = core.explain("a")
    for number in range(5):
        ask(core, f"b{number}", keys(number, 40))
    for _ in range(8):
        core.scheduler.transfers.add(Fetched(1e9, 30.0), 1.0, core.now_s())
    core.sweep()
    assert core.scheduler.transfers.bandwidth_bytes_per_s < 1e9  # predictions are others now
    core.scheduler.drain("p0")
    core.remove("p1")
    after = core.explain("a")
    assert after["candidates"] == before["candidates"]
    assert after["decode_candidates"] == before["decode_candidates"]


def test_it_says_why_the_others_were_not_chosen() -> None:
    core = core_of("earliest", prefill=4)
    core.scheduler.drain("p3")
    holder = ask(core, "a", keys(1, 60))
    assert isinstance(holder, Decision)
    core.report("a", Report("prefilled"))
    core.scheduler.heartbeat(holder.prefill, 1, LoadReport(queue_s=9.0), core.now_s())
    found = ask(core, "b", keys(1, 60))
    assert isinstance(found, Decision) and found.source == holder.prefill
    there = by_name(core, "b")
    own = there[holder.prefill]
    assert own["source"] is None and own["queue_s"] == pytest.approx(9, abs=0.5)
    later_s = own["ttft_s"] - found.ttft_s
    assert own["why"] == f"its first token would be {later_s:.3f} s later"
    assert there["p3"]["why"] == "draining or silent" and there["p3"]["ttft_s"] is not None
    (other,) = set(there) - {holder.prefill, found.prefill, "p3"}
    assert there[other]["why"] == "as good, but not its turn"
    assert there[other]["source"] == holder.prefill and there[other]["transfer_s"] > 0


def test_a_refused_request_has_its_terms_too() -> None:
    core = core_of("global", prefill=2)
    for number in range(2):
        core.scheduler.heartbeat(f"p{number}", 1, LoadReport(queue_s=50.0 + number), core.now_s())
    assert isinstance(ask(core, "a", keys(1, 4)), Refusal)
    there = by_name(core, "a")
    assert there["p0"]["why"] == "the best, but refused"
    assert there["p1"]["why"].startswith("its first token would be 1.0")
    assert core.explain("a")["decode_candidates"] == []


def test_a_request_refused_for_decoding_shows_who_could_have_decoded() -> None:
    core = core_of("global")
    assert isinstance(ask(core, "a", keys(1, 4), tbt_slo_s=0.02), Refusal)
    decoding = by_name(core, "a", "decode_candidates")
    assert {one["why"] for one in decoding.values()} == {"the best, but refused"}
    assert decoding["d0"]["load"] == pytest.approx(decoding["d0"]["tbt_s"] / 0.02)


class Last:
    """A policy that always takes the last open instance."""

    def __init__(self, costs: object) -> None:
        pass

    def choose(self, num_tokens: int, views: Any, *, turn: int = 0) -> PrefillChoice:
        last = max(index for index, view in enumerate(views) if not view.is_closed)
        return PrefillChoice(last, None, 0, 0, 0.0, 0.0, 1.0, 1.0)


def test_what_a_users_policy_compares_only_it_knows() -> None:
    core = core_of(f"{__name__}:Last")
    assert isinstance(ask(core, "a", keys(1, 4)), Decision)
    there = by_name(core, "a")
    assert there["p3"]["why"] == "chosen"
    assert there["p0"]["why"] == "not named by the policy"
    assert there["p0"]["ttft_s"] is None and there["p0"]["queue_s"] == 0


def test_nobody_is_a_candidate_where_nobody_was_looked_at() -> None:
    core = core_of("global", prefill=0)
    assert isinstance(ask(core, "a", keys(1, 4)), Refusal)
    assert core.explain("a")["candidates"] == core.explain("a")["decode_candidates"] == []
