"""Follow-ups: jobs and flows that a handler enqueues, on their way through the supervisor.

The child has neither a token nor the lease. The supervisor has both, so it sends the job under the
lease of the attempt, and the coordinator decides. [D8] [D10] The handler waits for the answer.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from tenure.core.commands import Enqueue, EnqueueFlow, FlowMember, FollowUp, ParentAttempt
from tenure.core.ids import (
    Actor,
    JobId,
    LeaseId,
    Namespace,
    follow_up_id,
    handler_flow_id,
    handler_member_id,
)
from tenure.core.validation import Limits, check_body
from tenure.core.verdicts import Answer, Reply
from tenure.core.vocabulary import Cause
from tenure.errors import (
    InvalidInput,
    LeaseConflictError,
    PermanentError,
    RequestRefused,
    TransientError,
)
from tenure.handlers.calls import (
    Enqueued,
    JobSpec,
    check_id_is_derived,
    checked_call,
    checked_step,
)
from tenure.handlers.flows import FlowPlan
from tenure.handlers.options import as_option
from tenure.ports import Coordination
from tenure.protocol.problem_codes import ProblemCode
from tenure.protocol.routes import MAX_FLOW_BYTES
from tenure.worker.messages import (
    FlowEnd,
    FlowPart,
    FollowUpAnswer,
    FollowUpWanted,
    ToSupervisor,
)
from tenure.worker.wire import Answers

PART_BYTES = 512 * 1024
"""Of a flow: what is sent from a child to its supervisor at a time."""

_encode_plan = msgspec.msgpack.Encoder().encode
_decode_plan = msgspec.msgpack.Decoder(FlowPlan).decode

_RETRY_IS_SAFE = "another attempt enqueues it under the same id"
_NEEDS_NO_KEY = "omit key: by its id alone, a job that a handler enqueues is made only once"

# --- in the child ------------------------------------------------------------------------------


class FollowUps:
    """Sends one follow-up of an attempt at a time. Any thread of the handler."""

    def __init__(
        self,
        run: int,
        job_id: JobId,
        send: Callable[[ToSupervisor], None],
        *,
        still_mine: Callable[[], bool],
        limits: Limits,
    ) -> None:
        self._run = run
        self._job_id = job_id
        self._send = send
        self._limits = limits
        self._lock = threading.Lock()
        self._answers: Answers[FollowUpAnswer] = Answers(still_mine)
        self._taken: set[str] = set()

    def enqueue(self, call: object, step: object) -> Enqueued:
        """Enqueue the call and wait until it is stored; raises if it is not."""
        spec, step = checked_follow_up(call, step)
        # A frame has room for one body: a larger one would end this process, not only this call.
        check_body("payload", spec.payload, self._limits)
        wanted = follow_up_id(self._job_id, kind=spec.kind, step=step)
        with self._lock:
            if wanted in self._taken:
                raise already_enqueued(spec, step)
            number = self._answers.next_number()
            self._send(FollowUpWanted(self._run, number, step, spec))
            enqueued = _judge(self._answers.wait_for(number), spec, self._job_id)
            self._taken.add(wanted)
        return enqueued

    def make_flow(self, plan: FlowPlan) -> bool:
        """Make the flow and wait until it is stored; raises if it is not. Returns whether it was
        not there before."""
        wanted = handler_flow_id(self._job_id, step=plan.step)
        for each in plan.jobs:
            check_body("payload", each.call.payload, self._limits)
        body = _encode_plan(plan)
        if len(body) > MAX_FLOW_BYTES:
            raise InvalidInput(
                "flow",
                f"{len(body)} bytes are over the limit of {MAX_FLOW_BYTES}",
                hint="make several flows, or give the jobs smaller arguments",
            )
        with self._lock:
            if wanted in self._taken:
                raise already_made(plan.step)
            number = self._answers.next_number()
            for start in range(0, len(body), PART_BYTES):
                self._send(FlowPart(self._run, body[start : start + PART_BYTES]))
            self._send(FlowEnd(self._run, number))
            answer = self._answers.wait_for(number)
            _raise_refusal(answer)
            self._taken.add(wanted)
        return answer.is_new

    def heard(self, answer: FollowUpAnswer) -> None:
        """The supervisor's answer."""
        self._answers.put(answer)


