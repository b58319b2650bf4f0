"""Makes lines of an ack file from commands and answers of the core.

For callers that have such commands (tests, the store kit, the demo); others fill in `Ack`
themselves.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from tenure.core.claims import ClaimRequest
from tenure.core.commands import (
    Cancel,
    Complete,
    DeadLetter,
    Enqueue,
    EnqueueFlow,
    Fail,
    FollowUp,
    Heartbeat,
    OperatorCommand,
    Redrive,
    Release,
    Requeue,
    Stall,
    Start,
    WorkerCommand,
)
from tenure.core.instants import Instant
from tenure.core.verdicts import Grant, Reply, Verdict
from tenure.core.vocabulary import VerdictKind
from tenure.verify.acks import Ack, Op

_OP: dict[type[object], Op] = {
    Enqueue: Op.ENQUEUE,
    FollowUp: Op.ENQUEUE,
    Start: Op.START,
    Heartbeat: Op.HEARTBEAT,
    Complete: Op.COMPLETE,
    Fail: Op.FAIL,
    Release: Op.RELEASE,
    Cancel: Op.CANCEL,
    Stall: Op.STALL,
    Requeue: Op.REQUEUE,
    DeadLetter: Op.DEAD_LETTER,
    Redrive: Op.REDRIVE,
}

Sent = Enqueue | WorkerCommand | OperatorCommand


def request_line(command: Sent, *, at: Instant) -> Ack:
    """The line to write before a command goes out."""
    lease_id = None
    if isinstance(command, Start | Heartbeat | Complete | Fail | Release):
        lease_id = command.lease_id
    return Ack(
        op=_OP[type(command)],
        job_id=command.job_id,
        at=at,
        request_id=None if isinstance(command, Enqueue) else command.request_id,
        lease_id=lease_id,
        hb_seq=command.hb_seq if isinstance(command, Heartbeat) else None,
    )


def answer_line(command: Sent, answer: Verdict | Reply, *, at: Instant) -> Ack:
    """The line to write when its answer has arrived."""
    line = request_line(command, at=at)
    if isinstance(answer, Verdict):
        return replace(
            line,
            answer=answer.kind,
            settled=answer.settled,
            replayed=answer.replayed and isinstance(command, Heartbeat),
            cause=answer.cause,
        )
    shown = answer.job if answer.is_ok else None
    return replace(
        line,
        answer=VerdictKind.OK if answer.is_ok else VerdictKind.REJECTED,
        answered_id=shown.id if shown is not None and shown.id != line.job_id else None,
        rev=shown.rev if shown is not None else None,
        pending=answer.pending,
        cause=answer.cause,
    )


def flow_lines(command: EnqueueFlow, answer: Reply, *, at: Instant) -> list[Ack]:
    """The lines to write when a flow was answered: one for each of its jobs, or for the first if it
    was refused. None for a handler's flow that exists: it may have other jobs. [FL13]"""
    if answer.replayed and command.handler is not None:
        return []
    if not answer.is_ok:
        return [answer_line(command.members[0].job, answer, at=at)]
    return [
        Ack(op=Op.ENQUEUE, job_id=member.job.job_id, at=at, answer=VerdictKind.OK, rev=1)
        for member in command.members
    ]


def flow_redrive_lines(answer: Reply, *, at: Instant) -> list[Ack]:
    """The lines to write when the redrive of a flow was answered: one for its first new job. The
    others were made in the same transaction."""
    if answer.job is None or not answer.is_ok:
        return []
    return [Ack(op=Op.ENQUEUE, job_id=answer.job.id, at=at, answer=VerdictKind.OK, rev=1)]


def grant_lines(request: ClaimRequest, grants: Iterable[Grant], *, at: Instant) -> list[Ack]:
    """The lines to write when a claim has received grants."""
    return [
        Ack(
            op=Op.CLAIM,
            job_id=grant.job_id,
            at=at,
            request_id=request.request_id,
            lease_id=grant.lease_id,
            answer=VerdictKind.OK,
            rev=grant.job.rev,
        )
        for grant in grants
    ]
