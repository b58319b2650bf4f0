"""Hooks: context managers that an application puts around every attempt's handler.

A hook is user code, like the handler: what it raises fails the attempt, never the worker. It sees
how the handler ended and may raise another error in its place, but it cannot turn a failure into a
success. [HK4] Nothing here knows leases or lanes: `worker.execution` enters and leaves the hooks.
"""

import asyncio
import inspect
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from contextvars import copy_context
from enum import Enum, auto
from typing import Any, TypeAlias

from tenure.core.ids import Kind
from tenure.errors import InvalidInput
from tenure.handlers.context import Context
from tenure.handlers.signature import function_name

Manager: TypeAlias = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]


class Attempt:
    """One attempt as its hooks see it: what runs, and from the handler's end on how it ended."""

    __slots__ = ("arguments", "ctx", "error", "hook_error", "is_ended", "kind", "result")

    def __init__(self, ctx: Context, arguments: Mapping[str, Any]) -> None:
        self.kind: Kind = ctx.kind
        self.ctx = ctx
        """What the handler gets as its `ctx`."""
        self.arguments = arguments
        """The handler's arguments by name."""
        self.is_ended = False
        self.result: Any = None
        """What the handler returned, if it did."""
        self.error: BaseException | None = None
        """What the handler or an inner hook raised, if it did; also `Snooze` and `Cancelled`."""
        self.hook_error: BaseException | None = None
        """The last error that a hook raised of its own."""

    def __repr__(self) -> str:
        return f"<Attempt {self.ctx.attempt} of {self.kind}, job {self.ctx.job_id}>"


AnyHook: TypeAlias = (
    Callable[[Attempt], Manager]
    | Callable[[Attempt], Iterator[Any]]
    | Callable[[Attempt], AsyncIterator[Any]]
)
"""What `app.around_attempt` takes: a function of the attempt that returns a context manager, or
that is a generator with one `yield`. Both may be asynchronous."""

Hook: TypeAlias = Callable[[Attempt], Manager]


def make_hook(function: object) -> Hook:
    """The hook that `function` declares; raises `InvalidInput` if it cannot be one. [HK8]"""
    if not callable(function):
        raise InvalidInput(
            "around_attempt",
            f"{type(function).__name__} is not a function",
            hint="decorate a generator function with one yield, or one that returns a context"
            " manager",
        )
    if inspect.iscoroutinefunction(function):
        raise InvalidInput(
            "around_attempt",
            f"{function_name(function)} is an async def without yield",
            hint="let it yield once, where the handler should run",
        )
    _check_takes_one(function)
    if inspect.isgeneratorfunction(function):
        return contextmanager(function)
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)
    return function


def _check_takes_one(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError as wrong:
        raise InvalidInput(
            "around_attempt",
            f"{function_name(function)} cannot be called with the attempt alone: {wrong}",
            hint="give it one parameter, the attempt",
        ) from wrong
    except ValueError:
        return  # a callable without a signature, as some written in C


# --- running -------------------------------------------------------------------------------------


class _Handler(Enum):
    """The step at which the handler runs."""

    RUN = auto()


_Steps: TypeAlias = Generator[Awaitable[Any] | _Handler, Any, BaseException | None]


def run_within(hooks: Sequence[Hook], attempt: Attempt, handler: Callable[[], Any]) -> None:
    """Call `handler` within the hooks, in this thread and in a copy of its context variables.
    [HK1] [HK6]

    Asynchronous hooks run in a loop of their own. It stands still while the handler runs, so that
    the handler may call `asyncio.run`. [HK6]
    """
    context = copy_context()
    runner: asyncio.Runner | None = None
    steps = _steps(hooks, attempt, in_loop=False)
    resume: Callable[[Any], Awaitable[Any] | _Handler] = steps.send
    value: Any = None
    error: BaseException | None
    try:
        while True:
            try:
                step = context.run(resume, value)
            except StopIteration as end:
                error = end.value
                break
            try:
                if isinstance(step, _Handler):
                    value = context.run(handler)
                else:
                    runner = runner or asyncio.Runner()
                    value = runner.run(_awaited(step), context=context)
                resume = steps.send
            except BaseException as raised:  # thrown into the hooks, never swallowed
                resume, value = steps.throw, raised
    finally:
        if runner is not None:
            runner.close()
    _raise(error)


async def arun_within(
    hooks: Sequence[Hook], attempt: Attempt, handler: Callable[[], Awaitable[Any]]
) -> None:
    """Await `handler` within the hooks, as part of the loop this runs in. [HK1]"""
    steps = _steps(hooks, attempt, in_loop=True)
    resume: Callable[[Any], Awaitable[Any] | _Handler] = steps.send
    value: Any = None
    error: BaseException | None
    while True:
        try:
            step = resume(value)
        except StopIteration as end:
            error = end.value
            break
        try:
            value = await (handler() if isinstance(step, _Handler) else step)
            resume = steps.send
        except BaseException as raised:  # thrown into the hooks, never swallowed
            resume, value = steps.throw, raised
    _raise(error)


def _raise(error: BaseException | None) -> None:
    """Not called while an exception is handled: Python would show that one as the cause."""
    if error is not None:
        raise error


async def _awaited(step: Awaitable[Any]) -> Any:
    return await step


def _steps(hooks: Sequence[Hook], attempt: Attempt, *, in_loop: bool) -> _Steps:
    """Enter the hooks in order, run the handler, leave them in reverse. Returns the error that the
    attempt ends with. Yields what only the caller can do: await, and run the handler."""
    entered: list[_Entered] = []
    error: BaseException | None = None
    try:
        for hook in hooks:
            manager = _Entered(hook, attempt, in_loop=in_loop)
            yield from manager.enter()
            entered.append(manager)
    except BaseException as raised:  # returned below
        error = attempt.hook_error = raised
    else:
        try:
            attempt.result = yield _Handler.RUN
        except BaseException as raised:  # returned below
            error = raised
    attempt.is_ended = True
    for manager in reversed(entered):
        attempt.error = error
        try:
            yield from manager.leave(error)
        except BaseException as raised:  # returned below
            if raised is not error:
                raised.__context__ = raised.__context__ or error
                error = attempt.hook_error = raised
    return error


class _Entered:
    """One hook's context manager, used as what it is: synchronous or asynchronous. If it is both,
    the way that suits its surroundings."""

    def __init__(self, hook: Hook, attempt: Attempt, *, in_loop: bool) -> None:
        self._manager: Any = hook(attempt)
        has_sync = hasattr(self._manager, "__enter__") and hasattr(self._manager, "__exit__")
        has_async = hasattr(self._manager, "__aenter__") and hasattr(self._manager, "__aexit__")
        if not has_sync and not has_async:
            raise InvalidInput(
                "around_attempt",
                f"{function_name(hook)} returned {type(self._manager).__name__}, which is no"
                " context manager",
                hint="let it yield once, where the handler should run",
            )
        self._is_async = has_async and (in_loop or not has_sync)

    def enter(self) -> Generator[Awaitable[Any], Any, None]:
        if self._is_async:
            yield self._manager.__aenter__()
        else:
            self._manager.__enter__()

    def leave(self, error: BaseException | None) -> Generator[Awaitable[Any], Any, None]:
        """What the manager returns is ignored: it may not swallow the error. [HK4]"""
        traceback = None if error is None else error.__traceback__
        given = (None if error is None else type(error), error, traceback)
        if self._is_async:
            yield self._manager.__aexit__(*given)
        else:
            self._manager.__exit__(*given)
