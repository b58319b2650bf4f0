"""What a supervisor and its child send each other: frames of msgpack on a socket pair, no pickle.

Frames carry no lease id unless a handler asks for its own: a child knows its attempts by a local
number, so user code that gets hold of the socket can at most spoil the attempts of its own process.
Beside the socket they share one page of memory: which attempt started last.
"""

import mmap
import os
import struct
import tempfile
from typing import Literal

import msgspec

from tenure.clock import Boot
from tenure.core.artifacts import MAX_ARTIFACT_BYTES
from tenure.core.commands import Complete, JobSpec
from tenure.core.ids import Actor, JobId, Kind, LeaseId, QueueName, RequestId, correlated_by
from tenure.core.instants import Duration, Instant
from tenure.core.job import JobError, Progress
from tenure.core.verdicts import Grant
from tenure.handlers.flows import FlowPlan
from tenure.handlers.registry import Isolation
from tenure.protocol.routes import MAX_FLOW_BYTES

READ_BYTES = 64 * 1024  # larger ones are mapped and unmapped by the allocator, each time
FRAME_OVERHEAD_BYTES = 256 * 1024  # what a frame may contain besides one body
SHARED_FRAME_BYTES = 64 * 1024  # what a frame of several messages may have

# --- how a handler ended, as its child saw it: strings travel, never classes --------------------


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """It returned, and this is the result as JSON."""

    result: bytes


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """It raised, or its input or output did not fit."""

    error: JobError
    retry_after_us: Duration = Duration(0)


class Snoozed(msgspec.Struct, frozen=True, tag="snoozed"):
    """It asked to be run again later."""

    delay_us: Duration


class Conflicted(msgspec.Struct, frozen=True, tag="conflicted"):
    """Another system saw a newer fence. The attempt has lost its lease; nothing is reported."""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """It stopped because it was asked to, or because it saw its lease run out."""


FromChild = Returned | Raised | Snoozed | Conflicted | Stopped

# --- frames from the supervisor to a child -------------------------------------------------------


