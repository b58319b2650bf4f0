"""Checks between jobs: what several must not share, and how many of them may run or start.

What the walk over the records has to remember is kept in temporary SQLite databases, so that there
may be any number of jobs. A page of the store may be older than the next one: what seems wrong is
read again before it is reported, and times that the store's clock showed twice prove nothing.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TypeVar

from tenure.core.concurrency import concurrency_limit_of
from tenure.core.ids import JobId, Namespace, short_lease
from tenure.core.instants import NEVER, Instant, seconds
from tenure.core.job import Job
from tenure.core.rates import GrantMade, Meter, Rate, RateInForce
from tenure.core.vocabulary import EventCause
from tenure.ports import DedupeKey, JobHistory, RecordSource
from tenure.verify.checking import JobProblems, attempts_of, temporary_database

_K = TypeVar("_K")


# --- the clock

STEP_BACK_US = seconds(1)
"""An event that is dated this much before one that was written earlier shows that the clock was set
back. Less can have other reasons: where several write at a time, their events are in the order in
which their transactions began."""

SHORT_STEP_BACK_US = seconds(0.02)
"""The same where one writes at a time: events are dated by an estimate of the clock."""

EVENTS_READ = 1000


class ClockSteps:
    """The times that the store's clock showed twice, because it was set back, as far as the order
    of the log shows it. The log is read at the first question: that takes a while."""

    def __init__(self, store: RecordSource) -> None:
        self._store = store
        self._found: list[tuple[int, int]] | None = None

    def had_twice(self, since: int, until: int, *, later_us: int = 0) -> bool:
        """Whether such a time, or one up to `later_us` after it, is between these two."""
        if self._found is None:
            self._found = self._read()
        return any(first <= until and since <= last + later_us for first, last in self._found)

    def _read(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        step_us = SHORT_STEP_BACK_US if self._store.parallelism == 1 else STEP_BACK_US
        latest, after = 0, None
        while events := self._store.events.tail(after=after, limit=EVENTS_READ):
            for ts in (each.event.ts for each in events):
                if ts > latest - step_us:
                    latest = max(latest, ts)
                elif found and found[-1][1] == latest:
                    found[-1] = (min(found[-1][0], ts), latest)
                else:
                    found.append((ts, latest))
            after = events[-1].position
        return found


# --- leases and dedupe keys of live jobs


def leases_are_not_shared(store: RecordSource) -> JobProblems:
    """No two jobs share a live lease. [I9]"""
    for lease_id, one, other in _shared(
        store, store.audit.lease_holders(), lambda job: job.lease_id
    ):
        yield other.id, other.rev, f"lease {short_lease(lease_id)} is also of job {one.id}"


def dedupe_keys_are_not_shared(store: RecordSource) -> JobProblems:
    """At most one live job has a given (namespace, kind, dedupe key). [I17]"""
    for key, one, other in _shared(store, store.audit.live_keys(), _live_key):
        what = f"dedupe key {key.key} of {key.namespace}/{key.kind} is also of job {one.id}"
        yield other.id, other.rev, what


def _live_key(job: Job) -> DedupeKey | None:
    if job.dedupe_key is None or job.status.is_terminal:
        return None
    return DedupeKey(job.namespace, job.kind, job.dedupe_key)


def _shared(
    store: RecordSource, holders: Iterable[tuple[_K, JobId]], value_of: Callable[[Job], object]
) -> Iterator[tuple[_K, Job, Job]]:
    for (key, one), (other_key, other) in pairwise(holders):
        if key == other_key and one != other:
            jobs = store.jobs.load([one, other]).jobs
            both = [jobs[job_id] for job_id in (one, other) if job_id in jobs]
            if len(both) == 2 and all(value_of(job) == key for job in both):
                yield key, both[0], both[1]


# --- dedupe keys that stay taken

_REDRIVES = frozenset({EventCause.REDRIVE, EventCause.RERUN})


class TakenKeys:
    """Which jobs had a dedupe key when, and whether one had it while another one kept it after its
    end. Jobs without a dedupe key cost nothing. [I35]"""

    def __init__(self) -> None:
        self._database = temporary_database(
            "CREATE TABLE keyed (namespace TEXT, kind TEXT, dedupe_key TEXT, enqueued_at INTEGER,"
            " key_free_at INTEGER, job_id TEXT, taken_from TEXT)"
        )
        self.close = self._database.close

    def add(self, record: JobHistory) -> None:
        """Keep from when to when this job had its key."""
        job = record.job
        if job is None or job.dedupe_key is None:
            return
        key_free_at = None if job.unique_for_us is None else job.key_free_at or NEVER
        taken_from = job.origin_id if job.origin_cause in _REDRIVES else None
        key = (job.namespace, job.kind, job.dedupe_key)
        self._database.execute(
            "INSERT INTO keyed VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*key, job.enqueued_at, key_free_at, job.id, taken_from),
        )

    def problems(self, store: RecordSource) -> JobProblems:
        """The jobs that were made while another one kept their key."""
        steps = ClockSteps(store)
        rows = self._database.execute(
            "SELECT namespace, kind, dedupe_key, enqueued_at, key_free_at, job_id, taken_from"
            " FROM keyed ORDER BY namespace, kind, dedupe_key, enqueued_at, job_id"
        )
        for (namespace, kind, key), jobs in groupby(rows, key=itemgetter(0, 1, 2)):
            holders: list[tuple[int, str]] = []
            for *_, enqueued_at, key_free_at, job_id, taken_from in jobs:
                holders = [
                    (until, holder)
                    for until, holder in holders
                    if until > enqueued_at and holder != taken_from
                ]
                if holders and not steps.had_twice(enqueued_at, enqueued_at):
                    others = ", ".join(holder for _, holder in holders)
                    what = f"enqueued with the dedupe key {key} of {namespace}/{kind}, which"
                    yield job_id, 1, f"{what} {others} still had"
                if key_free_at is not None:
                    holders.append((key_free_at, job_id))


# --- concurrency keys

LATEST_END_US = seconds(0.02)
"""The end of an attempt may be dated so much too late: it is decided by an estimate of the store's
clock, which counts on from a reading of the last 30 s by the clock of another machine. If that is
faster by 500 ppm, as much as clocks are corrected by, this is 15 ms. A claim is dated by the
store's clock itself."""

