"""Retention: what may be forgotten, and that nothing else is."""

import pytest

from tenure.coordinator.retention import DAY, Retention, RetentionPolicy
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName
from tenure.core.instants import Duration, seconds
from tenure.core.job import Job, Progress
from tenure.core.policy import Compensation, Policy
from tenure.core.views.events import EventFilter, EventPage
from tenure.core.vocabulary import (
    RENEWALS,
    Cause,
    ErrorClass,
    EventClass,
    EventType,
    JobStatus,
    OnLost,
    VerdictKind,
)
from tenure.errors import InvalidInput
from tenure.ports import DedupeKey, PruneResult
from tenure_conformance.harness import KIND, Kit, ids, policy
from tenure_conformance.spec import spec

MOST_BITES = 100
AT_ONCE = Duration(0)

UNDO = Compensation(kind=Kind("undo"), queue=QueueName("undo"), policy=Policy())


def _renewed(kit: Kit, times: int = 3) -> Job:
    job = kit.running_job(policy=policy(lease_s=60, heartbeat_us=seconds(15)))
    for beat in range(1, times + 1):
        kit.advance(seconds=4)
        kit.heartbeat(job, hb_seq=beat, checkpoint=str(beat).encode() if beat == 2 else None)
    return job


# --- pruning -------------------------------------------------------------------------------------


@spec("G1", "I1")
def test_renewals_of_an_ended_attempt_are_pruned_and_its_end_sums_them_up(kit: Kit) -> None:
    job = _renewed(kit)
    kit.heartbeat(job, hb_seq=9, progress=Progress(done=1))
    kit.complete(job)
    before = kit.events(job)

    pruned = kit.store.upkeep.delete("renewals", older_than_us=AT_ONCE, limit=100)

    assert pruned == PruneResult(4, hit_limit=False)
    kept = kit.events(job)
    assert kept == [event for event in before if event.type not in RENEWALS]
    assert (kept[-1].payload.renewals, kept[-1].payload.hb_seq) == (4, 9)
    assert kept[-1].payload.progress == Progress(done=1)
    assert kit.store.upkeep.delete("renewals", older_than_us=AT_ONCE, limit=100).deleted == 0


@spec("G1")
def test_renewals_of_a_live_attempt_stay(kit: Kit) -> None:
    job = _renewed(kit)
    before = kit.events(job)

    assert kit.store.upkeep.delete("renewals", older_than_us=AT_ONCE, limit=100).deleted == 0
    assert kit.events(job) == before


@spec("G1", "R22")
def test_renewals_of_a_lost_attempt_are_pruned_while_the_next_one_is_live(kit: Kit) -> None:
    first = _renewed(kit)
    kit.fail(first, request_id="f")
    kit.advance(seconds=60)
    (second,) = kit.claimed()
    kit.heartbeat(second)

    assert kit.store.upkeep.delete("renewals", older_than_us=AT_ONCE, limit=100).deleted == 3

    renewals = [event for event in kit.events(second) if event.type in RENEWALS]
    assert [event.lease_id for event in renewals] == [second.lease_id]
    assert kit.fail(first, request_id="f").replayed
    assert kit.complete(second).kind is VerdictKind.COMMITTED


@spec("G1")
def test_a_stalled_jobs_renewals_may_be_pruned(kit: Kit) -> None:
    job = kit.running_job(policy=policy(lease_s=30, on_lost=OnLost.HOLD))
    kit.heartbeat(job)
    kit.advance_to(kit.reload(job).due_at)
    kit.sweep(job)

    assert kit.store.upkeep.delete("renewals", older_than_us=AT_ONCE, limit=100).deleted == 1


@spec("G1")
def test_pruning_keeps_to_its_limit(kit: Kit) -> None:
    jobs = [_renewed(kit) for _ in range(2)]
    for job in jobs:
        kit.complete(job)

    steps = [kit.store.upkeep.delete("renewals", older_than_us=AT_ONCE, limit=4) for _ in range(3)]

    assert steps == [
        PruneResult(4, hit_limit=True),
        PruneResult(2, hit_limit=False),
        PruneResult(0, hit_limit=False),
    ]


