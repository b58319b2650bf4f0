"""Hints: a store may tell those who wait, and says when the next job is due."""

from tenure.core.ids import DEFAULT_NAMESPACE, Namespace, QueueName
from tenure.core.instants import Duration, seconds
from tenure.ports import Hint
from tenure_conformance.harness import QUEUE, Kit
from tenure_conformance.spec import spec

OTHER_QUEUE = QueueName("other")


def _next(kit: Kit, *queues: QueueName) -> Duration | None:
    return kit.store.next_ready_in(DEFAULT_NAMESPACE, queues or (QUEUE,))


@spec("Z7")
def test_a_store_says_when_the_next_job_of_a_queue_is_due(kit: Kit) -> None:
    before = _next(kit)
    kit.enqueue(delay_s=20)
    kit.enqueue(delay_s=10, priority=-5)
    later = _next(kit)
    kit.enqueue()
    ready = _next(kit)

    assert (before, later, ready) == (None, seconds(10), 0)


@spec("Z7")
def test_jobs_of_other_queues_and_namespaces_and_jobs_that_run_are_not_due(kit: Kit) -> None:
    kit.running_job()
    kit.enqueue(queue=OTHER_QUEUE)
    kit.enqueue(namespace=Namespace("elsewhere"))

    assert _next(kit) is None
    assert _next(kit, QUEUE, OTHER_QUEUE) == 0


@spec("Z7")
def test_a_retry_is_due_after_its_backoff(kit: Kit) -> None:
    job = kit.running_job()
    kit.fail(job)

    waits = kit.reload(job)

    assert waits.run_at is not None
    assert _next(kit) == waits.run_at - kit.now()


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
