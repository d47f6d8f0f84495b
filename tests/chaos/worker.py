"""The load: one client process that writes, reads, removes, pins and views, and records all of it.

It is told what to do on standard input: `finish` (end what it holds, read all keys once more, stay)
and `end`. It says `ready` when its client is open and `finished` when that is done.

    python -m chaos.worker --master URI --history FILE --name c0/1 --number 5 --seed 1 ...
"""

from __future__ import annotations

import argparse
import contextlib
import random
import select
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mooncake_store import Client
from mooncake_store.client.view import View
from mooncake_store.errors import (
    LimitError,
    ObjectBusyError,
    ObjectPinnedError,
    PoolFullError,
    StorageFullError,
    StoreError,
)

from .history import Op, Outcome, Recorder
from .value import SIZE_MIN, make_value, prove

TIMEOUT_S = 2.0
"""Of every call."""
_REFUSED = (PoolFullError, StorageFullError, ObjectBusyError, ObjectPinnedError, LimitError)
"""Of a put: it has certainly changed nothing, and will not."""
_OPEN_S = 30.0
_PINS_MAX = 6
_VIEWS_MAX = 6
_HOLD_S = 2.0
_TOKENS_PER_CLIENT = 1 << 40
_WEIGHTS = {
    "get": 44,
    "get_batch": 4,
    "put": 16,
    "upsert": 8,
    "remove": 10,
    "exists": 8,
    "view": 5,
    "pin": 5,
    "copy": 2,
}
_SIZES = ((60, 4096), (30, 65536), (9, 262_144), (1, 1_048_576))


def key_of(number: int) -> str:
    return f"chaos/{number}"


@dataclass
class Held:
    """A pin or a view, until its time is over."""

    key: str
    until_s: float
    view: View | None = None
    token: int | None = None


