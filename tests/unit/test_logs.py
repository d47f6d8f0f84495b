from __future__ import annotations

import json
import logging

import pytest

from mooncake_store import logs


@pytest.fixture
def logger(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield logging.getLogger("mooncake_store.test")
    root.handlers[:], root.level = before


def test_fields_survive_the_way_through_a_line() -> None:
    fields = {"node": "node-a", "count": 3, "reason": "peer is gone", "path": "/run/x.sock"}
    event, parsed = logs.parse_fields(f"server_gone {logs.format_fields(fields)}")
    assert event == "server_gone"
    assert parsed == fields


def test_hostile_text_stays_inside_its_field() -> None:
    hostile = 'a" forged="1\n\x1b[31m'
    line = "event " + logs.format_fields({"name": hostile})
    assert "\n" not in line
    assert "\x1b" not in line
    assert set(logs.parse_fields(line)[1]) == {"name"}


def test_a_line_is_text_or_json(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text", "info")
    logs.log_event(logger, logging.INFO, "started", port=7700)
    logs.log_event(logger, logging.DEBUG, "detail")
    line = capsys.readouterr().err
    assert line.endswith(" INFO started port=7700\n")
    assert line.count("\n") == 1
    logs.configure("json", "debug")
    logger.info("%s", "started port=7700", extra={"wall_s": 1.5})
    logging.getLogger("somebody").warning("a sentence of a library, with=equals")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "event": "started",
        "port": 7700,
    }
    assert second["level"] == "warning"
    assert second["text"] == "a sentence of a library, with=equals"


def test_a_flood_is_one_line_a_second_and_a_count() -> None:
    limit = logs.RateLimit(burst=5)
    written = [step for step in range(100) if limit.admit("put_refused", step / 50)]
    assert written[:5] == [0, 1, 2, 3, 4]
    assert len(written) == 6  # two seconds
    assert limit.admit("server_gone", 2.0)
    assert limit.suppressed("server_gone", 2.0) == []
    assert limit.suppressed("put_refused", 2.0) == [("put_refused", 94)]
    assert limit.suppressed("put_refused", 2.0) == []


def test_a_flood_that_ended_is_counted_beside_the_next_line_of_anything() -> None:
    limit = logs.RateLimit(burst=1)
    assert [limit.admit("put_refused", 0.0) for _ in range(4)] == [True, False, False, False]
    assert limit.suppressed("stopped", 0.5) == []
    assert limit.suppressed("stopped", 1.5) == [("put_refused", 3)]


def test_lines_of_a_process_are_limited_by_event(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    logs.configure("text", "info")
    for number in range(30):
        logs.log_event(logger, logging.WARNING, "put_refused", client=f"client-{number}")
    logs.log_event(logger, logging.INFO, "server_ready", server=0)
    now += 2
    logs.log_event(logger, logging.WARNING, "put_refused", client="later")
    events = [line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines()]
    assert events == [
        *(f"put_refused client=client-{number}" for number in range(5)),
        "server_ready server=0",
        "lines_suppressed event=put_refused count=25",
        "put_refused client=later",
    ]
