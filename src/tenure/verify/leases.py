"""Leases and budgets of one job: who held it when, until when, and what each lost attempt cost.

One function per invariant. `between_jobs` checks that jobs share no lease.
"""

from tenure.core.attempt_end import MAX_OUTAGE_CREDITS
from tenure.core.events import Event
from tenure.core.ids import LeaseId, epoch_of, short_lease
from tenure.core.policy import Policy
from tenure.core.vocabulary import ATTEMPT_ENDS, EventCause, EventType, counted
from tenure.ports import JobHistory
from tenure.verify.checking import (
    EXTENDING,
    LoggedAttempt,
    Problems,
    attempts_of,
    lease_ends,
    policy_of,
    rev_of,
)


def one_live_lease(record: JobHistory) -> Problems:
    """One live lease if claimed or running, none otherwise. [I9]"""
    live = [attempt for attempt in attempts_of(record.events) if attempt.end is None]
    for attempt in live[1:]:
        what = (
            f"lease {short_lease(attempt.lease_id)} was granted "
            f"while {short_lease(live[0].lease_id)} was live"
        )
        yield attempt.claimed.seq, what
    if record.job is None:
        return
    job = record.job
    of_log = live[-1].lease_id if live else None
    if job.lease_id != of_log:
        what = (
            f"the row's lease is {short_lease(job.lease_id)}, "
            f"the log's live lease is {short_lease(of_log)}"
        )
        yield rev_of(record), what
    if (job.lease_id is not None) != job.status.is_leased:
        yield rev_of(record), f"{job.status} with{'out' if job.lease_id is None else ''} a lease"


def leases_are_disjoint(record: JobHistory) -> Problems:
    """Lease intervals are disjoint, and nothing happens under a lease once it has ended. [I10]"""
    policy = policy_of(record)
    known: set[str] = set()
    before: LoggedAttempt | None = None
    for attempt in attempts_of(record.events):
        lease_id = attempt.lease_id
        if lease_id is None:
            yield attempt.claimed.seq, "claimed without a lease"
        elif lease_id in known:
            yield attempt.claimed.seq, f"lease {short_lease(lease_id)} is granted again"
        if before is not None and (before.end is None or attempt.claimed.ts < before.end.ts):
            what = f"the lease begins before lease {short_lease(before.lease_id)} has ended"
            yield attempt.claimed.seq, what
        if policy is not None:
            yield from _events_within(record, attempt, policy)
        known.add(lease_id or "")
        before = attempt
    yield from _events_under_no_lease(record)


def _events_within(record: JobHistory, attempt: LoggedAttempt, policy: Policy) -> Problems:
    ts = attempt.claimed.ts
    for event, end in lease_ends(attempt, policy):
        if event.lease_id != attempt.lease_id:
            what = (
                f"{event.type} under lease {short_lease(event.lease_id)} "
                f"while {short_lease(attempt.lease_id)} is live"
            )
            yield event.seq, what
        if event.ts < ts:
            yield event.seq, f"{event.type} is dated before its predecessor"
        if _needs_authority(event) and event.ts >= end:
            yield event.seq, f"{event.type} is dated {event.ts}, its lease ended at {end}"
        ts = event.ts


def _needs_authority(event: Event) -> bool:
    """Whether only the holder of a live lease may cause this event.

    The sweeper, a cancel and a dead letter may end an attempt after its lease has ended; a soft
    cancel is a request to the owner and needs no lease.
    """
    if event.type in ATTEMPT_ENDS:
        return event.is_by_worker
    return event.type in EXTENDING


def _events_under_no_lease(record: JobHistory) -> Problems:
    is_open = False
    for event in record.events:
        if event.type is EventType.CLAIMED:
            is_open = True
        elif not is_open and event.lease_id is not None:
            what = f"{event.type} under lease {short_lease(event.lease_id)}, which is not live"
            yield event.seq, what
        if event.type in ATTEMPT_ENDS:
            is_open = False


