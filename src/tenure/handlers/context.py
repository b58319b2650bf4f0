"""What a handler is given: `Context`, and the values that go through it.

Abstract: a worker and the testing package each implement it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.instants import Duration, Instant
from tenure.core.policy import DeadLetterJob, Policy
from tenure.errors import InvalidInput
from tenure.handlers.parents import Parents

_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an enqueue says about a job, except its id."""

    kind: Kind
    queue: QueueName
    payload: bytes
    priority: int = 0
    delay_us: Duration = Duration(0)
    run_at: Instant | None = None
    expires_us: Duration | None = None
    on_dead_letter: DeadLetterJob | None = None
    dedupe_key: str | None = None
    unique_for_us: Duration | None = None
    concurrency_key: str | None = None
    concurrency_group: str | None = None
    rate_key: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    policy: Policy = Policy()


class Call(Generic[_R_co]):
    """A call of a job function, checked and encoded but not sent: for `app.enqueue_many` and
    `ctx.enqueue`.

    Calls are equal if they ask for the same job, whatever id it would get. `_R_co` is what the
    function returns.
    """

    __slots__ = ("has_chosen_id", "job_id", "spec")

    def __init__(self, spec: JobSpec, job_id: JobId, *, has_chosen_id: bool = False) -> None:
        self.spec = spec
        self.job_id = job_id
        """The id of the job that `enqueue_many` makes: sending a call twice makes one job."""
        self.has_chosen_id = has_chosen_id
        """Whether the caller chose the id; `ctx.enqueue` takes no such call. [D8]"""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and other._asked() == self._asked()

    def __hash__(self) -> int:
        return hash(self._asked())

    def _asked(self) -> tuple[JobSpec, JobId | None]:
        return self.spec, self.job_id if self.has_chosen_id else None

    def __repr__(self) -> str:
        return f"<Call of {self.spec.kind}, job {self.job_id}>"


class Enqueued(msgspec.Struct, frozen=True):
    """A job that a handler enqueued; `app.get(enqueued.id)` is a handle on it."""

    id: JobId
    is_new: bool
    """Whether this call made the job. If not, an earlier attempt did, or a job has the key."""


class Transaction(ABC):
    """A handler's own transaction. The success of the attempt is committed with it."""

    @abstractmethod
    def complete(self, result: _R) -> _R:
        """Set the attempt's result. It is stored when the block ends, in the same transaction."""


class TransactionScope:
    """`with` on a synchronous connection, `async with` on an asynchronous one."""

    def __init__(
        self,
        open_: Callable[[], AbstractContextManager[Transaction]],
        aopen: Callable[[], AbstractAsyncContextManager[Transaction]],
    ) -> None:
        self._open = open_
        self._aopen = aopen

    def __enter__(self) -> Transaction:
        self._opened = self._open()
        return self._opened.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._opened.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Transaction:
        self._aopened = self._aopen()
        return await self._aopened.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._aopened.__aexit__(kind, error, traceback)


class Context(ABC):
    """The attempt that a handler runs in. The worker passes it to the parameter so annotated."""

    job_id: JobId
    kind: Kind
    queue: QueueName
    attempt: int
    fence: int
    correlation_id: str  # the job's own id if it was given none
    trace_id: str | None  # as the job has it: a traceparent, or any label of the producer's
    traceparent: str | None  # W3C's, to send to services that the handler calls
    scheduled_for: datetime | None  # the nominal time, in UTC, of a job that a schedule made
    checkpoint: Any  # what the last attempt saved, decoded; None at first

    @abstractmethod
    def check(self) -> None:
        """Raise `Cancelled` if the job should stop or the lease is lost."""

    @abstractmethod
    def still_mine(self) -> bool:
        """Whether the lease is, as far as this worker knows, still valid."""

    @abstractmethod
    def save(self, checkpoint: Any) -> None:
        """Store a checkpoint for the next attempt. Sent at once, then at most once a second."""

    @abstractmethod
    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Report how far the job is."""

    @abstractmethod
    def log(self, message: str) -> None:
        """Write a line to the attempt's output."""

    @abstractmethod
    def artifact(self, name: str, data: bytes | str, *, media_type: str | None = None) -> None:
        """Store a file with the job. Others see it when this attempt has succeeded."""

    async def aartifact(
        self, name: str, data: bytes | str, *, media_type: str | None = None
    ) -> None:
        """Store a file with the job, without blocking the event loop."""
        await asyncio.to_thread(self.artifact, name, data, media_type=media_type)

    @abstractmethod
    def enqueue(self, call: Call[Any], *, step: str | int = "") -> Enqueued:
        """Enqueue a job that follows from this one: `ctx.enqueue(function.call(argument))`.

        All attempts of this job together make one such job: a later attempt gets the existing job,
        even if it gives other arguments. A second job of the same kind needs a `step`, which must
        be the same in every attempt.
        """

    async def aenqueue(self, call: Call[Any], *, step: str | int = "") -> Enqueued:
        """Enqueue a job that follows from this one, without blocking the event loop."""
        return await asyncio.to_thread(self.enqueue, call, step=step)

    @property
    @abstractmethod
    def parents(self) -> Parents:
        """What the jobs that this one waited for returned, by name; empty if it waited for none.
        Loaded when it is asked for."""

    @abstractmethod
    def transaction(self, connection: Any) -> TransactionScope:
        """Complete the attempt in a transaction of your own: both are committed, or neither."""


def file_of(data: bytes | str, media_type: str | None) -> tuple[bytes, str]:
    """An artifact's body and media type."""
    if isinstance(data, str):
        try:
            return data.encode(), media_type or "text/plain; charset=utf-8"
        except UnicodeEncodeError as wrong:
            raise InvalidInput("data", f"cannot be encoded in UTF-8: {wrong.reason}") from wrong
    if not isinstance(data, bytes):
        raise InvalidInput("data", f"{type(data).__name__} is neither bytes nor str")
    return data, media_type or "application/octet-stream"
