"""Validation: the limits of every field of every command, in one place.

`decide` may rely on all of it. Each violation is an `InvalidInput` that names the field and says
what is allowed; nothing has been written when it is raised. [J6]
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import assert_never

import msgspec

from tenure.core.checks import (
    MAX_COUNT,
    MAX_DEDUPE_KEY,
    MAX_INSTANT,
    MAX_NAME,
    MAX_TEXT,
    check_actor,
    check_correlation_id,
    check_duration,
    check_integer,
    check_job_id,
    check_label,
    check_lease_id,
    check_name,
    check_names,
    check_number,
    check_text,
    check_type,
    check_word,
    shown,
)
from tenure.core.claims import MAX_CLAIM_KINDS, MAX_CLAIM_QUEUES, ClaimRequest
from tenure.core.commands import (
    Cancel,
    Claim,
    Command,
    Complete,
    DeadLetter,
    Discard,
    Enqueue,
    EnqueueFlow,
    Fail,
    FlowMember,
    FollowUp,
    Heartbeat,
    OperatorCommand,
    ParentAttempt,
    Redrive,
    RedriveFlow,
    Release,
    Requeue,
    Stall,
    Start,
    Sweep,
    Unblock,
    WorkerCommand,
)
from tenure.core.flows import (
    MAX_FLOW_EDGES,
    MAX_FLOW_JOBS,
    MAX_FLOW_PAYLOAD_BYTES,
    check_acyclic,
)
from tenure.core.ids import (
    DERIVED_VERSION,
    SYSTEM,
    Kind,
    follow_up_id,
    handler_flow_id,
    handler_member_id,
    role_of,
)
from tenure.core.ijson import MAX_EXACT_INTEGER, NotIJson, check_ijson, check_size
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, seconds
from tenure.core.job import JobError, Progress
from tenure.core.policy import (
    SHORTEST_KEEP,
    Backoff,
    Compensation,
    DeadLetterJob,
    LeaseBounds,
    Policy,
)
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

MAX_PER_JOB = 10

SHORTEST_LIMIT = seconds(0.1)
"""The shortest time-out of an attempt, and the shortest wait for its start. A worker needs a part
of it."""
"""Commands about one job in one call: a start, its heartbeats and its end are a few."""
PRIORITIES = (-32768, 32767)
REPORTABLE_REASONS = frozenset(
    {
        ReasonCode.PARSE_ERROR,
        ReasonCode.VALIDATION_FAILED,
        ReasonCode.DEPENDENCY_UNAVAILABLE,
        ReasonCode.POLICY_VIOLATION,
        ReasonCode.INFRASTRUCTURE_FAILURE,
    }
)
"""What a worker may say in a failure report. The coordinator decides on the other reasons. [F12]"""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a coordinator accepts; the defaults are the documented ones. [J2]"""

    body_bytes: int = 1024 * 1024
    depth: int = 64
    claim_limit: int = 1000
    lease: LeaseBounds = LeaseBounds()
    bodies_are_ijson: bool = False
    """Whether bodies were parsed and found to be I-JSON before: only size and depth are checked."""


def check_commands(
    commands: Sequence[Command], limits: Limits, before: Command | None = None
) -> None:
    """Raise `InvalidInput` unless every field of every command is within its limits. [J7] For
    `before` see `check_command`."""
    if len(commands) > MAX_PER_JOB:
        _check_spread(commands)
    for command in commands:
        check_command(command, limits, before)
        before = command


