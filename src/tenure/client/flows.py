"""Flows: jobs that wait for other jobs, made together when a block ends.

Nothing is sent before the end of the block, and then all of it in one transaction. A block that
raises sends nothing. A flow that is wrong is refused before anything is written. [FL3]
"""

from collections.abc import Sequence
from typing import Any, Self, TypeVar

from tenure.client.channel import Channel
from tenure.client.functions import Sender
from tenure.client.jobs import Job, cancel_fields, ending, refusal, submitting_each
from tenure.client.shells import Operation, arun, awaiting, blocking, run
from tenure.core.checks import check_integer, check_job_id
from tenure.core.commands import Cancel, EnqueueFlow, FlowMember, RedriveFlow
from tenure.core.flow_rows import FlowRedrive, FlowView, in_order
from tenure.core.ids import FlowId, JobId, RequestId
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause, JobStatus
from tenure.errors import Conflict, InvalidInput, UnknownJob, UnreadableRow
from tenure.handlers.calls import Call, checked_call
from tenure.handlers.flows import After, FlowBuilder, FlowJob
from tenure.handlers.options import Span, naming_options, plain
from tenure.protocol.replies import FlowRecord, FlowReply, flow_reply, flow_summary_record
from tenure.protocol.requests import MAX_PAGE

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Flow(FlowBuilder):
    """Jobs that wait for each other. `with app.flow("name") as flow:` sends them at its end."""

    def __init__(self, sender: Sender, name: str, connection: Any = None) -> None:
        super().__init__(FlowId(sender.channel.new_job_id()), name)
        self._sender = sender
        self._channel = sender.channel
        self._connection = connection

    def _job_id(self, call: Call[Any], name: str) -> JobId:
        return call.job_id

    # --- sending -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            run(self.sending())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await arun(self.sending())

    def sending(self) -> Operation[Self]:
        """Send all jobs in one transaction. A flow without jobs sends nothing."""
        self._is_sent = True
        if not self._jobs:
            return self
        command = EnqueueFlow(
            flow_id=self.id,
            name=self.name,
            members=tuple(
                FlowMember(job=self._sender.command(job.call), step=job.name, after=job.after)
                for job in self._jobs
            ),
        )
        with naming_options():
            [answer] = yield from self._sender.submitting([command], self._connection)
        assert isinstance(answer, Reply)
        if answer.cause is not None:
            raise refusal(command.job_id, answer)
        return self

    # --- waiting -------------------------------------------------------------------------------

    def job(self, job: FlowJob[R]) -> Job[R]:
        """A handle on one of its jobs."""
        return Job(self._channel, job.id, decode=self._sender.decode)

    @blocking
    def result(self, job: FlowJob[R], timeout: Span | None = None) -> Operation[R]:
        """Wait for one of its jobs and return what its function returned; see `Job.result`."""
        self._check_sent()
        return self.job(job)._resulting(timeout)

    aresult = awaiting(result)

    @blocking
    def wait(self, timeout: Span | None = None) -> Operation[dict[str, JobStatus]]:
        """Wait until every job has ended, and return their statuses by name. Raises `WaitTimeout`
        if they have not ended in time, and `UnknownJob` if one was purged or never committed."""
        self._check_sent()
        ended = yield from ending(self._channel, [job.id for job in self._jobs], timeout)
        return {job.name: ended[job.id].status for job in self._jobs}

    await_end = awaiting(wait, name="await_end")

    def _check_sent(self) -> None:
        if not self._is_sent:
            raise InvalidInput(
                "flow", "has not been sent", hint="it is sent when its block ends; ask after it"
            )

    @blocking
    def redrive(self) -> Operation[int]:
        """Replace the jobs that did not succeed by new ones, which wait for the same jobs or for
        what replaces these. Returns how many there are; from now on `wait`, `result` and `job` are
        about them. Raises `Conflict` if a job has not ended, or if all of them succeeded."""
        self._check_sent()
        made = yield from redriving(self._channel, self.id)
        view = yield from loading_flow(self._channel, self.id)
        current = {step.step: step.job_id for step in view.current}
        for job in self._jobs:
            job.id = current.get(job.name, job.id)
        return made.jobs

    aredrive = awaiting(redrive)


# --- shorthands ----------------------------------------------------------------------------------


def chain_of(flow: Flow, calls: Sequence[Call[Any]]) -> Flow:
    """Add these so that each waits for the one before it."""
    last: tuple[After, ...] = ()
    for call in calls:
        checked_call(call, example="app.chain(first.call(argument, …), second.call())")
        last = (flow.add(call, after=last),)
    return flow


# --- operators -----------------------------------------------------------------------------------


