"""What the service decides, and that it forgets nothing and keeps nothing too long."""

from __future__ import annotations

import random

import pytest

from mooncake_store.conductor.prefill_choice import PrefillChoice
from mooncake_store.conductor.service.block_names import Blocks
from mooncake_store.conductor.service.core import costs_of
from mooncake_store.conductor.service.decision import Decision, Reason, Refusal, Request
from mooncake_store.conductor.service.http_api import refusal_response
from mooncake_store.conductor.service.instances import LoadReport, Role
from mooncake_store.conductor.service.scheduler import Scheduler, SchedulerLimits
from mooncake_store.conductor.service.selector import load_selector
from mooncake_store.conductor.service.transfer_fit import Fetched
from mooncake_store.conductor.sim_config import SimConfig, with_policy
from mooncake_store.errors import ConfigError, LimitError, RequestError, UnknownInstanceError

BLOCK = 512


def scheduler_of(
    policy: str = "global",
    admission: str = "early",
    selector: object = None,
    rules: dict[str, str] | None = None,
    **limits: float,
) -> Scheduler:
    config = with_policy(SimConfig(), policy, admission=admission, **(rules or {}))
    given = {"instances_max": 8, "servers_max": 4, "blocks_max": 4096, "flights_max": 64}
    return Scheduler(
        config,
        costs_of(config),
        SchedulerLimits(**{**given, **limits}),  # type: ignore[arg-type]
        block_tokens=BLOCK,
        selector=selector,  # type: ignore[arg-type]
    )


def prompt(seed: int, blocks: int) -> Blocks:
    digests = [random.Random(f"{seed}/{i}").randbytes(32) for i in range(blocks)]
    return Blocks(tuple(d.hex() for d in digests), b"".join(d[:16] for d in digests))


def request(name: str, blocks: Blocks, **fields: float) -> Request:
    return Request(request_id=name, num_tokens=len(blocks) * BLOCK + 7, blocks=blocks, **fields)  # type: ignore[arg-type]


def with_instances(scheduler: Scheduler, prefill: int = 2, decode: int = 1) -> Scheduler:
    for number in range(prefill):
        scheduler.register(f"p{number}", Role.PREFILL, "", "", 1, 0.0)
    for number in range(decode):
        scheduler.register(f"d{number}", Role.DECODE, "", "", 1, 0.0)
    return scheduler


def accepted(found: Decision | Refusal) -> Decision:
    assert isinstance(found, Decision), found
    return found


def refused(found: Decision | Refusal) -> Refusal:
    assert isinstance(found, Refusal), found
    return found


def test_an_empty_cluster_is_unavailable_and_says_when_to_try_again() -> None:
    scheduler = scheduler_of()
    found = refused(scheduler.schedule(request("a", prompt(1, 2)), 0.0))
    assert (found.status, found.reason) == (503, Reason.NO_PREFILL)
    assert found.retry_after_s >= 1
    with_instances(scheduler, decode=0)
    found = refused(scheduler.schedule(request("a", prompt(1, 2)), 0.0))
    assert (found.status, found.reason) == (503, Reason.NO_DECODE)
    assert not scheduler.flights


def test_a_prompt_goes_where_its_prefix_is_at_once() -> None:
    scheduler = with_instances(scheduler_of())
    blocks = prompt(1, 8)
    first = accepted(scheduler.schedule(request("a", blocks), 0.0))
    assert first.prefix_tokens == 0
    scheduler.finished("a", 100, 1.0)
    again = accepted(scheduler.schedule(request("b", blocks), 1.0))
    assert again.prefill == first.prefill
    assert again.prefix_tokens == 8 * BLOCK
    assert again.pinned_blocks == 8


def test_blocks_are_fetched_from_a_store_server_near_nobody() -> None:
    scheduler = with_instances(scheduler_of(), prefill=1)
    blocks = prompt(2, 10)
    scheduler.holders.stored("far", blocks.packed)
    found = accepted(scheduler.schedule(request("a", blocks), 0.0))
    assert found.source == found.source_server == "far"
    assert found.move == blocks.digests
    assert found.transfer_bytes == pytest.approx(10 * BLOCK * 327_680)


