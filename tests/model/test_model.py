"""Every reachable state of one job keeps the contract, and the checker is able to say no."""

import pytest

from tenure.core.transitions import BY_ID
from tenure.core.vocabulary import JobStatus
from tenure_conformance.spec import spec
from tests.model.bugs import SEEDS, Seed, seeded
from tests.model.checker import Report, check, merged_wrongly
from tests.model.configurations import EVERYTHING, FULL, SMALL, SMALL_AND_LATE
from tests.model.figures import PROPERTY
from tests.model.world import Bounds

pytestmark = pytest.mark.slow

NOT_DECIDED_BY_THE_CORE = {"T26"}  # a purge deletes; there is nothing to decide
LONGEST_TRACE = 12


def name_of(value: object) -> str:
    return str(getattr(value, "name", ""))


def assert_sound(report: Report) -> None:
    assert report.finding is None, f"{report.name}:\n{report.finding}"
    assert not report.stuck, f"{report.name}: no end can be reached from {dict(report.stuck)}"
    assert not report.stuck_without_people, "\n".join([report.name, *report.stuck_trace])


@spec("V4", "I5", "I9", "R4", "I14")
def test_every_reachable_state_is_lawful_and_leads_to_an_end() -> None:
    reports = [check(bounds) for bounds in SMALL]

    for report in reports:
        assert_sound(report)
    assert frozenset[JobStatus]().union(*(report.statuses for report in reports)) == set(JobStatus)
    rows = frozenset[str]().union(*(report.rows for report in reports))
    assert rows == set(BY_ID) - NOT_DECIDED_BY_THE_CORE


@spec("W1", "R22", "R23")
def test_decisions_that_reach_the_store_late_break_nothing() -> None:
    for bounds in SMALL_AND_LATE:
        assert_sound(check(bounds))


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=spec(seed.broken), id=seed.name) for seed in SEEDS]
)
def test_a_seeded_bug_is_found_with_a_short_trace(seed: Seed) -> None:
    # Without the bug the same search finds nothing: it is the first of FULL.
    with seeded(seed.bug):
        report = check(EVERYTHING)

    assert report.finding is not None, seed.name
    assert seed.kind in report.finding.kinds, str(report.finding)
    assert len(report.finding.trace) <= LONGEST_TRACE, str(report.finding)


def test_states_that_are_taken_for_the_same_have_the_same_future() -> None:
    assert merged_wrongly(SMALL[1], sample=61) == []


def test_a_trace_reads_like_a_story() -> None:
    late = next(seed for seed in SEEDS if seed.kind == "late-accept")

    with seeded(late.bug):
        finding = check(EVERYTHING).finding

    assert finding is not None
    assert str(finding).splitlines()[:3] == [
        "  1. enqueue",
        "  2. worker:ann claims (1) -> lease 1",
        "  3. tick",
    ]
    assert "!! [late-accept]" in str(finding)


@pytest.mark.proof
@pytest.mark.parametrize("bounds", FULL, ids=name_of)
def test_the_full_bound_holds(bounds: Bounds, request: pytest.FixtureRequest) -> None:
    report = check(bounds)

    request.node.user_properties.append((PROPERTY, [str(report), sorted(report.rows)]))
    assert_sound(report)


@pytest.mark.proof
@pytest.mark.parametrize("bounds", [*SMALL, *SMALL_AND_LATE], ids=name_of)
def test_no_two_states_are_taken_for_the_same_wrongly(bounds: Bounds) -> None:
    assert merged_wrongly(bounds, sample=31) == []
