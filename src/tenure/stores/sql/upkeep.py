"""Upkeep: the sweeper's tick, outages, and what retention deletes.

However much is kept, a call reads one page, and the next call continues from there. [G4] It reads
without a lock, and then deletes only what it found.
"""

from typing import assert_never

from tenure.core.commands import Outage
from tenure.core.instants import Duration, Instant
from tenure.core.views.rollups import KEPT_FOR
from tenure.ports import NO_AGE, Deletable, PruneResult, Tick
from tenure.stores.sql.artifacts import SqlArtifacts, count_artifact_bytes
from tenure.stores.sql.database import Database, Part, Transaction
from tenure.stores.sql.rollups import SqlRollups
from tenure.stores.sql.rows import Row
from tenure.stores.sql.schedules import until_next
from tenure.stores.sql.statements import Shape

_FROM_THE_FIRST: Shape = (("after_renewal", ""),)
_FROM_THE_LAST: Shape = (
    ("after_renewal", "AND (e.job_id, e.seq) > (CAST(:job_id AS {uuid}), :seq)"),
)

_SESSION_KEY = ("namespace", "worker", "actor")
_FROM_THE_FIRST_SESSION: Shape = (("after_session", ""),)
_FROM_THE_LAST_SESSION: Shape = (
    (
        "after_session",
        "WHERE (w.namespace, w.worker, w.actor) > (:namespace, :worker, :actor)",
    ),
)

_PURGED_WITH_A_JOB = (
    "delete_keys",  # before the rows, which have them
    "delete_jobs",
    "delete_events",
    "delete_edges",
    "delete_checks_of_jobs",
    "delete_observations",
    "delete_resolutions",
    "delete_attempt_logs",
)
"""Artifacts are deleted separately, because their bytes are counted. [B6]"""

DUE_BY_THE_STORE: Shape = (
    ("is_due", "j.delete_at IS NULL AND j.finished_at < (SELECT {t}clock()) - :older_than_us"),
    ("due_first", "j.finished_at"),
)
DUE_BY_THEMSELVES: Shape = (
    ("is_due", "j.delete_at < (SELECT {t}clock())"),
    ("due_first", "j.delete_at"),
)


