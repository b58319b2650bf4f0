"""The pool alone, with real children: what becomes of an attempt when its child dies."""

import errno
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from tenure.clock import Boot, boot_now
from tenure.core.instants import seconds
from tenure.handlers.registry import Isolation
from tenure.worker.frames import AskToStop, LeaseRenewed, Returned, Stopped, StoreArtifact
from tenure.worker.session.messages import (
    Died,
    Killed,
    Outcome,
    Unstarted,
)
from tenure.worker.supervisor.children import CHILD_MODULE
from tenure.worker.supervisor.options import WorkerOptions
from tenure.worker.supervisor.pool import BEGUN_PER_CORE, ChildPool
from tenure.worker.supervisor.requests import HandlerRequest
from tenure_conformance.spec import spec
from tests.support.waiting import PATIENCE_S
from tests.worker.actors import Events
from tests.worker.grants import grant_of, in_a_minute
from tests.worker.sample import APP

pytestmark = pytest.mark.process


OPTIONS = WorkerOptions()


class Loop:
    """A pool and the turning that a supervisor would do."""

    def __init__(
        self,
        *,
        children: int = 1,
        options: WorkerOptions = OPTIONS,
        clock: Callable[[], Boot] = boot_now,
    ) -> None:
        self.session = Events()
        self.children: list[subprocess.Popen[bytes]] = []
        self.refuses_children = False  # as a system without free descriptors does
        self._popen = subprocess.Popen
        self._patch = patch.object(subprocess, "Popen", self._started)
        self._patch.start()
        self.requests: list[HandlerRequest] = []
        self.selector = selectors.DefaultSelector()
        self.pool = ChildPool(
            APP,
            {Isolation.PROCESS: children},
            options,
            environment=dict(os.environ),
            selector=self.selector,
            clock=clock,
            session=self.session,
            store_output=lambda output, is_last: None,
            carry_out=self.requests.append,
        )

    def _started(self, command: list[str], **more: Any) -> "subprocess.Popen[bytes]":
        is_child = CHILD_MODULE in command
        if is_child and self.refuses_children:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        process = self._popen(command, **more)
        self.children += [process] * is_child
        return process

    @property
    def living(self) -> "list[subprocess.Popen[bytes]]":
        """The children whose end the pool has not noticed."""
        return [child for child in self.children if child.returncode is None]

    @property
    def finished(self) -> list[tuple[int, Outcome]]:
        return self.session.finished_runs

    def turn_until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, self.finished
            self.pool.flush()
            for key, _ in self.selector.select(0.02):
                key.data()
            if boot_now() >= self.pool.next_at:
                self.pool.maintain()

    def begin(self, run: int, kind: str, payload: bytes = b"{}") -> None:
        self.pool.begin(run, Isolation.PROCESS, grant_of(kind, payload), in_a_minute())

    def wait_for_children(self, number: int) -> None:
        self.turn_until(lambda: self.session.serving.get(Isolation.PROCESS) == number)

    def kill_children(self) -> None:
        dead = self.living
        for child in dead:
            os.kill(child.pid, signal.SIGKILL)
        self.turn_until(lambda: all(child.returncode is not None for child in dead))

    def close(self) -> None:
        self.pool.close()
        self._patch.stop()
        self.selector.close()


@contextmanager
def a_loop(**options: Any) -> Iterator[Loop]:
    loop = Loop(**options)
    loop.pool.start()
    try:
        yield loop
    finally:
        loop.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    with a_loop() as loop:
        yield loop


@pytest.fixture
def one_child() -> Iterator[Loop]:
    """A loop whose child is replaced, but never has another beside it."""
    with a_loop(options=WorkerOptions(concurrency=1)) as loop:
        yield loop


def killed_before_it_reads(loop: Loop) -> None:
    """The only child dies before it has read the attempt that it was given."""
    [child] = loop.living
    os.kill(child.pid, signal.SIGSTOP)
    loop.pool.flush()
    os.kill(child.pid, signal.SIGKILL)
    loop.turn_until(lambda: child.returncode is not None)


@spec("WP21")
def test_an_attempt_whose_child_died_before_its_handler_began_runs_in_another(
    one_child: Loop,
) -> None:
    one_child.wait_for_children(1)
    one_child.begin(1, "add", b'{"a": 1, "b": 2}')

    killed_before_it_reads(one_child)
    one_child.turn_until(lambda: one_child.finished)

    assert one_child.finished == [(1, Returned(b"3"))]  # the first child never read it


@spec("WP21")
def test_an_attempt_whose_children_died_twice_before_its_handler_began_has_failed(
    one_child: Loop,
) -> None:
    one_child.wait_for_children(1)
    one_child.begin(1, "add", b'{"a": 1, "b": 2}')
    killed_before_it_reads(one_child)
    one_child.wait_for_children(1)  # the next one has it, and was not sent anything

    killed_before_it_reads(one_child)
    one_child.turn_until(lambda: one_child.finished)

    [(_, outcome)] = one_child.finished
    assert isinstance(outcome, Died)


