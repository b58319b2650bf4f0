"""Artifacts of handlers, and when they are visible."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.core.artifacts import MAX_ARTIFACT_BYTES, ArtifactUpload, Staging
from tenure.core.ids import DEFAULT_NAMESPACE, WorkerId, worker_actor
from tenure.core.validation import Limits
from tenure.core.vocabulary import CancelMode, Cause, JobStatus, Stage
from tenure.errors import (
    Cancelled,
    InvalidInput,
    LeaseConflictError,
    StoreUnavailable,
    TransientError,
)
from tenure.handlers.context import file_of
from tenure.worker.child.context import AttemptContext
from tenure.worker.frames import (
    Ask,
    AskAnswer,
    FrameError,
    FrameReader,
    StoreArtifact,
    encode_frame,
    largest_frame,
)
from tenure.worker.supervisor.requests import HandlerRequest, HandlerRequests
from tenure_conformance.spec import spec
from tests.support.waiting import until
from tests.worker.contexts import context_of
from tests.worker.harness import POLICY, Shop, is_alive, read_pids

PART_BYTES = 100_000

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


class Refusing:
    """A coordinator whose store takes no artifact."""

    def __init__(self, refusal: Cause | Exception) -> None:
        self.store = self.artifacts = self
        self._refusal = refusal

    def stage(self, upload: ArtifactUpload) -> Staging:
        if isinstance(self._refusal, Exception):
            raise self._refusal
        return Staging(cause=self._refusal)


def handler_refused_for(refusal: Cause | Exception) -> AttemptContext:
    """A handler whose supervisor answers with this, after an answer to another question."""
    requests = HandlerRequests(
        Refusing(refusal),  # type: ignore[arg-type]  # it is asked nothing else
        actor=worker_actor(WorkerId("w")),
        namespace=DEFAULT_NAMESPACE,
    )

    def supervisor(request: HandlerRequest) -> AskAnswer:
        another = replace(request, ask=replace(request.ask, id=request.ask.id - 1))
        context.receive(another.unavailable("about another one"))
        return requests.carry_out(request)

    context = context_of(supervisor)
    return context


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (Cause.LEASE_EXPIRED, LeaseConflictError),
        (Cause.INVALID_LEASE, LeaseConflictError),
        (Cause.TOO_MANY_ARTIFACTS, InvalidInput),
        (InvalidInput("media_type", "not a media type"), InvalidInput),
        (StoreUnavailable("the store is away"), TransientError),
    ],
)
def test_every_refusal_has_an_error_of_its_own(
    refusal: Cause | Exception, error: type[Exception]
) -> None:
    with pytest.raises(error):
        handler_refused_for(refusal).artifact("a", b"")


def test_a_supervisor_that_never_answers_is_a_lost_lease() -> None:
    context = context_of(lambda _: None, lease_s=0)

    with pytest.raises(Cancelled):
        context.artifact("a", b"")


@pytest.mark.parametrize(
    ("name", "size"), [("", 1), ("a\nb", 1), ("large", MAX_ARTIFACT_BYTES + 1)]
)
def test_an_artifact_out_of_bounds_is_not_sent(name: str, size: int) -> None:
    asked: list[HandlerRequest] = []
    context = context_of(asked.append)

    with pytest.raises(InvalidInput):
        context.artifact(name, bytes(size))

    assert asked == []


@pytest.mark.parametrize("data", ["\ud800", bytearray(b"x"), 7])
def test_what_is_neither_bytes_nor_text_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput, match="data"):
        file_of(data, None)


def test_a_supervisor_buffers_no_more_of_an_artifact_than_is_allowed() -> None:
    def frame(size: int) -> bytes:
        return encode_frame(Ask(1, 1, StoreArtifact("a", "text/plain", bytes(size))))

    reader = FrameReader(max_bytes=largest_frame(Limits().body_bytes))
    assert len(reader.feed(frame(MAX_ARTIFACT_BYTES))) == 1

    with pytest.raises(FrameError):
        reader.feed(frame(2 * MAX_ARTIFACT_BYTES)[:PART_BYTES])
