"""The channel: a client's connection to its coordinator, opened at the first use, once per process.

A request that got no answer is sent again under the same ids for a minute, or for the time that the
application sets; then the caller gets the error. Decides nothing about jobs.
"""

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from tenure.client.shells import Operation, Wait, in_thread, pause, run
from tenure.core.commands import Command
from tenure.core.ids import (
    ENTROPY_BYTES,
    JobId,
    Namespace,
    RequestId,
    client_actor,
    operator_actor,
    ordered_job_id,
)
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job
from tenure.core.policy import Backoff, Retries, unit
from tenure.core.verdicts import Answer
from tenure.core.views.job_search import FoundJobs, JobFilter
from tenure.deadlines import RETRY_FOR_S
from tenure.errors import Contended, InvalidInput, StoreUnavailable, TenureError, UnknownJob
from tenure.ports import Coordination, Entropy, JobStore, OnHint, Transactions

RETRY = Backoff(initial_us=seconds(0.1), cap_us=seconds(5), floor=0.1)
SHORTEST_POLL_S = 0.01
LONGEST_POLL_S = 0.25
POLL_FACTOR = 1.5

IDS_PER_ENTROPY = 64
"""Random bytes are read for this many ids at once: a system call for each took a tenth of a bulk
enqueue."""

_T = TypeVar("_T")


def _no_database(hint: str) -> InvalidInput:
    problem = "there is no database here that your transaction could share with Tenure"
    return InvalidInput("connection", problem, hint=f"use a sqlite: or postgresql: URL, or {hint}")


class CallersTransactions(Transactions, Protocol):
    """Also executes commands within a transaction that is open."""

    def execute(
        self, connection: Any, commands: Sequence[Command], *, notify: bool = False
    ) -> list[Answer]:
        """With `notify` the caller's commit tells waiting workers."""

    async def aexecute(
        self, connection: Any, commands: Sequence[Command], *, notify: bool = False
    ) -> list[Answer]:
        """The same on an asynchronous connection."""


class NoTransactions:
    """Raises: there is no database that callers could share."""

    def execute(
        self, connection: Any, commands: Sequence[Command], *, notify: bool = False
    ) -> list[Answer]:
        """Raises."""
        raise _no_database("omit connection=")

    async def aexecute(
        self, connection: Any, commands: Sequence[Command], *, notify: bool = False
    ) -> list[Answer]:
        """Raises."""
        raise _no_database("omit connection=")

    def transaction_on(self, connection: Any) -> NoReturn:
        """Raises."""
        raise _no_database("return the result as any handler does")

    atransaction_on = transaction_on


class Link(msgspec.Struct, kw_only=True):
    """An open connection to a coordinator; tests replace its clock and its pauses."""

    coordination: Coordination
    close: Callable[[], None]
    retry_for_s: float = RETRY_FOR_S
    """For so long a request without an answer is sent again; 0 where the coordination itself
    repeats it."""
    transactions: CallersTransactions = NoTransactions()
    watch: Callable[[OnHint], Callable[[], None]] | None = None
    """`Store.watch` of the store, where it can be asked."""
    monotonic: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = pause
    apause: Callable[[float], Awaitable[None]] = asyncio.sleep


