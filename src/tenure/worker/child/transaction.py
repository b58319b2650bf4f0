"""Completes an attempt inside the handler's own transaction, in its child.

The child decides nothing: the application's coordinator does, on the handler's connection, under
the request id that the supervisor will use, so that the supervisor's report is a replay. The lease
is requested only here; other handlers never see one.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Protocol, TypeVar

import msgspec

from tenure.core.commands import Complete
from tenure.core.ids import Actor, JobId, LeaseId
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import Stage, VerdictKind
from tenure.errors import InvalidInput, LeaseConflictError
from tenure.handlers.context import Transaction
from tenure.worker.application import Transactions
from tenure.worker.frames import completion

_R = TypeVar("_R")


class Authority(msgspec.Struct, frozen=True):
    """What the supervisor lends a handler that completes itself."""

    lease_id: LeaseId
    actor: Actor


class AttemptTransaction(Transaction):
    """Takes the result, which the end of the block commits."""

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self._encode = encode
        self._result: bytes | None = None

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


class RunningAttempt(Protocol):
    """What the block needs of its attempt's context."""

    job_id: JobId

    def encode_result(self, value: Any) -> bytes:
        """The result as its annotation wants it."""

    def authority(self) -> Authority:
        """The lease; waits for the supervisor's answer."""

    async def aauthority(self) -> Authority:
        """The lease, without blocking the loop."""

    def in_transaction(self) -> AbstractContextManager[None]:
        """Held while the transaction is open."""

    def failed(self, error: Exception, stage: Stage) -> None:
        """The transaction failed at this stage."""

    def settled(self, result: bytes) -> None:
        """The result is committed."""


@contextmanager
def transact(
    holder: RunningAttempt, transactions: Transactions, connection: Any
) -> Iterator[Transaction]:
    """The block of `with ctx.transaction(connection)`."""
    authority = holder.authority()
    command: Complete | None = None  # once there is one, the handler's part is done
    try:
        with holder.in_transaction(), transactions.transaction_on(connection) as settle:
            transaction = AttemptTransaction(holder.encode_result)
            yield transaction
            command = _command(holder, authority, transaction)
            _judge(settle(command))
    except Exception as error:
        if command is not None:
            holder.failed(error, Stage.COMMIT)
        raise
    holder.settled(transaction.result)


@asynccontextmanager
async def atransact(
    holder: RunningAttempt, transactions: Transactions, connection: Any
) -> AsyncIterator[Transaction]:
    """The block of `async with ctx.transaction(connection)`."""
    authority = await holder.aauthority()
    command: Complete | None = None  # once there is one, the handler's part is done
    try:
        with holder.in_transaction():
            async with transactions.atransaction_on(connection) as settle:
                transaction = AttemptTransaction(holder.encode_result)
                yield transaction
                command = _command(holder, authority, transaction)
                _judge(await settle(command))
    except Exception as error:
        if command is not None:
            holder.failed(error, Stage.COMMIT)
        raise
    holder.settled(transaction.result)


def _command(
    holder: RunningAttempt, authority: Authority, transaction: AttemptTransaction
) -> Complete:
    return completion(
        job_id=holder.job_id,
        lease_id=authority.lease_id,
        actor=authority.actor,
        result=transaction.result,
    )


def _judge(verdict: Verdict) -> None:
    """Any verdict but COMMITTED rolls the handler's own writes back."""
    if verdict.kind is not VerdictKind.COMMITTED:
        raise LeaseConflictError(
            f"the attempt has lost its lease ({verdict.cause}), and its writes are rolled back"
        )
