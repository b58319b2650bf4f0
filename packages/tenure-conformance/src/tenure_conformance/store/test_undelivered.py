"""Grants whose caller has gone: taken back only while they cannot have arrived."""

from functools import partial

import pytest

from tenure.core.claims import ClaimRequest
from tenure.core.commands import Release
from tenure.core.ids import SYSTEM, Kind, RequestId
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import EventCause, EventType, JobStatus, ReleaseKind, VerdictKind
from tenure_conformance.harness import KIND, Kit, race
from tenure_conformance.spec import spec

ROUNDS = 5


def _undelivered(grant: Grant) -> Release:
    return Release(
        job_id=grant.job_id,
        lease_id=grant.lease_id,
        actor=SYSTEM,
        request_id=RequestId(f"undelivered:{grant.lease_id}"),
        kind=ReleaseKind.UNDELIVERED,
    )


def _take_back(kit: Kit, grant: Grant) -> Verdict:
    """Not by `kit.verdict`: no worker receives the answer."""
    verdict = kit.coordinator.execute(_undelivered(grant))
    assert isinstance(verdict, Verdict)
    return verdict


def _granted(kit: Kit) -> tuple[ClaimRequest, Grant]:
    kit.enqueue()
    request = kit.claim_request()
    [grant] = kit.coordinator.claim(request).grants
    return request, grant


@spec("Q8", "T11")
def test_a_grant_that_cannot_have_arrived_is_taken_back_and_costs_nothing(kit: Kit) -> None:
    _, grant = _granted(kit)

    verdict = _take_back(kit, grant)
    repeated = _take_back(kit, grant)

    job = kit.reload(grant.job)
    assert (verdict.kind, repeated.kind) == (VerdictKind.COMMITTED, VerdictKind.CANCELLED)
    assert (job.status, job.failures, job.releases) == (JobStatus.QUEUED, 0, 0)
    [stalled] = [event for event in kit.events(job) if event.type is EventType.STALLED]
    assert (stalled.cause, stalled.actor) == (EventCause.UNDELIVERED, SYSTEM)


@spec("Q8", "Q1")
@pytest.mark.parametrize("has_room", [True, False], ids=["with room", "without room"])
def test_the_grants_of_a_repeated_claim_are_never_taken_back(kit: Kit, has_room: bool) -> None:
    request, grant = _granted(kit)
    rival = kit.rival()
    repeat = rival.claim if has_room else rival.repeat_claim

    [again] = repeat(request).grants
    verdict = _take_back(kit, grant)

    assert again.lease_id == grant.lease_id
    assert verdict.kind is VerdictKind.REJECTED
    assert kit.reload(grant.job).lease_id == grant.lease_id
    assert kit.complete(grant.job).kind is VerdictKind.COMMITTED


@spec("Q8")
def test_a_lease_that_was_started_or_renewed_is_not_taken_back(kit: Kit) -> None:
    _, started = _granted(kit)
    kit.start(started.job)
    _, renewed = _granted(kit)
    kit.heartbeat(renewed.job)

    # Its claim is the session's last one, and was not repeated.
    verdicts = [_take_back(kit, each).kind for each in (renewed, started)]

    assert verdicts == [VerdictKind.REJECTED] * 2
    assert kit.reload(renewed.job).status is JobStatus.CLAIMED
    assert kit.complete(renewed.job).kind is VerdictKind.COMMITTED


@spec("Q8")
def test_a_grant_of_an_earlier_claim_of_its_session_is_not_taken_back(kit: Kit) -> None:
    _, earlier = _granted(kit)
    _, last = _granted(kit)

    verdicts = [_take_back(kit, each).kind for each in (earlier, last)]

    assert verdicts == [VerdictKind.REJECTED, VerdictKind.COMMITTED]


@spec("Q8", "Q3")
def test_an_answer_without_grants_does_not_change_the_session(kit: Kit) -> None:
    request, grant = _granted(kit)
    kit.claim(kinds=(Kind(f"not-{KIND}"),))
    kit.coordinator.claim(request)

    verdict = _take_back(kit, grant)

    assert verdict.kind is VerdictKind.REJECTED


@spec("Q8", "Q1")
def test_the_grants_of_a_repeat_that_races_stay_leased(kit: Kit) -> None:
    rival = kit.rival()
    for _ in range(ROUNDS):
        request, grant = _granted(kit)

        _, verdict = race(
            partial(rival.claim, request), partial(kit.coordinator.execute, _undelivered(grant))
        )
        received = rival.claim(request).grants

        assert isinstance(verdict, Verdict)
        is_taken_back = verdict.kind is VerdictKind.COMMITTED
        assert [each.lease_id for each in received] == ([] if is_taken_back else [grant.lease_id])
        assert (kit.reload(grant.job).lease_id is None) is is_taken_back
        kit.claim(limit=10)


@spec("Q8")
def test_a_repeat_that_received_its_grants_first_keeps_them(kit: Kit) -> None:
    """The answer to a repeat is read after the repeat was recorded, whatever happens in between."""
    rival = kit.rival()
    for _ in range(ROUNDS):
        request, grant = _granted(kit)

        answer, _ = race(
            partial(rival.claim, request), partial(kit.coordinator.execute, _undelivered(grant))
        )

        for received in getattr(answer, "grants", ()):
            assert kit.complete(received.job).kind is VerdictKind.COMMITTED
        kit.claim(limit=10)
