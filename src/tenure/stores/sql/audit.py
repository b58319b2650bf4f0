"""What `verify` reads: whole records, and what at most one job may hold."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from tenure.core.events import Event
from tenure.core.ids import JobId, Namespace
from tenure.core.instants import Instant
from tenure.core.rates import GrantMade, Meter, Rate, RateInForce, kind_meter, queue_meter
from tenure.core.verdicts import Observation
from tenure.errors import UnreadableRow
from tenure.ports import DedupeKey, JobHistory, Unreadable
from tenure.stores.sql.database import Part, Transaction
from tenure.stores.sql.limits import kind_settings_from, queue_state_from
from tenure.stores.sql.rows import (
    EVENT_FIELDS,
    JOB_COLUMNS,
    WITH_BODIES,
    Row,
    event_from,
    job_from,
    observation_from,
)
from tenure.stores.sql.statements import Shape

KEYS_PER_PAGE = 1000
GRANTS_PER_PAGE = 2000
GRANT_FIELDS = ("job_id", "seq", "ts", "namespace", "queue", "kind", "rate_key", "before_ts")
FIRST_JOB_ID = "00000000-0000-0000-0000-000000000000"

_T = TypeVar("_T")
_REV, _SEQ = JOB_COLUMNS.index("rev"), EVENT_FIELDS.index("seq")


class SqlAudit(Part):
    """`tenure.ports.Audit`."""

    def records(self, *, page_size: int, job_id: JobId | None = None) -> Iterator[JobHistory]:
        """Every job with its log, by id; each page is one snapshot."""
        if job_id is not None:
            [record] = self._read(partial(self._records_of, ids=[job_id]), snapshot=True)
            if record.job is not None or record.events or record.unreadable:
                yield record
            return
        after: JobId | None = None
        while True:
            page = self._read(partial(self._page, after=after, size=page_size), snapshot=True)
            yield from page
            if len(page) < page_size:
                return
            after = page[-1].job_id

    def _page(self, tx: Transaction, after: JobId | None, size: int) -> list[JobHistory]:
        shape: Shape = (("after_id", ""), ("after_job_id", ""))
        if after is not None:
            shape = (("after_id", "WHERE id > :after"), ("after_job_id", "WHERE job_id > :after"))
        [found] = tx.fetch(self._query("record_ids", shape, after=after, limit=size))
        return self._records_of(tx, [JobId(row[0]) for row in found])

    def _records_of(self, tx: Transaction, ids: Sequence[JobId]) -> list[JobHistory]:
        packed = self._pack(ids)
        names = ("load_jobs", "load_histories", "load_observations")
        answers = tx.fetch(
            *[self._query(name, (("limit", ""), *WITH_BODIES), ids=packed) for name in names],
            last=True,
        )
        unreadable: dict[JobId, list[Unreadable]] = {job_id: [] for job_id in ids}
        jobs = {job.id: job for job in _readable(answers[0], job_from, _REV, unreadable)}
        events: dict[JobId, list[Event]] = {job_id: [] for job_id in ids}
        for event in _readable(answers[1], event_from, _SEQ, unreadable):
            events[event.job_id].append(event)
        observations: dict[JobId, list[Observation]] = {job_id: [] for job_id in ids}
        for seen in _readable(answers[2], observation_from, None, unreadable):
            observations[seen.job_id].append(seen)
        return [
            JobHistory(
                job_id,
                jobs.get(job_id),
                events[job_id],
                observations[job_id],
                tuple(unreadable[job_id]),
            )
            for job_id in ids
        ]

    def live_keys(self) -> Iterator[tuple[DedupeKey, JobId]]:
        """The dedupe keys of live jobs in order."""
        key = ("namespace", "kind", "dedupe_key", "id")
        for namespace, kind, dedupe_key, job_id in self._all_rows("live_keys", key):
            yield DedupeKey(namespace, kind, dedupe_key), job_id

    def lease_holders(self) -> Iterator[tuple[str, JobId]]:
        """The ids of live leases in order."""
        rows = self._all_rows("lease_holders", ("lease_id", "id"))
        yield from ((lease_id, job_id) for lease_id, job_id in rows)

    def _all_rows(self, name: str, key: tuple[str, ...]) -> Iterator[Row]:
        """Every row of a statement, which selects and sorts by these columns, page by page."""
        names, values = ", ".join(key), ", ".join(f":{column}" for column in key)
        shape: Shape = (("after", ""),)
        last: Row = (None,) * len(key)
        while True:
            given = dict(zip(key, last, strict=True))
            rows = self._rows(self._query(name, shape, limit=KEYS_PER_PAGE, **given))
            yield from rows
            if len(rows) < KEYS_PER_PAGE:
                return
            shape, last = (("after", f"AND ({names}) > ({values})"),), rows[-1]

    def rates_in_force(self) -> list[RateInForce]:
        """Every rate that is set."""
        queues, kinds = self._read(
            lambda tx: tx.fetch(
                self._query("queue_rates_in_force"), self._query("kind_rates_in_force"), last=True
            ),
            listing=True,
        )
        found: list[tuple[str, Meter, Rate | None, Instant | None]] = []
        for row in queues:
            queue = queue_state_from(row[1:])
            found.append((row[0], queue_meter(queue.name), queue.rate, queue.rate_since))
        for row in kinds:
            kind = kind_settings_from(row[1:])
            found.append((row[0], kind_meter(kind.kind), kind.rate, kind.rate_since))
        return [
            RateInForce(namespace=Namespace(space), meter=meter, rate=rate, since=since)
            for space, meter, rate, since in found
            if rate is not None and since is not None
        ]

    def grants(self, *, since: Instant) -> Iterator[GrantMade]:
        """The grants after an instant, page by page in the order of their commits."""
        last: Row = (0, FIRST_JOB_ID, 0)
        while True:
            position, job_id, seq = last
            rows = self._rows(
                self._query(
                    "grants",
                    since=since,
                    position=position,
                    job_id=job_id,
                    seq=seq,
                    limit=GRANTS_PER_PAGE,
                )
            )
            for _, *row in rows:
                yield GrantMade(**dict(zip(GRANT_FIELDS, row, strict=True)))
            if len(rows) < GRANTS_PER_PAGE:
                return
            last = rows[-1][:3]


def _readable(
    rows: Sequence[Row],
    read: Callable[[Row], _T],
    seq: int | None,
    unreadable: dict[JobId, list[Unreadable]],
) -> Iterator[_T]:
    """What can be read; the rest is added to `unreadable`. `seq` is the column that names it."""
    for row in rows:
        try:
            yield read(row)
        except UnreadableRow as failure:
            at = 1 if seq is None else row[seq]
            unreadable[JobId(failure.job_id)].append(Unreadable(at, failure.problem))