def expiries_are_bounded(record: JobHistory) -> Problems:
    """Within an attempt the expiry never decreases nor exceeds the last renewal + ttl. [I11]"""
    policy = policy_of(record)
    if policy is None:
        return
    for attempt in attempts_of(record.events):
        renewed_at, expires_at, seq = attempt.claimed.ts, 0, attempt.claimed.seq - 1
        for event in attempt.events:
            if event.type in EXTENDING or event.seq > seq + 1:
                renewed_at = event.ts  # pruned renewals were made at this time at the latest
            seq = event.seq
            if event.lease_expires_at is None:
                yield seq, f"{event.type} under a lease without an expiry"
                continue
            if event.lease_expires_at < expires_at:
                yield seq, f"the expiry falls from {expires_at} to {event.lease_expires_at}"
            if event.lease_expires_at > renewed_at + policy.lease_us:
                yield seq, f"the expiry {event.lease_expires_at} exceeds {renewed_at} + the ttl"
            expires_at = event.lease_expires_at


_COSTS_A_FAILURE = frozenset(
    {
        EventCause.ATTEMPT_FAILED,
        EventCause.LEASE_EXPIRED,
        EventCause.TIMEOUT,
        EventCause.START_TIMEOUT,
    }
)
_TIME_OUTS = frozenset({EventCause.TIMEOUT, EventCause.START_TIMEOUT})
_COSTS_NOTHING = frozenset({EventCause.SNOOZED, EventCause.UNDELIVERED, EventCause.OPERATOR})


def budget_is_kept(record: JobHistory) -> Problems:
    """`failures` stays within `max_attempts`. Every attempt that did not end its job cost a
    failure, was released, excused by an outage or a new epoch, or ended by an operator. [I39]"""
    policy = policy_of(record)
    if policy is None:
        return
    spent = (0, 0, 0)
    excused: LeaseId | None = None  # the lease that ended free although all credits were used
    for event in record.events:
        if event.type is EventType.CLAIMED and excused is not None:
            if event.lease_id is not None and epoch_of(event.lease_id) <= epoch_of(excused):
                what = f"lease {short_lease(excused)} cost nothing, without a credit or a new epoch"
                yield event.seq, what
            excused = None
        if event.type is EventType.CLAIMED and spent[0] >= policy.max_attempts:
            yield event.seq, f"granted after {counted(spent[0], 'failure')}"
        stated = _stated(event, spent)
        allowed = _allowed(event, spent, policy)
        if stated not in allowed:
            what = f"{event.type} ({event.cause}) after {_budget(spent)} states {_budget(stated)}"
            yield event.seq, what
        if stated[0] > policy.max_attempts or stated[2] > MAX_OUTAGE_CREDITS:
            yield event.seq, f"over the budget of {policy.max_attempts}: {_budget(stated)}"
        if event.cause is EventCause.OUTAGE and stated == spent:
            excused = event.lease_id
        spent = stated
    job = record.job
    if job is not None and (job.failures, job.releases, job.outage_credits) != spent:
        of_row = _budget((job.failures, job.releases, job.outage_credits))
        yield rev_of(record), f"the row has {of_row}, the log adds up to {_budget(spent)}"


_Spent = tuple[int, int, int]  # failures, releases, outage credits


def _budget(spent: _Spent) -> str:
    nouns = ("failure", "release", "outage credit")
    return ", ".join(counted(count, noun) for count, noun in zip(spent, nouns, strict=True))


def _stated(event: Event, spent: _Spent) -> _Spent:
    facts = event.payload
    return (
        spent[0] if facts.failures is None else facts.failures,
        spent[1] if facts.releases is None else facts.releases,
        spent[2] if facts.outage_credits is None else facts.outage_credits,
    )


def _allowed(event: Event, spent: _Spent, policy: Policy) -> tuple[_Spent, ...]:
    """What the budget may be after `event`."""
    failures, releases, credits = spent
    if event.type in (EventType.FAILED, EventType.DEAD_LETTERED):
        return spent, (failures + 1, releases, credits)
    if event.type is not EventType.STALLED:
        return (spent,)
    if event.cause in _COSTS_A_FAILURE:
        costly, excused = (failures + 1, releases, credits), (failures, releases, credits + 1)
        # A time-out that a jump of the clock caused is excused. [O12]
        return (costly, excused) if event.cause in _TIME_OUTS else (costly,)
    if event.cause is EventCause.OUTAGE:
        # With all credits used, only a new epoch excuses: see `excused`. [A7]
        return ((failures, releases, min(credits + 1, MAX_OUTAGE_CREDITS)),)
    if event.cause is EventCause.RELEASED:
        costs = releases + 1 > policy.max_releases
        return ((failures + costs, releases + 1, credits),)
    return (spent,) if event.cause in _COSTS_NOTHING else ()
