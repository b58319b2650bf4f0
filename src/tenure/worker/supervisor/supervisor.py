"""The supervisor: keeps leases, heartbeats and reports. It never runs user code.

One thread and one selector: children, answers, signals and wake-ups all arrive there. Decides
nothing; the session gets what happens, and what it wants is carried out.
"""

import logging
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from typing import Any, assert_never

from tenure.clock import Boot, boot_now
from tenure.core.instants import MICROSECONDS_PER_SECOND, seconds
from tenure.core.job import JobError
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import LeaseNews, Stage, VerdictKind
from tenure.errors import Closed, InvalidInput, RequestRefused, StoreUnavailable
from tenure.handlers.registry import Isolation, Registry
from tenure.ports import Coordination
from tenure.protocol import URL_VARIABLE
from tenure.stop_signals import STOPS, was_asked
from tenure.telemetry import tracing
from tenure.telemetry.log_lines import job_ids
from tenure.telemetry.logs import one_line
from tenure.worker.frames import AskToStop, LeaseRenewed, Raised
from tenure.worker.session import messages
from tenure.worker.session.session import WorkerSession
from tenure.worker.supervisor.background import BackgroundTasks
from tenure.worker.supervisor.options import WorkerOptions, child_environment
from tenure.worker.supervisor.pool import ChildPool

LONGEST_SLEEP = seconds(1)
JUMP_THRESHOLD = seconds(5)
MEANINGLESS = (signal.SIGUSR1, signal.SIGUSR2)
"""Ignored: a handler that sends one to its parent must not end the worker."""

_REFUSED = Verdict(kind=VerdictKind.REJECTED)
"""For reports that a server refused unread, because the token is revoked. [H8]"""

_log = logging.getLogger("tenure.worker")


class JumpWatch:
    """Whether the wall clock ran ahead of the boot clock since the last reading.

    A virtual machine that was paused may have lost time on every clock but the wall's. A jump is
    only a suspicion (the clock may have been set), so it asks for heartbeats and ends nothing.
    """

    def __init__(self, *, threshold_us: int) -> None:
        self._threshold_us = threshold_us
        self._last: tuple[int, Boot] | None = None

    def jumped(self, *, wall_us: int, now: Boot) -> bool:
        """Take a pair of readings."""
        last, self._last = self._last, (wall_us, now)
        if last is None:
            return False
        return (wall_us - last[0]) - (now - last[1]) > self._threshold_us


