"""Claims that start what they are granted, and claims that wait a moment for more free slots."""

import pytest
from msgspec.structs import replace

from tenure.conformance.spec import spec
from tenure.core.commands import Complete, Release, Start
from tenure.core.instants import seconds
from tenure.core.policy import Policy
from tenure.core.vocabulary import JobStatus
from tenure.handlers.registry import Isolation
from tenure.verify import assert_holds
from tenure.worker.messages import (
    ChildrenServing,
    DrainRequested,
    Kill,
    Note,
    Prepare,
    Run,
    Send,
    SendClaim,
)
from tenure.worker.outbox import GATHER
from tests.support.coordinators import KIND
from tests.worker.drive import Drive


def a_drive(*, concurrency: int = 2, serving: int, lane: Isolation = Isolation.PROCESS) -> Drive:
    drive = Drive(concurrency=concurrency, lanes={KIND: lane})
    drive.feed(ChildrenServing(lane, serving))
    return drive


def frames(drive: Drive) -> list[Run]:
    return [each.frame for each in drive.wanted(Prepare) if each.frame is not None]


@spec("N4")
def test_a_job_that_its_claim_started_goes_straight_to_the_child() -> None:
    drive = a_drive(serving=2)
    job_id = drive.enqueue()

    drive.begin()
    [frame] = frames(drive)
    drive.finish(frame.run)

    assert frame.job_id == job_id
    assert drive.wanted(SendClaim)[0].request.start
    assert drive.commands(Start) == []
    assert drive.types(job_id) == ["enqueued", "claimed", "started", "succeeded"]
    assert (drive.stats.started, drive.stats.succeeded) == (1, 1)
    assert_holds(drive.world.store)


@spec("N4")
@pytest.mark.parametrize(
    ("lane", "serving", "asked"),
    [
        (Isolation.PROCESS, 0, (4, False)),
        (Isolation.PROCESS, 1, (4, False)),
        (Isolation.PROCESS, 3, (3, True)),
        (Isolation.PROCESS, 9, (4, True)),
        (Isolation.ASYNC, 0, (4, False)),
        (Isolation.ASYNC, 1, (4, True)),
    ],
)
def test_a_claim_starts_only_what_can_begin_at_once(
    lane: Isolation, serving: int, asked: tuple[int, bool]
) -> None:
    drive = a_drive(concurrency=4, serving=serving, lane=lane)

    drive.begin()

    [claim] = drive.wanted(SendClaim)
    assert (claim.request.limit, claim.request.start) == asked


def test_children_that_run_something_are_not_counted_as_ready() -> None:
    drive = a_drive(concurrency=4, serving=2)
    for _ in range(2):
        drive.enqueue()
    drive.begin()
    assert len(frames(drive)) == 2

    drive.advance(1)

    claim = drive.wanted(SendClaim)[-1].request
    assert (claim.limit, claim.start) == (2, False)


def test_a_started_grant_that_arrives_during_a_drain_is_handed_back() -> None:
    drive = a_drive(serving=2)
    job_id = drive.enqueue()
    drive.network.answers_return = False
    drive.begin()
    assert drive.status(job_id) is JobStatus.RUNNING
    drive.feed(DrainRequested(seconds(30)))
    drive.network.heal()

    drive.advance(6)

    assert drive.is_done()
    assert frames(drive) == []
    assert len(drive.commands(Release)) == 1
    assert (drive.status(job_id), drive.job(job_id).failures) == (JobStatus.QUEUED, 0)


def test_a_started_job_is_killed_at_its_time_out_not_a_margin_before() -> None:
    drive = a_drive(serving=2)
    drive.enqueue(replace(Policy(), timeout_us=seconds(30)))
    drive.begin()

    drive.advance(29)
    assert drive.wanted(Kill) == []
    drive.advance(1)

    assert len(drive.wanted(Kill)) == 1
    assert (drive.stats.timed_out, drive.stats.fenced) == (1, 0)
    assert any("it ran into its timeout" in note.text for note in drive.wanted(Note))


def test_the_lease_of_a_started_grant_is_renewed() -> None:
    drive = a_drive(serving=2)
    job_id = drive.enqueue()
    drive.begin()

    drive.advance(100)

    assert drive.types(job_id).count("lease_renewed") >= 5
    assert drive.stats.fenced == 0


def test_a_started_grant_whose_answer_was_lost_runs_once() -> None:
    drive = a_drive(serving=2)
    job_id = drive.enqueue()
    drive.network.answers_return = False
    drive.begin()
    drive.advance(20)
    assert frames(drive) == []

    drive.network.heal()
    drive.advance(6)

    assert [frame.job_id for frame in frames(drive)] == [job_id]
    assert drive.types(job_id).count("started") == 1
    assert drive.commands(Start) == []


# --- a claim that waits a moment ---------------------------------------------------------------


def with_short_jobs(concurrency: int) -> Drive:
    """A worker whose slots are all taken, and whose jobs have been short so far."""
    drive = a_drive(concurrency=concurrency, serving=1, lane=Isolation.ASYNC)
    for _ in range(20 * concurrency):
        drive.enqueue()
    drive.begin()
    for _ in range(8):
        for frame in frames(drive)[-concurrency:]:
            drive.finish(frame.run)
        drive.advance(0.01)
    assert len(frames(drive)) - drive.stats.succeeded == concurrency
    return drive


def test_claims_and_reports_of_short_jobs_wait_a_moment_for_a_good_part_of_the_slots() -> None:
    drive = with_short_jobs(10)
    running, jobs = zip(*((each.run, each.job_id) for each in frames(drive)[-10:]), strict=True)
    before = len(drive.wanted(SendClaim))

    for run in running[:6]:
        drive.finish(run)
    assert len(drive.wanted(SendClaim)) == before
    assert drive.commands(Complete)[-1].job_id not in jobs[:6]

    drive.finish(running[6])

    assert [each.request.limit for each in drive.wanted(SendClaim)[before:]] == [7]
    assert [each.job_id for each in drive.wanted(Send)[-1].commands] == list(jobs[:7])


def test_claims_and_reports_of_short_jobs_wait_no_longer_than_a_few_milliseconds() -> None:
    drive = with_short_jobs(10)
    before = len(drive.wanted(SendClaim))

    drive.finish(frames(drive)[-1].run)
    assert len(drive.wanted(SendClaim)) == before
    assert drive.status(frames(drive)[-1].job_id) is JobStatus.RUNNING
    drive.advance(GATHER / seconds(1))

    assert [each.request.limit for each in drive.wanted(SendClaim)[before:]] == [1]


def test_a_slot_that_a_long_job_frees_is_claimed_for_at_once() -> None:
    drive = Drive(concurrency=10).begin()
    for _ in range(20):
        drive.enqueue()
    drive.advance(3)
    before = len(drive.wanted(SendClaim))

    drive.finish(1)

    assert [each.request.limit for each in drive.wanted(SendClaim)[before:]] == [1]
