"""A server's coordinator as workers, clients and operators use it, over HTTP.

A few threads send the requests and fill the futures. Reports and claims are sent once, because a
worker retries them by its own rules; everything else is retried here. A worker's reports, new jobs
and cancels go in batches below the server's limits, every other command in a request of its own.
The jobs of its replies have no bodies: who needs them reads the job.
The actor of a command is not sent: the server takes it from the token. [H21]
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import groupby
from threading import Lock
from typing import Any, TypeVar, assert_never, cast

import msgspec
from msgspec.structs import replace

from tenure.core.checks import MAX_DURATION
from tenure.core.claims import ClaimAnswer, ClaimRequest
from tenure.core.commands import (
    Cancel,
    Command,
    Complete,
    Enqueue,
    EnqueueFlow,
    Fail,
    FollowUp,
    Heartbeat,
    RedriveFlow,
    Release,
    Start,
    WorkerCommand,
)
from tenure.core.ids import JobId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration
from tenure.core.job import Job
from tenure.core.policy import LeaseBounds
from tenure.core.schedules import (
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    Schedule,
    ScheduleCommand,
    ScheduleOutcome,
)
from tenure.core.validation import Limits, check_commands
from tenure.core.verdicts import Answer, Reply, Verdict
from tenure.core.views.job_search import FoundJobs, JobFilter
from tenure.core.vocabulary import Cause
from tenure.errors import Closed, OutcomeUnknown, RequestRefused
from tenure.ports import NO_WAIT
from tenure.protocol import replies, requests
from tenure.protocol.codec import encode
from tenure.protocol.routes import MAX_BATCH_BYTES, route_of
from tenure.protocol.translation import to_core, to_wire
from tenure.remote.caller import Caller, NotFound, RouteCall
from tenure.remote.store import RemoteJobs, RemoteStore

ROOM_BYTES = MAX_BATCH_BYTES - 1024
"""Room for the messages of a batch; the rest of the limit is for what surrounds them."""

_T = TypeVar("_T")


def send(caller: Caller, commands: Sequence[Command]) -> list[Answer]:
    """Send these in order. Returns their answers."""
    answers: list[Answer] = []
    for send_together, alike in groupby(commands, key=lambda each: _TOGETHER.get(type(each))):
        if send_together is not None:
            answers += send_together(caller, list(alike))
        else:
            answers += [_ALONE.get(type(each), _decide)(caller, each) for each in alike]
    return answers


def _ask(
    caller: Caller,
    name: str,
    message: msgspec.Struct,
    *,
    read: Callable[[Any], Reply],
    **parts: str,
) -> Reply:
    """Send a request of its own; a 404 means that the job is unknown."""
    try:
        return read(caller.ask(RouteCall(name=name, parts=parts, message=message)))
    except NotFound:
        return Reply(job=None, cause=Cause.UNKNOWN_JOB)


def _decide(caller: Caller, command: Command) -> Reply:
    route = route_of(command)
    assert route.request is not None
    message = to_wire(route.request, command)
    return _ask(caller, route.name, message, read=replies.reply_of, job_id=command.job_id)


def _follow_up(caller: Caller, command: FollowUp) -> Reply:
    message, parent = requests.follow_up_message(command), command.parent.job_id
    return _ask(caller, "follow-up", message, read=replies.reply_of, job_id=parent)


def _flow(caller: Caller, command: EnqueueFlow) -> Reply:
    message = requests.flow_message(command)
    if command.handler is None:
        return replies.reply_of(caller.ask(RouteCall(name="flow", message=message)))
    return _ask(
        caller,
        "handler-flow",
        message,
        read=lambda reply: Reply(job=None, cause=reply.cause, replayed=reply.replayed),
        job_id=command.handler.job_id,
    )


def _redrive_flow(caller: Caller, command: RedriveFlow) -> Reply:
    def read(reply: replies.FlowRedriveReply) -> Reply:
        jobs = {} if reply.job_id is None else RemoteJobs(caller).read([reply.job_id])
        return replies.flow_redrive_of(command.flow_id, reply, next(iter(jobs.values()), None))

    message = to_wire(requests.RedriveFlowMessage, command)
    return _ask(caller, "redrive-flow", message, read=read, flow_id=command.flow_id)


def _report(caller: Caller, commands: Sequence[WorkerCommand]) -> Iterator[Verdict]:
    """Send reports once: a worker retries them by its own rules."""
    for batch in _batches(requests.report_of(command) for command in commands):
        call = RouteCall(name="report", message=requests.ReportsMessage(reports=batch))
        answers = caller.ask_once(call).verdicts
        _check_count(len(answers), len(batch))
        yield from (to_core(Verdict, each) for each in answers)


def _enqueue(caller: Caller, commands: Sequence[Enqueue]) -> Iterator[Reply]:
    for batch in _batches(to_wire(requests.EnqueueMessage, command) for command in commands):
        call = RouteCall(name="enqueue-many", message=requests.EnqueueManyMessage(jobs=batch))
        yield from _replies(caller, call, len(batch))


def _cancel(caller: Caller, commands: Sequence[Cancel]) -> Iterator[Reply]:
    """Send commands together that differ only in their job. [H90]"""
    for _, group in groupby(commands, key=lambda each: replace(each, job_id=JobId(""))):
        alike = list(group)
        if len(alike) == 1 or _expects_something(alike[0]):
            yield from (_decide(caller, each) for each in alike)
            continue
        for start in range(0, len(alike), requests.MAX_CANCELLED):
            batch = alike[start : start + requests.MAX_CANCELLED]
            call = RouteCall(name="cancel-many", message=requests.cancel_many_message(batch))
            yield from _replies(caller, call, len(batch))


def _expects_something(command: Cancel) -> bool:
    return command.expected_rev is not None or command.expected_status is not None


def _replies(caller: Caller, call: RouteCall, number: int) -> Iterator[Reply]:
    """The answers to a request about this many jobs."""
    answers = caller.ask(call).replies
    _check_count(len(answers), number)
    return map(replies.reply_of, answers)


def _batches(messages: Iterable[_T]) -> Iterator[tuple[_T, ...]]:
    """Split into as few batches as possible, each within the server's limits. The messages of a
    batch are JSON already: they were encoded to know their size."""
    batch: list[msgspec.Raw] = []
    size_bytes = 0
    for message in messages:
        encoded = msgspec.Raw(encode(message))
        if batch and (len(batch) == requests.MAX_BATCH or size_bytes + len(encoded) >= ROOM_BYTES):
            yield cast(tuple[_T, ...], tuple(batch))
            batch, size_bytes = [], 0
        batch.append(encoded)
        size_bytes += len(encoded) + 1
    if batch:
        yield cast(tuple[_T, ...], tuple(batch))


def _check_count(answered: int, sent: int) -> None:
    if answered != sent:
        raise OutcomeUnknown(f"the answer has {answered} parts, but the request has {sent}")


_TOGETHER: dict[type, Callable[[Caller, Any], Iterable[Answer]]] = {
    **dict.fromkeys((Start, Heartbeat, Complete, Fail, Release), _report),
    Enqueue: _enqueue,
    Cancel: _cancel,
}
"""How commands are sent that go in batches."""
_ALONE: dict[type, Callable[[Caller, Any], Reply]] = {
    FollowUp: _follow_up,
    EnqueueFlow: _flow,
    RedriveFlow: _redrive_flow,
}
"""How others are sent that are not about one job by the table of routes."""


THREADS = 8
CLAIM_THREADS = 2

# What fits one request is checked by the server alone. Commands are checked here too: a call may
# take several requests, of which the first would be carried out [J6], and a body that is no JSON
# would break the message around it. The server's coordinator sets the bounds of leases.
_LIMITS = Limits(lease=LeaseBounds(shortest_us=Duration(0), longest_us=Duration(MAX_DURATION)))


class RemoteCoordinator:
    """`tenure.ports.Coordination` of a server. Thread-safe; close it when done."""

    def __init__(self, caller: Caller) -> None:
        self.store = RemoteStore(caller)
        self._caller = caller
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tenure-remote")
        self._claims = ThreadPoolExecutor(CLAIM_THREADS, thread_name_prefix="tenure-claims")
        self._sends_itself = Lock()

    def close(self) -> None:
        """Close the connections. Calls under way fail, and so do their futures."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._claims.shutdown(wait=False, cancel_futures=True)
        self._caller.close()

    # --- reading -------------------------------------------------------------------------------

    def read_jobs(self, ids: Sequence[JobId], *, bodies: bool = True) -> dict[JobId, Job]:
        """The rows of these jobs; the server sweeps them first."""
        return self.store.jobs.read(ids, bodies=bodies)

    def list_jobs(self, wanted: JobFilter) -> FoundJobs:
        """A page of jobs; the server sweeps them first."""
        return self.store.views.jobs(wanted)

    def why_waiting(self, job: Job) -> str | None:
        """The first reason that the server gives, if the caller may ask for it. [OB32]"""
        try:
            reply = self._caller.ask(RouteCall(name="wait-reasons", parts={"job_id": job.id}))
        except RequestRefused:
            return None
        return next((reason.sentence for reason in reply.reasons), None)

    # --- deciding ------------------------------------------------------------------------------

    def submit_many(self, commands: Sequence[Command]) -> "Future[list[Answer]]":
        """Answers in the order asked. Raises `InvalidInput` at once, before anything is sent."""
        check_commands(commands, _LIMITS)
        sent = tuple(commands)
        return _submitted(self._threads, lambda: send(self._caller, sent))

    def execute_many(self, commands: Sequence[Command]) -> list[Answer]:
        """Submit commands and wait. One caller at a time sends them itself: a thread that does it
        in its place costs a tenth of a millisecond."""
        if not self._sends_itself.acquire(blocking=False):
            return self.submit_many(commands).result()
        try:
            check_commands(commands, _LIMITS)
            return send(self._caller, commands)
        finally:
            self._sends_itself.release()

    def execute(self, command: Command) -> Answer:
        """Submit one command and wait."""
        return self.execute_many([command])[0]

    def change_schedule(self, command: ScheduleCommand) -> ScheduleOutcome:
        """Send a request about a schedule and wait. The actor is the token's."""
        try:
            answer = self._caller.ask(_schedule_call(command))
        except NotFound:
            return ScheduleOutcome(schedule=None)
        return ScheduleOutcome(schedule=to_core(Schedule, answer.schedule), changed=answer.changed)

    def submit_claim(
        self, request: ClaimRequest, *, wait_us: Duration = NO_WAIT
    ) -> "Future[ClaimAnswer]":
        """Claim jobs; the server waits for some for up to `wait_us`, a minute at most."""
        wait_s = min(wait_us / MICROSECONDS_PER_SECOND, requests.LONGEST_WAIT_S)
        since = self._caller.hang_ups  # read now: `end_waits` may be called before a thread is free

        def claim() -> ClaimAnswer:
            call = RouteCall(name="claim", message=requests.claim_message(request, wait_s=wait_s))
            reply = self._caller.ask_and_wait(call, wait_s=wait_s, since=since)
            return replies.claim_answer(reply)

        return _submitted(self._claims, claim)

    def end_waits(self) -> None:
        """End the waiting claims. If one was granted jobs meanwhile, its retry receives them or the
        server takes them back. [H35]"""
        self._caller.hang_up_waiting()


def _schedule_call(command: ScheduleCommand) -> RouteCall:
    parts = {"schedule": str(command.name)}
    query = requests.NamespaceQuery(namespace=command.namespace)
    match command:
        case PutSchedule():
            message = to_wire(requests.PutScheduleMessage, command)
            return RouteCall(name="put-schedule", parts=parts, message=message)
        case RunSchedule():
            run = requests.RunScheduleMessage(job_id=command.job_id)
            return RouteCall(name="run-schedule", parts=parts, query=query, message=run)
        case PauseSchedule() | ResumeSchedule() | RemoveSchedule():
            word = type(command).__name__.removesuffix("Schedule").lower()
            return RouteCall(name=f"{word}-schedule", parts=parts, query=query)
        case _:
            assert_never(command)


def _submitted(threads: ThreadPoolExecutor, work: Callable[[], _T]) -> "Future[_T]":
    """Run `work` on a thread, in the caller's trace. [OB4] [OB6]"""
    try:
        return threads.submit(copy_context().run, work)
    except RuntimeError as closed:
        raise Closed from closed