@spec("WP21")
def test_an_attempt_whose_handler_began_is_not_begun_again(loop: Loop, tmp_path: Path) -> None:
    loop.wait_for_children(1)
    file = tmp_path / "began"
    loop.begin(1, "nap", msgspec.json.encode({"amount_s": 60, "file": str(file)}))
    loop.turn_until(file.exists)

    loop.kill_children()

    [(run, outcome)] = loop.finished
    assert (run, type(outcome)) == (1, Died)


def test_renewals_and_stop_requests_reach_an_attempt_that_waited_for_its_child(loop: Loop) -> None:
    loop.begin(1, "polite")
    loop.pool.renew(LeaseRenewed(1, Boot(boot_now() + seconds(90))))
    loop.pool.ask_to_stop(AskToStop(1, "enough"))

    loop.turn_until(lambda: loop.finished)

    assert loop.finished == [(1, Stopped())]


def test_a_flood_of_artifacts_is_taken_one_at_a_time(loop: Loop) -> None:
    loop.begin(1, "flood")

    loop.turn_until(lambda: loop.finished)

    assert loop.finished == [(1, Returned(b'"flooded"'))]
    [request] = loop.requests
    assert request.ask.what == StoreArtifact("file-0", "text/plain", bytes(10_000))


def test_messages_about_unknown_attempts_are_ignored(loop: Loop) -> None:
    loop.pool.kill(99)
    loop.pool.renew(LeaseRenewed(99, Boot(0)))
    loop.pool.ask_to_stop(AskToStop(99, "enough"))

    assert loop.finished == []


# --- several at once ---------------------------------------------------------------------------


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})


@pytest.mark.usefixtures("one_core")
def test_short_jobs_that_come_at_once_run_one_after_the_other_in_a_few_children() -> None:
    now = boot_now()
    with a_loop(children=4, clock=lambda: now) as loop:
        loop.wait_for_children(4)

        for run in range(12):
            loop.begin(run, "pid")
        loop.turn_until(lambda: len(loop.finished) == 12)

        outcomes = [outcome for _, outcome in loop.finished]
        assert (
            len({each.result for each in outcomes if isinstance(each, Returned)}) == BEGUN_PER_CORE
        )


@pytest.mark.usefixtures("one_core")
def test_jobs_that_come_at_once_and_are_not_short_all_begin(tmp_path: Path) -> None:
    with a_loop(children=4) as loop:
        loop.wait_for_children(4)

        for run in range(4):
            loop.begin(run, "forever", b'{"file": "%s"}' % bytes(tmp_path / str(run)))

        loop.turn_until(lambda: len(list(tmp_path.iterdir())) == 4)


@pytest.mark.usefixtures("one_core")
def test_an_attempt_that_has_not_begun_is_killed_without_its_child() -> None:
    now = boot_now()
    with a_loop(children=4, clock=lambda: now) as loop:
        loop.wait_for_children(4)
        for run in range(BEGUN_PER_CORE + 1):
            loop.begin(run, "add", b'{"a": 1, "b": 2}')

        loop.pool.kill(BEGUN_PER_CORE)

        assert loop.finished == [(BEGUN_PER_CORE, Killed())]


@pytest.mark.usefixtures("one_core")
def test_after_crashes_the_next_attempts_begin_in_children_that_are_free() -> None:
    now = boot_now()
    with a_loop(children=4, clock=lambda: now) as loop:
        loop.wait_for_children(4)
        loop.refuses_children = True

        for run in range(BEGUN_PER_CORE):
            loop.begin(run, "crash", b'{"how": "exit"}')
        loop.begin(BEGUN_PER_CORE, "pid")
        loop.turn_until(lambda: len(loop.finished) > BEGUN_PER_CORE)

        ends = {run: type(outcome) for run, outcome in loop.finished}
        assert ends == dict.fromkeys(range(BEGUN_PER_CORE), Died) | {BEGUN_PER_CORE: Returned}


@spec("WP25")
def test_a_child_that_the_system_refuses_costs_a_slot_and_is_tried_again(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.wait_for_children(1)
    before = open_descriptors()
    loop.refuses_children = True
    loop.begin(1, "nap", b'{"amount_s": 600}')
    loop.begin(2, "add", b'{"a": 1, "b": 2}')
    loop.turn_until(lambda: loop.finished)
    why = "no child can be started: Too many open files"
    assert loop.finished == [(2, Unstarted(why))]
    assert open_descriptors() == before

    loop.refuses_children = False
    loop.wait_for_children(2)

    assert why in caplog.text
    assert "children can be started again" in caplog.text


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