def test_what_the_server_of_its_host_holds_is_an_instances_own() -> None:
    scheduler = scheduler_of()
    blocks = prompt(3, 6)
    scheduler.holders.stored("host-a", blocks.packed)  # before the instance comes
    scheduler.register("p0", Role.BOTH, "", "host-a", 1, 0.0)
    scheduler.register("p1", Role.BOTH, "", "host-b", 1, 0.0)
    found = accepted(scheduler.schedule(request("a", blocks), 0.0))
    assert (found.prefill, found.source, found.prefix_tokens) == ("p0", None, 6 * BLOCK)
    scheduler.finished("a", None, 0.1)
    scheduler.holders.removed("host-a", blocks.packed)
    scheduler.sweep(100.0)  # the promise ends too; the instances have been silent
    assert scheduler.index.match_lengths(blocks.packed) == [0] * 12


def test_a_refusal_changes_nothing() -> None:
    scheduler = with_instances(scheduler_of(admission="baseline"))
    blocks = prompt(4, 400)
    found = refused(scheduler.schedule(request("a", blocks, ttft_slo_s=0.5), 0.0))
    assert (found.status, found.reason) == (429, Reason.TTFT)
    assert found.ttft_s is not None and found.ttft_s > 0.5
    assert scheduler.table.free_at_s[:8] == [0.0] * 8
    assert scheduler.index.match_lengths(blocks.packed) == [0] * 12
    assert not scheduler.flights and scheduler.flight_table.count == 0


@pytest.mark.parametrize("admission", ["baseline", "early", "predicted", "forecast"])
def test_overload_is_refused_by_every_admission_and_passes(admission: str) -> None:
    scheduler = with_instances(scheduler_of(policy="earliest", admission=admission))
    outcomes = [
        scheduler.schedule(request(f"r{n}", prompt(100 + n, 100)), 0.0, is_tracked=True)
        for n in range(20)
    ]
    late = [one for one in outcomes if isinstance(one, Refusal)]
    assert late and all(one.status == 429 for one in late)
    assert scheduler.refused.total() == len(late)
    for name in list(scheduler.flights):
        scheduler.prefilled(name, 5.0)
        scheduler.finished(name, 10, 6.0)
    accepted(scheduler.schedule(request("after", prompt(300, 100)), 6.0))


def test_a_forecast_counts_those_who_will_come_until_a_long_prompt_is_through() -> None:
    def after(rush: int) -> Decision | Refusal:
        lasting = {"heartbeat_timeout_s": 1e4, "forget_s": 1e5}
        scheduler = with_instances(scheduler_of(admission="forecast", **lasting))
        for second in range(30):
            for n in range(rush):
                name = f"{second}/{n}"
                accepted(scheduler.schedule(request(name, prompt(9, 2)), float(second)))
                scheduler.finished(name, 400, float(second))
            scheduler.sweep(float(second))
        # Nobody is there; the answers have had 400 tokens each, and this prompt takes long.
        return scheduler.schedule(request("long", prompt(7, 400), ttft_slo_s=1e3), 30.0)

    assert accepted(after(1)).ttft_s > 30
    assert refused(after(20)).reason == Reason.DECODE_LOAD


def test_nobody_reports_and_requests_pass_all_the_same() -> None:
    scheduler = with_instances(scheduler_of(heartbeat_timeout_s=1e4, forget_s=1e5))
    for n in range(30):
        accepted(scheduler.schedule(request(f"r{n}", prompt(n, 4)), 0.0))
    for second in range(1, 200):
        scheduler.sweep(float(second))
    assert not scheduler.flights and scheduler.flight_table.count == 0
    assert all(not len(queue) for queue in scheduler.queues)
    assert scheduler.decode.load(scheduler.instances.get("d0").slot) == (0, 0, 0)


def test_a_tracked_request_is_given_up_at_its_deadline() -> None:
    scheduler = with_instances(
        scheduler_of(request_s_max=10.0, heartbeat_timeout_s=1e4, forget_s=1e5)
    )
    ended = []
    scheduler.on_end = lambda flight: ended.append(flight.request_id)
    accepted(scheduler.schedule(request("a", prompt(1, 4)), 0.0, is_tracked=True))
    scheduler.sweep(9.0)
    assert "a" in scheduler.flights
    scheduler.sweep(10.0)
    assert ended == ["a"] and not scheduler.flights


