"""Schedules: each occurrence is dealt with once, and its job is written with its row."""

from typing import Any

import pytest
from msgspec.structs import replace

from tenure.coordinator.schedules import Firer
from tenure.coordinator.service import Coordinator
from tenure.core.ids import DEFAULT_NAMESPACE, SYSTEM, Epoch, Kind, Namespace, ScheduleName
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job
from tenure.core.outcomes import Moment
from tenure.core.policy import Policy
from tenure.core.schedules import (
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    Schedule,
    ScheduleChange,
    ScheduleSpec,
    plan_firing,
)
from tenure.core.tokens import TOKEN_ENTROPY_BYTES, NewToken, Token, mint
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import CatchUp, Cause, JobStatus, Overlap, Role
from tenure.errors import InvalidInput
from tenure_conformance.harness import CLIENT, OPERATOR, QUEUE, Kit, race
from tenure_conformance.spec import spec

HOUR = seconds(3600)
HOURLY = ScheduleName("hourly")
EVERY_HOUR = ScheduleSpec(kind=Kind("report"), queue=QUEUE, every_us=HOUR)


def key(name: str = HOURLY, namespace: str = DEFAULT_NAMESPACE) -> dict[str, Any]:
    return {
        "namespace": Namespace(namespace),
        "name": ScheduleName(name),
        "actor": OPERATOR,
    }


def put(kit: Kit, spec_: ScheduleSpec = EVERY_HOUR, **where: str) -> Schedule:
    reply = kit.coordinator.change_schedule(PutSchedule(**key(**where), spec=spec_))
    assert reply.schedule is not None
    return reply.schedule


def load(kit: Kit, name: str = HOURLY, namespace: str = DEFAULT_NAMESPACE) -> Schedule:
    found = kit.store.schedules.load(Namespace(namespace), ScheduleName(name)).schedule
    assert found is not None
    return found


def runs(kit: Kit, name: str = HOURLY) -> list[Job]:
    wanted = JobFilter(namespace=DEFAULT_NAMESPACE, schedule=ScheduleName(name))
    return kit.store.views.jobs(wanted).jobs


def fire(kit: Kit, coordinator: Coordinator | None = None) -> int:
    return Firer(coordinator or kit.coordinator).fire_due().fired


def until_due(kit: Kit, name: str = HOURLY) -> Instant:
    at = load(kit, name).next_at
    kit.advance_to(at)
    assert at is not None
    return at


@spec("SC3")
def test_a_schedule_is_read_as_it_was_written(kit: Kit) -> None:
    full = ScheduleSpec(
        kind=Kind("report"),
        queue=QUEUE,
        payload='{"größe": [1, null]}'.encode(),
        priority=-3,
        policy=Policy(max_attempts=2, timeout_us=None),
        cron="15 3 * * MON",
        tz="Europe/Berlin",
        catch_up=CatchUp.ALL,
        overlap=Overlap.CANCEL,
        jitter_us=seconds(30),
    )
    made = put(kit, full)

    assert load(kit).spec == full
    assert load(kit) == made
    assert kit.store.schedules.page(DEFAULT_NAMESPACE) == [made.without_payload]
    assert (made.rev, made.created_at) == (1, kit.now())


@spec("SC3")
def test_schedules_are_listed_by_name_within_a_namespace(kit: Kit) -> None:
    for name in ("b", "a", "Z"):
        put(kit, name=name)
    put(kit, name="c", namespace="other")

    found = kit.store.schedules.page(DEFAULT_NAMESPACE)

    assert [each.name for each in found] == ["Z", "a", "b"]


@spec("B43")
def test_schedules_are_read_in_pages(kit: Kit) -> None:
    for name in ("b", "a", "d", "c"):
        put(kit, name=name)
    kit.coordinator.change_schedule(RemoveSchedule(**key("b")))

    first = kit.store.schedules.page(DEFAULT_NAMESPACE, limit=2)
    rest = kit.store.schedules.page(DEFAULT_NAMESPACE, after="c", limit=5)

    assert [each.name for each in first] == ["a", "c"]
    assert [each.name for each in rest] == ["d"]


@spec("SC2", "SC3")
def test_a_due_occurrence_makes_its_job_and_moves_the_schedule_on(kit: Kit) -> None:
    put(kit)
    nominal = until_due(kit)

    assert fire(kit) == 1
    assert fire(kit) == 0

    [job] = runs(kit)
    after = load(kit)
    assert (job.scheduled_for, job.enqueued_at, job.status) == (nominal, nominal, JobStatus.QUEUED)
    assert (after.last_job_id, after.last_at, after.fired) == (job.id, nominal, 1)
    assert after.next_at == nominal + HOUR


