"""What a handler is given: `Context`, and the values that go through it.

Abstract: a worker and the testing package each implement it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from tenure.core.flow_rows import ParentPage, ParentResult
from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.vocabulary import JobStatus
from tenure.errors import InvalidInput
from tenure.handlers.calls import Call, Enqueued
from tenure.handlers.flows import FlowPlan, HandlerFlow

_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)


LoadParents = Callable[[int], ParentPage]
"""Given a position, the parents after it, or the first of them."""

FIRST = -1


class Parents(Mapping[str, Any]):
    """The results of the parents that succeeded, by name, in the order of `after`.

    Nothing is loaded before it is asked for, and then page by page: `ctx.parents["fetch-1"]` reads
    up to that one, a loop all of them. `statuses` has the parents that did not succeed, too.
    """

    def __init__(self, load: LoadParents) -> None:
        self._load = load
        self._found: dict[str, ParentResult] = {}
        self._last = FIRST
        self._is_whole = False

    def _more(self) -> bool:
        """Load the next page. Returns whether there was one."""
        if self._is_whole:
            return False
        page = self._load(self._last)
        self._found.update((parent.step, parent) for parent in page.parents)
        self._last = page.parents[-1].position if page.parents else self._last
        self._is_whole = page.is_last
        return True

    def _whole(self) -> dict[str, ParentResult]:
        while self._more():
            pass
        return self._found

    def __getitem__(self, name: str) -> Any:
        while name not in self._found and self._more():
            pass
        parent = self._found.get(name)
        if parent is None:
            known = ", ".join(list(self._found)[:5]) or "it has none"
            raise KeyError(f"this job has no parent {name!a}; its parents: {known}")
        if parent.result is None:
            raise KeyError(f"the parent {name!a} has no result: it ended as {parent.outcome}")
        return msgspec.json.decode(parent.result)

    def __iter__(self) -> Iterator[str]:
        return (name for name, each in self._whole().items() if each.result is not None)

    def __len__(self) -> int:
        return sum(each.result is not None for each in self._whole().values())

    def __repr__(self) -> str:
        return f"<Parents {', '.join(self._found)}>"

    @property
    def statuses(self) -> dict[str, JobStatus]:
        """How each parent ended, by name."""
        return {
            name: each.outcome for name, each in self._whole().items() if each.outcome is not None
        }


class HandlerTransaction(ABC):
    """A handler's own transaction. The success of the attempt is committed with it."""

    @abstractmethod
    def complete(self, result: _R) -> _R:
        """Set the attempt's result. It is stored when the block ends, in the same transaction."""


class TransactionScope:
    """`with` on a synchronous connection, `async with` on an asynchronous one."""

    def __init__(
        self,
        open_: Callable[[], AbstractContextManager[HandlerTransaction]],
        aopen: Callable[[], AbstractAsyncContextManager[HandlerTransaction]],
    ) -> None:
        self._open = open_
        self._aopen = aopen

    def __enter__(self) -> HandlerTransaction:
        self._opened = self._open()
        return self._opened.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._opened.__exit__(kind, error, traceback)

    async def __aenter__(self) -> HandlerTransaction:
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
    meta: Mapping[str, str]  # what the job was enqueued with: read-only
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

    def flow(self, name: str = "", *, step: str | int = "") -> HandlerFlow:
        """Make jobs that wait for each other: `with ctx.flow() as flow: flow.add(…, after=…)`, or
        `async with` in async code. All attempts of this job together make the flow once. A second
        flow needs a `step`, which must be the same in every attempt. `name` is what others see.
        """
        label = name or " ".join(filter(None, (self.kind, str(step))))
        return HandlerFlow(self.job_id, label, step, self._make_flow)

    @abstractmethod
    def _make_flow(self, plan: FlowPlan) -> bool:
        """Make the flow, and wait until it is stored. Returns whether it was not there before."""

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