def _check_spread(commands: Sequence[Command]) -> None:
    """Commands about one job are decided one after the other, a transaction each: a call
    with a thousand of them took four seconds."""
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
    checked again. A batch repeats its names, actor and policy; that was half of its checks.
    """
    match command:
        case Enqueue():
            _check_enqueue(command, limits, before)
        case Start() | Heartbeat() | Complete() | Fail() | Release():
            _check_worker_command(command, limits, before)
        case Cancel() | Stall() | Requeue() | DeadLetter() | Redrive() | Discard():
            _check_operator_command(command, limits)
        case EnqueueFlow():
            _check_flow(command, limits)
        case RedriveFlow():
            check_job_id("flow_id", command.flow_id)
            check_name("namespace", command.namespace)
            _check_asker(command)
        case Sweep() | Unblock():
            check_job_id("job_id", command.job_id)
            if command.actor != SYSTEM:
                raise InvalidInput("actor", "only the system does this")
        case Claim():
            # A grant outside a claim would bypass pauses, limits and the session. [Z2] [Z3] [Q1]
            raise InvalidInput("command", "a claim is asked for as a claim, not as a command")
        case _:
            assert_never(command)


def check_claim(request: ClaimRequest, limits: Limits) -> None:
    """Raise `InvalidInput` unless every field of a claim is within its limits."""
    check_name("namespace", request.namespace)
    check_name("worker", request.worker)
    check_actor(request.actor)
    if role_of(request.actor) != "worker":
        # An attempt's end that a worker wrote counts as its owner's report. [R22]
        raise InvalidInput("actor", f"{shown(request.actor)} is not a worker: only workers claim")
    check_name("request_id", request.request_id)
    check_names("queues", request.queues, most=MAX_CLAIM_QUEUES, least=1)
    if request.kinds is not None:
        check_names("kinds", request.kinds, most=MAX_CLAIM_KINDS, least=0)
    check_integer("limit", request.limit, low=1, high=limits.claim_limit)
    check_integer("claim_seq", request.claim_seq, low=1, high=MAX_EXACT_INTEGER)


def check_body(field: str, value: object, limits: Limits) -> None:
    """A payload, result or checkpoint: I-JSON within the limits. [J1] [J2]"""
    if type(value) is not bytes:
        raise InvalidInput(field, f"{type(value).__name__} is not encoded JSON (bytes)")
    check = check_size if limits.bodies_are_ijson else check_ijson
    try:
        check(value, max_bytes=limits.body_bytes, max_depth=limits.depth)
    except NotIJson as wrong:
        raise InvalidInput(field, str(wrong)) from wrong


def _check_enqueue(command: Enqueue, limits: Limits, before: Command | None) -> None:
    if isinstance(command, FollowUp):
        check_job_id("job_id", command.job_id)
        _check_parent(command.parent, command)
    else:
        _check_own_id("job_id", command.job_id)
    _check_new_job(command, limits, before)


def _check_own_id(field: str, chosen: str) -> None:
    """The id of a new job or flow that its caller chose."""
    check_job_id(field, chosen)
    if chosen[14] == DERIVED_VERSION:
        # Otherwise who knows a job's id could enqueue another job as its compensation [M1], or make
        # the flow that its handler is about to make. [FL13]
        raise InvalidInput(
            field,
            f"{chosen} is a UUID of version 8: such ids follow from other jobs",
            hint="leave it out, or use a UUID of version 7 or 4",
        )


def _check_new_job(command: Enqueue, limits: Limits, before: Command | None) -> None:
    if not isinstance(before, Enqueue) or not _is_addressed_alike(command, before):
        check_name("namespace", command.namespace)
        check_name("queue", command.queue)
        check_name("kind", command.kind)
        check_actor(command.actor)
        if command.policy is not None:
            check_policy("policy", command.policy, limits.lease)
    check_body("payload", command.payload, limits)
    low, high = PRIORITIES
    check_integer("priority", command.priority, low=low, high=high)
    check_duration("delay_us", command.delay_us)
    if command.run_at is not None:
        check_integer("run_at", command.run_at, low=0, high=MAX_INSTANT)
        if command.delay_us:
            raise InvalidInput("run_at", "given together with a delay", hint="give one of them")
    if command.expires_us is not None:
        check_duration("expires_us", command.expires_us)
        if command.expires_us == 0:
            raise InvalidInput("expires_us", "is 0: the job would expire at once")
    if command.on_dead_letter is not None:
        _check_dead_letter_job(command.on_dead_letter, command.kind, limits)
    _check_dedupe_key(command)
    if command.concurrency_key is not None:
        check_label("concurrency_key", command.concurrency_key, most=MAX_DEDUPE_KEY)
    if command.rate_key is not None:
        check_label("rate_key", command.rate_key, most=MAX_DEDUPE_KEY)
    if command.correlation_id is not None:
        check_correlation_id("correlation_id", command.correlation_id)
    if command.trace_id is not None:
        check_label("trace_id", command.trace_id, most=MAX_DEDUPE_KEY)


def _check_dedupe_key(command: Enqueue) -> None:
    if command.dedupe_key is not None:
        check_label("dedupe_key", command.dedupe_key, most=MAX_DEDUPE_KEY)
    if command.unique_for_us is not None:
        check_duration("unique_for_us", command.unique_for_us)
        if command.unique_for_us == 0:
            raise InvalidInput(
                "unique_for_us",
                "is 0: a key is free as soon as its job has ended anyway",
                hint="leave it out",
            )
        if command.dedupe_key is None:
            raise InvalidInput("unique_for_us", "given without a key", hint="give a key too")


def _check_dead_letter_job(job: DeadLetterJob, of: Kind, limits: Limits) -> None:
    check_type("on_dead_letter", job, DeadLetterJob)
    check_name("on_dead_letter.kind", job.kind)
    check_name("on_dead_letter.queue", job.queue)
    if job.kind == of:
        raise InvalidInput("on_dead_letter", f"{of} names itself", hint="name another kind")
    check_policy("on_dead_letter.policy", job.policy, limits.lease)
    if job.policy.compensation is not None:
        raise InvalidInput("on_dead_letter.policy", "names a compensation")


def _check_parent(parent: ParentAttempt, command: Enqueue) -> None:
    _check_attempt(parent)
    check_name("kind", command.kind)
    if command.job_id != follow_up_id(parent.job_id, kind=command.kind, step=parent.step):
        raise InvalidInput(
            "job_id", f"{command.job_id} does not follow from the parent, the kind and the step"
        )


def _check_attempt(parent: ParentAttempt) -> None:
    check_type("parent", parent, ParentAttempt)
    check_job_id("parent.job_id", parent.job_id)
    check_lease_id("parent.lease_id", parent.lease_id)
    if parent.step != "":
        check_label("step", parent.step, most=MAX_DEDUPE_KEY)


def _check_flow(flow: EnqueueFlow, limits: Limits) -> None:
    """The jobs of a flow, what they wait for, and that all of it can end. [FL3]"""
    if flow.handler is None:
        _check_own_id("flow_id", flow.flow_id)
    else:
        _check_handler(flow.handler, flow)
    check_label("name", flow.name, most=MAX_DEDUPE_KEY)
    check_type("members", flow.members, tuple)
    if not 1 <= len(flow.members) <= MAX_FLOW_JOBS:
        raise InvalidInput(
            "members", f"{len(flow.members)} jobs, a flow has 1 to {MAX_FLOW_JOBS} of them"
        )
    edges = sum(len(member.after) for member in flow.members)
    if edges > MAX_FLOW_EDGES:
        raise InvalidInput("after", f"{edges} are over the limit of {MAX_FLOW_EDGES} for a flow")
    before: Enqueue | None = None
    steps: set[str] = set()
    ids: set[str] = set()
    for member in flow.members:
        _check_member(member, flow, limits, before)
        if member.step in steps:
            raise InvalidInput("name", f"two jobs of the flow are called {member.step}")
        if member.job.job_id in ids:
            raise InvalidInput("job_id", f"{member.job.job_id} is the id of two jobs")
        steps.add(member.step)
        ids.add(member.job.job_id)
        before = member.job
    _check_payloads(flow)
    check_acyclic(flow.members)


def _check_payloads(flow: EnqueueFlow) -> None:
    size_bytes = sum(len(member.job.payload) for member in flow.members)
    if size_bytes > MAX_FLOW_PAYLOAD_BYTES:
        raise InvalidInput(
            "members",
            f"payloads of {size_bytes} bytes together are over the limit of"
            f" {MAX_FLOW_PAYLOAD_BYTES} for a flow",
            hint="keep large values elsewhere and pass their names, or make several flows",
        )


def _check_handler(handler: ParentAttempt, flow: EnqueueFlow) -> None:
    """A flow that a handler makes: its id follows from the handler's job and the step. [FL13]"""
    check_job_id("flow_id", flow.flow_id)
    _check_attempt(handler)
    if flow.flow_id != handler_flow_id(handler.job_id, step=handler.step):
        raise InvalidInput("flow_id", f"{flow.flow_id} does not follow from the job and the step")


