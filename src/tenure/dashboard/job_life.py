"""The life of a job as lanes in time: one lane for each attempt, from its wait to its end.

Pure: from events and observations to values. It has no geometry (see `life_picture`), and it
decides nothing: a phase follows from the status that the log gives the job, and a lease is over
when the log or the clock says so. A log without its beginning gives the lanes that it still has.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from tenure.core.events import Event
from tenure.core.ids import LeaseId, WorkerId
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.verdicts import Observation
from tenure.core.vocabulary import (
    ATTEMPT_ENDS,
    RENEWALS,
    EventCause,
    EventType,
    JobStatus,
    ObservationType,
)
from tenure.dashboard.event_words import has_checkpoint, what_happened, why_it_happened

MAX_LANES = 24
"""The newest are shown; hundreds of lanes would not be readable."""


class JobPhase(StrEnum):
    """What a job does for a while; also the class of its bar."""

    WAITING = "waiting"  # for its parents
    DELAYED = "delayed"  # until its time has come
    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    STOPPING = "stopping"  # runs although its cancellation was requested
    SILENT = "silent"  # its lease is over, which is not recorded yet
    HELD = "held"
    LATE = "late"  # the attempt is over, and its worker does not know it yet
    AHEAD = "ahead"  # what remains of a lease or a delay


BUSY = frozenset({JobPhase.CLAIMED, JobPhase.RUNNING, JobPhase.STOPPING, JobPhase.SILENT})
LEASED = frozenset({JobPhase.CLAIMED, JobPhase.RUNNING, JobPhase.STOPPING})


class Sign(StrEnum):
    """What happened at an instant; also the name of its glyph. Of several at one place the first of
    this list is drawn."""

    REFUSED = "refused"
    DEAD_LETTERED = "dead_lettered"
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    LOST = "lost"
    RETRIED = "retried"
    RELEASED = "released"
    CANCEL_REQUESTED = "cancel_requested"
    COMPENSATED = "compensated"
    ENQUEUED = "enqueued"
    STARTED = "started"
    CHECKPOINT = "checkpoint"
    PROGRESS = "progress"
    OTHER = "other"
    READY = "ready"
    CLAIMED = "claimed"


_SIGN_OF = {
    **{each: Sign(each.value) for each in EventType if each.value in set(Sign)},
    EventType.REQUEUED: Sign.READY,
}
_RELEASES = frozenset({EventCause.RELEASED, EventCause.SNOOZED, EventCause.UNDELIVERED})


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A phase from one instant to another; never empty."""

    phase: JobPhase
    start: Instant
    end: Instant


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened at an instant, with who and why."""

    sign: Sign
    at: Instant
    what: str
    who: str
    why: str


class AttemptLane(msgspec.Struct, kw_only=True):
    """One attempt with the wait before it; `attempt` is 0 before the job is claimed."""

    attempt: int = 0
    owner: WorkerId | None = None
    lease_id: LeaseId | None = None
    claimed_at: Instant | None = None
    lease_until: Instant | None = None
    spans: list[Span] = []
    marks: list[Mark] = []
    renewals: list[Instant] = []
    renewal_count: int = 0
    """Also counts renewals that were pruned from the log."""
    end: Mark | None = None
    """How the attempt, or the job's wait, ended; None while it lasts."""

    @property
    def lease(self) -> Span | None:
        """From the claim to the end of the last phase under the lease."""
        ends = [span.end for span in self.spans if span.phase in LEASED]
        if self.claimed_at is None or not ends or max(ends) <= self.claimed_at:
            return None
        return Span(phase=JobPhase.CLAIMED, start=self.claimed_at, end=max(ends))

    def add(self, phase: JobPhase, start: Instant, end: Instant) -> None:
        """Add a phase, if it took any time. A renewal does not start another one."""
        last = self.spans[-1] if self.spans else None
        if last is not None and last.phase is phase and last.end == start:
            start = self.spans.pop().start
        if start < end:
            self.spans.append(Span(phase=phase, start=start, end=end))

    def add_leased(self, phase: JobPhase, start: Instant, end: Instant) -> None:
        """Add a phase under the lease; what is after its end is silence."""
        until = end if self.lease_until is None else max(start, min(end, self.lease_until))
        self.add(phase, start, until)
        self.add(JobPhase.SILENT, until, end)


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """The newest lanes of a job. `now` is None if the job has ended."""

    start: Instant
    end: Instant
    now: Instant | None
    lanes: tuple[AttemptLane, ...]
    left_out: int


