"""What a SQL store gathers for an overview.

Every number comes from an index and stops at a limit, so that an overview costs the same
however many jobs it has. Counts by kind jump from kind to kind through the indexes of jobs that
wait. Decides nothing: `core.views.overview` combines the counts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.instants import Instant
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
from tenure.core.workers import ListedWorker
from tenure.stores.sql.database import Database, Part, Transaction
from tenure.stores.sql.depths import DepthQuestion, SqlDepths
from tenure.stores.sql.limits import queue_state_from
from tenure.stores.sql.rollups import SqlRollups, counted_from, progress_from, rollups_from
from tenure.stores.sql.schedules import SqlSchedules
from tenure.stores.sql.workers import SqlWorkers


class SqlOverview(Part):
    """`Views.overview` over SQL."""

    def __init__(
        self,
        database: Database,
        *,
        depths: SqlDepths,
        rollups: SqlRollups,
        workers: SqlWorkers,
        schedules: SqlSchedules,
    ) -> None:
        super().__init__(database)
        self._depths = depths
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
        workers: Sequence[ListedWorker],
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
        limit = depth_limit(len(names))
        question = DepthQuestion(
            namespace=wanted.namespace,
            queues=names,
            kinds=wanted.kinds,
            jobs=limit,
            troubled=MAX_TROUBLED,
        )
        [found_depths] = self._depths.read(tx, [question], Instant(now))
        depths = [
            Depth(queue=QueueName(queue), kind=Kind(kind), **_at_most(counts, limit))
            for (queue, kind), counts in sorted(found_depths.counts.items())
            if counts.total() and wanted.has(queue, kind)
        ]
        rollups, counted_since = self._folded(tx, wanted, Instant(now))
        return OverviewParts(
            now=Instant(now),
            counted_since=counted_since,
            rollups=rollups,
            depths=depths,
            oldest_ready_at=found_depths.oldest,
            settings=[queue_state_from(row) for row in settings],
            left_out=max(0, known - len(names)),
            workers=workers,
            failed_runs=failed_runs(schedules, {JobId(each): status for each, status in last}),
        )

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


def _at_most(counts: Counter[str], limit: int) -> dict[str, int]:
    return {field: min(limit, number) for field, number in counts.items()}