def test_a_dead_instance_gets_nothing_and_takes_its_requests_with_it() -> None:
    scheduler = with_instances(scheduler_of(heartbeat_timeout_s=2.0, forget_s=5.0))
    blocks = prompt(1, 4)
    victim = accepted(scheduler.schedule(request("a", blocks), 0.0, is_tracked=True)).prefill
    other = {"p0": "p1", "p1": "p0"}[victim]
    for name in (other, "d0"):
        scheduler.heartbeat(name, 1, None, 2.5)
    silent, gone = scheduler.sweep(2.5)
    assert [one.name for one in silent] == [victim] and not gone
    assert accepted(scheduler.schedule(request("b", blocks), 2.5)).prefill == other
    for name in (other, "d0"):
        scheduler.heartbeat(name, 2, None, 5.5)
    _, gone = scheduler.sweep(5.5)
    assert [one.name for one in gone] == [victim]
    assert "a" not in scheduler.flights
    with pytest.raises(UnknownInstanceError):
        scheduler.heartbeat(victim, 9, None, 6.0)
    scheduler.register(victim, Role.PREFILL, "", "", 2, 6.0)
    assert scheduler.index.match_lengths(blocks.packed)[scheduler.instances.get(victim).slot] == 0


def test_a_silent_instance_is_open_again_with_its_next_heartbeat() -> None:
    scheduler = with_instances(scheduler_of(heartbeat_timeout_s=2.0), prefill=1)
    scheduler.sweep(3.0)
    assert isinstance(scheduler.schedule(request("a", prompt(1, 1)), 3.0), Refusal)
    for name in ("p0", "d0"):
        scheduler.heartbeat(name, 1, None, 3.1)
    accepted(scheduler.schedule(request("a", prompt(1, 1)), 3.1))


def test_held_up_reports_do_not_count_whatever_clock_they_come_from() -> None:
    scheduler = with_instances(scheduler_of("least-load"), prefill=2)
    slot = scheduler.instances.get("p0").slot
    busy, idle = LoadReport(queue_s=8.0), LoadReport(queue_s=0.0)
    assert scheduler.heartbeat("p0", 7, busy, 1.0)[1]
    assert scheduler.table.free_at_s[slot] == pytest.approx(9.0)
    assert not scheduler.heartbeat("p0", 6, idle, 1.5)[1]  # sent before, came after
    assert not scheduler.heartbeat("p0", 7, idle, 1.5)[1]
    assert scheduler.instances.get("p0").stale_reports == 2
    assert scheduler.table.free_at_s[slot] == pytest.approx(9.0)
    assert accepted(scheduler.schedule(request("a", prompt(1, 1)), 1.5)).prefill == "p1"


def test_an_old_report_is_not_believed_any_more() -> None:
    scheduler = with_instances(
        scheduler_of(report_s_max=3.0, heartbeat_timeout_s=100.0, forget_s=200.0)
    )
    scheduler.heartbeat("p0", 1, LoadReport(queue_s=50.0, requests=9), 0.0)
    scheduler.heartbeat("d0", 1, LoadReport(batch=200, context_tokens=900_000), 0.0)
    scheduler.sweep(2.0)
    slots = [scheduler.instances.get(name).slot for name in ("p0", "d0")]
    assert scheduler.table.free_at_s[slots[0]] == pytest.approx(50.0)
    assert scheduler.decode.load(slots[1])[0] == 200
    scheduler.sweep(4.0)
    assert scheduler.table.free_at_s[slots[0]] == pytest.approx(4.0)
    assert scheduler.decode.load(slots[1])[0] == 0


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_a_report_that_makes_no_sense_is_refused(value: float) -> None:
    with pytest.raises(RequestError):
        LoadReport(queue_s=value)


def test_registrations_that_cannot_be_are_refused() -> None:
    scheduler = with_instances(scheduler_of(), prefill=7)
    with pytest.raises(LimitError):
        scheduler.register("one-more", Role.BOTH, "", "", 1, 0.0)
    with pytest.raises(RequestError, match="incarnation"):
        scheduler.register("p0", Role.PREFILL, "", "", 0, 0.0)
    with pytest.raises(RequestError, match="name"):
        scheduler.register("", Role.PREFILL, "", "", 0, 0.0)


def test_requests_that_cannot_be_are_refused() -> None:
    scheduler = with_instances(scheduler_of())
    blocks = prompt(1, 4)
    with pytest.raises(RequestError, match="tokens"):
        scheduler.schedule(Request(request_id="a", num_tokens=0, blocks=Blocks((), b"")), 0.0)
    with pytest.raises(RequestError, match="more than"):
        scheduler.schedule(Request(request_id="a", num_tokens=BLOCK, blocks=blocks), 0.0)
    with pytest.raises(UnknownInstanceError):
        scheduler.finished("never", None, 0.0)


