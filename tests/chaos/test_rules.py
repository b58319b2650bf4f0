"""Claims race under limits, rates and keys, of processes that are stopped and killed, while rules
change: no rule is broken, and no job is passed by."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from threading import Event, Thread

import psycopg
import pytest
from psycopg import sql

from tenure.verify import verify
from tenure.wiring import open_store
from tenure_conformance.spec import spec
from tests.chaos.processes import kill, wait_until_it_works
from tests.chaos.rule_hand import KEY_LIMIT, LIMITED, QUEUE_LIMIT, Round, rounds, set_rules
from tests.support.commands import ROOT
from tests.support.waiting import joined, until

pytestmark = pytest.mark.process

CLOCK_SET_BACK = 1 / 6
ROLES = ("claim", "claim", "claim", "make", "make", "make", "set", "hold", "sweep")


class Watch:
    """Counts leases as often as it can. Each count is one statement: what one commit left."""

    MOST_LEASES = """
        SELECT (SELECT count(*) FROM tenure.job WHERE queue = %s AND lease_id IS NOT NULL),
               (SELECT coalesce(max(n), 0) FROM (
                  SELECT count(*) AS n FROM tenure.job
                   WHERE lease_id IS NOT NULL AND kind IN ('keyed', 'single', 'both')
                   GROUP BY kind, concurrency_key) AS k)
    """

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._over = Event()
        self._thread = Thread(target=self._watch)
        self.of_queue = self.of_key = 0

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            [(of_queue, of_key)] = self._connection.execute(self.MOST_LEASES, [LIMITED]).fetchall()
            self.of_queue, self.of_key = max(self.of_queue, of_queue), max(self.of_key, of_key)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        joined(self._thread, "the watch of leases has ended")
        self._connection.close()


class Hand:
    """A process with a role."""

    def __init__(self, role: str, url: str, seed: int) -> None:
        self.role = role
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.rule_hand", role, url, str(seed)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        self.rounds: list[Round] = []
        self._reader = Thread(target=self._read)

    def wait(self) -> None:
        wait_until_it_works(self.process, self.role)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.rounds += rounds(self.process.stdout)

    def check(self) -> None:
        """It has not ended by itself: that would be an error that it did not expect."""
        assert self.process.poll() is None, f"{self.role} ended by itself"

    def end(self) -> None:
        self.process.kill()
        if self._reader.ident is not None:
            joined(self._reader, "all lines are read")
        kill(self.process)


@contextmanager
def hands_on(url: str, seed: int) -> Iterator[list[Hand]]:
    hands = [Hand(role, url, seed * 100 + number) for number, role in enumerate(ROLES)]
    try:
        for hand in hands:
            hand.wait()
        yield hands
    finally:
        for hand in hands:
            hand.end()


def disturb(hands: list[Hand], url: str, random: Random) -> None:
    """Stop a claimer for a while at an odd moment; every second one is killed, too."""
    [place] = random.sample([n for n, hand in enumerate(hands) if hand.role == "claim"], 1)
    chosen = hands[place]
    os.kill(chosen.process.pid, signal.SIGSTOP)
    time.sleep(random.uniform(0, 0.5))
    if random.random() < 0.5:
        os.kill(chosen.process.pid, signal.SIGCONT)
        return
    chosen.end()
    hands[place] = Hand("claim", url, random.randrange(10**6))
    hands[place].wait()


class Clock:
    """The store's clock, which is set back now and then, but goes forward in the long run."""

    SET_BACK = """
        CREATE OR REPLACE FUNCTION tenure.clock() RETURNS bigint LANGUAGE sql VOLATILE
            AS $$ SELECT CAST(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000 AS bigint)
                         - {} $$
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._behind_us = 0

    def set_back(self, by_s: float) -> None:
        self._behind_us += int(by_s * 1_000_000)
        with psycopg.connect(self._url) as connection:
            connection.execute(sql.SQL(self.SET_BACK).format(sql.Literal(self._behind_us)))


def race(url: str, *, seed: int, lasts_s: float, sets_clock: bool) -> list[Round]:
    """Let them all work at once, and disturb them; the rounds of jobs that ended meanwhile."""
    random, clock = Random(seed), Clock(url)
    with hands_on(url, seed) as hands:
        ends_at = time.monotonic() + lasts_s
        while time.monotonic() < ends_at:
            time.sleep(random.uniform(0.1, 1.5))
            disturb(hands, url, random)
            if sets_clock and random.random() < CLOCK_SET_BACK:
                clock.set_back(random.uniform(1.5, 3))  # less is no step to verify
            for hand in hands:
                hand.check()
        makers = [hand for hand in hands if hand.role == "make"]
        before = [len(hand.rounds) for hand in makers]
        until(
            lambda: all(len(hand.rounds) > n for hand, n in zip(makers, before, strict=True)),
            "the jobs of the last rounds have ended",
        )
    return [each for hand in makers for each in hand.rounds]


@spec("Z3", "CK3", "RL1", "RL5", "CK10")
@pytest.mark.parametrize(
    ("seed", "lasts_s", "sets_clock"),
    [
        (1, 4, False),
        *(pytest.param(n, 60, n > 3, marks=pytest.mark.proof) for n in (2, 3, 4, 5)),
    ],
)
def test_claims_that_race_under_changing_rules_break_none_and_pass_no_job_by(
    postgres_url: str, seed: int, lasts_s: float, sets_clock: bool
) -> None:
    store = open_store(postgres_url, migrate=True)
    set_rules(store)

    with Watch(postgres_url) as watch:
        ended = race(postgres_url, seed=seed, lasts_s=lasts_s, sets_clock=sets_clock)

    report = verify(store)
    store.close()
    assert watch.of_queue <= QUEUE_LIMIT
    assert watch.of_key <= KEY_LIMIT
    assert sum(each.jobs for each in ended) >= lasts_s
    assert report.holds, report.violated