OLDEST_ESTIMATE_US = seconds(30)
"""So long after the clock was set back, ends may be dated by an estimate from before
(`coordinator.outages.OutageWatch`): too late by as much as it was set back."""


class KeyedAttempts:
    """Which attempts of jobs with a concurrency key ran when, and whether too many did at a time.
    Jobs without a key cost nothing; the memory is bounded by the attempts of one key. [I31]

    A store with one writer has its events in the order of their commits: that order shows exactly
    which attempts ran at the same time. Elsewhere the log is in the order in which transactions
    began to write, and only the times of its events are left.
    """

    def __init__(self) -> None:
        self._database = temporary_database(
            "CREATE TABLE attempt (namespace TEXT, kind TEXT, concurrency_key TEXT,"
            " claimed_at INTEGER, began INTEGER, ended INTEGER, job_id TEXT, seq INTEGER,"
            " end_seq INTEGER)"
        )
        self.close = self._database.close
        self._is_empty = True

    def add(self, record: JobHistory) -> None:
        """Keep when the attempts of this job ran."""
        job = record.job
        if job is None or job.concurrency_key is None:
            return
        self._is_empty = False
        key = (job.namespace, job.kind, job.concurrency_key)
        for attempt in attempts_of(record.events):
            began, end = attempt.claimed, attempt.end
            ended = (NEVER, None) if end is None else (end.ts, end.seq)
            self._database.execute(
                "INSERT INTO attempt VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*key, began.ts, began.ts, ended[0], job.id, began.seq, ended[1]),
            )

    def problems(self, store: RecordSource) -> JobProblems:
        """The claims of jobs whose key was at its limit."""
        if self._is_empty:
            return
        if store.parallelism == 1:
            self._use_order_of(store)
            for _, job_id, seq, what in self._suspected(store, tolerance_us=0):
                yield job_id, seq, what
            return
        steps = ClockSteps(store)
        for claimed_at, job_id, seq, what in self._suspected(store, tolerance_us=LATEST_END_US):
            if not steps.had_twice(claimed_at, claimed_at, later_us=OLDEST_ESTIMATE_US):
                yield job_id, seq, what

    def _use_order_of(self, store: RecordSource) -> None:
        """Set when attempts began and ended to the places of these events in the log."""
        self._database.execute("CREATE INDEX attempt_claim ON attempt (job_id, seq)")
        self._database.execute("CREATE INDEX attempt_end ON attempt (job_id, end_seq)")
        place, after = 0, None
        while events := store.events.tail(after=after, limit=EVENTS_READ):
            places = [
                (place + number, each.event.job_id, each.event.seq)
                for number, each in enumerate(events, 1)
            ]
            for change in (
                "UPDATE attempt SET began = ? WHERE job_id = ? AND seq = ?",
                "UPDATE attempt SET ended = ? WHERE job_id = ? AND end_seq = ?",
            ):
                self._database.executemany(change, places)
            place += len(events)
            after = events[-1].position

    def _suspected(
        self, store: RecordSource, *, tolerance_us: int
    ) -> Iterator[tuple[int, JobId, int, str]]:
        """The claims that seem to have been granted past the limit, and when."""
        kinds = cache(
            lambda namespace: {each.kind: each for each in store.settings.kinds(namespace)}
        )
        rows = self._database.execute(
            "SELECT namespace, kind, concurrency_key, claimed_at, began, ended,"
            " job_id, seq FROM attempt"
            " ORDER BY namespace, kind, concurrency_key, began, ended, job_id"
        )
        for (namespace, kind, key), attempts in groupby(rows, key=itemgetter(0, 1, 2)):
            settings = kinds(namespace).get(kind)
            limit = concurrency_limit_of(settings)
            set_at = 0 if settings is None else settings.concurrency_since or 0
            running: list[tuple[int, str]] = []  # a heap: the attempt that ends first comes first
            for *_, claimed_at, began, ended, job_id, seq in attempts:
                while running and running[0][0] <= began + tolerance_us:
                    heapq.heappop(running)
                # A claim of the same microsecond may have been granted before the limit changed.
                if len(running) >= limit and claimed_at > set_at:
                    others = ", ".join(sorted(other for _, other in running))
                    what = (
                        f"claimed with the key {key} of {namespace}/{kind}, whose limit is"
                        f" {limit}, while {others} ran"
                    )
                    yield claimed_at, job_id, seq, what
                heapq.heappush(running, (ended, job_id))


