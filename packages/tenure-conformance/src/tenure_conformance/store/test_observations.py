"""Observations: what is kept of refused reports, how many, and for how long."""

from functools import partial

from tenure.core.attempt_end import OBSERVED_BODY_BYTES
from tenure.core.events import digest
from tenure.core.ids import LeaseId, RequestId, worker_actor
from tenure.core.instants import seconds
from tenure.core.job import Job, JobError
from tenure.core.verdicts import MAX_OBSERVATIONS_PER_LEASE, MAX_OBSERVATIONS_READ, Observation
from tenure.core.vocabulary import ObservationType
from tenure_conformance.harness import WORKER, Kit, race
from tenure_conformance.spec import spec

DAY_S = 24 * 3600


def _lost(kit: Kit) -> Job:
    """A job whose lease has just ended, unswept."""
    job = kit.running_job(lease_s=30)
    kit.advance_to(job.due_at)
    return job


@spec("U1")
def test_a_late_result_is_kept_as_an_observation(kit: Kit) -> None:
    job = _lost(kit)
    body = b'"' + "ü".encode() * 4000 + b'"'

    kit.complete(job, result=body, request_id="late")

    assert kit.observations(job) == [
        Observation(
            job_id=job.id,
            type=ObservationType.RESULT_DISCARDED,
            ts=kit.now(),
            actor=WORKER,
            lease_id=job.lease_id,
            request_id=RequestId("late"),
            cause="lease_expired",
            size=len(body),
            sha256=digest(body),
            body=body[:OBSERVED_BODY_BYTES],
        )
    ]
    assert kit.reload(job) == job


@spec("U5")
def test_a_refused_report_that_is_sent_again_is_kept_once(kit: Kit) -> None:
    job = _lost(kit)

    for _ in range(3):
        kit.complete(job, result=b'"late"', request_id="late")
    kit.complete(job, request_id="late", actor=worker_actor("other"))
    kit.complete(job, request_id="later")

    assert [(seen.actor, seen.request_id) for seen in kit.observations(job)] == [
        (WORKER, "late"),
        (worker_actor("other"), "late"),
        (WORKER, "later"),
    ]


@spec("U5")
def test_a_refused_report_that_is_sent_twice_at_once_is_kept_once(kit: Kit) -> None:
    job = _lost(kit)
    rivals = [kit.rival(), kit.rival()]
    late = kit.completion(job, request_id="late")

    race(*[partial(rival.execute, late) for rival in rivals])

    assert len(kit.observations(job)) == 1


@spec("U1")
def test_a_late_failure_is_kept_with_its_message(kit: Kit) -> None:
    job = _lost(kit)

    kit.fail(job, error=JobError(message="it broke"))

    (seen,) = kit.observations(job)
    assert (seen.body, seen.size) == (b"it broke", 8)


@spec("U1")
def test_a_late_release_leaves_nothing(kit: Kit) -> None:
    job = _lost(kit)

    kit.release(job)

    assert kit.observations(job) == []


@spec("U1")
def test_a_duplicate_completion_is_kept_too(kit: Kit) -> None:
    job = kit.running_job()
    kit.complete(job)

    kit.complete(job, result=b'"second"')

    (seen,) = kit.observations(job)
    assert (seen.cause, seen.body) == ("duplicate_completion", b'"second"')


@spec("U1")
def test_at_most_ten_are_kept_per_lease_and_the_oldest_stay(kit: Kit) -> None:
    job = _lost(kit)
    for number in range(12):
        kit.advance(seconds=1)
        kit.complete(job, result=str(number).encode())

    seen = kit.observations(job)

    assert [each.body for each in seen] == [str(number).encode() for number in range(10)]
    assert len(seen) == MAX_OBSERVATIONS_PER_LEASE


@spec("U1")
def test_ten_are_kept_also_when_they_come_in_one_batch(kit: Kit) -> None:
    job = _lost(kit)
    notes = [_note(kit, job, job.lease_id, number) for number in range(14)]

    kept = kit.store.jobs.observe(notes)

    assert kit.observations(job) == kept == notes[:MAX_OBSERVATIONS_PER_LEASE]
    assert kit.store.jobs.observe(notes[-1:]) == []


