"""Why the coordinator refused a request, in words. The code of the cause follows in brackets."""

from tenure.core.commands import Command, Redrive
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause, JobStatus
from tenure.errors import UnknownJob
from tenure.protocol.fields import iso

_WORDS = {
    Cause.COMPENSATION_PROTECTED: "it compensates another job and cannot be cancelled",
    Cause.COMPENSATION_PENDING: "its compensation has not ended yet; wait for that",
    Cause.IDEMPOTENCY_KEY_REUSE: "this request id was used for a different request",
    Cause.PART_OF_FLOW: "it is a job of a flow",
    Cause.DEDUPE_KEY_HELD: "its dedupe key is held by a job out of this token's scope",  # [D6]
}
_STATUS_WORDS = {
    Cause.JOB_FINISHED: "it is {} already",
    Cause.NOT_FINISHED: "it is {} and has not finished",
    Cause.NOT_HELD: "it is {}, not stalled",
    Cause.NOT_LEASED: "it is {}: no worker has it",
    Cause.NOT_DEAD_LETTERED: "it is {}, not a dead letter",
    Cause.REVISION_MISMATCH: "it is {} and has rev {} now",
}


def refusal(command: Command, reply: Reply) -> str | None:
    """Which job was refused and why; None if the command was accepted."""
    if reply.cause is Cause.UNKNOWN_JOB:
        return str(UnknownJob(command.job_id))
    if reply.cause is not None:
        why = _cause_in_words(reply, reply.cause)
        return f"job {command.job_id}: {why} ({reply.cause.value})"
    if isinstance(command, Redrive) and reply.deduplicated:
        assert reply.job is not None
        return f"job {command.job_id}: its dedupe key is held by job {reply.job.id}"
    return None


def _cause_in_words(reply: Reply, cause: Cause) -> str:
    if reply.resolution is not None:
        resolution = reply.resolution
        new = "" if resolution.new_job_id is None else f" as job {resolution.new_job_id}"
        return f"it was {resolution.kind}{new} by {resolution.actor} at {iso(resolution.ts)}"
    if reply.job is not None and cause is Cause.NOT_HELD and reply.job.status is JobStatus.QUEUED:
        return "it is queued already"
    if reply.job is not None and cause is Cause.NOT_HELD and reply.job.status is JobStatus.WAITING:
        flow = f"; see `tenure flows show {reply.job.flow_id}`" if reply.job.flow_id else ""
        return f"it waits for other jobs of its flow{flow}"
    if reply.job is not None and cause is Cause.PART_OF_FLOW:
        flow_id = reply.job.flow_id
        return f"it is a job of flow {flow_id}; `tenure flows redrive {flow_id}` runs what failed"
    if reply.job is not None and cause in _STATUS_WORDS:
        return _STATUS_WORDS[cause].format(reply.job.status, reply.job.rev)
    return _WORDS.get(cause, "the coordinator refused it")
