"""What the SQL stores keep beside the log: resolutions of dead letters.

A mixin of `SqlStore`, which owns jobs and events. Nothing here changes a job or writes an event.
"""

from collections.abc import Iterable, Sequence

from tenure.core.beside import Resolution
from tenure.core.ids import JobId
from tenure.core.vocabulary import ResolutionKind
from tenure.stores.sql.transactions import Transaction, Transactional

RESOLUTION_COLUMNS: tuple[str, ...] = Resolution.__struct_fields__

COLUMN_WORDS = {"resolution_columns": ", ".join(RESOLUTION_COLUMNS)}

PURGED_WITH_A_JOB = ("delete_resolutions",)
"""The statements that take along what is kept beside a purged job's log. [B6]"""


class BesideTheLog(Transactional):
    """The part of `tenure.ports.Store` that is not about jobs and their events."""

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

    def load_resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters."""
        found = {}
        for row in self._rows(self._ask("load_resolutions", ids=self._pack(ids))):
            facts = dict(zip(RESOLUTION_COLUMNS, row, strict=True))
            found[JobId(row[0])] = Resolution(**facts | {"kind": ResolutionKind(facts["kind"])})
        return found