@spec("SC23")
def test_firing_and_running_a_schedule_keep_who_made_and_who_changed_it(kit: Kit) -> None:
    made = put(kit)
    kit.advance(seconds=60)
    changed_at = kit.now()
    kit.coordinator.change_schedule(
        PutSchedule(**key() | {"actor": CLIENT}, spec=replace(EVERY_HOUR, priority=1))
    )
    until_due(kit)

    fire(kit)
    kit.coordinator.change_schedule(RunSchedule(**key(), job_id=kit.new_id()))

    kept = load(kit)
    assert kept.fired == 2
    assert (kept.created_by, kept.created_at) == (OPERATOR, made.created_at)
    assert (kept.changed_by, kept.changed_at) == (CLIENT, changed_at)
    assert kept.updated_at == kit.now()


def token_of(kit: Kit, number: int, name: str = "fleet", **fields: Any) -> Token:
    """A new token of a worker that declared schedules."""
    token_id, digest, _ = mint(bytes([number]) * TOKEN_ENTROPY_BYTES)
    new = NewToken(id=token_id, secret_sha256=digest, name=name, role=Role.WORKER, **fields)
    return kit.store.tokens.create(new)


def put_by(kit: Kit, token: Token, name: str = HOURLY) -> None:
    spec_of = replace(EVERY_HOUR, payload=b'{"large":true}')
    fields = key(name, token.namespace) | {"actor": token.actor}
    kit.coordinator.change_schedule(PutSchedule(**fields, spec=spec_of))


@spec("SC24")
def test_revoking_a_token_pauses_the_schedules_that_its_holder_changed_last(kit: Kit) -> None:
    token, other = token_of(kit, 1), token_of(kit, 2, "other")
    elsewhere = token_of(kit, 3, namespace=Namespace("elsewhere"))
    for name in ("b", "a", "removed", "by-hand"):
        put_by(kit, token, name)
    put_by(kit, other, "others")
    put_by(kit, elsewhere, "a")
    kit.coordinator.change_schedule(RemoveSchedule(**key("removed") | {"actor": token.actor}))
    kit.coordinator.change_schedule(PauseSchedule(**key("by-hand") | {"actor": token.actor}))
    kit.advance(seconds=60)

    paused = kit.store.tokens.revoke(token.id)

    after = load(kit, "a")
    assert paused == ("a", "b")
    assert (after.paused_at, after.next_at, after.rev) == (kit.now(), None, 2)
    assert (after.changed_by, after.changed_at) == (SYSTEM, kit.now())
    assert (after.created_by, after.spec.payload) == (token.actor, b'{"large":true}')
    assert after.pause_reason == "last token of worker:fleet revoked"
    assert load(kit, "by-hand").pause_reason is None
    assert load(kit, "others").paused_at is None
    assert load(kit, "a", "elsewhere").paused_at is None
    kit.advance(seconds=3600)
    assert fire(kit) == 2, "those of the other tokens"
    assert runs(kit, "a") == []


@spec("SC24")
def test_a_schedule_fires_again_after_another_caller_has_resumed_it(kit: Kit) -> None:
    token = token_of(kit, 1)
    put_by(kit, token)
    kit.store.tokens.revoke(token.id)

    change = PutSchedule(**key(), spec=replace(EVERY_HOUR, priority=5))
    changed = kit.coordinator.change_schedule(change).schedule
    kit.coordinator.change_schedule(ResumeSchedule(**key()))
    again = kit.store.tokens.revoke(token.id)

    resumed = load(kit)
    assert changed is not None
    assert changed.pause_reason == "last token of worker:fleet revoked", "a change resumes nothing"
    assert again == ()
    assert (resumed.changed_by, resumed.paused_at, resumed.pause_reason) == (OPERATOR, None, None)
    until_due(kit)
    assert fire(kit) == 1


@spec("SC24")
def test_a_rotation_of_tokens_pauses_nothing(kit: Kit) -> None:
    first, second = token_of(kit, 1), token_of(kit, 2)
    put_by(kit, first)

    assert kit.store.tokens.revoke(first.id) == ()
    assert load(kit).paused_at is None
    assert kit.store.tokens.revoke(second.id) == (HOURLY,)


