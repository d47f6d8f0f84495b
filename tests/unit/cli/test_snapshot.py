"""The store at one moment, as status and top show it."""

from __future__ import annotations

from mooncake_store.cli.snapshot import RATES, Snapshot, from_answers
from mooncake_store.cli.status import storage_lines
from mooncake_store.cli.status import text_of as status_text
from mooncake_store.cli.top import bar, text_of
from mooncake_store.client import Counters, Member

GIB, MIB = 2**30, 2**20


def member(server: int, name: str) -> Member:
    return Member(
        name=name, node_id="n", server=server, incarnation=1, state="ready", host="h",
        addresses=("127.0.0.1:1",), unix_path="", size_bytes=GIB, ready_bytes=GIB // 2,
    )  # fmt: skip


def snapshot(taken_s: float = 0.0, *, name: str = "node-a", **totals: int) -> Snapshot:
    by_server = {
        0: {"server_free_bytes": 384 * MIB, "server_pinned_bytes": MIB, "server_objects": 7},
        1: {"server_free_bytes": 512 * MIB, "server_freeing_bytes": 2 * MIB},
    }
    members = [member(0, name), member(1, "node-b")]
    return from_answers(members, Counters(totals, by_server), taken_s)


def test_space_is_the_sum_of_the_servers() -> None:
    shown = snapshot().document()["pool"]
    assert shown["size_bytes"] == 2 * GIB
    assert shown["ready_bytes"] == GIB
    assert shown["free_bytes"] == 896 * MIB
    assert shown["used_bytes"] == 128 * MIB
    assert shown["pinned_bytes"] == MIB
    assert [server["objects"] for server in snapshot().document()["servers"]] == [7, 0]


def test_who_leads_is_told_where_the_target_does_not_say_it() -> None:
    text = status_text(
        snapshot(), "etcd://a,b/p (flag)", is_verbose=False, leader="10.0.0.7:7700", epoch=3
    )
    assert text.splitlines()[0] == "master   etcd://a,b/p (flag), 10.0.0.7:7700 leads, epoch 3"
    text = status_text(snapshot(), "h:1 (flag)", is_verbose=False, leader="h:1", epoch=3)
    assert text.splitlines()[0] == "master   h:1 (flag), epoch 3"


def test_a_file_system_that_will_be_full_is_told() -> None:
    def shown(free_bytes: int, refused: int = 0) -> list[str]:
        told = {
            "server_free_bytes": MIB, "server_storage_free_bytes": free_bytes,
            "server_storage_full_total": refused,
        }  # fmt: skip
        members = [member(0, "node-a"), member(1, "node-b")]
        return storage_lines(from_answers(members, Counters({}, {0: told, 1: {}}), 0.0))

    # Half of the pool of 1 GiB is still to be allocated, and records need some more.
    assert shown(GIB) == []
    (line,) = shown(520 * MIB)
    assert line.startswith("warning  node-a: 520 MiB are left in the file system")
    (line,) = shown(0, 12)
    assert "node-a: 0 B are left" in line and "; 12 puts were refused" in line
    assert shown(512 * MIB + 16 * MIB) == []


def test_the_hit_ratio_is_unknown_before_the_first_lookup() -> None:
    assert snapshot().hit_ratio is None
    assert snapshot(lookup_keys_total=8, lookup_hits_total=6).hit_ratio == 0.75


def test_rates_are_differences_by_time() -> None:
    before = snapshot(10.0, puts_completed_total=100, lookup_keys_total=5)
    now = snapshot(12.0, puts_completed_total=160, lookup_keys_total=5)
    rates = now.per_second(before)
    assert rates["puts"] == 30.0
    assert rates["lookups"] == 0.0
    assert set(rates) == set(RATES)


def test_a_master_that_was_started_anew_has_no_negative_rates() -> None:
    before = snapshot(10.0, puts_completed_total=100)
    assert snapshot(11.0, puts_completed_total=3).per_second(before)["puts"] == 0.0
    assert set(before.per_second(before).values()) == {0.0}


def test_what_left_is_told_by_reason() -> None:
    shown = snapshot(
        objects_evicted_total=1, objects_expired_total=2, objects_removed_total=3,
        objects_lost_total=4,
    )  # fmt: skip
    assert shown.left == {"evicted": 1, "expired": 2, "removed": 3, "lost": 4}
    text = status_text(shown, "m", is_verbose=False)
    assert "left     1 evicted, 2 expired, 3 removed, 4 lost" in text


def test_texts_are_harmless_whatever_a_server_calls_itself() -> None:
    shown = snapshot(name="\x1b[2J\nnode")
    for text in (
        status_text(shown, "master\x1b", is_verbose=True),
        text_of(shown, dict.fromkeys(RATES, 0.0), "master\x1b"),
    ):
        assert all(line.isprintable() for line in text.splitlines())
        assert r"\x1b[2J\nnode" in text


def test_a_counter_of_a_newer_master_is_kept_and_shown() -> None:
    assert "metric_999  5" in status_text(snapshot(metric_999=5), "m", is_verbose=True)


def test_a_bar_stays_within_its_bounds() -> None:
    assert bar(0.0) == "[" + "." * 20 + "]"
    assert bar(0.5) == "[" + "#" * 10 + "." * 10 + "]"
    assert bar(7.0) == "[" + "#" * 20 + "]"
    assert bar(-1.0) == bar(0.0)
