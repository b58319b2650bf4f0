"""Hints: a store may notify waiting processes, and returns when the next job is due."""

from tenure.core.ids import DEFAULT_NAMESPACE, Namespace, QueueName
from tenure.core.instants import seconds
from tenure.ports import Hint, NextReady
from tenure_conformance.harness import QUEUE, Kit
from tenure_conformance.spec import spec

OTHER_QUEUE = QueueName("other")


def _next(kit: Kit, *queues: QueueName) -> NextReady:
    return kit.store.claims.next_ready(DEFAULT_NAMESPACE, queues or (QUEUE,))


@spec("Z7")
def test_a_store_says_when_the_next_job_of_a_queue_is_due(kit: Kit) -> None:
    before = _next(kit)
    kit.enqueue(delay_s=20)
    kit.enqueue(delay_s=10, priority=-5)
    later = _next(kit)
    kit.enqueue()
    ready = _next(kit)
    kit.advance(seconds=15)
    due = _next(kit)
    kit.advance(seconds=15)

    assert before == NextReady(is_ready=False)
    assert later == NextReady(is_ready=False, later_in_us=seconds(10))
    assert ready == NextReady(is_ready=True, later_in_us=seconds(10))
    assert due == NextReady(is_ready=True, later_in_us=seconds(5))
    assert _next(kit) == NextReady(is_ready=True)


@spec("Z7")
def test_jobs_of_other_queues_and_namespaces_and_jobs_that_run_are_not_due(kit: Kit) -> None:
    kit.running_job()
    kit.enqueue(queue=OTHER_QUEUE)
    kit.enqueue(namespace=Namespace("elsewhere"))

    assert _next(kit) == NextReady(is_ready=False)
    assert _next(kit, QUEUE, OTHER_QUEUE) == NextReady(is_ready=True)


@spec("Z7")
def test_a_retry_is_due_after_its_backoff(kit: Kit) -> None:
    job = kit.running_job()
    kit.fail(job)

    waits = kit.reload(job)

    assert waits.run_at is not None
    assert _next(kit).later_in_us == waits.run_at - kit.now()


@spec("Z7")
def test_watching_changes_nothing_and_ends_when_it_is_told_to(kit: Kit) -> None:
    heard: list[Hint | None] = []
    stop = kit.store.watch(heard.append)
    job = kit.enqueue()
    stop()
    before = len(heard)

    kit.complete(kit.claimed()[0])

    assert kit.reload(job).status.is_terminal
    assert len(heard) == before
