"""Beside the log: the decisions about discards, uploads and leftovers, without any store."""

from typing import Any

import pytest
from msgspec.structs import replace

from tenure.conformance.spec import spec
from tenure.core.beside import (
    MAX_ARTIFACTS_PER_ATTEMPT,
    ArtifactQuotas,
    ArtifactUpload,
    ArtifactUsage,
    Resolution,
    is_leftover,
    stage,
)
from tenure.core.commands import Discard, fingerprint
from tenure.core.ids import Epoch, Fingerprint, RequestId, client_actor
from tenure.core.lifecycle import decide
from tenure.core.outcomes import Applied, Moment, NeedsHistory, Outcome, Refused, Replayed, Resolved
from tenure.core.validation import Limits, check_command
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause, JobStatus, ResolutionKind
from tenure.errors import InvalidInput
from tools import lives
from tools.driver import OPERATOR, Driver

NO_ARTIFACTS = ArtifactUsage(
    others=0, others_bytes=0, replaced_bytes=0, earlier_bytes=0, namespace_bytes=0
)


def discard(driver: Driver, **fields: Any) -> Discard:
    given: dict[str, Any] = {"actor": OPERATOR, "request_id": RequestId("d")}
    return Discard(job_id=driver.job.id, **(given | fields))


def decided(driver: Driver, command: Discard) -> Outcome:
    at = Moment(now=driver.now, epoch=driver.epoch, entropy=b"")
    outcome = decide(driver.job, command, at)
    if isinstance(outcome, NeedsHistory):
        outcome = decide(driver.job, command, at, driver.events)
    assert not isinstance(outcome, Applied), "a discard never changes a job"
    return outcome


def cause(outcome: Outcome) -> Cause | None:
    assert isinstance(outcome, Refused)
    assert isinstance(outcome.answer, Reply)
    return outcome.answer.cause


@spec("B1", "B3")
def test_a_discard_resolves_a_dead_letter_and_writes_no_event() -> None:
    driver = lives.dead_lettered()

    outcome = decided(driver, discard(driver, note="enough"))

    assert isinstance(outcome, Resolved)
    assert outcome.resolution.kind is ResolutionKind.DISCARDED
    assert (outcome.resolution.note, outcome.resolution.ts) == ("enough", driver.job.updated_at)


@spec("B3", "N1")
@pytest.mark.parametrize(
    "life", [lives.queued, lives.claimed, lives.running, lives.held, lives.succeeded, lives.failed]
)
def test_nothing_but_a_dead_letter_is_discarded(life: Any) -> None:
    driver = life()

    assert cause(decided(driver, discard(driver))) is Cause.NOT_DEAD_LETTERED


@spec("B4")
def test_what_the_service_found_is_no_part_of_the_question() -> None:
    driver = lives.dead_lettered()
    first = decided(driver, discard(driver))
    assert isinstance(first, Resolved)

    again = discard(driver, resolution=first.resolution)

    assert fingerprint(again) == first.resolution.fingerprint
    assert isinstance(decided(driver, again), Replayed)
    other = decided(driver, replace(again, note="other"))
    assert cause(other) is Cause.IDEMPOTENCY_KEY_REUSE


@spec("B3", "Q4")
def test_the_same_request_id_of_another_principal_is_another_request() -> None:
    driver = lives.dead_lettered()
    known = Resolution(
        job_id=driver.job.id,
        kind=ResolutionKind.DISCARDED,
        ts=driver.now,
        actor=client_actor("somebody"),
        request_id=RequestId("d"),
        fingerprint=Fingerprint("f"),
    )

    outcome = decided(driver, discard(driver, resolution=known))

    assert cause(outcome) is Cause.ALREADY_RESOLVED


