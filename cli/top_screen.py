"""The live screen of `mooncake-store top`; needs textual."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.widgets import DataTable, Footer, Header, Sparkline, Static

from mooncake_store.cli.output import approximate_size, printable
from mooncake_store.cli.snapshot import RATES, Snapshot, take
from mooncake_store.cli.top import funnel_lines, left_line, pool_lines, server_rows
from mooncake_store.client import Client
from mooncake_store.errors import StoreError

__all__ = ["TopScreen"]

HISTORY = 120
_PATIENCE_S = 10.0  # a master that is restarted may be away for so long
CHARTS = ("lookups", "puts", "evictions")


class TopScreen(App[StoreError]):
    """Space, hits, evictions and servers, drawn anew each interval.

    It ends with the error when the master has been away for ten seconds.
    """

    TITLE = "mooncake-store top"
    BINDINGS: ClassVar[list[Any]] = [("q", "quit", "Quit"), ("p", "pause", "Pause")]
    CSS = """
    #summary { height: auto; padding: 0 1; }
    #charts { height: 5; }
    .chart { width: 1fr; padding: 0 1; }
    Sparkline { height: 3; }
    #trouble { height: auto; color: $error; padding: 0 1; }
    """

    def __init__(self, store: Client, target: str, interval_s: float) -> None:
        super().__init__()
        self._store = store
        self._interval_s = interval_s
        self._before: Snapshot | None = None
        self._is_paused = False
        self._failing_since: float | None = None
        self._history: dict[str, deque[float]] = {name: deque(maxlen=HISTORY) for name in CHARTS}
        self.sub_title = printable(target)

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        yield Header()
        yield Static("", id="summary", markup=False)
        with Horizontal(id="charts"):
            for name in CHARTS:
                with Static(classes="chart"):
                    yield Static(f"{name}/s", id=f"{name}-label", markup=False)
                    yield Sparkline([], id=name)
        yield DataTable(id="servers", show_cursor=False)
        yield Static("", id="trouble", markup=False)
        yield Footer()

    async def on_mount(self) -> None:
        """Begin to look."""
        await self._look()
        self.set_interval(self._interval_s, self._look)

    def action_pause(self) -> None:
        """Stop the picture, or go on."""
        self._is_paused = not self._is_paused

    async def _look(self) -> None:
        if self._is_paused:
            return
        try:
            # In a thread: a frozen master must not freeze the keys.
            snapshot = await asyncio.to_thread(take, self._store, time.monotonic())
        except StoreError as error:
            self._failed(error)
            return
        self._failing_since = None
        self.query_one("#trouble", Static).update("")
        before, self._before = self._before, snapshot
        rates = snapshot.per_second(before) if before else dict.fromkeys(RATES, 0.0)
        self.show(snapshot, rates)

    def show(self, snapshot: Snapshot, rates: dict[str, float]) -> None:
        """Draw one snapshot."""
        objects = (
            f"objects  {snapshot.count('objects'):,} "
            f"of {approximate_size(snapshot.count('object_bytes'))}, "
            f"{snapshot.count('sessions'):,} sessions, {snapshot.count('pins'):,} pins"
        )
        lines = [objects, *pool_lines(snapshot), *funnel_lines(snapshot, rates)]
        lines.append(left_line(snapshot, rates))
        self.query_one("#summary", Static).update("\n".join(lines))
        for name in CHARTS:
            history = self._history[name]
            history.append(rates[name])
            self.query_one(f"#{name}", Sparkline).data = list(history)
            self.query_one(f"#{name}-label", Static).update(f"{name}  {rates[name]:,.0f}/s")
        table: DataTable[Text] = self.query_one("#servers", DataTable)
        header, *rows = server_rows(snapshot)
        table.clear(columns=True)
        table.add_columns(*header)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))  # a str would be read as markup

    def _failed(self, error: StoreError) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since > _PATIENCE_S:
            self.exit(error)
            return
        self.query_one("#trouble", Static).update(f"{printable(error.message)} [{error.code}]")
