"""Whatever the core decides satisfies everything the checkers know."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.commands import Cancel, Complete, Start
from tenure.core.ids import RequestId
from tenure.core.instants import seconds
from tenure.core.policy import Policy
from tenure.core.transitions import EDGES
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import VerdictKind
from tenure.ports import JobHistory
from tenure.verify import INVARIANTS, Violation, check_across, check_record
from tenure_conformance.spec import spec
from tests.support.histories import PRODUCER, RecordedStore, World

SEEDS = range(90)
STEPS = 150


@pytest.fixture(scope="module")
def found() -> list[Violation]:
    """Every violation in the histories of many seeds."""
    return [violation for seed in SEEDS for violation in violations(World(seed).run(STEPS))]


def violations(world: World) -> Iterator[Violation]:
    for record in world.records():
        yield from check_record(record, world.acks_of(record.job_id))
    world.unblock()
    edges = [edge for each in world.edges.values() for edge in each]
    yield from check_across(RecordedStore(world.records(), edges=edges))


def of(found: list[Violation], *ids: str) -> list[Violation]:
    return [violation for violation in found if violation.invariant in ids]


@spec("I1", "I2", "I3", "I4", "I5")
def test_correct_logs_are_in_order(found: list[Violation]) -> None:
    assert not of(found, "I1", "I2", "I3", "I4", "I5")


@spec("I6", "I7", "I8", "I9", "I10")
def test_correct_attempts_and_rows_fit_the_tables(found: list[Violation]) -> None:
    assert not of(found, "I6", "I7", "I8", "I9", "I10")


@spec("I11", "I12", "I15", "I17", "I39")
def test_correct_logs_fold_to_their_rows_within_budget(found: list[Violation]) -> None:
    assert not of(found, "I11", "I12", "I15", "I17", "I39")


@spec("I13", "I14", "I16", "I21")
def test_acknowledged_answers_hold_in_correct_histories(found: list[Violation]) -> None:
    assert not of(found, "I13", "I14", "I16", "I21")


@spec("I19", "I20")
def test_correct_terminal_rows_are_complete_and_do_not_change(found: list[Violation]) -> None:
    assert not of(found, "I19", "I20")


@spec("P1", "P2", "P3", "P4")
def test_correct_histories_project_onto_all_four_documents(found: list[Violation]) -> None:
    assert not of(found, "P1", "P2", "P3", "P4")


@given(seed=st.integers(min_value=0), steps=st.integers(min_value=1, max_value=200))
def test_any_seed_gives_a_correct_history(seed: int, steps: int) -> None:
    world = World(seed).run(steps)

    assert list(violations(world)) == []


@spec("I10")
def test_a_report_is_not_dated_after_its_lease_by_a_clock_that_was_set_back() -> None:
    """The request to cancel came when the lease was over and not yet swept."""
    world = World(0, lost_answers=0)
    job_id = world.enqueue(Policy(lease_us=seconds(30)))
    world.advance(seconds_=10)
    lease_id, actor = world.claim(job_id), world.leases[-1][2]
    assert lease_id is not None
    start = Start(job_id=job_id, lease_id=lease_id, actor=actor, request_id=RequestId("s"))
    world.submit(start)
    world.advance(seconds_=31)
    world.submit(Cancel(job_id=job_id, actor=PRODUCER, request_id=RequestId("c")))
    world.advance(seconds_=-20)

    late = Complete(job_id=job_id, lease_id=lease_id, actor=actor, request_id=RequestId("d"))
    answer = world.submit(late)

    assert isinstance(answer, Verdict)
    assert answer.kind is VerdictKind.CANCELLED
    assert list(violations(world)) == []


def test_the_histories_use_every_transition_of_the_table() -> None:
    seen = Counter(
        (event.from_status, event.type, event.to_status)
        for seed in SEEDS
        for record in World(seed).run(STEPS).records()
        for event in record.events
    )

    assert set(seen) == set(EDGES)


def test_equal_seeds_give_equal_histories() -> None:
    one, other = World(7).run(80), World(7).run(80)

    assert one.records() == other.records()
    assert one.acks == other.acks


def test_every_rule_is_listed_once_with_something_that_checks_it() -> None:
    ids = [rule.id for rule in INVARIANTS]
    unchecked = [
        rule.id
        for rule in INVARIANTS
        if rule.of_record is None
        and rule.of_acks is None
        and rule.of_store is None
        and rule.between is None
    ]

    assert ids == [
        *(f"I{n}" for n in range(1, 22) if n != 18),
        "I23",
        "I24",
        "I28",
        "I30",
        "I31",
        "I32",
        "I33",
        "I34",
        "I35",
        "I36",
        "I37",
        "I39",
        "P1",
        "P2",
        "P3",
        "P4",
    ]
    assert unchecked == ["I23"]  # of the metrics, which the store has not


def shuffled(record: JobHistory, luck: random.Random) -> JobHistory:
    """The record with events of its own in any order, some missing, some twice."""
    events = luck.choices(record.events, k=luck.randrange(1, len(record.events) + 3))
    return JobHistory(record.job_id, record.job if luck.random() < 0.9 else None, tuple(events))


@given(seed=st.integers(min_value=0, max_value=50), chance=st.integers(min_value=0))
def test_no_checker_crashes_on_a_broken_log(seed: int, chance: int) -> None:
    world, luck = World(seed).run(60), random.Random(chance)
    broken = [shuffled(record, luck) for record in world.records()]

    for record in broken:
        list(check_record(record, world.acks))
