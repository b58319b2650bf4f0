"""Resolutions of dead letters. A mixin of `SqlStore`, which owns jobs and events."""

import re
from collections.abc import Iterable, Sequence

import msgspec

from tenure.core.dead_letter_groups import (
    MAX_GROUPED,
    MAX_HEADLINE,
    DeadLetterGroupFilter,
    DeadLetterGroups,
    Letter,
    group,
)
from tenure.core.ids import FlowId, JobId, Kind, QueueName
from tenure.core.instants import Instant
from tenure.core.job import JobError
from tenure.core.job_search import JobFilter
from tenure.core.outcomes import Change
from tenure.core.resolutions import Resolution
from tenure.core.vocabulary import ReasonCode, ResolutionKind, Stage
from tenure.ports import DeadLetter
from tenure.stores.sql.queries import SqlQueries
from tenure.stores.sql.rows import word_from
from tenure.stores.sql.transactions import Transaction

RESOLUTION_COLUMNS: tuple[str, ...] = Resolution.__struct_fields__
_decode_error = msgspec.json.Decoder(JobError).decode
COLUMN_WORDS = {"resolution_columns": ", ".join(RESOLUTION_COLUMNS)}


ERROR_HEAD = 2000
"""Characters of an error's document that are read for its type and first line: a traceback makes
the whole one far longer."""

_TEXT = r'"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*)'
_TYPE = re.compile(f'"type":{_TEXT}')
_MESSAGE = re.compile(f'"message":{_TEXT}')
"""The text of a field, up to the last whole character before the document was cut."""
_decode_text = msgspec.json.Decoder(str).decode


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


class Resolutions(SqlQueries):
    """The part of `tenure.ports.Store` about resolutions."""

    def resolve(self, resolutions: Sequence[Resolution]) -> frozenset[JobId]:
        """Record each unless its job has one or is gone. Returns the jobs that got one. [B1]"""
        return self._write(lambda tx: self._keep_resolutions(tx, resolutions))

    def _keep_resolutions(
        self, tx: Transaction, resolutions: Iterable[Resolution]
    ) -> frozenset[JobId]:
        kept = set()
        for each in sorted(resolutions, key=lambda resolution: resolution.job_id):
            facts = {name: getattr(each, name) for name in RESOLUTION_COLUMNS}
            facts["kind"] = each.kind.value
            # Locked, so that a purge cannot leave a resolution without its job.
            _, written = tx.fetch(
                self._query("hold_job", job_id=each.job_id), self._query("keep_resolution", **facts)
            )
            if written:
                kept.add(each.job_id)
        return frozenset(kept)

    def _first_to_resolve(self, tx: Transaction, changes: Sequence[Change]) -> list[Change]:
        """The changes without those whose dead letter is gone or has a resolution. [B17] The caller
        locks the dead letters first; otherwise another transaction could resolve them meanwhile."""
        letters = letters_of(changes)
        if not letters:
            return list(changes)
        [rows] = tx.fetch(self._query("unresolved_among", ids=self._pack(letters)))
        unresolved = {JobId(str(row[0])) for row in rows}
        first: list[Change] = []
        for change in changes:
            if change.resolution is not None:
                if change.resolution.job_id not in unresolved:
                    continue
                unresolved.remove(change.resolution.job_id)  # one change for each dead letter
            first.append(change)
        return first

    def list_dead_letters(self, wanted: JobFilter) -> list[DeadLetter]:
        """A page of dead letters, newest first."""
        jobs = self.list_jobs(wanted)
        resolutions = self.load_resolutions([job.id for job in jobs])
        return [DeadLetter(job, resolutions.get(job.id)) for job in jobs]

    def group_dead_letters(self, wanted: DeadLetterGroupFilter) -> DeadLetterGroups:
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

    def load_resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters."""
        found = {}
        for row in self._rows(self._query("load_resolutions", ids=self._pack(ids))):
            facts = dict(zip(RESOLUTION_COLUMNS, row, strict=True))
            where = f"the resolution of job {row[0]}"
            kind = word_from(ResolutionKind, facts["kind"], where=where)
            found[JobId(row[0])] = Resolution(**facts | {"kind": kind})
        return found


def resolved_by(change: Change) -> tuple[Resolution, ...]:
    """What a change that was applied says of dead letters."""
    return change.resolutions if change.resolution is None else (change.resolution,)


def letters_of(changes: Iterable[Change]) -> list[JobId]:
    """The dead letters that these changes resolve."""
    return [each.resolution.job_id for each in changes if each.resolution is not None]
