"""Stopping, continuing, terminating and killing a supervisor; its children and its leases."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tenure.core.ids import JobId
from tenure.core.instants import seconds
from tenure.core.vocabulary import JobStatus
from tenure.wiring import open_store
from tenure.worker.session.messages import Stats
from tenure_conformance.spec import spec
from tests.support.freezing import freeze_without_lock
from tests.support.waiting import PATIENCE_S, until
from tests.worker.harness import (
    POLICY,
    Shop,
    is_alive,
    open_shop,
    read_pids,
)
from tests.worker.sample import APP, SHARED

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
INSIST_EVERY_S = 5.0
ONCE = replace(POLICY, max_attempts=1)


class Runner:
    """A worker process."""

    def __init__(
        self, url: str, *, grace_s: float, concurrency: int, app: str, talk: Path | None
    ) -> None:
        self._url = url
        words = [url, str(grace_s), str(concurrency), app]
        with nullcontext() if talk is None else talk.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.worker.runner", *words],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP, while it does not hold SQLite's only write lock."""
        freeze_without_lock(self.process.pid, self._url)

    def insist(self, number: int) -> None:
        """Signal it until it ends: two signals that it has not looked at yet count as one."""

        def has_ended() -> bool:
            self.process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=INSIST_EVERY_S)
            return self.process.returncode is not None

        until(has_ended, "the worker has ended")

    def wait(self) -> tuple[int, Stats]:
        """Its exit code and what it counted."""
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, msgspec.json.decode(said, type=Stats)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Fleet:
    """A shop on a file, and the worker processes of one test."""

    def __init__(self, shop: Shop, url: str) -> None:
        self.shop = shop
        self._url = url
        self._runners: list[Runner] = []

    def start(
        self,
        app: str = APP,
        *,
        grace_s: float = 10,
        concurrency: int = 2,
        talk: Path | None = None,
        under_nohup: bool = False,
    ) -> Runner:
        """A worker; its log goes to `talk`, or to whoever reads the tests. How it takes SIGHUP does
        not depend on how the tests were started."""
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN if under_nohup else signal.SIG_DFL)
        try:
            runner = Runner(self._url, grace_s=grace_s, concurrency=concurrency, app=app, talk=talk)
        finally:
            signal.signal(signal.SIGHUP, before)
        self._runners.append(runner)
        return runner

    def close(self) -> None:
        for runner in self._runners:
            runner.end()


