from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from mooncake_store.coordination import Tombstone, open_coordinator
from mooncake_store.coordination.local import LocalCoordinator
from mooncake_store.errors import ConfigError, InternalError, InUseError, NotLeaderError


def run(awaitable):  # type: ignore[no-untyped-def]
    return asyncio.run(awaitable)


def lead_and_close(folder: Path):  # type: ignore[no-untyped-def]
    coordinator = LocalCoordinator(folder)
    leadership = run(coordinator.lead("here"))
    run(coordinator.close())
    return leadership


def test_each_leader_gets_a_higher_epoch_and_the_same_secret(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    leaderships = [lead_and_close(folder) for _ in range(3)]
    assert [leadership.epoch for leadership in leaderships] == [1, 2, 3]
    assert len({(one.cluster, one.secret) for one in leaderships}) == 1
    assert len(leaderships[0].secret) == 192
    assert run(LocalCoordinator(folder).epoch()) == 3


def test_its_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    lead_and_close(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_second_leader_is_refused_and_told_who_leads(tmp_path: Path) -> None:
    first = LocalCoordinator(tmp_path)
    run(first.lead("127.0.0.1 port 7700"))
    second = LocalCoordinator(tmp_path)
    with pytest.raises(InUseError, match=f"pid {os.getpid()}, 127.0.0.1 port 7700"):
        run(second.lead("elsewhere"))
    run(first.close())
    assert run(second.lead("elsewhere")).epoch == 2
    run(second.close())


def test_one_process_does_not_lead_twice(tmp_path: Path) -> None:
    coordinator = LocalCoordinator(tmp_path)
    run(coordinator.lead("here"))
    with pytest.raises(InternalError):
        run(coordinator.lead("here"))
    run(coordinator.close())


def test_a_damaged_state_is_refused_and_not_replaced(tmp_path: Path) -> None:
    lead_and_close(tmp_path)
    state = tmp_path / "state"
    for damage in (b"", b"{}", b"{", state.read_bytes()[:-20], b'{"epoch": "x"}'):
        state.write_bytes(damage)
        coordinator = LocalCoordinator(tmp_path)
        with pytest.raises(ConfigError, match="damaged"):
            run(coordinator.lead("here"))
        run(coordinator.close())
        assert state.read_bytes() == damage


def test_tombstones_outlive_their_writer_and_the_highest_version_counts(tmp_path: Path) -> None:
    first = LocalCoordinator(tmp_path)
    run(first.lead("here"))
    run(first.write_tombstones([Tombstone(b"a" * 16, 5), Tombstone(b"b" * 16, 7)]))
    run(first.write_tombstones([Tombstone(b"a" * 16, 9)]))
    run(first.close())
    second = LocalCoordinator(tmp_path)
    run(second.lead("here"))
    kept = {Tombstone(b"a" * 16, 9), Tombstone(b"b" * 16, 7)}
    assert set(run(second.tombstones())) == kept
    run(second.drop_tombstones([Tombstone(b"a" * 16, 8), Tombstone(b"b" * 16, 7)]))
    assert run(second.tombstones()) == (Tombstone(b"a" * 16, 9),)
    run(second.close())


def test_a_torn_tombstone_ends_the_file(tmp_path: Path) -> None:
    coordinator = LocalCoordinator(tmp_path)
    run(coordinator.lead("here"))
    run(coordinator.write_tombstones([Tombstone(b"a" * 16, 1), Tombstone(b"b" * 16, 2)]))
    path = tmp_path / "tombstones"
    path.write_bytes(path.read_bytes()[:-3])
    assert run(coordinator.tombstones()) == (Tombstone(b"a" * 16, 1),)
    run(coordinator.close())


def test_only_the_leader_writes_tombstones(tmp_path: Path) -> None:
    coordinator = LocalCoordinator(tmp_path)
    with pytest.raises(NotLeaderError):
        run(coordinator.write_tombstones([Tombstone(b"a" * 16, 1)]))
    with pytest.raises(NotLeaderError):
        run(coordinator.drop_tombstones([]))


def test_a_members_incarnation_only_grows(tmp_path: Path) -> None:
    coordinator = LocalCoordinator(tmp_path)
    node, other = b"n" * 16, b"o" * 16
    raised = [run(coordinator.raise_member(node, minimum)) for minimum in (1, 1, 9, 3)]
    assert raised == [1, 2, 9, 10]
    assert run(coordinator.raise_member(other, 0)) == 1
    assert run(coordinator.lead("here")).epoch == 1
    run(coordinator.close())
    assert run(LocalCoordinator(tmp_path).raise_member(node, 0)) == 11


def test_a_cluster_without_a_port_ends_with_its_process() -> None:
    coordinator = open_coordinator("local", port=0)
    run(coordinator.lead("here"))
    folder = Path(coordinator.name.removeprefix("local:"))
    assert folder.is_dir()
    run(coordinator.close())
    assert not folder.exists()


def test_uris_name_a_folder_or_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    by_port = open_coordinator("local", port=7800)
    assert by_port.name == f"local:{tmp_path}/mooncake-store/cluster-7800"
    assert open_coordinator("local:/some/where", port=1).name == "local:/some/where"
    assert (
        open_coordinator("etcd://u:p@a,b", port=1).name == "etcd://u@a:2379,b:2379/mooncake-store"
    )
    for wrong in ("zookeeper://a", "", "local:"):
        with pytest.raises(ConfigError):
            open_coordinator(wrong, port=1)
