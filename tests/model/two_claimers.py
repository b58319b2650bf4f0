"""What the models of two claimers that race for the jobs of one key share: the jobs, a claim of all
that the real planner grants, and the search through every state."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import TypeVar

from tenure.core.claims import ClaimPlan, ClaimRequest, ClaimView, plan_claims
from tenure.core.commands import Enqueue
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Epoch,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    worker_actor,
)
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.lifecycle import decide
from tenure.core.outcomes import Applied, DecisionContext

State = TypeVar("State")

QUEUE, KIND = QueueName("q"), Kind("bill")
NOW = Instant(1_000_000)
NOBODY = -1


@cache
def ready_job(
    number: int, *, concurrency_key: str | None = None, rate_key: str | None = None
) -> Job:
    """A job that was enqueued at `NOW`. Those with a lower number come first."""
    command = Enqueue(
        job_id=new_job_id(NOW, bytes([number, number] * 8)),
        namespace=DEFAULT_NAMESPACE,
        queue=QUEUE,
        kind=KIND,
        actor=client_actor("c"),
        concurrency_key=concurrency_key,
        rate_key=rate_key,
    )
    outcome = decide(command, DecisionContext(now=NOW, epoch=Epoch(1), entropy=bytes(16)))
    assert isinstance(outcome, Applied)
    return outcome.change.job


def plan_of_all(view: ClaimView) -> ClaimPlan:
    """What the real planner decides if a claim asks for all candidates."""
    request = ClaimRequest(
        namespace=DEFAULT_NAMESPACE,
        worker=WorkerId("w"),
        actor=worker_actor("w"),
        queues=(QUEUE,),
        limit=len(view.candidates),
        claim_seq=1,
        request_id=RequestId("r"),
    )
    return plan_claims([request], view, [bytes([n] * 16) for n in range(len(view.candidates))])


def explored(start: State, following: Callable[[State], Iterable[State]]) -> set[State]:
    """Every state that can be reached."""
    known, new = {start}, [start]
    while new:
        for state in following(new.pop()):
            if state not in known:
                known.add(state)
                new.append(state)
    return known