def _check_member(
    member: FlowMember, flow: EnqueueFlow, limits: Limits, before: Enqueue | None
) -> None:
    job, first, handler = member.job, flow.members[0].job, flow.handler
    check_type("members", job, Enqueue)
    check_label("name", member.step, most=MAX_DEDUPE_KEY)
    if handler is None:
        _check_own_id("job_id", job.job_id)
    elif job.job_id != handler_member_id(handler.job_id, step=handler.step, name=member.step):
        what = f"{job.job_id} does not follow from the job, the step and the name {member.step}"
        raise InvalidInput("job_id", what)
    _check_new_job(job, limits, before)
    check_type("after", member.after, tuple)
    for parent in member.after:
        check_job_id("after", parent.job_id)
        check_label("after", parent.step, most=MAX_DEDUPE_KEY)
        if parent.needs is not None and parent.needs is not JobStatus.SUCCEEDED:
            raise InvalidInput(
                "when", f"{shown(parent.needs)} is not allowed", hint="succeeded or ended"
            )
    if len({parent.job_id for parent in member.after}) < len(member.after):
        raise InvalidInput("after", f"{member.step} waits for one job twice")
    if len({parent.step for parent in member.after}) < len(member.after):
        raise InvalidInput("after", f"{member.step} waits for two jobs of one name")
    if job.dedupe_key is not None:
        raise InvalidInput(
            "dedupe_key",
            f"{member.step} has one, and a job of a flow may not: another job could take its place",
            hint="enqueue it outside the flow, or leave out the key",
        )
    if member.after and (job.run_at is not None or job.delay_us):
        raise InvalidInput(
            "delay_us", f"{member.step} waits for other jobs, so it cannot have a delay"
        )
    if member.after and job.expires_us is not None:
        raise InvalidInput(
            "expires_us", f"{member.step} waits for other jobs, so it cannot expire meanwhile"
        )
    if (job.namespace, job.actor) != (first.namespace, first.actor):
        raise InvalidInput("namespace", "all jobs of a flow are of one namespace and caller")


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
    check_type(field, policy, Policy)
    check_duration(f"{field}.lease_us", policy.lease_us)
    if not bounds.shortest_us <= policy.lease_us <= bounds.longest_us:
        raise InvalidInput(
            f"{field}.lease_us",
            f"{policy.lease_us / MICROSECONDS_PER_SECOND:g} s is outside "
            f"{bounds.shortest_us / MICROSECONDS_PER_SECOND:g} s to "
            f"{bounds.longest_us / MICROSECONDS_PER_SECOND:g} s",
            hint="TENURE_LEASE_BOUNDS sets what a coordinator accepts",
        )
    _check_heartbeat(f"{field}.heartbeat_us", policy)
    check_integer(f"{field}.max_attempts", policy.max_attempts, low=1, high=MAX_COUNT)
    check_integer(f"{field}.max_releases", policy.max_releases, low=0, high=MAX_COUNT)
    _check_backoff(f"{field}.backoff", policy.backoff)
    check_word(f"{field}.on_exhausted", policy.on_exhausted, OnExhausted)
    check_word(f"{field}.on_lost", policy.on_lost, OnLost)
    for name in ("start_within_us", "grace_us"):
        check_duration(f"{field}.{name}", getattr(policy, name))
    if policy.timeout_us is not None:
        check_duration(f"{field}.timeout_us", policy.timeout_us)
        _check_long_enough(f"{field}.timeout_us", policy.timeout_us, "None means no time-out")
    _check_long_enough(f"{field}.start_within_us", policy.start_within_us)
    if policy.keep_us is not None:
        check_duration(f"{field}.keep_us", policy.keep_us)
        if policy.keep_us < SHORTEST_KEEP:
            raise InvalidInput(f"{field}.keep_us", "finished jobs are kept for at least a minute")
    if policy.compensation is not None:
        check_type(f"{field}.compensation", policy.compensation, Compensation)
        check_name(f"{field}.compensation.kind", policy.compensation.kind)
        check_name(f"{field}.compensation.queue", policy.compensation.queue)
        check_type(f"{field}.compensation.policy", policy.compensation.policy, Policy)
        if policy.compensation.policy.compensation is not None:
            raise InvalidInput(f"{field}.compensation.policy", "names a compensation itself")
        check_policy(f"{field}.compensation.policy", policy.compensation.policy, bounds)


