"""The keeper: kills what its supervisor cannot, is replaced when it dies, and exits in time."""

import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest

from tenure.clock import Boot, boot_now
from tenure.core.instants import seconds
from tenure.worker.supervisor import keeper_client
from tenure.worker.supervisor.keeper_client import READ_BYTES, SEND_WITHIN, KeeperClient
from tenure_conformance.spec import spec
from tests.support.waiting import until

pytestmark = pytest.mark.process

ASLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
FAR = seconds(600)

Group = subprocess.Popen[bytes]


@pytest.fixture
def group() -> Iterator[Callable[[], Group]]:
    """Makes processes in groups of their own."""
    started: list[Group] = []

    def start() -> Group:
        started.append(subprocess.Popen(ASLEEP, start_new_session=True))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


@contextmanager
def a_keeper(
    clock: Callable[[], Boot] = boot_now,
) -> Iterator[tuple[KeeperClient, Callable[[], None]]]:
    """A keeper, and a turn of the loop that it is part of."""
    selector = selectors.DefaultSelector()
    keeper = KeeperClient(selector, clock)

    def turn() -> None:
        for key, _ in selector.select(0.05):
            key.data()
        keeper.maintain()

    with closing(selector), closing(keeper):
        yield keeper, turn


class ToldKeeper:
    """Stands for the process of a keeper: the test reads what it is sent."""

    pid = 0

    def __init__(self, _command: object, *, stdin: int, **_more: object) -> None:
        self._end = socket.socket(fileno=os.dup(stdin))
        self._end.setblocking(False)

    def told(self) -> bytes:
        """What it was sent since the last call."""
        with suppress(BlockingIOError):
            return self._end.recv(READ_BYTES)
        return b""

    def wait(self, _timeout_s: float | None = None) -> int:
        self._end.close()
        return 0


@contextmanager
def a_told_keeper(
    clock: Callable[[], Boot] = boot_now,
) -> Iterator[tuple[KeeperClient, Callable[[], None], Callable[[], bytes]]]:
    """A keeper, a turn of the loop that it is part of, and what its process is told."""
    made: list[ToldKeeper] = []

    def start(*arguments: Any, **more: Any) -> ToldKeeper:
        made.append(ToldKeeper(*arguments, **more))
        return made[-1]

    with ExitStack() as opened:
        with patch.object(subprocess, "Popen", start):
            keeper, turn = opened.enter_context(a_keeper(clock))
        yield keeper, turn, made[0].told


def soon() -> Boot:
    return Boot(boot_now() + seconds(0.05))


def far() -> Boot:
    return Boot(boot_now() + FAR)


def test_a_watched_group_is_killed_with_the_supervisor_and_a_forgotten_one_is_not(
    group: Callable[[], Group],
) -> None:
    left, forgotten = group(), group()
    with a_keeper() as (keeper, _):
        keeper.watch(left.pid)
        keeper.watch(forgotten.pid)
        keeper.forget(forgotten.pid)

    assert left.wait(60) == -signal.SIGKILL
    assert forgotten.poll() is None


def test_a_group_is_killed_when_its_deadline_passes_without_an_extension(
    group: Callable[[], Group],
) -> None:
    late, extended, idle = group(), group(), group()
    with a_keeper() as (keeper, _):
        for each in (late, extended, idle):
            keeper.watch(each.pid)
            keeper.kill_at({each.pid: soon()})
        keeper.kill_at({extended.pid: far()})
        keeper.kill_at({idle.pid: None})

        assert late.wait(60) == -signal.SIGKILL
        assert (extended.poll(), idle.poll()) == (None, None)
        keeper.forget(extended.pid)
        keeper.forget(idle.pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_keeper_that_died_or_does_not_read_is_replaced_by_one_that_knows_all_groups(
    group: Callable[[], Group], number: signal.Signals
) -> None:
    late, left = group(), group()
    with a_keeper() as (keeper, turn):
        keeper.watch(left.pid)
        keeper.watch(late.pid)
        first = keeper.pid
        assert first is not None
        os.kill(first, number)

        sooner = count(far(), -1)  # one that becomes later would be told later

        def is_replaced() -> bool:
            keeper.kill_at({late.pid: Boot(next(sooner))})
            turn()
            return keeper.pid not in (None, first)

        until(is_replaced, "there is another keeper")
        keeper.kill_at({late.pid: soon()})

        assert late.wait(60) == -signal.SIGKILL
        assert left.poll() is None
    assert left.wait(60) == -signal.SIGKILL


def test_a_keeper_that_is_stopped_does_not_hold_up_its_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper_client, "WAIT_S", 0.1)
    with a_keeper() as (keeper, _):
        assert keeper.pid is not None
        os.kill(keeper.pid, signal.SIGSTOP)

    assert keeper.pid is None


@spec("WP18")
def test_a_sooner_deadline_is_told_at_once_and_a_later_one_or_none_within_a_second() -> None:
    now, at = boot_now(), far()
    a, b = 1_000_001, 1_000_002
    with a_told_keeper(lambda: now) as (keeper, turn, told):
        keeper.watch(a)
        keeper.watch(b)
        told()

        keeper.kill_at({a: at, b: at})
        keeper.kill_at({a: Boot(at - 1), b: Boot(at + 1)})
        for later in range(100):
            keeper.kill_at({a: Boot(at + later), b: None})
        assert told() == b"=%d %d\n=%d %d\n=%d %d\n" % (a, at, b, at, a, at - 1)
        assert keeper.next_at == now + SEND_WITHIN

        now = keeper.next_at
        turn()

        assert told() == b"=%d 0\n=%d %d\n" % (b, a, at + 99)


def test_a_later_deadline_is_told_at_once_if_the_known_one_is_near() -> None:
    with a_told_keeper() as (keeper, _, told):
        pid = 1_000_001
        keeper.watch(pid)
        keeper.kill_at({pid: Boot(boot_now() + SEND_WITHIN)})

        told()

        keeper.kill_at({pid: None})

        assert told() == b"=%d 0\n" % pid


@spec("WP18")
def test_a_much_later_deadline_is_told_at_once() -> None:
    """The child's last job had a short lease, this one has a long one: a supervisor that is
    stopped now must not cost the handler more than a second of it."""
    now = boot_now()
    with a_told_keeper(lambda: now) as (keeper, _, told):
        pid, known = 1_000_001, Boot(now + seconds(4))
        keeper.watch(pid)
        keeper.kill_at({pid: known})
        keeper.kill_at({pid: None})
        told()

        keeper.kill_at({pid: Boot(known + SEND_WITHIN)})
        assert told() == b""

        keeper.kill_at({pid: Boot(known + SEND_WITHIN + 1)})
        assert told() == b"=%d %d\n" % (pid, known + SEND_WITHIN + 1)