def test_a_request_that_is_asked_again_counts_once() -> None:
    scheduler = with_instances(scheduler_of())
    for _ in range(5):
        accepted(scheduler.schedule(request("a", prompt(1, 4)), 0.0))
    assert len(scheduler.flights) == scheduler.flight_table.count == 1
    assert sum(len(queue) for queue in scheduler.queues) == 1


def test_more_requests_than_there_is_room_for_are_unavailable() -> None:
    scheduler = with_instances(scheduler_of(admission="all", flights_max=3))
    outcomes = [scheduler.schedule(request(f"r{n}", prompt(n, 1)), 0.0) for n in range(4)]
    assert [isinstance(one, Decision) for one in outcomes] == [True, True, True, False]
    assert refused(outcomes[3]).reason == Reason.TOO_MANY


class Busiest:
    """A policy of a user: the last open instance."""

    def __init__(self, costs: object) -> None:
        self.named = -1

    def choose(self, num_tokens, views, *, turn=0):  # type: ignore[no-untyped-def]
        open_ones = [i for i, view in enumerate(views) if not view.is_closed]
        number = open_ones[-1] if self.named < 0 else self.named
        return PrefillChoice(number, None, 0, 0, 1.0, 0.0, 2.0, 3.0)


def test_a_policy_of_ones_own_is_asked_and_its_mistakes_harm_one_request() -> None:
    policy = Busiest(None)
    scheduler = with_instances(scheduler_of(selector=policy), prefill=3)
    assert accepted(scheduler.schedule(request("a", prompt(1, 1)), 0.0)).prefill == "p2"
    for named in (7, 1000, scheduler.instances.get("d0").slot):  # closed, none, no prefill instance
        policy.named = named
        found = refused(scheduler.schedule(request("b", prompt(1, 1)), 0.0))
        assert (found.status, found.reason) == (503, Reason.POLICY)
    policy.choose = None  # type: ignore[method-assign, assignment]  # raises
    assert refused(scheduler.schedule(request("b", prompt(1, 1)), 0.0)).reason == Reason.POLICY


@pytest.mark.parametrize("name", ["nowhere:Policy", "math:nothing", "math:pi", "builtins:str"])
def test_a_policy_that_is_none_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigError, match="policy"):
        load_selector(name, costs_of(SimConfig()))


def test_readiness_that_was_said_of_one_request_is_not_said_of_the_next() -> None:
    scheduler = with_instances(scheduler_of("earliest", heartbeat_timeout_s=1e4), prefill=2)
    blocks = prompt(1, 40)
    first = accepted(scheduler.schedule(request("a", blocks), 0.0, is_tracked=True))
    slot = scheduler.instances.get(first.prefill).slot
    accepted(scheduler.schedule(request("b", blocks), 0.0, is_tracked=True))
    assert scheduler.table.ready_s(slot) > 0
    for name in ("a", "b"):
        scheduler.prefilled(name, 0.5)
    accepted(scheduler.schedule(request("c", blocks), 0.5))
    assert scheduler.table.ready_s(slot) == 0


def test_transfers_are_predicted_as_they_were_measured() -> None:
    scheduler = with_instances(
        scheduler_of("global", heartbeat_timeout_s=1e4, forget_s=1e5), prefill=1
    )
    predicted = []
    for number in range(20):
        blocks, now_s = prompt(number, 1 + number % 5), float(number)
        scheduler.holders.stored("far", blocks.packed)
        name = f"r{number}"
        found = accepted(scheduler.schedule(request(name, blocks), now_s, is_tracked=True))
        took_s = 0.05 + found.transfer_bytes / 2e9
        predicted.append(found.transfer_s / took_s)
        scheduler.prefilled(name, now_s, Fetched(found.transfer_bytes, took_s))
        scheduler.finished(name, 10, now_s)
        scheduler.sweep(now_s + 0.9)
    assert predicted[0] < 0.2
    assert predicted[-1] == pytest.approx(1.0, rel=0.05)
    assert scheduler.transfers.measured == 20
    assert scheduler.hot.nic_bytes_per_s == pytest.approx(2e9, rel=0.05)


