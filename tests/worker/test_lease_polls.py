"""Lease polls between heartbeats: a cancel is heard soon, and a poll alone ends nothing."""

from tenure.core.commands import Heartbeat
from tenure.core.instants import seconds
from tenure.core.vocabulary import CancelMode, JobStatus, LeaseNews
from tenure.worker.frames import AskToStop
from tenure.worker.session.messages import Kill, PollLeases
from tenure.worker.session.outbox import POLL_AFTER_FAILURE, POLL_ANSWER_WITHIN, POLL_INTERVAL
from tenure_conformance.spec import spec
from tests.worker.drive import Drive


def test_a_soft_cancel_is_heard_within_two_polls() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    drive.advance(3)
    drive.cancel(job_id)
    cancelled_at = drive.now

    drive.advance(2)

    assert [each.run for each in drive.wanted(AskToStop)] == [run]
    assert drive.now - cancelled_at <= 2 * POLL_INTERVAL
    assert drive.status(job_id) is JobStatus.RUNNING  # asked to stop, no more than that


def test_a_hard_cancel_stops_the_handler_within_two_polls() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    drive.advance(3)
    drive.cancel(job_id, CancelMode.HARD)

    drive.advance(2)

    assert [each.run for each in drive.wanted(Kill)] == [run]


def test_a_hard_cancel_after_a_soft_one_is_heard_as_soon() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    drive.cancel(job_id)
    drive.advance(5)
    assert not drive.wanted(Kill)

    drive.cancel(job_id, CancelMode.HARD)
    drive.advance(2)

    assert [each.run for each in drive.wanted(Kill)] == [run]


@spec("C2")
def test_a_poll_without_news_costs_no_heartbeat() -> None:
    drive = Drive().begin()
    drive.running()
    before = len(drive.commands(Heartbeat))

    drive.advance(8)

    assert len(drive.wanted(PollLeases)) >= 7
    assert len(drive.commands(Heartbeat)) == before


@spec("C2")
def test_a_poll_ends_nothing_and_causes_one_heartbeat() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    before = len(drive.commands(Heartbeat))

    for _ in range(5):
        drive.feed(drive.session.leases_polled, {run: LeaseNews.LOST, 99: LeaseNews.LOST})

    assert len(drive.commands(Heartbeat)) == before + 1
    assert not drive.wanted(Kill)
    assert drive.status(job_id) is JobStatus.RUNNING


def test_a_worker_of_quick_jobs_never_polls() -> None:
    drive = Drive().begin()
    for _ in range(5):
        job_id = drive.enqueue()
        while drive.status(job_id) is not JobStatus.RUNNING:
            drive.advance(0.1)
        drive.advance(0.5)
        drive.finish(len(drive.grants()))

    assert drive.wanted(PollLeases) == []


def test_a_poll_that_failed_is_not_repeated_at_once() -> None:
    drive = Drive().begin()
    drive.running()
    drive.network.cut()
    before = len(drive.wanted(PollLeases))

    drive.advance(POLL_AFTER_FAILURE / seconds(1))

    assert 1 <= len(drive.wanted(PollLeases)) - before <= 2


def test_a_poll_that_is_never_answered_is_given_up() -> None:
    drive = Drive().begin()
    drive.poll_leases = lambda action: None  # type: ignore[method-assign]  # nobody answers
    drive.running()
    before = len(drive.wanted(PollLeases))

    drive.advance((POLL_ANSWER_WITHIN + POLL_INTERVAL) / seconds(1))

    assert len(drive.wanted(PollLeases)) == before + 1
