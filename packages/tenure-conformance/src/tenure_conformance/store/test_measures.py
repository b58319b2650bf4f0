"""How full a store is: numbers that stop at a limit."""

from tenure.core.ids import DEFAULT_NAMESPACE, Namespace, QueueName
from tenure.core.instants import seconds
from tenure.ports import Measures, QueueMeasure
from tenure_conformance.harness import QUEUE, Kit
from tenure_conformance.spec import spec

MANY = 1000


def measured(kit: Kit, *, queues: int = MANY, jobs: int = MANY) -> Measures:
    return kit.store.views.measure(queues=queues, jobs=jobs)


@spec("B27")
def test_a_queue_is_measured_by_what_is_ready_delayed_and_leased(kit: Kit) -> None:
    oldest = kit.enqueue(priority=-1)
    kit.advance(seconds=5)
    kit.enqueue(priority=3)
    kit.enqueue(priority=3, delay_us=seconds(60))
    kit.running_job(priority=9)
    kit.claimed_job(priority=9)
    kit.succeeded_job(priority=9)
    kit.advance(seconds=2)

    found = measured(kit)

    assert found.now == kit.now()
    assert found.queues == (
        QueueMeasure(
            namespace=DEFAULT_NAMESPACE,
            queue=QUEUE,
            ready=2,
            delayed=1,
            leased=2,
            oldest_ready_at=oldest.run_at,
        ),
    )
    assert found.left_out == 0
    assert found.dead_letters == {DEFAULT_NAMESPACE: 0}


@spec("B27", "L18")
def test_the_suspect_jobs_of_a_queue_are_counted_policy_by_policy(kit: Kit) -> None:
    for lease_s in (40, 40, 120):  # suspect after 40, 40 and 60 s
        kit.running_job(lease_s=lease_s)
    kit.claimed_job(lease_s=40)
    kit.advance(seconds=39)
    [before] = measured(kit).queues
    kit.running_job(lease_s=40)

    kit.advance(seconds=1)
    [after] = measured(kit).queues
    kit.advance(seconds=39)
    [later] = measured(kit).queues
    [limited] = measured(kit, jobs=2).queues

    assert (before.leased, before.suspect) == (4, 0)
    assert (after.leased, after.suspect) == (5, 3)
    assert (later.leased, later.suspect) == (5, 5)
    assert (limited.leased, limited.suspect) == (2, 2)


@spec("B27")
def test_a_queue_whose_jobs_all_wait_for_their_time_has_no_oldest_ready_one(kit: Kit) -> None:
    job = kit.enqueue(delay_us=seconds(10))

    [before] = measured(kit).queues
    kit.advance_to(job.run_at)
    [after] = measured(kit).queues

    assert (before.ready, before.delayed, before.oldest_ready_at) == (0, 1, None)
    assert (after.ready, after.delayed, after.oldest_ready_at) == (1, 0, job.run_at)


@spec("B27")
def test_counting_stops_at_the_limit_and_the_oldest_is_found_nevertheless(kit: Kit) -> None:
    oldest = kit.enqueue(priority=-5)
    kit.advance(seconds=1)
    for _ in range(4):
        kit.enqueue()
    for _ in range(3):
        kit.claimed_job(queue=QueueName("busy"))

    busy, waiting = measured(kit, jobs=2).queues

    assert (busy.queue, busy.leased) == ("busy", 2)
    assert (waiting.ready, waiting.oldest_ready_at) == (2, oldest.run_at)


@spec("B27")
def test_queues_with_jobs_are_measured_first_and_the_others_counted(kit: Kit) -> None:
    kit.pause(QueueName("a-empty"))
    kit.enqueue(queue=QueueName("z-waits"))
    kit.claimed_job(queue=QueueName("y-works"))

    found = measured(kit, queues=2)

    assert [each.queue for each in found.queues] == ["y-works", "z-waits"]
    assert found.left_out == 1
    assert [each.queue for each in measured(kit, queues=3).queues][2] == "a-empty"


@spec("B27", "OB10")
def test_a_busy_queue_is_found_behind_a_thousand_empty_ones(kit: Kit) -> None:
    for number in range(MANY + 1):
        kit.store.settings.put_queue(
            DEFAULT_NAMESPACE, QueueName(f"tenant-{number:04}"), paused=None, limit=None
        )
    kit.enqueue(queue=QueueName("work"), delay_us=seconds(60))
    kit.claimed_job(queue=QueueName("yard"))
    kit.enqueue(queue=QueueName("zoo"), namespace=Namespace("elsewhere"))

    found = measured(kit, queues=5)

    assert [each.queue for each in found.queues] == [
        "work",
        "yard",
        "zoo",
        "tenant-0000",
        "tenant-0001",
    ]
    assert [(each.delayed, each.leased, each.ready) for each in found.queues[:3]] == [
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
    ]
    assert found.left_out == MANY - 1


@spec("B27")
def test_a_queue_that_waits_and_works_is_measured_once(kit: Kit) -> None:
    names = [QueueName(f"q{number}") for number in range(4)]
    for name in names:
        kit.claimed_job(queue=name)
        kit.enqueue(queue=name)

    found = measured(kit, queues=3)

    assert [each.queue for each in found.queues] == names[:3]
    assert found.left_out == 1


@spec("B27")
def test_queues_of_the_same_name_are_measured_by_namespace(kit: Kit) -> None:
    kit.enqueue()
    kit.enqueue(namespace=Namespace("elsewhere"))
    kit.enqueue(namespace=Namespace("elsewhere"))

    found = measured(kit).queues

    assert [(each.namespace, each.ready) for each in found] == [("default", 1), ("elsewhere", 2)]


@spec("B27", "OB10")
def test_the_queues_of_one_namespace_leave_room_for_those_of_another(kit: Kit) -> None:
    for number in range(12):
        kit.enqueue(queue=QueueName(f"a{number:02}"), namespace=Namespace("crowded"))
    for name in ("y", "z"):
        kit.enqueue(queue=QueueName(name), namespace=Namespace("small"))

    found = measured(kit, queues=6)
    crowded = kit.store.views.measure(queues=6, jobs=MANY, namespace=Namespace("crowded"))
    small = kit.store.views.measure(queues=6, jobs=MANY, namespace=Namespace("small"))

    assert [each.queue for each in found.queues] == ["a00", "a01", "a02", "a03", "y", "z"]
    assert (found.left_out, set(found.dead_letters)) == (8, {"crowded", "small"})
    assert ([each.queue for each in crowded.queues][-1], crowded.left_out) == ("a05", 6)
    assert ([each.queue for each in small.queues], small.left_out) == (["y", "z"], 0)


@spec("B27")
def test_dead_letters_count_until_they_are_resolved(kit: Kit) -> None:
    discarded, redriven, _ = (kit.dead_letter_job() for _ in range(3))
    kit.discard(discarded)

    first = measured(kit).dead_letters
    kit.redrive(redriven)

    assert first == {DEFAULT_NAMESPACE: 2}
    assert measured(kit).dead_letters == {DEFAULT_NAMESPACE: 1}


@spec("B27")
def test_dead_letters_are_counted_up_to_the_limit(kit: Kit) -> None:
    for _ in range(3):
        kit.dead_letter_job()

    assert measured(kit, jobs=2).dead_letters == {DEFAULT_NAMESPACE: 2}


@spec("B27")
def test_an_empty_store_has_nothing_to_measure(kit: Kit) -> None:
    assert measured(kit) == Measures(now=kit.now(), queues=(), left_out=0, dead_letters={})