class Supervisor:
    """Runs one session to its end."""

    def __init__(
        self,
        coordination: Coordination,
        registry: Registry,
        session: WorkerSession,
        options: WorkerOptions,
        *,
        app: str,
        background: BackgroundTasks,
    ) -> None:
        self._coordination = coordination
        self._session = session
        self._options = options
        self._isolation = {handler.kind: handler.isolation for handler in registry}
        self._calls: deque[Callable[[], None]] = deque()  # from other threads
        self._signals: deque[int] = deque()
        self._background = background
        self._stops = 0
        self._maintain_at = Boot(0)
        self._jumps = JumpWatch(threshold_us=JUMP_THRESHOLD)
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self._pool = ChildPool(
            app,
            _lanes(registry, options),
            options,
            environment=child_environment(
                os.environ if options.url is None else {**os.environ, URL_VARIABLE: options.url},
                only=options.only_environment,
                given=options.set_environment,
            ),
            selector=self._selector,
            clock=boot_now,
            session=session,
            store_output=background.store_output,
            carry_out=lambda request: background.carry_out(
                request, lambda answer: self._call(lambda: self._pool.answer(answer))
            ),
        )

    # --- from other threads and from signals ---------------------------------------------------

    def wake(self) -> None:
        """Hint that there may be work. Any thread."""
        self._call(self._session.work_expected)

    def stop(self) -> None:
        """Drain; called again, stop at once. Any thread."""
        self._call(self._count_stop)

    def drain(self) -> None:
        """Drain, as a signal would; asked again, change nothing. Any thread."""
        self._call(lambda: self._session.drain(self._options.grace_us, by_signal=False))

    def _count_stop(self) -> None:
        self._stops += 1
        if self._stops == 1:
            self._session.drain(self._options.grace_us)
        else:
            self._session.stop()

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        with suppress(
            BlockingIOError, OSError
        ):  # full: it wakes anyway; closed: the loop has ended
            self._wake_in.send(b"\0")

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """Signal handlers only queue the signal; the wake-up descriptor wakes the loop."""
        if not self._options.handles_signals:
            yield
            return

        def note(number: int, _: object) -> None:
            self._signals.append(number)

        before = {
            number: signal.signal(number, note)
            for number in (*STOPS, *MEANINGLESS)
            if signal.getsignal(number) is not signal.SIG_IGN  # such as SIGHUP under nohup
        }
        if was_asked(before.values()):
            self._count_stop()
        descriptor = signal.set_wakeup_fd(self._wake_in.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)

    # --- the loop ------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until stopped; 0, or 1 if the worker had to stop."""
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._drain_wakeups)
        with self._handling_signals():
            try:
                self._pool.start()
                while not self._session.is_done:
                    self._turn()
            finally:
                self._pool.close()
                self._selector.close()
                self._wake_in.close()
                self._wake_out.close()
        return 0 if self._session.failure is None else 1

    def _turn(self) -> None:
        self._selector.select(self._sleep_s())
        # Read the time first, then all events until then: wherever in a round this process is
        # stopped, a handler that finished meanwhile did so before its lease is judged.
        now = self._session.now = boot_now()
        for key, _ in self._selector.select(0):
            key.data()
        while self._signals:
            self._signalled(signal.Signals(self._signals.popleft()))
        while self._calls:
            self._calls.popleft()()
        if now >= self._maintain_at:
            self._pool.maintain()
        if self._jumps.jumped(wall_us=time.time_ns() // 1000, now=boot_now()):
            self._session.clock_jumped()
        while actions := self._session.turn():
            for action in actions:
                self._perform(action)
        self._pool.flush()

    def _signalled(self, number: signal.Signals) -> None:
        if number in STOPS:
            self._count_stop()
        else:
            _log.warning("ignoring %s; SIGTERM stops the worker", number.name)

    def _sleep_s(self) -> float:
        self._maintain_at = self._pool.next_at
        next_at = min(self._maintain_at, self._session.next_at)
        sleep_us = min(next_at - boot_now(), LONGEST_SLEEP)
        return max(0, sleep_us) / MICROSECONDS_PER_SECOND

    def _drain_wakeups(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_out.recv(4096):
                pass

    # --- actions -------------------------------------------------------------------------------

    def _perform(self, action: messages.Action) -> None:
        match action:
            case messages.Begin():
                self._begin(action)
            case messages.SendClaim():
                wait_us = action.wait_us
                self._submit(
                    action, lambda: self._coordination.submit_claim(action.request, wait_us=wait_us)
                )
            case messages.EndWaits():
                self._coordination.end_waits()
            case messages.Send():
                with tracing.use_trace(action.traced):
                    self._submit(action, lambda: self._coordination.submit_many(action.commands))
            case messages.PollLeases():
                with tracing.use_trace(action.traced):
                    self._background.poll_leases(action, self._polled)
            case LeaseRenewed():
                self._pool.renew(action)
            case AskToStop():
                self._pool.ask_to_stop(action)
            case messages.Kill():
                self._pool.kill(action.run)
            case messages.Draining():
                _log.info("%s", action.text)
                if action.running:
                    self._background.give_sign()
            case messages.Note():
                self._log_note(action)
            case _:
                assert_never(action)

    def _log_note(self, note: messages.Note) -> None:
        if note.is_routine and not self._options.tells_every_end:
            return
        level = logging.INFO if note.is_routine else logging.WARNING
        about = {} if note.job is None else job_ids(note.job)
        if note.below:
            about["below"] = note.below
        _log.log(logging.ERROR if note.is_error else level, "%s", one_line(note.text), extra=about)

    def _begin(self, action: messages.Begin) -> None:
        lane = self._isolation.get(action.grant.job.kind)
        if lane is None:
            # Only registered kinds are asked for; a coordinator that grants others is wrong.
            problem = f"this worker has no handler for the kind {action.grant.job.kind}"
            error = JobError(type="LookupError", message=problem, stage=Stage.FETCH)
            self._session.finished(action.run, Raised(error))
        else:
            self._pool.begin(action.run, lane, action.grant, action.until)

    def _polled(self, news: Mapping[int, LeaseNews] | None) -> None:
        """What a poll of leases found. Any thread."""
        self._call(lambda: self._session.leases_polled(news))

    def _submit(
        self, action: messages.SendClaim | messages.Send, submit: "Callable[[], Future[Any]]"
    ) -> None:
        # Children start before another thread takes the interpreter to decide.
        self._pool.flush()
        try:
            submitted = submit()
        except Exception as failure:  # a transport that failed at once; retried, and logged
            self._failed(action, failure)
        else:
            submitted.add_done_callback(lambda done: self._call(lambda: self._done(action, done)))

    def _done(self, action: messages.SendClaim | messages.Send, future: "Future[Any]") -> None:
        failure = CancelledError() if future.cancelled() else future.exception()
        if failure is not None:
            self._failed(action, failure)
        elif isinstance(action, messages.SendClaim):
            self._session.claim_answered(action.ticket, future.result())
        else:
            verdicts = [each for each in future.result() if isinstance(each, Verdict)]
            if len(verdicts) == len(action.commands):
                self._session.answered(action.ticket, verdicts)
            else:
                why = "the answers do not match the requests"
                self._session.unanswered(action.ticket, why)

    def _failed(self, action: messages.SendClaim | messages.Send, failure: BaseException) -> None:
        ticket, session = action.ticket, self._session
        match failure:
            case InvalidInput() | RequestRefused() | Closed() if isinstance(
                action, messages.SendClaim
            ):
                session.break_off(f"claims are refused: {failure}")
            case InvalidInput():
                session.refused(ticket, str(failure))
            case RequestRefused() if isinstance(action, messages.Send):
                _log.error("reports are refused: %s", one_line(str(failure)))
                session.answered(ticket, [_REFUSED] * len(action.commands))
            case _:
                # How long the coordinator asked to wait before a retry.
                wait_s = failure.retry_after_s if isinstance(failure, StoreUnavailable) else 0
                session.unanswered(ticket, f"{type(failure).__name__}: {failure}", seconds(wait_s))


def _lanes(registry: Registry, options: WorkerOptions) -> dict[Isolation, int]:
    """The lanes the handlers need, and how many children to keep warm in each."""
    used = {handler.isolation for handler in registry}
    warm = max(1, min(options.warm_children, options.concurrency))
    return {lane: warm if lane is Isolation.PROCESS else 1 for lane in Isolation if lane in used}
