"""Hints between processes by PostgreSQL's NOTIFY and LISTEN.

A commit with a NOTIFY takes a lock that all other such commits wait for, so hints never travel in
the transaction that they are about: they are sent after its commit, in one of their own that waits
for no disk, at most one per queue and ten milliseconds. A listener has a connection of its own and
first probes whether notifications arrive at all: a pooler in transaction mode does not pass them
on, but leaves LISTEN on a connection that other clients use. So the probe listens on a channel of
its own, and stops. Hints are only hints: workers poll without them. [Z7]
"""

import hashlib
import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress

import msgspec

from tenure.deadlines import Deadline, deadline
from tenure.errors import TenureError
from tenure.ports import Hint, OnHint
from tenure.stores.hints import Watchers
from tenure.stores.postgres.driver import psycopg
from tenure.stores.postgres.wire import RoundTrip, Wire
from tenure.stores.sql.statements import Query

SHORTEST_GAP_S = 0.01
"""Between two hints of one kind about one queue."""

MAX_REMEMBERED = 10_000
"""Hints of which the time of sending is remembered."""

HANDSHAKE_S = 2.0
LONGEST_PAUSE_S = 30.0
TRY_AGAIN_S = 300.0
"""After a handshake whose notification did not arrive: the server may only have been slow."""

MAX_UNLISTENS = 20
"""Tries to stop listening for a probe: a pooler may run each on another server connection."""

CLOSE_WITHIN_S = 1.0

_log = logging.getLogger("tenure.stores")


class _Sent(msgspec.Struct, frozen=True, array_like=True):
    """A hint on the wire. A process ignores its own hints: it has called its own watchers."""

    sender: str
    hint: Hint


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Sent).decode


def channel_of(schema: str) -> str:
    """The channel of the store in this schema: at most 63 bytes, whatever the schema is called."""
    return f"tenure_{hashlib.blake2b(schema.encode(), digest_size=8).hexdigest()}"


def payload_of(hint: Hint, sender: str = "") -> str:
    """A hint as it travels."""
    return _encode(_Sent(sender, hint)).decode()


def _hint_in(payload: str) -> _Sent | None:
    """The hint in a payload, if it is one: any client of the database can send anything."""
    try:
        return _decode(payload)
    except (msgspec.MsgspecError, RecursionError):  # the latter: thousands of nested brackets
        return None


Notify = Callable[[str, Sequence[str]], None]
"""Sends payloads to a channel, in a transaction of its own."""


