"""Values of a newer version: kept and shown unchanged, and nothing is decided about their jobs."""

import pytest
from msgspec.structs import replace

from tenure.core.job import Job
from tenure.core.outcomes import Change
from tenure.core.vocabulary import (
    CancelMode,
    Cause,
    EventCause,
    OnLost,
    VerdictKind,
)
from tenure.errors import TenureError
from tenure_conformance.harness import Kit, ids, policy
from tenure_conformance.spec import spec

TOMORROW = EventCause("split")


def of_tomorrow(kit: Kit, **fields: object) -> Job:
    """A ready job that a newer version enqueued, for a reason that this one does not know."""
    made = kit.change(kit.new(**fields))
    row = replace(made.job, origin_cause=TOMORROW)
    save(kit, Change(job=row, expected_rev=0, events=(replace(made.events[0], cause=TOMORROW),)))
    return row


def save(kit: Kit, change: Change) -> None:
    kit.save(change)
    kit.of_newer_version.add(change.job.id)


@spec("Y4")
def test_a_word_of_a_newer_version_is_read_as_it_was_written(kit: Kit) -> None:
    job = of_tomorrow(kit)

    assert kit.reload(job) == job
    assert kit.store.jobs.read([job.id]) == {job.id: job}
    assert [event.cause for event in kit.events(job)] == [TOMORROW]
    [record] = kit.store.audit.records(page_size=10)
    assert (record.job, record.unreadable) == (job, ())


@spec("Y4")
def test_words_within_documents_are_read_as_they_were_written(kit: Kit) -> None:
    made = kit.change(kit.new())
    row = replace(made.job, policy=policy(on_lost=OnLost("elsewhere")))
    facts = replace(made.events[0].payload, policy=row.policy)
    save(kit, Change(job=row, expected_rev=0, events=(replace(made.events[0], payload=facts),)))

    assert kit.reload(row) == row
    assert kit.events(row)[0].payload.policy == row.policy
    assert kit.claimed(limit=5) == []


@spec("Y5")
@pytest.mark.parametrize("number", [1, 5])
def test_a_claim_passes_over_such_jobs_and_grants_those_behind_them(kit: Kit, number: int) -> None:
    left = [of_tomorrow(kit, priority=9) for _ in range(number)]
    known = [kit.enqueue() for _ in range(3)]

    first, others = kit.claimed(limit=1), kit.claimed(limit=10)

    assert ids(first + others) == ids(known)
    assert [kit.reload(job) for job in left] == left


@spec("Y5", "Z3")
def test_a_queue_with_a_limit_is_passed_over_the_same_way(kit: Kit) -> None:
    of_tomorrow(kit, priority=9)
    known = [kit.enqueue() for _ in range(3)]
    kit.store.settings.put_queue(known[0].namespace, known[0].queue, paused=None, limit=2)

    assert ids(kit.claimed(limit=10)) == ids(known[:2])


@spec("Y5", "CK4")
def test_a_job_with_a_key_is_passed_over_the_same_way(kit: Kit) -> None:
    left = [of_tomorrow(kit, priority=9, concurrency_key=str(key)) for key in range(3)]
    known = [kit.enqueue(concurrency_key=key) for key in ("a", "b", "c")]

    first, others = kit.claimed(limit=1), kit.claimed(limit=10)

    assert (ids(first), ids(others)) == (ids(known[:1]), ids(known[1:]))
    assert [kit.reload(job) for job in left] == left


@spec("Y5")
def test_a_command_about_such_a_job_is_refused_and_changes_nothing(kit: Kit) -> None:
    job = of_tomorrow(kit)

    with pytest.raises(TenureError):
        kit.cancel(job, mode=CancelMode.HARD)

    assert kit.reload(job) == job


@spec("Y5")
def test_commands_about_other_jobs_in_the_same_call_are_not_affected(kit: Kit) -> None:
    job, running = of_tomorrow(kit), kit.running_job()
    stranger = replace(running, id=job.id)

    with pytest.raises(TenureError):
        kit.complete(stranger)

    assert kit.complete(running).kind is VerdictKind.COMMITTED


@spec("Y4")
def test_an_answer_about_such_a_job_shows_its_words(kit: Kit) -> None:
    job = of_tomorrow(kit)

    found = kit.coordinator.store.jobs.read([job.id])[job.id]

    assert (found.origin_cause, found.status) == (TOMORROW, job.status)
    assert kit.requeue(kit.enqueue()).cause is Cause.NOT_HELD
