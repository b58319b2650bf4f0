"""One program, several stores, no difference: every answer, row and event, step by step."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tenure.core.vocabulary import EventType
from tenure_conformance.harness import StoreFactory
from tenure_conformance.spec import spec
from tests.conformance.differential import Differential
from tests.conformance.factories import (
    ModelFactory,
    PostgresDatabases,
    PostgresFactory,
    SqliteFactory,
)
from tests.conformance.walk import walk

pytestmark = pytest.mark.slow

SEEDS = (3, 4)
STEPS = 250

Factories = dict[str, Callable[[], StoreFactory]]


def _size(*, programs: int, steps: int) -> settings:
    return settings(
        max_examples=programs,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def _run(factories: Factories, *, programs: int, steps: int) -> None:
    class Machine(Differential):
        """A program over these stores."""

        def __init__(self) -> None:
            super().__init__(factories)

    run_state_machine_as_test(Machine, settings=_size(programs=programs, steps=steps))


@pytest.fixture
def all_three(postgres_databases: PostgresDatabases) -> Factories:
    """The model, and both databases."""
    return {
        "model": ModelFactory,
        "sqlite": SqliteFactory,
        "postgres": lambda: PostgresFactory(postgres_databases),
    }


@spec("I12", "A2")
def test_odd_programs_do_not_differ_in_sqlite() -> None:
    # 50 with those over all three stores, each of which takes four times as long.
    _run({"model": ModelFactory, "sqlite": SqliteFactory}, programs=40, steps=40)


@spec("I12", "A2")
def test_odd_programs_do_not_differ_in_any_store(all_three: Factories) -> None:
    _run(all_three, programs=10, steps=40)


@spec("I12", "A2")
def test_long_walks_see_every_type_of_event_and_do_not_differ_in_any_store(
    all_three: Factories,
) -> None:
    walks = [walk(all_three, seed=seed, steps=STEPS) for seed in SEEDS]

    assert set().union(*(machine.worlds.seen for machine in walks)) == set(EventType)


@pytest.mark.proof
def test_many_odd_programs_do_not_differ_in_any_store(all_three: Factories) -> None:
    _run(all_three, programs=400, steps=80)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_long_walks_do_not_differ_in_any_store(all_three: Factories, seed: int) -> None:
    walk(all_three, seed=seed, steps=1000)
