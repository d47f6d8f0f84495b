"""Exit codes are a promise to scripts: the table stands here a second time on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooncake_store import errors
from mooncake_store.cli.exit_codes import MEANINGS, ExitCode, exit_code_of, worst_of
from mooncake_store.errors import StoreError

TABLE = {
    "AccessRefusedError": 5, "BufferTooSmallError": 2, "CapacityError": 5, "ChecksumError": 1,
    "ClosedError": 1, "ClusterError": 3, "ConfigError": 2, "DeviceError": 1, "InUseError": 5,
    "InternalError": 1, "InvalidKeyError": 2, "LimitError": 5, "NotLeaderError": 3,
    "NotRegisteredError": 2, "ObjectBusyError": 5, "ObjectError": 1, "ObjectExistsError": 5,
    "ObjectNotFoundError": 4, "ObjectPinnedError": 5, "ObjectTooLargeError": 5,
    "PoolFullError": 5, "StorageFullError": 5,
    "ProtocolError": 3, "RequestError": 2, "SessionLostError": 3, "StoreError": 1,
    "TransferCancelledError": 1, "TransferError": 1, "TransferTimeoutError": 3,
    "UnavailableError": 3, "UnknownInstanceError": 4, "VersionMismatchError": 3,
}  # fmt: skip


def test_numbers_never_change() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0, "FAILED": 1, "USAGE": 2, "UNREACHABLE": 3, "NOT_FOUND": 4, "REFUSED": 5,
        "PARTIAL": 6, "INTERRUPTED": 130,
    }  # fmt: skip
    assert set(MEANINGS) == set(ExitCode)


def test_every_exception_has_its_exit_code() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    found = {
        kind.__name__: int(exit_code_of(kind("x")))
        for kind in kinds
        if issubclass(kind, StoreError)
    }
    assert found == TABLE


def test_an_exception_of_nobody_has_failed() -> None:
    assert exit_code_of(ValueError("x")) == ExitCode.FAILED


@pytest.mark.parametrize(
    ("done", "failures", "expected"),
    [
        (3, [], ExitCode.OK),
        (0, [], ExitCode.OK),
        (0, [ExitCode.NOT_FOUND], ExitCode.NOT_FOUND),
        (0, [ExitCode.NOT_FOUND, ExitCode.NOT_FOUND], ExitCode.NOT_FOUND),
        (0, [ExitCode.NOT_FOUND, ExitCode.REFUSED], ExitCode.FAILED),
        (1, [ExitCode.NOT_FOUND], ExitCode.PARTIAL),
    ],
)
def test_several_things_end_in_one_exit_code(
    done: int, failures: list[ExitCode], expected: ExitCode
) -> None:
    assert worst_of(done, failures) == expected


def test_the_page_of_the_command_has_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs/command.md").read_text()
    for code, meaning in MEANINGS.items():
        assert f"| {int(code)} | {meaning} |" in page
