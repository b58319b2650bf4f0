"""Within a caller's transaction: decides on a connection that is not ours, and commits nothing.

What is written, its events and what they count for, is committed or rolled back with everything
else of the caller's. Refuses, like any coordinator, what breaks a limit.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tenure.coordinator.batches import Asked, Executor, LastWritten
from tenure.coordinator.estimate import StoreClock, host_monotonic
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Command, Complete, Enqueue
from tenure.core.validation import Limits, check_command
from tenure.core.verdicts import Answer, Reply, Verdict
from tenure.ports import Store
from tenure.telemetry.counts import unseen


def enqueue_within(
    coordinator: Coordinator, connection: Any, commands: Sequence[Enqueue]
) -> list[Reply]:
    """Enqueue on a connection of the caller's, as part of its transaction."""
    from tenure.stores.sql.borrowing import on_connection

    _check(coordinator, commands)
    with on_connection(coordinator.unwatched_store, connection) as store:
        return _replies(_decide_on(store, commands))


async def aenqueue_within(
    coordinator: Coordinator, connection: Any, commands: Sequence[Enqueue]
) -> list[Reply]:
    """Enqueue on an asynchronous connection of the caller's, as part of its transaction."""
    from tenure.stores.sql.borrowing import on_async_connection

    _check(coordinator, commands)
    return await on_async_connection(
        coordinator.unwatched_store, connection, lambda store: _replies(_decide_on(store, commands))
    )


@contextmanager
def transaction_on(
    store: Store, limits: Limits, connection: Any
) -> Iterator[Callable[[Complete], Verdict]]:
    """A transaction on the caller's connection; what is yielded completes a job in it."""
    from tenure.stores.sql.borrowing import on_connection
    from tenure.stores.sql.owning import own_transaction

    with own_transaction(connection) as check_open:

        def settle(command: Complete) -> Verdict:
            check_open()
            check_command(command, limits)
            with on_connection(store, connection) as lent:
                return _verdict(_decide_on(lent, [command]))

        yield settle


@asynccontextmanager
async def atransaction_on(
    store: Store, limits: Limits, connection: Any
) -> AsyncIterator[Callable[[Complete], Awaitable[Verdict]]]:
    """A transaction on the caller's asynchronous connection."""
    from tenure.stores.sql.borrowing import on_async_connection
    from tenure.stores.sql.owning import own_async_transaction

    async with own_async_transaction(connection) as check_open:

        async def settle(command: Complete) -> Verdict:
            check_open()
            check_command(command, limits)
            return await on_async_connection(
                store, connection, lambda lent: _verdict(_decide_on(lent, [command]))
            )

        yield settle


def _check(coordinator: Coordinator, commands: Sequence[Enqueue]) -> None:
    for command in commands:
        check_command(command, coordinator.limits)


def _decide_on(store: Store, commands: Sequence[Command]) -> list[Answer]:
    """Decide as a coordinator does, but on one connection and with nothing remembered: what is
    written may yet be rolled back. What it counts is written with it. [OB7]"""
    counts = unseen()
    executor = Executor(
        store,
        entropy=os.urandom,
        clock=StoreClock(host_monotonic),
        last_written=LastWritten(0),
        observer=counts,
    )
    batch = [Asked(command) for command in commands]
    executor.run(batch)
    answers = []
    for asked in batch:
        if asked.error is not None:
            raise asked.error
        assert asked.answer is not None
        answers.append(asked.answer)
    counted = counts.take()
    if counted is not None:
        store.hand_over_counts(counted)
    return answers


def _replies(answers: Sequence[Answer]) -> list[Reply]:
    return [answer for answer in answers if isinstance(answer, Reply)]


def _verdict(answers: Sequence[Answer]) -> Verdict:
    [answer] = answers
    assert isinstance(answer, Verdict)
    return answer
