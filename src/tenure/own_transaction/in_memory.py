"""Own transactions in tests, where Tenure's jobs are in memory and not in the caller's database.

What a handler writes on its connection is committed and rolled back for real. A job enqueued with
`connection=` exists at once, even if the transaction is rolled back later, and a completion does
not wait for the commit: only a store in the same database makes them atomic.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tenure.core.commands import Complete, NewJobs
from tenure.core.verdicts import Reply, Verdict
from tenure.own_transaction.connections import async_transaction_block, transaction_block
from tenure.ports import Coordination


class InMemoryTransactions:
    """`tenure.worker.child.transaction.Transactions`, and the two ways to enqueue within one."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    def enqueue_within(
        self, _connection: Any, commands: Sequence[NewJobs], _notify: bool
    ) -> list[Reply]:
        """Enqueue now."""
        answers = self._coordination.execute_many(commands)
        return [answer for answer in answers if isinstance(answer, Reply)]

    async def aenqueue_within(
        self, connection: Any, commands: Sequence[NewJobs], notify: bool
    ) -> list[Reply]:
        """Enqueue now: nothing here takes long enough to hold up a loop."""
        return self.enqueue_within(connection, commands, notify)

    @contextmanager
    def transaction_on(self, connection: Any) -> Iterator[Callable[[Complete], Verdict]]:
        """The handler's own transaction."""
        with transaction_block(connection) as check_open:

            def settle(command: Complete) -> Verdict:
                check_open()
                return self._settle(command)

            yield settle

    @asynccontextmanager
    async def atransaction_on(
        self, connection: Any
    ) -> AsyncIterator[Callable[[Complete], Awaitable[Verdict]]]:
        """The same on an asynchronous connection."""
        async with async_transaction_block(connection) as check_open:

            async def settle(command: Complete) -> Verdict:
                check_open()
                return self._settle(command)

            yield settle

    def _settle(self, command: Complete) -> Verdict:
        [verdict] = self._coordination.execute_many([command])
        assert isinstance(verdict, Verdict)
        return verdict