@spec("SC24")
def test_an_expired_token_pauses_nothing_and_keeps_nothing_firing(kit: Kit) -> None:
    first, expired = token_of(kit, 1), token_of(kit, 2, expires_in_us=seconds(10))
    put_by(kit, expired)
    kit.advance(seconds=10)

    assert load(kit).paused_at is None
    assert kit.store.tokens.revoke(first.id) == (HOURLY,)


@spec("SC24")
def test_what_a_revoked_token_still_made_is_paused_when_it_is_revoked_again(kit: Kit) -> None:
    token = token_of(kit, 1)
    kit.store.tokens.revoke(token.id)
    put_by(kit, token)

    assert kit.store.tokens.revoke(token.id) == (HOURLY,)


@spec("SC24")
def test_tokens_of_one_holder_that_are_revoked_at_once_pause_its_schedules(kit: Kit) -> None:
    tokens = [token_of(kit, number) for number in range(1, 5)]
    put_by(kit, tokens[0])

    answers = race(*[lambda each=each: kit.store.tokens.revoke(each.id) for each in tokens])

    assert sorted(map(str, answers)) == ["('hourly',)"] + ["()"] * 3


@spec("SC25")
def test_nothing_is_due_before_its_time(kit: Kit) -> None:
    at = put(kit).next_at
    assert at is not None
    kit.advance(microseconds=at - kit.now() - 1)

    due = kit.store.schedules.due(limit=10)

    assert (due.schedules, due.next_in_us) == ((), 1)
    kit.advance(microseconds=1)
    assert [each.name for each in kit.store.schedules.due(limit=10).schedules] == [HOURLY]
    assert kit.store.schedules.due(limit=10).next_in_us == 0


@spec("SC25")
def test_due_schedules_come_longest_due_first_and_are_limited(kit: Kit) -> None:
    assert kit.store.schedules.due(limit=2).next_in_us is None
    for minutes in (30, 10, 20):
        put(kit, replace(EVERY_HOUR, every_us=seconds(60 * minutes)), name=f"m{minutes}")
    kit.advance(seconds=3600)

    due = kit.store.schedules.due(limit=2)

    times = sorted(load(kit, f"m{each}").next_at or 0 for each in (10, 20, 30))
    assert [each.next_at for each in due.schedules] == times[:2]


@spec("SC20")
def test_due_schedules_of_namespaces_take_turns(kit: Kit) -> None:
    for namespace, minutes in (("acme", 10), ("acme", 12), ("acme", 15), ("globex", 30)):
        every = replace(EVERY_HOUR, every_us=seconds(60 * minutes), payload=b'"large"')
        put(kit, every, name=f"m{minutes}", namespace=namespace)
    kit.advance(seconds=3600)

    due = kit.store.schedules.due(limit=3).schedules

    firsts, [second] = due[:2], due[2:]
    assert {each.namespace for each in firsts} == {"acme", "globex"}
    assert second.namespace == "acme"
    assert {each.spec.payload for each in due} == {b"null"}


@spec("SC20")
def test_a_namespace_does_not_wait_for_all_schedules_of_another(kit: Kit) -> None:
    every_second = replace(EVERY_HOUR, every_us=seconds(1), overlap=Overlap.ALLOW)
    for number in range(20):
        put(kit, every_second, name=f"s{number}", namespace="acme")
    put(kit, every_second, name="only", namespace="globex")
    firer = Firer(kit.coordinator)
    passes = 0

    while not kit.store.views.jobs(JobFilter(namespace=Namespace("globex"))).jobs:
        kit.advance(seconds=1)
        firer.fire_due(within_us=seconds(0))  # a pass with time for one
        passes += 1

    assert passes <= 3


@spec("OB40")
def test_it_is_measured_for_how_long_schedules_are_due(kit: Kit) -> None:
    put(kit)
    put(kit, name="other", namespace="acme")
    at = until_due(kit)
    before = kit.store.views.measure(queues=10, jobs=10).schedules_due_since
    kit.advance(seconds=60)

    of_one = kit.store.views.measure(queues=10, jobs=10, namespace=DEFAULT_NAMESPACE)
    of_all = kit.store.views.measure(queues=10, jobs=10)
    fire(kit)

    assert before == {DEFAULT_NAMESPACE: at, "acme": at}
    assert of_one.schedules_due_since == {DEFAULT_NAMESPACE: at}
    assert of_all.schedules_due_since == before
    assert kit.store.views.measure(queues=10, jobs=10).schedules_due_since == {}


