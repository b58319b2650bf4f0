"""Failover: decides whether a database server still has everything that was acknowledged.

After a connection was lost, the next one may lead to another server. The store compares what this
process remembers with what that server has; this module decides whether the server may be used, and
whether the epoch must be raised because something is missing. Pure, and without SQL.

A database raises its "timeline" number whenever a standby takes over. Its "system identifier" is
the same on all its standbys, but different on a server that was restored from a dump.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto

import msgspec

from tenure.core.ids import Epoch, JobId
from tenure.core.instants import Duration, Instant, seconds

SETTLING = seconds(5)
"""For how long after a standby took over no job is granted and no lease expires: in this time every
connected process compares what it remembers, and raises the epoch if something is missing. [A10]"""


def is_settling(since: Instant | None, now: Instant) -> bool:
    """Whether a standby took over so recently that a loss may not have been noticed yet. If the
    clock was set back to before that, the answer is no: otherwise nothing would be granted for as
    long as the step was wide."""
    return since is not None and since <= now < since + SETTLING


class Server(msgspec.Struct, frozen=True):
    """Which server answers. A standby has no timeline of its own."""

    system_identifier: int
    timeline: int | None


class Acknowledged(msgspec.Struct, frozen=True):
    """A change that the store acknowledged as durable: the event that it ended with, and for how
    long retention cannot delete the job."""

    job_id: JobId
    seq: int
    ts: Instant
    is_renewal: bool
    kept_us: Duration


class StoredChange(msgspec.Struct, frozen=True):
    """What a server has of an acknowledged change: when the event with its seq was written, and the
    job's rev; None for what is not there."""

    ts: Instant | None = None
    rev: int | None = None


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What a process knows from before it lost a connection."""

    changes: tuple[Acknowledged, ...] = ()
    tick: Instant | None = None
    epoch: Epoch = Epoch(0)
    """The highest that it knows of."""
    server: Server | None = None


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the server returns on a new connection. `recorded` is what the store itself knows of the
    servers it was on: the system identifier, and the highest timeline."""

    server: Server
    recorded: Server
    now: Instant
    tick: Instant | None
    kept: Mapping[tuple[JobId, int], StoredChange]
    """By job and seq."""


class ServerRefusal(Enum):
    """Why a server must not be used."""

    BEHIND = auto()
    RESTORED = auto()


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """What follows. `missing` describes what was acknowledged and is missing; if something is, the
    epoch must become at least `epoch`."""

    refusal: ServerRefusal | None = None
    has_new_timeline: bool = False
    missing: str | None = None
    epoch: Epoch = Epoch(0)


def judge(remembered: Remembered, found: ServerFacts) -> Ruling:
    """Whether the server may be used, and whether acknowledged work was lost. [A8] [A11] [A12]"""
    if found.server.system_identifier != found.recorded.system_identifier:
        return Ruling(refusal=ServerRefusal.RESTORED)
    timeline = found.server.timeline
    if timeline is None:
        return Ruling()  # a standby that was asked for: it takes no writes, and lags
    if timeline < highest_timeline(remembered.server, found.recorded):
        return Ruling(refusal=ServerRefusal.BEHIND)
    missing = _missing(remembered, found)
    return Ruling(
        has_new_timeline=timeline > (found.recorded.timeline or 0),
        missing=missing,
        # One more than this process knows of, not one more than the server has: then two processes
        # that lost something in the same failover raise it only once, and if the failover lost a
        # raise of the epoch, this one replaces it. [A9]
        epoch=Epoch(remembered.epoch + 1) if missing else Epoch(0),
    )


def highest_timeline(known: Server | None, other: Server) -> int:
    """The highest timeline that is known of the other's system."""
    if known is None or known.system_identifier != other.system_identifier:
        return other.timeline or 0
    return max(known.timeline or 0, other.timeline or 0)


def newest(servers: Sequence[Server]) -> Server | None:
    """The one with the highest timeline; all of them are of one system."""
    return max(servers, key=lambda server: server.timeline or 0, default=None)


def _missing(remembered: Remembered, found: ServerFacts) -> str | None:
    """The first thing that was acknowledged and is missing. The server's log is sequential: if it
    has the last change of every connection, it has all earlier ones. [A8]"""
    for change in remembered.changes:
        if _is_lost(change, found.kept.get((change.job_id, change.seq), StoredChange()), found.now):
            return f"change {change.seq} of job {change.job_id}"
    if remembered.tick is not None and (found.tick is None or found.tick < remembered.tick):
        return f"the sweeper's tick at {remembered.tick}"
    return None


def _is_lost(change: Acknowledged, kept: StoredChange, now: Instant) -> bool:
    """Whether a change is missing that retention cannot have deleted."""
    if kept.ts is not None:
        return kept.ts != change.ts  # another event has this seq: the change was made again
    if kept.rev is None:
        return now - change.ts <= change.kept_us
    return kept.rev < change.seq or not change.is_renewal
