"""What a worker does outside its loop: signs of life, lease polls, output, and what handlers ask.

One thread and a bounded queue, because the supervisor must never wait for a store. Nothing here
decides about a job, and nothing that fails here costs one: failures are logged.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from queue import Empty, Full, Queue
from typing import TypeVar

from msgspec.structs import replace

from tenure.core.artifacts import MAX_ARTIFACT_BYTES, AttemptOutput
from tenure.core.ids import Actor, Namespace
from tenure.core.vocabulary import LeaseNews
from tenure.core.workers import WorkerProcess
from tenure.errors import TenureError
from tenure.ports import Coordination
from tenure.telemetry.logs import one_line
from tenure.worker.frames import AskAnswer, EnqueueJob
from tenure.worker.session.messages import PollLeases
from tenure.worker.supervisor.requests import HandlerRequest, HandlerRequests

MAX_WAITING = 500
MAX_WAITING_WITH_EARLY_OUTPUT = 20
MAX_WAITING_REQUEST_BYTES = 16 * MAX_ARTIFACT_BYTES
CLOSE_WITHIN_S = 5.0
SIGN, POLL = "a sign of life", "a poll of its leases"

_T = TypeVar("_T")

_log = logging.getLogger("tenure.worker")


class ByteBudget:
    """Limits how many bytes wait at a time. Any thread."""

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = size_bytes
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> bool:
        """Whether these bytes were within the limit."""
        with self._lock:
            fits = size_bytes <= self._left_bytes
            self._left_bytes -= size_bytes if fits else 0
            return fits

    def free(self, size_bytes: int) -> None:
        """These bytes wait no more."""
        with self._lock:
            self._left_bytes += size_bytes


class BackgroundTasks:
    """Runs tasks in order on one thread, and reports every ten seconds that the worker lives."""

    def __init__(
        self,
        coordination: Coordination,
        describe: Callable[[], WorkerProcess],
        *,
        actor: Actor,
        namespace: Namespace,
        drain: Callable[[], None],
        is_silence_reported: Callable[[], bool],
        interval_s: float,
    ) -> None:
        self._coordination = coordination
        self._describe = describe
        self._actor = actor
        self._requests = HandlerRequests(coordination, actor=actor, namespace=namespace)
        self._drain = drain
        self._is_silence_reported = is_silence_reported
        self._interval_s = interval_s
        self._sign_at = time.monotonic()
        self._is_draining = False
        self._tasks: Queue[tuple[str, Callable[[], object]]] = Queue(MAX_WAITING)
        self._request_bytes = ByteBudget(MAX_WAITING_REQUEST_BYTES)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tenure-background", daemon=True)

    def start(self) -> None:
        """Start, with a sign of life."""
        self._thread.start()

    def submit(self, what: str, task: Callable[[], object]) -> bool:
        """Queue a task, in the caller's trace; False if too many are waiting. Never blocks."""
        context = copy_context()
        try:
            self._tasks.put_nowait((what, lambda: context.run(task)))
        except Full:
            _log.warning("%s was skipped: the store is too slow", what)
            return False
        return True

    def give_sign(self) -> None:
        """Give a sign of life now: the worker has something new to report about itself."""
        self.submit(SIGN, self._sign)

    def store_output(self, output: AttemptOutput, is_last: bool) -> None:
        """Store what a handler printed. If many tasks wait, the output of running attempts is
        skipped: the store is slow, and more will come."""
        if is_last or self._tasks.qsize() < MAX_WAITING_WITH_EARLY_OUTPUT:
            what = f"storing the output of job {output.job_id}"
            self.submit(what, lambda: self._coordination.store.artifacts.put_log(output))

    def carry_out(self, request: HandlerRequest, answer: Callable[[AskAnswer], None]) -> None:
        """Carry out what a handler asks, then answer, once and in whatever thread."""
        if isinstance(request.ask.what, EnqueueJob):
            self._requests.enqueue(request, answer)
            return
        size_bytes = request.size_bytes

        def done(answered: AskAnswer) -> None:
            self._request_bytes.free(size_bytes)
            answer(answered)

        if self._request_bytes.take(size_bytes):
            self._answer_later(
                request.describe(),
                lambda: self._requests.carry_out(request),
                done,
                otherwise=request.unavailable("the store is too slow"),
            )
        else:
            answer(request.unavailable("the store is too slow"))

    def poll_leases(
        self, poll: PollLeases, answer: Callable[[dict[int, LeaseNews] | None], None]
    ) -> None:
        """Ask which leases have news, then answer with them by run, or with None."""

        def work() -> dict[int, LeaseNews] | None:
            held = list(poll.leases.values())
            news = self._coordination.store.jobs.peek_leases(held, self._actor)
            return dict(zip(poll.leases, news, strict=True))

        self._answer_later(POLL, work, answer, otherwise=None)

    def _answer_later(
        self, what: str, work: Callable[[], _T], answer: Callable[[_T], None], *, otherwise: _T
    ) -> None:
        """Queue this work and answer with its result, once; `otherwise` if it could not be done."""

        def task() -> None:
            result = otherwise
            try:
                result = work()
            finally:
                answer(result)

        if not self.submit(what, task):
            answer(otherwise)

    def close(self) -> None:
        """Finish what waits and give a last sign of life, within a few seconds; without it if
        nothing waits and the coordinator does not answer anyway."""
        self._closing.set()
        if self._is_silence_reported() and self._tasks.empty():
            self.submit("the end", lambda: None)  # wakes the thread
            return
        if self.submit("the last sign of life", self._say_goodbye):
            self._thread.join(CLOSE_WITHIN_S)

    # --- its thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._closing.is_set() and self._tasks.empty()):
            if time.monotonic() >= self._sign_at and not self._closing.is_set():
                self._sign_at = time.monotonic() + self._interval_s
                self._do(SIGN, self._sign)
            try:
                what, task = self._tasks.get(timeout=max(0.0, self._sign_at - time.monotonic()))
            except Empty:
                continue
            self._do(what, task)

    def _sign(self) -> None:
        if self._coordination.store.workers.see(self._describe()) and not self._is_draining:
            self._is_draining = True  # further signs of life get the same answer
            _log.warning("an operator asked this worker to drain")
            self._drain()

    def _say_goodbye(self) -> None:
        self._coordination.store.workers.see(replace(self._describe(), is_ending=True))

    def _do(self, what: str, task: Callable[[], object]) -> None:
        try:
            task()
        except TenureError as failure:
            # Signs of life and polls repeat: the session has logged that there is no answer.
            is_news = what not in (SIGN, POLL) or not self._is_silence_reported()
            level = logging.WARNING if is_news else logging.DEBUG
            _log.log(level, "%s failed: %s", what, one_line(str(failure)))
        except Exception:  # a bug of ours must not end the thread; logged
            _log.exception("%s failed", what)