class Flows:
    """List flows, show one with its jobs, wait for it, cancel it, redrive it: `app.flows`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @blocking
    def ls(self, *, limit: int = 50, before: str | None = None) -> Operation[list[FlowRecord]]:
        """Flows, newest first; `before` is the last id of the previous page."""
        check_integer("limit", limit, low=1, high=MAX_PAGE)
        last = None if before is None else _flow_id(before)
        namespace = self._channel.namespace
        found = yield from self._channel.asking(
            lambda store: store.flows.page(namespace, before=last, limit=limit)
        )
        return [flow_summary_record(each) for each in found]

    als = awaiting(ls)

    @blocking
    def show(self, flow_id: str) -> Operation[FlowReply]:
        """A flow with its jobs, what each waits for and replaces, and its redrives."""
        return flow_reply((yield from loading_flow(self._channel, _flow_id(flow_id))))

    ashow = awaiting(show)

    @blocking
    def wait(self, flow_id: str, timeout: Span | None = None) -> Operation[FlowReply]:
        """Wait until every job of a flow has ended, and show the flow. Raises `WaitTimeout` if they
        have not ended in time. Jobs that the token may not see are not waited for: their number is
        `hidden`."""
        view = yield from loading_flow(self._channel, _flow_id(flow_id))
        yield from ending(self._channel, [step.job_id for step in view.current], timeout)
        return flow_reply((yield from loading_flow(self._channel, view.flow.id)))

    await_end = awaiting(wait, name="await_end")

    def cancel(
        self, flow_id: str, *, hard: bool = False, reason: str = "", request_id: str | None = None
    ) -> FlowReply:
        """Cancel every job of a flow that has not ended, and show the flow. Handlers of running
        jobs are asked to stop; `hard` does not wait for them. Raises `UnreadableRow` or `Conflict`
        for the first job that could not be cancelled, after all others were; its `__cause__` has
        all of these. Safe to repeat."""
        channel = self._channel
        view = run(loading_flow(channel, _flow_id(flow_id)))
        asked_as = channel.new_request_id() if request_id is None else RequestId(plain(request_id))
        fields = cancel_fields(channel, hard=hard, reason=reason)
        live = in_order([step for step in view.steps if not step.status.is_terminal])
        commands = [
            Cancel(job_id=step.job_id, request_id=asked_as, **fields)
            for step in live[::-1]  # children first: a parent's end must not start them [FL14]
        ]
        answers = run(submitting_each(channel, commands))
        failures = [
            answer if isinstance(answer, UnreadableRow) else refusal(each.job_id, answer)
            for each, answer in zip(commands, answers, strict=True)
            if isinstance(answer, UnreadableRow) or answer.cause not in (None, Cause.JOB_FINISHED)
        ]
        if failures:
            raise failures[0] from ExceptionGroup("not cancelled", failures)
        return self.show(view.flow.id)

    acancel = awaiting(cancel)

    @blocking
    def redrive(self, flow_id: str, *, request_id: str | None = None) -> Operation[FlowReply]:
        """Replace the jobs of a flow that did not succeed by new ones, which wait for the same jobs
        or for what replaces these. Raises `Conflict` if a job has not ended, or if all succeeded. A
        repeated request, under the same `request_id`, makes nothing."""
        wanted = _flow_id(flow_id)
        yield from redriving(self._channel, wanted, request_id)
        return flow_reply((yield from loading_flow(self._channel, wanted)))

    aredrive = awaiting(redrive)


def _flow_id(flow_id: str) -> FlowId:
    wanted = plain(flow_id).lower()
    check_job_id("flow_id", wanted)
    return FlowId(wanted)


def loading_flow(channel: Channel, flow_id: FlowId) -> Operation[FlowView]:
    """A flow of this namespace; `UnknownJob` if there is none."""
    found = yield from channel.asking(lambda store: store.flows.load(channel.namespace, flow_id))
    if found is None:
        raise UnknownJob(flow_id, noun="flow")
    return found


def redriving(
    channel: Channel, flow_id: FlowId, request_id: str | None = None
) -> Operation[FlowRedrive]:
    """Redrive a flow; raises why it is refused."""
    asked_as = channel.new_request_id() if request_id is None else RequestId(plain(request_id))
    command = RedriveFlow(
        flow_id=flow_id,
        namespace=channel.namespace,
        actor=channel.operator,
        request_id=asked_as,
    )
    [answer] = yield from channel.submitting([command])
    assert isinstance(answer, Reply)
    if answer.cause is Cause.UNKNOWN_JOB:
        raise UnknownJob(flow_id, noun="flow")
    if answer.cause is not None:
        hint = _WHY_NOT_REDRIVEN.get(answer.cause, "the coordinator refused it")
        raise Conflict(job_id=flow_id, cause=answer.cause, status=None, hint=hint, noun="flow")
    assert answer.redrive is not None
    return answer.redrive


_WHY_NOT_REDRIVEN = {
    Cause.NOT_FINISHED: "a job of it has not ended; wait for the flow, or cancel it",
    Cause.NOTHING_TO_REDRIVE: "all of its jobs succeeded",
    Cause.JOBS_PURGED: "some of its jobs, or of those they waited for, were purged; make it again",
    Cause.COMPENSATION_PENDING: "a job of it has a compensation that has not ended; wait for that",
}
