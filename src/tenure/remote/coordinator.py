"""A server's coordinator as workers, clients and operators use it, over HTTP.

A few threads send the requests and fill the futures. Reports and claims are sent once, because a
worker retries them by its own rules; everything else is retried here. The actor of a command is not
sent: the server takes it from the token. [H21]
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import Lock
from typing import TypeVar, assert_never

from tenure.core.checks import MAX_DURATION
from tenure.core.claims import ClaimAnswer, ClaimRequest
from tenure.core.commands import Command
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration
from tenure.core.policy import LeaseBounds
from tenure.core.schedules import (
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    ScheduleCommand,
    ScheduleReply,
    check_schedule_command,
)
from tenure.core.validation import Limits, check_claim, check_commands
from tenure.core.verdicts import Answer
from tenure.errors import Closed
from tenure.ports import NO_WAIT
from tenure.protocol.records import schedule_of
from tenure.protocol.replies import claim_answer
from tenure.protocol.requests import (
    LONGEST_WAIT_S,
    NamespaceQuery,
    RunScheduleMessage,
    claim_message,
    put_schedule_message,
)
from tenure.remote.caller import Call, Caller, NotFound
from tenure.remote.commands import check_sendable, send
from tenure.remote.store import RemoteStore

THREADS = 8
CLAIM_THREADS = 2

# The server's coordinator sets the bounds of leases, and refuses others.
_LIMITS = Limits(lease=LeaseBounds(shortest_us=Duration(0), longest_us=Duration(MAX_DURATION)))

_T = TypeVar("_T")


class RemoteCoordinator:
    """`tenure.ports.Coordination` of a server. Thread-safe; close it when done."""

    def __init__(self, caller: Caller) -> None:
        self.store = RemoteStore(caller)
        self._caller = caller
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tenure-remote")
        self._claims = ThreadPoolExecutor(CLAIM_THREADS, thread_name_prefix="tenure-claims")
        self._sends_itself = Lock()

    def close(self) -> None:
        """Close the connections. Calls under way fail, and their futures say so."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._claims.shutdown(wait=False, cancel_futures=True)
        self._caller.close()

    # --- deciding ------------------------------------------------------------------------------

    def submit_many(self, commands: Sequence[Command]) -> "Future[list[Answer]]":
        """Answers in the order asked. Raises `InvalidInput` at once, before anything is sent."""
        _check(commands)
        asked = tuple(commands)
        return _submitted(self._threads, lambda: send(self._caller, asked))

    def execute_many(self, commands: Sequence[Command]) -> list[Answer]:
        """Submit commands and wait. One caller at a time sends them itself: a thread that does it
        in its place costs a tenth of a millisecond."""
        if not self._sends_itself.acquire(blocking=False):
            return self.submit_many(commands).result()
        try:
            _check(commands)
            return send(self._caller, commands)
        finally:
            self._sends_itself.release()

    def execute(self, command: Command) -> Answer:
        """Submit one command and wait."""
        return self.execute_many([command])[0]

    def change_schedule(self, command: ScheduleCommand) -> ScheduleReply:
        """Send a request about a schedule and wait. The actor is the token's."""
        check_schedule_command(command, _LIMITS)
        try:
            answer = self._caller.ask(_schedule_call(command))
        except NotFound:
            return ScheduleReply(schedule=None)
        return ScheduleReply(schedule=schedule_of(answer.schedule), changed=answer.changed)

    def submit_claim(
        self, request: ClaimRequest, *, wait_us: Duration = NO_WAIT
    ) -> "Future[ClaimAnswer]":
        """Claim jobs; the server waits for some for up to `wait_us`, a minute at most."""
        check_claim(request, _LIMITS)
        wait_s = min(wait_us / MICROSECONDS_PER_SECOND, LONGEST_WAIT_S)
        since = self._caller.hang_ups  # read now: `end_waits` may be called before a thread is free

        def claim() -> ClaimAnswer:
            call = Call(name="claim", message=claim_message(request, wait_s=wait_s))
            reply = self._caller.ask_and_wait(call, wait_s=wait_s, since=since)
            return claim_answer(reply)

        return _submitted(self._claims, claim)

    def end_waits(self) -> None:
        """End the waiting claims. If one was granted jobs meanwhile, its retry receives them or the
        server takes them back. [H35]"""
        self._caller.hang_up_waiting()


def _check(commands: Sequence[Command]) -> None:
    check_commands(commands, _LIMITS)
    check_sendable(commands)


def _schedule_call(command: ScheduleCommand) -> Call:
    parts = {"schedule": str(command.name)}
    query = NamespaceQuery(namespace=command.namespace)
    match command:
        case PutSchedule():
            message = put_schedule_message(command)
            return Call(name="put-schedule", parts=parts, message=message)
        case PauseSchedule():
            return Call(name="pause-schedule", parts=parts, query=query)
        case ResumeSchedule():
            return Call(name="resume-schedule", parts=parts, query=query)
        case RemoveSchedule():
            return Call(name="remove-schedule", parts=parts, query=query)
        case RunSchedule():
            run = RunScheduleMessage(job_id=command.job_id)
            return Call(name="run-schedule", parts=parts, query=query, message=run)
        case _:
            assert_never(command)


def _submitted(threads: ThreadPoolExecutor, work: Callable[[], _T]) -> "Future[_T]":
    """Run `work` on a thread, in the caller's trace. [OB4] [OB6]"""
    try:
        return threads.submit(copy_context().run, work)
    except RuntimeError as closed:
        raise Closed from closed
