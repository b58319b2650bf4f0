"""I31: no more jobs of a concurrency key ran at a time than its limit, by the log alone."""

from collections.abc import Sequence
from contextlib import closing

import pytest
from msgspec.structs import replace

from tenure.coordinator.outages import OLDEST_READING
from tenure.core.ids import Kind
from tenure.core.instants import Instant, seconds
from tenure.core.kind_settings import KindSettings
from tenure.core.policy import Policy
from tenure.core.vocabulary import EventType
from tenure.ports import JobHistory
from tenure.verify import verify
from tenure.verify.between_jobs import OLDEST_ESTIMATE_US, KeyedAttempts
from tenure_conformance.spec import spec
from tests.support.cases import each_case
from tests.support.histories import RecordedStore, World

Span = tuple[float, float | None]


def _ran(*spans: Span, key: str | None = "42", kind: str = "task") -> list[JobHistory]:
    """A job for each span of seconds in which an attempt of it ran; None: it still runs."""
    world = World(0, lost_answers=0)
    found = []
    for began_s, ended_s in spans:
        job_id = world.enqueue(Policy(lease_us=seconds(30)))
        world.advance(seconds_=10)
        world.claim(job_id)
        record = world.record(job_id)
        assert record.job is not None
        begun = replace(record.events[1], ts=Instant(seconds(began_s)))
        events = [begun]
        if ended_s is not None:
            ended_at = Instant(seconds(ended_s))
            events.append(replace(begun, seq=3, type=EventType.SUCCEEDED, ts=ended_at))
        job = replace(record.job, concurrency_key=key, kind=Kind(kind))
        found.append(replace(record, job=job, events=tuple(events)))
    return found


def _broken(
    records: Sequence[JobHistory],
    limit: int = 1,
    since_s: float = 0,
    *,
    in_order: bool = False,
    writers: int = 8,
) -> list[int]:
    """Which of the records are reported; they were written by time, or in this order."""
    with closing(KeyedAttempts()) as attempts:
        for record in records:
            attempts.add(record)
        ids = [record.job_id for record in records]
        store = RecordedStore(records, in_order=in_order)
        store.parallelism = writers
        store.kinds = [
            KindSettings(
                kind=Kind(kind),
                concurrency_limit=limit,
                concurrency_since=Instant(seconds(since_s)),
            )
            for kind in ("task", "other")
        ]
        return [ids.index(job_id) for job_id, _, _ in attempts.problems(store)]


@spec("I31")
@each_case(
    ("limit", "spans", "broken"),
    [
        (1, [(1, 2), (2, 3), (3, None)], []),
        (1, [(1, 1), (1, 2)], []),
        (1, [(1, 2), (1, 1)], []),
        (1, [(1, 2), (1.5, 3)], [1]),
        (1, [(1, None), (1.5, 3)], [1]),
        (1, [(1, 2), (0.5, None)], [0]),
        (1, [(1, 2.019), (2, 3)], []),
        (1, [(1, 2.021), (2, 3)], [1]),
        (2, [(1, 9), (2, 8), (8, 9)], []),
        (2, [(1, 9), (2, 8), (3, 4), (5, 6)], [2, 3]),
    ],
)
def test_a_claim_past_the_limit_is_found(limit: int, spans: list[Span], broken: list[int]) -> None:
    assert _broken(_ran(*spans), limit) == broken


@spec("I31")
@pytest.mark.parametrize(
    ("limit", "spans", "broken"),
    [
        (1, [(1, 2), (2, 3), (3, None)], []),
        (1, [(1, 2.000001), (2, 3)], [1]),
        (1, [(1, None), (1.5, 3)], [1]),
        (2, [(1, 9), (2, 8), (8, 9)], []),
        (2, [(1, 9), (2, 8), (3, 4), (5, 6)], [2, 3]),
    ],
)
def test_where_one_writes_at_a_time_no_overlap_is_too_short(
    limit: int, spans: list[Span], broken: list[int]
) -> None:
    assert _broken(_ran(*spans), limit, writers=1) == broken


@spec("I31")
def test_where_one_writes_at_a_time_the_order_counts_and_not_the_times() -> None:
    late_end = _ran((1, 2.5), (2, 3))  # but written before the claim

    assert _broken(late_end, in_order=True, writers=1) == []
    assert _broken(late_end, in_order=True) == [1]


@spec("I31")
def test_other_keys_and_kinds_and_jobs_without_a_key_do_not_count() -> None:
    spans: list[Span] = [(1, 2)]
    records = [
        *_ran(*spans),
        *_ran(*spans, key="43"),
        *_ran(*spans, kind="other"),
        *_ran(*spans, key=None),
        *_ran(*spans, key=None),
    ]

    assert _broken(records) == []


@spec("I31")
def test_claims_from_before_the_limit_was_set_are_not_held_against_it() -> None:
    records = _ran((1, 9), (2, 9), (6, 9))

    assert _broken(records, since_s=5) == [2]


@spec("I31")
def test_verify_names_the_job_and_those_that_ran() -> None:
    one, other = _ran((1, 2), (1.5, None))

    report = verify(RecordedStore([one, other]))

    [finding] = [each for each in report.findings if each.id == "I31"]
    [violation] = finding.first
    assert violation.job_id == other.job_id
    assert violation.message == (
        f"claimed with the key 42 of default/task, whose limit is 1, while {one.job_id} ran"
    )


@spec("I31")
def test_times_that_the_clock_showed_twice_prove_nothing() -> None:
    before_the_step = _ran((100, 200))
    after_it = _ran((150, 160), (235, None), (240, None))

    assert _broken([*before_the_step, *after_it], in_order=True) == [3]


@spec("I31")
def test_nor_do_claims_while_ends_may_be_dated_by_an_estimate_from_before_the_step() -> None:
    before_the_step = _ran((100, 200))
    after_it = _ran((150, 160), (205, 215), (210, None))

    assert _broken([*before_the_step, *after_it], in_order=True) == []
    assert OLDEST_ESTIMATE_US == OLDEST_READING
