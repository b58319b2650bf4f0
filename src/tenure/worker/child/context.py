"""The context of one attempt, inside its child: what `handlers.Context` promises.

Knows the lease only by the instant it ends, on the clock that child and supervisor share; so a
handler notices a lost lease even while its supervisor is stopped or gone.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar, assert_never

import msgspec

from tenure.clock import boot_now
from tenure.core.artifacts import MAX_ARTIFACT_BYTES
from tenure.core.checks import MAX_EXACT_INTEGER, MAX_TEXT, check_name
from tenure.core.commands import Complete
from tenure.core.flow_rows import ParentPage
from tenure.core.ids import follow_up_id, handler_flow_id, traceparent_of
from tenure.core.job import Progress
from tenure.core.validation import Limits, check_body
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import Stage, VerdictKind
from tenure.errors import (
    Cancelled,
    InvalidInput,
    LeaseConflictError,
    TransientError,
    ValidationError,
)
from tenure.handlers.calls import (
    Call,
    Enqueued,
    already_enqueued,
    already_made,
    checked_follow_up,
)
from tenure.handlers.context import Context, HandlerTransaction, Parents, TransactionScope, file_of
from tenure.handlers.flows import FlowPlan
from tenure.handlers.json_values import encode
from tenure.handlers.registry import Handler
from tenure.ports import Transactions
from tenure.protocol.fields import optional_moment
from tenure.protocol.routes import MAX_FLOW_BYTES
from tenure.worker import frames
from tenure.worker.child.asks import Asks
from tenure.worker.child.error_texts import clean

_R = TypeVar("_R")


class AttemptContext(Context):
    """Given to the handler; the child's listener passes on what the supervisor sends."""

    def __init__(
        self,
        run: frames.Run,
        *,
        send: Callable[[frames.ToSupervisor], None],
        limits: Limits,
        transactions: Transactions | None = None,
    ) -> None:
        self.job_id = run.job_id
        self.kind = run.kind
        self.queue = run.queue
        self.attempt = run.attempt
        self.fence = run.fence
        self.correlation_id = run.correlated_by
        self.trace_id = run.trace_id
        self.traceparent = traceparent_of(run.trace_id)
        self.meta = MappingProxyType(run.meta or {})
        self.scheduled_for = optional_moment(run.scheduled_for)
        self.checkpoint = None  # decoded at stage `fetch`
        self._run = run.run
        self._send = send
        self._limits = limits
        self._until = run.until
        self._reason: str | None = None
        self._is_lost = False
        self._on_stop: Callable[[], object] | None = None
        self._is_in_transaction = False
        self.fault: tuple[Exception, Stage] | None = None  # our error, and its stage
        self._transactions = transactions
        self._handler: Handler | None = None
        self.result: bytes | None = None  # committed in the handler's own transaction

    @cached_property
    def _asks(self) -> Asks:
        return Asks(self._run, self._send, self.still_mine)

    # --- for the handler -----------------------------------------------------------------------

    def check(self) -> None:
        """Raise `Cancelled` if the job should stop or the lease is lost."""
        if self._reason is not None:
            raise Cancelled(self._reason)
        if not self.still_mine():
            raise Cancelled("the lease is lost")

    def still_mine(self) -> bool:
        """Whether the lease is, as far as this worker knows, still valid."""
        return not self._is_lost and boot_now() < self._until

    def save(self, checkpoint: Any) -> None:
        """Store a checkpoint for the next attempt; raises if it is too large or not JSON."""
        body = encode(checkpoint, what="checkpoint")
        check_body("checkpoint", body, self._limits)
        self._send(frames.CheckpointSaved(self._run, body))

    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Report how far the job is."""
        counts = [min(max(int(count), 0), MAX_EXACT_INTEGER) for count in (done, total or 0)]
        made = Progress(
            done=counts[0],
            total=None if total is None else counts[1],
            note=clean(note, most=MAX_TEXT),
        )
        self._send(frames.ProgressMade(self._run, made))

    def log(self, message: str) -> None:
        """Add a line to the attempt's output."""
        sys.stderr.write(message.rstrip("\n") + "\n")
        sys.stderr.flush()

    def artifact(self, name: str, data: bytes | str, *, media_type: str | None = None) -> None:
        """Store a file with the job; returns when it is stored."""
        try:
            body, kind = file_of(data, media_type)
            check_name("name", name)
            if len(body) > MAX_ARTIFACT_BYTES:
                raise InvalidInput(
                    "data",
                    f"{len(body)} bytes are over the limit of {MAX_ARTIFACT_BYTES}",
                    hint="put it into an object store, and its address into the result",
                )
            self._asks.ask(frames.StoreArtifact(name, kind, body), None)
        except (InvalidInput, TransientError) as error:
            self._failed(error, Stage.OUTPUT)
            raise

    def enqueue(self, call: Call[Any], *, step: str | int = "") -> Enqueued:
        """Enqueue a job that follows from this one, once however often this one is attempted."""
        if self._is_in_transaction:
            raise InvalidInput(
                "enqueue",
                "within ctx.transaction the job would not be part of the transaction",
                hint="use function.using(connection=…).enqueue(…) with the same connection, or"
                " enqueue before the block",
            )
        spec, step = checked_follow_up(call, step)
        # A frame has room for one body: a larger one would end this process, not only this call.
        check_body("payload", spec.payload, self._limits)
        made_id = follow_up_id(self.job_id, kind=spec.kind, step=step)
        twice = already_enqueued(spec, step)
        return self._asks.ask_once(made_id, twice, frames.EnqueueJob(spec, step), Enqueued)

    def _make_flow(self, plan: FlowPlan) -> bool:
        if self._is_in_transaction:
            raise InvalidInput(
                "flow",
                "within ctx.transaction the flow would not be part of the transaction",
                hint="use app.flow(…, connection=…) with the same connection, or make the flow"
                " before the block",
            )
        for each in plan.jobs:
            check_body("payload", each.call.payload, self._limits)
        size_bytes = len(msgspec.msgpack.encode(plan))
        if size_bytes > MAX_FLOW_BYTES:
            raise InvalidInput(
                "flow",
                f"{size_bytes} bytes are over the limit of {MAX_FLOW_BYTES}",
                hint="make several flows, or give the jobs smaller arguments",
            )
        made_id = handler_flow_id(self.job_id, step=plan.step)
        return self._asks.ask_once(made_id, already_made(plan.step), frames.MakeFlow(plan), bool)

    @cached_property
    def parents(self) -> Parents:
        """What the jobs that this one waited for returned, by name."""
        return Parents(lambda after: self._asks.ask(frames.LoadParents(after), ParentPage))

    def transaction(self, connection: Any) -> TransactionScope:
        """Complete the attempt in a transaction of the handler's own."""
        transactions = self._transactions
        if transactions is None:
            raise InvalidInput(
                "transaction",
                "this application has no database that handlers can share",
                hint="return the result instead",
            )
        if self.result is not None:
            raise InvalidInput("transaction", "this attempt is already completed")
        return TransactionScope(
            lambda: self._transact(transactions, connection),
            lambda: self._atransact(transactions, connection),
        )

    # --- its transaction: the application's coordinator decides, on the handler's connection ---

    @contextmanager
    def _transact(
        self, transactions: Transactions, connection: Any
    ) -> Iterator[HandlerTransaction]:
        authority = self._asks.authority()
        with self._in_transaction() as transaction, transactions.transaction_on(connection) as end:
            yield transaction
            transaction.judge(end(self._completion(authority, transaction)))
        self._settled(transaction.result)

    @asynccontextmanager
    async def _atransact(
        self, transactions: Transactions, connection: Any
    ) -> AsyncIterator[HandlerTransaction]:
        authority = await asyncio.to_thread(self._asks.authority)
        with self._in_transaction() as transaction:
            async with transactions.atransaction_on(connection) as end:
                yield transaction
                transaction.judge(await end(self._completion(authority, transaction)))
        self._settled(transaction.result)

    def _completion(
        self, authority: frames.Authority, transaction: "AttemptTransaction"
    ) -> Complete:
        """The report of the success, under the request id that the supervisor will use: so the
        supervisor's report is a replay."""
        result = transaction.result
        transaction.is_ending = True
        return frames.completion(self.job_id, authority.lease_id, authority.actor, result)

    @contextmanager
    def _in_transaction(self) -> Iterator["AttemptTransaction"]:
        transaction = AttemptTransaction(self.encode_result)
        self._is_in_transaction = True
        try:
            yield transaction
        except Exception as error:
            if transaction.is_ending:  # the handler's part was done
                self._failed(error, Stage.COMMIT)
            raise
        finally:
            self._is_in_transaction = False

    def _settled(self, result: bytes) -> None:
        """Committed: from here on the attempt has succeeded, whatever the handler still does."""
        self.result = result
        self._send(frames.SelfCompleted(self._run, result))

    # --- for the child -------------------------------------------------------------------------

    def encode_result(self, value: Any) -> bytes:
        """The result as JSON by its annotation, within the limits."""
        assert self._handler is not None
        try:
            body = self._handler.encode_result(value)
            check_body("result", body, self._limits)
        except (ValidationError, InvalidInput) as error:
            self._failed(error, Stage.OUTPUT)
            raise
        return body

    def _failed(self, error: Exception, stage: Stage) -> None:
        """Remember the stage of an error, in case it ends the handler."""
        self.fault = error, stage

    def bind(self, handler: Handler) -> None:
        """Set the handler that this context is for."""
        self._handler = handler

    def receive(self, message: frames.ToAttempt) -> None:
        """What the supervisor sends. Any thread."""
        match message:
            case frames.LeaseRenewed():
                self._until = message.until
            case frames.AskToStop():
                self._reason = message.reason
                self._stop()
            case frames.LeaseLost():
                self._is_lost = True
                self._stop()
            case frames.AskAnswer():
                self._asks.answered(message)
            case _:
                assert_never(message)

    @property
    def should_stop(self) -> bool:
        """Whether the handler was asked to stop, or has lost its lease."""
        return self._reason is not None or not self.still_mine()

    def on_stop(self, callback: Callable[[], object] | None) -> None:
        """Called, in the listener's thread, when the handler should stop."""
        self._on_stop = callback
        if callback is not None and (self._reason is not None or self._is_lost):
            callback()

    def _stop(self) -> None:
        if self._on_stop is not None:
            with suppress(RuntimeError):  # its loop is closed: the handler has just ended
                self._on_stop()


class AttemptTransaction(HandlerTransaction):
    """Takes the result, which the end of the block commits."""

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self._encode = encode
        self._result: bytes | None = None
        self.is_ending = False

    def complete(self, result: _R) -> _R:
        """Give the attempt's result, checked here and now; stored at the end of the block."""
        if self._result is not None:
            raise InvalidInput("transaction", "complete was called already")
        self._result = self._encode(result)
        return result

    @property
    def result(self) -> bytes:
        """The result as JSON."""
        if self._result is None:
            raise InvalidInput(
                "transaction",
                "the block ended without a result, and is rolled back",
                hint="call tx.complete(result) in it",
            )
        return self._result

    @staticmethod
    def judge(verdict: Verdict) -> None:
        """Any verdict but COMMITTED rolls the handler's own writes back."""
        if verdict.kind is not VerdictKind.COMMITTED:
            raise LeaseConflictError(
                f"the attempt has lost its lease ({verdict.cause}), and its writes are rolled back"
            )
