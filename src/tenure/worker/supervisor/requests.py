"""What handlers ask of their supervisor and it asks of the coordinator, under the attempt's lease.

A child has neither a token nor the lease; the supervisor has both, and the coordinator decides.
[D8] [D10] [FL7] The handler waits for the answer, so that its success can never be reported before
what it made is stored.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import assert_never

import msgspec

from tenure.core.artifacts import MAX_ARTIFACTS_PER_ATTEMPT, ArtifactUpload
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
from tenure.core.leases import LeaseRef
from tenure.core.verdicts import Answer, Reply
from tenure.core.vocabulary import Cause
from tenure.errors import InvalidInput, RequestRefused, TenureError
from tenure.handlers.calls import Enqueued
from tenure.ports import Coordination
from tenure.protocol.replies import ProblemCode
from tenure.worker import frames

_NEEDS_NO_KEY = "omit key: by its id alone, a job that a handler enqueues is made only once"


_NAMES = {
    frames.StoreArtifact: "storing an artifact",
    frames.EnqueueJob: "enqueueing a job",
    frames.MakeFlow: "storing a flow",
    frames.LoadParents: "reading the parents",
}


class HandlerRequest(msgspec.Struct, frozen=True):
    """A handler's question, with what only the supervisor knows: its attempt's job and lease."""

    ask: frames.Ask
    job_id: JobId
    lease_id: LeaseId

    def describe(self) -> str:
        """What it is, for the log."""
        return f"{_NAMES[type(self.ask.what)]} of job {self.job_id}"

    def answer(self, result: object) -> frames.AskAnswer:
        """The answer with this result."""
        return frames.AskAnswer(
            self.ask.run, self.ask.id, msgspec.Raw(msgspec.msgpack.encode(result))
        )

    def refuse(self, refused: frames.Refusal) -> frames.AskAnswer:
        """The answer that states why there is no result."""
        return frames.AskAnswer(self.ask.run, self.ask.id, refused=refused)

    def unavailable(self, problem: str) -> frames.AskAnswer:
        """The answer of a store that does not answer."""
        return self.refuse(frames.Refusal(why="unavailable", problem=problem))

    @property
    def size_bytes(self) -> int:
        """How much memory it takes while it waits."""
        match self.ask.what:
            case frames.StoreArtifact(body=body):
                return len(body)
            case frames.MakeFlow(plan=plan):
                return sum(len(job.call.payload) for job in plan.jobs)
            case _:
                return 0

    @property
    def parent(self) -> ParentAttempt:
        """The attempt that makes a job or a flow."""
        assert isinstance(self.ask.what, frames.EnqueueJob | frames.MakeFlow)
        what = self.ask.what
        step = what.step if isinstance(what, frames.EnqueueJob) else what.plan.step
        return ParentAttempt(job_id=self.job_id, lease_id=self.lease_id, step=step)


class HandlerRequests:
    """Carries out what the handlers of one worker ask."""

    def __init__(self, coordination: Coordination, *, actor: Actor, namespace: Namespace) -> None:
        self._coordination = coordination
        self._actor = actor
        self._namespace = namespace

    def carry_out(self, request: HandlerRequest) -> frames.AskAnswer:
        """The answer. Waits for the store."""
        what = request.ask.what
        try:
            match what:
                case frames.StoreArtifact():
                    return self._store_artifact(request, what)
                case frames.LoadParents():
                    return self._load_parents(request, what)
                case frames.EnqueueJob():
                    return self._enqueued(request, self._coordination.execute(self._job(request)))
                case frames.MakeFlow():
                    return self._make_flow(request, what)
                case frames.BorrowLease():
                    return request.answer(frames.Authority(request.lease_id, self._actor))
                case _:
                    assert_never(what)
        except TenureError as failure:
            return _answer_to_failure(request, failure)

    def enqueue(self, request: HandlerRequest, answer: Callable[[frames.AskAnswer], None]) -> None:
        """Enqueue a handler's job without waiting: many share a transaction. `answer` is called
        once, in whatever thread."""

        def decided(future: "Future[list[Answer]]") -> None:
            try:
                [decision] = future.result()
                answered = self._enqueued(request, decision)
            except Exception as failure:  # handed to the handler that waits, never swallowed
                answered = _answer_to_failure(request, failure)
            answer(answered)

        try:
            submitted = self._coordination.submit_many([self._job(request)])
        except Exception as failure:  # a field is wrong, or the transport failed at once
            answer(_answer_to_failure(request, failure))
        else:
            submitted.add_done_callback(decided)

    # --- jobs and flows ------------------------------------------------------------------------

    def _job(self, request: HandlerRequest) -> FollowUp:
        assert isinstance(request.ask.what, frames.EnqueueJob)
        call, step = request.ask.what.call, request.ask.what.step
        return FollowUp(
            job_id=follow_up_id(request.job_id, kind=call.kind, step=step),
            namespace=self._namespace,
            actor=self._actor,
            parent=request.parent,
            **msgspec.structs.asdict(call),
        )

    def _enqueued(self, request: HandlerRequest, decision: Answer) -> frames.AskAnswer:
        assert isinstance(decision, Reply)
        assert isinstance(request.ask.what, frames.EnqueueJob)
        call, step = request.ask.what.call, request.ask.what.step
        if decision.job is None and decision.cause is None and decision.replayed:
            # The job exists, but the worker's token may not see it. Its id is no secret: it follows
            # from the parent's. [H41]
            hidden = follow_up_id(request.job_id, kind=call.kind, step=step)
            return request.answer(Enqueued(id=hidden, is_new=False))
        key = call.dedupe_key
        if decision.cause is Cause.DEDUPE_KEY_HELD:  # [D6]
            problem = f"a job that the worker's token may not see holds the key {key!a}"
            return _invalid(request, "key", problem, _NEEDS_NO_KEY)
        if decision.job is None or decision.cause is not None:
            return _lost(request, decision.cause or Cause.UNKNOWN_JOB)
        if decision.job.id == request.job_id:
            problem = f"this job holds the key {key!a} itself until it ends"
            return _invalid(request, "key", problem, _NEEDS_NO_KEY)
        is_new = not (decision.replayed or decision.deduplicated)
        return request.answer(Enqueued(id=decision.job.id, is_new=is_new))

    def _make_flow(self, request: HandlerRequest, what: frames.MakeFlow) -> frames.AskAnswer:
        plan, parent = what.plan, request.job_id
        flow = EnqueueFlow(
            flow_id=handler_flow_id(parent, step=plan.step),
            name=plan.name,
            members=tuple(
                FlowMember(
                    job=Enqueue(
                        job_id=handler_member_id(parent, step=plan.step, name=job.name),
                        namespace=self._namespace,
                        actor=self._actor,
                        **msgspec.structs.asdict(job.call),
                    ),
                    step=job.name,
                    after=job.after,
                )
                for job in plan.jobs
            ),
            handler=request.parent,
        )
        reply = self._coordination.execute(flow)
        assert isinstance(reply, Reply)
        if reply.cause is not None:
            return _lost(request, reply.cause)
        return request.answer(not reply.replayed)

    # --- artifacts and parents -----------------------------------------------------------------

    def _store_artifact(
        self, request: HandlerRequest, what: frames.StoreArtifact
    ) -> frames.AskAnswer:
        upload = ArtifactUpload(
            job_id=request.job_id,
            lease_id=request.lease_id,
            actor=self._actor,
            name=what.name,
            body=what.body,
            media_type=what.media_type,
        )
        staging = self._coordination.store.artifacts.stage(upload)
        if staging.problem is not None:
            return _invalid(request, "artifact", staging.problem)
        if staging.cause is Cause.TOO_MANY_ARTIFACTS:
            problem = f"an attempt stores at most {MAX_ARTIFACTS_PER_ATTEMPT}"
            return _invalid(request, "artifact", problem)
        return request.answer(None) if staging.cause is None else _lost(request, staging.cause)

    def _load_parents(self, request: HandlerRequest, what: frames.LoadParents) -> frames.AskAnswer:
        held = LeaseRef(request.job_id, request.lease_id)
        page = self._coordination.store.flows.parents(held, self._actor, after=what.after)
        return request.answer(page) if page.cause is None else _lost(request, page.cause)


def _invalid(request: HandlerRequest, field: str, problem: str, hint: str = "") -> frames.AskAnswer:
    return request.refuse(frames.Refusal(why="invalid", field=field, problem=problem, hint=hint))


def _lost(request: HandlerRequest, cause: Cause) -> frames.AskAnswer:
    return request.refuse(
        frames.Refusal(why="lost", problem=f"the attempt has lost its lease ({cause})")
    )


def _answer_to_failure(request: HandlerRequest, failure: Exception) -> frames.AskAnswer:
    match request.ask.what:
        case frames.StoreArtifact() if isinstance(failure, InvalidInput):
            return _invalid(request, "artifact", str(failure))
        case frames.StoreArtifact() | frames.BorrowLease():
            return request.unavailable(str(failure))
        case frames.LoadParents():
            return request.unavailable(f"the parents could not be read: {failure}")
        case frames.EnqueueJob() | frames.MakeFlow() as made:
            what = "this job" if isinstance(made, frames.EnqueueJob) else "this flow"
        case _:
            assert_never(request.ask.what)
    if isinstance(failure, InvalidInput):
        return _invalid(request, failure.field, failure.problem, failure.hint)
    if isinstance(failure, RequestRefused) and failure.reason == ProblemCode.OUT_OF_SCOPE:
        problem = f"the worker may not enqueue {what}: {failure}"
        return request.refuse(frames.Refusal(why="forbidden", problem=problem))
    return request.unavailable(f"{failure}; another attempt enqueues it under the same id")
