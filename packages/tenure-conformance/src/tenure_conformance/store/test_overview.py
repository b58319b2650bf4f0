"""Overviews: what a namespace is doing, by its rows and its log."""

from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, QueueName, ScheduleName, WorkerId
from tenure.core.instants import Duration, seconds
from tenure.core.schedules import Schedule, ScheduleChange, ScheduleSpec
from tenure.core.views.overview import (
    Attention,
    Durations,
    Matter,
    OutcomeCounts,
    Overview,
    OverviewFilter,
    QueueOverview,
    TimeRange,
    WorkerCounts,
)
from tenure.core.views.rollups import bin_of, middle_of
from tenure.core.vocabulary import OnLost
from tenure.core.workers import WorkerProcess
from tenure_conformance.harness import CLIENT, QUEUE, WORKER, WORKER_ID, Kit, policy
from tenure_conformance.spec import spec

OTHER = Namespace("other")
SLOW = QueueName("slow")
MAIL, BILL = Kind("mail"), Kind("bill")


def overview(
    kit: Kit,
    range_: TimeRange = TimeRange.QUARTER_HOUR,
    *,
    queues: tuple[QueueName, ...] = (),
    kinds: tuple[Kind, ...] = (),
) -> Overview:
    """What the store shows of the default namespace."""
    return kit.store.views.overview(
        OverviewFilter(namespace=DEFAULT_NAMESPACE, range=range_, queues=queues, kinds=kinds)
    )


def see_worker(kit: Kit, *kinds: Kind, queue: QueueName = QUEUE, name: str = WORKER_ID) -> None:
    """A worker that takes these kinds, or all of them, is alive."""
    kit.store.workers.see(
        WorkerProcess(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId(name),
            actor=WORKER,
            host="host-1",
            pid=7,
            queues=(queue,),
            kinds=kinds,
            concurrency=4,
            version="1",
            uptime_us=Duration(0),
        )
    )


def totals(found: Overview) -> OutcomeCounts:
    """The events of all buckets together."""
    return OutcomeCounts(
        **{
            field: sum(getattr(bucket, field) for bucket in found.buckets)
            for field in OutcomeCounts.__struct_fields__
        }
    )


def queue_of(found: Overview, name: QueueName) -> QueueOverview:
    """One queue of an overview."""
    [queue] = [each for each in found.queues if each.queue == name]
    return queue


def matters(found: Overview, matter: Matter) -> list[Attention]:
    """What needs attention for one reason."""
    return [each for each in found.attention if each.matter is matter]


@spec("OB28")
def test_an_empty_namespace_has_empty_buckets_and_no_durations(kit: Kit) -> None:
    found = overview(kit)

    assert totals(found) == OutcomeCounts()
    assert len(found.buckets) == 60
    assert found.buckets[-1].at <= kit.now() < found.buckets[-1].at + found.bucket_us
    assert (found.queues, found.kinds, found.attention) == ((), (), ())
    assert found.wait == found.run == Durations()
    assert found.workers == WorkerCounts()


@spec("OB28")
def test_events_are_counted_in_the_bucket_of_their_time(kit: Kit) -> None:
    kit.enqueue()
    kit.advance(seconds=60)
    kit.enqueue()
    kit.enqueue(namespace=OTHER)

    found = overview(kit)

    enqueued = {bucket.at: bucket.enqueued for bucket in found.buckets if bucket.enqueued}
    now = kit.now()
    assert enqueued == {
        at // found.bucket_us * found.bucket_us: 1 for at in (now, now - seconds(60))
    }


@spec("OB28")
def test_every_end_of_a_job_is_counted_by_its_outcome(kit: Kit) -> None:
    kit.succeeded_job(kind=MAIL)
    kit.dead_letter_job(kind=MAIL)
    kit.cancel(kit.enqueue(kind=MAIL))
    retried = kit.running_job(kind=BILL)
    kit.fail(retried)

    found = overview(kit)

    assert totals(found) == OutcomeCounts(
        enqueued=4, claimed=2, requeued=1, succeeded=1, cancelled=1, dead_lettered=1
    )
    assert {kind.kind: kind.events.requeued for kind in found.kinds} == {BILL: 1, MAIL: 0}
    assert queue_of(found, QUEUE).events == totals(found)


