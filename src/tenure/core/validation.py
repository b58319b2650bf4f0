"""Validation: that every command is within its limits.

`decide` may rely on all of it. Each violation is an `InvalidInput` that names the field and states
what is allowed; nothing has been written when it is raised. [J6] The coordinator that decides about
a command calls this, once, also on a caller's own connection. Others check earlier only where a
comment there gives the reason.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tenure.core.checks import (
    MAX_DEDUPE_KEY,
    MAX_NAME,
    MAX_TEXT,
    check_fields,
    check_integer,
    check_job_id,
    check_label,
    check_names,
    check_struct,
    check_text,
    check_type,
    quoted,
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
    Requeue,
    ScheduledEnqueue,
    Stall,
    Sweep,
    Unblock,
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
    follow_up_id,
    handler_flow_id,
    handler_member_id,
    role_of,
)
from tenure.core.ijson import NotIJson, are_as_written_here, check_ijson, check_size
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
    EventCause,
    JobStatus,
    ReasonCode,
)
from tenure.errors import InvalidInput

MAX_PER_JOB = 10
"""Commands about one job in one call: a start, its heartbeats and its end are a few."""

SHORTEST_LIMIT = seconds(0.1)
"""The shortest time-out of an attempt, and the shortest wait for its start. A worker needs a part
of it."""
REPORTABLE_REASONS = frozenset(ReasonCode) - {
    ReasonCode.TIMEOUT,
    ReasonCode.EXHAUSTED_RETRIES,
    ReasonCode.COMPENSATION_FAILED,
}
"""What a failure report may state. The coordinator decides on the other reasons. [F12]"""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a coordinator accepts; the defaults are the documented ones. [J2]"""

    body_bytes: int = 1024 * 1024
    depth: int = 64
    claim_limit: int = 1000
    lease: LeaseBounds = LeaseBounds()
    bodies_are_checked: bool = False
    """Whether bodies were checked before, or are of commands that are refused whatever they are."""