def checked_follow_up(call: object, step: object) -> tuple[JobSpec, str]:
    """What `ctx.enqueue` was given, if it is a call and the name of a step."""
    checked = checked_call(call, example="ctx.enqueue(function.call(argument, …))")
    check_id_is_derived(checked)
    return checked.spec, checked_step(step)


def already_enqueued(call: JobSpec, step: str) -> InvalidInput:
    """The error of an attempt that enqueues two jobs under one id."""
    at = f" at the step {step!a}" if step else ""
    return InvalidInput(
        "step",
        f"this attempt has already enqueued a job of the kind {call.kind}{at}",
        hint="name each one, the same in every attempt: ctx.enqueue(…, step=…)",
    )


def already_made(step: str) -> InvalidInput:
    """The error of an attempt that makes two flows under one id."""
    at = f" at the step {step!a}" if step else ""
    return InvalidInput(
        "step",
        f"this attempt has already made a flow{at}",
        hint="name each one, the same in every attempt: ctx.flow(step=…)",
    )


def _judge(answer: FollowUpAnswer, call: JobSpec, parent: JobId) -> Enqueued:
    if answer.cause is Cause.DEDUPE_KEY_HELD:
        raise InvalidInput(
            "key",
            f"a job that the worker's token may not see holds the key {call.dedupe_key!a}",  # [D6]
            hint=_NEEDS_NO_KEY,
        )
    job_id = _raise_refusal(answer)
    if job_id == parent:
        raise InvalidInput(
            "key",
            f"this job holds the key {call.dedupe_key!a} itself until it ends",
            hint=_NEEDS_NO_KEY,
        )
    return Enqueued(id=job_id, is_new=answer.is_new)


def _raise_refusal(answer: FollowUpAnswer) -> JobId:
    """Raise why nothing was made. Returns the id of what there is now."""
    if answer.failure:
        raise TransientError(answer.failure, dependency_unavailable=True)
    if answer.refusal:
        raise PermanentError(answer.refusal)
    if answer.problem:
        raise as_option(InvalidInput(answer.field, answer.problem, hint=answer.hint))
    if answer.cause is not None or answer.job_id is None:
        raise LeaseConflictError(f"the attempt has lost its lease ({answer.cause})")
    return answer.job_id


# --- in the supervisor -------------------------------------------------------------------------


class FollowUpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A follow-up with what only the supervisor knows: the lease it is sent under."""

    wanted: FollowUpWanted
    job_id: JobId
    lease_id: LeaseId

    @property
    def follow_up_id(self) -> JobId:
        """The id of the job to be made. [D8]"""
        return follow_up_id(self.job_id, kind=self.wanted.call.kind, step=self.wanted.step)


def _command(request: FollowUpRequest, *, actor: Actor, namespace: Namespace) -> FollowUp:
    """The command for a handler's request."""
    call, step = request.wanted.call, request.wanted.step
    return FollowUp(
        job_id=request.follow_up_id,
        namespace=namespace,
        actor=actor,
        parent=ParentAttempt(job_id=request.job_id, lease_id=request.lease_id, step=step),
        **msgspec.structs.asdict(call),
    )


def enqueue_follow_up(
    coordination: Coordination,
    request: FollowUpRequest,
    *,
    actor: Actor,
    namespace: Namespace,
    answer: Callable[[FollowUpAnswer], None],
) -> None:
    """Send it without waiting; `answer` is called once, in whatever thread."""

    def heard(future: "Future[list[Answer]]") -> None:
        try:
            [answered] = future.result()
        except Exception as failure:  # handed to the handler that waits, never swallowed
            answer(answer_to(request, failure))
        else:
            answer(answer_to(request, answered))

    command = _command(request, actor=actor, namespace=namespace)
    try:
        coordination.submit_many([command]).add_done_callback(heard)
    except Exception as failure:  # a field is wrong, or the transport failed at once
        answer(answer_to(request, failure))


