"""Deletes what retention no longer keeps. A mixin of `SqlStore`, which owns jobs and events.

However much is kept, a call reads one page, and the next call continues from there. [G4] It reads
without a lock, and then deletes only what it found.
"""

from tenure.core.instants import Duration
from tenure.ports import PruneResult
from tenure.stores.sql.artifacts import count_artifact_bytes
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Shape, Statements
from tenure.stores.sql.transactions import Transaction, Transactional

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


class SqlRetention(Transactional):
    """The part of `tenure.ports.Store` that deletes."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        self._kept_by_flow: Shape = (("is_kept_by_flow", statements.text("is_kept_by_flow")),)
        self._last_renewal: Row = (None, None)  # the next call continues after this one
        self._last_session: Row | None = None  # likewise

    def prune_renewals(self, *, older_than_us: Duration, limit: int) -> PruneResult:
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

    def delete_sessions(self, *, older_than_us: Duration, limit: int) -> int:
        """Delete sessions that hold no lease and received nothing for this long. [Q7]"""
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
        self._last_session = rows[-1][:-1] if len(rows) == limit else None
        return sum(map(len, gone))

    def delete_outages(self, *, older_than_us: Duration, limit: int) -> int:
        """Delete outages that cannot excuse a lease any more. [O4]"""
        query = self._query("delete_outages", older_than_us=older_than_us, limit=limit)
        [deleted] = self._write(lambda tx: tx.fetch(query, last=True))
        return len(deleted)

    def delete_idle_keys(self, *, older_than_us: Duration, limit: int) -> int:
        """Delete what is remembered of rate keys that have a whole burst, and of fair keys that
        were granted nothing for this long. [RL13] [CK9]"""
        queries = [
            self._query("delete_idle_rate_states", limit=limit),
            self._query("delete_idle_served", older_than_us=older_than_us, limit=limit),
        ]
        return sum(map(len, self._write(lambda tx: tx.fetch(*queries, last=True))))

    def expire_observations(self, *, older_than_us: Duration, limit: int) -> int:
        """Drop the bodies of old observations."""
        query = self._query("expire_observations", older_than_us=older_than_us, limit=limit)
        [expired] = self._write(lambda tx: tx.fetch(query, last=True))
        return len(expired)

    def purge(self, *, older_than_us: Duration, limit: int) -> int:
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

        return self._write(delete)