@spec("J6")
@pytest.mark.parametrize(
    ("field", "fields"),
    [("note", {"note": "x" * 5000}), ("note", {"note": "\x00"}), ("actor", {"actor": "nobody"})],
)
def test_a_discard_over_a_limit_is_refused_by_name(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        check_command(discard(lives.dead_lettered(), **fields), Limits())


@spec("B7", "B9", "R2")
def test_an_upload_is_judged_by_lease_then_by_room() -> None:
    driver = lives.running()
    job = driver.job
    assert job.lease_id is not None
    assert job.principal is not None
    upload = ArtifactUpload(
        job_id=job.id, lease_id=job.lease_id, actor=job.principal, name="a", body=b"x"
    )

    def staged(*, others: int = 0, epoch: int = 1, **fields: Any) -> Cause | None:
        return stage(
            job,
            replace(upload, **fields),
            now=driver.now,
            epoch=Epoch(epoch),
            usage=replace(NO_ARTIFACTS, others=others),
            quotas=ArtifactQuotas(),
        ).cause

    assert staged(others=MAX_ARTIFACTS_PER_ATTEMPT - 1) is None
    assert staged(others=MAX_ARTIFACTS_PER_ATTEMPT) is Cause.TOO_MANY_ARTIFACTS
    assert staged(epoch=2, others=MAX_ARTIFACTS_PER_ATTEMPT) is Cause.EPOCH_CHANGED
    assert staged(actor=client_actor("other")) is Cause.INVALID_LEASE
    assert staged(actor=client_actor("other"), epoch=2) is Cause.EPOCH_CHANGED


@spec("B28", "J9")
@pytest.mark.parametrize(
    ("used", "quotas", "expected"),
    [
        ({"others_bytes": 6}, {"job_bytes": 10}, None),
        ({"others_bytes": 7}, {"job_bytes": 10}, (Cause.JOB_ARTIFACT_QUOTA, 7)),
        ({"others_bytes": 7}, {"job_bytes": None}, None),
        ({"replaced_bytes": 9, "earlier_bytes": 10, "namespace_bytes": 19}, {"job_bytes": 4}, None),
        ({"namespace_bytes": 6}, {"namespace_bytes": 10}, None),
        ({"namespace_bytes": 7}, {"namespace_bytes": 10}, (Cause.NAMESPACE_ARTIFACT_QUOTA, 7)),
        ({"namespace_bytes": 7}, {"namespace_bytes": None}, None),
        ({"namespace_bytes": 10, "replaced_bytes": 4}, {"namespace_bytes": 10}, None),
        ({"namespace_bytes": 10, "earlier_bytes": 4}, {"namespace_bytes": 10}, None),
        (
            {"namespace_bytes": 10, "replaced_bytes": 3},
            {"namespace_bytes": 10},
            (Cause.NAMESPACE_ARTIFACT_QUOTA, 7),
        ),
    ],
)
def test_an_upload_has_to_fit_into_both_quotas(
    used: dict[str, int], quotas: dict[str, int | None], expected: tuple[Cause, int] | None
) -> None:
    driver = lives.running()
    job = driver.job
    assert job.lease_id is not None
    assert job.principal is not None
    upload = ArtifactUpload(
        job_id=job.id, lease_id=job.lease_id, actor=job.principal, name="a", body=b"four"
    )

    staging = stage(
        job,
        upload,
        now=driver.now,
        epoch=Epoch(1),
        usage=replace(NO_ARTIFACTS, **used),
        quotas=ArtifactQuotas(**quotas),
    )

    if expected is None:
        assert staging.artifact is not None
        assert (staging.cause, staging.problem) == (None, None)
    else:
        assert (staging.cause, staging.used_bytes) == expected
        assert (staging.artifact, staging.quota_bytes) == (None, 10)


@spec("B10")
@pytest.mark.parametrize(
    ("attempt", "of", "leased", "status", "expected"),
    [
        (2, 2, True, JobStatus.RUNNING, False),
        (2, 2, False, JobStatus.SUCCEEDED, False),
        (1, 2, True, JobStatus.RUNNING, True),
        (1, 2, False, JobStatus.SUCCEEDED, True),
        (2, 2, False, JobStatus.QUEUED, True),
        (2, 2, False, JobStatus.STALLED, True),
        (2, 2, False, JobStatus.FAILED, True),
        (2, None, False, None, True),
    ],
)
def test_a_leftover_is_what_nobody_will_ever_see(
    attempt: int, of: int | None, leased: bool, status: JobStatus | None, expected: bool
) -> None:
    assert is_leftover(attempt, of=of, leased=leased, status=status) is expected