class Worker:
    """One client.

    Args:
        client: Strict: a failure raises, so that a miss is one.
        recorder: Of this client alone.
        choose: Its chances.
        first_token: Of its values; no other client has these.
        keys: How many there are.
        copies: Ask for replicas too.
    """

    def __init__(
        self,
        client: Client,
        recorder: Recorder,
        choose: random.Random,
        first_token: int,
        keys: int,
        *,
        copies: bool,
    ) -> None:
        self._client = client
        self._record = recorder
        self._choose = choose
        self._token = first_token
        self._keys = keys
        self._weights = _WEIGHTS if copies else _WEIGHTS | {"copy": 0}
        self._pins: list[Held] = []
        self._views: list[Held] = []
        self.operations = 0
        self.failures = 0
        self._steps = {
            "get": self._get,
            "get_batch": self._get_batch,
            "put": self._put,
            "upsert": self._upsert,
            "remove": self._remove,
            "exists": self._exists,
            "view": self._view,
            "pin": self._pin,
            "copy": self._copy,
        }

    def step(self) -> None:
        """Do one thing by chance, and end what has been held for long enough."""
        (name,) = self._choose.choices(list(self._weights), list(self._weights.values()))
        self._steps[name](self._key())
        now_s = time.monotonic()
        for held in [each for each in self._pins if each.until_s <= now_s]:
            self._unpin(held)
        for held in [each for each in self._views if each.until_s <= now_s]:
            self._close_view(held)

    def finish(self) -> bool:
        """End all that is held, and read every key once; whether no pin is left."""
        for held in list(self._views):
            self._close_view(held)
        for _ in range(20):  # a call that fails may have ended the pin or not
            for held in list(self._pins):
                self._unpin(held)
            if not self._pins:
                break
            time.sleep(0.2)
        for number in range(self._keys):
            self._get(key_of(number))
        return not self._pins

    def _key(self) -> str:
        # Half of all on an eighth of the keys: there clients meet.
        some = self._keys // 8 if self._choose.random() < 0.5 else self._keys
        return key_of(self._choose.randrange(some))

    def _next_value(self, key: str) -> tuple[int, bytes]:
        self._token += 1
        (most,) = self._choose.choices(
            [size for _, size in _SIZES], [weight for weight, _ in _SIZES]
        )
        size = self._choose.randrange(SIZE_MIN, most)
        return self._token, make_value(key, self._token, size)

    def _epoch(self) -> int:
        return self._client.statistics().epoch

    # ---- what changes the store ----

    def _put(self, key: str) -> None:
        self._write(Op.PUT, key)

    def _upsert(self, key: str) -> None:
        self._write(Op.UPSERT, key)

    def _write(self, op: Op, key: str) -> None:
        token, value = self._next_value(key)
        replicas = 2 if self._choose.random() < 0.3 else 1
        ttl_s = self._choose.uniform(0.5, 20.0) if self._choose.random() < 0.1 else None
        write = self._client.put if op is Op.PUT else self._client.upsert
        call = self._record.begin(op, key, token=token, ttl_s=ttl_s, replicas=replicas)
        epoch = self._epoch()
        try:
            is_stored = write(
                key,
                value,
                replicas=replicas,
                min_replicas=replicas,
                ttl_s=ttl_s,
                timeout_s=TIMEOUT_S,
            )
            outcome = Outcome.OK if is_stored else Outcome.FALSE
        except _REFUSED:
            outcome = Outcome.ERROR
        except StoreError:
            outcome = Outcome.UNKNOWN
        self._record.end(call, outcome, epoch=self._same_epoch(epoch))
        self._count(outcome)

    def _remove(self, key: str) -> None:
        call = self._record.begin(Op.REMOVE, key)
        epoch = self._epoch()
        try:
            outcome = Outcome.OK if self._client.remove(key, timeout_s=TIMEOUT_S) else Outcome.FALSE
        except StoreError:
            outcome = Outcome.UNKNOWN
        self._record.end(call, outcome, epoch=self._same_epoch(epoch))
        self._count(outcome)

    def _copy(self, key: str) -> None:
        """Another replica, or another place: not for the history, it changes no bytes."""
        with contextlib.suppress(StoreError):
            self._client.change_replica(key, self._choose.choice((0, 2, 3)), timeout_s=TIMEOUT_S)

    def _same_epoch(self, before: int) -> int | None:
        """The epoch of the master that answered; None: another one took over meanwhile."""
        after = self._epoch()
        return after if after == before else None

    # ---- what reads it ----

    def _get(self, key: str) -> None:
        call = self._record.begin(Op.GET, key)
        try:
            value = self._client.get(key, timeout_s=TIMEOUT_S)
        except StoreError:
            self._record.end(call, Outcome.UNKNOWN)
            self._count(Outcome.UNKNOWN)
            return
        self._read(call, key, value)

    def _get_batch(self, first: str) -> None:
        keys = [first, *(self._key() for _ in range(7))]
        calls = [self._record.begin(Op.GET, key) for key in keys]
        values: Sequence[bytes | StoreError | None]
        try:
            values = self._client.get_batch(keys, timeout_s=TIMEOUT_S)
        except StoreError as error:
            values = [error] * len(keys)
        for call, key, value in zip(calls, keys, values, strict=True):
            if isinstance(value, StoreError):
                self._record.end(call, Outcome.UNKNOWN)
                self._count(Outcome.UNKNOWN)
            else:
                self._read(call, key, value)

    def _read(self, call: object, key: str, value: bytes | memoryview | None) -> int | None:
        if value is None:
            self._record.end(call, Outcome.MISS)  # type: ignore[arg-type]
            self._count(Outcome.MISS)
            return None
        # The time is taken before the proof, which takes as long as the bytes are many.
        answered_ns = time.monotonic_ns()
        proof = prove(key, bytes(value))
        self._record.end(
            call,  # type: ignore[arg-type]
            Outcome.OK,
            token=proof.token,
            is_whole=proof.is_whole,
            answered_ns=answered_ns,
        )
        self._count(Outcome.OK)
        return proof.token

    def _exists(self, key: str) -> None:
        call = self._record.begin(Op.EXISTS, key)
        try:
            outcome = Outcome.OK if self._client.exists(key, timeout_s=TIMEOUT_S) else Outcome.MISS
        except StoreError:
            outcome = Outcome.UNKNOWN
        self._record.end(call, outcome)
        self._count(outcome)

    # ---- what is held ----

    def _view(self, key: str) -> None:
        if len(self._views) >= _VIEWS_MAX:
            return
        call = self._record.begin(Op.GET, key)
        try:
            view = self._client.view(key, timeout_s=TIMEOUT_S)
        except StoreError:
            self._record.end(call, Outcome.UNKNOWN)
            self._count(Outcome.UNKNOWN)
            return
        token = self._read(call, key, view.memory)
        until_s = time.monotonic() + self._choose.random() * _HOLD_S
        if view.memory is not None:
            self._views.append(Held(key, until_s, view, token))

    def _close_view(self, held: Held) -> None:
        """End it; what it shows is what it showed, whatever has become of the object."""
        self._views.remove(held)
        assert held.view is not None and held.view.memory is not None
        call = self._record.begin(Op.GET, held.key)
        if not prove(held.key, bytes(held.view.memory)).is_whole:
            self._record.end(call, Outcome.OK, token=held.token, is_whole=False)
        with contextlib.suppress(StoreError):
            held.view.close()

    def _pin(self, key: str) -> None:
        if len(self._pins) >= _PINS_MAX or any(held.key == key for held in self._pins):
            return
        call = self._record.begin(Op.PIN, key)
        try:
            outcome = Outcome.OK if self._client.pin(key, timeout_s=TIMEOUT_S) else Outcome.MISS
        except StoreError:
            outcome = Outcome.UNKNOWN
        self._record.end(call, outcome)
        self._count(outcome)
        if outcome is not Outcome.MISS:
            until_s = time.monotonic() + self._choose.random() * _HOLD_S
            self._pins.append(Held(key, until_s))

    def _unpin(self, held: Held) -> None:
        call = self._record.begin(Op.UNPIN, held.key)
        try:
            is_ended = self._client.unpin(held.key, timeout_s=TIMEOUT_S)
            outcome = Outcome.OK if is_ended else Outcome.FALSE
            self._pins.remove(held)
        except StoreError:
            outcome = Outcome.UNKNOWN
            held.until_s = time.monotonic() + _HOLD_S
        self._record.end(call, outcome)
        self._count(outcome)

    def _count(self, outcome: Outcome) -> None:
        self.operations += 1
        self.failures += outcome is Outcome.UNKNOWN


