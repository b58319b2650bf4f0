"""Validation: the limits of every field of every command, in one place.

`decide` may rely on all of it. Each violation is an `InvalidInput` that names the field and says
what is allowed; nothing has been written when it is raised. [J6]
"""

import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import assert_never

import msgspec

from tenure.core.beside import ArtifactQuotas
from tenure.core.claims import ClaimRequest
from tenure.core.commands import (
    Cancel,
    Claim,
    Command,
    Complete,
    DeadLetter,
    Discard,
    Enqueue,
    Fail,
    FollowUp,
    Heartbeat,
    OperatorCommand,
    ParentAttempt,
    Redrive,
    Release,
    Requeue,
    Start,
    Sweep,
    WorkerCommand,
)
from tenure.core.ids import (
    DERIVED_VERSION,
    JOB_ID_PATTERN,
    LEASE_ID_PATTERN,
    SYSTEM,
    follow_up_id,
    is_job_id_prefix,
    role_of,
)
from tenure.core.ijson import MAX_EXACT_INTEGER, NotIJson, check_ijson
from tenure.core.instants import MICROSECONDS_PER_SECOND, seconds
from tenure.core.job import JobError, Progress
from tenure.core.policy import Backoff, Compensation, LeaseBounds, Policy
from tenure.core.transitions import roles
from tenure.core.vocabulary import (
    CancelMode,
    ErrorClass,
    EventCause,
    JobStatus,
    OnExhausted,
    OnLost,
    ReasonCode,
    ReleaseKind,
    Stage,
)
from tenure.errors import InvalidInput

