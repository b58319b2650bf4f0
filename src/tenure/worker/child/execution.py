"""Runs one handler inside its child: arguments in, outcome out, through the stages.

The stage states where a failure was found: `fetch`, `input`, `exec`, `output`, or `commit` for a
transaction of the handler's own. Every exception becomes an outcome made of strings; only the death
of the process ends an attempt without one.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from tenure.core.checks import MAX_DURATION, MAX_NAME
from tenure.core.instants import Duration, seconds
from tenure.core.job import JobError
from tenure.core.validation import Limits
from tenure.core.vocabulary import ErrorClass, ReasonCode, Stage
from tenure.errors import (
    Cancelled,
    DeadLetter,
    HandlerSignal,
    InvalidInput,
    LeaseConflictError,
    PermanentError,
    Snooze,
    TransientError,
    ValidationError,
)
from tenure.handlers.hooks import Attempt, arun_within, run_within
from tenure.handlers.registry import Handler, Registry
from tenure.ports import Transactions
from tenure.telemetry.tracing import TraceContext, attempt_span
from tenure.worker import frames
from tenure.worker.child.context import AttemptContext
from tenure.worker.child.error_texts import clean, message_of, traceback_of


class Execution:
    """One attempt's way through the stages."""

    def __init__(
        self,
        registry: Registry,
        run: frames.Run,
        *,
        send: Callable[[frames.ToSupervisor], None],
        limits: Limits,
        transactions: Transactions | None = None,
    ) -> None:
        self.run = run
        self.context = AttemptContext(run, send=send, limits=limits, transactions=transactions)
        self._registry = registry
        self.outcome: frames.FromChild | None = None  # of a coroutine, however its task ends
        self._stage = Stage.FETCH
        self._hooked: Attempt | None = None  # as hooks see it, if there are any
        self._is_of_hook = False  # whether the error that ends the attempt is a hook's own
        self._encoded: frames.Returned | None = None  # while the hooks were still there

    def perform(self) -> frames.FromChild:
        """Run a handler to its end in this thread; a coroutine gets a loop of its own."""
        try:
            handler, arguments = self._prepare()
            self._stage = Stage.EXEC
            with self._span() as self.context.traceparent:
                if handler.is_async:
                    value = asyncio.run(self._as_task(handler, arguments))
                elif self._registry.hooks:
                    value = self._within_hooks(handler, arguments)
                else:
                    value = handler.function(**arguments)
            return self._returned(value)
        except BaseException as error:  # becomes the attempt's outcome, never swallowed
            return self.outcome_of(error)

    async def perform_async(self) -> frames.FromChild:
        """Run a handler as part of the loop it is called in."""
        try:
            handler, arguments = self._prepare()
            self._stage = Stage.EXEC
            with self._span() as self.context.traceparent:
                value = await self._awaited(handler, arguments)
            self.outcome = self._returned(value)
        except BaseException as error:  # becomes the attempt's outcome, never swallowed
            self.outcome = self.outcome_of(error)
        return self.outcome

    async def _as_task(self, handler: Handler, arguments: dict[str, Any]) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self.context.on_stop(lambda: loop.call_soon_threadsafe(task.cancel))
        try:
            return await self._awaited(handler, arguments)
        finally:
            self.context.on_stop(None)

    # --- hooks ---------------------------------------------------------------------------------

    def _within_hooks(self, handler: Handler, arguments: dict[str, Any]) -> Any:
        attempt = self._as_hooks_see_it(handler, arguments)

        def call() -> Any:
            return self._storable(handler.function(**arguments))

        run_within(self._registry.hooks, attempt, call)
        return attempt.result

    async def _awaited(self, handler: Handler, arguments: dict[str, Any]) -> Any:
        """What the handler returns, within the loop this is called in."""

        async def call() -> Any:
            if handler.is_async:
                return await handler.function(**arguments)
            return await asyncio.to_thread(handler.function, **arguments)

        if not self._registry.hooks:
            return await call()
        attempt = self._as_hooks_see_it(handler, arguments)

        async def call_and_check() -> Any:
            return self._storable(await call())

        await arun_within(self._registry.hooks, attempt, call_and_check)
        return attempt.result

    def _as_hooks_see_it(self, handler: Handler, arguments: dict[str, Any]) -> Attempt:
        given = {name: arguments[name] for name in arguments if name != handler.context_parameter}
        self._hooked = Attempt(self.context, given)
        return self._hooked

    def _storable(self, value: Any) -> Any:
        """`value`, encoded while the hooks are still there: one that ends a database session must
        not commit it for a result that cannot be stored. [HK3]"""
        self._encoded = self._returned(value)
        return value

    def _span(self) -> AbstractContextManager[str | None]:
        """The trace that the job was enqueued in."""
        run, context = self.run, self.context
        label = None if context.traceparent is not None else run.trace_id
        traced = TraceContext(
            traceparent=context.traceparent,
            label=label,
            correlation_id=context.correlation_id,
        )
        return attempt_span(
            job_id=run.job_id, kind=run.kind, queue=run.queue, attempt=run.attempt, traced=traced
        )

    def _prepare(self) -> tuple[Handler, dict[str, Any]]:
        handler = self._registry.get(self.run.kind)
        if handler is None:
            raise LookupError(f"this application has no handler for the kind {self.run.kind}")
        if self.run.checkpoint is not None:
            self.context.checkpoint = msgspec.json.decode(self.run.checkpoint)
        self._stage = Stage.INPUT
        self.context.bind(handler)
        arguments = handler.decode_arguments(self.run.payload)
        if handler.context_parameter is not None:
            arguments[handler.context_parameter] = self.context
        return handler, arguments

    def _returned(self, value: Any) -> frames.Returned:
        if self.context.result is not None:
            return frames.Returned(self.context.result)
        if self._encoded is not None:
            return self._encoded
        self._stage = Stage.OUTPUT
        return frames.Returned(self.context.encode_result(value))

    # --- exceptions ----------------------------------------------------------------------------

    def outcome_of(self, error: BaseException) -> frames.FromChild:
        """The outcome of a handler that raised this."""
        self._is_of_hook = self._hooked is not None and error is self._hooked.hook_error
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if self.context.result is not None:
            # The success is committed, so a later error is only logged.
            self.context.log(f"after the job was completed: {traceback_of(error)}")
            return frames.Returned(self.context.result)
        if self.context.fault is not None and error is self.context.fault[0]:
            self._stage = self.context.fault[1]
        if _is_stop(error) and self.context.should_stop:
            return frames.Stopped()
        match error:
            case LeaseConflictError():
                return frames.Conflicted()
            case Snooze():
                return frames.Snoozed(_bounded(error.delay_s))
            case TransientError():
                return frames.Raised(self._error(error), _bounded(error.retry_after_s))
            case _:
                return frames.Raised(self._error(error))

    def _error(self, error: BaseException) -> JobError:
        return JobError(
            error_class=self._class_of(error),
            type=clean(type(error).__name__, most=MAX_NAME),
            message=message_of(error),
            traceback=self._traceback(error),
            stage=self._stage,
            reason_code=self._reason_of(error),
        )

    def _class_of(self, error: BaseException) -> ErrorClass:
        is_result = self._stage is Stage.OUTPUT and not self._is_of_hook
        if is_result and not isinstance(error, TransientError):
            return ErrorClass.PERMANENT  # the next attempt would return the same thing
        match error:
            case ValidationError():
                return ErrorClass.VALIDATION
            case TransientError():
                return ErrorClass.TRANSIENT
            # The next attempt would ask for the same.
            case PermanentError() | DeadLetter() | InvalidInput():
                return ErrorClass.PERMANENT
            case _:
                return ErrorClass.UNCLASSIFIED

    def _reason_of(self, error: BaseException) -> ReasonCode | None:
        if isinstance(error, DeadLetter):
            return ReasonCode(error.reason)
        if isinstance(error, TransientError) and error.dependency_unavailable:
            return ReasonCode.DEPENDENCY_UNAVAILABLE
        if isinstance(error, ValidationError) and self._stage is Stage.INPUT:
            cause = error.__cause__
            is_unreadable = not isinstance(cause, msgspec.ValidationError)
            return ReasonCode.PARSE_ERROR if is_unreadable else ReasonCode.VALIDATION_FAILED
        return None

    def _traceback(self, error: BaseException) -> str:
        """The traceback of an exception that the handler did not raise on purpose, else nothing."""
        is_exec = self._stage is Stage.EXEC or self._is_of_hook
        if not is_exec or isinstance(error, HandlerSignal | InvalidInput):
            return ""
        return traceback_of(error)


def _is_stop(error: BaseException) -> bool:
    """Whether an exception only means that the handler stopped as it was asked to."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_stop(each) for each in error.exceptions)
    return isinstance(error, Cancelled | asyncio.CancelledError)


def _bounded(amount_s: float) -> Duration:
    """A handler's delay as a duration the coordinator takes."""
    if not math.isfinite(amount_s) or amount_s < 0:
        return Duration(0)
    return Duration(min(seconds(min(amount_s, 1e9)), MAX_DURATION))
