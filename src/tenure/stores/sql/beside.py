"""What the SQL stores keep beside the log: resolutions, artifacts, output, workers, counts.

A mixin of `SqlStore`, which owns jobs and events. Nothing here changes a job or writes an event.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import msgspec

from tenure.core.beside import (
    MAX_SHOWN_LOGS,
    Artifact,
    ArtifactQuotas,
    ArtifactUpload,
    ArtifactUsage,
    AttemptLog,
    AttemptOutput,
    Resolution,
    Staging,
    StoredArtifact,
    WorkerProcess,
    WorkerSeen,
    is_leftover,
    shown_attempt,
    stage,
)
from tenure.core.deadlines import why_not_on_record
from tenure.core.failover import is_settling
from tenure.core.ids import Epoch, JobId, Namespace, WorkerId
from tenure.core.instants import Duration, Instant
from tenure.core.outcomes import Change
from tenure.core.vocabulary import Cause, JobStatus, ResolutionKind
from tenure.ports import Bite
from tenure.stores.sql.rows import Row, job_from
from tenure.stores.sql.statements import Asked, Shape, Statements
from tenure.stores.sql.transactions import Transaction, Transactional

RESOLUTION_COLUMNS: tuple[str, ...] = Resolution.__struct_fields__
ARTIFACT_COLUMNS: tuple[str, ...] = Artifact.__struct_fields__
USAGE_COLUMNS: tuple[str, ...] = ArtifactUsage.__struct_fields__
LOG_COLUMNS: tuple[str, ...] = AttemptLog.__struct_fields__
PROCESS_COLUMNS: tuple[str, ...] = WorkerSeen.__struct_fields__

COLUMN_WORDS = {
    "resolution_columns": ", ".join(RESOLUTION_COLUMNS),
    "artifact_columns": ", ".join(ARTIFACT_COLUMNS),
    "log_columns": ", ".join(LOG_COLUMNS),
    "process_columns": ", ".join(PROCESS_COLUMNS),
}

PURGED_WITH_A_JOB = ("delete_resolutions", "delete_attempt_logs")
"""The statements that take along what is kept beside a purged job's log, but for its artifacts,
whose bytes are counted. [B6]"""

_FROM_THE_FIRST: Shape = (("after_artifact", ""),)
_FROM_THE_LAST: Shape = (
    (
        "after_artifact",
        "WHERE (a.job_id, a.attempt, a.name) > (CAST(:job_id AS {uuid}), :attempt, :name)",
    ),
)

_PROCESS_KEY = ("namespace", "worker", "actor", "host", "pid")
_PROCESS_FACTS = tuple(n for n in WorkerProcess.__struct_fields__ if n != "is_ending")

_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


class BesideTheLog(Transactional):
    """The part of `tenure.ports.Store` that is not about jobs and their events."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        self._last_looked_at: Row | None = None  # where the collection of artifacts goes on

    # --- resolutions ---------------------------------------------------------------------------

    def resolve(self, resolutions: Sequence[Resolution]) -> frozenset[JobId]:
        """Record each unless its job has one already or is gone; which were. [B1]"""
        return self._write(lambda tx: self._keep_resolutions(tx, resolutions))

    def _keep_resolutions(
        self, tx: Transaction, resolutions: Iterable[Resolution]
    ) -> frozenset[JobId]:
        kept = set()
        for each in sorted(resolutions, key=lambda resolution: resolution.job_id):
            facts = {name: getattr(each, name) for name in RESOLUTION_COLUMNS}
            facts["kind"] = each.kind.value
            # Held, so that a purge cannot leave a resolution without its job.
            _, written = tx.fetch(
                self._ask("hold_job", job_id=each.job_id), self._ask("keep_resolution", **facts)
            )
            if written:
                kept.add(each.job_id)
        return frozenset(kept)

    def _first_to_resolve(self, tx: Transaction, changes: Sequence[Change]) -> list[Change]:
        """The changes without those whose dead letter is gone or has a resolution. [B17] The dead
        letters have to be locked: otherwise another transaction may resolve them meanwhile."""
        letters = letters_of(changes)
        if not letters:
            return list(changes)
        [rows] = tx.fetch(self._ask("unresolved_among", ids=self._pack(letters)))
        unresolved = {JobId(str(row[0])) for row in rows}
        first: list[Change] = []
        for change in changes:
            if change.resolution is not None:
                if change.resolution.job_id not in unresolved:
                    continue
                unresolved.remove(change.resolution.job_id)  # one change for each dead letter
            first.append(change)
        return first

    def load_resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters."""
        found = {}
        for row in self._rows(self._ask("load_resolutions", ids=self._pack(ids))):
            facts = dict(zip(RESOLUTION_COLUMNS, row, strict=True))
            found[JobId(row[0])] = Resolution(**facts | {"kind": ResolutionKind(facts["kind"])})
        return found

    # --- artifacts -----------------------------------------------------------------------------

    def stage_artifact(self, upload: ArtifactUpload, quotas: ArtifactQuotas) -> Staging:
        """Keep an artifact if its lease is valid now and the quotas have room. [B7] [B28]"""
        return self._write(lambda tx: self._stage(tx, upload, quotas))

    def _stage(self, tx: Transaction, upload: ArtifactUpload, quotas: ArtifactQuotas) -> Staging:
        # The row is locked first: when the attempt has succeeded, nothing is added any more.
        rows, [(now, epoch, settling_since)], [used] = tx.fetch(
            self._ask("lock_job", job_id=upload.job_id),
            self._ask("moment_to_decide"),
            self._ask("artifact_usage", job_id=upload.job_id, name=upload.name),
        )
        usage = ArtifactUsage(**dict(zip(USAGE_COLUMNS, used, strict=True)))
        job = job_from(rows[0]) if rows else None
        staging = stage(
            job,
            upload,
            now=Instant(now),
            epoch=Epoch(epoch),
            usage=usage,
            quotas=quotas,
            is_settling=is_settling(settling_since, Instant(now)),
        )
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
                self._ask("delete_earlier_artifacts", job_id=made.job_id, attempt=made.attempt)
            )
        facts = {name: getattr(made, name) for name in ARTIFACT_COLUMNS}
        added = (namespace, made.job_id, made.size - usage.replaced_bytes)
        tx.fetch(
            self._ask("put_artifact", namespace=namespace, body=stored.body, **facts),
            *count_artifact_bytes(self._ask, added=[added], deleted=deleted),
            last=True,
        )

    def list_artifacts(self, job_id: JobId) -> list[Artifact]:
        """The artifacts of the attempt that succeeded, by name. [B8]"""
        rows = self._of_shown_attempt("list_artifacts", job_id)
        return [_artifact(row) for row in rows]

    def load_artifact(self, job_id: JobId, name: str) -> StoredArtifact | None:
        """One of them with its body."""
        rows = self._of_shown_attempt("load_artifact", job_id, name=name)
        return StoredArtifact(_artifact(rows[0][:-1]), bytes(rows[0][-1])) if rows else None

    def _of_shown_attempt(self, statement: str, job_id: JobId, **more: object) -> Sequence[Row]:
        # Two reads: a job whose artifacts are shown is finished, and its row changes no more.
        jobs = self._rows(self._ask("load_jobs", ids=self._pack([job_id])))
        attempt = shown_attempt(job_from(jobs[0]) if jobs else None)
        if attempt is None:
            return []
        return self._rows(self._ask(statement, job_id=job_id, attempt=attempt, **more))

    def collect_artifacts(self, *, limit: int) -> Bite:
        """Delete artifacts that nobody will ever see, among the next `limit` ones. [B10]"""
        after = self._last_looked_at
        job_id, attempt, name = after or (None, None, None)
        asked = self._ask(
            "look_at_artifacts",
            _FROM_THE_FIRST if after is None else _FROM_THE_LAST,
            job_id=job_id,
            attempt=attempt,
            name=name,
            limit=limit,
        )
        rows = self._rows(asked)
        is_full = len(rows) == limit
        leftover = [self._deletion(row) for row in rows if _is_leftover(row)]
        gone = self._write(lambda tx: self._delete_artifacts(tx, leftover)) if leftover else 0
        self._last_looked_at = rows[-1][:3] if is_full else None
        return Bite(gone, is_full)

    def _delete_artifacts(self, tx: Transaction, deletions: Sequence[Asked]) -> int:
        deleted = list(chain.from_iterable(tx.fetch(*deletions)))
        tx.fetch(*count_artifact_bytes(self._ask, deleted=deleted), last=True)
        return len(deleted)

    def _deletion(self, row: Row) -> Asked:
        return self._ask("delete_artifact", job_id=row[0], attempt=row[1], name=row[2])

    # --- the output of attempts ----------------------------------------------------------------

    def put_attempt_log(self, output: AttemptOutput) -> Cause | None:
        """Keep the output of the attempt that this lease was issued for. [B20]"""
        return self._write(lambda tx: self._keep_output(tx, output))

    def _keep_output(self, tx: Transaction, output: AttemptOutput) -> Cause | None:
        job, [(now, epoch, settling_since)], attempts = tx.fetch(
            self._ask("hold_job", job_id=output.job_id),
            self._ask("moment_to_decide"),
            self._ask(
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
        kept = self._ask(
            "keep_attempt_log",
            job_id=output.job_id,
            attempt=attempts[0][0],
            text=output.text,
            left_out_bytes=output.left_out_bytes,
            part=output.part,
        )
        tx.fetch(kept, last=True)
        return None

    def load_attempt_logs(self, job_id: JobId) -> list[AttemptLog]:
        """The kept output of the latest attempts, in order. [B26]"""
        asked = self._ask("load_attempt_logs", job_id=job_id, limit=MAX_SHOWN_LOGS)
        rows = reversed(self._rows(asked))
        return [AttemptLog(**dict(zip(LOG_COLUMNS, row, strict=True))) for row in rows]

    # --- worker processes ----------------------------------------------------------------------

    def see_worker(self, process: WorkerProcess) -> bool:
        """Remember that this worker lives; whether it was asked to drain. [B12]"""
        if process.is_ending:
            key = {name: getattr(process, name) for name in _PROCESS_KEY}
            left = self._ask("dismiss_worker", **key)
            self._write(lambda tx: tx.fetch(left, last=True))
            return False
        facts = {name: getattr(process, name) for name in _PROCESS_FACTS}
        facts |= {name: _encode(facts[name]).decode() for name in ("queues", "kinds")}
        asked = self._ask("see_worker", **facts)
        [[row]] = self._write(lambda tx: tx.fetch(asked, last=True))
        return _worker(row).draining

    def list_workers(self, namespace: Namespace) -> list[WorkerSeen]:
        """The workers that were seen lately, by name."""
        asked = self._ask("list_workers", namespace=namespace)
        return [_worker(row) for row in self._rows(asked, listing=True)]

    def request_drain(self, namespace: Namespace, worker: WorkerId) -> bool:
        """Ask the processes of this name to finish and stop; whether there is one. [B12]"""
        asked = self._ask("request_drain", namespace=namespace, worker=worker)
        [found] = self._write(lambda tx: tx.fetch(asked, last=True))
        return bool(found)

    def forget_workers(self, *, older_than_us: Duration, limit: int) -> int:
        """Forget workers that were not seen for this long; how many. [B13]"""
        asked = self._ask("forget_workers", older_than_us=older_than_us, limit=limit)
        [forgotten] = self._write(lambda tx: tx.fetch(asked, last=True))
        return len(forgotten)


def letters_of(changes: Iterable[Change]) -> list[JobId]:
    """The dead letters that these changes resolve."""
    return [each.resolution.job_id for each in changes if each.resolution is not None]


def _artifact(row: Row) -> Artifact:
    return Artifact(**dict(zip(ARTIFACT_COLUMNS, row, strict=True)))


def count_artifact_bytes(
    ask: Callable[..., Asked], *, added: Iterable[Row] = (), deleted: Iterable[Row]
) -> list[Asked]:
    """Statements that keep the bytes of each namespace, for rows of (namespace, job id, size).

    They have to come last in a transaction, which then holds these rows only while it commits. They
    are in order, so that no two transactions wait for each other.
    """
    changes: Counter[tuple[str, int]] = Counter()
    for sign, rows in ((1, added), (-1, deleted)):
        for namespace, job_id, size in rows:
            changes[namespace, _part_of(job_id)] += sign * size
    return [
        ask("count_artifact_bytes", namespace=namespace, part=part, bytes=change)
        for (namespace, part), change in sorted(changes.items())
        if change
    ]


def _part_of(job_id: object) -> int:
    """Which of its namespace's rows counts a job's artifacts: by the last digit of its id, which is
    random."""
    return int(str(job_id)[-1], 16)


def _is_leftover(row: Row) -> bool:
    _, attempt, _, of, lease_id, status = row
    known = None if status is None else JobStatus(status)
    return is_leftover(attempt, of=of, leased=lease_id is not None, status=known)


def _worker(row: Row) -> WorkerSeen:
    facts = dict(zip(PROCESS_COLUMNS, row, strict=True))
    return WorkerSeen(**facts | {name: _decode_names(facts[name]) for name in ("queues", "kinds")})