def _pruned(kit: Kit, limit: int, *, older_than_us: Duration = AT_ONCE) -> list[PruneResult]:
    """What is deleted until a page is not full."""
    steps = [kit.store.upkeep.delete("renewals", older_than_us=older_than_us, limit=limit)]
    while steps[-1].hit_limit:
        assert len(steps) < MOST_BITES, "the end is never found"
        steps.append(kit.store.upkeep.delete("renewals", older_than_us=older_than_us, limit=limit))
    return steps


@spec("G1", "G4")
def test_each_pruning_reads_one_page_and_the_next_continues_from_there(kit: Kit) -> None:
    live = [_renewed(kit, times=1) for _ in range(5)]
    ended = _renewed(kit, times=1)
    kit.complete(ended)

    first, *others = _pruned(kit, limit=2)

    assert first == PruneResult(0, hit_limit=True)
    assert sum(each.deleted for each in others) == 1
    kit.complete(live[0])
    assert sum(each.deleted for each in _pruned(kit, limit=2)) == 1


@spec("G1", "G4")
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pruning_skips_live_attempts_whatever_the_page_size(kit: Kit, limit: int) -> None:
    jobs = [_renewed(kit) for _ in range(5)]
    kit.fail(jobs[0], request_id="f")
    kit.complete(jobs[2])
    kit.advance(seconds=20)
    (again,) = kit.claimed()
    for beat in (1, 2, 3):
        kit.advance(seconds=4)
        kit.heartbeat(again, hb_seq=beat)
    kit.complete(jobs[4])

    steps = _pruned(kit, limit)

    assert sum(each.deleted for each in steps) == 9
    assert all(each.deleted <= limit for each in steps)
    left = {job.id: sum(event.type in RENEWALS for event in kit.events(job)) for job in jobs}
    assert list(left.values()) == [3, 3, 0, 3, 0]
    assert sum(each.deleted for each in _pruned(kit, limit)) == 0


@spec("E3", "G1")
def test_transitions_are_never_pruned(kit: Kit) -> None:
    job = _renewed(kit)
    kit.cancel(job)
    kit.fail(job)
    transitions = [event for event in kit.events(job) if event.event_class is EventClass.TRANSITION]

    kit.store.upkeep.delete("renewals", older_than_us=AT_ONCE, limit=100)

    assert kit.events(job) == transitions


@spec("E31", "G1")
def test_renewals_are_kept_for_as_long_as_they_should_be(kit: Kit) -> None:
    first = _renewed(kit, times=2)
    kit.complete(first)
    live = _renewed(kit)
    kit.advance(seconds=46)  # the renewals are 62, 58, 54, 50 and 46 s old

    pruned = kit.store.upkeep.delete("renewals", older_than_us=seconds(58), limit=100)

    assert pruned == PruneResult(2, hit_limit=False)
    assert [event.type in RENEWALS for event in kit.events(live)].count(True) == 3
    kit.complete(live)
    assert kit.store.upkeep.delete("renewals", older_than_us=seconds(50), limit=100).deleted == 2
    assert kit.store.upkeep.delete("renewals", older_than_us=seconds(50), limit=100).deleted == 0
    left = [event for event in kit.events(live) if event.type in RENEWALS]
    assert [event.payload.hb_seq for event in left] == [3]
    assert kit.store.upkeep.delete("renewals", older_than_us=AT_ONCE, limit=100).deleted == 1


@spec("E31", "G4")
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_young_renewals_are_skipped_whatever_the_page_size(kit: Kit, limit: int) -> None:
    jobs = []
    for _ in range(2):
        jobs += [_renewed(kit, times=2) for _ in range(2)]
        for job in jobs:
            kit.complete(job)
        kit.advance(seconds=100)

    steps = _pruned(kit, limit, older_than_us=seconds(150))

    assert sum(each.deleted for each in steps) == 4
    left = [sum(event.type in RENEWALS for event in kit.events(job)) for job in jobs]
    assert left == [0, 0, 2, 2]


