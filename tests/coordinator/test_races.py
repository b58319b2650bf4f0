"""Races on real stores: callers as separate processes have them, each with a store of its own."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Complete, DeadLetter, Enqueue, Heartbeat, Redrive
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    JobId,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    operator_actor,
    worker_actor,
)
from tenure.core.job import Progress
from tenure.core.verdicts import Answer, Grant, Reply, Verdict
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import Cause, ReasonCode, VerdictKind
from tenure.wiring import open_store
from tenure_conformance.harness import race
from tenure_conformance.spec import spec

QUEUE = QueueName("q")
WORKER = worker_actor("w")
OPERATORS = 4
ROUNDS = 20
HEARTBEATS = 20


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


def _enqueued(coordinator: Coordinator, name: str) -> JobId:
    job_id = new_job_id(coordinator.store.now(), name.encode().ljust(16, b"."))
    coordinator.execute(
        Enqueue(
            job_id=job_id,
            namespace=DEFAULT_NAMESPACE,
            queue=QUEUE,
            kind=Kind("k"),
            actor=client_actor("c"),
        )
    )
    return job_id


def _dead_letter(coordinator: Coordinator, name: str) -> JobId:
    job_id = _enqueued(coordinator, name)
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
def test_concurrent_redrives_of_one_dead_letter_make_one_job(
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
    everything = (
        coordinators[0].store.views.jobs(JobFilter(namespace=DEFAULT_NAMESPACE, limit=100)).jobs
    )
    assert len(everything) == 2 * ROUNDS


@spec("K8")
@pytest.mark.slow
def test_a_report_that_races_many_heartbeats_of_its_lease_is_answered(
    coordinators: list[Coordinator],
) -> None:
    for number in range(ROUNDS):
        _enqueued(coordinators[0], f"round {number}")
        [grant] = coordinators[0].claim(_claim(number)).grants

        verdict = _completed_beside_heartbeats(coordinators, grant)

        assert isinstance(verdict, Verdict)
        assert verdict.kind is VerdictKind.COMMITTED


def _completed_beside_heartbeats(coordinators: list[Coordinator], grant: Grant) -> Answer | None:
    lease: dict[str, Any] = {"job_id": grant.job_id, "lease_id": grant.lease_id, "actor": WORKER}
    numbers = itertools.count(1)
    is_answered = threading.Event()

    def beat(coordinator: Coordinator) -> None:
        while not is_answered.is_set():
            number = next(numbers)
            news = Progress(done=number)  # one without news would not be recorded [L16]
            coordinator.execute(Heartbeat(hb_seq=number, progress=news, **lease))

    def complete() -> Answer:
        try:
            return coordinators[0].execute(Complete(request_id=RequestId("done"), **lease))
        finally:
            is_answered.set()

    beats = [partial(beat, coordinators[each % OPERATORS]) for each in range(HEARTBEATS)]
    return race(*beats, complete)[-1]


def _claim(number: int) -> ClaimRequest:
    return ClaimRequest(
        namespace=DEFAULT_NAMESPACE,
        worker=WorkerId("w"),
        actor=WORKER,
        queues=(QUEUE,),
        limit=1,
        claim_seq=number + 1,
        request_id=RequestId(f"claim-{number}"),
    )
