"""Artifacts of handlers, and when they are visible."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.core.artifacts import MAX_ARTIFACT_BYTES
from tenure.core.vocabulary import CancelMode, Cause, JobStatus, Stage
from tenure.errors import Cancelled, InvalidInput, LeaseConflictError, TransientError
from tenure.handlers.context import file_of
from tenure.worker.child.asks import PART_BYTES, ArtifactUploads
from tenure.worker.frames import ArtifactAnswer, ArtifactEnd, ArtifactPart, ToSupervisor
from tenure.worker.supervisor.requests import ArtifactParts
from tenure_conformance.spec import spec
from tests.support.waiting import until
from tests.worker.harness import POLICY, Shop, is_alive, read_pids

pytestmark = pytest.mark.process


@spec("B8")
def test_artifacts_of_a_success_are_seen_whole(shop: Shop) -> None:
    shop.start()

    job_id = shop.enqueue("leave", {"how": "large"})
    assert shop.wait(job_id).status is JobStatus.SUCCEEDED

    found = {each.name: each for each in shop.coordinator.store.artifacts.of_job(job_id)}
    assert {name: each.size for name, each in found.items()} == {
        "large.bin": 2_000_000,
        "notes.txt": 9,
    }
    assert found["large.bin"].media_type == "application/zip"
    notes = shop.coordinator.store.artifacts.load(job_id, "notes.txt")
    assert notes is not None
    assert notes.body == b"attempt 1"


@spec("B8")
def test_artifacts_of_a_failed_attempt_are_never_seen(shop: Shop) -> None:
    shop.start()

    job_id = shop.enqueue("leave", {"how": "fails once"})
    shop.wait(job_id)

    notes = shop.coordinator.store.artifacts.load(job_id, "notes.txt")
    assert notes is not None
    assert (notes.artifact.attempt, notes.body) == (2, b"attempt 2")


def test_a_wrong_artifact_is_a_permanent_failure_of_the_output(shop: Shop) -> None:
    shop.start()

    job = shop.wait(shop.enqueue("leave", {"how": "badly"}))

    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert job.error is not None
    assert job.error.stage is Stage.OUTPUT
    assert "media type" in job.error.message
    assert shop.coordinator.store.artifacts.of_job(job.id) == []


@spec("B7")
def test_an_attempt_that_lost_its_lease_stores_no_artifact(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    shop.start()
    policy = replace(POLICY, max_attempts=1)
    job_id = shop.enqueue("leave", {"how": "waits", "file": str(file)}, policy=policy)
    [pid] = read_pids(file)

    shop.cancel(job_id, CancelMode.HARD)
    until(lambda: not is_alive(pid), "the handler is killed")

    assert shop.job(job_id).status is JobStatus.CANCELLED
    assert shop.coordinator.store.artifacts.of_job(job_id) == []


# --- the answers a handler can get -------------------------------------------------------------


def answered_with(**answer: Any) -> ArtifactUploads:
    """Uploads whose supervisor always says the same."""

    def send(message: ToSupervisor) -> None:
        if isinstance(message, ArtifactEnd):
            uploads.heard(ArtifactAnswer(1, message.number - 1, failure="about another one"))
            uploads.heard(ArtifactAnswer(1, message.number, **answer))

    uploads = ArtifactUploads(1, send, lambda: True)
    return uploads


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"cause": Cause.LEASE_EXPIRED}, LeaseConflictError),
        ({"cause": Cause.INVALID_LEASE}, LeaseConflictError),
        ({"cause": Cause.TOO_MANY_ARTIFACTS}, InvalidInput),
        ({"problem": "not a media type"}, InvalidInput),
        ({"failure": "the store is away"}, TransientError),
    ],
)
def test_every_refusal_has_an_error_of_its_own(
    answer: dict[str, Any], error: type[Exception]
) -> None:
    uploads = answered_with(**answer)

    with pytest.raises(error):
        uploads.send("a", b"", "text/plain")


def test_a_supervisor_that_never_answers_is_a_lost_lease() -> None:
    uploads = ArtifactUploads(1, lambda _: None, lambda: False)

    with pytest.raises(Cancelled):
        uploads.send("a", b"", "text/plain")


@pytest.mark.parametrize(
    ("name", "size"), [("", 1), ("a\nb", 1), ("large", MAX_ARTIFACT_BYTES + 1)]
)
def test_an_artifact_out_of_bounds_is_not_sent(name: str, size: int) -> None:
    sent: list[ToSupervisor] = []
    uploads = ArtifactUploads(1, sent.append, lambda: True)

    with pytest.raises(InvalidInput):
        uploads.send(name, bytes(size), "text/plain")

    assert sent == []


@pytest.mark.parametrize("data", ["\ud800", bytearray(b"x"), 7])
def test_what_is_neither_bytes_nor_text_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput, match="data"):
        file_of(data, None)


def test_a_supervisor_buffers_no_more_of_an_artifact_than_is_allowed() -> None:
    parts = ArtifactParts()
    for _ in range(2 * MAX_ARTIFACT_BYTES // PART_BYTES):
        parts.add(ArtifactPart(1, bytes(PART_BYTES)))

    left = parts.whole(ArtifactEnd(1, 1, "a", "text/plain"), "j", "l")  # type: ignore[arg-type]  # any ids

    assert len(left.body) == MAX_ARTIFACT_BYTES + 1
    assert parts.whole(ArtifactEnd(1, 2, "b", "text/plain"), "j", "l").body == b""  # type: ignore[arg-type]  # any ids
