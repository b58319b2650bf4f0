"""How a session ends: by draining, at once, or because it cannot go on."""

from tenure.core.instants import seconds
from tenure.core.vocabulary import JobStatus
from tenure.handlers.registry import Isolation
from tenure.worker.frames import AskToStop
from tenure.worker.session.messages import (
    Action,
    Draining,
    EndWaits,
    Kill,
    Killed,
    Note,
    SendClaim,
)
from tenure_conformance.spec import spec
from tests.worker.drive import Drive


def test_a_drain_lets_running_jobs_finish_and_claims_nothing() -> None:
    drive = Drive(concurrency=2).begin()
    run, job_id = drive.running()
    waiting = drive.enqueue()
    drive.feed(drive.session.drain, seconds(30))
    drive.advance(10)
    assert not drive.is_done()
    assert drive.status(waiting) is JobStatus.QUEUED

    drive.finish(run)

    assert drive.status(job_id) is JobStatus.SUCCEEDED
    assert drive.is_done()


def test_a_drain_asks_then_kills_then_hands_back_within_its_grace() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    drive.feed(drive.session.drain, seconds(30))
    drive.advance(22)
    assert drive.wanted(AskToStop) == []
    drive.advance(1)
    assert drive.wanted(AskToStop) == [AskToStop(run, "shutdown")]
    assert drive.wanted(Kill) == []

    drive.advance(4.5)

    assert drive.wanted(Kill) == [Kill(run)]
    assert drive.is_done()
    job = drive.job(job_id)
    assert (job.status, job.failures, job.releases) == (JobStatus.QUEUED, 0, 1)


@spec("WP22")
def test_a_drain_says_what_it_waits_for_and_what_the_next_signal_does() -> None:
    drive = Drive(concurrency=2).begin()
    drive.running()
    drive.feed(drive.session.drain, seconds(30))

    assert drive.session.is_draining
    assert drive.wanted(Draining) == [
        Draining(
            "draining: 1 job is running and has 27 s to end; "
            "press Ctrl-C or send SIGTERM again to stop it now",
            running=1,
        )
    ]


@spec("WP22")
def test_a_signal_to_a_worker_that_an_operator_drains_is_answered_too() -> None:
    drive = Drive(concurrency=2).begin()
    drive.running()
    drive.running()

    for is_signal in (False, False, True):
        drive.feed(drive.session.drain, seconds(30), by_signal=is_signal)
        drive.advance(2)

    assert [each.text for each in drive.wanted(Draining)] == [
        "draining: 2 jobs are running and have 27 s to end",
        "draining: 2 jobs are running and have 23 s to end; "
        "press Ctrl-C or send SIGTERM again to stop them now",
    ]


@spec("WP22")
def test_a_drain_without_jobs_says_so() -> None:
    drive = Drive().begin()

    drive.feed(drive.session.drain, seconds(30))

    assert drive.wanted(Draining) == [Draining("draining: no job is running", running=0)]


def test_grants_that_arrive_during_a_drain_are_handed_back() -> None:
    drive = Drive()
    job_id = drive.enqueue()
    drive.network.answers_return = False
    drive.begin()
    drive.feed(drive.session.drain, seconds(30))
    assert not drive.is_done(), "an unanswered claim may have grants"
    drive.network.heal()
    drive.advance(6)

    assert drive.is_done()
    assert drive.status(job_id) is JobStatus.QUEUED
    assert drive.types(job_id) == ["enqueued", "claimed", "started", "stalled", "requeued"]


def test_a_drain_ends_with_its_grace_whatever_happens() -> None:
    drive = Drive(kills=False).begin()
    drive.running()
    drive.network.cut()
    drive.feed(drive.session.drain, seconds(10))

    seen = []
    for amount_s in (9.9, 0.2):
        drive.advance(amount_s)
        seen.append(drive.is_done())

    assert seen == [False, True]


def test_a_second_stop_kills_at_once_and_hands_back() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    drive.feed(drive.session.drain, seconds(600))
    drive.advance(1)

    drive.feed(drive.session.stop)

    assert drive.wanted(Kill) == [Kill(run)]
    assert drive.is_done()
    assert (drive.status(job_id), drive.job(job_id).failures) == (JobStatus.QUEUED, 0)


def test_a_worker_that_cannot_work_hands_back_and_says_why() -> None:
    drive = Drive().begin()
    _, job_id = drive.running()

    drive.feed(drive.session.break_off, "children cannot start")

    assert drive.is_done()
    assert drive.session.failure == "children cannot start"
    assert drive.status(job_id) is JobStatus.QUEUED


def test_a_killed_handler_that_is_not_yet_gone_is_not_handed_back() -> None:
    drive = Drive(kills=False).begin()
    run, job_id = drive.running()
    drive.feed(drive.session.stop)
    assert drive.status(job_id) is JobStatus.RUNNING, "it may still be doing something"

    drive.finish(run, Killed())

    assert drive.status(job_id) is JobStatus.QUEUED


def test_a_held_claim_that_the_drain_ends_is_no_transport_failure() -> None:
    drive = Drive()
    claim = _claim_of(drive.decide(drive.session.children_serving, Isolation.ASYNC, 1))
    ended = drive.decide(drive.session.drain, seconds(60))
    hung_up = drive.decide(drive.session.unanswered, claim.ticket, "hung up")
    counted = drive.stats.transport_failures

    drive.world.clock.now += seconds(10)  # type: ignore[assignment]  # both count microseconds
    again = _claim_of(drive.decide(lambda: None))
    drive.decide(drive.session.unanswered, again.ticket, "connection refused")

    assert EndWaits() in ended
    assert [action for action in hung_up if isinstance(action, Note)] == []
    assert (counted, drive.stats.transport_failures) == (0, 1)


def _claim_of(actions: list[Action]) -> SendClaim:
    [claim] = [action for action in actions if isinstance(action, SendClaim)]
    return claim
