"""The supervisor's end of its keeper: sends it which process groups are alive, and until when.

Never blocks. A keeper that died, or does not read, is replaced, and its successor gets
everything: killing the keeper and then the supervisor must not leave a program running.

A sooner or a much later deadline is sent at once, a little later one or none within a second: a
child that runs many short jobs has a later deadline with each, and each line wakes a process.
"""

import logging
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from tenure.clock import NEVER, Boot
from tenure.core.instants import seconds

_FILE = Path(__file__).with_name("keeper.py")
WAIT_S = 5.0
READ_BYTES = 4096
RESTART_AFTER = seconds(1)
"""Least time between two starts: a keeper that dies at once must not keep the worker busy."""

SEND_WITHIN = seconds(1)
"""How late a deadline is sent that is at most this much later than the one that the keeper knows,
or that there is none. It is sent at once if the known one is less than twice this away. If the
supervisor is stopped, the keeper may kill this much early."""

_log = logging.getLogger("tenure.worker")


class KeeperClient:
    """A small process that kills the children's groups if the supervisor cannot."""

    def __init__(self, selector: selectors.BaseSelector, clock: Callable[[], Boot]) -> None:
        self._selector = selector
        self._clock = clock
        self._deadlines: dict[int, Boot | None] = {}  # by group
        self._sent: dict[int, Boot | None] = {}  # what the keeper knows of them
        self._unsent: dict[int, None] = {}  # groups of which it knows a sooner deadline
        self._started_at: Boot | None = None
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._restart_at = self._send_at = NEVER
        self._start()

    @property
    def pid(self) -> int | None:
        """For tests; None while there is none."""
        return None if self._running is None else self._running[0].pid

    @property
    def next_at(self) -> Boot:
        """When to call `maintain`."""
        return min(self._restart_at, self._send_at)

    def watch(self, group: int) -> None:
        """Kill this group with the supervisor."""
        self._deadlines[group] = self._sent[group] = None
        self._send(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        """It is gone; another process may get its id."""
        for known in (self._deadlines, self._sent, self._unsent):
            known.pop(group, None)
        self._send(b"-%d\n" % group)

    def is_due(self, group: int) -> bool:
        """Whether the deadline that the keeper knows has passed."""
        sent_deadline = self._sent.get(group)
        return sent_deadline is not None and self._clock() >= sent_deadline

    def kill_at(self, deadlines: Mapping[int, Boot | None]) -> None:
        """Kill each group at its deadline, unless it is changed before; None: no deadline."""
        now = self._clock()
        at_once: list[int] = []
        for group, deadline in deadlines.items():
            if group not in self._deadlines:
                continue
            self._deadlines[group] = deadline
            sent_deadline = self._sent[group]
            if deadline == sent_deadline:
                self._unsent.pop(group, None)
            elif _may_wait(deadline, sent_deadline, now):
                self._unsent[group] = None
            else:
                at_once.append(group)
        self._send_deadlines(at_once)
        if self._unsent and self._send_at == NEVER:
            self._send_at = Boot(now + SEND_WITHIN)

    def _send_deadlines(self, groups: Iterable[int]) -> None:
        lines = b""
        for group in groups:
            deadline = self._sent[group] = self._deadlines[group]
            self._unsent.pop(group, None)
            lines += b"=%d %d\n" % (group, deadline or 0)
        if lines:
            self._send(lines)

    def maintain(self) -> None:
        """Send it what has waited long enough; start another keeper if the last one died long
        enough ago."""
        now = self._clock()
        if self._running is None and now >= self._restart_at:
            self._start()
        if now >= self._send_at:
            self._send_at = NEVER
            self._send_deadlines(list(self._unsent))

    def close(self) -> None:
        """Close its input: it kills the groups it still watches, and exits. One that does not, as
        after SIGSTOP, is killed: it must not delay the end of its worker."""
        self._restart_at = self._send_at = NEVER
        if self._running is None:
            return
        process, ours = self._running
        self._running = None
        self._selector.unregister(ours)
        ours.close()
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    # --- the process ---------------------------------------------------------------------------

    def _start(self) -> None:
        self._restart_at = NEVER
        self._started_at = self._clock()
        try:
            ours, theirs = socket.socketpair()
        except OSError as failure:  # no more descriptors
            self._could_not_start(failure)
            return
        ours.setblocking(False)
        lines = b"".join(
            b"+%d\n=%d %d\n" % (group, group, deadline or 0)
            for group, deadline in self._deadlines.items()
        )
        self._sent = dict(self._deadlines)
        self._unsent.clear()
        # Before it starts: if this process is killed next, the keeper already knows every group.
        sent = ours.send(lines) if lines else 0
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_FILE)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                    env=_environment(),
                )
            except OSError as failure:  # no memory, or no more processes
                ours.close()
                self._could_not_start(failure)
                return
        self._running = process, ours
        self._selector.register(ours, selectors.EVENT_READ, self._readable)
        if sent < len(lines):
            self._send(lines[sent:])

    def _could_not_start(self, failure: OSError) -> None:
        assert self._started_at is not None
        _log.error("the keeper process could not be started: %s", failure)
        self._restart_at = Boot(self._started_at + RESTART_AFTER)

    def _readable(self) -> None:
        """It never writes: the socket is readable when the process is gone."""
        if self._running is None:
            return
        with suppress(OSError):
            if self._running[1].recv(READ_BYTES):
                return
        self._lost("has died")

    def _send(self, lines: bytes) -> None:
        if self._running is None:
            return  # the next keeper gets it
        try:
            if self._running[1].send(lines) < len(lines):
                self._lost("does not respond")
        except BlockingIOError:
            self._lost("does not respond")
        except OSError:
            self._lost("has died")

    def _lost(self, how: str) -> None:
        assert self._running is not None
        assert self._started_at is not None
        process, ours = self._running
        self._running = None
        self._selector.unregister(ours)
        process.kill()  # before the socket is closed, or one that was stopped would kill all later
        process.wait()
        ours.close()
        _log.warning("the keeper process %s and is replaced", how)
        self._restart_at = Boot(self._started_at + RESTART_AFTER)
        if self._clock() >= self._restart_at:
            self._start()


def _may_wait(deadline: Boot | None, sent_deadline: Boot | None, now: Boot) -> bool:
    """Whether the deadline that the keeper knows is at most SEND_WITHIN before this one and not
    about to pass. It may be the one of the child's last job, whose lease was shorter."""
    if sent_deadline is None or sent_deadline < now + 2 * SEND_WITHIN:
        return False
    return deadline is None or sent_deadline < deadline <= sent_deadline + SEND_WITHIN


def _environment() -> dict[str, str]:
    """Empty: a handler could read it. Some interpreters cannot start without their libraries."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
