"""Limits of what is kept beside the log, checked like those of commands in `validation.py`.

Each violation is an `InvalidInput` that names the field and says what is allowed; nothing has been
written when it is raised. [J6]
"""

import re

from tenure.core.beside import (
    MAX_ARTIFACT_BYTES,
    MAX_ATTEMPT_LOG_BYTES,
    MAX_OUTPUT_PARTS,
    ArtifactUpload,
    AttemptOutput,
    HeldLease,
    WorkerProcess,
)
from tenure.core.ids import LEASE_ID_PATTERN
from tenure.core.ijson import MAX_EXACT_INTEGER
from tenure.core.validation import (
    MAX_COUNT,
    MAX_INSTANT,
    MAX_NAME,
    Limits,
    _check_actor,
    _check_integer,
    _check_label,
    _check_names,
    _check_text,
    _shown,
    check_job_id,
    check_name,
)
from tenure.errors import InvalidInput

MEDIA_TYPE_PATTERN = re.compile(r"[a-z0-9][a-z0-9.+-]*/[a-z0-9][a-z0-9.+-]*(; ?[a-z0-9=_.-]+)*")


def _check_lease_id(value: object) -> None:
    if not isinstance(value, str) or not LEASE_ID_PATTERN.fullmatch(value):
        raise InvalidInput(
            "lease_id",
            f"{_shown(value)} is not a lease id",
            hint="send back the lease_id of the grant",
        )


def check_lease(lease: HeldLease) -> None:
    """Raise `InvalidInput` unless it can be a lease. [J5]"""
    check_job_id("job_id", lease.job_id)
    _check_lease_id(lease.lease_id)


def check_upload(upload: ArtifactUpload) -> None:
    """Raise `InvalidInput` unless an artifact is within its limits. [B9]"""
    check_job_id("job_id", upload.job_id)
    _check_lease_id(upload.lease_id)
    _check_actor(upload.actor)
    check_name("name", upload.name)
    _check_text("media_type", upload.media_type, most=MAX_NAME)
    if MEDIA_TYPE_PATTERN.fullmatch(upload.media_type) is None:
        raise InvalidInput(
            "media_type",
            f"{_shown(upload.media_type)} is not a media type",
            hint="as in text/plain or application/json, in lower case",
        )
    if not isinstance(upload.body, bytes):
        raise InvalidInput("body", f"{type(upload.body).__name__} is not bytes")
    if len(upload.body) > MAX_ARTIFACT_BYTES:
        raise InvalidInput(
            "body",
            f"{len(upload.body)} bytes are over the limit of {MAX_ARTIFACT_BYTES}",
            hint="put it into an object store, and its address into the result",
        )


def check_output(output: AttemptOutput) -> None:
    """Raise `InvalidInput` unless the output of an attempt is within its limits. [B20]"""
    check_job_id("job_id", output.job_id)
    _check_lease_id(output.lease_id)
    _check_actor(output.actor)
    _check_text("text", output.text, most=MAX_ATTEMPT_LOG_BYTES)
    size = len(output.text.encode())
    if size > MAX_ATTEMPT_LOG_BYTES:
        raise InvalidInput(
            "text",
            f"{size} bytes are over the limit of {MAX_ATTEMPT_LOG_BYTES}",
            hint="leave out the middle, and say how much in left_out_bytes",
        )
    _check_integer("left_out_bytes", output.left_out_bytes, low=0, high=MAX_EXACT_INTEGER)
    _check_integer("part", output.part, low=0, high=MAX_OUTPUT_PARTS)


def check_process(process: WorkerProcess, limits: Limits) -> None:
    """Raise `InvalidInput` unless a worker's description of itself is within its limits."""
    check_name("namespace", process.namespace)
    check_name("worker", process.worker)
    _check_actor(process.actor)
    _check_label("host", process.host, most=2 * MAX_NAME)
    _check_integer("pid", process.pid, low=0, high=MAX_COUNT)
    _check_names("queues", process.queues, most=limits.claim_queues, least=1)
    _check_names("kinds", process.kinds, most=limits.claim_kinds, least=0)
    _check_integer("concurrency", process.concurrency, low=0, high=MAX_COUNT)
    _check_label("version", process.version, most=MAX_NAME)
    _check_integer("uptime_us", process.uptime_us, low=0, high=MAX_INSTANT)
    if process.instance:
        check_name("instance", process.instance)
