"""Claims that start what they are granted, and claims that wait a moment for more free slots."""

from typing import Any

import pytest
from msgspec.structs import replace

from tenure.core.commands import Release, Start, WorkerCommand
from tenure.core.ids import Kind
from tenure.core.instants import seconds
from tenure.core.policy import Policy
from tenure.core.vocabulary import JobStatus
from tenure.handlers.registry import Isolation
from tenure.verify import assert_holds
from tenure.worker.frames import Run
from tenure.worker.session.messages import (
    Begin,
    Kill,
    Note,
    Send,
    SendClaim,
    Unstarted,
)
from tenure.worker.session.outbox import PATIENCE
from tenure.worker.session.session import GATHER, LONGEST_GATHER
from tenure_conformance.spec import spec
from tests.support.cases import each_case
from tests.support.coordinators import KIND
from tests.worker.drive import Drive


def a_drive(*, concurrency: int = 2, serving: int, lane: Isolation = Isolation.PROCESS) -> Drive:
    drive = Drive(concurrency=concurrency, lanes={KIND: lane})
    drive.session.children_serving(lane, serving)
    return drive


def frames(drive: Drive) -> list[Run]:
    """The attempts that their claims started."""
    return [Run.of(each.run, each.grant, until=each.until) for each in drive.wanted(Begin)]


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
    ("lane", "serving", "limits"),
    [
        (Isolation.PROCESS, 0, []),
        (Isolation.PROCESS, 1, [1]),
        (Isolation.PROCESS, 3, [3]),
        (Isolation.PROCESS, 9, [4]),
        (Isolation.ASYNC, 0, []),
        (Isolation.ASYNC, 1, [4]),
    ],
)
def test_a_claim_asks_for_what_can_begin_at_once_and_starts_it(
    lane: Isolation, serving: int, limits: list[int]
) -> None:
    drive = a_drive(concurrency=4, serving=serving, lane=lane)

    drive.begin()

    claims = [each.request for each in drive.wanted(SendClaim)]
    assert [(each.limit, each.start) for each in claims] == [(each, True) for each in limits]


def test_children_that_run_something_are_not_counted_as_ready() -> None:
    drive = a_drive(concurrency=4, serving=2)
    for _ in range(3):
        drive.enqueue()
    drive.begin()
    assert len(frames(drive)) == 2
    before = len(drive.wanted(SendClaim))

    drive.advance(1)
    assert len(drive.wanted(SendClaim)) == before
    drive.feed(drive.session.children_serving, Isolation.PROCESS, 3)

    assert len(frames(drive)) == 3


def test_a_full_lane_does_not_keep_the_jobs_of_another_one_waiting() -> None:
    other = Kind("other")
    drive = Drive(
        concurrency=4,
        kinds={KIND: None, other: None},
        lanes={KIND: Isolation.PROCESS, other: Isolation.ASYNC},
    )
    drive.session.children_serving(Isolation.PROCESS, 1)
    drive.session.children_serving(Isolation.ASYNC, 1)
    for _ in range(2):
        drive.enqueue()
    drive.begin()
    drive.advance(5)
    [running] = frames(drive)
    asked = drive.wanted(SendClaim)[-1].request.kinds

    drive.finish(running.run)

    assert asked == (other,)
    assert len(frames(drive)) == 2, "its lane has room again, and is asked for at once"


def test_a_started_grant_that_arrives_during_a_drain_is_handed_back() -> None:
    drive = a_drive(serving=2)
    job_id = drive.enqueue()
    drive.network.answers_return = False
    drive.begin()
    assert drive.status(job_id) is JobStatus.RUNNING
    drive.feed(drive.session.drain, seconds(30))
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

    assert drive.types(job_id).count("lease_renewed") == 3
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


def with_short_jobs(concurrency: int, *, claim_takes_s: float = 0.0) -> Drive:
    """A worker whose slots are all taken, and whose jobs have been short so far."""
    drive = a_drive(concurrency=concurrency, serving=1, lane=Isolation.ASYNC)
    for _ in range(40 * concurrency):
        drive.enqueue()
    drive.begin()
    drive.advance(0.1)
    for number in range(30):
        drive.network.claim_takes_s = claim_takes_s if number >= 8 else 0.0
        for frame in frames(drive)[-concurrency:]:
            drive.finish(frame.run)
        drive.advance(0.006)
    assert len(frames(drive)) - drive.stats.succeeded == concurrency
    return drive


