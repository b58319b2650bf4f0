"""Enqueues and completes jobs in a transaction that the caller commits.

What is written is committed or rolled back with everything else of the caller's, so no process
counts it. Like any coordinator it refuses what breaks a limit.
"""

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tenure.clock import boot_now
from tenure.coordinator.batches import Executor, LastWritten, PendingCommand, PolicyCache
from tenure.coordinator.outages import OutageWatch
from tenure.core.commands import Command, Complete
from tenure.core.validation import Limits, check_commands
from tenure.core.verdicts import Answer, Verdict
from tenure.own_transaction.connections import (
    async_driver_connection,
    async_transaction_block,
    driver_connection,
    transaction_block,
)
from tenure.ports import Coordination, Store


class _OnConnections(ABC):
    """What follows from executing commands on a connection."""

    @abstractmethod
    def execute(
        self, connection: Any, commands: Sequence[Command], *, notify: bool = False
    ) -> list[Answer]:
        """Execute commands on a connection of the caller's, as part of its transaction. With
        `notify` its commit wakes waiting workers."""

    @abstractmethod
    async def aexecute(
        self, connection: Any, commands: Sequence[Command], *, notify: bool = False
    ) -> list[Answer]:
        """`execute` for an asynchronous connection."""

    @contextmanager
    def transaction_on(self, connection: Any) -> Iterator[Callable[[Complete], Verdict]]:
        """A transaction on the caller's connection; what is yielded completes a job in it."""
        with transaction_block(connection) as check_open:

            def settle(command: Complete) -> Verdict:
                check_open()
                return _verdict(self.execute(connection, [command]))

            yield settle

    @asynccontextmanager
    async def atransaction_on(
        self, connection: Any
    ) -> AsyncIterator[Callable[[Complete], Awaitable[Verdict]]]:
        """`transaction_on` for an asynchronous connection."""
        async with async_transaction_block(connection) as check_open:

            async def settle(command: Complete) -> Verdict:
                check_open()
                return _verdict(await self.aexecute(connection, [command]))

            yield settle


class OwnTransactions(_OnConnections):
    """Transactions in the database of this store."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits

    def execute(
        self, connection: Any, commands: Sequence[Command], *, notify: bool = False
    ) -> list[Answer]:
        """Decide on the caller's connection."""
        check_commands(commands, self._limits)
        with _store_on(self._store, connection, notify=notify) as lent:
            return self._decide_on(lent, commands)

    async def aexecute(
        self, connection: Any, commands: Sequence[Command], *, notify: bool = False
    ) -> list[Answer]:
        """Decide on the caller's asynchronous connection."""
        check_commands(commands, self._limits)
        driver = async_driver_connection(connection)
        from tenure.own_transaction.postgres import work_on

        return await work_on(
            self._store, driver, lambda lent: self._decide_on(lent, commands), notify=notify
        )

    def _decide_on(self, lent: Store, commands: Sequence[Command]) -> list[Answer]:
        """Decide as a coordinator does, but on one connection and with nothing remembered: what is
        written may yet be rolled back, so nothing is counted either. [OB24]"""
        executor = Executor(
            lent,
            entropy=os.urandom,
            watch=OutageWatch(boot_now),
            last_written=LastWritten(0),
            policies=PolicyCache(lent.settings, boot_now, self._limits.lease),
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


class InMemoryTransactions(_OnConnections):
    """For tests, where Tenure's jobs are in memory and not in the caller's database.

    What a handler writes on its connection is committed and rolled back for real. A job enqueued
    with `connection=` exists at once, even if the transaction is rolled back later, and a
    completion does not wait for the commit: only a store in the same database makes them atomic.
    """

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    def execute(
        self, connection: Any, commands: Sequence[Command], *, notify: bool = False
    ) -> list[Answer]:
        """Execute now."""
        return self._coordination.execute_many(commands)

    async def aexecute(
        self, connection: Any, commands: Sequence[Command], *, notify: bool = False
    ) -> list[Answer]:
        """Execute now: nothing here takes long enough to block a loop."""
        return self._coordination.execute_many(commands)


@contextmanager
def _store_on(store: Store, connection: Any, *, notify: bool = False) -> Iterator[Store]:
    """`store`, reading and writing within the transaction of `connection`."""
    driver = driver_connection(connection)
    if isinstance(driver, sqlite3.Connection):
        from tenure.own_transaction.sqlite import store_on as sqlite_store_on

        with sqlite_store_on(store, driver) as lent:
            yield lent  # watchers of the file notice every commit, so `notify` adds nothing
        return
    from tenure.own_transaction.postgres import store_on as postgres_store_on

    yield postgres_store_on(store, driver, notify=notify)


def _verdict(answers: Sequence[Answer]) -> Verdict:
    [answer] = answers
    assert isinstance(answer, Verdict)
    return answer
