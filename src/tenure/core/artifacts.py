"""What attempts leave behind: artifacts, with the decision about an upload, and their output.

Neither is part of a job's history, and neither changes the job.
"""

import hashlib
import re

import msgspec

from tenure.core.checks import (
    MAX_NAME,
    check_fields,
    check_integer,
    check_name,
    check_text,
    quoted,
)
from tenure.core.ids import Actor, JobId, LeaseId
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.leases import why_no_lease
from tenure.core.outcomes import History, Moment, NeedsHistory
from tenure.core.vocabulary import Cause, JobStatus
from tenure.errors import InvalidInput

MAX_ARTIFACT_BYTES = 16 << 20


MAX_ARTIFACTS_PER_ATTEMPT = 100


JOB_QUOTA_VARIABLE = "TENURE_ARTIFACT_QUOTA_PER_JOB"


NAMESPACE_QUOTA_VARIABLE = "TENURE_ARTIFACT_QUOTA_PER_NAMESPACE"


MEDIA_TYPE_PATTERN = re.compile(r"[a-z0-9][a-z0-9.+-]*/[a-z0-9][a-z0-9.+-]*(; ?[a-z0-9=_.-]+)*")


class ArtifactUpload(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file that an attempt leaves behind, sent under its lease."""

    job_id: JobId
    lease_id: LeaseId
    actor: Actor
    name: str
    body: bytes
    media_type: str = "application/octet-stream"

    def __post_init__(self) -> None:
        """Refuse what is over a limit. [B9]"""
        check_fields(self)
        check_name("name", self.name)
        if {".", ".."} & set(self.name.split("/")):
            raise InvalidInput(
                "name", f"{quoted(self.name)} has a part . or ..", hint="use names of files"
            )
        check_text("media_type", self.media_type, most=MAX_NAME)
        if MEDIA_TYPE_PATTERN.fullmatch(self.media_type) is None:
            raise InvalidInput(
                "media_type",
                f"{quoted(self.media_type)} is not a media type",
                hint="as in text/plain or application/json, in lower case",
            )
        if not isinstance(self.body, bytes):
            raise InvalidInput("body", f"{type(self.body).__name__} is not bytes")
        if len(self.body) > MAX_ARTIFACT_BYTES:
            raise InvalidInput(
                "body",
                f"{len(self.body)} bytes are over the limit of {MAX_ARTIFACT_BYTES}",
                hint="put it into an object store, and its address into the result",
            )


class Artifact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known of an artifact without its body."""

    job_id: JobId
    attempt: int
    name: str
    media_type: str
    size: int
    sha256: str
    ts: Instant


class StoredArtifact(msgspec.Struct, frozen=True, gc=False):
    """An artifact with its body."""

    artifact: Artifact
    body: bytes


class ArtifactQuotas(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes of artifacts are kept; None is no quota. [J9]"""

    job_bytes: int | None = 1 << 30
    namespace_bytes: int | None = 100 << 30


class ArtifactUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is stored when an upload is decided."""

    others: int
    """The attempt's artifacts of other names."""
    others_bytes: int
    replaced_bytes: int
    """The size of the attempt's artifact of the same name; 0 if there is none."""
    earlier_bytes: int
    """The artifacts of the job's earlier attempts, as far as they are not collected yet."""
    namespace_bytes: int
    """All artifacts of the job's namespace, this job's included."""


class Staging(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to an upload: the artifact, or why it was not taken. A quota that was exceeded
    comes with its size, and with the bytes in use without this upload. [B28]"""

    artifact: Artifact | None = None
    cause: Cause | None = None
    used_bytes: int | None = None
    quota_bytes: int | None = None

    @property
    def problem(self) -> str | None:
        """Which quota was exceeded and what to do about it; None if it was not a quota."""
        match self.cause:
            case Cause.JOB_ARTIFACT_QUOTA:
                whose, variable = "this job", JOB_QUOTA_VARIABLE
                advice = "put large files into an object store and their addresses into the result"
            case Cause.NAMESPACE_ARTIFACT_QUOTA:
                whose, variable = "the job's namespace", NAMESPACE_QUOTA_VARIABLE
                advice = "keep finished jobs for a shorter time"
            case _:
                return None
        return (
            f"the artifacts of {whose} use {self.used_bytes} bytes of their quota of"
            f" {self.quota_bytes}, and this one does not fit; {advice}, or have {variable} raised"
            " where the coordinator runs"
        )


def stage(
    job: Job | None,
    upload: ArtifactUpload,
    at: Moment,
    history: History | None,
    *,
    usage: ArtifactUsage,
    quotas: ArtifactQuotas,
) -> Staging | NeedsHistory:
    """The artifact an upload becomes, if its lease is valid now and the quotas have room. The store
    that keeps it also deletes the artifacts of the job's earlier attempts. [B7] [B9] [B28]"""
    cause = why_no_lease(job, upload.lease_id, upload.actor, at, history)
    if isinstance(cause, NeedsHistory):
        return cause
    if job is None or cause is not None:
        return Staging(cause=cause)
    if usage.others >= MAX_ARTIFACTS_PER_ATTEMPT:
        return Staging(cause=Cause.TOO_MANY_ARTIFACTS)
    exceeded = _exceeded_quota(len(upload.body), usage, quotas)
    if exceeded is not None:
        return exceeded
    return Staging(
        artifact=Artifact(
            job_id=job.id,
            attempt=job.attempt,
            name=upload.name,
            media_type=upload.media_type,
            size=len(upload.body),
            sha256=hashlib.sha256(upload.body).hexdigest(),
            ts=at.now,
        )
    )


def _exceeded_quota(size: int, usage: ArtifactUsage, quotas: ArtifactQuotas) -> Staging | None:
    # The artifact of the same name and those of earlier attempts are not counted, because storing
    # this one deletes them. Otherwise a retry would have less room than the first attempt had.
    of_namespace = usage.namespace_bytes - usage.replaced_bytes - usage.earlier_bytes
    for cause, used, quota in (
        (Cause.JOB_ARTIFACT_QUOTA, usage.others_bytes, quotas.job_bytes),
        (Cause.NAMESPACE_ARTIFACT_QUOTA, of_namespace, quotas.namespace_bytes),
    ):
        if quota is not None and used + size > quota:
            return Staging(cause=cause, used_bytes=used, quota_bytes=quota)
    return None


def visible_attempt(job: Job | None) -> int | None:
    """The attempt whose artifacts are visible: the one that succeeded, or none. [B8]"""
    if job is None or job.status is not JobStatus.SUCCEEDED:
        return None
    return job.attempt


def is_leftover(attempt: int, *, of: int | None, leased: bool, status: JobStatus | None) -> bool:
    """Whether an attempt's artifacts can never become visible: the attempt ended without success.

    `of` is the job's latest attempt, None if the job is gone. [B10]
    """
    if attempt != of:
        return True
    return not leased and status is not JobStatus.SUCCEEDED


# --- The output of attempts ----------------------------------------------------------------------


MAX_ATTEMPT_LOG_BYTES = 64 << 10


MAX_OUTPUT_PARTS = 2**31 - 1  # one every two seconds for a century


MAX_LOGS_READ = 100
"""Attempts whose output is read at once: the latest ones. [B26]"""


class AttemptOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a handler wrote to its standard streams during one attempt, sent under its lease.

    It may be sent again while the attempt runs, whole and with a higher `part`. [B20]
    """

    job_id: JobId
    lease_id: LeaseId
    actor: Actor
    text: str
    left_out_bytes: int = 0
    part: int = 0

    def __post_init__(self) -> None:
        """Refuse what is over a limit. [B20]"""
        check_fields(self)
        check_text("text", self.text, most=MAX_ATTEMPT_LOG_BYTES)
        size = len(self.text.encode())
        if size > MAX_ATTEMPT_LOG_BYTES:
            raise InvalidInput(
                "text",
                f"{size} bytes are over the limit of {MAX_ATTEMPT_LOG_BYTES}",
                hint="leave out the middle, and say how much in left_out_bytes",
            )
        check_integer("part", self.part, low=0, high=MAX_OUTPUT_PARTS)


class AttemptLog(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The kept output of one attempt, and how much of it was not kept."""

    job_id: JobId
    attempt: int
    text: str
    left_out_bytes: int