@spec("U1")
def test_each_lease_has_its_own_ten(kit: Kit) -> None:
    job, other = _lost(kit), kit.running_job()
    leases = [LeaseId(f"1-{number:032x}") for number in (1, 2)]
    notes = [_note(kit, job, lease, number) for lease in leases for number in range(11)]
    notes.append(_note(kit, other, leases[0], 0))

    kit.store.jobs.observe(notes)

    kept = kit.observations(job)
    assert [sum(each.lease_id == lease for each in kept) for lease in leases] == [10, 10]
    assert kit.observations(other) == notes[-1:]


@spec("U3")
def test_the_first_500_of_a_job_are_read(kit: Kit) -> None:
    job = _lost(kit)
    leases = [LeaseId(f"1-{number:032x}") for number in range(51)]
    for lease in leases:
        kit.advance(microseconds=1)
        kit.store.jobs.observe([_note(kit, job, lease, number) for number in range(10)])

    seen = kit.observations(job)

    assert len(seen) == MAX_OBSERVATIONS_READ
    assert {each.lease_id for each in seen} == set(leases[:50])


def _note(kit: Kit, job: Job, lease_id: LeaseId | None, number: int) -> Observation:
    return Observation(
        job_id=job.id,
        type=ObservationType.RESULT_DISCARDED,
        ts=kit.now(),
        actor=WORKER,
        lease_id=lease_id,
        request_id=RequestId(f"note-{number}"),
        body=b"\x00\xff",
    )


@spec("U2")
def test_a_foreign_principal_is_noted_without_its_body(kit: Kit) -> None:
    job = kit.running_job()
    thief = worker_actor("thief")

    kit.complete(job, actor=thief, result=b'"stolen"')

    (seen,) = kit.observations(job)
    assert (seen.type, seen.actor) == (ObservationType.FOREIGN_LEASE, thief)
    assert (seen.body, seen.size, seen.sha256) == (None, None, None)
    assert kit.reload(job) == job


@spec("U2")
def test_foreign_reports_count_towards_the_same_ten(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    for _ in range(6):
        kit.complete(job, actor=worker_actor("thief"))
    kit.advance_to(job.due_at)
    for _ in range(6):
        kit.complete(job)

    kinds = [seen.type for seen in kit.observations(job)]

    assert kinds.count(ObservationType.FOREIGN_LEASE) == 6
    assert kinds.count(ObservationType.RESULT_DISCARDED) == 4


def test_an_unknown_job_is_not_observed(kit: Kit) -> None:
    job = kit.running_job()
    note = _note(kit, job, job.lease_id, 1)
    unknown = kit.new_id()

    stray = Observation(job_id=unknown, type=note.type, ts=note.ts, actor=note.actor)

    assert kit.store.jobs.observe([stray]) == kit.store.jobs.observe([]) == []
    assert kit.store.jobs.observations(unknown) == []


@spec("G2")
def test_bodies_expire_and_the_rest_remains(kit: Kit) -> None:
    job = _lost(kit)
    kit.complete(job, result=b'"old"')
    kit.advance(seconds=DAY_S)
    kit.complete(job, result=b'"new"')
    old, new = kit.observations(job)
    kit.advance(microseconds=1)

    expired = kit.store.upkeep.delete(
        "observations", older_than_us=seconds(DAY_S), limit=100
    ).deleted

    without = Observation(
        job_id=old.job_id,
        type=old.type,
        ts=old.ts,
        actor=old.actor,
        lease_id=old.lease_id,
        request_id=old.request_id,
        cause=old.cause,
        size=old.size,
        sha256=old.sha256,
        body=None,
    )
    assert expired == 1
    assert kit.observations(job) == [without, new]
    assert (
        kit.store.upkeep.delete("observations", older_than_us=seconds(DAY_S), limit=100).deleted
        == 0
    )


@spec("G2")
def test_a_body_of_exactly_that_age_stays_and_a_limit_is_kept(kit: Kit) -> None:
    job = _lost(kit)
    for _ in range(3):
        kit.complete(job)
    kit.advance(seconds=DAY_S)
    assert (
        kit.store.upkeep.delete("observations", older_than_us=seconds(DAY_S), limit=2).deleted == 0
    )
    kit.advance(microseconds=1)

    assert (
        kit.store.upkeep.delete("observations", older_than_us=seconds(DAY_S), limit=2).deleted == 2
    )

    assert sum(seen.body is not None for seen in kit.observations(job)) == 1
