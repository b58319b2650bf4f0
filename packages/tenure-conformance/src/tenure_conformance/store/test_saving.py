"""Saving: compare and swap, the store's own clock, all or nothing."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.coordinator.batches import LOST_BEFORE_LOCKING
from tenure.core.commands import Cancel, Command, DeadLetter
from tenure.core.ids import Epoch, Kind, QueueName, RequestId
from tenure.core.instants import Instant, seconds
from tenure.core.job import AT_ONCE, Progress, compensation_id
from tenure.core.outcomes import Change
from tenure.core.policy import Compensation, Policy
from tenure.core.verdicts import Answer, Observation, Reply
from tenure.core.vocabulary import (
    CancelMode,
    ErrorClass,
    EventType,
    JobStatus,
    ObservationType,
    ReasonCode,
    VerdictKind,
)
from tenure.errors import StoreRefused
from tenure.ports import Locked
from tenure_conformance.harness import CLIENT, OPERATOR, WORKER, Kit, policy
from tenure_conformance.spec import spec

LONG_ENOUGH_TO_WRITE_S = 0.3
LONG_ENOUGH_TO_WAIT_S = 30.0
UNDO = Compensation(kind=Kind("undo"), queue=QueueName("undo"), policy=Policy())


@spec("K1")
def test_a_change_is_applied_if_the_revision_matches(kit: Kit) -> None:
    job = kit.running_job()
    change = kit.change(kit.completion(job, result=b'"done"'))

    applied = kit.save(change)

    assert applied == {job.id}
    assert kit.reload(job) == change.job
    assert kit.events(job)[-1:] == list(change.events)


def test_a_job_with_several_events_may_be_saved_as_a_new_one(kit: Kit) -> None:
    """A restore, or a move from one store to another: nothing of a row is left out."""
    job = kit.running_job(payload=b'"p"')
    kit.heartbeat(job, checkpoint=b'"c"', progress=Progress(done=1))
    kit.complete(job, result=b'"r"')
    past = kit.reload(job), kit.events(job)
    copied = replace(past[0], id=kit.new().job_id)
    log = tuple(replace(event, job_id=copied.id) for event in past[1])

    applied = kit.save(Change(job=copied, expected_rev=0, events=log))

    assert applied == {copied.id}
    assert kit.reload(copied) == copied
    assert kit.events(copied) == list(log)


@spec("K1")
def test_a_change_decided_on_an_older_revision_writes_nothing(kit: Kit) -> None:
    job = kit.running_job()
    late = kit.change(kit.completion(job))
    kit.heartbeat(job)
    before, log = kit.reload(job), kit.events(job)

    applied = kit.save(late)

    assert applied == frozenset()
    assert kit.reload(job) == before
    assert kit.events(job) == log


@spec("K1")
def test_the_same_change_is_applied_once(kit: Kit) -> None:
    job = kit.running_job()
    change = kit.change(kit.beat(job))

    assert kit.save(change) == {job.id}
    assert kit.save(change) == frozenset()

    assert kit.reload(job) == change.job
    assert kit.types(job).count(EventType.LEASE_RENEWED) == 1


@spec("K1")
def test_a_change_of_an_unknown_job_is_refused(kit: Kit) -> None:
    unsaved = kit.change(kit.new()).job
    change = kit.change(Cancel(job_id=unsaved.id, actor=CLIENT, request_id=_id("r")), job=unsaved)

    assert kit.save(change) == frozenset()
    assert not kit.exists(unsaved.id)


@spec("K1")
def test_each_change_of_a_batch_is_judged_by_itself(kit: Kit) -> None:
    jobs = [kit.running_job() for _ in range(5)]
    changes = [kit.change(kit.completion(job)) for job in jobs]
    for moved in (jobs[0], jobs[3]):
        kit.heartbeat(moved)

    applied = kit.save(*changes)

    assert applied == {jobs[1].id, jobs[2].id, jobs[4].id}
    assert [kit.reload(job).status for job in jobs] == [
        JobStatus.RUNNING,
        JobStatus.SUCCEEDED,
        JobStatus.SUCCEEDED,
        JobStatus.RUNNING,
        JobStatus.SUCCEEDED,
    ]


@spec("K2", "L9")
@pytest.mark.parametrize(("left_us", "sticks"), [(1, True), (0, False), (-1, False)])
def test_not_after_is_judged_by_the_stores_clock_to_the_microsecond(
    kit: Kit, left_us: int, sticks: bool
) -> None:
    job = kit.running_job(lease_s=30)
    change = kit.change(kit.completion(job))
    assert change.not_after is not None
    assert change.not_after == job.due_at
    kit.advance_to(Instant(change.not_after - left_us))

    applied = kit.save(change)

    assert (job.id in applied) is sticks
    assert kit.reload(job) == (change.job if sticks else job)
    assert len(kit.events(job)) == (job.rev + 1 if sticks else job.rev)


@spec("K2")
def test_one_change_of_a_batch_may_be_too_late(kit: Kit) -> None:
    short, long = kit.running_job(lease_s=10), kit.running_job(lease_s=60)
    changes = [kit.change(kit.completion(job)) for job in (short, long)]
    kit.advance_to(short.due_at)

    assert kit.save(*changes) == {long.id}
    assert kit.reload(short) == short


@spec("K2")
def test_a_report_decided_in_time_and_written_too_late_is_refused(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    slow = kit.interpose(lambda _: kit.advance(seconds=30))

    verdict = slow.execute(kit.completion(job))

    assert getattr(verdict, "kind", None) is VerdictKind.CANCELLED
    assert kit.reload(job) == job


def test_the_result_of_a_save_has_the_stores_time(kit: Kit) -> None:
    job = kit.running_job()
    change = kit.change(kit.completion(job))
    kit.advance(seconds=3)

    saved = kit.store.jobs.save([change], epoch=Epoch(1))

    assert saved.now == kit.now()


def test_an_empty_batch_changes_nothing(kit: Kit) -> None:
    assert kit.save() == frozenset()


@spec("A5")
def test_changes_of_another_epoch_are_refused(kit: Kit) -> None:
    job = kit.running_job()
    settle, birth = kit.change(kit.completion(job)), kit.change(kit.new())
    epoch = kit.store.jobs.load([]).epoch
    kit.store.raise_epoch()

    saved = kit.store.jobs.save([settle, birth], epoch=epoch)

    assert saved.applied == frozenset()
    assert kit.reload(job) == job
    assert not kit.exists(birth.job.id)


# --- inserts -------------------------------------------------------------------------------------


@spec("K1", "D3")
def test_an_insert_under_an_id_that_exists_is_refused(kit: Kit) -> None:
    job = kit.enqueue(payload=b"1")
    again = kit.change(kit.new(payload=b"2"))
    clash = replace(again, job=replace(again.job, id=job.id))

    assert kit.save(clash) == frozenset()

    assert kit.reload(job) == job
    assert len(kit.events(job)) == 1


@spec("D3")
def test_an_insert_under_the_id_of_a_finished_job_is_refused(kit: Kit) -> None:
    command = kit.new()
    again = kit.change(command)
    job = kit.reply(command).job
    assert job is not None
    kit.cancel(job)
    before = kit.reload(job)

    assert kit.save(again) == frozenset()
    assert kit.reload(job) == before


@spec("D5", "K1")
def test_of_two_inserts_with_one_key_in_a_batch_the_first_is_applied(kit: Kit) -> None:
    first, second = (kit.change(kit.new(dedupe_key="same")) for _ in range(2))
    other = kit.change(kit.new(dedupe_key="other"))

    applied = kit.save(first, second, other)

    assert applied == {first.job.id, other.job.id}
    assert not kit.exists(second.job.id)
    assert kit.store.events.load([second.job.id]) == {second.job.id: []}


@spec("D2")
def test_a_key_freed_in_a_batch_is_free_for_the_next_batch(kit: Kit) -> None:
    job = kit.running_job(dedupe_key="k")
    settle = kit.change(kit.completion(job))
    birth = kit.change(kit.new(dedupe_key="k"))

    assert kit.save(birth) == frozenset()
    assert kit.save(settle) == {job.id}
    assert kit.save(birth) == {birth.job.id}


# --- all or nothing ------------------------------------------------------------------------------


@spec("K3", "M1")
def test_a_change_is_saved_with_its_spawned_job(kit: Kit) -> None:
    job = kit.running_job(policy=policy(compensation=UNDO), payload=b'{"a":[1]}')
    change = kit.change(kit.cancellation(job, mode=CancelMode.HARD))
    (spawned,) = change.spawned

    assert kit.save(change) == {job.id}

    assert spawned.job.id == compensation_id(job.id)
    assert kit.reload(spawned.job) == spawned.job
    assert kit.events(spawned.job) == list(spawned.events)


@spec("K3", "M1")
def test_a_change_whose_spawned_job_already_exists_is_refused_as_a_whole(kit: Kit) -> None:
    job = kit.running_job(policy=policy(compensation=UNDO))
    kit.save(kit.change(kit.new(job_id=compensation_id(job.id))))
    change = kit.change(kit.cancellation(job, mode=CancelMode.HARD))

    with pytest.raises(StoreRefused, match=compensation_id(job.id)):
        kit.save(change)

    assert kit.reload(job) == job


@spec("K3")
def test_nothing_of_a_refused_change_is_saved(kit: Kit) -> None:
    job = kit.running_job(policy=policy(compensation=UNDO))
    change = kit.change(kit.cancellation(job, mode=CancelMode.HARD))
    note = Observation(
        job_id=job.id, type=ObservationType.FOREIGN_LEASE, ts=kit.now(), actor=WORKER
    )
    kit.heartbeat(job)

    assert kit.save(replace(change, observations=(note,))) == frozenset()

    assert not kit.exists(compensation_id(job.id))
    assert kit.store.events.load([compensation_id(job.id)]) == {compensation_id(job.id): []}
    assert kit.observations(job) == []


@spec("K3", "M2")
def test_a_change_is_saved_with_its_observation(kit: Kit) -> None:
    original = kit.running_job(policy=policy(compensation=UNDO))
    kit.cancel_hard(original)
    (undo,) = kit.claimed(queues=(UNDO.queue,))

    kit.complete(undo)

    (seen,) = kit.observations(original)
    assert seen.type is ObservationType.COMPENSATED
    assert seen.request_id == RequestId(undo.id)


def _with(change: Change, **fields: Any) -> Change:
    return replace(change, job=replace(change.job, **fields))


BROKEN_ROWS: dict[str, Callable[[Change], Change]] = {
    "no result": lambda change: _with(change, result=None),
    "not finished": lambda change: _with(change, finished_at=None),
    "still leased": lambda change: _with(change, lease_id="1-" + "0" * 32),
    "still claimable": lambda change: _with(
        change, run_at=change.job.updated_at, not_before=AT_ONCE
    ),
    "delayed by the clock without a place": lambda change: _with(change, not_before=AT_ONCE),
    "an event twice": lambda change: replace(
        change, events=tuple(replace(event, seq=1) for event in change.events)
    ),
}


@spec("S5", "K3", "E3")
@pytest.mark.parametrize("breaks", BROKEN_ROWS.values(), ids=BROKEN_ROWS.keys())
def test_a_row_that_does_not_fit_its_status_fails_its_whole_batch(
    kit: Kit, breaks: Callable[[Change], Change]
) -> None:
    jobs = [kit.running_job() for _ in range(3)]
    changes = [kit.change(kit.completion(job)) for job in jobs]
    birth = kit.change(kit.new())
    changes[1] = breaks(changes[1])

    with pytest.raises(StoreRefused):
        kit.save(birth, *changes)

    assert [kit.reload(job) for job in jobs] == jobs
    assert [len(kit.events(job)) for job in jobs] == [job.rev for job in jobs]
    assert not kit.exists(birth.job.id)


@spec("I19", "K3")
def test_the_row_of_a_finished_job_is_immutable(kit: Kit) -> None:
    job = kit.succeeded_job()
    change = kit.change(kit.new())
    event = replace(kit.events(job)[-1], seq=job.rev + 1)
    forged = Change(
        job=replace(job, rev=job.rev + 1, result=b'"other"'),
        expected_rev=job.rev,
        events=(event,),
    )

    with pytest.raises(StoreRefused):
        kit.save(change, forged)

    assert kit.reload(job) == job
    assert not kit.exists(change.job.id)


def test_one_bad_change_costs_only_its_own_caller(kit: Kit) -> None:
    jobs = [kit.running_job() for _ in range(3)]

    def spoil(changes: Any) -> None:
        if any(change.job.id == jobs[1].id for change in changes):
            raise StoreRefused("a guard said no")

    coordinator = kit.interpose(spoil)
    commands = [kit.completion(job) for job in jobs]
    futures = [coordinator.submit(command) for command in commands]

    with pytest.raises(StoreRefused):
        futures[1].result()

    assert futures[0].result()
    assert futures[2].result()
    assert [kit.reload(job).status for job in jobs] == [
        JobStatus.SUCCEEDED,
        JobStatus.RUNNING,
        JobStatus.SUCCEEDED,
    ]


def test_one_batch_may_have_changes_of_every_kind(kit: Kit) -> None:
    changes = _one_of_everything(kit)

    applied = kit.save(*changes)

    assert applied == {change.job.id for change in changes}
    for change in changes:
        assert kit.reload(change.job) == change.job
        assert kit.events(change.job)[-len(change.events) :] == list(change.events)
        assert [event.seq for event in kit.events(change.job)] == list(range(1, change.job.rev + 1))


def _one_of_everything(kit: Kit) -> list[Change]:
    """Changes of every kind of command, ready to be saved together."""
    jobs = [kit.running_job(policy=policy(lease_s=600)) for _ in range(9)]
    waiting = [kit.claimed_job() for _ in range(3)]
    commands: list[Command] = [
        kit.new(payload=b'{"x":"y"}', priority=3, dedupe_key="k", correlation_id="c"),
        kit.new(),
        kit.beat(jobs[0]),
        kit.beat(jobs[1], 7, progress=Progress(done=1, total=2, note="half"), checkpoint=b"[1,2]"),
        kit.completion(jobs[2], result=b'"r"'),
        kit.failure(jobs[3], ErrorClass.TRANSIENT),
        kit.failure(jobs[4], ErrorClass.PERMANENT),
        kit.cancellation(jobs[5], reason="enough"),
        kit.cancellation(jobs[6], mode=CancelMode.HARD),
        DeadLetter(
            job_id=jobs[7].id,
            actor=OPERATOR,
            request_id=_id("dead"),
            reason_code=ReasonCode.POLICY_VIOLATION,
        ),
        kit.release_of(jobs[8]),
        kit.starting(waiting[0]),
        kit.completion(waiting[1]),
        kit.failure(waiting[2], ErrorClass.TRANSIENT),
    ]
    return [kit.change(command) for command in commands]


# --- losing races --------------------------------------------------------------------------------


@spec("K8")
def test_after_a_lost_race_the_coordinator_decides_again(kit: Kit) -> None:
    job = kit.running_job(policy=policy(lease_s=60, heartbeat_us=seconds(15)))
    losses = iter([True, True])

    def rival(_: object) -> None:
        if next(losses, False):
            kit.advance(seconds=4)
            kit.heartbeat(job, hb_seq=kit.reload(job).hb_seq + 1)

    verdict = kit.interpose(rival).execute(kit.completion(job))

    assert getattr(verdict, "kind", None) is VerdictKind.COMMITTED
    assert kit.types(job)[-3:] == [
        EventType.LEASE_RENEWED,
        EventType.LEASE_RENEWED,
        EventType.SUCCEEDED,
    ]


@spec("K8")
def test_after_a_lost_race_the_decision_depends_on_the_new_row(kit: Kit) -> None:
    job = kit.running_job()
    once = iter([True])

    def rival(_: object) -> None:
        if next(once, False):
            kit.cancel_hard(job)

    verdict = kit.interpose(rival).execute(kit.completion(job))

    assert getattr(verdict, "kind", None) is VerdictKind.CANCELLED
    assert kit.reload(job).status is JobStatus.CANCELLED


@spec("K8")
def test_a_command_that_loses_every_race_is_decided_on_a_locked_row(kit: Kit) -> None:
    job, lost = kit.running_job(), list[object]()

    def rival(changes: object) -> None:
        lost.append(changes)
        number = kit.reload(job).hb_seq + 1
        kit.heartbeat(job, hb_seq=number, progress=Progress(done=number))  # recorded [L16]

    verdict = kit.interpose(rival).execute(kit.completion(job))

    assert getattr(verdict, "kind", None) is VerdictKind.COMMITTED
    assert len(lost) == LOST_BEFORE_LOCKING
    assert kit.reload(job).status is JobStatus.SUCCEEDED


@spec("K8", "Q4")
def test_a_request_that_needs_the_log_finds_it_under_the_lock(kit: Kit) -> None:
    """The rival is a copy of the same request: the later one is answered with the other's job."""
    job, lost = kit.running_job(), list[object]()
    request = kit.cancellation(job)

    def rival(changes: object) -> None:
        lost.append(changes)
        if len(lost) < LOST_BEFORE_LOCKING:
            kit.heartbeat(job, hb_seq=kit.reload(job).hb_seq + 1)
        else:
            kit.reply(request)

    reply = kit.interpose(rival).execute(request)

    assert isinstance(reply, Reply)
    assert (len(lost), reply.pending, reply.replayed) == (LOST_BEFORE_LOCKING, True, True)
    assert kit.types(job).count(EventType.CANCEL_REQUESTED) == 1


