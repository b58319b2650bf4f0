"""A dedupe key or a job that a transaction outside holds locked delays those who want it only."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from tenure import Tenure
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Command, Enqueue, Heartbeat
from tenure.core.ids import DEFAULT_NAMESPACE, new_job_id, worker_actor
from tenure.core.verdicts import Answer, Grant, Reply, Verdict
from tenure.errors import StoreUnavailable
from tenure.stores.sqlite.memory import MemoryStore
from tenure.wiring import open_store
from tenure_conformance.spec import spec
from tests.support.coordinators import CLIENT, KIND, QUEUE, World

CALLERS = 6
APART_S = 0.1
LATEST_S = 5.0
"""Generous for a loaded machine, and less than a call may take."""

Calls = list[Future[list[Answer]]]


@pytest.fixture
def make_world(postgres_url: str) -> Iterator[Callable[[float], World]]:
    with ExitStack() as made:

        def make(timeout_s: float) -> World:
            store = made.enter_context(closing(open_store(postgres_url, migrate=True)))
            world = World(store, timeout_s=timeout_s)
            made.callback(world.coordinator.close)
            return world

        yield make


def keyed(world: World, *keys: str) -> list[Command]:
    return [
        Enqueue(
            job_id=new_job_id(world.clock(), world.entropy(16)),
            namespace=DEFAULT_NAMESPACE,
            queue=QUEUE,
            kind=KIND,
            actor=CLIENT,
            dedupe_key=key,
        )
        for key in keys
    ]


def heartbeat(grant: Grant, number: int) -> Heartbeat:
    return Heartbeat(
        job_id=grant.job_id, lease_id=grant.lease_id, actor=worker_actor("w1"), hb_seq=number
    )


def in_turn(coordinator: Coordinator, commands: list[Command]) -> Calls:
    calls: Calls = []
    for command in commands:
        calls.append(coordinator.submit(command))
        wait(calls[-1:], APART_S)
    return calls


def hold_key(url: str, connection: "psycopg.Connection[Any]") -> str:
    """Take a key in a transaction; the id of the job that it makes."""
    with Tenure(url) as app:
        return app.enqueue(KIND, {}, queue=QUEUE, key="K", connection=connection).id


@spec("K16")
def test_a_held_key_delays_only_callers_that_need_it(
    make_world: Callable[[float], World], postgres_url: str
) -> None:
    world = make_world(20.0)
    grant = world.running()
    with psycopg.connect(postgres_url) as connection:
        holder = hold_key(postgres_url, connection)
        calls = in_turn(world.coordinator, keyed(world, *["K"] * CALLERS))

        [beat] = world.coordinator.submit(heartbeat(grant, 1)).result(LATEST_S)
        [innocent] = world.coordinator.submit_many(keyed(world, "other")).result(LATEST_S)
        waited = [not call.done() for call in calls]

    answers = [call.result(LATEST_S)[0] for call in calls]
    assert isinstance(beat, Verdict)
    assert isinstance(innocent, Reply)
    assert all(waited)
    assert {answer.job.id for answer in answers if isinstance(answer, Reply) and answer.job} == {
        holder
    }


@spec("K16")
def test_a_locked_job_delays_only_reports_about_it(
    make_world: Callable[[float], World], postgres_url: str
) -> None:
    world = make_world(20.0)
    held, other = world.running(), world.running()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SELECT 1 FROM tenure.job WHERE id = %s FOR UPDATE", [held.job_id])
        beats: list[Command] = [heartbeat(held, number) for number in range(1, CALLERS + 1)]
        calls = in_turn(world.coordinator, beats)

        [beat] = world.coordinator.submit(heartbeat(other, 1)).result(LATEST_S)
        waited = [not call.done() for call in calls]

    assert isinstance(beat, Verdict)
    assert all(waited)
    assert all(isinstance(call.result(LATEST_S)[0], Verdict) for call in calls)


@spec("K16")
def test_callers_that_need_a_held_key_are_answered_in_time(
    make_world: Callable[[float], World], postgres_url: str
) -> None:
    world = make_world(1.0)
    with psycopg.connect(postgres_url) as connection:
        hold_key(postgres_url, connection)
        calls = in_turn(world.coordinator, keyed(world, *["K"] * CALLERS))

        failures = [call.exception(LATEST_S) for call in calls]

    assert all(isinstance(failure, StoreUnavailable) for failure in failures)
    assert world.coordinator.submit_many(keyed(world, "K")).result(LATEST_S)


def test_a_call_about_many_keys_is_not_overtaken_for_ever() -> None:
    """Callers who want one key each come all the time; one who wants all of them has its turn."""
    world = World(MemoryStore(), threads=4)
    with closing(world.coordinator):
        names = [f"key {number}" for number in range(20)]
        calls: Calls = []
        for _ in range(20):
            calls += [world.coordinator.submit_many(keyed(world, name)) for name in names]
            calls.append(world.coordinator.submit_many(keyed(world, *names)))

        answers = [answer for call in calls for answer in call.result(LATEST_S)]

    made = {answer.job.id for answer in answers if isinstance(answer, Reply) and answer.job}
    assert len(answers) == 800
    assert len(made) == len(names)