class _LogReader:
    """Reads a log from its first event to its last."""

    def __init__(self) -> None:
        self.lanes = [AttemptLane()]
        self.status: JobStatus | None = None
        self.since = Instant(0)
        self.run_at: Instant | None = None
        self.is_stopping = False

    @property
    def lane(self) -> AttemptLane:
        return self.lanes[-1]

    def read(self, event: Event) -> None:
        """Take the next event; its time never goes back. [E13]"""
        if event.type is not EventType.CLAIMED:
            # Before its phase is closed: the end of an attempt knows its lease's expiry also if
            # the renewals were pruned.
            self.lane.lease_until = event.lease_expires_at or self.lane.lease_until
        self.close_phase(event.ts)
        if self._begins_lane(event):
            self.lanes.append(AttemptLane())
            self.is_stopping = False
        lane = self.lane
        if event.type in RENEWALS:
            lane.renewals.append(event.ts)
            lane.renewal_count += 1
        if _is_of_attempt(event):
            lane.attempt = event.attempt
            lane.owner = lane.owner or event.owner
            lane.lease_id = lane.lease_id or event.lease_id
            lane.lease_until = event.lease_expires_at or lane.lease_until
            lane.renewal_count = event.payload.renewals or lane.renewal_count
        if event.type is EventType.CLAIMED:
            lane.claimed_at = event.ts
        if event.type is EventType.CANCEL_REQUESTED:
            self.is_stopping = True
        self.run_at = event.payload.run_at or self.run_at
        self.status, self.since = event.to_status, event.ts
        self._add_mark(event)

    def _begins_lane(self, event: Event) -> bool:
        """A wait starts one, and so does a claim without a wait before it: a reclaim. [T22]"""
        is_used = self.lane.attempt > 0
        waits = event.to_status is JobStatus.QUEUED and event.type is EventType.REQUEUED
        return is_used and (waits or event.type is EventType.CLAIMED)

    def _add_mark(self, event: Event) -> None:
        sign = _sign_of(event)
        if sign is None:
            return
        mark = _mark(sign, event)
        self.lane.marks.append(mark)
        if event.type in ATTEMPT_ENDS:
            self.lane.end = mark

    def close_phase(self, end: Instant) -> None:
        """The job was in its status until then."""
        lane, since = self.lane, self.since
        match self.status:
            case JobStatus.WAITING:
                lane.add(JobPhase.WAITING, since, end)
            case JobStatus.QUEUED:
                ready_at = max(since, min(end, self.run_at or since))
                lane.add(JobPhase.DELAYED, since, Instant(ready_at))
                lane.add(JobPhase.QUEUED, Instant(ready_at), end)
            case JobStatus.CLAIMED:
                lane.add_leased(JobPhase.CLAIMED, since, end)
            case JobStatus.RUNNING:
                phase = JobPhase.STOPPING if self.is_stopping else JobPhase.RUNNING
                lane.add_leased(phase, since, end)
            case JobStatus.STALLED:
                lane.add(JobPhase.HELD, since, end)
            case _:
                pass  # before the first event, after the last, or a status of a newer version
        self.since = end

    def observe(self, seen: Observation) -> None:
        """Put an observation into the lane of its lease, or else into the last one."""
        of_lease = [lane for lane in self.lanes if seen.lease_id and lane.lease_id == seen.lease_id]
        lane = of_lease[-1] if of_lease else self.lane
        is_late = seen.type is ObservationType.RESULT_DISCARDED
        if is_late and lane.spans:
            lane.add(JobPhase.LATE, max(span.end for span in lane.spans), seen.ts)
        compensated = seen.type is ObservationType.COMPENSATED
        lane.marks.append(_mark(Sign.COMPENSATED if compensated else Sign.REFUSED, seen))

    def bound_lease(self, job: Job) -> None:
        """A time-out or the grace of a cancellation can end a lease before its expiry. [L9]"""
        lane = self.lane
        if lane.lease_until is not None and job.due_at is not None and job.attempt == lane.attempt:
            lane.lease_until = min(lane.lease_until, job.due_at)

    def look_ahead(self, now: Instant) -> None:
        """What remains of a lease or of a delay."""
        lane = self.lane
        if self.status in (JobStatus.CLAIMED, JobStatus.RUNNING) and lane.lease_until:
            lane.add(JobPhase.AHEAD, now, lane.lease_until)
        elif self.status is JobStatus.QUEUED and self.run_at is not None:
            lane.add(JobPhase.AHEAD, now, self.run_at)


_BEFORE_A_CLAIM = frozenset({None, JobStatus.WAITING, JobStatus.QUEUED})


def _mark(sign: Sign, of: Event | Observation) -> Mark:
    what, why = what_happened(of), why_it_happened(of)
    return Mark(sign=sign, at=of.ts, what=what, who=of.actor, why=why)


def _is_of_attempt(event: Event) -> bool:
    """Whether an attempt is what the event is about; a requeue is about the next one."""
    is_after_claim = event.from_status not in _BEFORE_A_CLAIM or event.to_status.is_leased
    return is_after_claim and event.type is not EventType.REQUEUED


def _sign_of(event: Event) -> Sign | None:
    """None: a renewal that says nothing more has a tick of its own on the lease."""
    if event.type in RENEWALS:
        if has_checkpoint(event):
            return Sign.CHECKPOINT
        return None if event.payload.progress is None else Sign.PROGRESS
    if event.type is EventType.STALLED:
        if event.cause is EventCause.ATTEMPT_FAILED:
            return Sign.RETRIED
        return Sign.RELEASED if event.cause in _RELEASES else Sign.LOST
    return _SIGN_OF.get(event.type, Sign.OTHER)


def life_of(
    job: Job, events: Sequence[Event], observations: Sequence[Observation], *, now: Instant
) -> Life:
    """The life of a job by its log, until `now` if the job has not ended."""
    reader = _LogReader()
    for event in events:
        reader.read(event)
    ended = reader.status is None or reader.status.is_terminal
    if not ended:
        now = Instant(max(now, reader.since))
        reader.bound_lease(job)
        reader.close_phase(now)
    for seen in observations:
        reader.observe(seen)
    if not ended:
        reader.look_ahead(now)
    lanes = tuple(reader.lanes[-MAX_LANES:])
    shown = sum(lane.attempt > 0 for lane in lanes)
    attempts = max([job.attempt, *(lane.attempt for lane in lanes)])
    instants = [mark.at for lane in lanes for mark in lane.marks]
    instants += [span.start for lane in lanes for span in lane.spans]
    start = min(instants, default=job.enqueued_at)
    ends = [span.end for lane in lanes for span in lane.spans]
    return Life(
        start=start,
        end=max([start, *instants, *ends]),
        now=None if ended else now,
        lanes=lanes,
        left_out=attempts - shown,
    )