@spec("K9")
def test_no_other_write_changes_a_row_between_its_locked_reading_and_the_write(kit: Kit) -> None:
    job, rival = kit.running_job(), kit.rival()
    beat = kit.beat(job)
    heard: list[Answer] = []
    thread = threading.Thread(target=lambda: heard.append(rival.execute(beat)), daemon=True)

    def decide(locked: Locked) -> list[Change]:
        thread.start()
        thread.join(LONG_ENOUGH_TO_WRITE_S)
        assert thread.is_alive(), "the row was changed while it was locked"
        assert locked.load_histories([job.id]) == {job.id: kept}
        return [kit.change(kit.completion(job), job=locked.jobs[job.id])]

    kept = kit.events(job)
    saved = kit.store.jobs.save_locked([job.id], [], decide)
    thread.join(LONG_ENOUGH_TO_WAIT_S)

    assert saved.applied == {job.id}
    assert kit.reload(job).status is JobStatus.SUCCEEDED
    assert [getattr(verdict, "settled", None) for verdict in heard] == [True]


@spec("K9")
def test_a_locked_decision_to_write_nothing_writes_nothing(kit: Kit) -> None:
    job = kit.running_job()
    unknown = kit.new_id()
    seen: list[Locked] = []

    def decide(locked: Locked) -> list[Change]:
        seen.append(locked)
        return []

    saved = kit.store.jobs.save_locked([job.id, unknown], [], decide)

    assert saved.applied == frozenset()
    assert seen[0].jobs == {job.id: job}
    assert (seen[0].now, kit.reload(job)) == (kit.now(), job)


@spec("K9", "K2")
def test_a_locked_decision_that_comes_too_late_is_not_written(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)

    def decide(locked: Locked) -> list[Change]:
        change = kit.change(kit.completion(job), job=locked.jobs[job.id])
        kit.advance(seconds=30)
        return [change]

    assert kit.store.jobs.save_locked([job.id], [], decide).applied == frozenset()
    assert kit.reload(job) == job


def _id(text: str) -> RequestId:
    return RequestId(text)
