"""Requests about one job: under which id, for which revision of the job, and why one was refused.

Decides nothing: the coordinator compares what a request expects with the job. [K12]
"""

from typing import Any, TypedDict

from tenure.client.channel import Channel
from tenure.client.shells import Operation
from tenure.core.commands import Command, Redrive
from tenure.core.ids import JobId, RequestId
from tenure.core.job import Job as StoredJob
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause
from tenure.errors import Conflict, UnknownJob
from tenure.handlers.options import check_known, plain


class RequestOptions(TypedDict, total=False):
    """What every request about one job may state. Repeated under the same `request_id`, it is
    carried out once. [Q4] With an `expected_rev`, the `rev` of a `JobRecord`, it is carried out
    only if the job has not changed since; otherwise it raises `Conflict`. [K12]"""

    request_id: str
    expected_rev: int


_OPTIONS = frozenset(RequestOptions.__annotations__)


def requested(channel: Channel, options: RequestOptions, *, of: str) -> dict[str, Any]:
    """The fields of a command that these options set; `of` is what was called."""
    check_known(dict(options), _OPTIONS, of=of)
    given = options.get("request_id")
    return {
        "request_id": channel.new_request_id() if given is None else RequestId(plain(given)),
        "expected_rev": options.get("expected_rev"),
    }


def commanding(channel: Channel, command: Command) -> Operation[StoredJob]:
    """The job after the command, or the new one of a redrive. Raises why it was refused."""
    [answer] = yield from channel.submitting([command])
    assert isinstance(answer, Reply)
    if answer.job is None:
        raise UnknownJob(command.job_id)
    if answer.cause is not None:
        raise refusal(command.job_id, answer)
    if isinstance(command, Redrive) and answer.deduplicated:
        raise Conflict(
            job_id=command.job_id,
            cause=Cause.DEDUPE_KEY_HELD,
            status=command.expected_status,
            hint=f"job {answer.job.id} holds its dedupe key; nothing was made",
        )
    return answer.job


_HINTS = {
    Cause.IDEMPOTENCY_KEY_REUSE: "this id was used for another request; make a new one",
    Cause.JOB_FINISHED: "it has ended, and ended jobs do not change",
    Cause.REVISION_MISMATCH: "its rev is {rev} now; look at it again",
    Cause.DEDUPE_KEY_HELD: "a job that this token may not see holds the dedupe key; keys are unique"
    " within a namespace and a kind, whatever the queue",
    Cause.COMPENSATION_PROTECTED: "a compensation cannot be cancelled",
    Cause.PART_OF_FLOW: "it is a job of a flow; app.flows.redrive(flow_id) replaces all jobs of a"
    " flow that did not succeed",
}


def refusal(job_id: JobId, reply: Reply) -> Conflict:
    """Why a request was refused, as an error."""
    assert reply.cause is not None
    job = reply.job
    rev = None if job is None else job.rev
    return Conflict(
        job_id=job_id,
        cause=reply.cause,
        status=None if job is None else job.status,
        rev=rev,
        hint=_HINTS.get(reply.cause, "").format(rev=rev),
    )
