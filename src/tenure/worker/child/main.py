"""`python -m tenure.worker.child.main FD PARENT MARK`: the child process, started by a supervisor.

Imports the application, runs attempts in one of three lanes, dies with its supervisor. Everything
here runs beside user code and is trusted with nothing but the attempt. The main thread belongs to
handlers (or to their event loop); a listener thread reads what the supervisor sends while they run.
"""

import asyncio
import faulthandler
import gc
import io
import os
import signal
import socket
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TextIO

from tenure.clock import boot_now
from tenure.core.instants import Duration, seconds
from tenure.core.validation import Limits
from tenure.handlers.registry import Isolation, Registry
from tenure.ports import Transactions
from tenure.worker import frames
from tenure.worker.application import load_application
from tenure.worker.child.asks import FrameSocket
from tenure.worker.child.confinement import (
    confine,
    die_with_parent,
    ignore_termination,
    reset_process,
)
from tenure.worker.child.execution import Execution

MAX_SETUP_BYTES = 64 * 1024 * 1024
LOOP_CHECK_S = 0.5
LOOP_BLOCKED_AFTER = seconds(2)
STACK_CHARACTERS = 4000
PRINTED_CHARACTERS = 16 * 1024  # in one frame
LISTEN_AFTER_S = 0.05
"""A handler of the process lane runs for at least this long before the listener reads what the
supervisor sends. Only the answers to the handler's own questions are more urgent: a question wakes
the listener at once."""