@spec("OB28")
def test_a_longer_range_counts_what_a_shorter_one_has_left_behind(kit: Kit) -> None:
    kit.enqueue()
    kit.advance(seconds=3600 * 2)
    kit.enqueue()

    counted = {range_: totals(overview(kit, range_)).enqueued for range_ in TimeRange}

    assert counted == {
        TimeRange.QUARTER_HOUR: 1,
        TimeRange.HOUR: 1,
        TimeRange.SIX_HOURS: 2,
        TimeRange.DAY: 2,
        TimeRange.WEEK: 2,
    }


@spec("OB28")
def test_a_queue_shows_its_jobs_by_what_they_wait_for(kit: Kit) -> None:
    ready = kit.enqueue(kind=MAIL)
    kit.advance(seconds=5)
    kit.enqueue(kind=BILL)
    kit.enqueue(kind=BILL, delay_us=seconds(60))
    kit.enqueue(kind=BILL, queue=SLOW)
    kit.flow({"first": [], "then": ["first"]}, kind=MAIL)
    kit.running_job(kind=Kind("other"), queue=SLOW, priority=1)

    found = overview(kit)

    default = queue_of(found, QUEUE)
    assert (default.ready, default.delayed, default.leased, default.waiting) == (3, 1, 0, 1)
    assert default.oldest_ready_at == ready.run_at
    slow = queue_of(found, SLOW)
    assert (slow.ready, slow.leased, slow.delayed) == (1, 1, 0)


@spec("OB28")
def test_a_delayed_job_whose_time_has_come_is_ready(kit: Kit) -> None:
    job = kit.enqueue(delay_us=seconds(60))
    kit.advance(seconds=61)

    queue = queue_of(overview(kit), QUEUE)

    assert (queue.ready, queue.delayed, queue.oldest_ready_at) == (1, 0, job.run_at)


@spec("OB28")
def test_wait_is_from_ready_to_claimed_and_run_from_start_to_success(kit: Kit) -> None:
    kit.enqueue(delay_us=seconds(10))
    kit.advance(seconds=13)
    [job] = kit.claimed()
    kit.advance(seconds=1)
    kit.start(job)
    kit.advance(seconds=7)
    kit.complete(job)

    found = overview(kit)

    wait, run = middle_of(bin_of(seconds(3))), middle_of(bin_of(seconds(7)))
    assert found.wait == Durations(p50_us=wait, p95_us=wait, samples=1)
    assert found.run == Durations(p50_us=run, p95_us=run, samples=1)


@spec("OB50")
def test_each_kind_has_its_own_waits_and_runs(kit: Kit) -> None:
    for kind, wait_s, run_s in ((MAIL, 1, 2), (MAIL, 40, 20), (BILL, 5, 10)):
        kit.enqueue(kind=kind)
        kit.advance(seconds=wait_s)
        [job] = kit.claimed()
        kit.start(job)
        kit.advance(seconds=run_s)
        kit.complete(job)
    kit.enqueue(kind=Kind("new"))

    kinds = {each.kind: each for each in overview(kit).kinds}

    assert kinds[MAIL].wait == spread(seconds(1), seconds(40))
    assert kinds[MAIL].run == spread(seconds(2), seconds(20))
    assert kinds[BILL].wait == spread(seconds(5))
    assert kinds[BILL].run == spread(seconds(10))
    assert kinds[Kind("new")].wait == kinds[Kind("new")].run == Durations()


def spread(*found: Duration) -> Durations:
    """The durations of one or two jobs."""
    middles = [middle_of(bin_of(each)) for each in found]
    return Durations(p50_us=middles[0], p95_us=middles[-1], samples=len(found))


@spec("OB29")
def test_ready_jobs_that_no_live_worker_takes_need_attention(kit: Kit) -> None:
    kit.enqueue(kind=MAIL)
    kit.enqueue(kind=BILL)
    see_worker(kit, MAIL)

    found = overview(kit)

    assert matters(found, Matter.UNCLAIMED) == [
        Attention(matter=Matter.UNCLAIMED, jobs=1, queue=QUEUE, kind=BILL)
    ]
    assert found.workers == WorkerCounts(alive=1)
    assert queue_of(found, QUEUE).workers == 1


