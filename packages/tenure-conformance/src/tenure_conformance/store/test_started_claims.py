"""Claims that start what they are granted: what is written, repeated, taken back and cancelled."""

from collections.abc import Callable

import pytest

from tenure.core.claims import ClaimRequest
from tenure.core.commands import Cancel, Release, start_request_id
from tenure.core.ids import SYSTEM, RequestId
from tenure.core.instants import Instant
from tenure.core.verdicts import Grant, Reply, Verdict
from tenure.core.vocabulary import (
    Cause,
    EventCause,
    EventType,
    JobStatus,
    OnLost,
    ReleaseKind,
    VerdictKind,
)
from tenure_conformance.harness import CLIENT, WORKER, Kit, policy
from tenure_conformance.spec import spec


def _started(kit: Kit) -> tuple[ClaimRequest, Grant]:
    """A new job that its claim started."""
    kit.enqueue()
    request = kit.claim_request(start=True)
    [grant] = kit.coordinator.claim(request).grants
    return request, grant


def _take_back(kit: Kit, grant: Grant) -> Verdict:
    command = Release(
        job_id=grant.job_id,
        lease_id=grant.lease_id,
        actor=SYSTEM,
        request_id=RequestId(f"undelivered:{grant.lease_id}"),
        kind=ReleaseKind.UNDELIVERED,
    )
    verdict = kit.coordinator.execute(command)
    assert isinstance(verdict, Verdict)
    return verdict


def _cancel_softly(kit: Kit, grant: Grant) -> None:
    reply = kit.ask(Cancel(job_id=grant.job_id, actor=CLIENT, request_id=kit.request_id()))
    assert isinstance(reply, Reply)
    assert reply.pending


@spec("N4", "T2", "T3", "E1")
def test_a_claim_that_starts_writes_one_row_and_two_events_in_a_row(kit: Kit) -> None:
    request, grant = _started(kit)

    job = kit.reload(grant.job)
    _, claimed, started = kit.events(job)
    assert (grant.is_started, grant.job, job.status) == (True, job, JobStatus.RUNNING)
    assert (claimed.type, started.type) == (EventType.CLAIMED, EventType.STARTED)
    assert (claimed.seq, started.seq, job.rev, job.attempt) == (2, 3, 3, 1)
    assert claimed.ts == started.ts == job.claimed_at == job.started_at
    assert claimed.request_id == request.request_id
    assert (started.request_id, started.cause) == (start_request_id(grant.lease_id), None)
    assert job.lease_expires_at == Instant(started.ts + job.policy.lease_us)
    assert job.was_started


@spec("N4", "T5")
def test_a_started_grant_is_completed_without_another_start(kit: Kit) -> None:
    kit.enqueue()
    [grant] = kit.claim(start=True).grants

    verdict = kit.complete(grant.job)

    assert verdict.kind is VerdictKind.COMMITTED
    types = [event.type for event in kit.events(grant.job)]
    assert types == [
        EventType.ENQUEUED,
        EventType.CLAIMED,
        EventType.STARTED,
        EventType.SUCCEEDED,
    ]


@spec("N4", "T22")
def test_a_reclaim_can_start_as_well(kit: Kit) -> None:
    job = kit.running_job(policy=policy(on_lost=OnLost.RECLAIM, max_attempts=3))
    kit.advance(seconds=120)
    kit.sweep(job)
    kit.advance(seconds=3600)

    [grant] = kit.claim(start=True).grants

    assert (grant.job_id, grant.is_started, grant.attempt) == (job.id, True, 2)
    assert kit.events(job)[-2].cause is EventCause.RECLAIM


@spec("N4", "R18")
def test_a_start_that_is_sent_all_the_same_hears_ok_under_the_claims_own_id(kit: Kit) -> None:
    kit.enqueue()
    [grant] = kit.claim(start=True).grants

    own = kit.start(grant.job, request_id=start_request_id(grant.lease_id))
    other = kit.start(grant.job)

    assert (own.kind, own.replayed) == (VerdictKind.OK, True)
    assert (other.kind, other.cause) == (VerdictKind.REJECTED, Cause.ALREADY_STARTED)
    assert len(kit.events(grant.job)) == 3


@spec("N4", "Q1")
def test_a_repeated_claim_receives_the_same_running_grants(kit: Kit) -> None:
    request, grant = _started(kit)
    kit.enqueue()
    repeat = kit.claim_request(
        start=True, claim_seq=request.claim_seq, request_id=request.request_id
    )

    answer = kit.rival().claim(repeat)

    assert answer.is_repeat
    assert [(each.lease_id, each.is_started) for each in answer.grants] == [(grant.lease_id, True)]
    assert kit.complete(grant.job).kind is VerdictKind.COMMITTED


@spec("N4", "Q8", "T11", "M1")
def test_a_started_grant_that_cannot_have_arrived_is_taken_back(kit: Kit) -> None:
    _, grant = _started(kit)

    verdict = _take_back(kit, grant)

    job = kit.reload(grant.job)
    assert verdict.kind is VerdictKind.COMMITTED
    assert (job.status, job.failures, job.releases) == (JobStatus.QUEUED, 0, 0)
    assert job.was_started  # although no handler began: the log cannot know that
    assert kit.events(job)[3].cause is EventCause.UNDELIVERED


def _repeat(kit: Kit, request: ClaimRequest, _: Grant) -> None:
    kit.rival().claim(request)


def _renew(kit: Kit, _: ClaimRequest, grant: Grant) -> None:
    kit.heartbeat(grant.job)


def _ask_to_stop(kit: Kit, _: ClaimRequest, grant: Grant) -> None:
    _cancel_softly(kit, grant)


@spec("N4", "Q8")
@pytest.mark.parametrize(
    "happens", [_repeat, _renew, _ask_to_stop], ids=["repeated", "renewed", "asked to stop"]
)
def test_a_started_grant_stays_where_it_may_have_arrived(
    kit: Kit, happens: Callable[[Kit, ClaimRequest, Grant], None]
) -> None:
    request, grant = _started(kit)
    happens(kit, request, grant)

    verdict = _take_back(kit, grant)

    assert (verdict.kind, verdict.cause) == (VerdictKind.REJECTED, Cause.ALREADY_STARTED)
    assert kit.reload(grant.job).lease_id == grant.lease_id


@spec("N4", "T19")
def test_a_soft_cancel_of_a_started_grant_is_a_request(kit: Kit) -> None:
    _, grant = _started(kit)

    _cancel_softly(kit, grant)

    job = kit.reload(grant.job)
    assert (job.status, job.cancel_requested_at is not None) == (JobStatus.RUNNING, True)


@spec("N4", "Z1")
def test_claims_that_start_and_claims_that_do_not_share_the_jobs(kit: Kit) -> None:
    kit.enqueue()
    kit.enqueue()

    [first] = kit.claim(start=True).grants
    [second] = kit.claim().grants

    assert [each.job.status for each in (first, second)] == [JobStatus.RUNNING, JobStatus.CLAIMED]
    assert {first.job.principal, second.job.principal} == {WORKER}
