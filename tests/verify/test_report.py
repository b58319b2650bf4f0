"""A report says what holds, what is violated and what was not checked. It counts, bounded."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tenure.core.vocabulary import JobStatus
from tenure.ports import JobHistory
from tenure.stores.sqlite.memory import MemoryStore
from tenure.verify import AckWriter, RuleState, assert_holds, verify
from tenure_conformance.spec import spec
from tests.support.histories import RecordedStore, World

NEED_ACKS = ["I13", "I14", "I16", "I21"]
NEEDS_METRICS = "I23"


def broken_store(*, jobs: int) -> RecordedStore:
    """Jobs whose rows claim a status that their logs do not lead to."""
    world = World(0)
    for _ in range(jobs):
        world.enqueue()
    return RecordedStore(
        [
            JobHistory(record.job_id, replace(record.job, status=JobStatus.CLAIMED), record.events)
            for record in world.records()
            if record.job is not None
        ]
    )


@spec("X3")
def test_without_acks_what_needs_them_is_not_checked_and_never_holds() -> None:
    report = verify(RecordedStore(World(1).run(50).records()))

    states = {finding.id: finding.state for finding in report.findings}
    assert report.not_checked == [*NEED_ACKS, NEEDS_METRICS]
    assert {rule for rule, state in states.items() if state is not RuleState.HOLDS} == {
        *NEED_ACKS,
        NEEDS_METRICS,
    }
    for finding in report.findings:
        assert ("acknowledgements" in finding.why) == (finding.id in NEED_ACKS)
        assert ("metrics" in finding.why) == (finding.id == NEEDS_METRICS)


@spec("X3")
def test_with_acks_everything_that_a_store_can_tell_is_checked(tmp_path: Path) -> None:
    world = World(1).run(100)
    with AckWriter(tmp_path / "acks") as writer:
        writer.write(*world.acks)

    report = verify(RecordedStore(world.records(), now=world.now), [tmp_path / "acks"])

    assert report.holds
    assert report.not_checked == [NEEDS_METRICS]
    assert report.acks == len(world.acks)


def test_several_ack_files_are_read_as_one(tmp_path: Path) -> None:
    world = World(1).run(60)
    paths = [tmp_path / "one", tmp_path / "two"]
    for position, path in enumerate(paths):
        with AckWriter(path) as writer:
            writer.write(*world.acks[position::2])

    report = verify(RecordedStore(world.records(), now=world.now), paths)

    assert report.acks == len(world.acks)
    assert report.holds


def test_every_violation_is_counted_and_only_the_first_are_kept() -> None:
    report = verify(broken_store(jobs=30), limit=4)

    finding = next(finding for finding in report.findings if finding.id == "I3")
    assert finding.state is RuleState.VIOLATED
    assert finding.violations == 30
    assert len(finding.first) == 4


def test_jobs_and_events_are_counted() -> None:
    world = World(2).run(80)

    report = verify(RecordedStore(world.records()))

    assert report.jobs == len(world.rows)
    assert report.events == sum(map(len, world.logs.values()))


def test_progress_is_reported_as_jobs_are_read() -> None:
    world = World(2).run(40)
    told: list[tuple[int, int]] = []

    report = verify(RecordedStore(world.records()), progress=lambda *read: told.append(read))

    assert told[-1] == (report.jobs, report.events)
    assert len(told) == report.jobs


def test_all_rules_hold_in_an_empty_store() -> None:
    assert assert_holds(MemoryStore()).jobs == 0


def test_assert_holds_fails_with_the_violations() -> None:
    with pytest.raises(AssertionError, match=r"I3 job .* seq 1: the log leads to queued"):
        assert_holds(broken_store(jobs=1))