class Channel:
    """A client's namespace, name and link. Thread-safe; a forked child opens a link of its own."""

    def __init__(
        self,
        connect: Callable[[], Link],
        *,
        namespace: Namespace,
        name: str,
        entropy: Entropy = os.urandom,
    ) -> None:
        self.namespace = namespace
        self.actor = client_actor(name)
        self.operator = operator_actor(name)
        self._connect = connect
        self._entropy = entropy
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._pid = os.getpid()
        self._inherited: list[Link] = []
        self._skew_us = 0
        self._last_id_us = 0
        self._unused_entropy: list[bytes] = []
        weakref.finalize(self, close_at_exit, weakref.ref(self))

    # --- the link ------------------------------------------------------------------------------

    def link(self) -> Link:
        """The link, opened if it is not."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        link = self._link
        if link is None:
            with self._lock:
                if self._link is None:
                    opened = self._connect()
                    self._skew_us = opened.coordination.store.now() - time.time_ns() // 1000
                    self._link = opened
                link = self._link
        return link

    async def alink(self) -> Link:
        """The link; opening it does not block the loop."""
        if self._link is not None and self._pid == os.getpid():
            return self._link
        return await asyncio.to_thread(self.link)

    def _leave_to_parent(self) -> None:
        """After a fork: do not use the parent's link, whose threads are not here, and keep it open,
        because closing it would close the parent's connections."""
        if self._link is not None:
            self._inherited.append(self._link)
        self._lock = threading.Lock()  # it may have been held by a thread that was not copied
        self._link = None
        self._unused_entropy = []  # the parent uses these bytes
        self._pid = os.getpid()

    def close(self) -> None:
        """Close the link; the next use opens a new one."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    @contextmanager
    def diverted(self, link: Link) -> Iterator[None]:
        """Use another link within the block, for tests."""
        with self._lock:
            before, self._link = self._link, link
        try:
            yield
        finally:
            with self._lock:
                self._link = before

    # --- ids -----------------------------------------------------------------------------------

    def new_job_id(self) -> JobId:
        """A new id, higher than all that this process made before: jobs that are ready at the same
        instant are claimed in the order of their ids [Z1], and callers expect first in, first out.

        Its time is this host's clock, corrected by the difference to the store's when the link was
        opened. Ids only sort by it, and asking the store would double the cost of an enqueue.
        """
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._lock:
            now = max(time.time_ns() // 1000 + self._skew_us, self._last_id_us + 1)
            self._last_id_us = now
            if not self._unused_entropy:
                read = self._entropy(ENTROPY_BYTES * IDS_PER_ENTROPY)
                starts = range(0, len(read), ENTROPY_BYTES)
                self._unused_entropy = [read[start : start + ENTROPY_BYTES] for start in starts]
            entropy = self._unused_entropy.pop()
        return ordered_job_id(Instant(now), entropy)

    def new_request_id(self) -> RequestId:
        """A new request id."""
        return RequestId(self._entropy(ENTROPY_BYTES).hex())

    # --- asking --------------------------------------------------------------------------------

    def linking(self) -> Operation[Link]:
        """The link, opened if it is not."""
        link: Link = yield Wait(self.link, self.alink)
        return link

    def submit(self, link: Link, commands: Sequence[Command]) -> list[Answer]:
        """`submitting` in this thread, without generators for the first try: most need no other."""
        began_s = link.monotonic()
        try:
            return link.coordination.execute_many(commands)
        except (StoreUnavailable, Contended) as failure:
            return run(self.submitting(commands, failed=failure, began_s=began_s))

    def submitting(
        self,
        commands: Sequence[Command],
        *,
        failed: TenureError | None = None,
        began_s: float | None = None,
    ) -> Operation[list[Answer]]:
        """Submit commands; answers come in the order asked. `failed`: the first try did."""

        def wait(link: Link) -> Wait:
            coordination = link.coordination
            return Wait(
                lambda: coordination.execute_many(commands),
                lambda: asyncio.wrap_future(coordination.submit_many(commands)),
            )

        answers: list[Answer] = yield from self._repeating(wait, failed, began_s)
        return answers

    def asking(self, question: Callable[[JobStore], _T]) -> Operation[_T]:
        """Ask the store something that may be asked again."""
        answer: _T = yield from self._repeating(
            lambda link: in_thread(lambda: question(link.coordination.store))
        )
        return answer

    def ask(self, question: Callable[[JobStore], _T]) -> _T:
        """`asking` in this thread."""
        return run(self.asking(question))

    def reading(self, ids: Sequence[JobId]) -> Operation[dict[JobId, Job]]:
        """These jobs, as a reader gets them. [W5]"""
        found: dict[JobId, Job] = yield from self._repeating(
            lambda link: in_thread(lambda: link.coordination.read_jobs(ids))
        )
        return found

    def listing(self, wanted: JobFilter) -> Operation[FoundJobs]:
        """A page of jobs, as a reader gets them. [W5]"""
        found: FoundJobs = yield from self._repeating(
            lambda link: in_thread(lambda: link.coordination.list_jobs(wanted))
        )
        return found

    def _repeating(
        self,
        wait: Callable[[Link], Wait],
        failed: TenureError | None = None,
        began_s: float | None = None,
    ) -> Operation[Any]:
        """Wait for an answer, and send again what got none."""
        link = yield from self.linking()
        retries = Retries(
            RETRY,
            began_s=link.monotonic() if began_s is None else began_s,
            within_s=link.retry_for_s,
            random=lambda: unit(self._entropy(ENTROPY_BYTES)),
        )
        while True:
            if failed is not None:
                pause_s = retries.pause_s(link.monotonic())
                if pause_s is None:
                    raise failed
                yield pausing(link, pause_s)
            try:
                return (yield wait(link))
            except (StoreUnavailable, Contended) as failure:
                failed = failure

    def loading(self, job_id: JobId) -> Operation[Job]:
        """A job of this namespace; `UnknownJob` if there is none."""
        found = yield from self.reading([job_id])
        job = found.get(job_id)
        if job is None or job.namespace != self.namespace:
            raise UnknownJob(job_id)
        return job


def pausing(link: Link, pause_s: float) -> Wait:
    """A pause, as time passes for this link."""
    return Wait(lambda: link.pause(pause_s), lambda: link.apause(pause_s))


def poll_pauses() -> Iterator[float]:
    """10 ms, then longer, never more than 250 ms: quick for short jobs, cheap for long ones."""
    pause = SHORTEST_POLL_S
    while True:
        yield pause
        pause = min(pause * POLL_FACTOR, LONGEST_POLL_S)


def close_at_exit(channel: "weakref.ref[Channel]") -> None:
    """Close the link of an application that is still open, at the exit of the process.

    Otherwise the garbage collector closes the store, after Python has stopped the daemon threads
    wherever they were. One that was stopped within a lock keeps it, and a program that enqueued
    jobs on PostgreSQL waited for the notifier's lock for ever.
    """
    alive = channel()
    if alive is not None:  # None: it was collected before the exit, and its link with it
        alive.close()
