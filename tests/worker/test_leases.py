"""Cancelling, losing and keeping leases, with real processes."""

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from tenure.core.instants import seconds
from tenure.core.vocabulary import CancelMode, JobStatus
from tenure_conformance.spec import spec
from tests.support.waiting import until
from tests.worker.harness import POLICY, Shop, is_alive, read_pids
from tests.worker.sample import APP, SHARED

pytestmark = pytest.mark.process

HEARTBEAT_S = POLICY.heartbeat_interval_us / 1e6
ONCE = replace(POLICY, max_attempts=1)


def test_a_hard_cancel_ends_an_infinite_loop_and_all_it_started(shop: Shop, tmp_path: Path) -> None:
    worker = shop.start()
    file = tmp_path / "pids"
    job_id = shop.enqueue("forever", {"file": str(file)})
    pids = read_pids(file)

    shop.cancel(job_id, CancelMode.HARD)

    until(lambda: not any(map(is_alive, pids)), "both processes are gone", within_s=HEARTBEAT_S + 2)
    assert shop.job(job_id).status is JobStatus.CANCELLED
    assert shop.stop(worker).cancelled == 1


def test_a_soft_cancel_reaches_check_and_is_acknowledged(shop: Shop, tmp_path: Path) -> None:
    worker = shop.start()
    file = tmp_path / "pid"
    job_id = shop.enqueue("polite", {"file": str(file)})
    (pid,) = read_pids(file)

    shop.cancel(job_id, CancelMode.SOFT)

    job = shop.wait(job_id)
    assert job.status is JobStatus.CANCELLED
    assert job.cancel_reason == "enough"
    assert is_alive(pid), "a handler that listens costs no process"
    stats = shop.stop(worker)
    assert (stats.acknowledged_cancels, stats.kills) == (1, 0)


def test_a_handler_that_ignores_a_soft_cancel_is_killed_after_its_grace(
    shop: Shop, tmp_path: Path
) -> None:
    worker = shop.start()
    file = tmp_path / "pids"
    policy = replace(POLICY, grace_us=seconds(1))
    job_id = shop.enqueue("forever", {"file": str(file)}, policy=policy)
    pids = read_pids(file)

    shop.cancel(job_id, CancelMode.SOFT)
    job = shop.wait(job_id)

    assert job.status is JobStatus.CANCELLED
    until(lambda: not any(map(is_alive, pids)), "both processes are gone")
    stats = shop.stop(worker)
    assert (stats.acknowledged_cancels, stats.kills) == (1, 1)


def test_a_timed_out_handler_is_killed_and_its_job_retried(shop: Shop, tmp_path: Path) -> None:
    worker = shop.start()
    file = tmp_path / "pids"
    policy = replace(ONCE, timeout_us=seconds(1.5))
    began = time.monotonic()
    job_id = shop.enqueue("forever", {"file": str(file)}, policy=policy)
    pids = read_pids(file)

    until(lambda: not any(map(is_alive, pids)), "both processes are gone")
    took_s = time.monotonic() - began
    job = shop.wait(job_id)

    assert job.status is JobStatus.DEAD_LETTERED
    assert job.reason_code == "timeout"
    assert took_s > 1.2, "it had nearly all of its time"
    assert shop.stop(worker).timed_out == 1


@spec("WP23")
@pytest.mark.parametrize(("app", "kind"), [(APP, "nap"), (SHARED, "anap")])
def test_a_job_with_a_timeout_of_a_tenth_of_its_lease_runs(shop: Shop, app: str, kind: str) -> None:
    worker = shop.start(app)
    policy = replace(ONCE, lease_us=seconds(60), timeout_us=seconds(5))

    job = shop.wait(shop.enqueue(kind, {"amount_s": 0.1}, policy=policy))

    assert (job.status, job.attempt, job.releases) == (JobStatus.SUCCEEDED, 1, 0)
    assert shop.stop(worker).succeeded == 1


