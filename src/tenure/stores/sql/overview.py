"""What a SQL store gathers for an overview.

Every number comes from an index and stops at a limit, so that looking at a store costs the same
however many jobs it has. Counts by kind jump from kind to kind through the indexes of jobs that
wait. Decides nothing: `core.overview` makes the picture.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.instants import Instant
from tenure.core.leases import latest_suspect_expiry
from tenure.core.schedules import Schedule
from tenure.core.views.overview import (
    MAX_QUEUES,
    MAX_TALLIED,
    MAX_TROUBLED,
    Depth,
    Overview,
    OverviewFilter,
    OverviewParts,
    assemble,
    depth_limit,
    failed_runs,
    last_jobs,
    window_of,
)
from tenure.core.views.rollups import Rollup, tally
from tenure.core.workers import WorkerSeen
from tenure.stores.sql.limits import queue_state_from
from tenure.stores.sql.measures import DELAYED, READY, SqlMeasures, first_of, ready_at
from tenure.stores.sql.rollups import SqlRollups, counted_from, progress_from, rollups_from
from tenure.stores.sql.rows import Row, decode_policy
from tenure.stores.sql.schedules import SqlSchedules
from tenure.stores.sql.statements import Query, Shape
from tenure.stores.sql.transactions import Part, Transaction, Transactional
from tenure.stores.sql.workers import SqlWorkers

MAX_KINDS = 100
"""Kinds of a queue whose waiting jobs are counted."""

MAX_GROUPS = 100
"""In how many kinds and policies per queue suspect jobs are counted."""

READY_BY_KIND: Shape = (*READY, ("due", "0"))
DELAYED_BY_KIND: Shape = (
    *DELAYED,
    (
        "due",
        "(SELECT count(*) FROM (SELECT j.run_at FROM {t}job AS j {by_delayed}"
        " WHERE j.namespace = :namespace AND j.queue = k.queue AND j.not_before > 0"
        " AND j.kind = k.kind LIMIT :jobs) AS looked_at WHERE looked_at.run_at <= :now)",
    ),
)
"""Ready jobs are counted once; for jobs that have a time, also how many are due."""

_UNRESOLVED = "NOT EXISTS (SELECT 1 FROM {t}dead_letter_resolution AS r WHERE r.job_id = d.id)"
TROUBLES: dict[str, Shape] = {
    "waiting": (
        (
            "troubled",
            "j.flow_id IS NOT NULL AND j.run_at IS NULL AND j.lease_id IS NULL"
            " AND j.stall_cause IS NULL AND j.finished_at IS NULL",
        ),
        ("counted", "TRUE"),
    ),
    # One that has a time is claimed again by itself.
    "stalled": (("troubled", "j.stall_cause IS NOT NULL"), ("counted", "d.run_at IS NULL")),
    "dead_letters": (("troubled", "j.reason_code IS NOT NULL"), ("counted", _UNRESOLVED)),
}
"""By field of `Depth`: the jobs of an index that has few of all jobs, and which of them count."""


class SqlOverview(Part):
    """`Views.overview` over SQL."""

    def __init__(
        self,
        database: Transactional,
        *,
        measures: SqlMeasures,
        rollups: SqlRollups,
        workers: SqlWorkers,
        schedules: SqlSchedules,
    ) -> None:
        super().__init__(database)
        self._measures = measures
        self._rollups = rollups
        self._workers = workers
        self._schedules = schedules

    def overview(self, wanted: OverviewFilter) -> Overview:
        """What a namespace is doing. [OB28]"""
        workers = self._workers.page(wanted.namespace)
        schedules = last_jobs(self._schedules.page(wanted.namespace), wanted)
        gather = partial(self._gather, wanted=wanted, workers=workers, schedules=schedules)
        # A snapshot: an event that is folded meanwhile must be counted once.
        return assemble(self._read(gather, snapshot=True, listing=True, repeated=True), wanted)

    def _gather(
        self,
        tx: Transaction,
        wanted: OverviewFilter,
        workers: Sequence[WorkerSeen],
        schedules: Mapping[JobId, Schedule],
    ) -> OverviewParts:
        here = {"namespace": wanted.namespace}
        [(now, _)], [(known,)], found, last = tx.fetch(
            self._query("moment"),
            self._query("count_queues", (("where", "WHERE namespace = :namespace"),), **here),
            self._query("measured_queues", queues=MAX_QUEUES, **here),
            self._query("statuses_of", ids=self._pack(list(schedules))),
        )
        names = [QueueName(name) for _, name in found]
        if wanted.queues:
            names, known = list(wanted.queues)[:MAX_QUEUES], len(wanted.queues)
        [settings] = tx.fetch(self._query("settings_of_queues", names=self._pack(names), **here))
        depths, oldest = self._depths(tx, wanted, names, Instant(now))
        rollups, counted_since = self._folded(tx, wanted, Instant(now))
        return OverviewParts(
            now=Instant(now),
            counted_since=counted_since,
            rollups=rollups,
            depths=depths,
            oldest_ready_at=oldest,
            settings=[queue_state_from(row) for row in settings],
            left_out=max(0, known - len(names)),
            workers=workers,
            failed_runs=failed_runs(schedules, {JobId(each): word for each, word in last}),
        )

    def _depths(
        self, tx: Transaction, wanted: OverviewFilter, queues: Sequence[QueueName], now: Instant
    ) -> tuple[list[Depth], dict[QueueName, Instant]]:
        limit = depth_limit(len(queues))
        leases = [self._leases(wanted, queue, limit) for queue in queues]
        troubles = [
            self._query("troubled_by_kind", shape, namespace=wanted.namespace, jobs=MAX_TROUBLED)
            for shape in TROUBLES.values()
        ]
        waiting = self._waiting_queries(wanted, queues, limit, now)
        answers = tx.fetch(*waiting, *troubles, *leases)
        ready, delayed, oldest_ready, oldest_delayed, *others = answers
        troubled, leased = others[: len(troubles)], others[len(troubles) :]
        counts: dict[tuple[str, str], Counter[str]] = {}
        for queue, kind, number, _ in ready:
            counts.setdefault((queue, kind), Counter())["ready"] += number
        for queue, kind, number, due in delayed:
            counts.setdefault((queue, kind), Counter()).update(ready=due, delayed=number - due)
        for queue, groups in zip(queues, leased, strict=True):
            for kind, _, number, _ in groups:
                counts.setdefault((queue, kind), Counter())["leased"] += number
        for field, rows in zip(TROUBLES, troubled, strict=True):
            for queue, kind, number in rows:
                counts.setdefault((queue, kind), Counter())[field] += number
        for key, number in self._silent(tx, wanted, queues, leased, now):
            counts[key]["suspect"] += number
        depths = [
            Depth(queue=QueueName(queue), kind=Kind(kind), **_at_most(found, limit))
            for (queue, kind), found in sorted(counts.items())
            if found.total() and wanted.has(queue, kind)
        ]
        return depths, _ready_since(queues, oldest_ready, oldest_delayed, now)

    def _waiting_queries(
        self, wanted: OverviewFilter, queues: Sequence[QueueName], jobs: int, now: Instant
    ) -> list[Query]:
        """How many jobs of each queue and kind are ready and delayed, and the first of each
        queue."""
        given = {
            "namespace": wanted.namespace,
            "names": self._pack(queues),
            "kinds": self._pack(wanted.kinds),
            "levels": MAX_KINDS,
            "jobs": jobs,
            "now": now,
        }
        return [
            *[
                self._query(
                    "waiting_by_kind", self._measures.about_waiting(sort, wanted.kinds), **given
                )
                for sort in (READY_BY_KIND, DELAYED_BY_KIND)
            ],
            *[
                self._measures.oldest(sort, wanted.namespace, queues, wanted.kinds)
                for sort in (READY, DELAYED)
            ],
        ]

    def _leases(self, wanted: OverviewFilter, queue: QueueName, jobs: int) -> Query:
        return self._query("leased_by_kind", namespace=wanted.namespace, queue=queue, jobs=jobs)

    def _silent(
        self,
        tx: Transaction,
        wanted: OverviewFilter,
        queues: Sequence[QueueName],
        leased: Sequence[Sequence[Row]],
        now: Instant,
    ) -> Iterator[tuple[tuple[str, str], int]]:
        """How many jobs are suspect. Asks only about policies that have one: most of the time
        there is none. [L18]"""
        queries: list[Query] = []
        asked_about: list[tuple[str, str]] = []
        for queue, groups in zip(queues, leased, strict=True):
            for kind, policy, _, first_end in groups[:MAX_GROUPS]:
                until = latest_suspect_expiry(decode_policy(policy), now)
                if first_end <= until:
                    where = {"namespace": wanted.namespace, "queue": queue, "kind": kind}
                    limits = {"policy": policy, "until": until, "jobs": MAX_TROUBLED}
                    queries.append(self._query("count_silent_of_kind", **where, **limits))
                    asked_about.append((queue, kind))
        for key, [(number,)] in zip(asked_about, tx.fetch(*queries), strict=True):
            yield key, number

    def _folded(
        self, tx: Transaction, wanted: OverviewFilter, now: Instant
    ) -> tuple[list[Rollup], Instant]:
        """What was folded of the span, with the newest events that were not; and since when that is
        all. [OB34]"""
        window = window_of(wanted.range, now)
        here = [wanted.namespace]
        [row], folded = tx.fetch(
            self._query("fold_progress"),
            self._rollups.rollups_query(here, window.bucket_us, window.since, window.until),
        )
        progress = progress_from(row)
        newest, beyond = tx.fetch(
            *self._rollups.unfolded_queries(
                progress.position, wanted.namespace, window.since, MAX_TALLIED
            )
        )
        counted_since = window.counted_from(
            now,
            skipped_until=progress.skipped_until,
            folded_until=progress.folded_until,
            first_uncounted=Instant(beyond[0][0]) if beyond else None,
        )
        return [*rollups_from(folded), *tally(map(counted_from, newest))], counted_since


def _ready_since(
    queues: Sequence[QueueName], ready: Sequence[Row], delayed: Sequence[Row], now: Instant
) -> dict[QueueName, Instant]:
    found = {each: ready_at(first_of(ready, each), first_of(delayed, each), now) for each in queues}
    return {queue: since for queue, since in found.items() if since is not None}


def _at_most(counts: Counter[str], limit: int) -> dict[str, int]:
    return {field: min(limit, number) for field, number in counts.items()}