MAX_DURATION = seconds(366 * 24 * 3600)
MAX_INSTANT = 253_402_300_800 * MICROSECONDS_PER_SECOND  # the end of the year 9999
MAX_NAME = 128
MAX_DEDUPE_KEY = 200
MAX_TEXT = 4096
MAX_COUNT = 2**31 - 1
MAX_PER_JOB = 10
"""Commands about one job in one call: a start, its heartbeats and its end are a few."""
PRIORITIES = (-32768, 32767)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
ROLES = frozenset({"worker", "client", "operator"})
REPORTABLE_REASONS = frozenset(
    {ReasonCode.PARSE_ERROR, ReasonCode.VALIDATION_FAILED, ReasonCode.DEPENDENCY_UNAVAILABLE}
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a coordinator accepts; the defaults are the documented ones. [J2]"""

    body_bytes: int = 1024 * 1024
    depth: int = 64
    claim_limit: int = 1000
    claim_queues: int = 64
    claim_kinds: int = 1000
    lease: LeaseBounds = LeaseBounds()
    artifacts: ArtifactQuotas = ArtifactQuotas()


def check_commands(commands: Sequence[Command], limits: Limits) -> None:
    """Raise `InvalidInput` unless every field of every command is within its limits. [J7]"""
    if len(commands) > MAX_PER_JOB:
        _check_spread(commands)
    before: Command | None = None
    for command in commands:
        check_command(command, limits, before)
        before = command


def _check_spread(commands: Sequence[Command]) -> None:
    """Commands about one job are decided one after the other, a transaction each: a thousand of
    them were one call, and four seconds."""
    ids = [command.job_id for command in commands]
    if len(ids) - len(set(ids)) < MAX_PER_JOB:
        return  # as almost always: counting takes ten times as long
    [(job_id, most)] = Counter(ids).most_common(1)
    if most > MAX_PER_JOB:
        what = f"{most} of them are about job {job_id}; one call takes at most {MAX_PER_JOB}"
        raise InvalidInput("commands", what)


def check_command(command: Command, limits: Limits, before: Command | None = None) -> None:
    """Raise `InvalidInput` unless every field of `command` is within its limits.

    `before` was checked by the same limits: what the two share, the very same objects, is not
    looked at again. A batch repeats its names, actor and policy; that was half of its checks.
    """
    match command:
        case Enqueue():
            _check_enqueue(command, limits, before)
        case Start() | Heartbeat() | Complete() | Fail() | Release():
            _check_worker_command(command, limits, before)
        case Cancel() | Requeue() | DeadLetter() | Redrive() | Discard():
            _check_operator_command(command, limits)
        case Sweep():
            check_job_id("job_id", command.job_id)
            if command.actor != SYSTEM:
                raise InvalidInput("actor", "only the system sweeps")
        case Claim():
            # A grant outside a claim would pass by pauses, limits and the session. [Z2] [Z3] [Q1]
            raise InvalidInput("command", "a claim is asked for as a claim, not as a command")
        case _:
            assert_never(command)


def check_claim(request: ClaimRequest, limits: Limits) -> None:
    """Raise `InvalidInput` unless every field of a claim is within its limits."""
    check_name("namespace", request.namespace)
    check_name("worker", request.worker)
    _check_actor(request.actor)
    if role_of(request.actor) != "worker":
        # A lease's end is read as its owner's report when a worker wrote it. [R22]
        raise InvalidInput("actor", f"{_shown(request.actor)} is not a worker: only workers claim")
    check_name("request_id", request.request_id)
    _check_names("queues", request.queues, most=limits.claim_queues, least=1)
    if request.kinds is not None:
        _check_names("kinds", request.kinds, most=limits.claim_kinds, least=0)
    _check_integer("limit", request.limit, low=1, high=limits.claim_limit)
    _check_integer("claim_seq", request.claim_seq, low=1, high=MAX_EXACT_INTEGER)


def check_name(field: str, value: object) -> None:
    """A queue, kind, namespace, worker id or request id. [J3]"""
    if type(value) is not str:
        raise InvalidInput(field, f"{type(value).__name__} is not a name, a plain str is")
    if len(value) > MAX_NAME:
        raise InvalidInput(field, f"{len(value)} characters are over the limit of {MAX_NAME}")
    if NAME_PATTERN.fullmatch(value) is None:
        raise InvalidInput(
            field,
            f"{_shown(value)} is not a name",
            hint="use ASCII letters, digits and . _ : / -, beginning with a letter or digit",
        )


def check_job_id(field: str, value: object) -> None:
    """A UUID in canonical lower-case form. [J3]"""
    if type(value) is not str or JOB_ID_PATTERN.fullmatch(value) is None:
        raise InvalidInput(
            field, f"{_shown(value)} is not a job id", hint="a lower-case UUID is expected"
        )


def check_job_id_prefix(field: str, value: object) -> None:
    """The first characters of a job id, or a whole one."""
    if type(value) is not str or not value or not is_job_id_prefix(value):
        raise InvalidInput(
            field,
            f"{_shown(value)} is not the beginning of a job id",
            hint="lower-case hexadecimal digits with dashes, as in a UUID, are expected",
        )


def _shown(value: object) -> str:
    """At most a line of a bad value, escaped, so that an error cannot carry control codes."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a huge integer"  # Python refuses to write out more than 4300 digits
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_type(field: str, value: object, wanted: type) -> None:
    """Exactly this type: a subclass may lie about its length, and no fingerprint can be made of
    it. [J6]"""
    if type(value) is not wanted:
        raise InvalidInput(field, f"{type(value).__name__} is not a {wanted.__name__}")


def _check_names(field: str, values: Sequence[str], *, most: int, least: int) -> None:
    _check_type(field, values, tuple)
    if not least <= len(values) <= most:
        raise InvalidInput(field, f"{len(values)} names given, {least} to {most} are allowed")
    for position, value in enumerate(values):
        check_name(f"{field}[{position}]", value)
    if len(set(values)) != len(values):
        raise InvalidInput(field, "a name is given twice")


def _check_integer(field: str, value: object, *, low: int, high: int) -> None:
    if type(value) is not int:
        raise InvalidInput(field, f"{type(value).__name__} is not an integer")
    if not low <= value <= high:
        raise InvalidInput(field, f"{_shown(value)} is outside {low} to {high}")


def check_duration(field: str, value: object) -> None:
    """A duration in microseconds, from nothing to 366 days. [J4]"""
    if type(value) is not int:
        raise InvalidInput(field, f"{type(value).__name__} is not a duration in microseconds")
    if not 0 <= value <= MAX_DURATION:
        raise InvalidInput(field, f"{_length(value)} is outside 0 to 366 days")


def _length(duration_us: int) -> str:
    """A duration that is out of bounds, as people say it."""
    if abs(duration_us) > 2**80:
        return "a huge integer"  # a float could not hold it
    length_s = duration_us / MICROSECONDS_PER_SECOND
    return f"{length_s / 86400:g} days" if length_s > 86400 else f"{length_s:g} s"


def _check_word(field: str, value: object, words: type[StrEnum]) -> None:
    """A word of a closed set. [J4]"""
    if not isinstance(value, words):
        raise InvalidInput(
            field, f"{_shown(value)} is not allowed", hint=f"one of {', '.join(words)}"
        )


def _check_text(field: str, value: object, *, most: int = MAX_TEXT) -> None:
    if type(value) is not str:
        raise InvalidInput(field, f"{type(value).__name__} is not text, a plain str is")
    if len(value) > most:
        raise InvalidInput(field, f"{len(value)} characters are over the limit of {most}")
    if "\x00" in value:
        raise InvalidInput(field, "contains NUL")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as wrong:
            raise InvalidInput(field, "contains a lone surrogate") from wrong


def _check_label(field: str, value: object, *, most: int) -> None:
    """Text that people use as a key: not empty, without control characters. [D4]"""
    _check_text(field, value, most=most)
    assert isinstance(value, str)
    if not value or _CONTROL.search(value) is not None:
        raise InvalidInput(field, f"{_shown(value)} is empty or has control characters")


def check_correlation_id(field: str, value: object) -> None:
    """What the jobs of one undertaking have in common."""
    _check_label(field, value, most=MAX_DEDUPE_KEY)


def _check_actor(actor: object) -> None:
    if actor == SYSTEM:
        return
    if type(actor) is not str or role_of(actor) not in ROLES:  # type: ignore[arg-type]  # a str is what an Actor is
        raise InvalidInput(
            "actor", f"{_shown(actor)} is no principal", hint="use worker:NAME, client:NAME, …"
        )
    _check_label("actor", actor.partition(":")[2], most=MAX_NAME)


def check_body(field: str, value: object, limits: Limits) -> None:
    """A payload, result or checkpoint: I-JSON within the limits. [J1] [J2]"""
    if type(value) is not bytes:
        raise InvalidInput(field, f"{type(value).__name__} is not encoded JSON (bytes)")
    try:
        check_ijson(value, max_bytes=limits.body_bytes, max_depth=limits.depth)
    except NotIJson as wrong:
        raise InvalidInput(field, str(wrong)) from wrong


def _check_enqueue(command: Enqueue, limits: Limits, before: Command | None) -> None:
    check_job_id("job_id", command.job_id)
    if isinstance(command, FollowUp):
        _check_parent(command.parent, command)
    elif command.job_id[14] == DERIVED_VERSION:
        # Else whoever knows a job's id could take the place of its compensation. [M1]
        raise InvalidInput(
            "job_id",
            f"{command.job_id} is a UUID of version 8: such ids follow from other jobs",
            hint="leave it out, or use a UUID of version 7 or 4",
        )
    if not isinstance(before, Enqueue) or not _is_addressed_alike(command, before):
        check_name("namespace", command.namespace)
        check_name("queue", command.queue)
        check_name("kind", command.kind)
        _check_actor(command.actor)
        check_policy("policy", command.policy, limits.lease)
    check_body("payload", command.payload, limits)
    low, high = PRIORITIES
    _check_integer("priority", command.priority, low=low, high=high)
    check_duration("delay_us", command.delay_us)
    if command.run_at is not None:
        _check_integer("run_at", command.run_at, low=0, high=MAX_INSTANT)
        if command.delay_us:
            raise InvalidInput("run_at", "given together with a delay", hint="give one of them")
    if command.dedupe_key is not None:
        _check_label("dedupe_key", command.dedupe_key, most=MAX_DEDUPE_KEY)
    if command.correlation_id is not None:
        check_correlation_id("correlation_id", command.correlation_id)
    if command.trace_id is not None:
        _check_label("trace_id", command.trace_id, most=MAX_DEDUPE_KEY)


def _check_parent(parent: ParentAttempt, command: Enqueue) -> None:
    _check_type("parent", parent, ParentAttempt)
    check_job_id("parent.job_id", parent.job_id)
    check_lease_id("parent.lease_id", parent.lease_id)
    if parent.step != "":
        _check_label("step", parent.step, most=MAX_DEDUPE_KEY)
    check_name("kind", command.kind)
    if command.job_id != follow_up_id(parent.job_id, kind=command.kind, step=parent.step):
        raise InvalidInput(
            "job_id", f"{command.job_id} does not follow from the parent, the kind and the step"
        )


def check_lease_id(field: str, value: object) -> None:
    """An epoch and 128 random bits. [J5]"""
    if type(value) is not str or not LEASE_ID_PATTERN.fullmatch(value):
        raise InvalidInput(
            field, f"{_shown(value)} is not a lease id", hint="send back the lease_id of the grant"
        )


def _is_addressed_alike(one: Enqueue, other: Enqueue) -> bool:
    """By identity: equal values may differ in type, as 1 and True do."""
    return (
        one.queue is other.queue
        and one.kind is other.kind
        and one.namespace is other.namespace
        and one.actor is other.actor
        and one.policy is other.policy
    )


def check_policy(field: str, policy: Policy, bounds: LeaseBounds) -> None:
    """A job's policy: every duration, budget and word of it. [L2] [J4]"""
    _check_type(field, policy, Policy)
    check_duration(f"{field}.lease_us", policy.lease_us)
    if not bounds.shortest_us <= policy.lease_us <= bounds.longest_us:
        raise InvalidInput(
            f"{field}.lease_us",
            f"{policy.lease_us / MICROSECONDS_PER_SECOND:g} s is outside "
            f"{bounds.shortest_us / MICROSECONDS_PER_SECOND:g} s to "
            f"{bounds.longest_us / MICROSECONDS_PER_SECOND:g} s",
            hint="TENURE_LEASE_BOUNDS sets what a coordinator accepts",
        )
    _check_integer(f"{field}.max_attempts", policy.max_attempts, low=1, high=MAX_COUNT)
    _check_integer(f"{field}.max_releases", policy.max_releases, low=0, high=MAX_COUNT)
    _check_backoff(f"{field}.backoff", policy.backoff)
    _check_word(f"{field}.on_exhausted", policy.on_exhausted, OnExhausted)
    _check_word(f"{field}.on_lost", policy.on_lost, OnLost)
    for name in ("start_within_us", "grace_us"):
        check_duration(f"{field}.{name}", getattr(policy, name))
    if policy.timeout_us is not None:
        check_duration(f"{field}.timeout_us", policy.timeout_us)
        if policy.timeout_us == 0:
            raise InvalidInput(f"{field}.timeout_us", "is 0", hint="None means no time-out")
    if policy.start_within_us == 0:
        raise InvalidInput(f"{field}.start_within_us", "is 0: no claim could ever start")
    if policy.compensation is not None:
        _check_type(f"{field}.compensation", policy.compensation, Compensation)
        check_name(f"{field}.compensation.kind", policy.compensation.kind)
        check_name(f"{field}.compensation.queue", policy.compensation.queue)
        _check_type(f"{field}.compensation.policy", policy.compensation.policy, Policy)
        if policy.compensation.policy.compensation is not None:
            raise InvalidInput(f"{field}.compensation.policy", "names a compensation itself")
        check_policy(f"{field}.compensation.policy", policy.compensation.policy, bounds)


def _check_backoff(field: str, backoff: Backoff) -> None:
    _check_type(field, backoff, Backoff)
    check_duration(f"{field}.initial_us", backoff.initial_us)
    check_duration(f"{field}.cap_us", backoff.cap_us)
    _check_number(f"{field}.factor", backoff.factor, low=1.0, high=100.0)
    _check_number(f"{field}.floor", backoff.floor, low=0.0, high=1.0)


def _check_number(field: str, value: object, *, low: float, high: float) -> None:
    if type(value) not in (int, float):
        raise InvalidInput(field, f"{_shown(value)} is not a number")
    assert isinstance(value, int | float)
    if not low <= value <= high:  # also where it is NaN, which is not within anything
        raise InvalidInput(field, f"{_shown(value)} is outside {low:g} to {high:g}")


def _check_worker_command(command: WorkerCommand, limits: Limits, before: Command | None) -> None:
    check_job_id("job_id", command.job_id)
    check_lease_id("lease_id", command.lease_id)
    if before is None or command.actor is not before.actor:
        _check_actor(command.actor)
    match command:  # the frequent ones first: cases are tried in order
        case Start():
            pass
        case Complete():
            check_body("result", command.result, limits)
        case Heartbeat():
            _check_integer("hb_seq", command.hb_seq, low=1, high=MAX_EXACT_INTEGER)
            if command.progress is not None:
                _check_progress(command.progress)
            if command.checkpoint is not None:
                check_body("checkpoint", command.checkpoint, limits)
            return
        case Fail():
            _check_error(command.error)
            check_duration("retry_after_us", command.retry_after_us)
        case Release():
            _check_word("kind", command.kind, ReleaseKind)
            check_duration("delay_us", command.delay_us)
        case _:
            assert_never(command)
    check_name("request_id", command.request_id)


def _check_progress(progress: Progress) -> None:
    _check_type("progress", progress, Progress)
    _check_integer("progress.done", progress.done, low=0, high=MAX_EXACT_INTEGER)
    if progress.total is not None:
        _check_integer("progress.total", progress.total, low=0, high=MAX_EXACT_INTEGER)
    _check_text("progress.note", progress.note)


def _check_error(error: JobError) -> None:
    _check_type("error", error, JobError)
    _check_word("error.error_class", error.error_class, ErrorClass)
    if error.stage is not None:
        _check_word("error.stage", error.stage, Stage)
    _check_text("error.type", error.type, most=MAX_NAME)
    _check_text("error.message", error.message, most=16 * MAX_TEXT)
    _check_text("error.traceback", error.traceback, most=16 * MAX_TEXT)
    if error.reason_code is None:
        return
    _check_word("error.reason_code", error.reason_code, ReasonCode)
    if error.reason_code not in REPORTABLE_REASONS:
        raise InvalidInput(
            "error.reason_code",
            f"{error.reason_code} is not for a worker to say",
            hint="one of parse_error, validation_failed, dependency_unavailable",
        )


_MAY_ASK: dict[type[object], frozenset[str]] = {
    Cancel: roles("T16", "T17", "T18", "T19", "T20"),
    Requeue: roles("T14"),
    DeadLetter: roles("T21"),
    Redrive: roles("T27"),
    Discard: roles("T27"),
}
"""Who may ask for what, out of THE table. Resolving a dead letter is one right."""


def _check_operator_command(command: OperatorCommand | Discard, limits: Limits) -> None:
    check_job_id("job_id", command.job_id)
    _check_actor(command.actor)
    allowed = _MAY_ASK[type(command)]
    if role_of(command.actor) not in allowed:
        # A worker least of all: what it wrote at the end of a lease is read as that lease's own
        # report. [R13] [R22]
        what = type(command).__name__.lower()
        raise InvalidInput(
            "actor",
            f"{_shown(command.actor)} may not ask for {what}",
            hint=f"ask as one of: {', '.join(sorted(allowed))}",
        )
    check_name("request_id", command.request_id)
    if command.expected_rev is not None:
        _check_integer("expected_rev", command.expected_rev, low=1, high=MAX_COUNT)
    if command.expected_status is not None:
        _check_word("expected_status", command.expected_status, JobStatus)
    match command:
        case Cancel():
            _check_word("mode", command.mode, CancelMode)
            _check_text("reason", command.reason)
        case DeadLetter():
            _check_word("reason_code", command.reason_code, ReasonCode)
            if command.stage is not None:
                _check_word("stage", command.stage, Stage)
            _check_text("message", command.message)
        case Redrive():
            _check_word("cause", command.cause, EventCause)
            if command.cause not in (EventCause.REDRIVE, EventCause.RERUN):
                raise InvalidInput("cause", f"{command.cause} is neither redrive nor rerun")
            if command.payload is not None:
                check_body("payload", command.payload, limits)
        case Discard():
            _check_text("note", command.note)
        case Requeue():
            pass
        case _:
            assert_never(command)
