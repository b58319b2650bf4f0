"""A context to call a job function with directly, in a plain unit test."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from tenure.core.flow_rows import ParentPage, ParentResult
from tenure.core.ids import (
    DEFAULT_QUEUE,
    ENTROPY_BYTES,
    Epoch,
    JobId,
    Kind,
    QueueName,
    correlated_by,
    fence,
    follow_up_id,
    handler_flow_id,
    new_job_id,
    traceparent_of,
)
from tenure.core.instants import Instant
from tenure.core.job import Progress
from tenure.core.vocabulary import JobStatus
from tenure.errors import Cancelled, LeaseConflictError
from tenure.handlers.calls import Call, Enqueued, already_enqueued, already_made, checked_follow_up
from tenure.handlers.context import Context, HandlerTransaction, Parents, TransactionScope, file_of
from tenure.handlers.flows import FlowPlan
from tenure.handlers.json_values import encode
from tenure.handlers.options import meta_from
from tenure.own_transaction.connections import async_transaction_block, transaction_block

_R = TypeVar("_R")


class FakeContext(Context):
    """Remembers what the handler saved, reported and logged; can cancel it."""

    def __init__(
        self,
        *,
        kind: str = "test",
        queue: str = DEFAULT_QUEUE,
        attempt: int = 1,
        checkpoint: Any = None,
        correlation_id: str | None = None,
        trace_id: str | None = None,
        traceparent: str | None = None,
        meta: Mapping[str, str] | None = None,
        scheduled_for: datetime | None = None,
        parents: Mapping[str, Any] | None = None,
    ) -> None:
        self.job_id: JobId = new_job_id(Instant(0), bytes(ENTROPY_BYTES))
        self.kind = Kind(kind)
        self.queue = QueueName(queue)
        self.attempt = attempt
        self.fence = fence(Epoch(1), attempt)
        self.correlation_id = correlated_by(correlation_id, self.job_id)
        self.trace_id = traceparent if trace_id is None else trace_id
        self.traceparent = traceparent_of(trace_id) if traceparent is None else traceparent
        self.meta = MappingProxyType(meta_from("meta", meta or {}) or {})
        self.scheduled_for = scheduled_for
        self.checkpoint = checkpoint
        self.saved: list[Any] = []
        self.progressed: list[Progress] = []
        self.logged: list[str] = []
        self.completed: list[Any] = []
        self.artifacts: dict[str, bytes] = {}
        self.enqueued: list[Call[Any]] = []
        self.flows: list[FlowPlan] = []
        self._enqueued_ids: set[str] = set()
        self._reason: str | None = None
        self._is_lost = False
        self._parents = dict(parents or {})

    def cancel(self, reason: str = "cancelled by the test") -> None:
        """Cancel the job: from now on `check` raises."""
        self._reason = reason

    def lose(self) -> None:
        """Lose the lease: from now on `check` raises and `still_mine` is False."""
        self._is_lost = True

    def check(self) -> None:
        """Raise `Cancelled` after `cancel` or `lose`."""
        if self._reason is not None:
            raise Cancelled(self._reason)
        if self._is_lost:
            raise Cancelled("the lease is lost")

    def still_mine(self) -> bool:
        """Whether the lease was not lost."""
        return not self._is_lost

    def save(self, checkpoint: Any) -> None:
        """Remember a checkpoint. Raises for one that a real job would refuse."""
        encode(checkpoint, what="checkpoint")
        self.saved.append(checkpoint)

    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Remember the progress."""
        self.progressed.append(Progress(done=done, total=total, note=note))

    def log(self, message: str) -> None:
        """Remember a line."""
        self.logged.append(message)

    def artifact(self, name: str, data: bytes | str, *, media_type: str | None = None) -> None:
        """Remember a file by its name."""
        self.artifacts[name] = file_of(data, media_type)[0]

    def enqueue(self, call: Call[Any], *, step: str | int = "") -> Enqueued:
        """Remember a call. Returns the job id that a worker would give it."""
        self._refuse_if_lost()
        spec, step = checked_follow_up(call, step)
        job_id = follow_up_id(self.job_id, kind=spec.kind, step=step)
        if job_id in self._enqueued_ids:
            raise already_enqueued(spec, step)
        self._enqueued_ids.add(job_id)
        self.enqueued.append(call)
        return Enqueued(job_id, is_new=True)

    def _make_flow(self, plan: FlowPlan) -> bool:
        """Remember a flow. It may be one that a worker would refuse."""
        self._refuse_if_lost()
        flow_id = handler_flow_id(self.job_id, step=plan.step)
        if flow_id in self._enqueued_ids:
            raise already_made(plan.step)
        self._enqueued_ids.add(flow_id)
        self.flows.append(plan)
        return True

    @cached_property
    def parents(self) -> Parents:
        """The results that the context was given."""
        found = [
            ParentResult(position, step, JobStatus.SUCCEEDED, encode(value, what="parents"))
            for position, (step, value) in enumerate(self._parents.items())
        ]
        return Parents(lambda after: ParentPage(parents=tuple(found[after + 1 :])))

    def transaction(self, connection: Any) -> TransactionScope:
        """A real transaction on the connection. Remembers its result once it is committed."""
        return TransactionScope(lambda: self._within(connection), lambda: self._awithin(connection))

    @contextmanager
    def _within(self, connection: Any) -> Iterator[HandlerTransaction]:
        transaction = _FakeTransaction()
        with transaction_block(connection):
            yield transaction
            self._refuse_if_lost()
        self.completed += transaction.results

    @asynccontextmanager
    async def _awithin(self, connection: Any) -> AsyncIterator[HandlerTransaction]:
        transaction = _FakeTransaction()
        async with async_transaction_block(connection):
            yield transaction
            self._refuse_if_lost()
        self.completed += transaction.results

    def _refuse_if_lost(self) -> None:
        if self._is_lost:
            raise LeaseConflictError("the attempt has lost its lease")


class _FakeTransaction(HandlerTransaction):
    def __init__(self) -> None:
        self.results: list[Any] = []

    def complete(self, result: _R) -> _R:
        encode(result, what="result")
        self.results.append(result)
        return result