@spec("OB29")
def test_paused_queues_need_attention_instead_of_their_ready_jobs(
    kit: Kit,
) -> None:
    kit.enqueue()
    kit.pause()
    kit.store.settings.put_queue(DEFAULT_NAMESPACE, SLOW, paused=True, limit=None)

    found = overview(kit)

    assert found.attention == (
        Attention(matter=Matter.PAUSED, jobs=1, queue=QUEUE),
        Attention(matter=Matter.PAUSED, jobs=0, queue=SLOW),
    )
    assert queue_of(found, SLOW).paused


@spec("OB29")
def test_dead_letters_need_attention_until_they_are_resolved(kit: Kit) -> None:
    letter, other = kit.dead_letter_job(kind=MAIL), kit.dead_letter_job(kind=MAIL)
    kit.discard(other)

    assert overview(kit).attention == (
        Attention(matter=Matter.DEAD_LETTERS, jobs=1, queue=QUEUE, kind=MAIL),
    )

    kit.discard(letter)

    assert overview(kit).attention == ()


@spec("OB29")
def test_a_stalled_job_and_one_with_a_silent_worker_need_attention(kit: Kit) -> None:
    kit.stalled_job(kind=MAIL, policy=policy(lease_s=30, on_lost=OnLost.HOLD))
    kit.running_job(kind=BILL, lease_s=120)
    kit.advance(seconds=61)

    found = overview(kit)

    assert matters(found, Matter.STALLED) == [
        Attention(matter=Matter.STALLED, jobs=1, queue=QUEUE, kind=MAIL)
    ]
    assert matters(found, Matter.SUSPECT) == [
        Attention(matter=Matter.SUSPECT, jobs=1, queue=QUEUE, kind=BILL)
    ]


@spec("OB28")
def test_an_overview_of_a_queue_and_a_kind_has_nothing_else(kit: Kit) -> None:
    kit.succeeded_job(kind=MAIL)
    kit.dead_letter_job(kind=BILL)
    kit.enqueue(kind=MAIL)
    kit.enqueue(kind=BILL)
    kit.enqueue(kind=MAIL, queue=SLOW)
    see_worker(kit, queue=SLOW)

    found = overview(kit, queues=(QUEUE,), kinds=(MAIL,))

    assert totals(found) == OutcomeCounts(enqueued=2, claimed=1, succeeded=1)
    assert [(each.queue, each.ready, each.dead_letters) for each in found.queues] == [(QUEUE, 1, 0)]
    assert [(each.kind, each.ready) for each in found.kinds] == [(MAIL, 1)]
    assert found.workers == WorkerCounts()
    assert {each.kind for each in found.attention} == {MAIL}
    assert found.wait.samples == found.run.samples == 1


@spec("OB29")
def test_a_schedule_whose_last_job_is_a_dead_letter_needs_attention(kit: Kit) -> None:
    letter, well = kit.dead_letter_job(kind=MAIL), kit.succeeded_job(kind=BILL)
    for name, job in (("nightly", letter), ("hourly", well)):
        schedule = Schedule(
            namespace=DEFAULT_NAMESPACE,
            name=ScheduleName(name),
            spec=ScheduleSpec(kind=job.kind, queue=QUEUE, every_us=seconds(3600)),
            rev=1,
            created_at=kit.now(),
            created_by=CLIENT,
            changed_at=kit.now(),
            changed_by=CLIENT,
            updated_at=kit.now(),
            last_job_id=job.id,
        )
        kit.store.schedules.save(
            ScheduleChange(schedule=schedule, expected_rev=0), epoch=kit.store.jobs.load([]).epoch
        )

    assert matters(overview(kit), Matter.SCHEDULE_FAILED) == [
        Attention(
            matter=Matter.SCHEDULE_FAILED,
            jobs=1,
            queue=QUEUE,
            kind=MAIL,
            schedule=ScheduleName("nightly"),
            job_id=letter.id,
        )
    ]
    assert matters(overview(kit, kinds=(BILL,)), Matter.SCHEDULE_FAILED) == []
