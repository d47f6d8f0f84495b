"""How calls of a client that waits are carried out; the groups of its calls are built on this."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from mooncake_store.client import native as _native
from mooncake_store.client.core import ClientCore, Operation, encode_key
from mooncake_store.client.native import ffi, lib
from mooncake_store.errors import Status, StoreError, error_from_status

if TYPE_CHECKING:
    from mooncake_store.client.commands import Command
    from mooncake_store.client.steps import Read, Steps

__all__ = ["Calls", "hash_of"]

_c = _native.native
Result = TypeVar("Result")
_READS = {  # of `Read` steps
    Operation.GET_INTO: _c.client_get_into,
    Operation.GET_RANGE: _c.client_get_range,
    Operation.SIZES: _c.client_sizes,
}


def hash_of(handle: int, key: str) -> bytes:
    """Return a key's hash in the client's cluster; shared by both clients."""
    encoded = encode_key(key)
    out = ffi.new("uint8_t[16]")
    status = lib.cl_hash(handle, encoded, len(encoded), out)
    if status != Status.OK:
        raise error_from_status(status, key=key)
    return bytes(ffi.buffer(out))


class Calls:
    """What every group of calls needs; `Client` makes it and closes it."""

    _handle: int  # 0: closed
    _core: ClientCore
    _timeout_s: float

    def _hash(self, key: str) -> bytes:
        return hash_of(self._handle, key)

    def _run(self, command: Command[Result], timeout_s: float | None) -> Result:
        try:
            answer = _c.client_command(
                self._handle, command.method, command.flags, command.body, command.numbered,
                self._timeout_s if timeout_s is None else timeout_s,
            )  # fmt: skip
        except StoreError as error:
            error.key = command.key
            raise
        return command.decode(answer)

    def _carry_out(self, steps: Steps[Result], timeout_s: float | None) -> Result:
        """Do what the steps want done, one after the other."""
        go_on: Callable[[Any], Any] = steps.send
        outcome: Any = None
        while True:
            try:
                step = go_on(outcome)
            except StopIteration as end:
                result: Result = end.value
                return result
            try:
                go_on, outcome = steps.send, self._do(step, timeout_s)
            except StoreError as error:
                go_on, outcome = steps.throw, error

    def _do(self, step: Command[Any] | Read, timeout_s: float | None) -> Any:
        from mooncake_store.client.commands import Command

        if isinstance(step, Command):
            return self._run(step, timeout_s)
        deadline = self._timeout_s if timeout_s is None else timeout_s
        try:
            return _READS[step.operation](self._handle, *step.arguments, deadline)
        except StoreError as error:
            return self._core.failed(error, None)

    def _read_batch(
        self, call: Any, arguments: tuple[Any, ...], count: int, miss: Any, timeout_s: float | None
    ) -> builtins.list[Any]:
        try:
            results = call(
                self._handle, *arguments, self._timeout_s if timeout_s is None else timeout_s
            )
        except StoreError as error:
            return [self._core.failed(error, miss)] * count
        if type(results) is tuple:
            return self._core.failed_items(results, miss)
        return results  # type: ignore[no-any-return]
