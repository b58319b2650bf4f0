"""The security log: what an attack on a server looks like, and what its operators did. [OB11]

One JSON object per line, and a count of each sort of event. A line has no secrets: of a token its
id, of a lease as much as may be shown. Whoever floods a server must not fill its disk, so there are
only so many lines a second; the next line says how many were left out, and the counts have all. A
line that cannot be written is left out, too: a full disk must not fail the request.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from tenure.errors import TenureError

MAX_LINES_PER_S = 20
"""Of each sort of event."""


class SecurityEvent(StrEnum):
    """What is noted."""

    TOKEN_REFUSED = "token_refused"  # noqa: S105 - a word of the log
    SCOPE_VIOLATION = "scope_violation"
    FOREIGN_LEASE = "foreign_lease"
    OPERATOR_ACTION = "operator_action"


class _Budget:
    """How many lines of one sort may still be written in this second."""

    def __init__(self) -> None:
        self.second = -1
        self.lines = 0
        self.left_out = 0

    def take(self, second: int) -> int | None:
        """How many lines were left out since the last one; None if this one has to be, too."""
        if second != self.second:
            self.second, self.lines = second, 0
        if self.lines >= MAX_LINES_PER_S:
            self.left_out += 1
            return None
        self.lines += 1
        left_out, self.left_out = self.left_out, 0
        return left_out


class SecurityLog:
    """Writes the lines and keeps the counts. Lives on the event loop's thread; counts may be read
    from any."""

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._write = write or _to_stderr
        self._clock = clock
        self._counts = dict.fromkeys(SecurityEvent, 0)
        self._budgets = {event: _Budget() for event in SecurityEvent}

    def note(self, event: SecurityEvent, facts: dict[str, str | int | None]) -> None:
        """Count it, and write a line if there is room for one."""
        self._counts[event] += 1
        now = self._clock()
        left_out = self._budgets[event].take(int(now))
        if left_out is None:
            return
        at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        line = {"ts": at.replace("+00:00", "Z"), "log": "security", "event": event.value, **facts}
        if left_out:
            line["left_out"] = left_out
        shown = {name: fact for name, fact in line.items() if fact is not None}
        try:
            self._write(json.dumps(shown, separators=(",", ":")) + "\n")
        except OSError:  # told by the next line
            self._budgets[event].left_out += left_out + 1

    def counts(self) -> dict[str, int]:
        """How often each has happened."""
        return {event.value: number for event, number in self._counts.items()}


def _to_stderr(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()


def security_log(path: Path | None) -> SecurityLog:
    """A log that goes to a file of its own, which only its owner can read, or to stderr."""
    if path is None:
        return SecurityLog()
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as failure:
        raise TenureError(
            f"cannot write the security log {path}: {failure.strerror}",
            hint="choose another --security-log",
        ) from failure
    return SecurityLog(lambda line: os.write(file, line.encode()))
