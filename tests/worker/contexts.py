"""The context of an attempt whose supervisor is a function of the test."""

from collections.abc import Callable

from tenure.clock import Boot, boot_now
from tenure.core.ids import JobId, Kind, LeaseId, QueueName
from tenure.core.instants import seconds
from tenure.core.validation import Limits
from tenure.worker.child.context import AttemptContext
from tenure.worker.frames import Ask, AskAnswer, Run, ToSupervisor
from tenure.worker.supervisor.requests import HandlerRequest

PARENT = JobId("0190a5d4-7c3e-7000-8000-000000000001")
LEASE = LeaseId("1-0123456789abcdef0123456789abcdef")


def context_of(
    supervisor: Callable[[HandlerRequest], AskAnswer | None],
    *,
    job_id: JobId = PARENT,
    lease_id: LeaseId = LEASE,
    lease_s: float = 60,
) -> AttemptContext:
    """A context. What its handler asks is given to `supervisor`, which may answer."""

    def send(message: ToSupervisor) -> None:
        assert isinstance(message, Ask)
        answer = supervisor(HandlerRequest(message, job_id, lease_id))
        if answer is not None:
            context.receive(answer)

    context = AttemptContext(
        Run(
            run=1,
            job_id=job_id,
            kind=Kind("it"),
            queue=QueueName("q"),
            attempt=1,
            fence=1,
            correlation_id=None,
            checkpoint=None,
            payload=b"{}",
            until=Boot(boot_now() + seconds(lease_s)),
        ),
        send=send,
        limits=Limits(),
    )
    return context
