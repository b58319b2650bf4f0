"""The output of attempts in the reference store."""

from collections.abc import Collection

from tenure.core.artifacts import MAX_SHOWN_LOGS, AttemptLog, AttemptOutput
from tenure.core.ids import JobId
from tenure.core.leases import why_not_on_record
from tenure.core.vocabulary import Cause, EventType
from tests.conformance.reference.part import MemoryPart


class MemoryAttemptLogs(MemoryPart):
    """The part of `tenure.ports.Store` about the output of attempts."""

    def __init__(self) -> None:
        super().__init__()
        self._logs: dict[tuple[JobId, int], AttemptLog] = {}
        self._log_parts: dict[tuple[JobId, int], int] = {}

    def put_attempt_log(self, output: AttemptOutput) -> Cause | None:
        """Keep the output of the attempt that this lease was issued for."""
        with self._lock:
            self._open()
            for event in self._events.get(output.job_id, ()):
                if (
                    event.type is EventType.CLAIMED
                    and event.lease_id == output.lease_id
                    and event.actor == output.actor
                ):
                    self._keep_output(output, event.attempt)
                    return None
            return why_not_on_record(
                output.lease_id,
                is_known_job=output.job_id in self._jobs,
                epoch=self._epoch,
                is_settling=False,
            )

    def _keep_output(self, output: AttemptOutput, attempt: int) -> None:
        key = (output.job_id, attempt)
        if output.part > self._log_parts.get(key, -1):
            self._log_parts[key] = output.part
            self._logs[key] = AttemptLog(
                job_id=output.job_id,
                attempt=attempt,
                text=output.text,
                left_out_bytes=output.left_out_bytes,
            )

    def load_attempt_logs(self, job_id: JobId) -> list[AttemptLog]:
        """The kept output of the latest attempts, in order. [B26]"""
        with self._lock:
            self._open()
            logs = [log for key, log in sorted(self._logs.items()) if key[0] == job_id]
            return logs[-MAX_SHOWN_LOGS:]

    def _purge_attempt_logs(self, gone: Collection[JobId]) -> None:
        self._logs = {k: v for k, v in self._logs.items() if k[0] not in gone}
        self._log_parts = {k: v for k, v in self._log_parts.items() if k[0] not in gone}
