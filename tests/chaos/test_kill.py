"""kill -9 in the middle of enqueues, claims and reports: nothing acknowledged is missing.

Real processes, real SIGKILL, durable stores. Each client keeps its own log of acknowledgements;
after the massacre `verify` holds the log of events against all of them.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import sleep

import pytest

from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import Sweeper
from tenure.core.ids import DEFAULT_NAMESPACE, Kind
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindChange
from tenure.core.rates import parse_rate
from tenure.ports import JobHistory
from tenure.verify import verify
from tenure.wiring import open_store
from tenure_conformance.spec import spec
from tests.chaos.client import LIMITS
from tests.chaos.processes import kill, wait_until_it_works
from tests.support.postgres import PostgresCluster

pytestmark = pytest.mark.process

CLIENTS = 3
KILLS = 4
MANY_KILLS = 16
MANY_ROUNDS = 100_000
ROOT = Path(__file__).resolve().parents[2]


many = pytest.mark.parametrize("kills", [KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.proof)])


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path / 'chaos.db'}"


class Massacre:
    """Clients that are started, watched until they work, and killed."""

    def __init__(self, url: str, directory: Path, seed: int) -> None:
        self._url = url
        self._directory = directory
        self._random = Random(seed)
        self._started = 0
        self._alive: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        number = self._started
        self._started += 1
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.chaos.client",
                self._url,
                f"c{number}",
                str(self._directory / f"acks-{number}.jsonl"),
                str(number),
                str(MANY_ROUNDS),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        wait_until_it_works(process, "a client")
        self._alive.append(process)

    def kill_one(self) -> None:
        victim = self._alive.pop(self._random.randrange(len(self._alive)))
        kill(victim)

    def end(self) -> None:
        while self._alive:
            kill(self._alive.pop())

    def acks(self) -> list[Path]:
        """What everybody was told."""
        return sorted(self._directory.glob("acks-*.jsonl"))


def prepare(url: str) -> None:
    """Some of the jobs wait for the rate of their rate key."""
    store = open_store(url, migrate=True)
    change = KindChange(kind=Kind("chaos"), rate=parse_rate("rate", "60/s", 5))
    store.settings.put_kind(DEFAULT_NAMESPACE, change)
    store.close()


@pytest.fixture
def massacre_sqlite(tmp_path: Path) -> Iterator[tuple[Massacre, str]]:
    url = sqlite_url(tmp_path)
    prepare(url)
    massacre = Massacre(url, tmp_path, seed=1)
    yield massacre, url
    massacre.end()


@pytest.fixture
def massacre_postgres(
    durable_postgres: PostgresCluster, tmp_path: Path
) -> Iterator[tuple[Massacre, str]]:
    url = durable_postgres.create_database()
    prepare(url)
    massacre = Massacre(url, tmp_path, seed=2)
    yield massacre, url
    massacre.end()


def kill_and_replace(massacre: Massacre, kills: int) -> None:
    for _ in range(CLIENTS):
        massacre.start()
    for number in range(kills):
        sleep(0.05 * (number % 4))  # not a wait for anything: kills must fall on odd moments
        massacre.kill_one()
        massacre.start()
    massacre.end()


def assert_nothing_is_missing(url: str, acks: list[Path]) -> None:
    store = open_store(url)
    coordinator = Coordinator(store, limits=LIMITS)
    report = verify(store, acks=acks)
    Sweeper(coordinator).sweep_once()
    coordinator.close()
    after_sweeping = verify(store, acks=acks)
    keyed = [record for record in store.audit.records(page_size=200) if _ran_with_key(record)]
    rated = [grant for grant in store.audit.grants(since=Instant(0)) if grant.rate_key is not None]
    store.close()

    assert report.violated == [], [finding.first for finding in report.findings if finding.first]
    assert report.not_checked == ["I23"]
    assert after_sweeping.violated == []
    assert report.jobs > 20
    assert report.acks is not None
    assert report.acks > 100
    assert len(keyed) > 5  # otherwise I31 would say nothing
    assert len(rated) > 5  # likewise I30


def _ran_with_key(record: JobHistory) -> bool:
    return record.job is not None and bool(record.job.concurrency_key) and record.job.attempt > 0


@many
@spec("I21", "I16", "I30", "I31", "RL11")
def test_sqlite_keeps_every_acknowledgement_through_kills(
    massacre_sqlite: tuple[Massacre, str], kills: int
) -> None:
    massacre, url = massacre_sqlite

    kill_and_replace(massacre, kills)

    assert_nothing_is_missing(url, massacre.acks())


@many
@spec("I21", "I16", "I30", "I31", "CK3")
def test_postgres_keeps_every_acknowledgement_through_kills(
    massacre_postgres: tuple[Massacre, str], kills: int
) -> None:
    massacre, url = massacre_postgres

    kill_and_replace(massacre, kills)

    assert_nothing_is_missing(url, massacre.acks())


@spec("I21")
def test_postgres_keeps_every_acknowledgement_through_the_death_of_the_server(
    durable_postgres: PostgresCluster, massacre_postgres: tuple[Massacre, str]
) -> None:
    massacre, url = massacre_postgres
    for _ in range(CLIENTS):
        massacre.start()
    sleep(0.5)  # not a wait for anything: the server dies in the middle of work

    durable_postgres.kill()
    massacre.end()
    durable_postgres.restart()

    assert_nothing_is_missing(url, massacre.acks())
