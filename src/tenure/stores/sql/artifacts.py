"""What attempts leave: artifacts, and their output."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from tenure.core.artifacts import (
    MAX_LOGS_READ,
    Artifact,
    ArtifactQuotas,
    ArtifactUpload,
    ArtifactUsage,
    AttemptLog,
    AttemptOutput,
    Staging,
    StoredArtifact,
    is_leftover,
    stage,
    visible_attempt,
)
from tenure.core.failover import is_settling
from tenure.core.ids import Epoch, JobId, Namespace
from tenure.core.instants import Instant
from tenure.core.leases import why_not_on_record
from tenure.core.outcomes import NeedsHistory
from tenure.core.vocabulary import Cause, JobStatus
from tenure.ports import PruneResult
from tenure.stores.sql.database import Database, Part, Transaction
from tenure.stores.sql.events import decision_histories
from tenure.stores.sql.rows import WITH_BODIES, Row, job_from, moment_from
from tenure.stores.sql.statements import Query, Shape

ARTIFACT_COLUMNS: tuple[str, ...] = Artifact.__struct_fields__
USAGE_COLUMNS: tuple[str, ...] = ArtifactUsage.__struct_fields__
LOG_COLUMNS: tuple[str, ...] = AttemptLog.__struct_fields__
COLUMN_PLACEHOLDERS = {
    "artifact_columns": ", ".join(ARTIFACT_COLUMNS),
    "log_columns": ", ".join(LOG_COLUMNS),
}

_FROM_THE_FIRST: Shape = (("after_artifact", ""),)
_FROM_THE_LAST: Shape = (
    (
        "after_artifact",
        "WHERE (a.job_id, a.attempt, a.name) > (CAST(:job_id AS {uuid}), :attempt, :name)",
    ),
)


class SqlArtifacts(Part):
    """`tenure.ports.StoredArtifacts`."""

    def __init__(self, database: Database, quotas: Callable[[], ArtifactQuotas]) -> None:
        super().__init__(database)
        self._quotas = quotas
        self._last_collected: Row | None = None  # the next collection continues after this one

    def stage(self, upload: ArtifactUpload) -> Staging:
        """Keep an artifact if its lease is valid now and the quotas have room. [B7] [B28]"""
        return self._write(lambda tx: self._staged(tx, upload))

    def _staged(self, tx: Transaction, upload: ArtifactUpload) -> Staging:
        # The row is locked first: nothing may be added to an attempt that has succeeded.
        rows, [moment], [used] = tx.fetch(
            self._query("lock_job", job_id=upload.job_id),
            self._query("moment_to_decide"),
            self._query("artifact_usage", job_id=upload.job_id, name=upload.name),
        )
        usage = ArtifactUsage(**dict(zip(USAGE_COLUMNS, used, strict=True)))
        job, at = job_from(rows[0]) if rows else None, moment_from(moment)
        quotas = self._quotas()
        staging = stage(job, upload, at, None, usage=usage, quotas=quotas)
        if isinstance(staging, NeedsHistory):
            history = decision_histories(tx, self._query, [upload.job_id])[upload.job_id]
            staging = stage(job, upload, at, history, usage=usage, quotas=quotas)
            assert not isinstance(staging, NeedsHistory)  # the row is locked
        if job is not None and staging.artifact is not None:
            self._put_artifact(
                tx, job.namespace, StoredArtifact(staging.artifact, upload.body), usage
            )
        return staging

    def _put_artifact(
        self, tx: Transaction, namespace: Namespace, stored: StoredArtifact, usage: ArtifactUsage
    ) -> None:
        made = stored.artifact
        deleted: list[Row] = []
        if usage.earlier_bytes:
            [deleted] = tx.fetch(
                self._query("delete_earlier_artifacts", job_id=made.job_id, attempt=made.attempt)
            )
        facts = {name: getattr(made, name) for name in ARTIFACT_COLUMNS}
        added = (namespace, made.job_id, made.size - usage.replaced_bytes)
        tx.fetch(
            self._query("put_artifact", namespace=namespace, body=stored.body, **facts),
            *count_artifact_bytes(self._query, added=[added], deleted=deleted),
            last=True,
        )

    def of_job(self, job_id: JobId) -> list[Artifact]:
        """The artifacts of the attempt that succeeded, by name. [B8]"""
        rows = self._of_shown_attempt("list_artifacts", job_id)
        return [_artifact(row) for row in rows]

    def load(self, job_id: JobId, name: str) -> StoredArtifact | None:
        """One of them with its body."""
        rows = self._of_shown_attempt("load_artifact", job_id, name=name)
        return StoredArtifact(_artifact(rows[0][:-1]), bytes(rows[0][-1])) if rows else None

    def _of_shown_attempt(self, statement: str, job_id: JobId, **more: object) -> Sequence[Row]:
        # Two reads are safe: a job whose artifacts are visible has finished, its row never changes.
        jobs = self._rows(self._query("load_jobs", WITH_BODIES, ids=self._pack([job_id])))
        attempt = visible_attempt(job_from(jobs[0]) if jobs else None)
        if attempt is None:
            return []
        return self._rows(self._query(statement, job_id=job_id, attempt=attempt, **more))

    def collect(self, *, limit: int) -> PruneResult:
        """Delete artifacts that can never become visible, among the next `limit` ones. [B10]"""
        after = self._last_collected
        job_id, attempt, name = after or (None, None, None)
        query = self._query(
            "page_of_artifacts",
            _FROM_THE_FIRST if after is None else _FROM_THE_LAST,
            job_id=job_id,
            attempt=attempt,
            name=name,
            limit=limit,
        )
        rows = self._rows(query)
        hit_limit = len(rows) == limit
        leftover = [self._deletion(row) for row in rows if _is_leftover(row)]
        deleted = self._write(lambda tx: self._delete_artifacts(tx, leftover)) if leftover else 0
        self._last_collected = rows[-1][:3] if hit_limit else None
        return PruneResult(deleted, hit_limit)

    def _delete_artifacts(self, tx: Transaction, deletions: Sequence[Query]) -> int:
        deleted = list(chain.from_iterable(tx.fetch(*deletions)))
        tx.fetch(*count_artifact_bytes(self._query, deleted=deleted), last=True)
        return len(deleted)

    def _deletion(self, row: Row) -> Query:
        return self._query("delete_artifact", job_id=row[0], attempt=row[1], name=row[2])

    def put_log(self, output: AttemptOutput) -> Cause | None:
        """Keep the output of the attempt that this lease was issued for. [B20]"""
        return self._write(lambda tx: self._keep_output(tx, output))

    def _keep_output(self, tx: Transaction, output: AttemptOutput) -> Cause | None:
        job, [(now, epoch, settling_since)], attempts = tx.fetch(
            self._query("hold_job", job_id=output.job_id),
            self._query("moment_to_decide"),
            self._query(
                "attempt_of_lease",
                job_id=output.job_id,
                lease_id=output.lease_id,
                actor=output.actor,
            ),
        )
        if not job or not attempts:
            return why_not_on_record(
                output.lease_id,
                is_known_job=bool(job),
                epoch=Epoch(epoch),
                is_settling=is_settling(settling_since, Instant(now)),
            )
        kept = self._query(
            "keep_attempt_log",
            job_id=output.job_id,
            attempt=attempts[0][0],
            text=output.text,
            left_out_bytes=output.left_out_bytes,
            part=output.part,
        )
        tx.fetch(kept, last=True)
        return None

    def logs(self, job_id: JobId) -> list[AttemptLog]:
        """The kept output of the latest attempts, in order. [B26]"""
        query = self._query("load_attempt_logs", job_id=job_id, limit=MAX_LOGS_READ)
        rows = reversed(self._rows(query))
        return [AttemptLog(**dict(zip(LOG_COLUMNS, row, strict=True))) for row in rows]


def count_artifact_bytes(
    query: Callable[..., Query], *, added: Iterable[Row] = (), deleted: Iterable[Row]
) -> list[Query]:
    """Statements that update the byte counters of namespaces; rows are (namespace, job id, size).

    Send them last in a transaction, so that it locks the counters only while it commits. They are
    sorted, so that no two transactions can deadlock.
    """
    changes: Counter[tuple[str, int]] = Counter()
    for sign, rows in ((1, added), (-1, deleted)):
        for namespace, job_id, size in rows:
            changes[namespace, _shard_of(job_id)] += sign * size
    return [
        query("count_artifact_bytes", namespace=namespace, shard=shard, bytes=change)
        for (namespace, shard), change in sorted(changes.items())
        if change
    ]


def _shard_of(job_id: object) -> int:
    """Which of a namespace's sixteen counters has this job's bytes: the last digit of the job's id,
    which is random."""
    return int(str(job_id)[-1], 16)


def _artifact(row: Row) -> Artifact:
    return Artifact(**dict(zip(ARTIFACT_COLUMNS, row, strict=True)))


def _is_leftover(row: Row) -> bool:
    _, attempt, _, of, lease_id, status = row
    known = None if status is None else JobStatus(status)
    return is_leftover(attempt, of=of, leased=lease_id is not None, status=known)
