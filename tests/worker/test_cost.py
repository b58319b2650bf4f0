"""What a job costs its worker: as much beside a thousand running jobs as beside fifty.

Counted in instructions of the interpreter, not in seconds: a walk through all attempts, all slots
or all children for each job would multiply them.
"""

import socket
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.clock import Boot
from tenure.core.claims import ClaimAnswer
from tenure.core.ids import DEFAULT_NAMESPACE, Actor, JobId, LeaseId, WorkerId
from tenure.core.instants import seconds
from tenure.core.validation import Limits
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import Disposition, VerdictKind
from tenure.handlers.registry import Isolation, Registry, make_handler
from tenure.worker.child.asks import FrameSocket
from tenure.worker.child.main import AsyncLane
from tenure.worker.frames import (
    FrameReader,
    Retire,
    Returned,
    Run,
    ToSupervisor,
    decode_to_supervisor,
)
from tenure.worker.session.claims import ClaimSettings
from tenure.worker.session.messages import (
    Action,
    Begin,
    PollLeases,
    Send,
    SendClaim,
    Stats,
)
from tenure.worker.session.session import WorkerSession
from tenure.worker.supervisor.keeper_client import KeeperClient
from tests.support.coordinators import KIND, QUEUE, World
from tests.worker.actors import Actors
from tests.worker.grants import grant_of, in_a_minute
from tests.worker.steps import steps

SHORT_JOBS = 50
FEW, MANY = 50, 1000
AT_MOST = 1.2
A_MOMENT_S = 0.01  # all in all less than a second: polls of leases come by time, not by job


# --- the session -------------------------------------------------------------------------------


class Grants:
    """Answers every claim in full and every report with yes; remembers who runs."""

    def __init__(self, concurrency: int) -> None:
        world = World()
        world.enqueue()
        self._pattern = world.claim()[0]
        self.now = Boot(0)
        self.stats = Stats()
        self.running: list[int] = []
        self._granted = 0
        self.session = WorkerSession(
            ClaimSettings(
                namespace=DEFAULT_NAMESPACE,
                worker=WorkerId("w1"),
                actor=Actor("worker:w1"),
                queues={QUEUE: 1},
                kinds={KIND: None},
                lanes={KIND: Isolation.ASYNC},
            ),
            concurrency=concurrency,
            random=lambda: 0.5,
            stats=self.stats,
        )
        self.session.children_serving(Isolation.ASYNC, 1)
        while len(self.running) < concurrency:
            self.pass_time(A_MOMENT_S)

    def turn(self) -> None:
        while actions := self.session.turn():
            for action in actions:
                self._perform(action)

    def pass_time(self, amount_s: float) -> None:
        self.now = self.session.now = Boot(self.now + seconds(amount_s))
        self.turn()

    def finish_newest(self) -> None:
        """The job that began last ends, and the next one takes its slot."""
        self.session.finished(self.running.pop(), Returned(b"null"))
        self.turn()
        self.pass_time(A_MOMENT_S)

    def _perform(self, action: Action) -> None:
        match action:
            case SendClaim():
                grants = tuple(self._grant() for _ in range(action.request.limit))
                self.session.claim_answered(action.ticket, ClaimAnswer(grants=grants))
            case Send():
                committed = Verdict(kind=VerdictKind.COMMITTED, disposition=Disposition.SUCCEEDED)
                self.session.answered(action.ticket, [committed] * len(action.commands))
            case PollLeases():
                self.session.leases_polled({})
            case Begin():
                self.running.append(action.run)
            case _:
                pass

    def _grant(self) -> Grant:
        self._granted += 1
        number = self._granted
        return replace(self._pattern, job_id=JobId(f"j{number}"), lease_id=LeaseId(f"l{number}"))


def session_steps_per_job(concurrency: int) -> float:
    """The cost of short jobs that pass through one slot while the other slots are taken."""
    worker = Grants(concurrency)

    def pass_through() -> None:
        for _ in range(SHORT_JOBS):
            worker.finish_newest()

    spent = steps(pass_through)
    assert worker.stats.succeeded == SHORT_JOBS
    assert len(worker.running) == concurrency
    return spent / SHORT_JOBS


def test_a_job_costs_its_session_as_much_beside_a_thousand_others_as_beside_fifty() -> None:
    few, many = session_steps_per_job(FEW), session_steps_per_job(MANY)

    assert many <= AT_MOST * few


# --- the pool ----------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize(
    ("lane", "few", "many"), [(Isolation.ASYNC, FEW, MANY), (Isolation.PROCESS, 5, 50)]
)
def test_a_job_costs_its_pool_as_much_beside_many_others_as_beside_few(
    monkeypatch: pytest.MonkeyPatch, lane: Isolation, few: int, many: int
) -> None:
    spent = []
    for runs in (few, many):
        actors = Actors(monkeypatch, lane, runs)
        spent.append(steps(partial(actors.pass_through, SHORT_JOBS)))
        actors.close()
        assert actors.finished >= SHORT_JOBS

    assert spent[1] <= AT_MOST * spent[0]


@pytest.mark.process
def test_a_stream_of_short_jobs_hardly_ever_wakes_the_keeper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[bytes] = []
    actors = Actors(monkeypatch, Isolation.PROCESS, 2)
    monkeypatch.setattr(KeeperClient, "_send", lambda self, lines: told.append(lines))

    actors.pass_through(SHORT_JOBS)

    assert len(told) <= 1, "of a deadline, when the child begins its first job"
    monkeypatch.undo()
    actors.close()
    assert actors.finished >= SHORT_JOBS


class CountedSocket:
    """A child's socket whose writes are counted."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self.writes = 0

    def send(self, data: bytes) -> int:
        self.writes += 1
        return int(self._sock.send(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.process
def test_the_frames_of_one_turn_travel_to_a_child_in_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actors = Actors(monkeypatch, Isolation.ASYNC, 1)
    [child] = actors.pool._children
    sock = CountedSocket(child._sock)
    monkeypatch.setattr(child, "_sock", sock)

    for run in range(SHORT_JOBS):
        actors.begin(run)
    actors.turn()

    assert sock.writes == 1
    monkeypatch.undo()
    actors.close()


class CountingChannel(FrameSocket):
    """Counts how often something is written to the supervisor."""

    writes = 0

    def send(self, *messages: ToSupervisor) -> None:
        self.writes += 1
        super().send(*messages)


async def nothing() -> None:
    pass


def test_coroutines_that_end_in_one_turn_of_their_loop_are_reported_in_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AsyncLane, "_watch", lambda self: None)  # it ends only with its process
    registry = Registry()
    registry.add(make_handler(nothing, kind=KIND))
    ours, theirs = socket.socketpair()
    channel = CountingChannel(theirs, max_bytes=1 << 20)
    lane = AsyncLane(channel, registry, Limits())

    grant = grant_of(KIND)
    runs = [Run.of(run, grant, until=in_a_minute()) for run in range(SHORT_JOBS)]
    lane.take([*runs, Retire()])
    lane.serve()

    assert channel.writes == 1
    ended = FrameReader(max_bytes=1 << 20).feed(ours.recv(1 << 20))
    assert len(decode_to_supervisor(ended[0])) == SHORT_JOBS
    ours.close()
    theirs.close()
