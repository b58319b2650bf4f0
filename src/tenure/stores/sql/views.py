"""Views: pages of jobs and of dead letters, and what is read of bodies without loading them.

Only reads: a list blocks no writer, and each page is bounded.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeAlias, TypeVar

import msgspec

from tenure.core.checks import meta_entry
from tenure.core.ids import (
    FlowId,
    JobId,
    Kind,
    QueueName,
    job_correlated_by,
    job_id_range,
    last_instant_of,
)
from tenure.core.instants import Instant
from tenure.core.job import Job, JobError
from tenure.core.leases import is_suspect
from tenure.core.views.dead_letter_groups import (
    MAX_GROUPED,
    MAX_HEADLINE,
    DeadLetterGroupFilter,
    DeadLetterGroups,
    Letter,
    group,
)
from tenure.core.views.job_search import (
    PREVIEW_CHARS,
    FoundJobs,
    JobFilter,
    found_jobs,
    leased_among,
    newness,
)
from tenure.core.vocabulary import JobStatus, ReasonCode, Stage
from tenure.stores.sql.database import Database, Part
from tenure.stores.sql.depths import SqlDepths
from tenure.stores.sql.jobs import resolutions_of
from tenure.stores.sql.overview import SqlOverview
from tenure.stores.sql.rollups import SqlRollups
from tenure.stores.sql.rows import (
    EVENT_FIELDS,
    JOB_COLUMNS,
    WITH_BODIES,
    Row,
    encode_document,
    job_from,
)
from tenure.stores.sql.statements import Query, fill

KEYS_PER_PAGE = 1000

_T = TypeVar("_T")
_REV, _SEQ = JOB_COLUMNS.index("rev"), EVENT_FIELDS.index("seq")

# Fragments that complete a statement. Which of them are used depends on the request; their text
# does not. {at} and {id} are the columns by which lists are sorted.
_JOB_CLAUSES = {
    "statuses": "AND status {among_statuses}",
    # Queue and kind as the indexes for lists have them. A queue that never had a job is not
    # searched for among the jobs: on PostgreSQL that would read all of them.
    "queue": "AND queue || '' = :queue AND EXISTS (SELECT 1 FROM {t}queue AS known"
    " WHERE known.namespace = :namespace AND known.name = :queue)",
    "kind": "AND kind || '' = :kind",
    "correlation_id": "AND correlation_id = :correlation_id",
    "uncorrelated_id": "AND id = :uncorrelated_id AND correlation_id IS NULL",
    "reason_code": "AND reason_code = :reason_code",
    "stage": "AND stage = :stage",
    "schedule": "AND schedule = :schedule",
    "flow_id": "AND flow_id = :flow_id",
    "id_from": "AND id >= :id_from",
    "id_to": "AND id <= :id_to",
    "enqueued_since": "AND {at} >= :enqueued_since",
    "enqueued_until": "AND {at} < :enqueued_until",
    # A job is enqueued before it ends, so jobs that were enqueued later need not be read.
    "finished_until": "AND {at} < :finished_until",
    "before": "AND ({at}, {id}) < (coalesce((SELECT last.enqueued_at FROM {t}job AS last"
    " WHERE last.id = :before AND last.namespace = :namespace), :before_at), :before)",
}
_SEARCHED = {
    "worker": "AND coalesce(owner, last_owner) = :worker",
    "finished_since": "AND finished_at >= :finished_since",
    "finished_until": "AND finished_at < :finished_until",
    "error": "AND coalesce(error, last_error) IS NOT NULL AND {error_text} LIKE :error ESCAPE '!'",
    # Keys have no quotes and no colons, so a document has this text only where it has the entry.
    "meta": "AND replace(meta, :meta, '') <> meta",
}
"""What no index has: the jobs that match the rest are read for it."""

FIRST_READS = 500
"""How many jobs a search reads first: often these have enough."""

_WAITING = "AND finished_at IS NULL AND lease_id IS NULL"
_LEASED = "AND lease_id IS NOT NULL"
_ENDED = "AND finished_at IS NOT NULL"
_STATUS_ARMS = {
    JobStatus.WAITING: "AND flow_id IS NOT NULL AND run_at IS NULL AND lease_id IS NULL"
    " AND stall_cause IS NULL AND finished_at IS NULL",
    JobStatus.CLAIMED: f"{_LEASED} AND started_at IS NULL",
    JobStatus.RUNNING: _LEASED,
    JobStatus.STALLED: "AND stall_cause IS NOT NULL",
    JobStatus.FAILED: "AND error IS NOT NULL AND reason_code IS NULL",
    JobStatus.CANCELLED: "AND finished_at IS NOT NULL AND result IS NULL AND error IS NULL",
    JobStatus.DEAD_LETTERED: "AND reason_code IS NOT NULL",
}
"""What the rows of a status have in common, as the condition of their index: an index never
mentions the status itself (docs/adr/0006)."""
_COMMON = {
    JobStatus.QUEUED: _WAITING,
    JobStatus.RUNNING: _LEASED,
    JobStatus.SUCCEEDED: _ENDED,
}
"""Statuses of many jobs have no index of their own, because each index costs every job. Their jobs
are found kind by kind, in the indexes of jobs that wait, are leased, or have ended."""
_INDEX_OF_ARM = {
    _STATUS_ARMS[JobStatus.WAITING]: "{by_blocked}",
    _STATUS_ARMS[JobStatus.CLAIMED]: "{by_claimed}",
    _STATUS_ARMS[JobStatus.CANCELLED]: "{by_cancelled}",
}
"""Arms for which SQLite would take the index of a queue or a kind, which has more jobs."""
_NOTHING = "AND FALSE"

MAX_LISTED_KINDS = 64
"""A list of a common status is merged from up to this many kinds."""

_decode_error = msgspec.json.Decoder(JobError).decode

ERROR_HEAD = 2000
"""Characters of an error's document that are read for its type and first line: a traceback makes
the whole one far longer."""

_TEXT = r'"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*)'
_TYPE = re.compile(f'"type":{_TEXT}')
_MESSAGE = re.compile(f'"message":{_TEXT}')
"""The text of a field, up to the last whole character before the document was cut."""
_decode_text = msgspec.json.Decoder(str).decode

ListedKinds: TypeAlias = Mapping[str, Sequence[str]] | None
"""By phase, the kinds that it has; see `_kinds_to_list`."""
_OF_SOME_JOBS = {"at": "enqueued_at", "id": "id"}
_OF_ALL_JOBS = {"at": "{listed_at}", "id": "{listed_id}"}
_JOB_COLUMNS = {True: "{job_columns}", False: "{job_columns_without_bodies}"}
_RESOLVED = "EXISTS (SELECT 1 FROM {t}dead_letter_resolution AS r WHERE r.job_id = {t}job.id)"
_JOB_FLAGS = {None: "", True: f"AND {_RESOLVED}", False: f"AND NOT {_RESOLVED}"}


class SqlViews(Part):
    """`tenure.ports.Views`."""

    def __init__(
        self,
        database: Database,
        *,
        overview: SqlOverview,
        depths: SqlDepths,
        rollups: SqlRollups,
    ) -> None:
        super().__init__(database)
        self.overview = overview.overview
        self.measure = depths.measure
        self.unfolded = rollups.unfolded
        self.save_fold = rollups.save_fold

    def jobs(self, wanted: JobFilter) -> FoundJobs:
        """A page of jobs, newest first, and where the next one starts. [J12]"""
        found = self._orphaned(wanted) if wanted.orphaned else self._listed(wanted)
        ids = [job.id for job in found.jobs]
        if wanted.resolved:
            rows = self._rows(self._query("load_resolutions", ids=self._pack(ids)))
            found = msgspec.structs.replace(found, resolutions=resolutions_of(rows))
        if wanted.previews and ids:
            found = msgspec.structs.replace(found, previews=self._previews(ids))
        return found

    def _listed(self, wanted: JobFilter) -> FoundJobs:
        kinds = self._kinds_to_list(wanted)
        jobs, last_read = self._found(wanted, kinds=kinds)
        own_id = job_correlated_by(wanted.correlation_id)
        if own_id is not None:
            # Two queries: one for both could use neither index. [B25]
            alone = msgspec.structs.replace(wanted, correlation_id=None)
            jobs += self._found(alone, uncorrelated_id=own_id)[0]
            jobs = sorted(jobs, key=newness, reverse=True)[: wanted.limit]
        return found_jobs(jobs, last_read, wanted)

    def _orphaned(self, wanted: JobFilter) -> FoundJobs:
        """How long a worker may be silent depends on the job's policy: the core checks it."""
        leased = leased_among(wanted)
        if not leased.statuses:
            return FoundJobs([], None)
        found = self._listed(leased)
        [(now, _)] = self._rows(self._query("moment"))
        silent = [job for job in found.jobs if is_suspect(job, Instant(now))][: wanted.limit]
        if wanted.bodies:
            ids = self._pack([job.id for job in silent])
            rows = self._rows(self._query("load_jobs", WITH_BODIES, ids=ids), listing=True)
            silent = sorted(map(job_from, rows), key=newness, reverse=True)
        return found_jobs(silent, found.next_before, wanted)

    def _found(
        self,
        wanted: JobFilter,
        *,
        uncorrelated_id: JobId | None = None,
        kinds: ListedKinds = None,
    ) -> tuple[list[Job], JobId | None]:
        """Jobs, and the last one that was read if a search stopped at its limit."""
        if not wanted.is_search:
            query = self._jobs_query(wanted, uncorrelated_id=uncorrelated_id, kinds=kinds)
            return [job_from(row) for row in self._rows(query, listing=True)], None
        few = msgspec.structs.replace(wanted, reads=min(FIRST_READS, wanted.reads))
        rows, last = self._searched(self._search_queries(few, uncorrelated_id, kinds))
        if last and len(rows) < wanted.limit and few != wanted:
            rows, last = self._searched(self._search_queries(wanted, uncorrelated_id, kinds))
        return [job_from(row) for row in rows], JobId(last[0][0]) if last else None

    def _searched(self, queries: tuple[Query, Query]) -> list[list[Row]]:
        return self._read(lambda tx: tx.fetch(*queries, last=True), listing=True)

    def _kinds_to_list(self, wanted: JobFilter) -> ListedKinds:
        """The kinds of jobs that wait, are leased or have ended, if a list of all jobs of a common
        status is to be merged from them. None if there are too many: then all jobs are read, newest
        first, or all leases."""
        if not _is_by_common_status(wanted):
            return {}
        phases = [phase for status, phase in _COMMON.items() if status in wanted.statuses]
        answers = self._read(
            lambda tx: tx.fetch(
                *[
                    self._query(
                        "listed_kinds",
                        (("phase", phase),),
                        namespace=wanted.namespace,
                        kinds=MAX_LISTED_KINDS + 1,
                    )
                    for phase in phases
                ],
                last=True,
            ),
            listing=True,
        )
        found = {
            phase: [kind for (kind,) in rows] for phase, rows in zip(phases, answers, strict=True)
        }
        return None if sum(map(len, found.values())) > MAX_LISTED_KINDS else found

    def _search_queries(
        self, wanted: JobFilter, uncorrelated_id: JobId | None, kinds: ListedKinds
    ) -> tuple[Query, Query]:
        """The jobs of a page, and the last job that may be read for it."""
        arms, given = self._listed_ids(wanted, uncorrelated_id, kinds)
        given |= {name: getattr(wanted, name) for name in _SEARCHED}
        if wanted.error is not None:
            given["error"] = f"%{_literally(wanted.error)}%"
        if wanted.meta is not None:
            given["meta"] = encode_document(dict([meta_entry("meta", wanted.meta)]))[1:-1]
        searched = " ".join(
            clause for name, clause in _SEARCHED.items() if getattr(wanted, name) is not None
        )
        given |= {"reads": wanted.reads, "skipped": wanted.reads - 1}
        columns = ("columns", _JOB_COLUMNS[wanted.bodies])
        return (
            self._query("search_jobs", (columns, arms, ("searched", searched)), **given),
            self._query("last_job_read", (arms,), **given),
        )

    def _jobs_query(
        self,
        wanted: JobFilter,
        *,
        uncorrelated_id: JobId | None = None,
        kinds: ListedKinds = None,
    ) -> Query:
        arms, given = self._listed_ids(wanted, uncorrelated_id, kinds)
        columns = ("columns", _JOB_COLUMNS[wanted.bodies])
        return self._query("list_jobs", (columns, arms), **given)

    def _listed_ids(
        self, wanted: JobFilter, uncorrelated_id: JobId | None, kinds: ListedKinds
    ) -> tuple[tuple[str, str], dict[str, object]]:
        """The placeholder for the parts that a list is merged from, and their parameters."""
        lowest, highest = (
            (None, None) if wanted.id_prefix is None else job_id_range(wanted.id_prefix)
        )
        given: dict[str, object] = {
            "statuses": self._pack([status.value for status in wanted.statuses])
            if wanted.statuses
            else None,
            "queue": wanted.queue,
            "kind": wanted.kind,
            "correlation_id": wanted.correlation_id,
            "uncorrelated_id": uncorrelated_id,
            "reason_code": wanted.reason_code and wanted.reason_code.value,
            "stage": wanted.stage and wanted.stage.value,
            "schedule": wanted.schedule,
            "flow_id": wanted.flow_id,
            "id_from": lowest,
            "id_to": highest,
            "enqueued_since": wanted.enqueued_since,
            "enqueued_until": wanted.enqueued_until,
            "finished_until": wanted.finished_until,
            "before": wanted.before,
        }
        clauses = [_JOB_CLAUSES[name] for name, value in given.items() if value is not None]
        clauses.append(_JOB_FLAGS[wanted.resolved])
        given |= {"namespace": wanted.namespace, "limit": wanted.limit, "reads": wanted.limit}
        given |= {"before_at": wanted.before and last_instant_of(wanted.before)}
        given |= {f"kind_{n}": kind for n, kind in enumerate(chain(*(kinds or {}).values()))}
        is_narrow = uncorrelated_id or wanted.reason_code or _has_narrow_index(wanted)
        arms = []
        for arm in _listing_arms(wanted, kinds):
            is_all = not arm and not is_narrow
            columns = _OF_ALL_JOBS if is_all else _OF_SOME_JOBS
            values = {
                "index": _index_of(arm, wanted),
                "clauses": fill(" ".join([*clauses, arm]), columns),
            }
            arms.append(fill(self._text("list_all_jobs" if is_all else "list_some_jobs"), values))
        return ("arms", " UNION ALL ".join(arms)), given

    def dead_letter_groups(self, wanted: DeadLetterGroupFilter) -> DeadLetterGroups:
        """The newest dead letters without a resolution, by kind and error. [OB31]"""
        given = {"namespace": wanted.namespace, "letters": MAX_GROUPED}
        rows, beyond, [(now, _)] = self._read(
            lambda tx: tx.fetch(
                self._query("letters_to_group", head=ERROR_HEAD, **given),
                self._query("first_ungrouped_letter", **given),
                self._query("moment"),
                last=True,
            ),
            listing=True,
        )
        letters = [
            Letter(
                JobId(job_id),
                QueueName(queue),
                Kind(kind),
                ReasonCode(reason_code),
                None if stage is None else Stage(stage),
                Instant(finished_at),
                headline_of(head),
                None if flow_id is None else FlowId(flow_id),
            )
            for job_id, queue, kind, reason_code, stage, finished_at, head, flow_id in rows
        ]
        return group(letters, wanted, now=Instant(now), complete=not beyond)

    def _previews(self, ids: Sequence[JobId]) -> dict[JobId, str]:
        """The beginnings of the payloads of these jobs. [H53]"""
        query = self._query("load_previews", ids=self._pack(ids), chars=PREVIEW_CHARS)
        return {JobId(str(job_id)): start for job_id, start in self._rows(query, listing=True)}


