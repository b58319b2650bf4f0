"""How soon an idle worker claims a new job, in virtual time."""

import pytest

from tenure.core.vocabulary import JobStatus
from tenure.worker.session.messages import SendClaim
from tenure_conformance.spec import spec
from tests.worker.drive import Drive

LONG_S = 60.0
WELL_UNDER_A_SECOND_S = 0.75
WHILE_HINTS_ARRIVE_S = 6.0

LUCK = pytest.mark.parametrize("luck", [0.0, 0.5, 0.999], ids=["early", "usual", "late"])


@spec("V5")
@LUCK
def test_a_job_that_just_missed_an_idle_worker_is_claimed_well_within_a_second(luck: float) -> None:
    drive = Drive(random=lambda: luck).begin()
    drive.advance(LONG_S)
    asked = len(drive.wanted(SendClaim))
    while len(drive.wanted(SendClaim)) == asked:  # its next look finds nothing: the worst moment
        drive.advance(0.001)
    job_id = drive.enqueue()

    drive.advance(WELL_UNDER_A_SECOND_S)

    assert drive.status(job_id) is not JobStatus.QUEUED


@spec("V5")
@LUCK
def test_an_idle_worker_asks_seldom_while_hints_arrive(luck: float) -> None:
    drive = Drive(random=lambda: luck)
    drive.session.trust_hints(lambda: True)
    drive.begin()
    drive.advance(LONG_S)
    asked = len(drive.wanted(SendClaim))
    while len(drive.wanted(SendClaim)) == asked:
        drive.advance(0.001)
    job_id = drive.enqueue()  # and the hint is lost

    drive.advance(WHILE_HINTS_ARRIVE_S)

    assert drive.status(job_id) is not JobStatus.QUEUED
    assert asked <= LONG_S / 2 + 7  # 7: the pauses grow from 50 ms


@spec("V5")
def test_an_idle_worker_that_loses_its_hints_asks_often_again() -> None:
    arrive = True
    drive = Drive()
    drive.session.trust_hints(lambda: arrive)
    drive.begin()
    drive.advance(LONG_S)
    arrive = False
    drive.feed(drive.session.work_expected)  # as the watch of hints does when they are lost
    drive.advance(LONG_S)
    asked = len(drive.wanted(SendClaim))

    drive.advance(LONG_S)

    assert len(drive.wanted(SendClaim)) - asked >= LONG_S / WELL_UNDER_A_SECOND_S
