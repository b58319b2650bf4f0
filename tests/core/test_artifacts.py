"""The decisions about uploads and leftovers, without any store."""

from typing import Any

import pytest
from msgspec.structs import replace

from tenure.core.artifacts import (
    MAX_ARTIFACTS_PER_ATTEMPT,
    ArtifactQuotas,
    ArtifactUpload,
    ArtifactUsage,
    Staging,
    is_leftover,
    stage,
)
from tenure.core.ids import Epoch, client_actor
from tenure.core.outcomes import Moment
from tenure.core.vocabulary import Cause, JobStatus
from tenure.errors import InvalidInput
from tenure_conformance.spec import spec
from tests.support.cases import each_case
from tools import lives

NO_ARTIFACTS = ArtifactUsage(
    others=0, others_bytes=0, replaced_bytes=0, earlier_bytes=0, namespace_bytes=0
)


@spec("B7", "B9", "R2")
def test_an_upload_is_checked_against_its_lease_and_then_against_the_quotas() -> None:
    driver = lives.running()
    job = driver.job
    assert job.lease_id is not None
    assert job.principal is not None
    upload = ArtifactUpload(
        job_id=job.id, lease_id=job.lease_id, actor=job.principal, name="a", body=b"x"
    )

    def staged(*, others: int = 0, epoch: int = 1, **fields: Any) -> Cause | None:
        staging = stage(
            job,
            replace(upload, **fields),
            Moment(now=driver.now, epoch=Epoch(epoch), entropy=b""),
            None,
            usage=replace(NO_ARTIFACTS, others=others),
            quotas=ArtifactQuotas(),
        )
        assert isinstance(staging, Staging)
        return staging.cause

    assert staged(others=MAX_ARTIFACTS_PER_ATTEMPT - 1) is None
    assert staged(others=MAX_ARTIFACTS_PER_ATTEMPT) is Cause.TOO_MANY_ARTIFACTS
    assert staged(epoch=2, others=MAX_ARTIFACTS_PER_ATTEMPT) is Cause.EPOCH_CHANGED
    assert staged(actor=client_actor("other")) is Cause.INVALID_LEASE
    assert staged(actor=client_actor("other"), epoch=2) is Cause.EPOCH_CHANGED


@spec("B28", "J9")
@each_case(
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
        Moment(now=driver.now, epoch=Epoch(1), entropy=b""),
        None,
        usage=replace(NO_ARTIFACTS, **used),
        quotas=ArtifactQuotas(**quotas),
    )

    assert isinstance(staging, Staging)
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
def test_an_artifact_that_can_never_become_visible_is_a_leftover(
    attempt: int, of: int | None, leased: bool, status: JobStatus | None, expected: bool
) -> None:
    assert is_leftover(attempt, of=of, leased=leased, status=status) is expected


@spec("B41")
@pytest.mark.parametrize("name", ["a/..", "a/../b", "a/./b"])
def test_a_name_leads_to_no_other_folder(name: str) -> None:
    job = lives.running().job
    assert job.lease_id is not None
    assert job.principal is not None

    with pytest.raises(InvalidInput, match="has a part"):
        ArtifactUpload(
            job_id=job.id, lease_id=job.lease_id, actor=job.principal, name=name, body=b""
        )
