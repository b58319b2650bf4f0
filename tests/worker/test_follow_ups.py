"""The errors of a handler whose job could not be enqueued."""

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from tenure.core.commands import Command, JobSpec
from tenure.core.ids import DEFAULT_NAMESPACE, JobId, Kind, QueueName, WorkerId, worker_actor
from tenure.core.verdicts import Answer, Reply
from tenure.core.vocabulary import Cause
from tenure.errors import InvalidInput, LeaseConflictError
from tenure.handlers.calls import Call
from tenure.worker.child.context import AttemptContext
from tenure.worker.frames import AskAnswer
from tenure.worker.supervisor.requests import HandlerRequest, HandlerRequests
from tenure_conformance.spec import spec
from tests.worker.contexts import context_of

SPEC = JobSpec(kind=Kind("ship"), queue=QueueName("q"), payload=b"7", dedupe_key="order-7")
CALL: Call[object] = Call(SPEC, JobId("0190a5d4-7c3e-7000-8000-000000000003"))


class Refusing:
    """A coordinator that refuses every follow-up."""

    def __init__(self, cause: Cause) -> None:
        self._cause = cause

    def submit_many(self, commands: Sequence[Command]) -> "Future[list[Answer]]":
        future: Future[list[Answer]] = Future()
        future.set_result([Reply(job=None, cause=self._cause) for _ in commands])
        return future


def handler_refused_for(cause: Cause) -> AttemptContext:
    requests = HandlerRequests(
        Refusing(cause),  # type: ignore[arg-type]  # it is asked nothing else
        actor=worker_actor(WorkerId("w")),
        namespace=DEFAULT_NAMESPACE,
    )

    def supervisor(request: HandlerRequest) -> AskAnswer:
        answers: list[AskAnswer] = []
        requests.enqueue(request, answers.append)
        return answers[0]

    return context_of(supervisor)


@spec("D6")
def test_a_key_that_a_hidden_job_holds_fails_the_handler_which_still_has_its_lease() -> None:
    with pytest.raises(InvalidInput, match="may not see holds the key 'order-7'"):
        handler_refused_for(Cause.DEDUPE_KEY_HELD).enqueue(CALL)


@spec("D10")
@pytest.mark.parametrize("cause", [Cause.LEASE_EXPIRED, Cause.INVALID_LEASE, Cause.EPOCH_CHANGED])
def test_a_lost_lease_is_a_conflict_of_the_lease(cause: Cause) -> None:
    with pytest.raises(LeaseConflictError, match=cause.value):
        handler_refused_for(cause).enqueue(CALL)
