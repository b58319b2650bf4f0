"""Queues: pausing, limits, and what is listed about them."""

from tenure.core.claims import QueueState
from tenure.core.ids import DEFAULT_NAMESPACE, Namespace, QueueName
from tenure.core.vocabulary import JobStatus, OnLost, VerdictKind
from tenure_conformance.harness import QUEUE, Kit, ids, policy
from tenure_conformance.spec import spec

OTHER_QUEUE = QueueName("other")


@spec("Z2")
def test_nothing_is_granted_from_a_paused_queue(kit: Kit) -> None:
    kit.enqueue()
    elsewhere = kit.enqueue(queue=OTHER_QUEUE)
    kit.pause()

    granted = kit.claimed(limit=10, queues=(QUEUE, OTHER_QUEUE))

    assert ids(granted) == [elsewhere.id]


@spec("Z2")
def test_a_resumed_queue_grants_again(kit: Kit) -> None:
    job = kit.enqueue()
    kit.pause()
    kit.resume()

    assert ids(kit.claimed()) == [job.id]


@spec("Z2", "T22")
def test_no_reclaim_is_granted_from_a_paused_queue(kit: Kit) -> None:
    stalled = kit.stalled_job(policy=policy(lease_s=30, on_lost=OnLost.RECLAIM))
    kit.pause()
    kit.advance_to(stalled.run_at)

    assert kit.claimed() == []
    kit.resume()

    assert ids(kit.claimed()) == [stalled.id]


@spec("Z2")
def test_everything_except_claims_continues_in_a_paused_queue(kit: Kit) -> None:
    finishing, failing, dying = (kit.running_job(lease_s=30) for _ in range(3))
    kit.pause()

    queued = kit.enqueue()

    assert kit.heartbeat(finishing).kind is VerdictKind.OK
    assert kit.complete(finishing).kind is VerdictKind.COMMITTED
    assert kit.fail(failing).kind is VerdictKind.COMMITTED
    assert kit.cancel(queued).is_ok
    kit.advance_to(dying.due_at)
    swept = kit.sweep(dying).job
    assert swept is not None
    assert swept.status is JobStatus.QUEUED


@spec("Z2")
def test_pausing_twice_and_resuming_twice_change_nothing(kit: Kit) -> None:
    kit.limit(3)

    assert kit.pause() == kit.pause() == QueueState(name=QUEUE, paused=True, limit=3)
    assert kit.resume() == kit.resume() == QueueState(name=QUEUE, paused=False, limit=3)


@spec("Z3")
def test_a_limit_bounds_the_live_leases_of_a_queue(kit: Kit) -> None:
    for _ in range(5):
        kit.enqueue()
    kit.limit(2)

    first = kit.claimed(limit=5)

    assert len(first) == 2
    assert kit.claimed(limit=5) == []
    kit.complete(first[0])
    assert len(kit.claimed(limit=5)) == 1


@spec("Z3")
def test_each_queue_has_its_own_limit(kit: Kit) -> None:
    for queue in (QUEUE, OTHER_QUEUE):
        for _ in range(3):
            kit.enqueue(queue=queue)
    kit.limit(1)
    kit.limit(2, OTHER_QUEUE)

    granted = kit.claimed(limit=10, queues=(QUEUE, OTHER_QUEUE))

    assert sorted(job.queue for job in granted) == [QUEUE, OTHER_QUEUE, OTHER_QUEUE]


@spec("Z3")
def test_a_full_queue_does_not_hide_the_jobs_of_another(kit: Kit) -> None:
    for _ in range(5):
        kit.enqueue(priority=9)
    kit.limit(1)
    other = kit.enqueue(queue=OTHER_QUEUE)

    granted = kit.claimed(limit=2, queues=(QUEUE, OTHER_QUEUE))

    assert len(granted) == 2
    assert other.id in ids(granted)


@spec("Z3")
def test_an_overdue_lease_counts_until_it_was_swept(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    waiting = kit.enqueue()
    kit.limit(1)
    kit.advance_to(job.due_at)

    assert kit.claimed() == []
    kit.sweep(job)

    assert ids(kit.claimed()) == [waiting.id]


@spec("Z3")
def test_lowering_a_limit_revokes_nothing(kit: Kit) -> None:
    running = [kit.running_job(), kit.running_job()]
    kit.enqueue()
    kit.limit(1)

    assert kit.claimed() == []
    assert kit.complete(running[0]).kind is VerdictKind.COMMITTED
    assert kit.claimed() == []
    assert kit.complete(running[1]).kind is VerdictKind.COMMITTED
    assert len(kit.claimed()) == 1


@spec("Z3")
def test_a_limit_of_zero_removes_the_limit(kit: Kit) -> None:
    for _ in range(3):
        kit.enqueue()
    kit.limit(1)

    assert kit.limit(0).limit is None

    assert len(kit.claimed(limit=3)) == 3


@spec("Z3")
def test_leases_in_another_namespace_do_not_count(kit: Kit) -> None:
    kit.claimed_job(namespace=Namespace("elsewhere"))
    job = kit.enqueue()
    kit.limit(1)

    assert ids(kit.claimed()) == [job.id]


def test_queues_with_jobs_or_settings_are_listed_by_name(kit: Kit) -> None:
    kit.enqueue(queue=QueueName("b"))
    kit.running_job(queue=QueueName("c"))
    kit.limit(7, QueueName("a"))
    kit.pause(QueueName("d"))
    kit.enqueue(queue=QueueName("z"), namespace=Namespace("elsewhere"))

    assert kit.store.settings.queues(DEFAULT_NAMESPACE) == [
        QueueState(name=QueueName("a"), limit=7),
        QueueState(name=QueueName("b")),
        QueueState(name=QueueName("c"), live=1),
        QueueState(name=QueueName("d"), paused=True),
    ]


@spec("B43")
def test_queues_are_read_in_pages(kit: Kit) -> None:
    for name in ("b", "a", "d", "c"):
        kit.running_job(queue=QueueName(name))
    kit.enqueue(queue=QueueName("bb"), namespace=Namespace("elsewhere"))

    first = kit.store.settings.queues(DEFAULT_NAMESPACE, limit=2)
    rest = kit.store.settings.queues(DEFAULT_NAMESPACE, after="b", limit=5)

    assert [(state.name, state.live) for state in first] == [("a", 1), ("b", 1)]
    assert [(state.name, state.live) for state in rest] == [("c", 1), ("d", 1)]
    assert kit.store.settings.queues(DEFAULT_NAMESPACE, after="d", limit=1) == []


def test_a_queue_is_listed_when_its_first_enqueue_met_a_new_epoch(kit: Kit) -> None:
    kit.enqueue()
    kit.store.raise_epoch()

    kit.enqueue(queue=OTHER_QUEUE)

    assert [state.name for state in kit.store.settings.queues(DEFAULT_NAMESPACE)] == [
        QUEUE,
        OTHER_QUEUE,
    ]


def test_changing_one_setting_of_a_queue_keeps_the_other(kit: Kit) -> None:
    kit.limit(4)
    kit.pause()

    assert kit.store.settings.put_queue(
        DEFAULT_NAMESPACE, QUEUE, paused=None, limit=None
    ) == QueueState(name=QUEUE, paused=True, limit=4)


def test_settings_are_seen_by_every_handle(kit: Kit) -> None:
    kit.pause()
    kit.limit(2)

    seen = kit.factory.reopen().settings.queues(DEFAULT_NAMESPACE)

    assert seen == [QueueState(name=QUEUE, paused=True, limit=2)]