class SqlUpkeep(Part):
    """`tenure.ports.Upkeep`."""

    def __init__(self, database: Database, *, artifacts: SqlArtifacts, rollups: SqlRollups) -> None:
        super().__init__(database)
        self._saw_tick = database.saw_tick
        self._collect = artifacts.collect
        self._kept_by_flow: Shape = (("is_kept_by_flow", self._text("is_kept_by_flow")),)
        self._last_renewal: Row = (None, None)  # the next call continues after this one
        self._last_session: Row | None = None  # likewise

    def tick(self, *, after: Instant | None = None) -> Tick:
        """Record that a sweeper is alive, and see whether there is something to do."""

        def advance(tx: Transaction) -> Tick:
            names = ("lock_tick", "work_for_sweepers", "next_schedule")
            [(before,)], [(has_work,)], [(first, latest, now, _)] = tx.fetch(
                *map(self._query, names)
            )
            written = max(before or now, now) if after in (None, before) else None
            if written is not None:
                tx.fetch(self._query("set_tick", tick=written), last=True)
            return Tick(
                before=before,
                now=Instant(now),
                written=written,
                has_work=bool(has_work),
                next_in_us=until_next(first, latest, Instant(now)),
            )

        tick = self._write(advance)
        if tick.written is not None:
            self._saw_tick(tick.written)
        return tick

    def last_tick(self) -> tuple[Instant | None, Instant]:
        """The highest tick, and now."""
        [(tick, now)] = self._rows(self._query("last_tick"))
        if tick is not None:
            self._saw_tick(tick)
        return tick, Instant(now)

    def record_outage(self, outage: Outage) -> None:
        """Remember an outage."""
        query = self._query(
            "record_outage",
            began_at=outage.began_at,
            ended_at=outage.ended_at,
            is_jump=outage.is_jump,
        )
        self._write(lambda tx: tx.fetch(query, last=True))

    def outages(self, *, since: Instant) -> list[Outage]:
        """Outages that ended after `since`."""
        rows = self._rows(self._query("load_outages", since=since))
        return [Outage(began_at, ended_at, bool(is_jump)) for began_at, ended_at, is_jump in rows]

    def delete(
        self, what: Deletable, *, older_than_us: Duration = NO_AGE, limit: int
    ) -> PruneResult:
        """Delete rows that retention lets go of."""
        match what:
            case "renewals":
                return self._delete_renewals(older_than_us, limit)
            case "artifacts":
                return self._collect(limit=limit)
            case "sessions":
                return self._delete_sessions(older_than_us, limit)
            case "jobs":
                return self._delete_jobs(older_than_us, limit)
            case "rollups":
                lengths = [
                    {"length_us": length, "older_than_us": kept}
                    for length, kept in KEPT_FOR.items()
                ]
                return self._deleted(limit, *[("delete_rollups", each) for each in lengths])
            case "keys":
                return self._deleted(limit, ("delete_idle_slots", {}))
            case "observations" | "outages" | "workers":
                return self._deleted(
                    limit, (f"delete_old_{what}", {"older_than_us": older_than_us})
                )
            case _:
                assert_never(what)

    def _deleted(self, limit: int, *statements: tuple[str, dict[str, Duration]]) -> PruneResult:
        """Run these statements, each of which returns what it deleted."""
        queries = [self._query(name, limit=limit, **given) for name, given in statements]
        numbers = [*map(len, self._write(lambda tx: tx.fetch(*queries, last=True)))]
        return PruneResult(sum(numbers), limit in numbers)

    def _delete_renewals(self, older_than_us: Duration, limit: int) -> PruneResult:
        """Delete old renewals of ended attempts, among the next `limit` ones. [G1] [E31]"""
        job_id, seq = self._last_renewal
        shape = _FROM_THE_FIRST if job_id is None else _FROM_THE_LAST
        place = {"job_id": job_id, "seq": seq, "limit": limit}
        rows = self._rows(
            self._query("page_of_renewals", shape, older_than_us=older_than_us, **place)
        )
        # An ended attempt never continues; the job's earlier renewals are of ended attempts and
        # as old: no event is earlier than the one before it. [E13]
        due = {job_id: seq for job_id, seq, is_due in rows if is_due}
        queries = [self._query("prune_renewals", job_id=each, seq=seq) for each, seq in due.items()]
        gone = self._write(lambda tx: tx.fetch(*queries, last=True)) if queries else []
        hit_limit = len(rows) == limit
        self._last_renewal = rows[-1][:2] if hit_limit else (None, None)
        return PruneResult(sum(map(len, gone)), hit_limit)

    def _delete_sessions(self, older_than_us: Duration, limit: int) -> PruneResult:
        """Delete sessions that have no lease and received nothing for this long. [Q7]"""
        after = self._last_session
        given = {} if after is None else dict(zip(_SESSION_KEY, after, strict=True))
        shape = _FROM_THE_FIRST_SESSION if after is None else _FROM_THE_LAST_SESSION
        rows = self._rows(
            self._query(
                "page_of_sessions", shape, older_than_us=older_than_us, limit=limit, **given
            )
        )
        old = [dict(zip(_SESSION_KEY, row, strict=False)) for row in rows if row[-1]]
        queries = [self._query("delete_session", older_than_us=older_than_us, **key) for key in old]
        gone = self._write(lambda tx: tx.fetch(*queries, last=True)) if queries else []
        hit_limit = len(rows) == limit
        self._last_session = rows[-1][:-1] if hit_limit else None
        return PruneResult(sum(map(len, gone)), hit_limit)

    def _delete_jobs(self, older_than_us: Duration, limit: int) -> PruneResult:
        """Delete finished jobs with everything that belongs to them. Rows first: the schema refuses
        to delete events of an existing job."""

        def delete(tx: Transaction) -> int:
            shape, limits = self._kept_by_flow, {"older_than_us": older_than_us}
            rows: list[Row] = []
            for due in (DUE_BY_THE_STORE, DUE_BY_THEMSELVES):
                most = limit - len(rows)
                rows += tx.fetch(self._query("purgeable", (*shape, *due), limit=most, **limits))[0]
            if rows:
                found = self._pack([row[0] for row in rows])
                [kept] = tx.fetch(self._query("kept_by_flows", shape, ids=found, **limits))
                needed = {row[0] for row in kept}
                rows = [row for row in rows if row[0] not in needed]
            ids = [row[0] for row in rows]
            if ids:
                packed = self._pack(ids)
                deletions = [self._query(name, ids=packed) for name in _PURGED_WITH_A_JOB]
                flows = sorted({flow_id for _, flow_id in rows if flow_id is not None})
                if flows:
                    gone = self._pack(flows)
                    deletions.append(self._query("delete_flows", ids=gone))
                    deletions.append(self._query("delete_flow_redrives", ids=gone))
                *_, artifacts = tx.fetch(*deletions, self._query("delete_artifacts", ids=packed))
                tx.fetch(*count_artifact_bytes(self._query, deleted=artifacts), last=True)
            return len(ids)

        deleted = self._write(delete)
        return PruneResult(deleted, deleted == limit)
