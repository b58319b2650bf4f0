"""Real workers that know a server and a token and nothing else."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.app import Tenure
from tenure.core.ids import JobId
from tenure.core.vocabulary import RENEWALS, CancelMode, EventCause, EventType, JobStatus, Stage
from tenure.worker.session.session import CLAIM_LOST
from tenure_conformance.spec import spec
from tests.remote.proxy import SwallowingProxy
from tests.remote.sites import RemoteSite
from tests.support.waiting import until
from tests.worker.harness import is_alive

pytestmark = pytest.mark.process

OURS = "tests.remote.app:app"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RemoteSite]:
    """On SQLite: a worker that knows only a server cannot tell which database it has."""
    site = RemoteSite(f"sqlite:///{tmp_path / 'remote.db'}", tmp_path)
    yield site
    site.close()


@pytest.fixture(scope="module")
def staffed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteSite]:
    """A server and a worker that tests share which stop neither."""
    directory = tmp_path_factory.mktemp("staffed")
    site = RemoteSite(f"sqlite:///{directory / 'remote.db'}", directory)
    site.work("worker", site.serve().address)
    yield site
    site.close()


@pytest.fixture
def postgres_site(postgres_url: str, tmp_path: Path) -> Iterator[RemoteSite]:
    site = RemoteSite(postgres_url, tmp_path)
    yield site
    site.close()


@spec("H23")
def test_a_worker_completes_retries_and_leaves_files(staffed: RemoteSite) -> None:
    added = staffed.enqueue("add", one=1, two=2)
    poison = staffed.enqueue("poison", how="exit")
    written = staffed.enqueue("write", how="raises")

    assert staffed.until_ended(added).result == b"3"
    assert staffed.until_ended(poison).status is JobStatus.DEAD_LETTERED
    assert staffed.until_ended(written).result == b"2"
    assert [event.actor for event in staffed.events(added)][1:] == ["worker:fleet"] * 3
    assert staffed.types(written).count(EventType.REQUEUED) == 1
    assert [each.name for each in staffed.store.artifacts.of_job(written)] == ["paper-2"]


@spec("B28", "J9")
def test_an_artifact_over_a_servers_quota_is_a_permanent_failure_of_the_output(
    site: RemoteSite,
) -> None:
    server = site.serve(TENURE_ARTIFACT_QUOTA_PER_JOB="1000")  # a paper has 1025 bytes
    site.work("worker", server.address)

    job = site.until_ended(site.enqueue("write", how="well"))

    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert job.error is not None
    assert job.error.stage is Stage.OUTPUT
    assert "this job use 0 bytes of their quota of 1000" in job.error.message
    assert "TENURE_ARTIFACT_QUOTA_PER_JOB" in job.error.message


@spec("B20")
def test_the_output_of_a_running_job_can_be_read_through_a_server(
    staffed: RemoteSite, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    operator = staffed.token("operator", "ops")
    job_id = staffed.enqueue("chat", name="ada", note=str(note))

    def logs() -> str:
        return staffed.ask(staffed.servers[0].address, operator, "jobs", "logs", job_id).stdout

    until(lambda: "ada says 19" in logs(), "its output is there")
    status = staffed.job(job_id).status
    note.touch()
    until(lambda: logs().endswith("ada says 19\nada is done\n"), "all of it is there")

    assert status is JobStatus.RUNNING


@spec("D9", "D12")
def test_a_handler_without_a_token_enqueues_through_its_worker(staffed: RemoteSite) -> None:
    lead = staffed.enqueue("lead")

    job = staffed.until_ended(lead)

    assert (job.status, job.attempt) == (JobStatus.SUCCEEDED, 2)
    assert job.result is not None
    followed = [staffed.until_ended(JobId(each)) for each in job.result.decode()[1:-1].split()]
    assert [each.result for each in followed] == [b'"lead 1"'] * 2
    assert {staffed.events(each.id)[0].actor for each in followed} == {"worker:fleet"}


def test_soft_and_hard_cancels_reach_a_remote_handler(staffed: RemoteSite, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    soft = staffed.enqueue("linger", seconds=60)
    hard = staffed.enqueue("deaf", pid_file=str(pid_file))
    staffed.until_status(soft, JobStatus.RUNNING)
    until(lambda: pid_file.exists() and pid_file.read_text() != "", "the handler runs")

    staffed.cancel(soft, CancelMode.SOFT)
    staffed.cancel(hard, CancelMode.HARD)

    assert staffed.until_ended(soft).status is JobStatus.CANCELLED
    assert EventType.CANCEL_REQUESTED in staffed.types(soft)
    until(lambda: not is_alive(int(pid_file.read_text())), "the handler's process is gone")
    assert staffed.until_ended(hard).status is JobStatus.CANCELLED
    assert staffed.until_ended(staffed.enqueue("add", one=1, two=1)).result == b"2"


def test_a_server_that_is_away_longer_than_the_lease_costs_the_attempt(site: RemoteSite) -> None:
    server = site.serve()
    site.deploy(OURS)
    site.work("worker", server.address, OURS)
    job_id = site.enqueue("second_time")
    # Not before its first renewal: the store may have the start and the worker not yet its answer,
    # and a handler that was never let go is not given up.
    until(lambda: any(each.type in RENEWALS for each in site.events(job_id)), "the handler runs")

    server.stop(signal.SIGKILL)
    until(lambda: "not renewed in time" in site.logs["worker"].read_text(), "it was given up")
    site.serve(server.port)
    job = site.until_ended(job_id)

    assert (job.status, job.result, job.attempt) == (JobStatus.SUCCEEDED, b"2", 2)
    stalled = next(event for event in site.events(job_id) if event.type is EventType.STALLED)
    assert stalled.cause is EventCause.LEASE_EXPIRED
    assert site.workers["worker"].poll() is None


def test_an_idle_worker_drains_at_once(site: RemoteSite) -> None:
    server = site.serve()
    site.work("worker", server.address)
    site.until_ended(site.enqueue("add", one=1, two=1))

    site.signal("worker", signal.SIGTERM)

    assert site.workers["worker"].wait(timeout=120) == 0
    assert "no answer" not in site.logs["worker"].read_text()


def test_an_idle_worker_whose_server_is_gone_says_so_once_and_ends(site: RemoteSite) -> None:
    server = site.serve()
    site.work("worker", server.address)
    site.enqueue("add", one=1, two=1)
    log = site.logs["worker"]
    until(lambda: "succeeded" in log.read_text(), "the worker heard that its report counts")

    server.stop(signal.SIGKILL)
    until(lambda: "asking until there is one" in log.read_text(), "the worker noticed")
    site.signal("worker", signal.SIGTERM)

    assert site.workers["worker"].wait(timeout=120) == 0
    assert log.read_text().count("asking until there is one") == 1
    assert CLAIM_LOST in log.read_text(), "it waited for its whole grace"


@spec("H27")
def test_two_servers_share_a_database_and_every_job_is_done_once(
    postgres_site: RemoteSite,
) -> None:
    site = postgres_site
    servers = [site.serve(), site.serve()]
    for number, server in enumerate(servers):
        site.work(f"worker-{number}", server.address)
    jobs = [site.enqueue("linger", seconds=0.2) for _ in range(40)]

    ended = [site.until_ended(job_id) for job_id in jobs]

    assert {(job.status, job.attempt) for job in ended} == {(JobStatus.SUCCEEDED, 1)}
    assert {job.last_owner for job in ended} == {"worker-0", "worker-1"}
    settled = [site.types(job_id).count(EventType.SUCCEEDED) for job_id in jobs]
    assert settled == [1] * len(jobs)


def test_a_worker_whose_signs_of_life_get_lost_works_nevertheless(
    site: RemoteSite,
) -> None:
    proxy = SwallowingProxy(site.serve().port, lambda _, name: name.endswith("/alive"))
    site.work("worker", proxy.url, TENURE_RETRY_FOR="2s")
    job_id = site.enqueue("add", one=1, two=2)

    assert site.until_ended(job_id).result == b"3"
    assert "the first sign of life got no answer" in site.logs["worker"].read_text()
    proxy.close()


@spec("Q1")
def test_a_worker_whose_answers_get_lost_loses_no_job_and_no_lease(site: RemoteSite) -> None:
    server = site.serve()
    seen: Counter[str] = Counter()

    def every_third_of_its_kind(_: int, name: str) -> bool:
        """Of its kind: a request is repeated five times at most, and every third answer of all
        could be its own each time. Whoever starts asks for the time, and ends without it."""
        kind = name.partition("?")[0]
        seen[kind] += 1
        return seen[kind] % 3 == 0 and kind != "GET /v1/time"

    proxy = SwallowingProxy(server.port, every_third_of_its_kind)
    site.work("worker", proxy.url, OURS)
    with Tenure(proxy.url, token=site.token("client", "shop")) as client:
        jobs = [client.enqueue("patient", {"number": number}) for number in range(20)]

        results = [job.result(timeout="2m") for job in jobs]

    ended = [site.job(job.id) for job in jobs]

    assert {(job.status, job.attempt) for job in ended} == {(JobStatus.SUCCEEDED, 1)}
    assert results == list(range(20))
    assert {name.partition("?")[0] for name in proxy.swallowed} >= {"POST /v1/report"}
    proxy.close()


def test_a_revoked_token_ends_a_worker_and_its_log_does_not_show_it(site: RemoteSite) -> None:
    server = site.serve()
    site.work("worker", server.address)
    site.until_ended(site.enqueue("add", one=1, two=1))

    listed = site.tenure("tokens", "ls", "--json").stdout.decode()
    token_id = site.worker_token.split("_")[1]
    assert token_id in listed
    assert site.tenure("tokens", "revoke", token_id).returncode == 0

    assert site.workers["worker"].wait(timeout=120) == 1
    assert "claims are refused: unauthenticated" in site.logs["worker"].read_text()


def test_a_worker_whose_token_is_revoked_says_so_of_the_job_that_it_stops(
    site: RemoteSite,
) -> None:
    server = site.serve()
    site.work("worker", server.address)
    job = site.enqueue("linger", seconds=60.0)
    site.until_status(job, JobStatus.RUNNING)

    site.tenure("tokens", "revoke", site.worker_token.split("_")[1])

    assert site.workers["worker"].wait(timeout=120) == 1
    log = site.logs["worker"].read_text()
    assert "was REJECTED (the server refuses this worker" in log
    assert "None" not in log


def test_a_worker_without_a_valid_token_does_not_start(staffed: RemoteSite) -> None:
    stranger = f"tenure_{'0' * 16}_{'0' * 64}"

    refused = staffed.ask(staffed.servers[0].address, stranger, "worker", "tests.e2e.app:app")

    assert refused.returncode == 2
    assert "unauthenticated" in refused.stderr
    assert stranger not in refused.stderr