@spec("SC2")
def test_a_purged_job_is_not_made_again(kit: Kit) -> None:
    put(kit, replace(EVERY_HOUR, policy=Policy(lease_us=seconds(3600))))
    until_due(kit)
    fire(kit)
    [job] = runs(kit)
    # Not by the kit, which would remember that the end of a purged job was acknowledged.
    kit.coordinator.execute(kit.cancellation(job))
    kit.advance(seconds=1)
    assert kit.store.upkeep.delete("jobs", older_than_us=seconds(0), limit=10).deleted == 1

    assert fire(kit) == 0
    assert runs(kit) == []


@spec("SC3")
def test_a_change_that_was_decided_on_another_rev_writes_nothing(kit: Kit) -> None:
    stale = put(kit)
    at = until_due(kit)
    kit.coordinator.change_schedule(PauseSchedule(**key()))
    moment = Moment(now=at, epoch=Epoch(1), entropy=b"")

    written = kit.store.schedules.save(plan_firing(stale, None, moment).change, epoch=Epoch(1))

    assert not written
    assert runs(kit) == []
    assert load(kit).fired == 0


@spec("SC3", "A5")
def test_a_change_of_an_earlier_epoch_writes_nothing(kit: Kit) -> None:
    schedule = put(kit)
    at = until_due(kit)
    firing = plan_firing(schedule, None, Moment(now=at, epoch=Epoch(1), entropy=b""))
    raised = kit.store.raise_epoch()

    assert not kit.store.schedules.save(firing.change, epoch=Epoch(1))
    assert (load(kit).rev, runs(kit)) == (1, [])
    assert kit.store.schedules.save(firing.change, epoch=raised)
    assert len(runs(kit)) == 1


@spec("SC3")
def test_a_new_row_of_a_taken_name_writes_nothing(kit: Kit) -> None:
    first = put(kit)
    change = ScheduleChange(schedule=replace(first, fired=7), expected_rev=0)

    assert not kit.store.schedules.save(change, epoch=Epoch(1))
    assert load(kit) == first


@spec("SC3")
def test_a_job_of_the_same_id_stays_as_it_is(kit: Kit) -> None:
    schedule = put(kit)
    at = until_due(kit)
    firing = plan_firing(schedule, None, Moment(now=at, epoch=Epoch(1), entropy=b""))
    assert firing.change.job is not None
    kit.store.jobs.save([firing.change.job], epoch=Epoch(1))  # as a crash could never leave it
    before = runs(kit)

    assert kit.store.schedules.save(firing.change, epoch=Epoch(1))

    assert runs(kit) == before
    assert len(kit.events(before[0])) == 1
    assert load(kit).next_at == at + HOUR


@spec("SC2")
def test_racing_processes_make_one_job_per_occurrence(kit: Kit) -> None:
    names = [f"s{number}" for number in range(5)]
    for name in names:
        put(kit, name=name)
    rivals = [kit.coordinator, kit.rival(), kit.rival()]

    for _ in range(4):
        until_due(kit, names[0])
        for name in names:
            for job in runs(kit, name):
                kit.cancel(job)
        race(*[lambda each=each: fire(kit, each) for each in rivals])

    for name in names:
        times = [job.scheduled_for for job in runs(kit, name)]
        assert len(times) == len(set(times)) == load(kit, name).fired == 4


@spec("SC7")
def test_an_overlap_is_skipped_and_counted(kit: Kit) -> None:
    put(kit)
    until_due(kit)
    fire(kit)
    until_due(kit)

    assert fire(kit) == 0

    assert (load(kit).skipped, len(runs(kit))) == (1, 1)


@spec("SC7")
def test_an_overlap_cancels_the_run_before(kit: Kit) -> None:
    put(kit, replace(EVERY_HOUR, overlap=Overlap.CANCEL))
    until_due(kit)
    fire(kit)
    until_due(kit)

    fire(kit)

    new, old = runs(kit)
    assert (old.status, new.status) == (JobStatus.CANCELLED, JobStatus.QUEUED)
    assert old.cancel_reason == "the schedule hourly fired again"


@spec("SC8")
def test_all_catches_up_in_order(kit: Kit) -> None:
    put(kit, replace(EVERY_HOUR, catch_up=CatchUp.ALL, overlap=Overlap.ALLOW))
    first = until_due(kit)
    kit.advance(seconds=3 * 3600)

    assert fire(kit) == 4

    times = [job.scheduled_for for job in reversed(runs(kit))]
    assert times == [first + hour * HOUR for hour in range(4)]