def _check_heartbeat(field: str, policy: Policy) -> None:
    """Two missed heartbeats are at least half of a lease and at most all of it. [L17]"""
    if policy.heartbeat_us is None:
        return
    check_duration(field, policy.heartbeat_us)
    least_us, most_us = policy.lease_us // 4, policy.lease_us // 2
    if not least_us <= policy.heartbeat_us <= most_us:
        given = (policy.heartbeat_us, least_us, most_us)
        spans = [each / MICROSECONDS_PER_SECOND for each in given]
        problem = "{:g} s is outside {:g} s to {:g} s, a quarter to half of the lease"
        raise InvalidInput(field, problem.format(*spans))


def _check_long_enough(field: str, limit_us: Duration, hint: str = "") -> None:
    """A limit that every attempt would exceed is refused before a job has it. [J10]"""
    if limit_us < SHORTEST_LIMIT:
        limits = [each / MICROSECONDS_PER_SECOND for each in (limit_us, SHORTEST_LIMIT)]
        problem = "{:g} s is too short: no attempt could run in less than {:g} s".format(*limits)
        raise InvalidInput(field, problem, hint=hint)


def check_declared_policy(policy: Policy, bounds: LeaseBounds) -> None:
    """The policy that a worker declares for a kind. A compensation is no part of it: it names a
    kind and a queue, which an enqueue must be allowed to use. [F10]"""
    check_policy("policy", policy, bounds)
    if policy.compensation is not None:
        raise InvalidInput("policy.compensation", "cannot be declared", hint="leave it out")