def _commands() -> Iterator[str]:
    """Each line of standard input, and "" whenever there is none; ends with it."""
    buffered = b""
    while True:
        while not select.select([0], [], [], 0.0)[0]:
            yield ""
        part = sys.stdin.buffer.raw.read(4096)  # type: ignore[union-attr]
        if not part:
            return
        *lines, buffered = (buffered + part).split(b"\n")
        yield from (line.decode() for line in lines)


def _open(master: str, name: str, relay: bool, checksums: str, local: bool) -> Client:
    end_s = time.monotonic() + _OPEN_S
    while True:
        try:
            return Client(
                master,
                strict=True,
                name=name,
                timeout_s=TIMEOUT_S,
                use_relay=relay,
                checksums=checksums,
                use_local_paths=local,
            )
        except StoreError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--relay", action="store_true")
    parser.add_argument("--copies", action="store_true")
    parser.add_argument("--checksums", default="off")
    parser.add_argument("--remote", action="store_true")
    given = parser.parse_args(arguments)
    client = _open(given.master, given.name, given.relay, given.checksums, not given.remote)
    choose = random.Random(given.seed)
    with client, Recorder(given.history, given.name) as recorder:
        worker = Worker(
            client,
            recorder,
            choose,
            given.number * _TOKENS_PER_CLIENT,
            given.keys,
            copies=given.copies,
        )
        print("ready", flush=True)
        is_working = True
        next_s = time.monotonic()
        for command in _commands():
            if command == "finish":
                is_working = False
                is_clean = worker.finish()
                print(f"finished {worker.operations} {worker.failures} {int(is_clean)}", flush=True)
            elif command == "end":
                return 0
            if not is_working:
                time.sleep(0.02)
                continue
            worker.step()
            next_s = max(next_s + 1 / given.rate, time.monotonic() - 0.1)
            time.sleep(max(0.0, next_s - time.monotonic()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
