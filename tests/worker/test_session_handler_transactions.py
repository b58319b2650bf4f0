"""A handler that completes its own attempt: it is lent the lease, and its success stands."""

import pytest

from tenure.core.commands import Complete, Fail, Release
from tenure.core.job import JobError
from tenure.core.vocabulary import CancelMode, JobStatus
from tenure.worker.frames import Authority, Raised, Returned, SelfCompleted, Stopped, completion
from tenure.worker.session.messages import Died, Displaced, Note, Outcome
from tests.worker.drive import ACTOR, Drive

RESULT = b'"posted"'
ENDS: list[Outcome] = [
    Returned(RESULT),
    Raised(JobError(type="RuntimeError", message="too late")),
    Died("exited with code 3"),
    Displaced(),
    Stopped(),
]


def settle(drive: Drive, run: int) -> None:
    """What the child does on the handler's connection."""
    lent = drive.session.lend(run)
    assert lent is not None
    job_id = drive.begun(run).job_id
    command = completion(job_id=job_id, lease_id=lent.lease_id, actor=lent.actor, result=RESULT)
    drive.world.coordinator.execute(command)


def test_a_lease_is_lent_on_request() -> None:
    drive = Drive().begin()
    run, _ = drive.running()

    lease_id = drive.begun(run).lease_id
    assert drive.session.lend(run) == Authority(lease_id, ACTOR)


def test_an_attempt_that_is_lost_is_lent_nothing() -> None:
    drive = Drive(kills=False).begin()
    run, job_id = drive.running()
    drive.cancel(job_id, CancelMode.HARD)
    drive.advance(20)

    assert drive.session.lend(run) is None


@pytest.mark.parametrize("end", ENDS)
def test_the_report_of_a_committed_success_is_a_replay_however_the_handler_ends(
    end: Outcome,
) -> None:
    drive = Drive().begin()
    run, job_id = drive.running()

    settle(drive, run)
    drive.feed(drive.session.child_sent, SelfCompleted(run, RESULT))
    drive.finish(run, end)
    drive.advance(1)

    assert len(drive.commands(Complete)) == 1
    assert drive.commands(Fail) == drive.commands(Release) == []
    assert (drive.status(job_id), drive.job(job_id).result) == (JobStatus.SUCCEEDED, RESULT)
    assert drive.types(job_id).count("succeeded") == 1
    assert (drive.stats.succeeded, drive.stats.rejected) == (1, 0)


@pytest.mark.parametrize("end", [Died("was killed by SIGKILL"), Displaced()])
def test_a_child_that_dies_after_its_own_commit_costs_nothing(end: Outcome) -> None:
    drive = Drive().begin()
    run, job_id = drive.running()

    settle(drive, run)
    drive.finish(run, end)
    drive.advance(1)

    assert drive.status(job_id) is JobStatus.SUCCEEDED
    assert (drive.stats.succeeded, drive.stats.rejected) == (1, 0)
    assert [note for note in drive.wanted(Note) if note.is_error] == []


def test_a_handler_that_was_lent_a_lease_and_did_not_use_it_fails_as_always() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()

    drive.session.lend(run)
    drive.finish(run, Died("exited with code 3"))
    drive.advance(0.01)

    assert len(drive.commands(Fail)) == 1
    assert drive.job(job_id).failures == 1
