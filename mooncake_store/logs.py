"""Log lines: one event a line, as text for people or as JSON for collectors.

An event is a word and fields: `server_ready server=0 node="node-a"`. The C services write their
lines so, `log_event` writes Python's. Lines go to stderr: stdout is for results.
"""

from __future__ import annotations

import json
import logging
import re
import time
from typing import Any

__all__ = ["configure", "format_fields", "log_event", "parse_fields"]

_FIELD = re.compile(r'(\w+)=(?:"([^"]*)"|(\S*))')
_NUMBER = re.compile(r"-?\d{1,18}")


def configure(log_format: str, level: str) -> None:
    """Send the lines of this process to stderr.

    Args:
        log_format: `text` or `json`.
        level: `debug`, `info`, `warning` or `error`.
    """
    handler = logging.StreamHandler()
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