def check_commands(
    commands: Sequence[Command], limits: Limits, before: Command | None = None
) -> None:
    """Raise `InvalidInput` unless every field of every command is within its limits. [J7] For
    `before` see `check_command`."""
    if len(commands) > MAX_PER_JOB:
        _check_spread(commands)
        payloads = [each.payload for each in commands if type(each) is Enqueue]
        if (
            len(payloads) == len(commands)  # otherwise there are other bodies, too
            and set(map(type, payloads)) == {bytes}
            and are_as_written_here(payloads)
        ):
            for each in payloads:
                _check_body("payload", each, limits, check_size)
            limits = msgspec.structs.replace(limits, bodies_are_checked=True)
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
    checked again.
    """
    check_fields(command, before=before)
    rule = _RULES.get(type(command))
    if rule is not None:
        rule(command, limits, before)


def check_claim(request: ClaimRequest, limits: Limits) -> None:
    """Raise `InvalidInput` unless every field of a claim is within its limits."""
    check_fields(request)
    if role_of(request.actor) != "worker":
        # An attempt's end that a worker wrote counts as its owner's report. [R22]
        raise InvalidInput("actor", f"{quoted(request.actor)} is not a worker: only workers claim")
    check_names("queues", request.queues, most=MAX_CLAIM_QUEUES, least=1)
    if request.kinds is not None:
        check_names("kinds", request.kinds, most=MAX_CLAIM_KINDS, least=0)
    check_integer("limit", request.limit, low=1, high=limits.claim_limit)


def check_body(field: str, value: object, limits: Limits) -> None:
    """A payload, result or checkpoint: I-JSON within the limits. [J1] [J2]"""
    if type(value) is not bytes:
        raise InvalidInput(field, f"{type(value).__name__} is not encoded JSON (bytes)")
    if not limits.bodies_are_checked:
        _check_body(field, value, limits, check_ijson)


def _check_body(field: str, value: bytes, limits: Limits, check: Callable[..., None]) -> None:
    try:
        check(value, max_bytes=limits.body_bytes, max_depth=limits.depth)
    except NotIJson as wrong:
        raise InvalidInput(field, str(wrong)) from wrong


def _check_enqueue(command: Enqueue, limits: Limits, before: Command | None) -> None:
    if command.job_id[14] == DERIVED_VERSION:
        raise _derived_id("job_id", command.job_id)
    _check_new_job(command, limits, before)


def _check_follow_up(command: FollowUp, limits: Limits, before: Command | None) -> None:
    parent = command.parent
    _check_attempt(parent)
    if command.job_id != follow_up_id(parent.job_id, kind=command.kind, step=parent.step):
        raise InvalidInput(
            "job_id", f"{command.job_id} does not follow from the parent, the kind and the step"
        )
    _check_new_job(command, limits, before)


def _derived_id(field: str, chosen: str) -> InvalidInput:
    """The error for an id of this kind that a caller chose for a new job or flow. Otherwise who
    knows a job's id could enqueue another job as its compensation [M1], or make the flow that its
    handler is about to make. [FL13]"""
    return InvalidInput(
        field,
        f"{chosen} is a UUID of version 8: such ids follow from other jobs",
        hint="leave it out, or use a UUID of version 7 or 4",
    )


def _check_new_job(job: Enqueue, limits: Limits, before: Command | None) -> None:
    """The fields of a new job that depend on each other, and its documents."""
    policy_before = before.policy if isinstance(before, Enqueue) else None
    if job.policy is not None and job.policy is not policy_before:
        check_policy("policy", job.policy, limits.lease)
    check_body("payload", job.payload, limits)
    if job.run_at is not None and job.delay_us:
        raise InvalidInput("run_at", "given together with a delay", hint="give one of them")
    if job.expires_us == 0:
        raise InvalidInput("expires_us", "is 0: the job would expire at once")
    if job.on_dead_letter is not None:
        _check_end_job("on_dead_letter", job.on_dead_letter, DeadLetterJob, limits.lease)
        if job.on_dead_letter.kind == job.kind:
            what = f"{job.kind} names itself"
            raise InvalidInput("on_dead_letter", what, hint="name another kind")
    if job.unique_for_us == 0:
        what = "is 0: a key is free as soon as its job has ended anyway"
        raise InvalidInput("unique_for_us", what, hint="leave it out")
    if job.unique_for_us is not None and job.dedupe_key is None:
        raise InvalidInput("unique_for_us", "given without a key", hint="give a key too")


def _check_end_job(
    field: str,
    job: DeadLetterJob | Compensation,
    kind: type[DeadLetterJob | Compensation],
    bounds: LeaseBounds,
) -> None:
    """A job that the end of another one enqueues. It has no such job itself."""
    check_struct(field, job, kind)
    check_policy(f"{field}.policy", job.policy, bounds)
    if job.policy.compensation is not None:
        raise InvalidInput(f"{field}.policy", "names a compensation itself")


def _check_attempt(parent: ParentAttempt) -> None:
    check_struct("parent", parent, ParentAttempt)
    if parent.step != "":
        check_label("step", parent.step, most=MAX_DEDUPE_KEY)


def _check_flow(flow: EnqueueFlow, limits: Limits, _: Command | None) -> None:
    """The jobs of a flow, what they wait for, and that all of it can end. [FL3]"""
    if flow.handler is None:
        if flow.flow_id[14] == DERIVED_VERSION:
            raise _derived_id("flow_id", flow.flow_id)
    else:
        _check_attempt(flow.handler)
        if flow.flow_id != handler_flow_id(flow.handler.job_id, step=flow.handler.step):  # [FL13]
            what = f"{flow.flow_id} does not follow from the job and the step"
            raise InvalidInput("flow_id", what)
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
    size_bytes = sum(len(member.job.payload) for member in flow.members)
    if size_bytes > MAX_FLOW_PAYLOAD_BYTES:
        raise InvalidInput(
            "members",
            f"payloads of {size_bytes} bytes together are over the limit of"
            f" {MAX_FLOW_PAYLOAD_BYTES} for a flow",
            hint="keep large values elsewhere and pass their names, or make several flows",
        )
    check_acyclic(flow.members)


def _check_member(
    member: FlowMember, flow: EnqueueFlow, limits: Limits, before: Enqueue | None
) -> None:
    job, first, handler = member.job, flow.members[0].job, flow.handler
    check_type("members", job, Enqueue)
    check_fields(job, before=before)
    check_label("name", member.step, most=MAX_DEDUPE_KEY)
    if handler is None:
        if job.job_id[14] == DERIVED_VERSION:
            raise _derived_id("job_id", job.job_id)
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
                "when", f"{quoted(parent.needs)} is not allowed", hint="succeeded or ended"
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


def check_policy(field: str, policy: Policy, bounds: LeaseBounds) -> None:
    """A job's policy: every duration, budget and enumeration of it. [L2] [J4]"""
    check_struct(field, policy, Policy)
    if not bounds.shortest_us <= policy.lease_us <= bounds.longest_us:
        problem = "{:g} s is outside {:g} s to {:g} s"
        raise InvalidInput(
            f"{field}.lease_us",
            _in_seconds(problem, policy.lease_us, bounds.shortest_us, bounds.longest_us),
            hint="TENURE_LEASE_BOUNDS sets what a coordinator accepts",
        )
    _check_heartbeat(f"{field}.heartbeat_us", policy)
    check_struct(f"{field}.backoff", policy.backoff, Backoff)
    if policy.timeout_us is not None:
        _check_long_enough(f"{field}.timeout_us", policy.timeout_us, "None means no time-out")
    _check_long_enough(f"{field}.start_within_us", policy.start_within_us)
    if policy.keep_us is not None and policy.keep_us < SHORTEST_KEEP:
        raise InvalidInput(f"{field}.keep_us", "finished jobs are kept for at least a minute")
    if policy.compensation is not None:
        _check_end_job(f"{field}.compensation", policy.compensation, Compensation, bounds)


def _in_seconds(problem: str, *durations: Duration | int) -> str:
    return problem.format(*[each / MICROSECONDS_PER_SECOND for each in durations])