# --- purging -------------------------------------------------------------------------------------


def _gone(kit: Kit, job: Job) -> bool:
    return (
        not kit.exists(job.id)
        and kit.events(job) == []
        and kit.observations(job) == []
        and kit.store.events.page(EventFilter(namespace=job.namespace, job_id=job.id))
        == EventPage()
    )


@spec("T26")
def test_a_purge_deletes_row_events_and_observations_together(kit: Kit) -> None:
    job = _renewed(kit)
    kit.complete(job)
    kit.complete(job)
    assert kit.observations(job)
    kit.advance(seconds=24 * 3600, microseconds=1)

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 1

    assert _gone(kit, job)
    assert [record.job_id for record in kit.store.audit.records(page_size=10)] == []


@spec("T26", "R5")
def test_a_report_about_a_purged_job_is_rejected(kit: Kit) -> None:
    job = kit.running_job()
    command = kit.completion(job)
    kit.verdict(command)
    kit.advance(seconds=24 * 3600 + 1)
    kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100)

    assert kit.verdict(command).cause is Cause.UNKNOWN_JOB


@spec("T26")
@pytest.mark.parametrize(("more_us", "goes"), [(-1, False), (0, False), (1, True)])
def test_a_job_is_purged_once_it_ended_longer_ago_than_the_retention(
    kit: Kit, more_us: int, goes: bool
) -> None:
    job = kit.succeeded_job()
    assert job.finished_at is not None
    kit.advance(microseconds=DAY + more_us)

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == int(goes)
    assert kit.exists(job.id) is not goes


@spec("G6")
def test_no_live_job_is_ever_purged(kit: Kit) -> None:
    held = kit.stalled_job(policy=policy(lease_s=30, on_lost=OnLost.HOLD))
    live = [kit.running_job(), kit.claimed_job(), held]
    live.append(kit.enqueue())
    kit.advance(seconds=400 * 24 * 3600)
    before = [kit.reload(job) for job in live]

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 0

    assert [kit.reload(job) for job in live] == before
    assert all(len(kit.events(job)) == job.rev for job in before)


@spec("T26")
def test_jobs_of_every_end_are_purged_the_oldest_first(kit: Kit) -> None:
    ended = [kit.running_job() for _ in range(4)]
    for end in (
        lambda: kit.complete(ended[0]),
        lambda: kit.fail(ended[1], ErrorClass.PERMANENT),
        lambda: kit.cancel_hard(ended[2]),
        lambda: kit.dead_letter(ended[3]),
    ):
        kit.advance(seconds=1)
        end()
    kit.advance(seconds=48 * 3600)

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=3).deleted == 3

    assert [kit.exists(job.id) for job in ended] == [False, False, False, True]
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=3).deleted == 1


@spec("T26", "D2")
def test_purging_an_old_job_leaves_the_new_holder_of_its_key(kit: Kit) -> None:
    old = kit.running_job(dedupe_key="k")
    kit.complete(old)
    kit.advance(seconds=24 * 3600 + 1)
    holder = kit.enqueue(dedupe_key="k")

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 1

    key = DedupeKey(DEFAULT_NAMESPACE, KIND, "k")
    assert kit.holders(key) == {key: holder}
    assert list(kit.store.audit.live_keys()) == [(key, holder.id)]


@spec("M4", "M1")
def test_a_job_is_purged_after_its_compensation(kit: Kit) -> None:
    job = kit.running_job(policy=policy(compensation=UNDO))
    kit.cancel_hard(job)
    kit.advance(seconds=24 * 3600 + 1)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 0
    (undo,) = kit.claimed(queues=(UNDO.queue,))
    kit.complete(undo)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 0
    kit.advance(seconds=24 * 3600 + 1)

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 1
    assert (kit.exists(undo.id), kit.exists(job.id)) == (False, True)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 1
    assert not kit.exists(job.id)


