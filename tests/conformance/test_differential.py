"""One program, several stores, no difference: every answer, row and event, step by step."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tenure.conformance.harness import StoreFactory
from tenure.conformance.spec import spec
from tests.conformance.differential import Differential
from tests.conformance.factories import MemoryFactory, PostgresFactory, SqliteFactory
from tests.support.postgres import PostgresServer


def _size(*, programs: int, steps: int) -> settings:
    return settings(
        max_examples=programs,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def _run(factories: dict[str, Callable[[], StoreFactory]], *, programs: int, steps: int) -> None:
    class Machine(Differential):
        """A program over these stores."""

        def __init__(self) -> None:
            super().__init__(factories)

    run_state_machine_as_test(Machine, settings=_size(programs=programs, steps=steps))


@spec("I12", "A2")
def test_memory_and_sqlite_do_not_differ() -> None:
    _run({"memory": MemoryFactory, "sqlite": SqliteFactory}, programs=40, steps=50)


@pytest.fixture
def all_three(
    postgres: PostgresServer, postgres_template: str
) -> dict[str, Callable[[], StoreFactory]]:
    """Every store of ours; the first is the reference."""
    return {
        "memory": MemoryFactory,
        "sqlite": SqliteFactory,
        "postgres": lambda: PostgresFactory(postgres, postgres_template),
    }


@spec("I12", "A2")
def test_memory_sqlite_and_postgres_do_not_differ(
    all_three: dict[str, Callable[[], StoreFactory]],
) -> None:
    _run(all_three, programs=15, steps=40)


@pytest.mark.proof
def test_many_programs_do_not_differ(all_three: dict[str, Callable[[], StoreFactory]]) -> None:
    _run(all_three, programs=500, steps=80)
