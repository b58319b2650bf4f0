"""What a worker logs while its coordinator does not answer, and how it ends then."""

import re

import pytest

from tenure.core.claims import ClaimAnswer
from tenure.core.instants import seconds
from tenure.core.vocabulary import JobStatus
from tenure.handlers.registry import Isolation
from tenure.telemetry.log_lines import REMIND_EVERY
from tenure.worker.session.messages import (
    Note,
    SendClaim,
)
from tenure.worker.session.session import CLAIM_LOST
from tests.worker.drive import Drive


def said(drive: Drive) -> list[str]:
    return [note.text for note in drive.wanted(Note)]


def test_a_silence_is_logged_once_and_so_is_its_end_with_its_length() -> None:
    drive = Drive().begin()
    drive.running()
    drive.advance(1)
    drive.network.cut()
    drive.advance(20)
    during = said(drive)
    drive.network.heal()
    drive.advance(6)

    [began] = during
    assert re.fullmatch("no answer to .+, asking until there is one: cut", began)
    [ended] = said(drive)[1:]
    [away_s] = re.findall(r"^the coordinator answers again, after ([0-9.]+) s$", ended)
    assert 18 <= float(away_s) <= 26
    assert drive.stats.transport_failures > 10, "each of them is counted all the same"


def test_a_long_silence_is_logged_again_every_half_minute() -> None:
    drive = Drive().begin()
    drive.network.cut()
    drive.advance(5 * 60)

    first, *reminders = said(drive)
    assert "no answer to" in first
    assert all(each.startswith("still no answer after ") for each in reminders)
    assert 8 <= len(reminders) <= 10


def test_a_second_silence_after_a_long_one_is_logged_at_once() -> None:
    drive = Drive().begin()
    drive.network.cut()
    drive.advance(33)
    drive.network.heal()
    drive.advance(6)
    before = len(said(drive))
    drive.network.cut()
    drive.advance(2)

    [began] = said(drive)[before:]
    assert "no answer to" in began


def test_a_network_that_comes_and_goes_is_logged_twice_in_half_a_minute_at_most() -> None:
    drive = Drive().begin()
    for _ in range(60):
        drive.network.cut()
        drive.advance(1.5)
        drive.network.heal()
        drive.advance(1.5)

    half_minutes = 180 * 1_000_000 // REMIND_EVERY
    assert 2 <= len(said(drive)) <= 2 * half_minutes + 2


def test_a_lost_answer_that_comes_with_the_next_try_is_logged_with_its_end() -> None:
    drive = Drive()
    [claim] = [
        a
        for a in drive.decide(drive.session.children_serving, Isolation.ASYNC, 1)
        if isinstance(a, SendClaim)
    ]
    lost = drive.decide(drive.session.unanswered, claim.ticket, "cut")
    drive.world.clock.now += seconds(5)  # type: ignore[assignment]  # both count microseconds
    [again] = [a for a in drive.decide(lambda: None) if isinstance(a, SendClaim)]

    heard = drive.decide(drive.session.claim_answered, again.ticket, ClaimAnswer(grants=()))

    assert [a.text for a in lost if isinstance(a, Note)] == [
        "no answer to a claim, asking until there is one: cut"
    ]
    assert [a.text for a in heard if isinstance(a, Note)] == [
        "the coordinator answers again, after 5.0 s"
    ]


# --- ending ------------------------------------------------------------------------------------


@pytest.mark.parametrize("away_s", [1, 100])
def test_a_worker_without_jobs_does_not_wait_for_an_unreachable_coordinator(
    away_s: float,
) -> None:
    drive = Drive().begin()
    drive.network.cut()
    drive.advance(away_s)

    drive.feed(drive.session.drain, seconds(30))
    drive.advance(2)

    assert drive.is_done()
    assert said(drive)[-1] == CLAIM_LOST


def test_a_report_that_is_not_delivered_yet_is_worth_waiting_for() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    drive.network.cut()
    drive.finish(run)
    drive.feed(drive.session.drain, seconds(30))
    drive.advance(10)
    assert not drive.is_done()

    drive.network.heal()
    drive.advance(6)

    assert drive.is_done()
    assert drive.status(job_id) is JobStatus.SUCCEEDED


def test_a_coordinator_that_answers_reports_again_is_asked_for_the_grants_of_a_lost_claim() -> None:
    drive = Drive(concurrency=2).begin()
    run, job_id = drive.running()
    drive.network.answers_return = False
    granted = drive.enqueue()
    drive.advance(3)  # its claim arrives, its grant does not
    drive.network.cut()
    drive.feed(drive.session.drain, seconds(60))
    drive.advance(10)
    drive.network.heal()

    drive.finish(run)
    drive.advance(1)

    assert drive.is_done()
    assert drive.status(job_id) is JobStatus.SUCCEEDED
    assert (drive.status(granted), drive.job(granted).releases) == (JobStatus.QUEUED, 1)


def test_a_drain_respects_the_retry_after_of_its_coordinator() -> None:
    drive = Drive()
    [claim] = [
        a
        for a in drive.decide(drive.session.children_serving, Isolation.ASYNC, 1)
        if isinstance(a, SendClaim)
    ]
    drive.decide(drive.session.unanswered, claim.ticket, "busy", seconds(7))

    asked = drive.decide(drive.session.drain, seconds(30))

    assert [action for action in asked if isinstance(action, SendClaim)] == []
    assert drive.session.next_at == drive.now + seconds(7)
