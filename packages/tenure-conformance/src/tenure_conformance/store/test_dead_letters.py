"""Resolutions of dead letters: written once, outside the log."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.coordinator.retention import DAY
from tenure.core.commands import redriven_id
from tenure.core.ids import DEFAULT_NAMESPACE, JobId, Kind, QueueName, operator_actor
from tenure.core.job import Job
from tenure.core.outcomes import Change
from tenure.core.verdicts import Reply, Resolution
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import (
    Cause,
    ErrorClass,
    EventCause,
    JobStatus,
    ReasonCode,
    ResolutionKind,
    Stage,
)
from tenure_conformance.harness import KIND, OPERATOR, QUEUE, Kit, ids, race
from tenure_conformance.spec import spec

ROUNDS = 5


def _resolution(kit: Kit, job: Job) -> Resolution | None:
    return kit.store.jobs.resolutions([job.id]).get(job.id)


def _listed(kit: Kit, **fields: Any) -> list[str]:
    wanted = JobFilter(namespace=DEFAULT_NAMESPACE, statuses=(JobStatus.DEAD_LETTERED,), **fields)
    return sorted(ids(kit.store.views.jobs(wanted).jobs))


# --- redriving -----------------------------------------------------------------------------------


@spec("B17", "T27")
@pytest.mark.parametrize("cause", [EventCause.REDRIVE, EventCause.RERUN])
def test_a_redriven_dead_letter_names_its_new_job(kit: Kit, cause: EventCause) -> None:
    job = kit.dead_letter_job()
    kit.advance(seconds=5)

    reply = kit.redrive(job, request_id="again", cause=cause)

    found = _resolution(kit, job)
    assert found is not None
    assert reply.job is not None
    assert (found.kind, found.new_job_id) == (ResolutionKind.REDRIVEN, reply.job.id)
    assert (found.actor, found.request_id, found.ts) == (OPERATOR, "again", kit.now())
    assert kit.reload(job) == job


@spec("B17")
@pytest.mark.parametrize(
    ("resolve", "kind"),
    [(Kit.redrive, ResolutionKind.REDRIVEN), (Kit.discard, ResolutionKind.DISCARDED)],
)
@pytest.mark.parametrize("cause", [EventCause.REDRIVE, EventCause.RERUN])
def test_a_resolved_dead_letter_is_not_redriven(
    kit: Kit, resolve: Callable[[Kit, Job], Reply], kind: ResolutionKind, cause: EventCause
) -> None:
    job = kit.dead_letter_job()
    resolve(kit, job)
    first = _resolution(kit, job)
    assert first is not None

    second = kit.redriving(job, cause=cause)
    reply = kit.reply(second)

    assert (reply.cause, reply.job, reply.resolution) == (Cause.ALREADY_RESOLVED, job, first)
    assert first.kind is kind
    assert not kit.exists(redriven_id(second))
    assert _resolution(kit, job) == first


@spec("B18", "Q4")
@pytest.mark.parametrize("resolve", [Kit.redrive, Kit.discard])
def test_a_resolved_dead_letter_is_redriven_with_again(
    kit: Kit, resolve: Callable[[Kit, Job], Reply]
) -> None:
    job = kit.dead_letter_job()
    resolve(kit, job)
    first = _resolution(kit, job)

    second = kit.redrive(job, request_id="second", again=True)
    repeated = kit.redrive(job, request_id="second", again=True)

    assert second.job is not None
    assert kit.exists(second.job.id)
    assert (repeated.job, repeated.replayed) == (second.job, True)
    assert _resolution(kit, job) == first


@spec("B18", "B17")
def test_the_first_redrive_resolves_a_dead_letter_even_with_again(
    kit: Kit,
) -> None:
    job = kit.dead_letter_job()

    made = kit.redrive(job, again=True)

    found = _resolution(kit, job)
    assert found is not None
    assert made.job is not None
    assert found.new_job_id == made.job.id


@spec("Q4", "B17")
def test_a_repeated_redrive_gets_its_job_whatever_the_resolution_is_now(kit: Kit) -> None:
    job = kit.dead_letter_job()
    made = kit.redrive(job, request_id="first")
    kit.redrive(job, request_id="second", again=True)

    repeated = kit.redrive(job, request_id="first")
    reused = kit.redrive(job, request_id="first", payload=b"2")

    assert (repeated.job, repeated.replayed) == (made.job, True)
    assert reused.cause is Cause.IDEMPOTENCY_KEY_REUSE


@spec("B17", "T27")
def test_of_concurrent_redrives_one_makes_a_job_and_the_others_get_its_id(kit: Kit) -> None:
    coordinators = [kit.coordinator, kit.rival()]
    for _ in range(ROUNDS):
        job = kit.dead_letter_job()
        commands = [kit.redriving(job) for _ in coordinators]

        replies = race(
            *(
                lambda each=each, command=command: each.execute(command)
                for each, command in zip(coordinators, commands, strict=True)
            )
        )

        made = [kit.exists(redriven_id(command)) for command in commands]
        winner, loser = made.index(True), made.index(False)
        won, lost = replies[winner], replies[loser]
        assert isinstance(won, Reply)
        assert isinstance(lost, Reply)
        assert won.job is not None
        assert lost.cause is Cause.ALREADY_RESOLVED
        assert lost.resolution is not None
        assert lost.resolution.new_job_id == won.job.id


@spec("B17", "B3")
def test_of_a_concurrent_redrive_and_discard_one_is_carried_out(kit: Kit) -> None:
    rival = kit.rival()
    for _ in range(ROUNDS):
        job = kit.dead_letter_job()
        redrive, discard = kit.redriving(job), kit.discarding(job)

        race(partial(kit.coordinator.execute, redrive), partial(rival.execute, discard))

        found = _resolution(kit, job)
        assert found is not None
        assert kit.exists(redriven_id(redrive)) is (found.kind is ResolutionKind.REDRIVEN)


@spec("B17", "K3")
def test_a_store_writes_no_job_for_a_dead_letter_that_is_resolved_or_gone(kit: Kit) -> None:
    job, other = kit.dead_letter_job(), kit.dead_letter_job()
    offered: list[Change] = []
    slow = kit.interpose(offered.extend)
    slow.execute(kit.redriving(job, request_id="model"))
    model = offered[0]
    assert model.resolution is not None
    unknown = kit.new_id()
    changes = [_moved(kit, model, to=letter) for letter in (job.id, other.id, other.id, unknown)]

    saved = kit.store.jobs.save(changes, epoch=kit.store.jobs.load([]).epoch)

    assert saved.applied == {changes[1].job.id}
    assert [kit.exists(each.job.id) for each in changes] == [False, True, False, False]
    found = _resolution(kit, other)
    assert found is not None
    assert found.new_job_id == changes[1].job.id
    assert kit.store.jobs.resolutions([unknown]) == {}


def _moved(kit: Kit, change: Change, *, to: JobId) -> Change:
    """The change of a redrive, for a new job of another dead letter."""
    new = kit.new_id()
    assert change.resolution is not None
    return replace(
        change,
        job=replace(change.job, id=new, origin_id=to),
        events=tuple(
            replace(event, job_id=new, payload=replace(event.payload, origin_id=to))
            for event in change.events
        ),
        resolution=replace(change.resolution, job_id=to, new_job_id=new),
    )


@spec("B17", "D5")
def test_a_redrive_that_only_finds_the_holder_of_its_key_resolves_nothing(kit: Kit) -> None:
    job = kit.dead_letter_job(dedupe_key="k")
    kit.enqueue(dedupe_key="k")

    reply = kit.redrive(job)

    assert reply.deduplicated
    assert _resolution(kit, job) is None


@spec("B1", "T27")
def test_redriving_a_job_that_is_no_dead_letter_resolves_nothing(kit: Kit) -> None:
    failed = kit.running_job()
    kit.fail(failed, ErrorClass.PERMANENT)

    assert kit.redrive(failed).is_ok

    assert kit.store.jobs.resolutions([failed.id]) == {}


@spec("B17", "K3")
def test_a_redrive_whose_new_job_is_refused_leaves_no_resolution(kit: Kit) -> None:
    job = kit.dead_letter_job()

    def too_late(changes: Sequence[Change]) -> None:
        for change in changes:
            kit.save(change)

    slow = kit.interpose(too_late)
    reply = slow.execute(kit.redriving(job, request_id="once"))

    assert isinstance(reply, Reply)
    assert reply.replayed
    assert reply.job is not None
    found = _resolution(kit, job)
    assert found is not None
    assert found.new_job_id == reply.job.id


# --- discarding ----------------------------------------------------------------------------------


@spec("B1", "B3", "I4")
def test_a_discarded_dead_letter_keeps_its_row_and_log(kit: Kit) -> None:
    job = kit.dead_letter_job()
    before = kit.events(job)
    kit.advance(seconds=5)

    reply = kit.discard(job, request_id="enough", note="the customer left")

    found = _resolution(kit, job)
    assert found is not None
    assert reply.is_ok
    assert reply.resolution == found
    assert (found.kind, found.note, found.new_job_id) == (
        ResolutionKind.DISCARDED,
        "the customer left",
        None,
    )
    assert (found.actor, found.request_id, found.ts) == (OPERATOR, "enough", kit.now())
    assert (kit.reload(job), kit.events(job)) == (job, before)


@spec("B4")
def test_a_repeated_discard_gets_the_recorded_answer(kit: Kit) -> None:
    job = kit.dead_letter_job()
    first = kit.discard(job, request_id="enough", note="gone")
    kit.advance(seconds=5)

    again = kit.discard(job, request_id="enough", note="gone")

    assert again.replayed
    assert again.resolution == first.resolution == _resolution(kit, job)


@spec("B4")
def test_a_discard_under_the_request_id_of_another_request_is_refused(kit: Kit) -> None:
    job = kit.enqueue()
    kit.dead_letter(job, request_id="used")

    taken = kit.discard(job, request_id="used")
    kit.discard(job, request_id="enough", note="gone")
    other = kit.discard(job, request_id="enough", note="something else")

    assert (taken.cause, other.cause) == (
        Cause.IDEMPOTENCY_KEY_REUSE,
        Cause.IDEMPOTENCY_KEY_REUSE,
    )
    found = _resolution(kit, job)
    assert found is not None
    assert found.note == "gone"


@spec("B3")
@pytest.mark.parametrize(
    ("resolve", "kind"),
    [(Kit.redrive, ResolutionKind.REDRIVEN), (Kit.discard, ResolutionKind.DISCARDED)],
)
def test_a_resolved_dead_letter_is_not_discarded(
    kit: Kit, resolve: Callable[[Kit, Job], Reply], kind: ResolutionKind
) -> None:
    job = kit.dead_letter_job()
    resolve(kit, job)
    first = _resolution(kit, job)
    assert first is not None

    reply = kit.discard(job)
    stranger = kit.discard(job, request_id=first.request_id, actor=operator_actor("other"))

    assert (reply.cause, reply.job, reply.resolution) == (Cause.ALREADY_RESOLVED, job, first)
    assert stranger.cause is Cause.ALREADY_RESOLVED
    assert _resolution(kit, job) == first
    assert first.kind is kind


@spec("B3", "N1")
def test_only_a_dead_letter_can_be_discarded(kit: Kit) -> None:
    jobs = [kit.succeeded_job(), kit.running_job(), kit.enqueue()]

    causes = [kit.discard(job).cause for job in jobs]

    assert causes == [Cause.NOT_DEAD_LETTERED] * 3
    assert kit.store.jobs.resolutions([job.id for job in jobs]) == {}


@spec("B3", "K12")
def test_a_discard_may_state_the_revision_it_expects(kit: Kit) -> None:
    job = kit.dead_letter_job()

    stray = kit.discard(job, expected_rev=job.rev + 1)
    meant = kit.discard(job, expected_rev=job.rev, expected_status=JobStatus.DEAD_LETTERED)

    assert (stray.cause, meant.is_ok) == (Cause.REVISION_MISMATCH, True)


@spec("K12")
def test_who_expects_a_dead_letter_hears_that_it_is_none(kit: Kit) -> None:
    jobs = [kit.succeeded_job(), kit.running_job(), kit.enqueue()]
    expected = {"expected_status": JobStatus.DEAD_LETTERED}

    causes = [ask(job, **expected).cause for job in jobs for ask in (kit.redrive, kit.discard)]

    assert causes == [Cause.NOT_DEAD_LETTERED] * 6


@spec("B1")
def test_of_two_concurrent_discards_one_is_recorded(kit: Kit) -> None:
    job = kit.dead_letter_job()
    coordinators = [kit.coordinator, kit.rival()]
    commands = [kit.discarding(job, note=note) for note in ("one", "two")]

    replies = race(
        *(
            lambda each=each, command=command: each.execute(command)
            for each, command in zip(coordinators, commands, strict=True)
        )
    )

    causes = [reply.cause for reply in replies if isinstance(reply, Reply)]
    winner = causes.index(None)
    found = _resolution(kit, job)
    assert sorted(causes, key=str) == [None, Cause.ALREADY_RESOLVED]
    assert found is not None
    assert found.request_id == commands[winner].request_id


@spec("B1")
def test_a_store_keeps_the_first_resolution_and_none_of_an_unknown_job(kit: Kit) -> None:
    job = kit.dead_letter_job()
    kit.discard(job)
    first = _resolution(kit, job)
    assert first is not None
    unknown = Resolution(
        job_id=kit.new_id(),
        kind=ResolutionKind.DISCARDED,
        ts=kit.now(),
        actor=OPERATOR,
        request_id=kit.request_id(),
        fingerprint=first.fingerprint,
    )

    assert kit.store.jobs.resolve([unknown, first]) == frozenset()
    assert kit.store.jobs.resolutions([job.id, unknown.job_id]) == {job.id: first}


# --- looking -------------------------------------------------------------------------------------


@spec("B5")
def test_dead_letters_are_listed_by_resolution(kit: Kit) -> None:
    redriven, discarded, waiting = (kit.dead_letter_job() for _ in range(3))
    kit.redrive(redriven)
    kit.discard(discarded)

    assert _listed(kit, resolved=False) == [waiting.id]
    assert _listed(kit, resolved=True) == sorted([redriven.id, discarded.id])
    assert _listed(kit) == sorted([redriven.id, discarded.id, waiting.id])


@spec("B5")
def test_dead_letters_are_listed_by_reason_and_stage(kit: Kit) -> None:
    job = kit.enqueue()
    kit.dead_letter(job, reason_code=ReasonCode.PARSE_ERROR, stage=Stage.FETCH)
    kit.dead_letter_job(kind=Kind("other"), queue=QueueName("elsewhere"))

    assert _listed(kit, reason_code=ReasonCode.PARSE_ERROR) == [job.id]
    assert _listed(kit, stage=Stage.FETCH) == [job.id]
    assert _listed(kit, kind=KIND, queue=QUEUE) == [job.id]
    assert _listed(kit, reason_code=ReasonCode.TIMEOUT) == []


@spec("B6", "T26")
def test_a_purge_deletes_the_resolution(kit: Kit) -> None:
    job = kit.dead_letter_job()
    kit.discard(job)
    kit.advance(seconds=24 * 3600 + 1)

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=10).deleted == 1

    assert kit.store.jobs.resolutions([job.id]) == {}
