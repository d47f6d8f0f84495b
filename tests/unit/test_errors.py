from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from mooncake_store import errors
from mooncake_store.errors import Status, StoreError, error_from_status

HEADER = Path(__file__).parents[2] / "mooncake_store/protocol/include/ms_wire.h"
FAILURES = [status for status in Status if status is not Status.OK]


def all_errors(kind: type[StoreError] = StoreError) -> list[type[StoreError]]:
    return [kind, *(found for sub in kind.__subclasses__() for found in all_errors(sub))]


def test_status_numbers_are_those_of_the_c_header() -> None:
    enum = re.search(r"typedef enum \{(.*?)\} ms_status;", HEADER.read_text(), re.DOTALL)
    assert enum is not None
    numbers = {name: int(value) for name, value in re.findall(r"MS_(\w+) = (\d+)", enum[1])}
    assert numbers.pop("STATUS_COUNT") == len(Status)
    assert numbers == {status.name: status.value for status in Status}


@pytest.mark.parametrize("status", FAILURES)
def test_every_status_becomes_an_exception_with_its_own_code(status: Status) -> None:
    error = error_from_status(status)
    assert isinstance(error, StoreError)
    assert error.message
    assert re.fullmatch(r"MS-1\d{3}", error.code)
    codes = [error_from_status(other).code for other in FAILURES]
    assert codes.count(error.code) == 1


def test_facts_are_attributes_and_part_of_the_text() -> None:
    below = OSError("connection reset")
    error = error_from_status(
        Status.TIMEOUT,
        "read of 2 extents",
        key="block-1",
        node="node-a",
        stage="transfer",
        elapsed_s=5.0,
        cause=below,
    )
    assert isinstance(error, errors.TransferTimeoutError)
    assert isinstance(error, TimeoutError)
    assert (error.key, error.node, error.stage, error.elapsed_s) == (
        "block-1",
        "node-a",
        "transfer",
        5.0,
    )
    assert error.cause is below
    assert error.__cause__ is below
    assert error.retryable
    assert str(error) == (
        "MS-1301: read of 2 extents (key 'block-1', node node-a, stage transfer, after 5.000 s)"
    )


def test_statuses_that_share_a_class_keep_their_own_advice() -> None:
    assert error_from_status(Status.GONE).retryable
    assert not error_from_status(Status.NOT_FOUND).retryable
    assert error_from_status(Status.COMPLETE).hint != error_from_status(Status.EXISTS).hint


def test_ok_is_refused_and_an_unknown_number_is_reported() -> None:
    with pytest.raises(AssertionError):
        error_from_status(Status.OK)
    assert "1234" in str(error_from_status(1234))


@pytest.mark.parametrize("kind", all_errors())
def test_an_exception_survives_pickling_with_its_facts(kind: type[StoreError]) -> None:
    error = kind("what failed", key="k", node="n", stage="s", elapsed_s=1.5, code="MS-1999")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert (copy.key, copy.node, copy.stage, copy.elapsed_s) == ("k", "n", "s", 1.5)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"    ([│├└─ ]*)(\w+Error)\b", line)
        if match:
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            drawn[match[2]] = path[depth - 1] if depth else ""
    real = {
        kind.__name__: next(
            (base.__name__ for base in kind.__bases__ if issubclass(base, StoreError)), ""
        )
        for kind in all_errors()
    }
    assert drawn == real
    assert set(real) | {"ERROR_CODES", "Status", "error_from_status"} == set(errors.__all__)


def test_the_page_of_error_codes_is_complete_and_true() -> None:
    page = (Path(__file__).parents[2] / "docs/errors.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| MS-")
    ]
    assert rows == [
        [
            row.code,
            f"`{row.exception}`",
            row.meaning,
            "yes" if row.retryable else "no",
            row.hint,
        ]
        for row in errors.ERROR_CODES.values()
    ]


def test_every_code_says_what_to_do_next() -> None:
    assert all(row.hint for row in errors.ERROR_CODES.values())
    raised = {error_from_status(status).code for status in FAILURES}
    raised |= {kind.code for kind in all_errors()}
    assert raised == set(errors.ERROR_CODES)


def test_every_exception_has_a_code_that_no_other_class_has() -> None:
    for kind in all_errors():
        assert "code" in vars(kind), kind
        assert errors.ERROR_CODES[kind("what failed").code].exception == kind.__name__