def test_what_is_measured_may_be_told_and_not_believed() -> None:
    scheduler = with_instances(scheduler_of(learns_transfers=False), prefill=1)
    for number in range(9):
        blocks = prompt(number, 3 + number)
        scheduler.holders.stored("far", blocks.packed)
        found = accepted(scheduler.schedule(request("r", blocks), 0.0))
        scheduler.prefilled("r", 0.0, Fetched(found.transfer_bytes, 7.0))
    scheduler.sweep(5.0)
    assert accepted(scheduler.schedule(request("x", prompt(8, 11)), 0.0)).transfer_s < 1.0
    assert scheduler.transfers.measured == 9


def test_the_wait_for_a_source_is_told_apart_from_the_fetch() -> None:
    scheduler = with_instances(scheduler_of("earliest", heartbeat_timeout_s=1e4), prefill=2)
    blocks = prompt(1, 60)
    first = accepted(scheduler.schedule(request("a", blocks), 0.0, is_tracked=True))
    other = accepted(scheduler.schedule(request("b", prompt(2, 60)), 0.0, is_tracked=True))
    assert other.prefill != first.prefill
    scheduler.failed("b")  # its instance is free, and fetches what the first one will have made
    again = accepted(scheduler.schedule(request("c", blocks), 0.0, is_tracked=True))
    if again.source is not None:
        assert again.ready_s == pytest.approx(first.ttft_s)
        assert 0 < again.transfer_s < first.ttft_s


def test_random_events_leave_no_trace_when_all_have_ended() -> None:
    """Whatever happens in whatever order: counts never go negative, nothing is left behind."""
    rng = random.Random(20_240_707)
    scheduler = with_instances(
        scheduler_of("earliest", "forecast", promise_s=1.0, forget_s=4.0, heartbeat_timeout_s=2.0),
        prefill=4,
        decode=3,
    )
    now_s = 0.0
    for step in range(3000):
        now_s += rng.random() * 0.05
        names = list(scheduler.flights)
        match rng.randrange(8):
            case 0 | 1 | 2:
                blocks = prompt(rng.randrange(40), rng.randrange(1, 12))
                scheduler.schedule(
                    request(f"r{step}", blocks), now_s, is_tracked=rng.random() < 0.5
                )
            case 3 if names:
                scheduler.prefilled(rng.choice(names), now_s)
            case 4 if names:
                scheduler.finished(rng.choice(names), rng.randrange(500), now_s)
            case 5 if names:
                scheduler.failed(rng.choice(names))
            case 6:
                name = f"{rng.choice('pd')}{rng.randrange(5)}"
                role = Role.PREFILL if name[0] == "p" else Role.DECODE
                known = scheduler.instances.find(name)
                if known is None and len(scheduler.instances) < 8:
                    scheduler.register(name, role, "", "", step, now_s)
                elif known is not None and rng.random() < 0.1:
                    scheduler.remove(name)
                elif known is not None and rng.random() < 0.2:
                    scheduler.register(name, role, "", "", step, now_s)
            case _:
                for one in scheduler.instances:
                    if rng.random() < 0.9:
                        scheduler.heartbeat(one.name, step, None, now_s)
                scheduler.sweep(now_s)
        for row in range(scheduler.decode.count):
            view = scheduler.decode.rows[row]
            assert view.batch >= 0 and view.promised >= 0 and view.reserved_tokens > -1e-3
        assert scheduler.flight_table.count == len(scheduler.flights)
    for name in list(scheduler.flights):
        scheduler.failed(name)
    scheduler.sweep(now_s)
    scheduler.sweep(now_s + 1000)
    assert not len(scheduler.instances)
    assert len(scheduler.index) == 0


def test_a_prompt_that_alone_takes_too_long_is_not_told_to_try_again() -> None:
    scheduler = with_instances(scheduler_of())
    blocks = prompt(5, 250)
    found = refused(scheduler.schedule(request("a", blocks, ttft_slo_s=0.5), 0.0))
    assert (found.status, found.reason, found.retry_after_s) == (429, Reason.TTFT, None)
    assert f"the prompt alone takes {found.ttft_s:.2f} s" in found.message
    assert "retry-after" not in refusal_response(found).headers
    # Behind a queue it may pass later, and where somebody is busy who has most of it.
    for name in ("b", "c"):
        accepted(scheduler.schedule(request(name, prompt(ord(name), 100)), 0.0))
    behind = refused(scheduler.schedule(request("a", blocks, ttft_slo_s=0.5), 0.0))
    assert behind.retry_after_s is not None
    assert int(refusal_response(behind).headers["retry-after"]) >= 1


