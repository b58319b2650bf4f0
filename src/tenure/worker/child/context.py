"""The context of one attempt, inside its child: what `handlers.Context` promises.

Knows the lease only by the instant it ends, on the clock that child and supervisor share; so a
handler notices a lost lease even while its supervisor is stopped or gone.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from tenure.clock import Boot, boot_now
from tenure.core.checks import MAX_TEXT
from tenure.core.ids import traceparent_of
from tenure.core.ijson import MAX_EXACT_INTEGER
from tenure.core.job import Progress
from tenure.core.validation import Limits, check_body
from tenure.core.vocabulary import Stage
from tenure.errors import Cancelled, InvalidInput, TransientError, ValidationError
from tenure.handlers.calls import Call, Enqueued
from tenure.handlers.context import Context, TransactionScope, file_of
from tenure.handlers.flows import FlowPlan
from tenure.handlers.json_values import encode
from tenure.handlers.parents import Parents
from tenure.handlers.registry import Handler
from tenure.protocol.fields import optional_moment
from tenure.worker.application import Transactions
from tenure.worker.child.asks import LEASE_CHECK_S, ArtifactUploads, FollowUps, ParentPages
from tenure.worker.child.error_texts import clean
from tenure.worker.child.transaction import Authority, atransact, transact
from tenure.worker.frames import (
    ArtifactAnswer,
    CheckpointSaved,
    FollowUpAnswer,
    LeaseWanted,
    ParentsAnswer,
    ProgressMade,
    Run,
    SelfCompleted,
    ToSupervisor,
)


class AttemptContext(Context):
    """Given to the handler; the child's listener tells it what the supervisor says."""

    def __init__(
        self,
        run: Run,
        *,
        send: Callable[[ToSupervisor], None],
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
        self._authority: Authority | None = None
        self._is_lent: threading.Event | None = None  # most handlers never ask
        self.result: bytes | None = None  # committed in the handler's own transaction

    @cached_property
    def _artifact_uploads(self) -> ArtifactUploads:
        return ArtifactUploads(self._run, self._send, self.still_mine)

    @cached_property
    def _follow_ups(self) -> FollowUps:
        return FollowUps(
            self._run, self.job_id, self._send, still_mine=self.still_mine, limits=self._limits
        )

    @cached_property
    def _parent_pages(self) -> ParentPages:
        return ParentPages(self._run, self._send, still_mine=self.still_mine)

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
        self._send(CheckpointSaved(self._run, body))

    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Report how far the job is."""
        counts = [min(max(int(count), 0), MAX_EXACT_INTEGER) for count in (done, total or 0)]
        made = Progress(
            done=counts[0],
            total=None if total is None else counts[1],
            note=clean(note, most=MAX_TEXT),
        )
        self._send(ProgressMade(self._run, made))

    def log(self, message: str) -> None:
        """Add a line to the attempt's output."""
        sys.stderr.write(message.rstrip("\n") + "\n")
        sys.stderr.flush()

    def artifact(self, name: str, data: bytes | str, *, media_type: str | None = None) -> None:
        """Store a file with the job; returns when it is stored."""
        try:
            body, kind = file_of(data, media_type)
            self._artifact_uploads.send(name, body, kind)
        except (InvalidInput, TransientError) as error:
            self.failed(error, Stage.OUTPUT)
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
        return self._follow_ups.enqueue(call, step)

    def _make_flow(self, plan: FlowPlan) -> bool:
        if self._is_in_transaction:
            raise InvalidInput(
                "flow",
                "within ctx.transaction the flow would not be part of the transaction",
                hint="use app.flow(…, connection=…) with the same connection, or make the flow"
                " before the block",
            )
        return self._follow_ups.make_flow(plan)

    @cached_property
    def parents(self) -> Parents:
        """What the jobs that this one waited for returned, by name."""
        return Parents(self._parent_pages.load)

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
            lambda: transact(self, transactions, connection),
            lambda: atransact(self, transactions, connection),
        )

    # --- for its transaction -------------------------------------------------------------------

    def encode_result(self, value: Any) -> bytes:
        """The result as JSON by its annotation, within the limits."""
        assert self._handler is not None
        try:
            body = self._handler.encode_result(value)
            check_body("result", body, self._limits)
        except (ValidationError, InvalidInput) as error:
            self.failed(error, Stage.OUTPUT)
            raise
        return body

    def authority(self) -> Authority:
        """The lease, which the supervisor lends on request; `Cancelled` if it is lost."""
        self._is_lent = is_lent = self._is_lent or threading.Event()
        self._send(LeaseWanted(self._run))
        while not is_lent.wait(LEASE_CHECK_S):
            if not self.still_mine():
                raise Cancelled("the lease is lost")
        assert self._authority is not None
        return self._authority

    async def aauthority(self) -> Authority:
        """The lease, without blocking the loop."""
        return await asyncio.to_thread(self.authority)

    @contextmanager
    def in_transaction(self) -> Iterator[None]:
        """The handler's own transaction is open."""
        self._is_in_transaction = True
        try:
            yield
        finally:
            self._is_in_transaction = False

    def failed(self, error: Exception, stage: Stage) -> None:
        """Remember the stage of an error, in case it ends the handler."""
        self.fault = error, stage

    def settled(self, result: bytes) -> None:
        """Committed: from here on the attempt has succeeded, whatever the handler still does."""
        self.result = result
        self._send(SelfCompleted(self._run, result))

    # --- for the child -------------------------------------------------------------------------

    def bind(self, handler: Handler) -> None:
        """Set the handler that this context is for."""
        self._handler = handler

    def artifact_answered(self, answer: ArtifactAnswer) -> None:
        """The supervisor says what became of an artifact."""
        self._artifact_uploads.heard(answer)

    def follow_up_answered(self, answer: FollowUpAnswer) -> None:
        """The supervisor says what became of a follow-up."""
        self._follow_ups.heard(answer)

    def parents_answered(self, answer: ParentsAnswer) -> None:
        """The supervisor has read a page of parents."""
        self._parent_pages.heard(answer)

    def lease_lent(self, authority: Authority) -> None:
        """The supervisor lends the lease."""
        self._authority = authority
        if self._is_lent is not None:
            self._is_lent.set()

    @property
    def should_stop(self) -> bool:
        """Whether the handler was asked to stop, or has lost its lease."""
        return self._reason is not None or not self.still_mine()

    def on_stop(self, callback: Callable[[], object] | None) -> None:
        """Called, in the listener's thread, when the handler should stop."""
        self._on_stop = callback
        if callback is not None and (self._reason is not None or self._is_lost):
            callback()

    def lease_renewed(self, until: Boot) -> None:
        """The supervisor renewed the lease."""
        self._until = until

    def ask_to_stop(self, reason: str) -> None:
        """The supervisor asks the handler to stop."""
        self._reason = reason
        self._stop()

    def lease_lost(self) -> None:
        """The supervisor says the lease is lost."""
        self._is_lost = True
        self._stop()

    def _stop(self) -> None:
        if self._on_stop is not None:
            with suppress(RuntimeError):  # its loop is closed: the handler has just ended
                self._on_stop()
