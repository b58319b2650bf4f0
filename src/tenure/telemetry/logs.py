"""Log lines: text for people, JSON for programs, without known secrets.

Nothing in a message can begin a new line: control characters are escaped, and the lines of a stack
are indented below it. A line about a job carries the job's ids; a line that is written within a
traced request or attempt carries its trace. [OB5]
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from tenure.telemetry import tracing
from tenure.telemetry.secrets import REDACTED, SECRET_NAME, without_secrets

MAX_DEPTH = 6

_ORDINARY = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    """How lines are written."""

    TEXT = "text"
    JSON = "json"


def one_line(text: str) -> str:
    """The text with line breaks and other control characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def indented(text: str) -> list[str]:
    """The lines of the text, indented, so that none of them looks like a log line of its own."""
    return [f"  {one_line(line)}" for line in text.splitlines() if line]


def redacted(value: Any, *, depth: int = 0) -> Any:
    """The value without known secrets and without values whose key names one, at any depth."""
    if isinstance(value, str):
        return without_secrets(value)
    if depth >= MAX_DEPTH:
        return REDACTED
    if isinstance(value, Mapping):
        return {
            str(key): REDACTED if SECRET_NAME.search(str(key)) else redacted(each, depth=depth + 1)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [redacted(each, depth=depth + 1) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else redacted(str(value))


class TextFormatter(logging.Formatter):
    """Time, level and message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line; below it `below` of its `extra`, and an exception, both of many lines."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        below = getattr(record, "below", "")
        if record.exc_info:
            below = f"{below}\n{self.formatException(record.exc_info)}"
        return str(redacted("\n".join([one_line(self.formatMessage(record)), *indented(below)])))


class JsonFormatter(logging.Formatter):
    """One object, one line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        traced = tracing.current()
        line |= {
            "trace_id": traced.trace_id,
            "correlation_id": traced.correlation_id,
            **_several(traced),
            **{name: each for name, each in vars(record).items() if name not in _ORDINARY},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        shown = {name: each for name, each in redacted(line).items() if each is not None}
        return json.dumps(shown, separators=(",", ":"))


def _several(traced: tracing.TraceContext) -> dict[str, Any]:
    """The ids of several jobs, if the request is about more than one. [OB5]"""
    several = {"trace_ids": traced.traces, "correlation_ids": traced.correlation_ids}
    return {name: ids for name, ids in several.items() if len(ids) > 1}


def log_to_stderr(form: LogFormat = LogFormat.TEXT) -> None:
    """Write this process's log to stderr, one line each; stdout is for data."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else TextFormatter())
    logger = logging.getLogger("tenure")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