@spec("T26", "D3")
def test_the_id_of_a_purged_job_is_free(kit: Kit) -> None:
    command = kit.new()
    # Not through the kit's own shortcuts: those remember for ever that it was acknowledged.
    kit.coordinator.execute(command)
    (grant,) = kit.coordinator.claim(kit.claim_request()).grants
    kit.coordinator.execute(kit.completion(grant.job))
    kit.advance(seconds=24 * 3600 + 1)
    kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100)

    reply = kit.reply(command)

    assert not reply.replayed
    assert kit.exists(command.job_id)
    assert kit.types(grant.job) == [EventType.ENQUEUED]


@spec("G6")
@pytest.mark.parametrize("kept", [Duration(0), seconds(1), Duration(DAY - 1)])
def test_a_retention_shorter_than_a_day_is_refused(kit: Kit, kept: Duration) -> None:
    job = kit.succeeded_job()

    with pytest.raises(InvalidInput, match="at least a day"):
        Retention(kit.store, RetentionPolicy(finished_us=kept))

    assert kit.exists(job.id)


@spec("G6", "G1", "G2")
def test_one_run_of_retention_deletes_what_is_due(kit: Kit) -> None:
    gone = kit.succeeded_job()
    kit.advance(seconds=24 * 3600)
    pruned = _renewed(kit)
    kit.complete(pruned)
    kit.complete(pruned, result=b'"late"')
    retention = Retention(kit.store, RetentionPolicy(finished_us=DAY, refused_us=seconds(60)))
    kit.advance(seconds=61)

    report = retention.run_once()

    deleted = report.deleted
    assert (deleted["renewals"], deleted["observations"], deleted["jobs"]) == (3, 1, 1)
    assert _gone(kit, gone)
    assert kit.reload(pruned).status is JobStatus.SUCCEEDED
    assert ids(kit.events(pruned)) == [pruned.id] * 4
    assert [seen.body for seen in kit.observations(pruned)] == [None]


@spec("G7", "T26")
def test_a_job_is_purged_by_its_own_time_whatever_the_stores_is(kit: Kit) -> None:
    soon = kit.succeeded_job(policy=policy(keep_us=seconds(60)))
    late = kit.succeeded_job(policy=policy(keep_us=Duration(3 * DAY)))
    usual = kit.succeeded_job()
    live = kit.running_job(policy=policy(keep_us=seconds(60), lease_s=120))

    kit.advance(seconds=60)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 0
    kit.advance(seconds=1)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 1
    assert [kit.exists(each.id) for each in (soon, late, usual, live)] == [False, True, True, True]
    kit.advance(seconds=24 * 3600)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 1
    assert [kit.exists(each.id) for each in (late, usual, live)] == [True, False, True]
    kit.advance(seconds=2 * 24 * 3600)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 1
    assert [kit.exists(each.id) for each in (late, live)] == [False, True]


@spec("G7", "G4")
def test_a_page_of_a_purge_has_jobs_of_both_sorts(kit: Kit) -> None:
    kept = [None, seconds(60), None, seconds(60)]
    jobs = [kit.succeeded_job(policy=policy(keep_us=each)) for each in kept]
    kit.advance(seconds=24 * 3600 + 1)

    assert [
        kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=3).deleted for _ in range(3)
    ] == [3, 1, 0]
    assert not any(kit.exists(job.id) for job in jobs)


@spec("G7")
@pytest.mark.parametrize("kept", [Duration(0), seconds(59)])
def test_a_job_is_kept_for_a_minute_at_least(kit: Kit, kept: Duration) -> None:
    with pytest.raises(InvalidInput, match=r"policy\.keep_us: .*at least a minute"):
        kit.reply(kit.new(policy=policy(keep_us=kept)))