class Setup(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The first frame: what the child serves and within which limits."""

    app: str
    lane: Isolation
    path: tuple[str, ...]
    body_bytes: int
    depth: int
    memory_bytes: int | None = None
    measures_memory: bool = False  # whether to report with each end how much is used


class Run(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Run this attempt; `until` is when its lease ends unless it is renewed."""

    run: int
    job_id: JobId
    kind: Kind
    queue: QueueName
    attempt: int
    fence: int
    correlation_id: str | None
    checkpoint: bytes | None
    payload: bytes
    until: Boot
    trace_id: str | None = None
    scheduled_for: Instant | None = None
    meta: dict[str, str] | None = None

    @property
    def correlated_by(self) -> str:
        """The correlation id that its handler and log lines see. [OB26]"""
        return correlated_by(self.correlation_id, self.job_id)

    @staticmethod
    def of(run: int, grant: Grant, *, until: Boot) -> "Run":
        """The frame for a grant."""
        job = grant.job
        return Run(
            run=run,
            job_id=grant.job_id,
            kind=job.kind,
            queue=job.queue,
            attempt=grant.attempt,
            fence=grant.fence,
            correlation_id=job.correlation_id,
            trace_id=job.trace_id,
            scheduled_for=job.scheduled_for,
            meta=job.meta,
            checkpoint=job.checkpoint,
            payload=job.payload,
            until=until,
        )


class LeaseRenewed(msgspec.Struct, frozen=True, tag=True):
    """The lease now lasts until then."""

    run: int
    until: Boot


class AskToStop(msgspec.Struct, frozen=True, tag=True):
    """Ask the handler to stop, with the reason."""

    run: int
    reason: str


class LeaseLost(msgspec.Struct, frozen=True, tag=True):
    """The attempt has lost its lease: stop it."""

    run: int


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a handler does not get what it asked for, and so which exception it sees."""

    why: Literal["invalid", "lost", "forbidden", "unavailable"]
    problem: str
    field: str = ""  # of what is invalid
    hint: str = ""


class AskAnswer(msgspec.Struct, frozen=True, tag=True):
    """The answer to an `Ask`: a refusal, or a result that the asker knows the type of."""

    run: int
    id: int
    result: msgspec.Raw = msgspec.Raw(b"\xc0")  # None
    refused: Refusal | None = None


class Retire(msgspec.Struct, frozen=True, tag=True):
    """Finish what runs, then exit."""


# --- frames from a child to its supervisor -------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The application is imported; attempts may come."""


class Ended(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An attempt's handler is gone, and this is how it went."""

    run: int
    outcome: FromChild
    rss_bytes: int = 0


class CheckpointSaved(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint for the next attempt."""

    run: int
    checkpoint: bytes


class ProgressMade(msgspec.Struct, frozen=True, tag=True):
    """How far the handler reports to be."""

    run: int
    progress: Progress


class StoreArtifact(msgspec.Struct, frozen=True, tag=True):
    """Store a file with the job. The result: None."""

    name: str
    media_type: str
    body: bytes


class EnqueueJob(msgspec.Struct, frozen=True, tag=True):
    """Enqueue a job that follows from this one. The result: `Enqueued`."""

    call: JobSpec
    step: str


class MakeFlow(msgspec.Struct, frozen=True, tag=True):
    """Make a flow. The result: whether it was not there before."""

    plan: FlowPlan


class LoadParents(msgspec.Struct, frozen=True, tag=True):
    """Load results of the job's parents after this position. The result: `ParentPage`."""

    after: int


class BorrowLease(msgspec.Struct, frozen=True, tag=True):
    """The handler is about to complete its attempt in a transaction of its own. The result:
    `Authority`."""


class Authority(msgspec.Struct, frozen=True):
    """What the supervisor lends a handler that completes itself."""

    lease_id: LeaseId
    actor: Actor


Question = StoreArtifact | EnqueueJob | MakeFlow | LoadParents | BorrowLease


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A handler asks for something and waits for the `AskAnswer` with the same id."""

    run: int
    id: int
    what: Question


class SelfCompleted(msgspec.Struct, frozen=True, tag=True):
    """The handler has committed its attempt's success; the report will be a replay."""

    run: int
    result: bytes


class Printed(msgspec.Struct, frozen=True, tag=True):
    """Output of an attempt that shares its process with others."""

    run: int
    text: str


class LoopBlocked(msgspec.Struct, frozen=True, tag=True):
    """The event loop has not turned for this long; `stack` shows what it is doing."""

    for_us: Duration
    stack: str


ToAttempt = LeaseRenewed | AskToStop | LeaseLost | AskAnswer
ToChild = Setup | Run | ToAttempt | Retire
ToSupervisor = (
    Ready | Ended | CheckpointSaved | ProgressMade | Ask | SelfCompleted | Printed | LoopBlocked
)

# --- what both sides report ----------------------------------------------------------------------


def report_id(lease_id: LeaseId, what: str) -> RequestId:
    """The id of a report. It follows from the lease, so that every retry has the same one."""
    return RequestId(f"{lease_id}:{what}")


def completion(job_id: JobId, lease_id: LeaseId, actor: Actor, result: bytes) -> Complete:
    """The report of a success, by the supervisor or in a handler's own transaction."""
    request_id = report_id(lease_id, "complete")
    return Complete(
        job_id=job_id, lease_id=lease_id, actor=actor, request_id=request_id, result=result
    )


# --- on the socket: lists of messages, each after its length -----------------------------------

_LENGTH = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode
decode_to_child = msgspec.msgpack.Decoder(list[ToChild]).decode
decode_to_supervisor = msgspec.msgpack.Decoder(list[ToSupervisor]).decode


def largest_frame(body_bytes: int) -> int:
    """How large a frame of a child may be."""
    return max(body_bytes, MAX_ARTIFACT_BYTES, MAX_FLOW_BYTES) + FRAME_OVERHEAD_BYTES


class FrameError(Exception):
    """The other side broke the protocol."""


def encode_frame(*messages: ToChild | ToSupervisor) -> bytes:
    """Messages as they go over the socket: in one frame, unless they are large."""
    body = _encode(messages)
    if len(messages) > 1 and len(body) > SHARED_FRAME_BYTES:
        half = len(messages) // 2
        return encode_frame(*messages[:half]) + encode_frame(*messages[half:])
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into frames; refuses frames over the limit before storing them."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()  # the beginning of a frame

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete with this piece."""
        if self._rest:
            self._rest += data
            frames, end = self._cut(self._rest)
            del self._rest[:end]
        else:  # as a rule: whole frames, which need not be copied first
            frames, end = self._cut(data)
            self._rest += data[end:]
        return frames

    def _cut(self, buffer: bytes | bytearray) -> tuple[list[bytes], int]:
        """The complete frames, and where the last of them ends."""
        frames: list[bytes] = []
        start, length = 0, len(buffer)
        while length - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, start)
            if size > self._max_bytes:
                raise FrameError(f"a frame of {size} bytes is over the limit of {self._max_bytes}")
            end = start + _LENGTH.size + size
            if length < end:
                break
            frames.append(bytes(buffer[start + _LENGTH.size : end]))
            start = end
        return frames, start


# --- the page that both share ---------------------------------------------------------------------

_NUMBER = struct.Struct("=q")
_NONE = -1


class BegunMark:
    """The number of the run whose handler was called last. One process writes it, one reads it."""

    def __init__(self, descriptor: int) -> None:
        """The page of this file, which stays open."""
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)

    def write(self, run: int) -> None:
        """The handler of this run is about to be called."""
        _NUMBER.pack_into(self._page, 0, run)

    def clear(self) -> None:
        """No handler was called yet."""
        self.write(_NONE)

    def is_of(self, run: int) -> bool:
        """Whether this run is the last one whose handler was called."""
        return bool(_NUMBER.unpack_from(self._page, 0)[0] == run)

    def close(self) -> None:
        """Let go of the page."""
        self._page.close()


def shared_file() -> int:
    """A file of one page that has no name. Returns its descriptor, which the caller closes."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tenure-begun")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return descriptor