def _listing_arms(wanted: JobFilter, kinds: ListedKinds) -> Sequence[str]:
    """Conditions that together leave no listed job out, each with an index of its own."""
    if kinds:
        return _arms_by_kind(wanted, kinds)
    if _has_narrow_index(wanted):
        return [""]
    if wanted.queue is not None or wanted.kind is not None:
        leased = _LEASED if wanted.queue is None else f"{_LEASED} AND queue = :queue"
        if not wanted.statuses:
            return [_WAITING, leased, _ENDED]
        arms = _COMMON | _STATUS_ARMS | {JobStatus.RUNNING: leased}
        return list(dict.fromkeys(arms[status] for status in wanted.statuses))
    if wanted.statuses and all(status in _STATUS_ARMS for status in wanted.statuses):
        return list(dict.fromkeys(_STATUS_ARMS[status] for status in wanted.statuses))
    return [""]


def _index_of(arm: str, wanted: JobFilter) -> str:
    if arm == _LEASED and wanted.kind is None:
        return "{by_leases}"
    if not arm and wanted.id_prefix:
        return "{by_id}"
    if not arm and wanted.flow_id:
        return "{by_flow}"
    return _INDEX_OF_ARM.get(arm, "")


def _has_narrow_index(wanted: JobFilter) -> bool:
    """Whether it asks for something that few jobs share and that has an index."""
    return any((wanted.correlation_id, wanted.schedule, wanted.flow_id, wanted.id_prefix))


