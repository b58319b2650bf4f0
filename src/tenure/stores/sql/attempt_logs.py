"""The output of attempts. A mixin of `SqlStore`, which owns jobs and events."""

from tenure.core.attempt_logs import MAX_SHOWN_LOGS, AttemptLog, AttemptOutput
from tenure.core.failover import is_settling
from tenure.core.ids import Epoch, JobId
from tenure.core.instants import Instant
from tenure.core.lateness import why_not_on_record
from tenure.core.vocabulary import Cause
from tenure.stores.sql.transactions import Transaction, Transactional

LOG_COLUMNS: tuple[str, ...] = AttemptLog.__struct_fields__
COLUMN_WORDS = {"log_columns": ", ".join(LOG_COLUMNS)}


class AttemptLogs(Transactional):
    """The part of `tenure.ports.Store` about the output of attempts."""

    def put_attempt_log(self, output: AttemptOutput) -> Cause | None:
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

    def load_attempt_logs(self, job_id: JobId) -> list[AttemptLog]:
        """The kept output of the latest attempts, in order. [B26]"""
        query = self._query("load_attempt_logs", job_id=job_id, limit=MAX_SHOWN_LOGS)
        rows = reversed(self._rows(query))
        return [AttemptLog(**dict(zip(LOG_COLUMNS, row, strict=True))) for row in rows]