def _check_backoff(field: str, backoff: Backoff) -> None:
    check_type(field, backoff, Backoff)
    check_duration(f"{field}.initial_us", backoff.initial_us)
    check_duration(f"{field}.cap_us", backoff.cap_us)
    check_number(f"{field}.factor", backoff.factor, low=1.0, high=100.0)
    check_number(f"{field}.floor", backoff.floor, low=0.0, high=1.0)


def _check_worker_command(command: WorkerCommand, limits: Limits, before: Command | None) -> None:
    check_job_id("job_id", command.job_id)
    check_lease_id("lease_id", command.lease_id)
    if before is None or command.actor is not before.actor:
        check_actor(command.actor)
    if command.expected_rev is not None:
        _check_expected_rev(command.expected_rev)
    match command:  # the frequent ones first: cases are tried in order
        case Start():
            pass
        case Complete():
            check_body("result", command.result, limits)
        case Heartbeat():
            check_integer("hb_seq", command.hb_seq, low=1, high=MAX_EXACT_INTEGER)
            if command.progress is not None:
                _check_progress(command.progress)
            if command.checkpoint is not None:
                check_body("checkpoint", command.checkpoint, limits)
            return
        case Fail():
            _check_error(command.error)
            check_duration("retry_after_us", command.retry_after_us)
        case Release():
            check_word("kind", command.kind, ReleaseKind)
            check_duration("delay_us", command.delay_us)
        case _:
            assert_never(command)
    check_name("request_id", command.request_id)


