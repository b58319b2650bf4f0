"""One child as its supervisor sees it: a process, a socket, a pipe full of output.

Never blocks: everything is written when the other side reads, read when there is something, and
bounded. A child lives in a session of its own, and whatever it started is killed with it.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

import msgspec

from tenure.clock import Boot
from tenure.core.instants import seconds
from tenure.handlers.registry import Isolation
from tenure.worker.frames import (
    READ_BYTES,
    BegunMark,
    FrameError,
    FrameReader,
    LeaseRenewed,
    Setup,
    ToChild,
    ToSupervisor,
    decode_to_supervisor,
    encode_frame,
    largest_frame,
    shared_file,
)
from tenure.worker.session.timers import LatestOf, Timers
from tenure.worker.supervisor.output import BoundedOutput

CHILD_MODULE = "tenure.worker.child.main"
MAX_BACKLOG_BYTES = 64 * 1024
MAX_READS = 16  # per round of the loop, so that one chatty child cannot starve the others
WAIT_FOR_EXIT_S = 5.0


class Child:
    """A running child. The pool decides what it is used for."""

    def __init__(
        self,
        setup: Setup,
        *,
        number: int,
        environment: Mapping[str, str],
        output_bytes: int,
        selector: selectors.BaseSelector,
        on_readable: Callable[["Child"], None],
        on_exit: Callable[["Child"], object],
        on_output: Callable[["Child", list[str]], None] = lambda child, lines: None,
    ) -> None:
        """`on_readable` is called when it has sent something, `on_exit` when its process has ended,
        `on_output` with each piece that it prints once it is ready, as lines."""
        self.lane: Isolation = setup.lane
        self.number = number
        self.is_ready = False
        self.is_retiring = False
        self.was_killed = False  # on the pool's decision, to end one of its runs
        self.fault: str | None = None  # why it was killed, unless to end a run
        self.jobs_begun = 0
        self.runs: set[int] = set()
        self.ends = LatestOf()  # when its runs have to be over, without runs that end with it
        self.doomed: dict[int, Boot | None] = {}  # runs that must stop, and by when
        self.deadline: Boot | None = None  # to be ready, or to be gone once it retires
        self.output = BoundedOutput(output_bytes)
        self._selector = selector
        self._reader = FrameReader(max_bytes=largest_frame(setup.body_bytes))
        self._unencoded: list[ToChild] = []
        self._outgoing = bytearray()
        self._wants_to_write = False
        self._on_output = on_output
        self._on_readable = on_readable
        self._process, self._sock, self._begun_mark = _spawn(environment)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._exit_fd = _exit_descriptor(self._process.pid)
        self._watched: set[int] = set()
        self._watch(self._sock.fileno(), lambda: on_readable(self))
        self._watch(self._pipe, self.drain_output)
        if self._exit_fd is not None:
            self._watch(self._exit_fd, lambda: on_exit(self))
        self.send(setup)
        self.flush()

    def has_begun(self, run: int) -> bool:
        """Whether it has called the handler of this run, its last one, or may have: only children
        that run one attempt at a time report it."""
        return self.lane is not Isolation.PROCESS or self._begun_mark.is_of(run)

    @property
    def reports_exit(self) -> bool:
        """Whether `on_exit` is called; else its owner has to check."""
        return self._exit_fd is not None

    # --- talking -------------------------------------------------------------------------------

    def send(self, message: ToChild) -> None:
        """Queue a frame; `flush` writes it."""
        if isinstance(message, LeaseRenewed) and len(self._outgoing) > MAX_BACKLOG_BYTES:
            return  # it has not read for long; a later renewal will do
        self._unencoded.append(message)

    def flush(self) -> None:
        """Write what the child takes now, and the rest when it reads."""
        if self._unencoded:
            self._outgoing += encode_frame(*self._unencoded)
            self._unencoded.clear()
        elif not self._outgoing and not self._wants_to_write:
            return
        with suppress(BlockingIOError, ConnectionError):
            while self._outgoing:
                del self._outgoing[: self._sock.send(self._outgoing)]
        wants_to_write = bool(self._outgoing)
        if wants_to_write != self._wants_to_write and self._sock.fileno() in self._watched:
            self._wants_to_write = wants_to_write
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants_to_write else 0)
            self._selector.modify(self._sock.fileno(), events, lambda: self._on_readable(self))

    def receive(self) -> tuple[list[ToSupervisor], bool]:
        """The child's frames, and whether its end of the socket is closed or broken."""
        if self._wants_to_write:
            self.flush()
        messages: list[ToSupervisor] = []
        try:
            for _ in range(MAX_READS):
                data = self._sock.recv(READ_BYTES)
                if not data:
                    self._unwatch(self._sock.fileno())
                    return messages, True
                for frame in self._reader.feed(data):
                    messages += decode_to_supervisor(frame)
                if len(data) < READ_BYTES:
                    break
        except BlockingIOError:
            pass
        except (ConnectionError, FrameError, msgspec.DecodeError):
            self._unwatch(self._sock.fileno())
            return messages, True
        return messages, False

    def drain_output(self) -> None:
        """Read whatever waits in the pipe: a full pipe would block the handler."""
        if self._pipe not in self._watched:
            return  # at its end, or closed earlier in the same round
        with suppress(BlockingIOError):
            for _ in range(MAX_READS):
                data = os.read(self._pipe, READ_BYTES)
                if not data:
                    self._unwatch(self._pipe)
                    return
                lines = self.output.write(data)
                if self.is_ready:
                    self._on_output(self, lines)
                if len(data) < READ_BYTES:
                    return

    # --- ending --------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL for the child and for every process of its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def is_sigkilled(self) -> bool:
        """Whether it was killed by SIGKILL, known once it is reaped."""
        return self._process.returncode == -signal.SIGKILL

    def has_exited(self) -> bool:
        """Whether the process is gone; a zombie keeps its number until `reap`."""
        if self._process.returncode is not None:
            return True
        if hasattr(os, "waitid"):
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, options) is not None
        return self._process.poll() is not None

    def reap(self) -> str:
        """Reap the process and its group, close everything; how it ended, in words."""
        # The group first: the zombie still has its id, so no other process can have it.
        self.kill()
        try:
            self._process.wait(WAIT_FOR_EXIT_S)
        except subprocess.TimeoutExpired:  # stuck in the kernel; init will reap it
            return "could not be reaped"
        finally:
            self.drain_output()
            self._close()
        return self.fault or describe_exit(self._process.returncode)

    def _close(self) -> None:
        for descriptor in list(self._watched):
            self._unwatch(descriptor)
        self._sock.close()
        if self._exit_fd is not None:
            os.close(self._exit_fd)
            self._exit_fd = None
        assert self._process.stdout is not None
        self._process.stdout.close()

    def forget(self) -> None:
        """Close what is left of it: how far it came is not asked any more."""
        self._begun_mark.close()

    # --- watching ------------------------------------------------------------------------------

    def _watch(self, descriptor: int, call: Callable[[], object]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, call)
        self._watched.add(descriptor)

    def _unwatch(self, descriptor: int) -> None:
        if descriptor in self._watched:
            self._watched.discard(descriptor)
            self._selector.unregister(descriptor)


