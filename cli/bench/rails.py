"""`bench rails`: one peer over four cables of unequal rates, and what a pulled or silent one costs.

Two network namespaces with four veth pairs, limited by tbf in each direction; an engine in each,
which finds its interfaces by itself. The limit beside each figure is the sum of the cables' rates,
headers and all: no transfer can reach it quite.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mooncake_store.cli.bench.rail_net import RailNet, why_not
from mooncake_store.cli.bench.raw import KIB, MIB
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Bar, Comparison, Row, Spread
from mooncake_store.interpreter import module_command

if TYPE_CHECKING:
    from typing_extensions import Self

RATES = (400, 400, 200, 100)
_CABLE = 1
_WORDS = ((0, "read"), (1, "write"))


class Node:
    """A process in one of the namespaces.

    Args:
        enter: What runs it there.
        part: `serve` or `ask`.
        memory_bytes: Of its memory.
        module: `rail_node` for an engine, `rail_store` for the store.
        arguments: More of them.
    """

    def __init__(
        self,
        enter: list[str],
        part: str,
        memory_bytes: int,
        module: str = "rail_node",
        arguments: Sequence[str] = (),
    ) -> None:
        self._process = subprocess.Popen(
            [
                *enter, "setpriv", "--pdeathsig", "KILL",
                *module_command(
                    f"mooncake_store.cli.bench.{module}",
                    [part, "--memory-bytes", str(memory_bytes), *arguments],
                ),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def read(self) -> dict[str, Any]:
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
        return self.read()

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


class _Ends:
    """A net with a process at each end."""

    _keep: ExitStack

    def close(self) -> None:
        """End all of it."""
        self._keep.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class StorePair(_Ends):
    """A store at one end, which tells its clients all its addresses, and a client at the other."""

    def __init__(
        self, rates: tuple[int, ...], memory_bytes: int, *, is_one_network: bool = False
    ) -> None:
        with ExitStack() as keep:
            self.net = keep.enter_context(RailNet(rates, is_one_network=is_one_network))
            hosts = ",".join(self.net.address(rail, 2) for rail in range(len(rates)))
            there, here = self.net.there.enter(), self.net.here.enter()
            self.serving = Node(there, "serve", memory_bytes, "rail_store", ["--hosts", hosts])
            keep.callback(self.serving.close)
            self.asking = Node(here, "ask", memory_bytes, "rail_store")
            keep.callback(self.asking.close)
            self.asking.tell(json.dumps(self.serving.read()))
            self._keep = keep.pop_all()


class Pair(_Ends):
    """A net with an engine at each end, opened by the first cable's address."""

    def __init__(self, rates: tuple[int, ...], memory_bytes: int) -> None:
        with ExitStack() as keep:
            self.net = keep.enter_context(RailNet(rates))
            self.serving = Node(self.net.there.enter(), "serve", memory_bytes)
            keep.callback(self.serving.close)
            self.asking = Node(self.net.here.enter(), "ask", memory_bytes)
            keep.callback(self.asking.close)
            hello = self.serving.read()
            self.asking.read()
            self.port = hello["port"]
            self.asking.do("open", address=f"10.77.0.2:{self.port}", memory=hello["memory"])
            self._keep = keep.pop_all()


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
            watch(f"{word} 64 MiB", opcode / 8)
            took = asking.do("move", opcode=opcode, size=total, total=total, count=rounds)
            rows.append(_row(f"{word} 64 MiB", [total / s for s in took["seconds"]], limit, 0.95))
        for opcode, word in _WORDS:
            watch(f"{word} batches of 256 KiB", (2 + opcode) / 8)
            rates = []
            for _ in range(rounds):
                took = asking.do("stream", opcode=opcode, size=256 * KIB, total=16 * MIB, count=8)
                rates.append(8 * 16 * MIB / took["seconds"])
            rows.append(_row(f"{word} batches of 64 x 256 KiB", rates, limit, 0.85))
        cases = [(trouble, *word) for trouble in _TROUBLES for word in _WORDS]
        for number, (trouble, opcode, word) in enumerate(cases):
            watch(f"{word} with a cable {trouble.name}", 0.5 + 0.3 * number / len(cases))
            times = 2 if is_quick else max(rounds // 3, 2)
            rows += _in_trouble(pair, trouble, opcode, word, limit, times)
    return rows + _through_the_store(limit, total, rounds, watch)


def _through_the_store(limit: float, total: int, rounds: int, watch: Watcher) -> list[Row]:
    """Measure the same through get and put: the SDK here, a master and a store server there."""
    rows: list[Row] = []
    with StorePair(RATES, total) as pair:
        asking = pair.asking
        for opcode, word in enumerate(("get", "put")):
            watch(f"store {word} 64 MiB", 0.8 + opcode / 20)
            asking.do("move", opcode=opcode, size=total, total=total, count=2)  # rails are opened
            took = asking.do("move", opcode=opcode, size=total, total=total, count=rounds)
            rates = [total / seconds for seconds in took["seconds"]]
            rows.append(_row(f"store: {word} 64 MiB", rates, limit, 0.95))
            rates = []
            for _ in range(rounds):
                took = asking.do("stream", opcode=opcode, size=256 * KIB, total=16 * MIB, count=8)
                rates.append(8 * 16 * MIB / took["seconds"])
            rows.append(_row(f"store: {word} batches of 64 x 256 KiB", rates, limit, 0.85))
        for opcode, word in enumerate(("get", "put")):
            watch(f"store {word} with a cable pulled", 0.9 + opcode / 20)
            rows += _store_pulled(pair, opcode, word, limit)
    return rows


def _store_pulled(pair: StorePair, opcode: int, word: str, limit: float) -> list[Row]:
    asking, net = pair.asking, pair.net
    left = limit - RATES[_CABLE] * 1e6 / 8
    asking.do("start", opcode=opcode, size=MIB)
    time.sleep(1.5)
    pulled = net.pull(_CABLE)
    time.sleep(3.0)
    plugged = net.plug(_CABLE)
    time.sleep(3.5)
    ended = asking.do("stop")
    samples = ended["samples"]
    back = seconds_until(samples, plugged, 0.95 * limit, 1.0)
    return [
        _row(
            f"store: {word}, one cable pulled: until it is put in again",
            [rate_between(samples, pulled, plugged)],
            left,
            0.90,
        ),
        Row(
            f"store: {word}, put in again: full rate after",
            "s",
            Spread.of([back]),
            bar=Bar(2.0, "value", "at most"),
            note="95 % of the sum in the second from then on",
        ),
        Row(
            f"store: {word}: calls that failed, ranges with a wrong byte",
            "",
            Spread.of([float(len(ended["failures"]) + ended["wrong"])]),
            bar=Bar(0, "value", "at most"),
            note="; ".join(ended["failures"][:2]),
        ),
    ]


def _row(name: str, rates: list[float], limit: float, bar: float) -> Row:
    compared = Comparison([rate / 1e6 for rate in rates], [limit / 1e6] * len(rates))
    return Row.compared(
        name, "MB/s", compared, bar=Bar(bar, "ratio", "at least"), note="raw: sum of the cables"
    )


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What happens to one cable: the rail over it is left, and taken again when it is over."""

    name: str
    begin: Callable[[RailNet], float]
    end: Callable[[RailNet], float]


# The kernel tells of a pulled cable; where packets are lost on the way, only silence does.
_TROUBLES = (
    _Trouble("pulled", lambda net: net.pull(_CABLE), lambda net: net.plug(_CABLE)),
    _Trouble(
        "silent from there",
        lambda net: net.lose(_CABLE, from_here=False),
        lambda net: net.keep(_CABLE, from_here=False),
    ),
    _Trouble(
        "silent from here",
        lambda net: net.lose(_CABLE, from_here=True),
        lambda net: net.keep(_CABLE, from_here=True),
    ),
)


def _in_trouble(
    pair: Pair, trouble: _Trouble, opcode: int, word: str, limit: float, rounds: int
) -> list[Row]:
    """Have trouble with one cable in the middle of a stream, and end it."""
    asking, net = pair.asking, pair.net
    left = limit - RATES[_CABLE] * 1e6 / 8
    during, leaving, back = [], [], []
    failures, wrong = 0, 0
    for _ in range(rounds):
        asking.do("start", opcode=opcode, size=4 * MIB)
        time.sleep(1.5)
        begun = trouble.begin(net)
        at = asking.do(
            "await_rail", remote=f"10.77.{_CABLE}.2", direction=word, is_up=False, timeout_s=5
        )["at"]
        leaving.append(((at or float("inf")) - begun) * 1e3)
        time.sleep(3.0)
        over = trouble.end(net)
        time.sleep(3.5)
        ended = asking.do("stop")
        failures += len(ended["failures"])
        wrong += ended["wrong"]
        samples = ended["samples"]
        during.append(rate_between(samples, begun, over))
        back.append(seconds_until(samples, over, 0.95 * limit, 0.5))
    same = pair.serving.tell("1")["same"]
    return [
        _row(f"{word}, one cable {trouble.name}: until that is over", during, left, 0.90),
        Row(
            f"{word}, one cable {trouble.name}: it is left after",
            "ms",
            Spread.of(leaving),
            bar=Bar(100.0, "value", "at most"),
        ),
        Row(
            f"{word}, one cable was {trouble.name}: full rate after",
            "s",
            Spread.of(back),
            bar=Bar(2.0, "value", "at most"),
            note="95 % of the sum in the 0.5 s from then on",
        ),
        Row(
            f"{word}, one cable {trouble.name}: failed requests, wrong halves of the memory",
            "",
            Spread.of([float(failures + wrong + (opcode == 1 and not same))]),
            bar=Bar(0, "value", "at most"),
        ),
    ]
