"""Failover of a PostgreSQL server: what this process remembers, and the check of a new connection.

`core.failover` decides; this module reads what the server has, and carries the decision out. What
is committed in a caller's own transaction, on a connection that is not ours, is not remembered.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from threading import Lock

import msgspec

from tenure.core.failover import (
    Acknowledged,
    Remembered,
    Ruling,
    Server,
    ServerFacts,
    ServerRefusal,
    StoredChange,
    highest_timeline,
    judge,
)
from tenure.core.ids import Epoch, JobId
from tenure.core.instants import Instant
from tenure.core.outcomes import Change
from tenure.core.vocabulary import RENEWALS
from tenure.errors import ServerBehind, StoreRestored
from tenure.stores.postgres.arrays import integers, texts
from tenure.stores.sql.database import Transaction
from tenure.stores.sql.statements import Query

_log = logging.getLogger("tenure.stores")

MakeQuery = Callable[..., Query]


class FailoverMemory:
    """The last change that was acknowledged on each connection, the last tick, the highest epoch,
    and the server they were on. Thread-safe; outlives the connections. [A8]

    A transaction that starts after a change was acknowledged comes later in the server's log, so
    remembering its change is enough. At most one change per connection is remembered.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self.acknowledgements = 0
        """Read this before a transaction starts, and pass it to `acknowledged`."""
        self._changes: list[tuple[int, Acknowledged]] = []  # each with its number
        self._tick: Instant | None = None
        self._epoch = Epoch(0)
        self._server: Server | None = None
        self.timeline: int | None = None
        """The timeline that transactions are sent to; None before the first check of a server, and
        on a standby."""

    def acknowledged(self, changes: Iterable[Change], *, begun: int) -> None:
        """Remember one change of a committed transaction: if possible not a renewal, because
        renewals are pruned."""
        last: Change | None = None
        is_renewal = False
        for last in changes:
            is_renewal = last.events[-1].type in RENEWALS
            if not is_renewal:
                break
        if last is None:
            return
        event, kept_us = last.events[-1], last.job.policy.kept_at_least_us
        acknowledged = Acknowledged(event.job_id, event.seq, event.ts, is_renewal, kept_us)
        with self._lock:
            self.acknowledgements += 1
            concurrent = [each for each in self._changes if each[0] > begun]
            self._changes = [*concurrent, (self.acknowledgements, acknowledged)]

    def ticked(self, tick: Instant) -> None:
        """Remember a tick that was committed."""
        with self._lock:
            self._tick = max(tick, self._tick or tick)

    def saw(self, epoch: Epoch) -> None:
        """Remember the highest epoch that the store was in."""
        with self._lock:
            self._epoch = max(epoch, self._epoch)

    def expect(self, server: Server | None) -> None:
        """Remember the newest server: servers behind it are not used."""
        with self._lock:
            self._lead_to(server)

    def _lead_to(self, server: Server | None) -> None:
        self._server, self.timeline = server, None if server is None else server.timeline

    def remembered(self) -> Remembered:
        """A consistent copy of all that is remembered."""
        with self._lock:
            return Remembered(
                changes=tuple([change for _, change in self._changes]),
                tick=self._tick,
                epoch=self._epoch,
                server=self._server,
            )

    def checked(self, result: "Checked") -> None:
        """Update what is remembered after the check of a server. Changes that the server has lost
        are dropped: the epoch was raised because of them."""
        asked, found = result.asked, result.found
        with self._lock:
            self._epoch = max(result.epoch, self._epoch)
            if (found.server.timeline or 0) >= highest_timeline(self._server, found.server):
                self._lead_to(found.server)
            if result.ruling.missing is not None:
                self._changes = [each for each in self._changes if each[1] not in asked.changes]
                if self._tick == asked.tick:
                    self._tick = found.tick


class Checked(msgspec.Struct, frozen=True):
    """What a server was checked for, what it has, what follows, and the epoch it is in now."""

    asked: Remembered
    found: ServerFacts
    ruling: Ruling
    epoch: Epoch


def check_server(
    tx: Transaction,
    query: MakeQuery,
    asked: Remembered,
    *,
    epoch_lock: Sequence[Query],
    accepts_restored: bool,
) -> Checked:
    """Check that a server has everything that is remembered, and raise the epoch if something is
    missing. Raises an error for a server that must not be used. The caller commits."""
    found, epoch = _find(tx, query, asked)
    ruling = judge(asked, found)
    if ruling.refusal is ServerRefusal.BEHIND:
        newest = highest_timeline(asked.server, found.recorded)
        raise ServerBehind(found=found.server.timeline or 0, newest=newest)
    if ruling.refusal is ServerRefusal.RESTORED and not accepts_restored:
        raise StoreRestored(
            found=found.server.system_identifier, recorded=found.recorded.system_identifier
        )
    if ruling.has_new_timeline or ruling.missing is not None:
        # The lock first: writes that started in the old epoch end before it is raised.
        *_, raised = tx.fetch(
            *epoch_lock,
            query("note_timeline", timeline=found.server.timeline),
            query("raise_epoch_to", epoch=ruling.epoch),
        )
        epoch = max([epoch, *[Epoch(each) for (each,) in raised]])
    return Checked(asked, found, ruling, epoch)


def log_check(result: Checked) -> None:
    """Log what a failover did. [OB20]"""
    asked, found, ruling = result.asked, result.found, result.ruling
    if ruling.missing is not None:
        _log.error(
            "acknowledged work was lost: %s is missing on timeline %s; the epoch is %d now, and"
            " every lease from before is lost",
            ruling.missing,
            found.server.timeline,
            result.epoch,
        )
    elif asked.server is not None and asked.server != found.server:
        _log.warning(
            "another server took over, on timeline %s; nothing that was acknowledged to"
            " this process is missing",
            found.server.timeline,
        )


def _find(tx: Transaction, query: MakeQuery, asked: Remembered) -> tuple[ServerFacts, Epoch]:
    [state], kept = tx.fetch(
        query("server_state"),
        query(
            "acknowledged_changes",
            ids=texts([change.job_id for change in asked.changes]),
            seqs=integers([change.seq for change in asked.changes]),
        ),
    )
    identifier, timeline, recorded_identifier, recorded_timeline, now, epoch, tick = state
    found = ServerFacts(
        server=Server(identifier, timeline),
        recorded=Server(recorded_identifier, recorded_timeline),
        now=Instant(now),
        tick=tick,
        kept={(JobId(job_id), seq): StoredChange(ts, rev) for job_id, seq, ts, rev in kept},
    )
    return found, Epoch(epoch)