def answer_to(request: FollowUpRequest, heard: Answer | Exception) -> FollowUpAnswer:
    """The answer that a handler gets about its follow-up."""
    run, number = request.wanted.run, request.wanted.number
    if isinstance(heard, Exception):
        return _answer_to_failure(run, number, heard, "this job")
    assert isinstance(heard, Reply)
    if heard.job is None and heard.cause is None and heard.replayed:
        # The job exists, but the worker's token may not see it. Its id is no secret: it follows
        # from the parent's. [H41]
        return FollowUpAnswer(run, number, job_id=request.follow_up_id)
    if heard.job is None or heard.cause is not None:
        return FollowUpAnswer(run, number, cause=heard.cause or Cause.UNKNOWN_JOB)
    is_new = not (heard.replayed or heard.deduplicated)
    return FollowUpAnswer(run, number, job_id=heard.job.id, is_new=is_new)


def _answer_to_failure(run: int, number: int, heard: Exception, what: str) -> FollowUpAnswer:
    if isinstance(heard, InvalidInput):
        return FollowUpAnswer(
            run, number, field=heard.field, problem=heard.problem, hint=heard.hint
        )
    if isinstance(heard, RequestRefused) and heard.reason == ProblemCode.OUT_OF_SCOPE:
        return FollowUpAnswer(run, number, refusal=f"the worker may not enqueue {what}: {heard}")
    return FollowUpAnswer(run, number, failure=f"{heard}; {_RETRY_IS_SAFE}")


class ReceivedFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow whose last piece has arrived, with the lease it is sent under."""

    run: int
    number: int
    job_id: JobId
    lease_id: LeaseId
    body: bytes


class FlowParts:
    """The pieces of one flow; of one that is too large, enough to have it refused."""

    def __init__(self) -> None:
        self._body = bytearray()

    def add(self, part: FlowPart) -> None:
        """The next piece."""
        self._body += part.body[: MAX_FLOW_BYTES + 1 - len(self._body)]

    def whole(self, end: FlowEnd, job_id: JobId, lease_id: LeaseId) -> ReceivedFlow:
        """The whole flow; the next piece begins another one."""
        body = bytes(self._body)
        self._body.clear()
        return ReceivedFlow(
            run=end.run, number=end.number, job_id=job_id, lease_id=lease_id, body=body
        )


def make_flow(
    coordination: Coordination, flow: ReceivedFlow, *, actor: Actor, namespace: Namespace
) -> FollowUpAnswer:
    """Make a handler's flow; what to tell the handler. Waits for the store."""
    try:
        command = _flow_command(flow, actor=actor, namespace=namespace)
        heard = coordination.execute(command)
    except Exception as failure:  # handed to the handler that waits, never swallowed
        return _answer_to_failure(flow.run, flow.number, failure, "this flow")
    assert isinstance(heard, Reply)
    if heard.cause is not None:
        return FollowUpAnswer(flow.run, flow.number, cause=heard.cause)
    made = JobId(command.flow_id)
    return FollowUpAnswer(flow.run, flow.number, job_id=made, is_new=not heard.replayed)


def _flow_command(flow: ReceivedFlow, *, actor: Actor, namespace: Namespace) -> EnqueueFlow:
    """The command for a flow; raises if its child did not send one, which only user code that got
    hold of the socket can bring about."""
    try:
        plan = _decode_plan(flow.body)
    except msgspec.MsgspecError as wrong:
        raise InvalidInput("flow", f"is not one: {wrong}") from wrong
    step = plan.step
    return EnqueueFlow(
        flow_id=handler_flow_id(flow.job_id, step=step),
        name=plan.name,
        members=tuple(
            FlowMember(
                job=Enqueue(
                    job_id=handler_member_id(flow.job_id, step=step, name=job.name),
                    namespace=namespace,
                    actor=actor,
                    **msgspec.structs.asdict(job.call),
                ),
                step=job.name,
                after=job.after,
            )
            for job in plan.jobs
        ),
        handler=ParentAttempt(job_id=flow.job_id, lease_id=flow.lease_id, step=step),
    )
