"""Log lines: one event a line, as text for people or as JSON for collectors.

An event is a word and fields: `server_ready server=0 node="node-a"`. The C services write their
lines so, `log_event` writes Python's. Lines go to stderr: stdout is for results.

An event that comes again and again is written once a second, and `lines_suppressed` counts the
rest: what floods a log hides what matters, and costs the process that writes it.
"""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass
from typing import Any

__all__ = ["RateLimit", "configure", "format_fields", "log_event", "parse_fields"]

_FIELD = re.compile(r'(\w+)=(?:"([^"]*)"|(\S*))')
_SUPPRESSED = "lines_suppressed"
_NUMBER = re.compile(r"-?\d{1,18}")


def configure(log_format: str, level: str) -> None:
    """Send the lines of this process to stderr.

    Args:
        log_format: `text` or `json`.
        level: `debug`, `info`, `warning` or `error`.
    """
    handler = _LimitedHandler()
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Libraries speak of every connection at "info": from them only what went wrong.
    for name in ("uvicorn", "grpc", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def log_event(logger: logging.Logger, level: int, event: str, /, **fields: Any) -> None:
    """Write one line."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", f"{event} {format_fields(fields)}".rstrip())


def format_fields(fields: dict[str, Any]) -> str:
    """Return `name=value` pairs; text that could break a line apart is made harmless."""
    parts = []
    for name, value in fields.items():
        text = str(value)
        if not re.fullmatch(r"[\w.:/+\-\[\]]+", text):
            text = '"' + re.sub(r'[\x00-\x1f\x7f"\\]', "_", text) + '"'
        parts.append(f"{name}={text}")
    return " ".join(parts)


def parse_fields(line: str) -> tuple[str, dict[str, Any]]:
    """Return a line's event and its fields; numbers become numbers."""
    event, _, rest = line.partition(" ")
    fields: dict[str, Any] = {}
    for match in _FIELD.finditer(rest):
        quoted, bare = match[2], match[3]
        if quoted is None and _NUMBER.fullmatch(bare):
            fields[match[1]] = int(bare)
        else:
            fields[match[1]] = bare if quoted is None else quoted
    return event, fields


class RateLimit:
    """One line of an event a second, after a burst; what is left out is counted.

    Args:
        burst: Lines at once: several servers may be lost in one second.
    """

    def __init__(self, burst: int = 5) -> None:
        self._burst = burst
        self._rates: dict[str, _Rate] = {}

    def admit(self, event: str, now_s: float) -> bool:
        """Return whether a line of the event may be written now."""
        rate = self._rates.setdefault(event, _Rate(self._burst, now_s))
        rate.tokens = min(self._burst, rate.tokens + now_s - rate.refilled_s)
        rate.refilled_s = now_s
        if rate.tokens < 1:
            rate.suppressed += 1
            return False
        rate.tokens -= 1
        return True

    def suppressed(self, event: str, now_s: float) -> list[tuple[str, int]]:
        """Return, once, what was left out: of `event`, and of those that have been quiet since."""
        found = []
        for name, rate in self._rates.items():
            if rate.suppressed and (name == event or now_s - rate.refilled_s > 1):
                found.append((name, rate.suppressed))
                rate.suppressed = 0
        return found


@dataclass(slots=True)
class _Rate:
    tokens: float
    refilled_s: float
    suppressed: int = 0


class _LimitedHandler(logging.StreamHandler):  # type: ignore[type-arg]  # no [] before 3.11
    """Events of this package are limited; libraries write sentences that no key brings together."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = RateLimit()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] == "mooncake_store":
            event, now_s = record.getMessage().partition(" ")[0], time.monotonic()
            if event != _SUPPRESSED:
                if not self._limit.admit(event, now_s):
                    return
                for name, count in self._limit.suppressed(event, now_s):
                    super().emit(_suppressed_record(record.name, name, count))
        super().emit(record)


def _suppressed_record(logger: str, event: str, count: int) -> logging.LogRecord:
    line = f"{_SUPPRESSED} {format_fields({'event': event, 'count': count})}"
    return logging.LogRecord(logger, logging.WARNING, __file__, 0, "%s", (line,), None)


def _stamp(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03}Z"


def _created(record: logging.LogRecord) -> float:
    # C lines carry the time at which they were written, not the one at which Python read them.
    return float(getattr(record, "wall_s", record.created))


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_stamp(_created(record))} {record.levelname} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # Libraries write sentences, not events.
        event, fields = "message", {"text": record.getMessage(), "logger": record.name}
        if record.name.startswith("mooncake_store"):
            event, fields = parse_fields(record.getMessage())
        document = {
            "time": _stamp(_created(record)),
            "level": record.levelname.lower(),
            "event": event,
            **fields,
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document)
