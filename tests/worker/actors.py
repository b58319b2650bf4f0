"""A pool whose children are processes that do nothing: the test says what they say."""

import os
import selectors
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress

import pytest

from tenure.clock import Boot, boot_now
from tenure.core.ids import Actor
from tenure.handlers.registry import Isolation
from tenure.worker.frames import (
    Authority,
    BegunMark,
    CheckpointSaved,
    Ended,
    ProgressMade,
    Ready,
    Returned,
    SelfCompleted,
    encode_frame,
    shared_file,
)
from tenure.worker.session.messages import Outcome, Stats
from tenure.worker.session.session import WorkerSession
from tenure.worker.supervisor import children, pool
from tenure.worker.supervisor.options import WorkerOptions
from tenure.worker.supervisor.pool import ChildPool
from tests.support.coordinators import KIND
from tests.worker.grants import grant_of, in_a_minute


class Events(WorkerSession):
    """A session that only remembers which attempts have finished."""

    def __init__(self) -> None:
        self.stats = Stats()
        self.actor = Actor("worker:w1")
        self.finished_runs: list[tuple[int, Outcome]] = []
        self.serving: dict[Isolation, int] = {}

    def finished(self, run: int, outcome: Outcome) -> None:
        self.finished_runs.append((run, outcome))

    def child_sent(self, message: CheckpointSaved | ProgressMade | SelfCompleted) -> None:
        pass

    def lend(self, run: int) -> Authority | None:
        raise AssertionError(run)

    def children_serving(self, lane: Isolation, children: int) -> None:
        self.serving[lane] = children

    def break_off(self, why: str) -> None:
        raise AssertionError(why)


class Actors:
    """A pool and its children, all of them ready, and all but one with an attempt."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        lane: Isolation,
        runs: int,
        *,
        jobs_per_child: int = 10_000,
        clock: Callable[[], Boot] = boot_now,
    ) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self.ends: list[socket.socket] = []  # of the sockets that belong to children
        self.session = Events()
        self.selector = selectors.DefaultSelector()
        monkeypatch.setattr(children, "_spawn", self._spawn)
        monkeypatch.setattr(pool, "BEGUN_PER_CORE", runs)  # none waits for those before it
        self.pool = ChildPool(
            "no:app",
            {lane: runs},
            WorkerOptions(concurrency=runs, jobs_per_child=jobs_per_child),
            environment={},
            selector=self.selector,
            clock=clock,
            session=self.session,
            store_output=lambda output, is_last: None,
        )
        self._given = selectors.DefaultSelector()
        self._lane = lane
        self._runs = 1_000_000
        self.pool.start()
        ready = 0
        while ready < len(self.ends):  # a few start at a time, the next when those are ready
            self.say_ready(ready)
            self.turn()
            ready += 1
        for run in range(runs - 1):
            self.begin(run)
        self.turn()
        for end in self.ends:
            end.setblocking(False)
            with suppress(BlockingIOError):
                while end.recv(1 << 20):
                    pass
            self._given.register(end, selectors.EVENT_READ)

    def _spawn(self, _: object) -> tuple["subprocess.Popen[bytes]", socket.socket, BegunMark]:
        process = subprocess.Popen(
            ["sleep", "600"], stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        self._processes.append(process)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.ends.append(theirs)
        page = shared_file()
        begun_mark = BegunMark(page)
        os.close(page)
        return process, ours, begun_mark

    @property
    def finished(self) -> int:
        return len(self.session.finished_runs)

    @property
    def serving(self) -> int:
        return self.session.serving.get(self._lane, 0)

    def say_ready(self, child: int) -> None:
        self.ends[child].sendall(encode_frame(Ready()))

    def begin(self, run: int) -> None:
        self.pool.begin(run, self._lane, grant_of(KIND), in_a_minute())

    def turn(self) -> None:
        for key, _ in self.selector.select(0):
            key.data()
        self.pool.flush()

    def pass_through(self, jobs: int) -> None:
        """Short jobs, one after the other, beside those that run."""
        for _ in range(jobs):
            self._runs += 1
            self.begin(self._runs)
            self.turn()
            [(key, _)] = self._given.select(0)  # the child that was given the job
            end = key.fileobj
            assert isinstance(end, socket.socket)
            end.recv(1 << 20)
            end.sendall(encode_frame(Ended(run=self._runs, outcome=Returned(b"null"))))
            self.turn()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self.pool.close()
        self._given.close()
        for end in self.ends:
            end.close()
        self.selector.close()