@spec("SC9")
def test_a_paused_schedule_is_never_due(kit: Kit) -> None:
    put(kit)
    kit.coordinator.change_schedule(PauseSchedule(**key()))
    kit.advance(seconds=7200)

    assert kit.store.schedules.due(limit=10).next_in_us is None
    resumed = kit.coordinator.change_schedule(ResumeSchedule(**key())).schedule

    assert resumed == load(kit)
    assert (load(kit).next_at or 0) > kit.now()
    assert load(kit).missed == 0


@spec("SC10")
def test_a_removed_schedule_is_not_listed_and_its_name_is_remembered(kit: Kit) -> None:
    put(kit)
    kit.coordinator.change_schedule(RemoveSchedule(**key()))
    kit.advance(seconds=7200)

    worker = PutSchedule(**key(), spec=EVERY_HOUR, only_new=True)
    reply = kit.coordinator.change_schedule(worker)

    assert not reply.changed
    assert kit.store.schedules.page(DEFAULT_NAMESPACE) == []
    assert fire(kit) == 0
    put(kit)
    assert [each.name for each in kit.store.schedules.page(DEFAULT_NAMESPACE)] == [HOURLY]


@spec("SC21")
def test_a_removed_schedule_keeps_no_payload(kit: Kit) -> None:
    put(kit, replace(EVERY_HOUR, payload=b'"large"'))

    kit.coordinator.change_schedule(RemoveSchedule(**key()))

    assert load(kit).removed_at is not None
    assert load(kit).spec == replace(EVERY_HOUR, payload=b"null")


@spec("SC11")
def test_a_run_by_hand_is_one_job_however_often_it_is_asked_for(kit: Kit) -> None:
    put(kit)
    run = RunSchedule(**key(), job_id=kit.new_id())

    for _ in range(2):
        assert kit.coordinator.change_schedule(run).cause is None

    [job] = runs(kit)
    assert (job.id, job.scheduled_for, load(kit).fired) == (run.job_id, kit.now(), 1)
    other = RunSchedule(**key(), job_id=kit.enqueue().id)
    assert kit.coordinator.change_schedule(other).cause is Cause.IDEMPOTENCY_KEY_REUSE


@spec("SC12")
def test_a_request_that_breaks_a_limit_writes_nothing(kit: Kit) -> None:
    never = replace(EVERY_HOUR, every_us=None, cron="0 0 30 2 *")

    with pytest.raises(InvalidInput):
        kit.coordinator.change_schedule(PutSchedule(**key(), spec=never))

    assert kit.store.schedules.load(DEFAULT_NAMESPACE, HOURLY).schedule is None


@spec("SC15", "SC2")
def test_a_schedule_that_fired_while_the_clock_was_ahead_goes_on_at_once(kit: Kit) -> None:
    put(kit, replace(EVERY_HOUR, overlap=Overlap.ALLOW))
    first = until_due(kit)
    fire(kit)
    kit.step_ahead(seconds=86400)
    assert fire(kit) == 1  # of the latest 24; the others are missed
    kit.step_back(seconds=86400)

    assert fire(kit) == 0
    assert load(kit).next_at == first + HOUR
    nominal = []
    for _ in range(25):
        nominal.append(until_due(kit))
        fire(kit)

    made = sorted(each.scheduled_for or 0 for each in runs(kit))
    assert made == [first, *nominal]  # each once, also the one of the wrong clock


@spec("SC15")
def test_a_schedule_that_was_made_while_the_clock_was_ahead_fires_by_the_right_one(
    kit: Kit,
) -> None:
    kit.step_ahead(seconds=86400)
    put(kit)
    kit.step_back(seconds=86400)

    fire(kit)

    assert (load(kit).next_at or 0) - kit.now() <= HOUR
    until_due(kit)
    assert fire(kit) == 1


@spec("SC15", "SC9")
def test_a_paused_schedule_stays_paused_after_the_clock_was_set_back(kit: Kit) -> None:
    kit.step_ahead(seconds=86400)
    put(kit)
    kit.coordinator.change_schedule(PauseSchedule(**key()))
    kit.step_back(seconds=86400)

    fire(kit)

    assert load(kit).next_at is None


@spec("SC2", "SC15")
def test_after_a_small_step_back_of_the_clock_nothing_is_dealt_with_again(kit: Kit) -> None:
    put(kit, replace(EVERY_HOUR, every_us=seconds(60), overlap=Overlap.ALLOW))
    for _ in range(3):
        until_due(kit)
        fire(kit)
    before = load(kit)
    kit.step_back(seconds=3600)

    assert fire(kit) == 0
    assert load(kit) == before