def test_a_threshold_of_nothing_refuses_and_divides_by_nothing() -> None:
    config = with_policy(SimConfig(), "global", admission="early", admission_threshold=0.0)
    limits = SchedulerLimits(instances_max=8, servers_max=4, blocks_max=4096, flights_max=64)
    scheduler = with_instances(Scheduler(config, costs_of(config), limits, block_tokens=BLOCK))
    found = refused(scheduler.schedule(request("a", prompt(1, 2)), 0.0))
    assert (found.status, found.reason) == (429, Reason.TTFT)
    assert "wanted are 30 s" in found.message


def chosen_of(scheduler: Scheduler, count: int = 40) -> list[tuple[str, str]]:
    """Who is chosen by requests of which each comes when all are idle."""
    names = []
    for number in range(count):
        found = accepted(scheduler.schedule(request("a", prompt(number, 1)), 100.0 * number))
        names.append((found.prefill, found.decode))
        scheduler.finished("a", 1, 100.0 * number + 50)
    return names


def idle_of(**given: object) -> Scheduler:
    limits = {"heartbeat_timeout_s": 1e6, "forget_s": 1e6}
    return with_instances(scheduler_of(**given, **limits), prefill=2, decode=2)  # type: ignore[arg-type]


def test_ties_go_round_all_instances() -> None:
    assert chosen_of(idle_of(policy="local"), 4) == [("p0", "d0"), ("p1", "d1")] * 2


def test_ties_may_all_go_to_the_first_or_be_drawn() -> None:
    assert set(chosen_of(idle_of(policy="local", rules={"tie_order": "first"}))) == {("p0", "d0")}
    drawn = [chosen_of(idle_of(policy="local", rules={"tie_order": "drawn"})) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert {name for name, _ in drawn[0]} == {"p0", "p1"}
    assert drawn[0] != [("p0", "d0"), ("p1", "d1")] * 20


def test_the_random_policy_draws() -> None:
    names = [name for name, _ in chosen_of(idle_of(policy="random"))]
    assert 8 < names.count("p0") < 32
    assert names != ["p0", "p1"] * 20 != names[::-1]


def test_the_prefill_pools_load_may_be_its_mean() -> None:
    slo = {"ttft_slo_s": 20.0}
    for prefill_load, expected in (("chosen", Decision), ("mean", Refusal)):
        scheduler = with_instances(scheduler_of(rules={"prefill_load": prefill_load}))
        scheduler.heartbeat("p0", 1, LoadReport(queue_s=39.9), 0.0)
        found = scheduler.schedule(request("a", prompt(1, 4), **slo), 0.0)
        assert isinstance(found, expected)
        if isinstance(found, Refusal):
            assert found.reason == Reason.TTFT and found.ttft_s == pytest.approx(20.2, abs=0.1)


def test_it_says_why_nobody_takes_a_request() -> None:
    scheduler = scheduler_of()
    asked = request("a", prompt(1, 2))

    def told(now_s: float = 0.0) -> str:
        return refused(scheduler.schedule(asked, now_s)).message

    assert told() == "no instance is registered"
    scheduler.register("d0", Role.DECODE, "", "", 1, 0.0)
    assert told() == "of 1 registered instances none has a role that takes prompts"
    for name in ("p0", "p1", "p2"):
        scheduler.register(name, Role.PREFILL, "", "", 1, 0.0)
    scheduler.drain("p2")
    for name in ("p2", "d0"):
        scheduler.heartbeat(name, 1, None, 9.0)
    scheduler.sweep(10.0)
    assert told(10.0) == (
        "of 3 instances that take prompts none is open: 2 silent for more than 5 s, or out of the "
        "proxy's reach, 1 draining"
    )
    scheduler.heartbeat("p0", 2, None, 10.0)
    scheduler.drain("d0")
    assert told(10.0) == "of 1 instances that take answers none is open: 1 draining"


def test_an_unknown_request_is_not_told_to_register_an_instance() -> None:
    with pytest.raises(UnknownInstanceError) as caught:
        scheduler_of().finished("a", 1, 0.0)
    assert "conductor explain" in caught.value.hint