def _check_heartbeat(field: str, policy: Policy) -> None:
    """Two missed heartbeats are at least half of a lease and at most all of it. [L17]"""
    given_us, least_us, most_us = policy.heartbeat_us, policy.lease_us // 4, policy.lease_us // 2
    if given_us is not None and not least_us <= given_us <= most_us:
        problem = "{:g} s is outside {:g} s to {:g} s, a quarter to half of the lease"
        raise InvalidInput(field, _in_seconds(problem, given_us, least_us, most_us))


def _check_long_enough(field: str, limit_us: Duration, hint: str = "") -> None:
    """A limit that every attempt would exceed is refused before a job has it. [J10]"""
    if limit_us < SHORTEST_LIMIT:
        problem = "{:g} s is too short: no attempt could run in less than {:g} s"
        raise InvalidInput(field, _in_seconds(problem, limit_us, SHORTEST_LIMIT), hint=hint)


def check_declared_policy(policy: Policy, bounds: LeaseBounds) -> None:
    """The policy that a worker declares for a kind. A compensation is no part of it: it names a
    kind and a queue, which an enqueue must be allowed to use. [F10]"""
    check_policy("policy", policy, bounds)
    if policy.compensation is not None:
        raise InvalidInput("policy.compensation", "cannot be declared", hint="leave it out")


def _check_heartbeat_bodies(command: Heartbeat, limits: Limits, _: Command | None) -> None:
    if command.progress is not None:
        check_struct("progress", command.progress, Progress)
    if command.checkpoint is not None:
        check_body("checkpoint", command.checkpoint, limits)


def _check_error(error: JobError) -> None:
    check_struct("error", error, JobError)
    check_text("error.type", error.type, most=MAX_NAME)
    check_text("error.message", error.message, most=16 * MAX_TEXT)
    check_text("error.traceback", error.traceback, most=16 * MAX_TEXT)
    if error.reason_code not in (None, *REPORTABLE_REASONS):
        raise InvalidInput(
            "error.reason_code",
            f"{error.reason_code} is decided by the coordinator",
            hint=f"one of {', '.join(each for each in ReasonCode if each in REPORTABLE_REASONS)}",
        )


_MAY_ASK: dict[type[Command], frozenset[str]] = {
    Cancel: roles("T16", "T17", "T18", "T19", "T20"),
    Stall: roles("T33"),
    Requeue: roles("T14"),
    DeadLetter: roles("T21"),
    Redrive: roles("T27"),
    RedriveFlow: roles("T27"),
    Discard: roles("T27"),
}
"""The roles that may send each request, from THE table. Redriving and discarding are one right."""


def _check_asker(
    command: OperatorCommand | Discard | RedriveFlow, _: Limits, before: Command | None
) -> None:
    allowed = _MAY_ASK[type(command)]
    if role_of(command.actor) not in allowed:
        # Above all not a worker: an attempt's end that a worker wrote counts as the report of that
        # attempt's owner. [R13] [R22]
        what = re.sub(r"\B(?=[A-Z])", " ", type(command).__name__).lower()  # "redrive flow"
        raise InvalidInput(
            "actor",
            f"{quoted(command.actor)} may not ask for {what}",
            hint=f"ask as one of: {', '.join(sorted(allowed))}",
        )


def _check_dead_letter(command: DeadLetter, limits: Limits, before: Command | None) -> None:
    _check_asker(command, limits, before)
    check_text("message", command.message)


def _check_redrive(command: Redrive, limits: Limits, before: Command | None) -> None:
    _check_asker(command, limits, before)
    if command.cause not in (EventCause.REDRIVE, EventCause.RERUN):
        raise InvalidInput("cause", f"{command.cause} is neither redrive nor rerun")
    if command.payload is not None:
        check_body("payload", command.payload, limits)


def _check_system(command: Sweep | Unblock, _: Limits, before: Command | None) -> None:
    if command.actor != SYSTEM:
        raise InvalidInput("actor", "only the system does this")


def _check_no_claim(_: Claim, limits: Limits, before: Command | None) -> None:
    # A grant outside a claim would bypass pauses, limits and the session. [Z2] [Z3] [Q1]
    raise InvalidInput("command", "a claim is asked for as a claim, not as a command")


_RULES: dict[type[Command], Callable[[Any, Limits, Command | None], None]] = {
    Enqueue: _check_enqueue,
    ScheduledEnqueue: _check_enqueue,
    FollowUp: _check_follow_up,
    EnqueueFlow: _check_flow,
    Heartbeat: _check_heartbeat_bodies,
    Complete: lambda command, limits, before: check_body("result", command.result, limits),
    Fail: lambda command, limits, before: _check_error(command.error),
    **dict.fromkeys(_MAY_ASK, _check_asker),
    DeadLetter: _check_dead_letter,
    Redrive: _check_redrive,
    Sweep: _check_system,
    Unblock: _check_system,
    Claim: _check_no_claim,
}
"""What else is checked of a command than its fields one by one."""