def _is_by_common_status(wanted: JobFilter) -> bool:
    """Whether jobs are listed by a status of many jobs, and by nothing that an index has."""
    is_indexed = wanted.queue or wanted.kind or _has_narrow_index(wanted)
    return not is_indexed and not _COMMON.keys().isdisjoint(wanted.statuses)


def _arms_by_kind(wanted: JobFilter, kinds: Mapping[str, Sequence[str]]) -> list[str]:
    phases = [phase for phase, found in kinds.items() for _ in found]
    arms = [f"{phase} AND kind || '' = :kind_{n}" for n, phase in enumerate(phases)]
    arms += dict.fromkeys(_STATUS_ARMS[each] for each in wanted.statuses if each not in _COMMON)
    return arms or [_NOTHING]


def _literally(text: str) -> str:
    """Text as a pattern that finds it, in lower case: see `{error_text}`."""
    escaped = re.sub(r"([!%_])", r"!\1", text)
    return "".join(each.lower() if each.isascii() else each for each in escaped)


def headline_of(head: str) -> str:
    """The type and the first line of an error, from the beginning of its document."""
    if len(head) < ERROR_HEAD:
        return _decode_error(head).headline[:MAX_HEADLINE]
    before_traceback = head.partition(',"traceback":')[0]
    texts = [_found(each, before_traceback) for each in (_TYPE, _MESSAGE)]
    return JobError(type=texts[0], message=texts[1]).headline[:MAX_HEADLINE]


def _found(field: re.Pattern[str], head: str) -> str:
    found = field.search(head)
    return "" if found is None else _decode_text(f'"{found[1]}"')