class Notifier:
    """Notifies other processes of committed changes, from a thread of its own."""

    def __init__(self, sender: str, channel: str, notify: Notify) -> None:
        self._sender = sender
        self._channel = channel
        self._notify = notify
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._pending: set[Hint] = set()
        self._sent_at: dict[Hint, float] = {}
        self._closed = False
        self._thread: threading.Thread | None = None

    def notify(self, hints: Iterable[Hint]) -> None:
        """Send these soon; returns at once."""
        with self._lock:
            known = len(self._pending)
            self._pending.update(hints)
            if len(self._pending) == known or self._closed:
                return  # the thread knows of these, and waits until it may send them
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tenure-notify", daemon=True)
                self._thread.start()
            self._condition.notify()

    def take_due(self, hints: Iterable[Hint]) -> tuple[list[Hint], list[str]]:
        """The hints that may be sent now, and their payloads: the caller sends them."""
        now = time.monotonic()
        due: list[Hint] = []
        payloads: list[str] = []
        with self._lock:
            for hint in hints:
                if self._sent_at.get(hint, -math.inf) + SHORTEST_GAP_S <= now:
                    due.append(hint)
                    payloads.append(payload_of(hint, self._sender))
            if due:
                self._remember(due, now)
        return due, payloads

    def close(self) -> None:
        """Send what is left, for a second at most, and stop."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_WITHIN_S)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._pending and not self._closed:
                    self._condition.wait()
                if not self._pending:
                    return
                now = time.monotonic()
                due = [each for each in self._pending if self._due_at(each) <= now or self._closed]
                if not due:
                    self._condition.wait(min(map(self._due_at, self._pending)) - now)
                    continue
                self._pending.difference_update(due)
                self._remember(due, now)
            try:
                self._notify(self._channel, [payload_of(hint, self._sender) for hint in due])
            except TenureError as failure:  # waiting processes poll
                _log.debug("no hint was sent: %s", failure)

    def _due_at(self, hint: Hint) -> float:
        return self._sent_at.get(hint, -math.inf) + SHORTEST_GAP_S

    def _remember(self, sent: Iterable[Hint], now: float) -> None:
        if len(self._sent_at) > MAX_REMEMBERED:
            self._sent_at = {
                hint: at for hint, at in self._sent_at.items() if at + SHORTEST_GAP_S > now
            }
        self._sent_at.update(dict.fromkeys(sent, now))


class Listener:
    """Receives the hints of all processes, on a connection and a thread of its own, from the first
    watcher on."""

    def __init__(
        self,
        sender: str,
        channel: str,
        connect: Callable[[Deadline], Wire],
        notify: Notify,
    ) -> None:
        self._sender = sender
        self._channel = channel
        self._connect = connect
        self._notify = notify
        self.watchers = Watchers()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._wake_out, self._wake_in = os.pipe()
        self._state = threading.Condition()
        self.arrive: bool | None = None  # whether notifications do; None: not known yet

    def add(self, on_hint: OnHint) -> Callable[[], None]:
        """Call this function with every hint, until the returned one is called."""
        stop = self.watchers.add(on_hint)
        self._begin()
        return stop

    def find_out(self, within_s: float = HANDSHAKE_S + 1) -> bool | None:
        """Whether notifications arrive; waits for the answer. None: the server does not answer."""
        self._begin()
        with self._state:
            self._state.wait_for(lambda: self.arrive is not None, within_s)
            return self.arrive

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        with suppress(OSError):
            os.write(self._wake_in, b"\0")
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        for end in (self._wake_in, self._wake_out):
            with suppress(OSError):
                os.close(end)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="tenure-listen", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause_s = 1.0
        while not self._closed.is_set():
            try:
                with closing(self._connect(deadline(HANDSHAKE_S))) as wire:
                    arrive = self._probe(wire)
                    if self._closed.is_set():
                        return
                    if arrive:
                        _in_one_transaction(wire, f'LISTEN "{self._channel}"')
                    self._found_out(arrive=arrive)
                    pause_s = 1.0
                    if arrive:
                        self._hear(None)  # some may have been missed
                        self._listen(wire)
                self._closed.wait(TRY_AGAIN_S)
            except (TenureError, psycopg.Error, OSError) as problem:
                _log.debug("notifications are not received, trying again: %s", problem)
                if self.arrive:
                    self.arrive = None
                    self._hear(None)  # waiting processes poll more often from now on
                self._closed.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _found_out(self, *, arrive: bool) -> None:
        if not arrive and self.arrive is not False:
            _log.info(
                "notifications do not arrive (a pooler in transaction mode?): polling for jobs"
            )
        with self._state:
            self.arrive = arrive
            self._state.notify_all()

    def _probe(self, wire: Wire) -> bool:
        """Whether a notification from another connection arrives."""
        channel = f"tenure_probe_{os.urandom(8).hex()}"
        listening = _in_one_transaction(wire, f'LISTEN "{channel}"')
        try:
            self._notify(channel, [channel])
            until = deadline(HANDSHAKE_S)
            while not until.has_passed and not self._closed.is_set():
                if channel in self._received(wire, until.remaining_s):
                    return True
            return False
        finally:
            for _ in range(MAX_UNLISTENS):
                if _in_one_transaction(wire, f'UNLISTEN "{channel}"') == listening:
                    break

    def _listen(self, wire: Wire) -> None:
        while not self._closed.is_set():
            for payload in self._received(wire, None):
                sent = _hint_in(payload)
                if sent is not None and sent.sender != self._sender:
                    self._hear(sent.hint)

    def _hear(self, hint: Hint | None) -> None:
        self.watchers.notify(hint)

    def _received(self, wire: Wire, within_s: float | None) -> list[str]:
        """The payloads that have arrived; waits for some, or until it is time to stop."""
        pgconn = wire.pgconn
        arrived = list(iter(pgconn.notifies, None))  # a round trip may have read some
        if not arrived:
            poll = select.poll()
            poll.register(pgconn.socket, select.POLLIN)
            poll.register(self._wake_out, select.POLLIN)
            poll.poll(None if within_s is None else within_s * 1000)
            pgconn.consume_input()
            arrived = list(iter(pgconn.notifies, None))
        return [each.extra.decode(errors="replace") for each in arrived]


def _in_one_transaction(wire: Wire, statement: str) -> int:
    """Run a statement. Returns the id of the server's process that ran it."""
    trip = RoundTrip(wire, until=deadline(HANDSHAKE_S), prepares=False)
    trip.send([Query("SELECT pg_backend_pid()", ()), Query(statement, ())])
    [[(process,)], _] = trip.finish()
    assert isinstance(process, int)
    return process
