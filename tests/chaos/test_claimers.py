"""64 claimers race on one queue: no job twice in an attempt, no grant above a limit."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from threading import Event, Thread

import msgspec
import psycopg
import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.commands import Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, client_actor, new_job_id
from tenure.ports import Store
from tenure.verify import assert_holds
from tenure.wiring import open_store
from tenure_conformance.spec import spec
from tests.chaos.claimer import QUEUE, THREADS
from tests.support.waiting import joined

pytestmark = pytest.mark.process

CLAIMERS = 64
ROOT = Path(__file__).resolve().parents[2]


class Granted(msgspec.Struct, frozen=True):
    """One line of a claimer."""

    job: str
    attempt: int
    by: str


def fill(store: Store, amount: int) -> None:
    coordinator = Coordinator(store)
    commands = [
        Enqueue(
            job_id=new_job_id(store.now(), number.to_bytes(10, "big")),
            namespace=DEFAULT_NAMESPACE,
            queue=QUEUE,
            kind=Kind("race"),
            actor=client_actor("tests"),
        )
        for number in range(amount)
    ]
    coordinator.submit_many(commands).result()
    coordinator.close()


def race(url: str, *, batch: int, completes: bool) -> list[Granted]:
    """What 64 claimers were granted, every answer within its batch."""
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.chaos.claimer",
                url,
                f"p{number}",
                str(batch),
                str(int(completes)),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for number in range(CLAIMERS // THREADS)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    found: list[Granted] = []
    for output in outputs:
        for line in output.splitlines():
            if line.isdigit():
                assert int(line) <= batch
            else:
                found.append(msgspec.json.decode(line, type=Granted))
    return found


class LimitWatch:
    """Reads the number of live leases as often as it can while claimers race."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = Event()
        self.highest = 0
        self._thread = Thread(target=self._watch)

    def _watch(self) -> None:
        store = open_store(self._url)
        while not self._over.is_set():
            for state in store.settings.queues(DEFAULT_NAMESPACE):
                self.highest = max(self.highest, state.live)
        store.close()

    def __enter__(self) -> "LimitWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        joined(self._thread, "the watch of limits has ended")


@pytest.fixture(params=["sqlite", "postgres", "postgres-nested-loops"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store, one of them planning with neither hash, merge join nor materialisation."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'race.db'}"
    dsn: str = request.getfixturevalue("postgres_url")
    if request.param == "postgres-nested-loops":
        with psycopg.connect(dsn, autocommit=True) as connection:
            (name,) = connection.execute("SELECT current_database()").fetchone() or ("",)
            for setting in ("enable_hashjoin", "enable_mergejoin", "enable_material"):
                connection.execute(
                    psycopg.sql.SQL("ALTER ROLE CURRENT_USER IN DATABASE {} SET {} = off").format(
                        psycopg.sql.Identifier(name), psycopg.sql.Identifier(setting)
                    )
                )
    return dsn


@spec("Z4", "A1", "I7")
@pytest.mark.parametrize("jobs", [200, pytest.param(1200, marks=pytest.mark.proof)])
def test_64_claimers_share_a_queue_and_no_job_is_granted_twice(url: str, jobs: int) -> None:
    store = open_store(url, migrate=True)
    fill(store, jobs)

    granted = race(url, batch=7, completes=False)

    assert len(granted) == jobs
    assert len({grant.job for grant in granted}) == jobs
    assert {grant.attempt for grant in granted} == {1}
    assert len(Counter(grant.by for grant in granted)) > 1
    assert_holds(store)
    store.close()


@spec("Z3")
@pytest.mark.parametrize(
    "url",
    ["sqlite", "postgres", pytest.param("postgres-nested-loops", marks=pytest.mark.proof)],
    indirect=True,
)
@pytest.mark.parametrize("jobs", [80, pytest.param(600, marks=pytest.mark.proof)])
def test_64_claimers_never_hold_more_leases_than_the_limit(url: str, jobs: int) -> None:
    limit = 10
    store = open_store(url, migrate=True)
    store.settings.put_queue(DEFAULT_NAMESPACE, QUEUE, paused=None, limit=limit)
    fill(store, jobs)

    with LimitWatch(url) as watch:
        granted = race(url, batch=4, completes=True)

    assert watch.highest <= limit
    assert len(granted) == len({grant.job for grant in granted})
    assert_holds(store)
    store.close()
