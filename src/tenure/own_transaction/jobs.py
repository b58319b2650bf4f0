"""Enqueues and completes jobs in a transaction that the caller commits.

What is written is committed or rolled back with everything else of the caller's, so no process
counts it. Like any coordinator it refuses what breaks a limit.
"""

import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from tenure.clock import boot_now
from tenure.coordinator.batches import Executor, LastWritten, PendingCommand, PolicyCache
from tenure.coordinator.outages import OutageWatch
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Command, Complete, NewJobs
from tenure.core.validation import Limits, check_command
from tenure.core.verdicts import Answer, Reply, Verdict
from tenure.own_transaction.connections import (
    async_driver_connection,
    async_transaction_block,
    driver_connection,
    transaction_block,
)
from tenure.ports import Store

_T = TypeVar("_T")


def enqueue_within(
    coordinator: Coordinator, connection: Any, commands: Sequence[NewJobs], notify: bool
) -> list[Reply]:
    """Enqueue on a connection of the caller's, as part of its transaction. With `notify` its commit
    tells waiting workers."""
    _check(coordinator, commands)
    with _store_on(coordinator.store, connection, notify=notify) as store:
        return _replies(_decide_on(store, commands, coordinator.limits))


async def aenqueue_within(
    coordinator: Coordinator, connection: Any, commands: Sequence[NewJobs], notify: bool
) -> list[Reply]:
    """`enqueue_within` for an asynchronous connection."""
    _check(coordinator, commands)
    return await _work_on(
        coordinator.store,
        connection,
        lambda store: _replies(_decide_on(store, commands, coordinator.limits)),
        notify=notify,
    )


@contextmanager
def transaction_on(
    store: Store, limits: Limits, connection: Any
) -> Iterator[Callable[[Complete], Verdict]]:
    """A transaction on the caller's connection; what is yielded completes a job in it."""
    with transaction_block(connection) as check_open:

        def settle(command: Complete) -> Verdict:
            check_open()
            check_command(command, limits)
            with _store_on(store, connection) as lent:
                return _verdict(_decide_on(lent, [command], limits))

        yield settle


@asynccontextmanager
async def atransaction_on(
    store: Store, limits: Limits, connection: Any
) -> AsyncIterator[Callable[[Complete], Awaitable[Verdict]]]:
    """A transaction on the caller's asynchronous connection."""
    async with async_transaction_block(connection) as check_open:

        async def settle(command: Complete) -> Verdict:
            check_open()
            check_command(command, limits)
            return await _work_on(
                store, connection, lambda lent: _verdict(_decide_on(lent, [command], limits))
            )

        yield settle


@contextmanager
def _store_on(store: Store, connection: Any, *, notify: bool = False) -> Iterator[Store]:
    """`store`, reading and writing within the transaction of `connection`."""
    driver = driver_connection(connection)
    if isinstance(driver, sqlite3.Connection):
        from tenure.own_transaction.sqlite import store_on as sqlite_store_on

        with sqlite_store_on(store, driver) as lent:
            yield lent  # those who watch the file notice every commit, so `notify` adds nothing
        return
    from tenure.own_transaction.postgres import store_on as postgres_store_on

    yield postgres_store_on(store, driver, notify=notify)


async def _work_on(
    store: Store, connection: Any, work: Callable[[Store], _T], *, notify: bool = False
) -> _T:
    """Run `work` on `store` within the transaction of an asynchronous connection."""
    driver = async_driver_connection(connection)
    from tenure.own_transaction.postgres import work_on

    return await work_on(store, driver, work, notify=notify)


def _check(coordinator: Coordinator, commands: Sequence[NewJobs]) -> None:
    for command in commands:
        check_command(command, coordinator.limits)


def _decide_on(store: Store, commands: Sequence[Command], limits: Limits) -> list[Answer]:
    """Decide as a coordinator does, but on one connection and with nothing remembered: what is
    written may yet be rolled back, so nothing is counted either. [OB24]"""
    executor = Executor(
        store,
        entropy=os.urandom,
        watch=OutageWatch(boot_now),
        last_written=LastWritten(0),
        policies=PolicyCache(store.settings, boot_now, limits.lease),
    )
    batch = [PendingCommand(command) for command in commands]
    executor.run(batch)
    answers = []
    for pending in batch:
        if pending.error is not None:
            raise pending.error
        assert pending.answer is not None
        answers.append(pending.answer)
    return answers


def _replies(answers: Sequence[Answer]) -> list[Reply]:
    return [answer for answer in answers if isinstance(answer, Reply)]


def _verdict(answers: Sequence[Answer]) -> Verdict:
    [answer] = answers
    assert isinstance(answer, Verdict)
    return answer