# --- rates

MAX_BUCKETS = 10_000
"""When there are more, the empty ones are removed."""


def rates_are_kept(store: RecordSource) -> JobProblems:
    """No window has more grants than its rate allows. [I30]

    A leaky bucket for each rate, and for each rate key, takes the grants in the order of their
    commits: a grant adds one, time drains it at the rate, and it never holds more than the burst.
    That means that no window of length T has more than burst + rate·T grants. [RL1]
    It starts when the rate was set last, and again where the clock may have been set back.
    """
    rates = {(each.namespace, each.meter): each for each in store.audit.rates_in_force()}
    steps = ClockSteps(store)
    for grant, rate in _suspected_grants(store, rates) if rates else ():
        reaches_back_to = grant.ts - rate.rate.burst * rate.rate.interval_us
        if not steps.had_twice(reaches_back_to, grant.ts):
            key = "" if grant.rate_key is None else f" for the rate key {grant.rate_key}"
            what = (
                f"the grant at {grant.ts} exceeds the rate {rate.rate} with burst"
                f" {rate.rate.burst} of {rate.meter.scope.value}"
                f" {grant.namespace}/{rate.meter.name}{key}"
            )
            yield grant.job_id, grant.seq, what


def _suspected_grants(
    store: RecordSource, rates: Mapping[tuple[Namespace, Meter], RateInForce]
) -> Iterator[tuple[GrantMade, RateInForce]]:
    """The grants that seem to exceed a rate."""
    buckets: dict[tuple[Namespace, Meter], _Bucket] = {}
    for grant in store.audit.grants(since=min(each.since for each in rates.values())):
        if len(buckets) > MAX_BUCKETS:
            buckets = {key: each for key, each in buckets.items() if not each.is_empty(grant.ts)}
        for meter in grant.meters:
            rate = rates.get((grant.namespace, Meter(meter.scope, meter.name)))
            # Not at the instant at which it was set: such a grant may have come before that.
            if rate is None or grant.ts <= rate.since:
                continue
            bucket = buckets.setdefault((grant.namespace, meter), _Bucket(rate.rate))
            if grant.may_be_later_than_the_clock:
                bucket.empty(grant.ts)
            elif bucket.overflows(grant.ts):
                yield grant, rate


class _Bucket:
    """What is left of the grants so far, in microseconds times grants: integers are exact."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._level = 0
        self._ts = Instant(0)

    def is_empty(self, ts: Instant) -> bool:
        """Whether nothing is left by then."""
        return self._level <= (ts - self._ts) * self._rate.grants

    def empty(self, ts: Instant) -> None:
        """The clock may have been set back: windows with the step are not checked."""
        self._level, self._ts = 0, ts

    def overflows(self, ts: Instant) -> bool:
        """Add a grant. Returns whether it is one too many; such a one is left out."""
        if ts < self._ts:
            self.empty(ts)
        self._level = max(0, self._level - (ts - self._ts) * self._rate.grants)
        self._ts = ts
        if self._level + self._rate.period_us > self._rate.burst * self._rate.period_us:
            return True
        self._level += self._rate.period_us
        return False
