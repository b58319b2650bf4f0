"""The errors of a handler whose job could not be enqueued."""

import pytest

from tenure.core.ids import JobId, Kind, LeaseId, QueueName
from tenure.core.validation import Limits
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause
from tenure.errors import InvalidInput, LeaseConflictError
from tenure.handlers.calls import Call, JobSpec
from tenure.worker.child.asks import FollowUps
from tenure.worker.frames import FollowUpWanted, ToSupervisor
from tenure.worker.supervisor.requests import FollowUpRequest, answer_to
from tenure_conformance.spec import spec

PARENT = JobId("0190a5d4-7c3e-7000-8000-000000000001")
LEASE = LeaseId("1.0190a5d4-7c3e-7000-8000-000000000002")
SPEC = JobSpec(kind=Kind("ship"), queue=QueueName("q"), payload=b"7", dedupe_key="order-7")
CALL: Call[object] = Call(SPEC, JobId("0190a5d4-7c3e-7000-8000-000000000003"))


def follow_ups_refused_for(cause: Cause) -> FollowUps:
    """The child's end of a supervisor that refuses every follow-up."""

    def send(message: ToSupervisor) -> None:
        assert isinstance(message, FollowUpWanted)
        asked = FollowUpRequest(wanted=message, job_id=PARENT, lease_id=LEASE)
        refused.heard(answer_to(asked, Reply(job=None, cause=cause)))

    refused = FollowUps(1, PARENT, send, still_mine=lambda: True, limits=Limits())
    return refused


@spec("D6")
def test_a_key_that_a_hidden_job_holds_fails_the_handler_which_still_has_its_lease() -> None:
    with pytest.raises(InvalidInput, match="may not see holds the key 'order-7'"):
        follow_ups_refused_for(Cause.DEDUPE_KEY_HELD).enqueue(CALL, "")


@spec("D10")
@pytest.mark.parametrize("cause", [Cause.LEASE_EXPIRED, Cause.INVALID_LEASE, Cause.EPOCH_CHANGED])
def test_a_lost_lease_is_a_conflict_of_the_lease(cause: Cause) -> None:
    with pytest.raises(LeaseConflictError, match=cause.value):
        follow_ups_refused_for(cause).enqueue(CALL, "")