def test_claims_and_reports_wait_a_moment_for_other_short_jobs() -> None:
    drive = with_short_jobs(10)
    *running, last = frames(drive)[-10:]
    claims, sends = len(drive.wanted(SendClaim)), len(drive.wanted(Send))

    for frame in running:
        drive.finish(frame.run)
    assert len(drive.wanted(SendClaim)) == claims
    assert len(drive.wanted(Send)) == sends

    drive.finish(last.run)

    assert [each.request.limit for each in drive.wanted(SendClaim)[claims:]] == [10]
    assert [len(each.commands) for each in drive.wanted(Send)[sends:]] == [10]


def test_a_report_of_a_short_job_waits_no_longer_than_a_claim() -> None:
    drive = with_short_jobs(10)
    ended = frames(drive)[-1]

    drive.finish(ended.run)
    drive.advance(GATHER / seconds(1))

    assert drive.status(ended.job_id) is JobStatus.SUCCEEDED


@pytest.mark.parametrize("claim_takes_s", [0.0, 0.012, 5.0])
def test_claims_of_short_jobs_wait_as_long_as_a_claim_takes_within_bounds(
    claim_takes_s: float,
) -> None:
    drive = with_short_jobs(10, claim_takes_s=claim_takes_s)
    wait_s = min(max(claim_takes_s, GATHER / seconds(1)), LONGEST_GATHER / seconds(1))
    before = len(drive.wanted(SendClaim))

    drive.finish(frames(drive)[-1].run)
    drive.advance(wait_s * 0.75)
    assert len(drive.wanted(SendClaim)) == before
    drive.advance(wait_s * 0.25)

    assert [each.request.limit for each in drive.wanted(SendClaim)[before:]] == [1]


def test_a_slot_that_a_long_job_frees_is_claimed_for_at_once() -> None:
    drive = Drive(concurrency=10).begin()
    for _ in range(20):
        drive.enqueue()
    drive.advance(3)
    before = len(drive.wanted(SendClaim))

    drive.finish(1)

    assert [each.request.limit for each in drive.wanted(SendClaim)[before:]] == [1]


# --- batches in flight -------------------------------------------------------------------------


