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