def test_a_handler_that_holds_the_gil_for_five_ttls_keeps_its_lease(shop: Shop) -> None:
    shop.start()

    job = shop.wait(shop.enqueue("hog", {"amount_s": 5}, policy=ONCE))

    assert job.status is JobStatus.SUCCEEDED
    assert (job.attempt, job.failures) == (1, 0)
    assert shop.types(job.id).count("lease_renewed") >= 6


def test_a_blocked_loop_loses_no_lease_and_is_noticed(shop: Shop) -> None:
    worker = shop.start(SHARED, concurrency=3)
    neighbour = shop.enqueue("anap", {"amount_s": 0.5}, policy=ONCE)
    blocking = shop.enqueue("ablock", {"amount_s": 4}, policy=ONCE)

    assert shop.wait(blocking).status is JobStatus.SUCCEEDED
    assert shop.wait(neighbour).status is JobStatus.SUCCEEDED
    stats = shop.stop(worker)
    assert stats.blocked_loops == 1
    assert stats.fenced == 0


def test_coroutines_share_a_child_and_a_cancel_is_raised_in_one_of_them(shop: Shop) -> None:
    worker = shop.start(SHARED, concurrency=4)
    cancelled = shop.enqueue("anap", {"amount_s": 600})
    others = [shop.enqueue("anap", {"amount_s": 2}) for _ in range(3)]
    shop.wait(cancelled, JobStatus.RUNNING)

    shop.cancel(cancelled, CancelMode.SOFT)

    assert shop.wait(cancelled).status is JobStatus.CANCELLED
    assert all(shop.wait(other).attempt == 1 for other in others)
    stats = shop.stop(worker)
    assert (stats.acknowledged_cancels, stats.kills, stats.displaced) == (1, 0, 0)
    assert shop.output_of(others[0]) == b"sleeping 2.0\n"
    assert shop.output_of(cancelled) == b"sleeping 600.0\n"


def test_a_stubborn_coroutine_costs_its_child_and_neighbours_are_handed_back(
    shop: Shop, tmp_path: Path
) -> None:
    worker = shop.start(SHARED, concurrency=2, stubborn_us=seconds(0.5))
    file = tmp_path / "pid"
    stubborn = shop.enqueue("stubborn", {"file": str(file)})
    neighbour = shop.enqueue("anap", {"amount_s": 3}, policy=ONCE)
    (pid,) = read_pids(file)
    shop.wait(neighbour, JobStatus.RUNNING)

    shop.cancel(stubborn, CancelMode.HARD)

    until(lambda: not is_alive(pid), "the child is gone")
    job = shop.wait(neighbour)
    assert job.status is JobStatus.SUCCEEDED
    assert (job.attempt, job.failures, job.releases) == (2, 0, 1)
    assert shop.stop(worker).displaced == 1


def test_a_thread_that_cannot_be_killed_leaks_until_its_neighbours_are_done(
    shop: Shop, tmp_path: Path
) -> None:
    worker = shop.start(SHARED, concurrency=3, stubborn_us=seconds(0.2))
    file, enough = tmp_path / "pid", tmp_path / "enough"
    endless = shop.enqueue("tforever", {"file": str(file)})
    neighbour = shop.enqueue("tuntil", {"file": str(enough)}, policy=ONCE)
    (pid,) = read_pids(file)
    shop.wait(neighbour, JobStatus.RUNNING)

    shop.cancel(endless, CancelMode.HARD)
    until(lambda: worker.stats.leaked, "the leak is counted")
    after = shop.wait(shop.enqueue("tnap", {"amount_s": 0.0}))

    assert after.status is JobStatus.SUCCEEDED, "new work goes to a new child"
    assert is_alive(pid)
    enough.touch()
    assert shop.wait(neighbour).attempt == 1
    until(lambda: not is_alive(pid), "the child is gone, once its neighbours are done")
    assert shop.output_of(neighbour) == b"waiting\n"