def _spawn(
    environment: Mapping[str, str],
) -> tuple["subprocess.Popen[bytes]", socket.socket, BegunMark]:
    with ExitStack() as opened:  # closes everything if there are too few descriptors or processes
        ours, theirs = socket.socketpair()
        opened.callback(ours.close)
        with theirs:
            page = shared_file()
            try:
                begun_mark = BegunMark(page)
                opened.callback(begun_mark.close)
                begun_mark.clear()
                arguments = (theirs.fileno(), os.getpid(), page)
                process = subprocess.Popen(
                    [sys.executable, "-m", CHILD_MODULE, *map(str, arguments)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    pass_fds=(theirs.fileno(), page),
                    close_fds=True,
                    start_new_session=True,
                    bufsize=0,
                )
            finally:
                os.close(page)
        opened.pop_all()
    ours.setblocking(False)
    return process, ours, begun_mark


def _exit_descriptor(pid: int) -> int | None:
    """Readable when the process has ended, even if its own children keep the socket open."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, or a sandbox that does not know it
        return None


def describe_exit(status: int) -> str:
    """How a process ended, in words: `exited with code 3`, `was killed by SIGSEGV`."""
    if status >= 0:
        return f"exited with code {status} before it reported"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if -status == signal.SIGKILL:
        return f"was killed by {name}; if no process sent it, memory ran out"
    return f"was killed by {name}"


# --- the children of a lane ----------------------------------------------------------------------


MOMENT = seconds(0.005)
"""An attempt that has run this long is not short: other attempts stop waiting for its child."""


class RecentlyBegun:
    """The attempts that started a moment ago and have not ended. While there are a few, others
    wait.

    If many short jobs come at once, each would wake a process of its own, whose memory is no longer
    in the processor's caches: a job that does nothing cost its child 300 µs of CPU in one of 32
    processes, 130 µs in one of 4 that took turns. So a few start, and the next one where one has
    just ended. Jobs that have not ended after a moment are not short: then all start.
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._until = Timers()  # by run: when it has run for more than a moment

    def begun(self, run: int, now: Boot) -> None:
        """It starts."""
        self._until.put(run, Boot(now + MOMENT))

    def ended(self, run: int) -> None:
        """It has ended, or never started."""
        self._until.drop(run)

    def forget(self) -> None:
        """As if none of them had started a moment ago."""
        self._until = Timers()

    def has_room(self, now: Boot) -> bool:
        """Whether another one may start now."""
        self._until.due(now)
        return len(self._until) < self._most

    @property
    def next_at(self) -> Boot:
        """When the oldest of them has run for more than a moment."""
        return self._until.next_at


class LaneChildren:
    """Children of one lane. One that may take no more work has left, even if it still runs."""

    def __init__(self, lane: Isolation, *, warm: int, most: int, most_starting: int) -> None:
        self._lane = lane
        self._warm = warm
        self._most = most
        self._most_starting = most_starting
        self._starting: set[Child] = set()
        self._serving: set[Child] = set()
        self._expiring: set[Child] = set()  # serve until their successor does, or are worn out
        self._free: deque[Child] = deque()  # the right end is taken first
        self.waiting: dict[int, None] = {}  # runs without a child, the oldest first

    @property
    def serving(self) -> int:
        """How many children can run attempts."""
        return len(self._serving)

    @property
    def has_free(self) -> bool:
        """Whether a child could take an attempt."""
        return bool(self._free)

    @property
    def missing(self) -> int:
        """How many children to start now: enough for all attempts, and the warm ones; for each that
        expires a successor. When all are taken, one more per core, because a claim asks for no
        more jobs than have a child. Only a few start at a time: until they are ready, others may
        have run the attempts that wait."""
        lasting = len(self._starting) + len(self._serving) - len(self._expiring)
        if self._lane is not Isolation.PROCESS:
            return 0 if lasting else 1
        attempts = len(self._serving) - len(self._free) + len(self.waiting)
        if 0 < len(self._serving) == attempts:
            attempts = min(self._most, attempts + max(1, self._most_starting // 2))
        wanted = max(self._warm, attempts) - lasting
        return max(0, min(wanted, self._most_starting - len(self._starting)))

    # --- children come and go ------------------------------------------------------------------

    def started(self, child: Child) -> None:
        """Its process was started."""
        self._starting.add(child)

    def ready(self, child: Child) -> list[Child]:
        """It can run attempts. Returns the children that it replaces in a shared lane."""
        self._starting.discard(child)
        self._serving.add(child)
        self._free.appendleft(child)  # the last choice: the children before it are used up first
        return [] if self._lane is Isolation.PROCESS else list(self._expiring)

    def expire(self, child: Child) -> None:
        """It will leave soon: its successor is started now."""
        if child in self._serving:
            self._expiring.add(child)

    def leave(self, child: Child) -> None:
        """It takes no more work: it retires, was killed, or is gone."""
        self._starting.discard(child)
        self._expiring.discard(child)
        if child in self._serving:
            self._serving.discard(child)
            if child in self._free:
                self._free.remove(child)

    # --- attempts ------------------------------------------------------------------------------

    def take(self) -> Child | None:
        """A child for one attempt; a process child is taken for it alone."""
        if not self._free:
            return None
        return self._free.pop() if self._lane is Isolation.PROCESS else self._free[-1]

    def give_back(self, child: Child) -> None:
        """An attempt in it has ended."""
        if self._lane is Isolation.PROCESS and child in self._serving:
            self._free.append(child)