def resident_bytes() -> int:
    """The memory this process uses now; 0 where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class ChildLane(ABC):
    """How a child runs its attempts."""

    transactions: Transactions | None = None  # the application's, if it has any
    measures_memory = False
    begun_mark: frames.BegunMark | None = None  # shared with the supervisor

    def __init__(self, channel: FrameSocket, registry: Registry, limits: Limits) -> None:
        self.channel = channel
        self._registry = registry
        self._limits = limits
        self._running: dict[int, Execution] = {}

    @abstractmethod
    def serve(self) -> None:
        """Runs attempts in the main thread until the child retires."""

    @abstractmethod
    def start(self, executions: list[Execution]) -> None:
        """Start attempts; called in the thread that reads."""

    @abstractmethod
    def retire(self) -> None:
        """Let `serve` return once nothing runs; called in the thread that reads."""

    def listen(self) -> None:
        """The listener's thread: passes on what the supervisor sends."""
        while True:
            self.take(self._receive())

    def _receive(self) -> list[frames.ToChild]:
        """What the supervisor sends next. Ends the process when the supervisor is gone."""
        received = self.channel.receive()
        if not received:
            os.killpg(os.getpgid(0), signal.SIGKILL)  # this process, and all it started
        return received

    def take(self, received: list[frames.ToChild]) -> None:
        """Pass on a frame of the supervisor."""
        begun: list[Execution] = []
        for message in received:
            match message:
                case frames.Run():
                    begun.append(self._execution(message))
                case frames.Retire():
                    self.start(begun)
                    begun = []
                    self.retire()
                case frames.Setup():
                    pass
                case _:
                    execution = self._running.get(message.run)
                    if execution is not None:
                        execution.context.receive(message)
        if begun:
            self.start(begun)

    def send(self, message: frames.ToSupervisor) -> None:
        """Send what an attempt has for the supervisor. Any thread."""
        self.channel.send(message)

    def _execution(self, run: frames.Run) -> Execution:
        execution = Execution(
            self._registry,
            run,
            send=self.send,
            limits=self._limits,
            transactions=self.transactions,
        )
        self._running[run.run] = execution
        return execution

    def ended(self, execution: Execution, outcome: frames.FromChild) -> frames.Ended:
        """An attempt's handler is gone; `send_ends` notifies the supervisor."""
        del self._running[execution.run.run]
        rss_bytes = resident_bytes() if self.measures_memory else 0
        return frames.Ended(run=execution.run.run, outcome=outcome, rss_bytes=rss_bytes)

    def send_ends(self, *ends: frames.Ended) -> None:
        """Send these ends to the supervisor, after what was printed before them."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a handler may have closed it, or put None in its place
                stream.flush()
        self.channel.send(*ends)


class ProcessLane(ChildLane):
    """One attempt at a time, in the main thread.

    Between two attempts the main thread reads itself: to wake another thread for each job costs
    more than a short job does. While a handler runs, the listener reads in its place, once the
    handler has run for a moment or waits for an answer, and until it has read the next job. One of
    the two threads reads at a time: `_main_reads` states which.
    """

    def __init__(self, channel: FrameSocket, registry: Registry, limits: Limits) -> None:
        super().__init__(channel, registry, limits)
        self._inbox: SimpleQueue[Execution | None] = SimpleQueue()
        self._calls: SimpleQueue[None] = SimpleQueue()  # wake the listener
        self._lock = threading.Lock()  # for the attributes below
        self._main_reads = True
        self._begun = 0  # attempts
        self._is_running = False
        self._is_listener_idle = False

    def serve(self) -> None:
        """Run attempts in order of arrival."""
        home = str(Path.cwd())
        while (execution := self._next()) is not None:
            self._begins()
            if self.begun_mark is not None:
                self.begun_mark.write(execution.run.run)  # [WP21]
            outcome = execution.perform()
            reset_process(home)
            with self._lock:
                self._is_running = False
            self.send_ends(self.ended(execution, outcome))

    def _next(self) -> Execution | None:
        while True:
            with self._lock:
                reads = self._main_reads and self._inbox.empty()
            if not reads:
                return self._inbox.get()
            self.take(self._receive())

    def _begins(self) -> None:
        with self._lock:
            self._begun += 1
            self._is_running = True
            is_listener_idle, self._is_listener_idle = self._is_listener_idle, False
        if is_listener_idle:
            self._calls.put(None)

    def listen(self) -> None:
        """The listener's thread: sleeps while nothing runs, checks now and then whether the same
        attempt still runs, and if so reads."""
        seen = 0
        while True:
            is_called = self._is_called_within(LISTEN_AFTER_S)
            with self._lock:
                is_same = self._begun == seen
                seen = self._begun
                self._main_reads = not (self._is_running and (is_same or is_called))
                self._is_listener_idle = is_same and not self._is_running
            while not self._main_reads:
                self.take(self._receive())
            if self._is_listener_idle:
                self._calls.get()

    def _is_called_within(self, timeout_s: float) -> bool:
        try:
            self._calls.get(timeout=timeout_s)
        except Empty:
            return False
        return True

    def send(self, message: frames.ToSupervisor) -> None:
        """A handler that asks waits for the answer: one of the two threads has to read it."""
        super().send(message)
        if self._main_reads and isinstance(message, frames.Ask):
            self._calls.put(None)

    def start(self, executions: list[Execution]) -> None:
        """Hand them to the main thread, which reads again after them."""
        self._hand_over(*executions)

    def retire(self) -> None:
        """End after what is already in the queue."""
        self._hand_over(None)

    def _hand_over(self, *executions: Execution | None) -> None:
        with self._lock:
            self._main_reads = True
            for execution in executions:
                self._inbox.put(execution)


class ThreadLane(ChildLane):
    """Many attempts, a thread each. A thread cannot be killed; the process can."""

    def __init__(self, channel: FrameSocket, registry: Registry, limits: Limits) -> None:
        super().__init__(channel, registry, limits)
        self._threads: set[threading.Thread] = set()
        self._retiring = threading.Event()

    def serve(self) -> None:
        """Wait until the child may end."""
        self._retiring.wait()
        for thread in list(self._threads):
            thread.join()

    def start(self, executions: list[Execution]) -> None:
        """Daemon threads, so that one that never ends cannot keep the process alive."""
        for execution in executions:
            name = f"job-{execution.run.job_id}"
            thread = threading.Thread(
                target=self._perform, args=(execution,), name=name, daemon=True
            )
            self._threads.add(thread)
            thread.start()

    def _perform(self, execution: Execution) -> None:
        current_run.set(execution.run.run)
        outcome = execution.perform()
        self._threads.discard(threading.current_thread())
        self.send_ends(self.ended(execution, outcome))

    def retire(self) -> None:
        """End after the threads that run."""
        self._retiring.set()


class AsyncLane(ChildLane):
    """Many coroutines in one loop. Leases do not depend on the loop: the supervisor keeps them."""

    def __init__(self, channel: FrameSocket, registry: Registry, limits: Limits) -> None:
        super().__init__(channel, registry, limits)
        self._loop = asyncio.new_event_loop()
        self._retiring = asyncio.Event()
        self._tasks: set[asyncio.Task[frames.FromChild]] = set()
        self._turned_at = boot_now()
        self._unsent: deque[frames.Ended] = deque()  # of attempts that ended in this round

    def serve(self) -> None:
        """Run the loop until the child may end."""
        threading.Thread(target=self._watch, name="tenure-watchdog", daemon=True).start()
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        finally:
            self._send_unsent()

    async def _main(self) -> None:
        beat = self._loop.create_task(self._beat())
        await self._retiring.wait()
        if self._tasks:
            await asyncio.wait(self._tasks)
        beat.cancel()

    async def _beat(self) -> None:
        while True:
            self._turned_at = boot_now()
            await asyncio.sleep(LOOP_CHECK_S)

    def _watch(self) -> None:
        """In its own thread: reports each time that the loop is blocked, once, and what ended
        before."""
        pause = threading.Event()
        reported_at = None
        while not pause.wait(LOOP_CHECK_S):
            self._send_unsent()
            turned_at = self._turned_at
            late_us = Duration(boot_now() - turned_at)
            if late_us > LOOP_BLOCKED_AFTER and reported_at != turned_at:
                reported_at = turned_at
                self.channel.send(frames.LoopBlocked(late_us, _stack_of_main_thread()))

    def start(self, executions: list[Execution]) -> None:
        """Hand them to the loop."""
        self._loop.call_soon_threadsafe(self._spawn, executions)

    def _spawn(self, executions: list[Execution]) -> None:
        for execution in executions:
            context = copy_context()
            context.run(current_run.set, execution.run.run)
            task = self._loop.create_task(execution.perform_async(), context=context)
            self._tasks.add(task)
            task.add_done_callback(partial(self._done, execution))
            execution.context.on_stop(partial(self._loop.call_soon_threadsafe, task.cancel))

    def _done(self, execution: Execution, task: "asyncio.Task[frames.FromChild]") -> None:
        self._tasks.discard(task)
        execution.context.on_stop(None)
        # Cancelled before its first step no code of its own ran. After its last one (some handler
        # has cancelled every task, or stopped the loop) what it returned is still its outcome.
        outcome = execution.outcome or execution.outcome_of(asyncio.CancelledError())
        if not self._unsent:
            self._loop.call_soon(self._send_unsent)
        self._unsent.append(self.ended(execution, outcome))

    def _send_unsent(self) -> None:
        """Tell the supervisor of all attempts that have ended since the last time. Any thread."""
        unsent: list[frames.Ended] = []
        with suppress(IndexError):
            while True:
                unsent.append(self._unsent.popleft())
        if unsent:
            self.send_ends(*unsent)

    def retire(self) -> None:
        """End after the coroutines that run."""
        self._loop.call_soon_threadsafe(self._retiring.set)


def _stack_of_main_thread() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    text = "".join(traceback.format_stack(frame)) if frame is not None else ""
    return text[-STACK_CHARACTERS:]


current_run: ContextVar[int | None] = ContextVar("current_run", default=None)


class RoutedStream(io.TextIOBase):
    """stdout or stderr of a shared child: sends what an attempt writes with its number."""

    def __init__(self, real: TextIO, send: Callable[[frames.Printed], None]) -> None:
        self._real = real
        self._send = send

    def write(self, text: str) -> int:
        """Write to the output of the current attempt, if any, else to the child's."""
        run = current_run.get()
        if run is None:
            return self._real.write(text)
        for start in range(0, len(text), PRINTED_CHARACTERS):
            piece = text[start : start + PRINTED_CHARACTERS]
            self._send(frames.Printed(run, piece.encode("utf-8", "backslashreplace").decode()))
        return len(text)

    def writable(self) -> bool:
        """Yes."""
        return True

    def flush(self) -> None:
        """Only the child's own stream buffers anything."""
        self._real.flush()

    def fileno(self) -> int:
        """The child's own, for programs that are started with it."""
        return self._real.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base's cannot be set either
        """The child's own."""
        return self._real.encoding

    def __getattr__(self, name: str) -> Any:
        """What else the child's own stream has: modules may ask for `buffer` or `reconfigure`."""
        return getattr(self._real, name)