def _check_expected_rev(rev: int) -> None:
    check_integer("expected_rev", rev, low=1, high=MAX_COUNT)


def _check_progress(progress: Progress) -> None:
    check_type("progress", progress, Progress)
    check_integer("progress.done", progress.done, low=0, high=MAX_EXACT_INTEGER)
    if progress.total is not None:
        check_integer("progress.total", progress.total, low=0, high=MAX_EXACT_INTEGER)
    check_text("progress.note", progress.note)


def _check_error(error: JobError) -> None:
    check_type("error", error, JobError)
    check_word("error.error_class", error.error_class, ErrorClass)
    if error.stage is not None:
        check_word("error.stage", error.stage, Stage)
    check_text("error.type", error.type, most=MAX_NAME)
    check_text("error.message", error.message, most=16 * MAX_TEXT)
    check_text("error.traceback", error.traceback, most=16 * MAX_TEXT)
    if error.reason_code is None:
        return
    check_word("error.reason_code", error.reason_code, ReasonCode)
    if error.reason_code not in REPORTABLE_REASONS:
        raise InvalidInput(
            "error.reason_code",
            f"{error.reason_code} is not for a worker to say",
            hint=f"one of {', '.join(each for each in ReasonCode if each in REPORTABLE_REASONS)}",
        )


_MAY_ASK: dict[type[object], frozenset[str]] = {
    Cancel: roles("T16", "T17", "T18", "T19", "T20"),
    Stall: roles("T33"),
    Requeue: roles("T14"),
    DeadLetter: roles("T21"),
    Redrive: roles("T27"),
    RedriveFlow: roles("T27"),
    Discard: roles("T27"),
}
"""Who may ask for what, out of THE table. Resolving a dead letter is one right."""


def _check_operator_command(command: OperatorCommand | Discard, limits: Limits) -> None:
    check_job_id("job_id", command.job_id)
    _check_asker(command)
    if command.expected_rev is not None:
        _check_expected_rev(command.expected_rev)
    if command.expected_status is not None:
        check_word("expected_status", command.expected_status, JobStatus)
    match command:
        case Cancel():
            check_word("mode", command.mode, CancelMode)
            check_text("reason", command.reason)
        case DeadLetter():
            check_word("reason_code", command.reason_code, ReasonCode)
            if command.stage is not None:
                check_word("stage", command.stage, Stage)
            check_text("message", command.message)
        case Redrive():
            check_word("cause", command.cause, EventCause)
            if command.cause not in (EventCause.REDRIVE, EventCause.RERUN):
                raise InvalidInput("cause", f"{command.cause} is neither redrive nor rerun")
            if command.payload is not None:
                check_body("payload", command.payload, limits)
        case Discard():
            check_text("note", command.note)
        case Stall() | Requeue():
            pass
        case _:
            assert_never(command)


def _check_asker(command: OperatorCommand | Discard | RedriveFlow) -> None:
    check_actor(command.actor)
    allowed = _MAY_ASK[type(command)]
    if role_of(command.actor) not in allowed:
        # Above all not a worker: an attempt's end that a worker wrote counts as the report of that
        # attempt's owner. [R13] [R22]
        what = re.sub(r"\B(?=[A-Z])", " ", type(command).__name__).lower()  # "redrive flow"
        raise InvalidInput(
            "actor",
            f"{shown(command.actor)} may not ask for {what}",
            hint=f"ask as one of: {', '.join(sorted(allowed))}",
        )
    check_name("request_id", command.request_id)
