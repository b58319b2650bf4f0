"""How a child talks to its supervisor: the socket, and answers to what handlers ask."""

import socket
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

import msgspec

from tenure.core.artifacts import MAX_ARTIFACT_BYTES, MAX_ARTIFACTS_PER_ATTEMPT
from tenure.core.checks import check_name
from tenure.core.flow_rows import ParentPage
from tenure.core.ids import (
    JobId,
    follow_up_id,
    handler_flow_id,
)
from tenure.core.validation import Limits, check_body
from tenure.core.vocabulary import Cause
from tenure.errors import (
    Cancelled,
    InvalidInput,
    LeaseConflictError,
    PermanentError,
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
from tenure.protocol.routes import MAX_FLOW_BYTES
from tenure.worker.frames import (
    READ_BYTES,
    ArtifactAnswer,
    ArtifactEnd,
    ArtifactPart,
    FlowEnd,
    FlowPart,
    FollowUpAnswer,
    FollowUpWanted,
    FrameReader,
    ParentsAnswer,
    ParentsWanted,
    ToChild,
    ToSupervisor,
    decode_to_child,
    encode_frame,
)

LEASE_CHECK_S = 0.1


class Channel:
    """The child's end: blocking, any thread may send, one thread receives."""

    def __init__(self, sock: socket.socket, *, max_bytes: int) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._reader = FrameReader(max_bytes=max_bytes)

    def send(self, *messages: ToSupervisor) -> None:
        """Send frames together; those of several threads do not mix."""
        frames = b"".join(map(encode_frame, messages))
        with self._lock:
            self._sock.sendall(frames)

    def receive(self) -> list[ToChild]:
        """The next messages; none when the supervisor is gone."""
        frames: list[bytes] = []
        while not frames:
            try:
                data = self._sock.recv(READ_BYTES)
            except ConnectionError:
                return []
            if not data:
                return []
            frames = self._reader.feed(data)
        return [decode_to_child(frame) for frame in frames]


class Numbered(Protocol):
    """An answer that says which request it is about."""

    @property
    def number(self) -> int:
        """The request's number."""


_A = TypeVar("_A", bound=Numbered)


class Answers(Generic[_A]):
    """The answers to one attempt's requests of one sort. Callers hold a lock of their own."""

    def __init__(self, still_mine: Callable[[], bool]) -> None:
        self._still_mine = still_mine
        self._last_number = 0
        self._heard: SimpleQueue[_A] = SimpleQueue()

    def next_number(self) -> int:
        """The number of the next request."""
        self._last_number += 1
        return self._last_number

    def wait_for(self, number: int) -> _A:
        """The answer to this request; `Cancelled` if the lease is lost before it comes."""
        while True:
            try:
                answer = self._heard.get(timeout=LEASE_CHECK_S)
            except Empty:
                if not self._still_mine():
                    raise Cancelled("the lease is lost") from None
                continue
            if answer.number == number:  # else it answers a request that was given up
                return answer

    def put(self, answer: _A) -> None:
        """The supervisor's answer. Any thread."""
        self._heard.put(answer)


# --- follow-ups and flows ----------------------------------------------------------------------


PART_BYTES = 512 * 1024
"""Of a flow: what is sent from a child to its supervisor at a time."""

_encode_plan = msgspec.msgpack.Encoder().encode

_NEEDS_NO_KEY = "omit key: by its id alone, a job that a handler enqueues is made only once"


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


# --- artifacts ---------------------------------------------------------------------------------


class ArtifactUploads:
    """Sends one artifact of an attempt at a time."""

    def __init__(
        self, run: int, send: Callable[[ToSupervisor], None], still_mine: Callable[[], bool]
    ) -> None:
        self._run = run
        self._send = send
        self._lock = threading.Lock()
        self._answers: Answers[ArtifactAnswer] = Answers(still_mine)

    def send(self, name: str, body: bytes, media_type: str) -> None:
        """Send it and wait until it is stored; raises if it is not."""
        check_name("name", name)
        _check_size(len(body))
        with self._lock:
            number = self._answers.next_number()
            for start in range(0, len(body), PART_BYTES):
                self._send(ArtifactPart(self._run, body[start : start + PART_BYTES]))
            self._send(ArtifactEnd(self._run, number, name, media_type))
            _judge_artifact(self._answers.wait_for(number))

    def heard(self, answer: ArtifactAnswer) -> None:
        """The supervisor's answer."""
        self._answers.put(answer)


def _check_size(size: int) -> None:
    if size > MAX_ARTIFACT_BYTES:
        raise InvalidInput(
            "data",
            f"{size} bytes are over the limit of {MAX_ARTIFACT_BYTES}",
            hint="put it into an object store, and its address into the result",
        )


def _judge_artifact(answer: ArtifactAnswer) -> None:
    if answer.failure:
        raise TransientError(answer.failure, dependency_unavailable=True)
    if answer.problem:
        raise InvalidInput("artifact", answer.problem)
    if answer.cause == Cause.TOO_MANY_ARTIFACTS:
        raise InvalidInput("artifact", f"an attempt stores at most {MAX_ARTIFACTS_PER_ATTEMPT}")
    if answer.cause is not None:
        raise LeaseConflictError(f"the attempt has lost its lease ({answer.cause})")


# --- parents -----------------------------------------------------------------------------------


class ParentPages:
    """Asks for one page at a time. Any thread of the handler."""

    def __init__(
        self, run: int, send: Callable[[ToSupervisor], None], *, still_mine: Callable[[], bool]
    ) -> None:
        self._run = run
        self._send = send
        self._lock = threading.Lock()
        self._answers: Answers[ParentsAnswer] = Answers(still_mine)

    def load(self, after: int) -> ParentPage:
        """The parents after this position; raises if they cannot be had."""
        with self._lock:
            number = self._answers.next_number()
            self._send(ParentsWanted(self._run, number, after))
            answer = self._answers.wait_for(number)
        if answer.failure:
            raise TransientError(answer.failure, dependency_unavailable=True)
        if answer.page.cause is not None:
            raise LeaseConflictError(f"the attempt has lost its lease ({answer.page.cause})")
        return answer.page

    def heard(self, answer: ParentsAnswer) -> None:
        """The supervisor's answer."""
        self._answers.put(answer)