def keepers_of(supervisor: int) -> list[int]:
    """The pids of its keepers."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return [pid for pid in map(int, children) if b"keeper.py" in command_of(pid)]


def command_of(pid: int) -> bytes:
    """Its command line; nothing of a process that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Workers in processes over one SQLite file; the history is verified after the test."""
    url = f"sqlite:///{tmp_path / 'worker.db'}"
    with open_shop(open_store(url, migrate=True)) as shop, closing(Fleet(shop, url)) as fleet:
        yield fleet


@spec("WP18")
@pytest.mark.parametrize(
    ("app", "kind"), [(APP, "forever"), (SHARED, "stubborn"), (SHARED, "tforever")]
)
def test_a_handler_is_gone_with_its_lease_while_its_supervisor_is_frozen(
    fleet: Fleet, tmp_path: Path, app: str, kind: str
) -> None:
    """In every lane; the program that the first of them started is gone, too."""
    shop, file = fleet.shop, tmp_path / "pids"
    policy = replace(ONCE, lease_us=seconds(3))
    job_id = shop.enqueue(kind, {"file": str(file)}, policy=policy)
    runner = fleet.start(app)
    pids = read_pids(file)

    _freeze_between_heartbeats(runner, shop, job_id)
    until(lambda: not any(map(is_alive, pids)), "the handler is gone")
    job = shop.wait(job_id)
    runner.signal(signal.SIGCONT)

    assert job.status is JobStatus.DEAD_LETTERED
    runner.signal(signal.SIGTERM)
    code, stats = runner.wait()
    assert (code, stats.fenced, stats.succeeded) == (0, 1, 0)
    assert (stats.cancelled, stats.failed, stats.dead_lettered) == (0, 0, 0), "nothing was reported"


def _freeze_between_heartbeats(runner: Runner, shop: Shop, job_id: JobId) -> None:
    """Freeze the worker while no heartbeat of the job is under way. The answer to one, that the
    lease is over, may be what the worker hears first when it goes on: it takes what it has heard
    before it looks at its own clock."""
    interval_us = shop.job(job_id).policy.heartbeat_interval_us

    def is_frozen() -> bool:
        seen = shop.job(job_id).hb_seq
        until(lambda: shop.job(job_id).hb_seq > seen, "the lease is renewed")
        runner.freeze()
        if shop.store.now() < shop.job(job_id).updated_at + interval_us:
            return True  # the next heartbeat was not due yet
        runner.signal(signal.SIGCONT)
        return False

    until(is_frozen, "the worker is frozen between two heartbeats")


@spec("WP18")
def test_a_neighbour_with_a_longer_lease_is_not_killed_for_one_whose_lease_is_over(
    fleet: Fleet, tmp_path: Path
) -> None:
    shop, files = fleet.shop, [tmp_path / "short", tmp_path / "long"]
    short, long = ONCE, replace(ONCE, lease_us=seconds(60))
    over = shop.enqueue("tforever", {"file": str(files[0])}, policy=short)
    shop.enqueue("tforever", {"file": str(files[1])}, policy=long)
    runner = fleet.start(SHARED)
    pids = {pid for file in files for pid in read_pids(file)}

    runner.freeze()
    shop.wait(over)

    assert len(pids) == 1
    assert all(map(is_alive, pids))
    runner.signal(signal.SIGCONT)


@spec("WP18")
def test_an_idle_child_outlives_the_lease_of_its_last_job(shop: Shop) -> None:
    policy = replace(POLICY, lease_us=seconds(0.5))
    shop.start(concurrency=1)
    shop.start(SHARED)
    first = shop.wait(shop.enqueue("pid", policy=policy)).result

    shop.wait(shop.enqueue("tnap", {"amount_s": 1}))

    assert shop.wait(shop.enqueue("pid", policy=policy)).result == first


@spec("WP18")
def test_a_killed_keeper_is_replaced_so_that_a_killed_supervisor_leaves_nothing_behind(
    fleet: Fleet, tmp_path: Path
) -> None:
    shop, file, talk = fleet.shop, tmp_path / "pids", tmp_path / "talk"
    shop.enqueue("forever", {"file": str(file)}, policy=ONCE)
    runner = fleet.start(talk=talk)
    pids = read_pids(file)
    (keeper,) = keepers_of(runner.process.pid)

    os.kill(keeper, signal.SIGKILL)
    until(lambda: set(keepers_of(runner.process.pid)) - {keeper}, "there is another keeper")
    runner.signal(signal.SIGKILL)

    until(lambda: not any(map(is_alive, pids)), "the handler and its program are gone")


def test_a_result_that_was_ready_while_the_supervisor_slept_is_cancelled(
    fleet: Fleet, tmp_path: Path
) -> None:
    shop, file = fleet.shop, tmp_path / "pid"
    # Time to stop the worker before the nap ends, and for the nap to end before its lease does.
    policy = replace(ONCE, lease_us=seconds(5))
    job_id = shop.enqueue("nap", {"amount_s": 1, "file": str(file)}, policy=policy)
    runner = fleet.start()
    read_pids(file)

    runner.freeze()
    assert shop.wait(job_id).status is JobStatus.DEAD_LETTERED
    runner.signal(signal.SIGCONT)
    until(lambda: shop.store.jobs.observations(job_id), "the late result is noted")
    runner.signal(signal.SIGTERM)

    code, stats = runner.wait()
    assert (code, stats.cancelled, stats.succeeded) == (0, 1, 0)
    assert shop.job(job_id).status is JobStatus.DEAD_LETTERED
    (observation,) = shop.store.jobs.observations(job_id)
    assert observation.body == b'"rested"'


def test_a_deploy_burns_no_budget(fleet: Fleet, tmp_path: Path) -> None:
    shop = fleet.shop
    files = [tmp_path / f"pid-{number}" for number in range(2)]
    quick = shop.enqueue("nap", {"amount_s": 0.6, "file": str(files[0])}, policy=ONCE)
    slow = shop.enqueue("nap", {"amount_s": 2.5, "file": str(files[1])}, policy=ONCE)
    old = fleet.start(grace_s=2)
    for file in files:
        read_pids(file)

    old.signal(signal.SIGTERM)
    fleet.start()
    code, stats = old.wait()

    assert (code, stats.succeeded, stats.released) == (0, 1, 1)
    assert (shop.wait(quick).attempt, shop.job(quick).status) == (1, JobStatus.SUCCEEDED)
    assert (shop.wait(slow).attempt, shop.job(slow).status) == (2, JobStatus.SUCCEEDED)
    assert (shop.job(slow).failures, shop.job(slow).releases) == (0, 1)


def test_a_handler_is_asked_to_stop_before_a_shutdown_kills_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    shop, file = fleet.shop, tmp_path / "pid"
    policy = replace(ONCE, lease_us=seconds(60))
    job_id = shop.enqueue("polite", {"file": str(file)}, policy=policy)
    runner = fleet.start(grace_s=6)  # it is asked after 3.4 s, and would be killed after 5.4 s
    read_pids(file)

    os.killpg(runner.process.pid, signal.SIGINT)  # as a terminal does it: to the whole group
    code, stats = runner.wait()

    assert (code, stats.released, stats.kills) == (0, 1, 0)
    assert shop.job(job_id).status is JobStatus.QUEUED


def test_a_second_sigterm_stops_at_once_and_still_hands_back(fleet: Fleet, tmp_path: Path) -> None:
    shop, file, go_on, talk = fleet.shop, tmp_path / "pids", tmp_path / "go_on", tmp_path / "talk"
    job_id = shop.enqueue("forever", {"file": str(file)}, policy=ONCE)
    waiting = {"file": str(tmp_path / "pid"), "until": str(go_on)}
    other = shop.enqueue("waiting", waiting, policy=ONCE)
    runner = fleet.start(grace_s=600, talk=talk)
    pids = read_pids(file)
    read_pids(tmp_path / "pid")

    runner.signal(signal.SIGTERM)
    runner.signal(signal.SIGUSR1)  # it is ignored and logged: then SIGTERM was handled too
    until(lambda: "ignoring SIGUSR1" in talk.read_text(), "the worker has heard")
    go_on.touch()
    finished = shop.wait(other, JobStatus.SUCCEEDED, JobStatus.QUEUED, JobStatus.DEAD_LETTERED)
    were_alive = all(map(is_alive, pids))
    runner.insist(signal.SIGTERM)
    code, stats = runner.wait()

    assert (finished.status, were_alive) == (JobStatus.SUCCEEDED, True), "the first lets them be"
    assert (code, stats.succeeded, stats.released) == (0, 1, 1)
    assert not any(map(is_alive, pids))
    assert (shop.job(job_id).status, shop.job(job_id).failures) == (JobStatus.QUEUED, 0)


def test_ignored_signals_cost_nothing_and_a_hangup_drains(fleet: Fleet, tmp_path: Path) -> None:
    shop, file = fleet.shop, tmp_path / "pid"
    job_id = shop.enqueue("nap", {"amount_s": 1, "file": str(file)}, policy=ONCE)
    runner = fleet.start()
    read_pids(file)

    runner.signal(signal.SIGUSR1)
    runner.signal(signal.SIGUSR2)
    runner.signal(signal.SIGHUP)
    code, stats = runner.wait()

    assert (code, stats.succeeded) == (0, 1)
    assert shop.job(job_id).status is JobStatus.SUCCEEDED


def test_under_nohup_a_hangup_is_ignored(fleet: Fleet, tmp_path: Path) -> None:
    shop, file, go_on = fleet.shop, tmp_path / "pid", tmp_path / "go_on"
    job_id = shop.enqueue("waiting", {"file": str(file), "until": str(go_on)}, policy=ONCE)
    runner = fleet.start(under_nohup=True)
    read_pids(file)

    runner.signal(signal.SIGHUP)
    go_on.touch()
    shop.wait(job_id)

    assert shop.wait(shop.enqueue("add", {"a": 1, "b": 2})).status is JobStatus.SUCCEEDED
    runner.signal(signal.SIGTERM)
    assert runner.wait()[0] == 0


def test_children_and_what_they_started_die_with_a_killed_supervisor(
    fleet: Fleet, tmp_path: Path
) -> None:
    shop, file = fleet.shop, tmp_path / "pids"
    job_id = shop.enqueue("forever", {"file": str(file)}, policy=ONCE)
    runner = fleet.start()
    pids = read_pids(file)

    runner.signal(signal.SIGKILL)

    until(lambda: not any(map(is_alive, pids)), "the handler and its program are gone")
    assert shop.wait(job_id).status is JobStatus.DEAD_LETTERED
