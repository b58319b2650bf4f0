"""One implementation, two shells: how the blocking and the async methods share their code.

An operation is a generator. Where it has to wait for something, it yields a `Wait`, which says how
to wait in a thread and how to wait in an event loop, and is sent what came of it. `run` and `arun`
are the two shells; a failure of the wait is raised inside the operation, which may handle it.
Private functions that return an operation have names that end in -ing. A public method is written
once, as an operation: the decorator `blocking` makes the method, and `awaiting` its async twin.
What waits for nothing but answers of the store is a plain method, whose twin runs in a thread; if
the twin is cancelled, the operations of that thread send nothing more.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast, get_args

import msgspec

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_cancelled: ContextVar[threading.Event | None] = ContextVar("tenure_cancelled", default=None)
"""Set in a thread that runs for an async twin: set when its caller was cancelled."""


class Wait(msgspec.Struct, frozen=True):
    """Something an operation waits for."""

    blocking: Callable[[], Any]
    awaiting: Callable[[], Awaitable[Any]]


Operation: TypeAlias = Generator[Wait, Any, T]


def in_thread(call: Callable[[], Any]) -> Wait:
    """A blocking call, which an event loop leaves to a thread."""
    return Wait(call, lambda: asyncio.to_thread(call))


def pause(span_s: float) -> None:
    """Sleep; not to the end if this thread runs for an async twin that is cancelled meanwhile."""
    cancelled = _cancelled.get()
    if cancelled is None:
        time.sleep(span_s)
    else:
        cancelled.wait(span_s)


def stop_if_cancelled() -> None:
    """End what this thread does for an async twin that was cancelled: it writes nothing more."""
    cancelled = _cancelled.get()
    if cancelled is not None and cancelled.is_set():
        raise asyncio.CancelledError


def run(operation: Operation[T]) -> T:
    """Carry out an operation in this thread."""
    try:
        wait = next(operation)
        while True:
            stop_if_cancelled()
            try:
                value = wait.blocking()
            except Exception as failure:  # the operation decides whether it can continue
                wait = operation.throw(failure)
            else:
                wait = operation.send(value)
    except StopIteration as done:
        result: T = done.value
        return result


async def arun(operation: Operation[T]) -> T:
    """Carry out an operation without blocking the event loop."""
    try:
        wait = next(operation)
        while True:
            try:
                value = await wait.awaiting()
            except Exception as failure:  # the operation decides whether it can continue
                wait = operation.throw(failure)
            else:
                wait = operation.send(value)
    except StopIteration as done:
        result: T = done.value
        return result


def blocking(
    operation: Callable[Concatenate[S, P], Operation[T]],
) -> Callable[Concatenate[S, P], T]:
    """Make a method that carries out this operation in the caller's thread. Its signature returns
    what the operation does, so a module that uses it must not postpone annotations."""

    @wraps(operation)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(operation(self, *args, **kwargs))

    signature = inspect.signature(operation)
    _, _, returned = get_args(signature.return_annotation)
    cast(Any, method).__signature__ = signature.replace(return_annotation=returned)
    return method


def awaiting(
    method: Callable[Concatenate[S, P], T], *, name: str | None = None
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The twin of a method for async code; its name has an `a` in front. If the method is
    not `blocking`, the twin runs it in a thread."""
    operation = getattr(method, "__wrapped__", None)

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if operation is None:
            cancelled = threading.Event()

            def call() -> T:
                _cancelled.set(cancelled)  # in the copy of the context that the thread has
                return method(self, *args, **kwargs)

            try:
                return await asyncio.to_thread(call)
            finally:
                cancelled.set()
        result: T = await arun(operation(self, *args, **kwargs))
        return result

    twin.__name__ = name or f"a{method.__name__}"
    twin.__qualname__ = method.__qualname__.removesuffix(method.__name__) + twin.__name__
    twin.__module__ = method.__module__
    twin.__doc__ = f"`{method.__name__}` for async code."
    cast(Any, twin).__signature__ = inspect.signature(method)
    return twin
