"""The live screen, driven without a terminal."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.widgets import DataTable, Sparkline, Static

from mooncake_store.cli import top_screen
from mooncake_store.cli.top_screen import TopScreen
from mooncake_store.client import Counters, Member
from mooncake_store.errors import UnavailableError


class Store:
    """Answers like a master; each look finds ten more puts."""

    def __init__(self) -> None:
        self.looks = 0
        self.is_away = False

    def members(self) -> list[Member]:
        if self.is_away:
            raise UnavailableError("no master answers")
        return [
            Member(
                name="[bold]node[/bold]\x1b", node_id="n", server=0, incarnation=1, state="ready",
                host="h", addresses=(), unix_path="", size_bytes=2**30, ready_bytes=2**30,
            )
        ]  # fmt: skip

    def counters(self) -> Counters:
        self.looks += 1
        return Counters({"puts_completed_total": 10 * self.looks}, {0: {"server_free_bytes": 0}})


async def until(app: TopScreen, pilot: Any, condition: Any) -> None:
    for _ in range(400):
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError("it did not happen within 8 s")


def test_it_shows_servers_and_rates_pauses_and_quits() -> None:
    async def drive() -> None:
        store = Store()
        app = TopScreen(store, "127.0.0.1:1", 0.05)  # type: ignore[arg-type]
        async with app.run_test(size=(120, 40)) as pilot:
            await until(app, pilot, lambda: store.looks >= 3)
            table = app.query_one("#servers", DataTable)
            row = [str(cell) for cell in table.get_row_at(0)]
            assert row[:4] == [r"[bold]node[/bold]\x1b", "ready", "dram", "100%"]
            assert max(app.query_one("#puts", Sparkline).data or [0]) > 0
            assert "space" in str(app.query_one("#summary", Static).render())
            await pilot.press("p")
            await pilot.pause(0.2)
            seen = store.looks
            await pilot.pause(0.3)
            assert store.looks == seen
            await pilot.press("p")
            await until(app, pilot, lambda: store.looks > seen)
            await pilot.press("q")
        assert app.return_value is None

    asyncio.run(drive())


def test_it_bears_with_a_master_that_is_away_for_a_while(monkeypatch: Any) -> None:
    monkeypatch.setattr(top_screen, "_PATIENCE_S", 0.5)

    async def drive() -> None:
        store = Store()
        app = TopScreen(store, "127.0.0.1:1", 0.05)  # type: ignore[arg-type]
        async with app.run_test(size=(120, 40)) as pilot:
            trouble = app.query_one("#trouble", Static)
            store.is_away = True
            await until(app, pilot, lambda: "MS-1201" in str(trouble.render()))
            store.is_away = False
            await until(app, pilot, lambda: str(trouble.render()) == "")
            store.is_away = True
            await until(app, pilot, lambda: app.return_value is not None)
        assert isinstance(app.return_value, UnavailableError)

    asyncio.run(drive())
