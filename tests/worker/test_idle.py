"""How soon an idle worker claims a new job, in virtual time."""

import pytest

from tenure.core.vocabulary import JobStatus
from tenure.worker.session.messages import SendClaim
from tenure_conformance.spec import spec
from tests.worker.drive import Drive

LONG_S = 60.0
WELL_UNDER_A_SECOND_S = 0.75


@spec("V3")
@pytest.mark.parametrize("luck", [0.0, 0.5, 0.999], ids=["early", "usual", "late"])
def test_a_job_that_just_missed_an_idle_worker_is_claimed_well_within_a_second(luck: float) -> None:
    drive = Drive(random=lambda: luck).begin()
    drive.advance(LONG_S)
    asked = len(drive.wanted(SendClaim))
    while len(drive.wanted(SendClaim)) == asked:  # its next look finds nothing: the worst moment
        drive.advance(0.001)
    job_id = drive.enqueue()

    drive.advance(WELL_UNDER_A_SECOND_S)

    assert drive.status(job_id) is not JobStatus.QUEUED
