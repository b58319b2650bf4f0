"""I35: no job is enqueued while another one keeps its key after its end, by the rows alone."""

from collections.abc import Sequence
from contextlib import closing

import pytest
from msgspec.structs import replace

from tenure.core.ids import Kind
from tenure.core.instants import Instant, seconds
from tenure.core.policy import Policy
from tenure.core.vocabulary import EventCause
from tenure.ports import JobHistory
from tenure.verify import verify
from tenure.verify.between_jobs import TakenKeys
from tenure_conformance.spec import spec
from tests.support.histories import RecordedStore, World

Life = tuple[float, float | None, float | None]
"""When a job was enqueued, when it ended, and for how long its key stays taken, in seconds."""


def _lived(*lives: Life, key: str | None = "k", kind: str = "task") -> list[JobHistory]:
    world = World(0, lost_answers=0)
    found = []
    for enqueued_s, ended_s, unique_for_s in lives:
        record = world.record(world.enqueue(Policy()))
        assert record.job is not None
        enqueued_at = Instant(seconds(enqueued_s))
        job = replace(
            record.job,
            kind=Kind(kind),
            dedupe_key=key,
            unique_for_us=None if unique_for_s is None else seconds(unique_for_s),
            enqueued_at=enqueued_at,
            finished_at=None if ended_s is None else Instant(seconds(ended_s)),
        )
        events = (replace(record.events[0], ts=enqueued_at),)
        found.append(replace(record, job=job, events=events))
    return found


def _broken(records: Sequence[JobHistory], *, in_order: bool = False) -> list[int]:
    """Which of the records are reported; they were written by time, or in this order."""
    with closing(TakenKeys()) as keys:
        for record in records:
            keys.add(record)
        ids = [record.job_id for record in records]
        store = RecordedStore(records, in_order=in_order)
        return [ids.index(job_id) for job_id, _, _ in keys.problems(store)]


@spec("I35")
@pytest.mark.parametrize(
    ("lives", "broken"),
    [
        ([(1, 2, None), (2, 3, None)], []),
        ([(1, 2, 10), (12, 13, 10), (23, None, 10)], []),
        ([(1, 2, 10), (12, 13, None), (13, 14, None)], []),
        ([(1, 2, 10), (11.999999, 13, None)], [1]),
        ([(1, 2, 10), (3, 4, None), (5, 6, None), (12, 13, None)], [1, 2]),
        ([(3, 4, None), (1, 2, 10)], [0]),
        ([(1, None, 10), (50, 51, None)], [1]),
    ],
)
def test_a_job_that_came_too_early_is_found(lives: list[Life], broken: list[int]) -> None:
    assert _broken(_lived(*lives)) == broken


@spec("I35")
def test_other_keys_and_kinds_and_jobs_without_a_key_do_not_count() -> None:
    records = [
        *_lived((1, 2, 10)),
        *_lived((3, 4, 10), key="other"),
        *_lived((3, 4, 10), kind="other"),
        *_lived((3, 4, None), (3, 4, None), key=None),
    ]

    assert _broken(records) == []


@spec("I35", "D16")
@pytest.mark.parametrize(
    ("cause", "broken"),
    [(EventCause.REDRIVE, []), (EventCause.RERUN, []), (EventCause.FOLLOW_UP, [1])],
)
def test_only_a_redrive_may_take_the_key_of_its_job(cause: EventCause, broken: list[int]) -> None:
    first, second = _lived((1, 2, 10), (3, 4, 10))
    assert second.job is not None
    made = replace(second.job, origin_id=first.job_id, origin_cause=cause)

    assert _broken([first, replace(second, job=made)]) == broken


@spec("I35")
def test_verify_names_the_job_and_the_one_that_held_the_key() -> None:
    one, other = _lived((1, 2, 10), (3, None, None))

    report = verify(RecordedStore([one, other]))

    [finding] = [each for each in report.findings if each.id == "I35"]
    [violation] = finding.first
    assert violation.job_id == other.job_id
    assert violation.message == (
        f"enqueued with the dedupe key k of default/task, which {one.job_id} still had"
    )


@spec("I35")
def test_times_that_the_clock_showed_twice_prove_nothing() -> None:
    before_the_step = _lived((100, 101, 10), (111, 112, None))
    after_it = _lived((105, 106, None), (113, 114, 10), (120, 121, None))

    assert _broken([*before_the_step, *after_it], in_order=True) == [4]
