"""The security log: what an attack on a server looks like, and what its operators did. [OB11]

One JSON object per line, and a count of each sort of event. A line has no secrets: of a token only
the id, of a lease only the start.

A flood of requests must not fill the server's disk, so events that any caller can cause are limited
to a number of lines per second for each principal. Operators' actions have no such limit: otherwise
an operator could hide one action behind many others. [OB12]

A thread of its own writes the lines, because a write can block: a pipe without a reader must not
stop the event loop. Lines wait in a bounded queue; lines that find it full or cannot be written are
lost, and the next line that is written has their number. [OB14]
"""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from queue import Queue
from typing import Any

from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.errors import TenureError
from tenure.telemetry.log_lines import LineLimit

MAX_LINES_PER_S = 20
"""The limit for each event that any caller can cause, per principal."""

MAX_WAITING = 1000
"""How many lines wait to be written. Half of them are for operators' actions alone."""

CLOSE_WITHIN_S = 2.0

_STDERR = 2


class SecurityEvent(StrEnum):
    """The events of the log."""

    TOKEN_REFUSED = "token_refused"  # noqa: S105 - a word of the log
    SCOPE_VIOLATION = "scope_violation"
    FOREIGN_LEASE = "foreign_lease"
    OPERATOR_ACTION = "operator_action"
    SIGNED_IN = "signed_in"
    SIGNED_OUT = "signed_out"


class SecurityLog:
    """Keeps the counts and has the lines written. Lives on the event loop's thread; counts may be
    read from any."""

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._write = write or (lambda line: os.write(_STDERR, line.encode()))
        self._clock = clock
        self._counts = dict.fromkeys(SecurityEvent, 0)
        self._limits: dict[tuple[object, ...], LineLimit] = {}
        self._waiting: Queue[tuple[SecurityEvent, dict[str, Any]] | None] = Queue()
        self._lock = threading.Lock()  # for the attributes below
        self._lost: Counter[str] = Counter()
        self._thread: threading.Thread | None = None  # starts with the first line [OB14]
        self._is_closed = False

    def note(self, event: SecurityEvent, facts: dict[str, str | int | None]) -> None:
        """Count it, and have a line written unless there were too many. Never blocks."""
        self._counts[event] += 1
        now = self._clock()
        left_out: int | None = 0
        if event is not SecurityEvent.OPERATOR_ACTION:
            left_out = self._limit(event, facts).take(int(now * MICROSECONDS_PER_SECOND))
        if left_out is None:
            return
        at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        line = {"ts": at.replace("+00:00", "Z"), "log": "security", "event": event.value, **facts}
        line["left_out"] = left_out or None
        self._put(event, {name: fact for name, fact in line.items() if fact is not None})

    def _put(self, event: SecurityEvent, line: dict[str, Any]) -> None:
        """Let the thread write this line, if there is room for it."""
        most = MAX_WAITING if event is SecurityEvent.OPERATOR_ACTION else MAX_WAITING // 2
        with self._lock:
            if self._is_closed or self._waiting.qsize() >= most:
                self._count_lost(event, line)
                return
            self._waiting.put((event, line))
            if self._thread is None:
                # A daemon: a write that blocks for ever must not keep the process from ending.
                self._thread = threading.Thread(
                    target=self._run, name="tenure-security-log", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        for event, line in iter(self._waiting.get, None):
            with self._lock:
                lost, self._lost = self._lost, Counter()
            whole = {**line, "lost": lost} if lost else line
            try:
                self._write(json.dumps(whole, separators=(",", ":")) + "\n")
            except OSError:  # a full disk, for one; the next line has the number
                with self._lock:
                    self._lost.update(lost)
                    self._count_lost(event, line)
            self._waiting.task_done()
        self._waiting.task_done()  # None, after which there are no more

    def _count_lost(self, event: SecurityEvent, line: dict[str, Any]) -> None:
        self._lost[event.value] += 1 + line.get("left_out", 0)

    def _limit(self, event: SecurityEvent, facts: dict[str, str | int | None]) -> LineLimit:
        """One limit for each principal, so that no tenant hides another's lines; refused tokens
        share one."""
        key = (event, facts.get("namespace"), facts.get("actor"))
        return self._limits.setdefault(key, LineLimit(MAX_LINES_PER_S, MICROSECONDS_PER_SECOND))

    def counts(self) -> dict[str, int]:
        """How often each has happened."""
        return {event.value: number for event, number in self._counts.items()}

    def wait_written(self, within_s: float) -> bool:
        """Wait until all lines are written or lost; False if that takes longer than this."""
        done = self._waiting.all_tasks_done
        with done:
            return done.wait_for(lambda: not self._waiting.unfinished_tasks, within_s)

    def close(self) -> None:
        """Wait a short time for the lines that are not written yet, and write no more."""
        if self._is_closed:
            return
        self.wait_written(CLOSE_WITHIN_S)
        with self._lock:
            self._is_closed = True
            if self._thread is not None:
                self._waiting.put(None)


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
