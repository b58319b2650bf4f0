"""One implementation, two shells: how the blocking and the async methods share their code.

An operation is a generator. Where it has to wait for something, it yields a `Wait`, which says how
to wait in a thread and how to wait in an event loop, and is sent what came of it. `run` and `arun`
are the two shells; a failure of the wait is raised inside the operation, which may handle it.
Functions that return an operation have names that end in -ing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class Wait(msgspec.Struct, frozen=True):
    """Something an operation waits for."""

    blocking: Callable[[], Any]
    awaiting: Callable[[], Awaitable[Any]]


Operation: TypeAlias = Generator[Wait, Any, T]


def in_thread(call: Callable[[], Any]) -> Wait:
    """A blocking call, which an event loop leaves to a thread."""
    return Wait(call, lambda: asyncio.to_thread(call))


def run(operation: Operation[T]) -> T:
    """Carry out an operation in this thread."""
    try:
        wait = next(operation)
        while True:
            try:
                value = wait.blocking()
            except Exception as failure:  # the operation decides whether it can go on
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
            except Exception as failure:  # the operation decides whether it can go on
                wait = operation.throw(failure)
            else:
                wait = operation.send(value)
    except StopIteration as done:
        result: T = done.value
        return result
