"""What the log says about attempts whose worker can no longer say anything."""

import logging
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tenure.coordinator.sweeper import Sweeper
from tenure.core.commands import Command
from tenure.core.instants import seconds
from tenure.core.policy import Policy
from tenure.core.verdicts import Answer
from tenure.core.vocabulary import OnLost
from tenure.telemetry.log_lines import MAX_LINES
from tests.support.coordinators import World

LEASE_S = 30


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.coordinator.close()


def policy(**changes: object) -> Policy:
    return Policy(lease_us=seconds(LEASE_S), **changes)  # type: ignore[arg-type]  # as each test has it


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "tenure.sweeper"]


def swept_after(world: World, *spans_s: float) -> Sweeper:
    sweeping = Sweeper(world.coordinator, monotonic=world.clock)
    for span_s in spans_s:
        sweeping.sweep_once()
        for _ in range(int(span_s)):
            world.clock.advance(1)
            sweeping.sweep_once()
    return sweeping


def test_a_lost_attempt_is_logged_with_its_worker_and_what_follows(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    grant = world.running(policy=policy())

    swept_after(world, LEASE_S + 1)

    job = world.reload(grant.job_id)
    assert job.run_at is not None
    wait_s = (job.run_at - job.updated_at) / 1e6
    assert lines(caplog) == [
        f"job {job.id} ({job.kind}) attempt 1: lost, the lease of {job.last_owner} ended; next"
        f" attempt in {wait_s:.1f} s"
    ]
    [record] = caplog.records
    assert (record.levelno, record.__dict__["job_id"]) == (logging.WARNING, job.id)


def test_an_attempt_that_another_process_recorded_as_lost_is_logged_there_alone(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = world.running(policy=policy())
    submit = world.coordinator.submit

    def submit_after_another(command: Command) -> "Future[list[Answer]]":
        submit(command).result()
        return submit(command)

    monkeypatch.setattr(world.coordinator, "submit", submit_after_another)
    swept_after(world, LEASE_S + 1)

    assert world.reload(grant.job_id).lease_id is None
    assert lines(caplog) == []


@pytest.mark.parametrize(
    ("changes", "follows"),
    [
        ({"max_attempts": 1}, "ended; the job is dead_lettered"),
        ({"on_lost": OnLost.HOLD}, "ended; the job is on hold until `tenure jobs requeue`"),
        ({"on_lost": OnLost.RECLAIM}, "ended; the next worker takes it"),
    ],
)
def test_what_follows_is_what_the_policy_says(
    world: World, caplog: pytest.LogCaptureFixture, changes: dict[str, object], follows: str
) -> None:
    world.running(policy=policy(**changes))

    swept_after(world, LEASE_S + 1)

    [line] = lines(caplog)
    assert line.endswith(follows)


def test_a_crash_of_many_workers_is_logged_in_a_few_lines(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(MAX_LINES + 5):
        world.running(policy=policy(on_lost=OnLost.HOLD))

    swept_after(world, LEASE_S + 1, 31)

    assert len(lines(caplog)) == MAX_LINES + 1
    assert lines(caplog)[-1] == "5 more attempts were lost"
