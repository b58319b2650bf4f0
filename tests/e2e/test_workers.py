"""What happens to jobs when things go wrong, with real workers.

On both databases where leases pass from one process to another; what a worker does about its own
handlers does not depend on the database.
"""

import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tenure.core.ids import JobId
from tenure.core.instants import Duration
from tenure.core.vocabulary import CancelMode, EventCause, EventType, JobStatus
from tenure.errors import StoreUnavailable
from tenure_conformance.spec import spec
from tests.e2e.workers import EACH_DATABASE, Site
from tests.support.postgres import PostgresCluster
from tests.support.waiting import until
from tests.worker.harness import is_alive

pytestmark = pytest.mark.process


@EACH_DATABASE
def test_a_killed_workers_job_runs_again_elsewhere(site: Site) -> None:
    job_id = site.enqueue("linger", seconds=3)
    site.start("first")
    site.until_status(job_id, JobStatus.RUNNING)

    site.signal("first", signal.SIGKILL)
    site.start("second")
    job = site.until_ended(job_id)

    assert (job.status, job.attempt, job.failures) == (JobStatus.SUCCEEDED, 2, 1)
    assert job.last_owner == "second"
    stalled = next(event for event in site.events(job_id) if event.type is EventType.STALLED)
    assert stalled.cause is EventCause.LEASE_EXPIRED


@EACH_DATABASE
def test_a_frozen_workers_result_is_refused_and_the_other_stands(
    site: Site, tmp_path: Path
) -> None:
    note, talk = tmp_path / "note", tmp_path / "talk"
    job_id = site.enqueue("write", how="waits", note=str(note))
    site.start("zombie", talk=talk)
    until(Path(f"{note}.ready").exists, "the handler runs")

    site.freeze("zombie")
    note.touch()  # its handler ends now, within its lease, and nobody hears of it
    site.start("awake")
    job = site.until_ended(job_id)
    site.signal("zombie", signal.SIGCONT)
    until(lambda: bool(site.store.jobs.observations(job_id)), "the late result is noted")
    site.signal("zombie", signal.SIGTERM)
    code = site.workers["zombie"].wait(timeout=120)

    assert (job.status, job.attempt, job.last_owner) == (JobStatus.SUCCEEDED, 2, "awake")
    assert (site.job(job_id), job.result) == (job, b"2")
    [late] = site.store.jobs.observations(job_id)
    assert late.body == b"1"
    assert code == 0
    assert "CANCELLED (superseded)" in talk.read_text()


