"""Artifact uploads: in pieces from the handler to its supervisor, which stores them under the lease
that the handler does not hold.

The handler waits for the answer, so that its success can never be reported before its artifacts.
"""

import threading
from collections.abc import Callable

import msgspec

from tenure.core.artifacts import MAX_ARTIFACT_BYTES, MAX_ARTIFACTS_PER_ATTEMPT, ArtifactUpload
from tenure.core.checks import check_name
from tenure.core.ids import Actor, JobId, LeaseId
from tenure.core.vocabulary import Cause
from tenure.errors import (
    InvalidInput,
    LeaseConflictError,
    TenureError,
    TransientError,
)
from tenure.ports import Coordination
from tenure.worker.messages import ArtifactAnswer, ArtifactEnd, ArtifactPart, ToSupervisor
from tenure.worker.wire import Answers

PART_BYTES = 512 * 1024


# --- in the child ------------------------------------------------------------------------------


class ArtifactUploads:
    """Sends one artifact of an attempt at a time."""

    def __init__(
        self, run: int, send: Callable[[ToSupervisor], None], still_mine: Callable[[], bool]
    ) -> None:
        self._run = run
        self._send = send
        self._lock = threading.Lock()
        self._answers: Answers[ArtifactAnswer] = Answers(still_mine)

    def send(self, name: str, body: bytes, media_type: str) -> None:
        """Send it and wait until it is stored; raises if it is not."""
        check_name("name", name)
        _check_size(len(body))
        with self._lock:
            number = self._answers.next_number()
            for start in range(0, len(body), PART_BYTES):
                self._send(ArtifactPart(self._run, body[start : start + PART_BYTES]))
            self._send(ArtifactEnd(self._run, number, name, media_type))
            _judge(self._answers.wait_for(number))

    def heard(self, answer: ArtifactAnswer) -> None:
        """The supervisor's answer."""
        self._answers.put(answer)


def _check_size(size: int) -> None:
    if size > MAX_ARTIFACT_BYTES:
        raise InvalidInput(
            "data",
            f"{size} bytes are over the limit of {MAX_ARTIFACT_BYTES}",
            hint="put it into an object store, and its address into the result",
        )


def _judge(answer: ArtifactAnswer) -> None:
    if answer.failure:
        raise TransientError(answer.failure, dependency_unavailable=True)
    if answer.problem:
        raise InvalidInput("artifact", answer.problem)
    if answer.cause == Cause.TOO_MANY_ARTIFACTS:
        raise InvalidInput("artifact", f"an attempt stores at most {MAX_ARTIFACTS_PER_ATTEMPT}")
    if answer.cause is not None:
        raise LeaseConflictError(f"the attempt has lost its lease ({answer.cause})")


# --- in the supervisor -------------------------------------------------------------------------


class ReceivedArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact whose last piece has arrived."""

    run: int
    number: int
    job_id: JobId
    lease_id: LeaseId
    name: str
    media_type: str
    body: bytes


class ArtifactParts:
    """The pieces of one artifact; of one that is too large, enough to have it refused."""

    def __init__(self) -> None:
        self._body = bytearray()

    def add(self, part: ArtifactPart) -> None:
        """The next piece."""
        self._body += part.body[: MAX_ARTIFACT_BYTES + 1 - len(self._body)]

    def whole(self, end: ArtifactEnd, job_id: JobId, lease_id: LeaseId) -> ReceivedArtifact:
        """The whole artifact; the next piece begins another one."""
        body = bytes(self._body)
        self._body.clear()
        return ReceivedArtifact(
            run=end.run,
            number=end.number,
            job_id=job_id,
            lease_id=lease_id,
            name=end.name,
            media_type=end.media_type,
            body=body,
        )


def store_artifact(
    coordination: Coordination, artifact: ReceivedArtifact, actor: Actor
) -> ArtifactAnswer:
    """Store an artifact; what to tell its handler."""
    try:
        upload = ArtifactUpload(
            job_id=artifact.job_id,
            lease_id=artifact.lease_id,
            actor=actor,
            name=artifact.name,
            body=artifact.body,
            media_type=artifact.media_type,
        )
        staging = coordination.store.stage_artifact(upload)
    except InvalidInput as wrong:
        return ArtifactAnswer(artifact.run, artifact.number, problem=str(wrong))
    except TenureError as failure:
        return ArtifactAnswer(artifact.run, artifact.number, failure=str(failure))
    if staging.problem is not None:
        return ArtifactAnswer(artifact.run, artifact.number, problem=staging.problem)
    return ArtifactAnswer(artifact.run, artifact.number, cause=staging.cause)