class SlowReports(Drive):
    """Calls with reports are answered when the test says so."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.held: list[Send] = []

    def send(self, ticket: int, commands: tuple[WorkerCommand, ...]) -> None:
        self.held.append(Send(ticket, commands))

    def answer(self) -> None:
        send = self.held.pop(0)
        super().send(send.ticket, send.commands)
        self.turn()


def slow_reports(*, jobs: int) -> SlowReports:
    """A worker whose slots are all taken by long jobs, so that no report waits for another."""
    drive = SlowReports(concurrency=jobs, lanes={KIND: Isolation.ASYNC})
    drive.feed(drive.session.children_serving, Isolation.ASYNC, 1)
    for _ in range(3 * jobs):
        drive.enqueue()
    drive.begin()
    drive.advance(0.5)
    return drive


def test_a_claim_does_not_wait_for_the_answer_to_a_report() -> None:
    drive = slow_reports(jobs=4)
    before = len(drive.wanted(SendClaim))

    drive.finish(frames(drive)[0].run)

    assert len(drive.held) == 1
    assert len(drive.wanted(SendClaim)) == before + 1
    assert len(frames(drive)) == 5, "and the next job runs"


def test_two_calls_with_reports_are_in_flight_and_those_after_them_gather() -> None:
    drive = slow_reports(jobs=6)
    runs = [frame.run for frame in frames(drive)]

    for run in runs[:5]:
        drive.finish(run)
    assert [len(send.commands) for send in drive.held] == [1, 1]

    drive.answer()
    assert [len(send.commands) for send in drive.held] == [1, 3]


def test_a_call_that_hangs_holds_up_no_report_for_longer_than_a_moment() -> None:
    drive = slow_reports(jobs=6)
    runs = [frame.run for frame in frames(drive)]
    for run in runs[:4]:
        drive.finish(run)
    assert [len(send.commands) for send in drive.held] == [1, 1]

    drive.advance(PATIENCE / seconds(1))

    assert [len(send.commands) for send in drive.held] == [1, 1, 2]


# --- jobs with short time limits -----------------------------------------------------------------


def limited(*, lease_s: float = 60, **limits_s: float) -> Policy:
    limits = {f"{name}_us": seconds(value) for name, value in limits_s.items()}
    return replace(Policy(), lease_us=seconds(lease_s), **limits)


def notes(drive: Drive) -> list[str]:
    return [note.text for note in drive.wanted(Note)]


@spec("WP23")
@each_case("lease_s", [30, 60, 120])
@each_case("timeout_s", [0.1, 1, 3, 5, 6, 12])
def test_a_job_whose_timeout_is_shorter_than_the_margin_of_its_lease_runs(
    timeout_s: float, lease_s: float
) -> None:
    drive = a_drive(serving=1)
    job_id = drive.enqueue(limited(lease_s=lease_s, timeout=timeout_s))

    drive.begin()
    [frame] = frames(drive)
    allowed_s = (frame.until - drive.now) / 1_000_000
    drive.finish(frame.run)

    assert 0.75 * timeout_s < allowed_s < timeout_s
    assert drive.status(job_id) is JobStatus.SUCCEEDED
    assert drive.commands(Release) == []


@spec("WP23")
def test_a_short_timeout_is_not_spent_by_a_claim_that_is_repeated() -> None:
    drive = a_drive(serving=1)
    job_id = drive.enqueue(limited(timeout=5))
    drive.network.answers_return = False
    drive.begin()

    drive.network.heal()
    drive.advance(1)

    [frame] = frames(drive)
    assert frame.until - drive.now > seconds(3)
    drive.finish(frame.run)
    assert drive.status(job_id) is JobStatus.SUCCEEDED


def test_a_handler_that_runs_into_a_short_timeout_is_killed_for_it() -> None:
    drive = a_drive(serving=1)
    drive.enqueue(limited(timeout=1))
    drive.begin()

    drive.advance(1)

    assert len(drive.wanted(Kill)) == drive.stats.timed_out == 1
    assert any("it ran into its timeout" in note for note in notes(drive))


@spec("WP24")
def test_a_job_that_cannot_run_here_is_handed_back_for_a_second_and_each_time_logged() -> None:
    drive = a_drive(serving=1)
    job_id = drive.enqueue(limited(timeout=0.5))
    drive.network.claim_takes_s = 0.48
    drive.begin()

    drive.advance(10)

    job = drive.job(job_id)
    assert 4 <= job.releases <= 8
    assert job.failures == 0
    text = "handing it back, it did not run: its timeout of 0.5 s was over before it could start"
    assert sum(text in note for note in notes(drive)) == job.releases


@spec("WP24", "WP25")
def test_a_job_that_gets_no_child_is_handed_back_and_the_others_run() -> None:
    drive = a_drive(concurrency=4, serving=1)
    jobs = [drive.enqueue() for _ in range(3)]
    drive.begin()
    drive.advance(1)
    assert len(frames(drive)) == 1

    drive.finish(frames(drive)[0].run, Unstarted("no child can be started: too many open files"))
    drive.advance(2)
    for _ in jobs:
        drive.finish(frames(drive)[-1].run)
        drive.advance(1)

    assert [drive.job(each).failures for each in jobs] == [0, 0, 0]
    assert {drive.status(each) for each in jobs} == {JobStatus.SUCCEEDED}
    assert any("did not run: no child can be started: too many" in note for note in notes(drive))


@spec("WP24")
def test_a_job_that_gets_no_child_while_the_worker_drains_keeps_its_place() -> None:
    drive = a_drive(serving=1)
    job_id = drive.enqueue()
    drive.begin()
    drive.feed(drive.session.drain, seconds(30))

    drive.finish(frames(drive)[0].run, Unstarted("no child can be started: too many open files"))

    job = drive.job(job_id)
    assert (job.status, job.releases) == (JobStatus.QUEUED, 1)
    assert job.run_at is not None
    assert job.run_at <= drive.world.store.now()
