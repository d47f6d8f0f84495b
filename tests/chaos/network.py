"""The network between the hosts of a run: links that lose, delay, reorder and double packets.

`native/switch.c` does it, a program of our own that every packet passes through: so it works on
kernels without netem, in one direction as well as in both, and is the same everywhere. Rates are
limited by the kernel (tbf).
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .nodes import Node, NodeError

_WHOLE = 1000  # permille


@dataclass(frozen=True, slots=True)
class Weather:
    """How packets fare."""

    lost_permille: int = 0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    doubled_permille: int = 0


LOST = Weather(lost_permille=_WHOLE)


class Network:
    """Links between all hosts, in each direction one.

    Several faults may be upon one link: the worst of each counts.

    Args:
        program: The switch.
        nodes: The hosts, by their numbers.
        seed: Of its chances.
    """

    def __init__(self, program: Path, nodes: Sequence[Node], seed: int) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._lock = threading.Lock()
        self._faults: dict[tuple[str, str], dict[str, Weather]] = {}
        self._rates: dict[str, dict[str, float]] = {}
        arguments = [text for node in nodes for text in (str(node.pid), node.address)]
        self._switch = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", str(program), str(seed), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer("ready")

    def _answer(self, expected: str | None) -> str:
        assert self._switch.stdout is not None
        line = self._switch.stdout.readline().strip()
        if not line or expected not in (None, line):
            raise NodeError(f"the switch says {line!r}")
        return line

    def _tell(self, line: str, expected: str | None = "ok") -> str:
        assert self._switch.stdin is not None
        self._switch.stdin.write(line + "\n")
        self._switch.stdin.flush()
        return self._answer(expected)

    def worsen(self, name: str, links: Iterable[tuple[str, str]], weather: Weather) -> None:
        """Let it be so on these links, from the first host to the second, until `mend`."""
        with self._lock:
            for link in links:
                self._faults.setdefault(link, {})[name] = weather
                self._set(link)

    def slow(self, name: str, host: str, bits_per_s: float) -> None:
        """Limit what a host sends, until `mend`."""
        with self._lock:
            self._rates.setdefault(host, {})[name] = bits_per_s
            self._set_rate(host)

    def mend(self, name: str) -> None:
        """Take back what was done under that name."""
        with self._lock:
            for link, faults in self._faults.items():
                if faults.pop(name, None) is not None:
                    self._set(link)
            for host, rates in self._rates.items():
                if rates.pop(name, None) is not None:
                    self._set_rate(host)

    def _set(self, link: tuple[str, str]) -> None:
        every = self._faults[link].values()
        lost = max((each.lost_permille for each in every), default=0)
        delay_us = int(1000 * max((each.delay_ms for each in every), default=0.0))
        jitter_us = int(1000 * max((each.jitter_ms for each in every), default=0.0))
        doubled = max((each.doubled_permille for each in every), default=0)
        source, target = (self._nodes[name].number for name in link)
        self._tell(f"link {source} {target} {lost} {delay_us} {jitter_us} {doubled}")

    def _set_rate(self, host: str) -> None:
        rates = self._rates[host].values()
        if rates:
            self._nodes[host].limit_rate(min(rates))
        else:
            self._nodes[host].unlimit_rate()

    def counts(self) -> dict[str, int]:
        """Packets that were passed on, lost, delayed, reordered, doubled so far."""
        with self._lock:
            words = self._tell("count", None).split()
        return {word: int(count) for word, count in zip(words[::2], words[1::2], strict=True)}

    def close(self) -> None:
        assert self._switch.stdin is not None
        self._switch.stdin.close()
        self._switch.wait()
        assert self._switch.stdout is not None
        self._switch.stdout.close()