_LANES: dict[Isolation, type[ChildLane]] = {
    Isolation.PROCESS: ProcessLane,
    Isolation.THREAD: ThreadLane,
    Isolation.ASYNC: AsyncLane,
}


def serve(descriptor: int, parent: int, mark: int) -> None:
    """Run one child from start to end."""
    die_with_parent(parent)
    ignore_termination()
    faulthandler.enable()  # a crash leaves its stack in the attempt's output
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    begun_mark = frames.BegunMark(mark)
    os.close(mark)
    channel = FrameSocket(sock, max_bytes=MAX_SETUP_BYTES + frames.FRAME_OVERHEAD_BYTES)
    received = channel.receive()
    if not received or not isinstance(received[0], frames.Setup):
        return
    setup = received[0]
    confine(setup.memory_bytes)
    sys.path[:] = setup.path
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    if setup.lane is not Isolation.PROCESS:
        # Before the application: a log handler that it makes keeps the stream that it finds.
        sys.stdout = RoutedStream(sys.stdout, channel.send)
        sys.stderr = RoutedStream(sys.stderr, channel.send)
    application = load_application(setup.app)
    limits = Limits(body_bytes=setup.body_bytes, depth=setup.depth)
    lane = _LANES[setup.lane](channel, application.registry, limits)
    lane.transactions = application.transactions
    lane.measures_memory = setup.measures_memory
    lane.begun_mark = begun_mark
    lane.take(received)  # what came together with the setup
    threading.Thread(target=lane.listen, name="tenure-listener", daemon=True).start()
    gc.freeze()  # what the imports made stays: collections skip it
    channel.send(frames.Ready())
    try:
        lane.serve()
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        os._exit(1)  # at once: a thread that a handler left behind would keep the process alive


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:4]))
