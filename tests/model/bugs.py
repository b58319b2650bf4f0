"""Eight bugs a lifecycle can have, each seeded into the real core by a few lines around `decide`.

They exist to show that the checker sees: a checker that was never seen to fail proves nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import msgspec
from msgspec.structs import replace

from tenure.core import lifecycle
from tenure.core.commands import Cancel, Claim, Command, Complete, Fail, Release, Start, Sweep
from tenure.core.instants import Instant
from tenure.core.job import LEASE_FIELDS, Job
from tenure.core.outcomes import Applied, Change, DecisionContext, Outcome, Refused, Replayed
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import CancelMode, EventType, JobStatus, VerdictKind

Decide = Callable[[Command, DecisionContext], Outcome]
Bug = Callable[[Decide, Job, Command, DecisionContext], Outcome]


class Seed(msgspec.Struct, frozen=True):
    """A bug, the kind of violation it must be reported as, and the sentence it breaks."""

    name: str
    bug: Bug
    kind: str
    broken: str


@contextmanager
def seeded(bug: Bug) -> Iterator[None]:
    """While it lasts, the core has the bug, for its claim planner too."""
    decide = lifecycle.decide

    def buggy(command: Command, at: DecisionContext) -> Outcome:
        if at.job is None:
            return decide(command, at)
        return bug(decide, at.job, command, at)

    with (
        patch("tenure.core.lifecycle.decide", buggy),
        patch("tenure.core.claims.decide", buggy),
    ):
        yield


def _changed(outcome: Applied, change: Change) -> Applied:
    return replace(outcome, change=change)


def _renumbered(change: Change, *, without: EventType) -> Change:
    """The change with one event left out and the log and the row made to look untouched by it."""
    kept = [event for event in change.events if event.type is not without]
    first, rev = change.events[0].from_status, change.expected_rev
    sources = [first, *(event.to_status for event in kept)]
    events = tuple(
        replace(event, seq=rev + number, from_status=source)
        for number, (event, source) in enumerate(zip(kept, sources, strict=False), start=1)
    )
    return replace(change, events=events, job=replace(change.job, rev=rev + len(events)))


def late_accept(decide: Decide, job: Job, command: Command, at: DecisionContext) -> Outcome:
    """A report is judged by whose lease it is, not by the time."""
    is_report = isinstance(command, Complete | Fail | Release)
    if is_report and job.due_at is not None and at.now >= job.due_at:
        at = replace(at, now=Instant(job.due_at - 1))
    return decide(command, at)


def requeue_of_a_cancelled_job(
    decide: Decide, job: Job, command: Command, at: DecisionContext
) -> Outcome:
    """The sweep forgets that somebody asked the job to stop."""
    if isinstance(command, Sweep) and at.now >= (job.lease_expires_at or at.now + 1):
        job = replace(job, cancel_requested_at=None, cancel_deadline=None)
    return decide(command, replace(at, job=job))


def lease_survives_a_hard_cancel(
    decide: Decide, job: Job, command: Command, at: DecisionContext
) -> Outcome:
    """The job ends, its lease is not taken back."""
    outcome = decide(command, at)
    is_hard = isinstance(command, Cancel) and command.mode is CancelMode.HARD
    if not is_hard or not isinstance(outcome, Applied) or job.lease_id is None:
        return outcome
    lease = {name: getattr(job, name) for name in LEASE_FIELDS}
    return _changed(outcome, replace(outcome.change, job=replace(outcome.change.job, **lease)))


def running_to_queued(decide: Decide, job: Job, command: Command, at: DecisionContext) -> Outcome:
    """A failed attempt goes straight back to the queue, without passing `stalled`."""
    outcome = decide(command, at)
    if not isinstance(outcome, Applied) or job.status is not JobStatus.RUNNING:
        return outcome
    if outcome.change.job.status is not JobStatus.QUEUED:
        return outcome
    return _changed(outcome, _renumbered(outcome.change, without=EventType.STALLED))


def missing_implicit_start(
    decide: Decide, job: Job, command: Command, at: DecisionContext
) -> Outcome:
    """A report without a start leaves none in the log."""
    outcome = decide(command, at)
    if not isinstance(outcome, Applied) or not isinstance(command, Complete | Fail):
        return outcome
    return _changed(outcome, _renumbered(outcome.change, without=EventType.STARTED))


def attempt_not_incremented(
    decide: Decide, job: Job, command: Command, at: DecisionContext
) -> Outcome:
    """A second grant counts as the first."""
    outcome = decide(command, at)
    if not isinstance(outcome, Applied) or not isinstance(command, Claim) or not job.attempt:
        return outcome
    return _changed(
        outcome, replace(outcome.change, job=replace(outcome.change.job, attempt=job.attempt))
    )


def exhaustion_ignored(decide: Decide, job: Job, command: Command, at: DecisionContext) -> Outcome:
    """Retries go on when the budget is spent."""
    endless = replace(job, policy=replace(job.policy, max_attempts=job.policy.max_attempts + 9))
    outcome = decide(command, replace(at, job=endless))
    if not isinstance(outcome, Applied):
        return outcome
    row = replace(outcome.change.job, policy=job.policy)
    return _changed(outcome, replace(outcome.change, job=row))


def start_replayed_on_a_dead_lease(
    decide: Decide, job: Job, command: Command, at: DecisionContext
) -> Outcome:
    """A repeated start gets its recorded answer, as if authority were a fact."""
    outcome = decide(command, at)
    if not isinstance(command, Start) or not isinstance(outcome, Refused) or at.history is None:
        return outcome
    for event in at.history:
        was_asked = event.type is EventType.STARTED and event.request_id == command.request_id
        if was_asked and event.lease_id == command.lease_id:
            return Replayed(answer=Verdict(kind=VerdictKind.OK, job_status=JobStatus.RUNNING))
    return outcome


SEEDS = (
    Seed("late accept", late_accept, "late-accept", "R10"),
    Seed("requeue of a cancelled job", requeue_of_a_cancelled_job, "cancel", "I15"),
    Seed("a lease survives a hard cancel", lease_survives_a_hard_cancel, "hard-cancel", "T20"),
    Seed("running to queued", running_to_queued, "edge", "N1"),
    Seed("missing implicit start", missing_implicit_start, "implicit-start", "T6"),
    Seed("attempt not incremented", attempt_not_incremented, "attempt", "A1"),
    Seed("exhaustion ignored", exhaustion_ignored, "exhaustion", "A13"),
    Seed("start replayed on a dead lease", start_replayed_on_a_dead_lease, "dead-start", "R20"),
)
