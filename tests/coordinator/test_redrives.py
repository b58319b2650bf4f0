"""Redrives that race: of one dead letter, several processes make one job."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tenure.conformance.harness import race
from tenure.conformance.spec import spec
from tenure.coordinator.service import Coordinator
from tenure.core.commands import DeadLetter, Enqueue, Redrive
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    JobId,
    Kind,
    QueueName,
    RequestId,
    client_actor,
    new_job_id,
    operator_actor,
)
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause, ReasonCode
from tenure.ports import JobFilter
from tenure.wiring import open_store

OPERATORS = 4
ROUNDS = 10


@pytest.fixture(params=["sqlite", "postgres"])
def coordinators(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[list[Coordinator]]:
    """Coordinators as separate processes have them: each with a store of its own."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/tenure.db"
    else:
        url = request.getfixturevalue("postgres_url")
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(open_store(url, migrate=True)))]
        stores += [stack.enter_context(closing(open_store(url))) for _ in range(OPERATORS - 1)]
        yield [stack.enter_context(closing(Coordinator(store))) for store in stores]


def _dead_letter(coordinator: Coordinator, name: str) -> JobId:
    job_id = new_job_id(coordinator.now(), name.encode().ljust(16, b"."))
    coordinator.execute(
        Enqueue(
            job_id=job_id,
            namespace=DEFAULT_NAMESPACE,
            queue=QueueName("q"),
            kind=Kind("k"),
            actor=client_actor("c"),
        )
    )
    coordinator.execute(
        DeadLetter(
            job_id=job_id,
            actor=operator_actor("o"),
            request_id=RequestId("dead"),
            reason_code=ReasonCode.POLICY_VIOLATION,
        )
    )
    return job_id


@spec("B17", "T27")
def test_of_one_dead_letter_several_operators_at_once_make_one_job(
    coordinators: list[Coordinator],
) -> None:
    for number in range(ROUNDS):
        job_id = _dead_letter(coordinators[0], f"round {number}")

        replies = race(
            *(
                lambda each=each, who=who, job_id=job_id: each.execute(
                    Redrive(
                        job_id=job_id,
                        actor=operator_actor(f"shell-{who}"),
                        request_id=RequestId(f"request-{who}"),
                    )
                )
                for who, each in enumerate(coordinators)
            )
        )

        heard = [reply for reply in replies if isinstance(reply, Reply)]
        made = [reply.job.id for reply in heard if reply.is_ok and reply.job is not None]
        refused = [reply for reply in heard if not reply.is_ok]
        assert len(made) == 1
        assert {reply.cause for reply in refused} == {Cause.ALREADY_RESOLVED}
        named = [reply.resolution and reply.resolution.new_job_id for reply in refused]
        assert named == made * (OPERATORS - 1)
    everything = coordinators[0].store.list_jobs(JobFilter(namespace=DEFAULT_NAMESPACE, limit=100))
    assert len(everything) == 2 * ROUNDS
