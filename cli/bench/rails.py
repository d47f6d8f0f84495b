"""`bench rails`: one peer over four cables of unequal rates, and what a pulled one costs.

Two network namespaces with four veth pairs, limited by tbf in each direction; an engine in each,
which finds its interfaces by itself. The limit beside each figure is the sum of the cables' rates,
headers and all: no transfer can reach it quite.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from mooncake_store.cli.bench.rail_net import RailNet, why_not
from mooncake_store.cli.bench.raw import KIB, MIB
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Bar, Comparison, Row, Spread

RATES = (400, 400, 200, 100)
_PULLED = 1
_WORDS = ((0, "read"), (1, "write"))


class Node:
    """A process in one of the namespaces.

    Args:
        enter: What runs it there.
        part: `serve` or `ask`.
        memory_bytes: Of its memory.
    """

    def __init__(self, enter: list[str], part: str, memory_bytes: int) -> None:
        self._process = subprocess.Popen(
            [
                *enter, "setpriv", "--pdeathsig", "KILL", sys.executable,
                "-m", "mooncake_store.cli.bench.rail_node", part,
                "--memory-bytes", str(memory_bytes),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.hello = self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("an end of the rails has died; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def tell(self, line: str) -> dict[str, Any]:
        """Send a line, and return the answer to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read()

    def do(self, name: str, **arguments: object) -> dict[str, Any]:
        """Have the asking end do something."""
        return self.tell(json.dumps({"do": name, **arguments}))

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Pair:
    """A net with an engine at each end, opened by the first cable's address."""

    def __init__(self, rates: tuple[int, ...], memory_bytes: int) -> None:
        with ExitStack() as keep:
            self.net = keep.enter_context(RailNet(rates))
            self.serving = Node(self.net.there.enter(), "serve", memory_bytes)
            keep.callback(self.serving.close)
            self.asking = Node(self.net.here.enter(), "ask", memory_bytes)
            keep.callback(self.asking.close)
            self.port = self.serving.hello["port"]
            self.asking.do(
                "open", address=f"10.77.0.2:{self.port}", memory=self.serving.hello["memory"]
            )
            self._keep = keep.pop_all()

    def close(self) -> None:
        """End all of it."""
        self._keep.close()

    def __enter__(self) -> Pair:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def rate_between(samples: list[list[float]], begin: float, end: float) -> float:
    """Return the bytes a second that arrived between two times, by the samples next to them."""
    before = [sample for sample in samples if sample[0] <= begin]
    within = [sample for sample in samples if sample[0] <= end]
    if not before or not within or within[-1][0] <= before[-1][0]:
        return 0.0
    return (within[-1][1] - before[-1][1]) / (within[-1][0] - before[-1][0])


def seconds_until(samples: list[list[float]], begin: float, rate: float, window: float) -> float:
    """Return how long after `begin` the rate over the `window` that follows is reached."""
    for at, _ in samples:
        if at >= begin and rate_between(samples, at, at + window) >= rate:
            return at - begin
    return float("inf")


def run(*, rounds: int, is_quick: bool = False, watch: Watcher = silent) -> list[Row]:
    """Measure a peer over several rails.

    Args:
        rounds: Of each figure.
        is_quick: Few and short.
        watch: Told what is being measured.
    """
    reason = why_not()
    if reason is not None:
        raise RuntimeError(f"bench rails cannot run here: {reason}")
    limit = sum(RATES) * 1e6 / 8
    rows: list[Row] = []
    total = 64 * MIB
    with Pair(RATES, total) as pair:
        asking = pair.asking
        for opcode, _ in _WORDS:
            asking.do("move", opcode=opcode, size=total, total=total, count=2)  # rails are found
        for opcode, word in _WORDS:
            watch(f"{word} 64 MiB", opcode / 4)
            took = asking.do("move", opcode=opcode, size=total, total=total, count=rounds)
            rows.append(_row(f"{word} 64 MiB", [total / s for s in took["seconds"]], limit, 0.95))
        for opcode, word in _WORDS:
            watch(f"{word} batches of 256 KiB", (2 + opcode) / 6)
            rates = []
            for _ in range(rounds):
                took = asking.do("stream", opcode=opcode, size=256 * KIB, total=16 * MIB, count=8)
                rates.append(8 * 16 * MIB / took["seconds"])
            rows.append(_row(f"{word} batches of 64 x 256 KiB", rates, limit, 0.85))
        for opcode, word in _WORDS:
            watch(f"{word} with a cable pulled", (4 + opcode) / 6)
            rows += _pulled(pair, opcode, word, limit, 2 if is_quick else max(rounds // 3, 2))
    return rows


def _row(name: str, rates: list[float], limit: float, bar: float) -> Row:
    compared = Comparison([rate / 1e6 for rate in rates], [limit / 1e6] * len(rates))
    return Row.compared(
        name, "MB/s", compared, bar=Bar(bar, "ratio", "at least"), note="raw: sum of the cables"
    )


def _pulled(pair: Pair, opcode: int, word: str, limit: float, rounds: int) -> list[Row]:
    """Pull one cable in the middle of a stream, and put it in again."""
    asking, net = pair.asking, pair.net
    left = limit - RATES[_PULLED] * 1e6 / 8
    during, leaving, back = [], [], []
    failures, wrong = 0, 0
    for _ in range(rounds):
        asking.do("start", opcode=opcode, size=MIB)
        time.sleep(1.5)
        pulled = time.monotonic()
        net.pull(_PULLED)
        at = asking.do(
            "await_rail", remote=f"10.77.{_PULLED}.2", direction=word, is_up=False, timeout_s=5
        )["at"]
        leaving.append(((at or float("inf")) - pulled) * 1e3)
        time.sleep(3.0)
        plugged = time.monotonic()
        net.plug(_PULLED)
        time.sleep(3.5)
        ended = asking.do("stop")
        failures += len(ended["failures"])
        wrong += ended["wrong"]
        samples = ended["samples"]
        during.append(rate_between(samples, pulled, plugged))
        back.append(seconds_until(samples, plugged, 0.95 * limit, 0.5))
    same = pair.serving.tell("1")["same"]
    return [
        _row(f"{word}, one cable pulled: until it is put in again", during, left, 0.90),
        Row(
            f"{word}, one cable pulled: it is left after",
            "ms",
            Spread.of(leaving),
            bar=Bar(100.0, "value", "at most"),
            note="the command that pulls it is in it",
        ),
        Row(
            f"{word}, put in again: full rate after",
            "s",
            Spread.of(back),
            bar=Bar(2.0, "value", "at most"),
            note="95 % of the sum in the 0.5 s from then on",
        ),
        Row(
            f"{word}: requests that failed, halves of the memory with a wrong byte",
            "",
            Spread.of([float(failures + wrong + (opcode == 1 and not same))]),
            bar=Bar(0, "value", "at most"),
        ),
    ]