@spec("WP18")
def test_a_frozen_workers_handler_is_gone_before_its_job_runs_elsewhere(
    site: Site, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    job_id = site.enqueue("deaf", pid_file=str(pid_file))
    site.start("zombie")
    until(lambda: pid_file.exists() and pid_file.read_text() != "", "the handler runs")
    pid = int(pid_file.read_text())

    site.freeze("zombie")
    site.start("awake")
    job = site.until_ended(job_id)

    assert not is_alive(pid)
    assert job.status is JobStatus.DEAD_LETTERED
    site.signal("zombie", signal.SIGCONT)


# Not on PostgreSQL: jobs that vanish a second after they were acknowledged prove a lossy failover
# there, and the worker hears CANCELLED (epoch_changed). [A8]
def test_a_rejected_attempt_is_stopped_logged_counted_and_never_reported_again(
    site: Site, tmp_path: Path
) -> None:
    """Two jobs that are gone from the store when their worker has something to say about them."""
    end, talk, pid_file = tmp_path / "end", tmp_path / "talk", tmp_path / "deaf.ready"
    site.deploy("tests.e2e.lanes:app")
    site.start("worker", talk=talk)
    ending = site.enqueue("last_word", note=str(end))
    running = site.enqueue("deaf", note=str(tmp_path / "deaf"))
    until(Path(f"{end}.ready").exists, "the one that will end runs")
    until(pid_file.exists, "the one that never ends runs")

    site.freeze("worker")
    for job_id in (running, ending):
        site.cancel(job_id, CancelMode.HARD)
    purged = site.store.upkeep.delete("jobs", older_than_us=Duration(0), limit=2).deleted
    end.touch()
    site.signal("worker", signal.SIGCONT)
    until(lambda: not is_alive(int(pid_file.read_text())), "the handler's process is gone")
    after = site.until_ended(site.enqueue("shout", kibibytes=1))
    site.signal("worker", signal.SIGTERM)
    code = site.workers["worker"].wait(timeout=120)

    said = talk.read_text().splitlines()
    rejected = [line for line in said if "was REJECTED (unknown_job), stopping it" in line]
    assert purged == 2
    assert [sum(job_id in line for line in rejected) for job_id in (running, ending)] == [1, 1]
    assert "2 rejected" in said[-1]
    assert (code, after.status) == (0, JobStatus.SUCCEEDED)


def test_a_handler_that_hogs_the_interpreter_keeps_its_lease(staffed: Site) -> None:
    job_id = staffed.enqueue("hog", seconds=12)  # more than two leases

    job = staffed.until_ended(job_id)

    assert (job.status, job.attempt, job.result) == (JobStatus.SUCCEEDED, 1, b'"still mine"')


def test_poison_fails_its_own_job_and_leaves_its_neighbours_alone(site: Site) -> None:
    site.start("worker", "--memory-limit", "512M", concurrency=3)
    ways = ("exit", "segfault", "kill", "recursion", "memory")
    pills = {how: site.enqueue("poison", how=how) for how in ways}
    good = [site.enqueue("add", one=number, two=number) for number in range(6)]

    ended = {how: site.until_ended(job_id) for how, job_id in pills.items()}
    sums = [site.until_ended(job_id) for job_id in good]

    assert {job.status for job in ended.values()} == {JobStatus.DEAD_LETTERED}
    assert [job.result for job in sums] == [str(2 * number).encode() for number in range(6)]
    assert {job.attempt for job in sums} == {1}
    said = {how: f"{job.error.type} {job.error.message}" for how, job in ended.items() if job.error}
    assert "3" in said["exit"]
    assert "SIGSEGV" in said["segfault"]
    assert "SIGKILL" in said["kill"]
    assert "RecursionError" in said["recursion"]
    assert "MemoryError" in said["memory"]


def test_a_kind_that_nobody_serves_waits_and_says_so(staffed: Site) -> None:
    stranger = JobId(staffed.tenure("enqueue", "unheard_of").stdout.decode().strip())

    staffed.until_ended(staffed.enqueue("add", one=1, two=2))
    shown = staffed.tenure("jobs", "show", stranger).stdout.decode()

    assert staffed.types(stranger) == [EventType.ENQUEUED]
    assert "no worker is alive that takes kind unheard_of from queue default" in shown


def test_rolling_restarts_burn_no_budget(site: Site) -> None:
    jobs = [site.enqueue("fragile", seconds=1) for _ in range(12)]
    site.start("a", grace="5s")

    for old, new in (("a", "b"), ("b", "c")):
        until(partial(_has_worked, site, jobs, old), f"{old} has claimed something")
        site.start(new, grace="5s")
        site.signal(old, signal.SIGTERM)
        assert site.workers[old].wait(timeout=120) == 0

    ended = [site.until_ended(job_id) for job_id in jobs]
    assert {job.status for job in ended} == {JobStatus.SUCCEEDED}
    assert {job.failures for job in ended} == {0}


def _has_worked(site: Site, jobs: list[JobId], name: str) -> bool:
    rows = [site.job(job_id) for job_id in jobs]
    return any(name in (row.owner, row.last_owner) for row in rows)


def test_a_soft_cancel_outlives_its_worker(site: Site) -> None:
    job_id = site.enqueue("linger", seconds=60)
    site.start("doomed")
    site.until_status(job_id, JobStatus.RUNNING)
    site.freeze("doomed")

    site.cancel(job_id, CancelMode.SOFT)
    site.signal("doomed", signal.SIGKILL)
    site.start("other")
    job = site.until_ended(job_id)

    assert job.status is JobStatus.CANCELLED
    assert EventType.REQUEUED not in site.types(job_id)
    assert job.attempt == 1


def test_a_hard_cancel_ends_an_infinite_loop(staffed: Site, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    job_id = staffed.enqueue("deaf", pid_file=str(pid_file))
    until(lambda: pid_file.exists() and pid_file.read_text() != "", "the handler runs")
    pid = int(pid_file.read_text())

    staffed.cancel(job_id, CancelMode.HARD)

    until(lambda: not is_alive(pid), "the handler's process is gone")
    assert staffed.job(job_id).status is JobStatus.CANCELLED
    after = staffed.enqueue("add", one=1, two=1)
    assert staffed.until_ended(after).status is JobStatus.SUCCEEDED


def test_an_outage_longer_than_the_lease_costs_no_budget(
    durable_postgres: PostgresCluster,
) -> None:
    site = Site(durable_postgres.create_database())
    job_id: JobId = site.enqueue("fragile", seconds=8)
    site.start("worker")
    site.until_status(job_id, JobStatus.RUNNING)

    durable_postgres.kill()
    until(lambda: _is_down(site), "the server is away")
    _wait_out_an_outage()
    durable_postgres.restart()
    job = site.until_ended(job_id)

    assert (job.status, job.failures) == (JobStatus.SUCCEEDED, 0)
    assert job.outage_credits <= 1
    site.close()


def _is_down(site: Site) -> bool:
    try:
        site.store.now()
    except StoreUnavailable:
        return True
    return False


def _wait_out_an_outage() -> None:
    """Longer than the lease (2 s) and than the shortest outage (5 s)."""
    time.sleep(8)  # real time: the outage must be longer than both
