"""Jobs that report a dead letter: enqueued in the transaction that decides it, once."""

import msgspec
import pytest

from tenure.core.ids import SYSTEM, Kind, QueueName
from tenure.core.instants import seconds
from tenure.core.job import JobError, compensation_id, dead_letter_job_id
from tenure.core.policy import Compensation, DeadLetterJob, Policy
from tenure.core.vocabulary import ErrorClass, EventCause, JobStatus, ReasonCode, Stage
from tenure.errors import InvalidInput
from tenure_conformance.harness import QUEUE, Kit, policy
from tenure_conformance.spec import spec

REPORT = DeadLetterJob(kind=Kind("report"), queue=QUEUE, policy=policy(lease_s=45))
UNDO = Compensation(kind=Kind("undo"), queue=QueueName("undo"), policy=Policy())
DAY = seconds(24 * 3600)
UNREADABLE = JobError(error_class=ErrorClass.VALIDATION, message="no id", stage=Stage.INPUT)


@spec("HK9")
def test_a_dead_letter_enqueues_its_report_with_the_record(kit: Kit) -> None:
    job = kit.running_job(on_dead_letter=REPORT, payload=b'{"a":[1]}', correlation_id="c")

    kit.fail(job, error=UNREADABLE)

    made = kit.store.jobs.load([dead_letter_job_id(job.id)]).jobs[dead_letter_job_id(job.id)]
    (event,) = kit.events(made)
    assert (made.kind, made.queue, made.policy) == (REPORT.kind, REPORT.queue, REPORT.policy)
    assert (made.origin_id, made.origin_cause) == (job.id, EventCause.DEAD_LETTER)
    assert (event.cause, event.actor) == (EventCause.DEAD_LETTER, SYSTEM)
    assert made.correlation_id == "c"
    assert kit.reload(job).reported_by == made.id
    assert msgspec.json.decode(made.payload) == {
        "record": {
            "job_id": job.id,
            "kind": job.kind,
            "queue": job.queue,
            "reason_code": "validation_failed",
            "stage": "input",
            "attempts": 1,
            "error": {"class": "validation", "type": "", "message": "no id", "traceback": ""},
            "payload": {"a": [1]},
        }
    }


@spec("HK9", "T21", "T15")
def test_an_operator_and_the_sweeper_count_too(kit: Kit) -> None:
    waiting = kit.enqueue(on_dead_letter=REPORT, delay_us=seconds(60))
    lost = kit.running_job(on_dead_letter=REPORT, policy=policy(lease_s=30, max_attempts=1))

    kit.dead_letter(waiting, reason_code=ReasonCode.POLICY_VIOLATION)
    kit.advance_to(lost.due_at)
    kit.sweep(lost)
    kit.sweep(lost)

    for job in (waiting, lost):
        assert kit.exists(dead_letter_job_id(job.id))


@spec("HK9")
def test_no_other_end_enqueues_it(kit: Kit) -> None:
    done = kit.running_job(on_dead_letter=REPORT)
    failed = kit.running_job(on_dead_letter=REPORT)
    unnamed = kit.running_job()
    cancelled = kit.enqueue(on_dead_letter=REPORT)

    kit.complete(done)
    kit.fail(failed, ErrorClass.PERMANENT)
    kit.cancel(cancelled)
    kit.fail(unnamed, error=UNREADABLE)

    for job in (done, failed, cancelled, unnamed):
        assert not kit.exists(dead_letter_job_id(job.id))
        assert kit.reload(job).reported_by is None


@spec("HK9", "M1")
def test_a_dead_letter_may_be_undone_and_reported(kit: Kit) -> None:
    job = kit.running_job(on_dead_letter=REPORT, policy=policy(compensation=UNDO))

    kit.fail(job, error=UNREADABLE)

    assert kit.exists(compensation_id(job.id))
    assert kit.exists(dead_letter_job_id(job.id))


@spec("HK10")
def test_a_report_that_dies_is_not_reported(kit: Kit) -> None:
    job = kit.running_job(on_dead_letter=REPORT)
    kit.fail(job, error=UNREADABLE)
    (report,) = kit.claimed()
    kit.fail(report, error=UNREADABLE)

    stored = kit.reload(report)

    assert stored.status is JobStatus.DEAD_LETTERED
    assert stored.on_dead_letter is None
    assert not kit.exists(dead_letter_job_id(report.id))


@spec("HK10")
def test_a_redriven_job_is_reported_again(kit: Kit) -> None:
    job = kit.running_job(on_dead_letter=REPORT)
    kit.fail(job, error=UNREADABLE)

    made = kit.redrive(job).job
    assert made is not None
    kit.dead_letter(made, reason_code=ReasonCode.POLICY_VIOLATION)

    assert made.on_dead_letter == REPORT
    assert kit.exists(dead_letter_job_id(made.id))


@spec("HK10")
def test_a_job_that_names_its_own_kind_is_refused(kit: Kit) -> None:
    kind = Kind("report")

    with pytest.raises(InvalidInput, match="names itself"):
        kit.enqueue(kind=kind, on_dead_letter=REPORT)


@spec("HK11")
def test_a_dead_letter_is_purged_after_its_report(kit: Kit) -> None:
    job = kit.running_job(on_dead_letter=REPORT)
    kit.fail(job, error=UNREADABLE)
    kit.advance(seconds=24 * 3600 + 1)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 0
    (report,) = kit.claimed()
    kit.start(report)
    kit.complete(report)
    kit.advance(seconds=24 * 3600 + 1)

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 1
    assert (kit.exists(report.id), kit.exists(job.id)) == (False, True)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 1
