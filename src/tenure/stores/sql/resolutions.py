"""Resolutions of dead letters. A mixin of `SqlStore`, which owns jobs and events."""

from collections.abc import Iterable, Sequence

from tenure.core.ids import JobId
from tenure.core.outcomes import Change
from tenure.core.resolutions import Resolution
from tenure.core.vocabulary import ResolutionKind
from tenure.ports import DeadLetter, JobFilter
from tenure.stores.sql.queries import SqlQueries
from tenure.stores.sql.rows import word_from
from tenure.stores.sql.transactions import Transaction

RESOLUTION_COLUMNS: tuple[str, ...] = Resolution.__struct_fields__
COLUMN_WORDS = {"resolution_columns": ", ".join(RESOLUTION_COLUMNS)}


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

    def load_resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters."""
        found = {}
        for row in self._rows(self._query("load_resolutions", ids=self._pack(ids))):
            facts = dict(zip(RESOLUTION_COLUMNS, row, strict=True))
            where = f"the resolution of job {row[0]}"
            kind = word_from(ResolutionKind, facts["kind"], where=where)
            found[JobId(row[0])] = Resolution(**facts | {"kind": kind})
        return found


def letters_of(changes: Iterable[Change]) -> list[JobId]:
    """The dead letters that these changes resolve."""
    return [each.resolution.job_id for each in changes if each.resolution is not None]
