"""One process that claims jobs under rules, makes such jobs, changes the rules, holds rows locked,
or sweeps, until it is killed.

Run as `python -m tests.chaos.rule_hand ROLE URL SEED`. It prints `going` once it works, and whoever
makes jobs prints a line for each round of jobs that have all ended.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from random import Random
from threading import Thread
from typing import Any

import msgspec
import psycopg

from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import Sweeper
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Complete, Enqueue, Fail, Release
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    JobId,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    worker_actor,
)
from tenure.core.instants import Duration, seconds
from tenure.core.job import JobError
from tenure.core.kind_settings import KindChange
from tenure.core.policy import Backoff, LeaseBounds, Policy
from tenure.core.rates import Rate, parse_rate
from tenure.core.validation import Limits
from tenure.core.verdicts import Grant
from tenure.core.vocabulary import ErrorClass, JobStatus
from tenure.errors import Contended, StoreUnavailable
from tenure.ports import Store
from tenure.wiring import open_store

THREADS = 4
"""Of a process that claims: they share what it remembers of rules."""

FREE, LIMITED, RATED, MOVING = (QueueName(name) for name in ("free", "limited", "rated", "moving"))
QUEUES = (FREE, LIMITED, RATED, MOVING)
QUEUE_LIMIT = 3
KEY_LIMIT = 1
"""Of every kind but the one whose rules change: nothing is set for the others. [CK2]"""
QUEUE_RATE = parse_rate("rate", "40/s", 2)

PLAIN, PACED, KEYED, SINGLE, METERED, BOTH, SHIFTING = (
    Kind(name) for name in ("plain", "paced", "keyed", "single", "metered", "both", "shifting")
)
KINDS = (PLAIN, PACED, KEYED, SINGLE, METERED, BOTH, SHIFTING)
KIND_CHANGES = (
    KindChange(kind=PACED, rate=parse_rate("rate", "40/s", 2)),
    KindChange(kind=METERED, rate=parse_rate("rate", "10/s", 1)),
    KindChange(kind=BOTH, rate=parse_rate("rate", "20/s", 2)),
)
"""What stays as it is: `verify` checks it over the whole race."""

MOVING_RATES: tuple[Rate | None, ...] = (
    parse_rate("rate", "20/s", 1),
    parse_rate("rate", "100/s", 5),
    None,
)
KEY_LIMITS = (1, 2, None)

SCOPES: tuple[tuple[tuple[QueueName, ...], tuple[Kind, ...] | None], ...] = (
    (QUEUES, KINDS),
    (QUEUES, None),
    (QUEUES, (PLAIN, METERED, BOTH)),
    (QUEUES, (KEYED, PACED, SHIFTING, SINGLE)),
    ((FREE, LIMITED), KINDS),
    ((RATED, MOVING), None),
)
"""What a thread asks for."""

LIMITS = Limits(lease=LeaseBounds(shortest_us=seconds(0.2), longest_us=seconds(120)))
POLICY = Policy(
    lease_us=seconds(1),
    max_attempts=100,
    backoff=Backoff(initial_us=seconds(0.01), cap_us=seconds(0.05)),
)
MOST_JOBS_OF_A_ROUND = 12
LONGEST_ROUND_S = 60.0
"""A round has a few jobs. If they need longer, claims pass one of them by."""
LONGEST_BLOCK_S = 0.3
PAUSE_S: Mapping[str, float] = {"make": 0.0, "set": 0.1, "hold": 0.05, "sweep": 0.05}


class Round(msgspec.Struct, frozen=True):
    """A line of whoever makes jobs: how many, and how long until all of them had ended."""

    jobs: int
    took_s: float


def set_rules(store: Store) -> None:
    """The rules that do not change."""
    store.settings.put_queue(DEFAULT_NAMESPACE, LIMITED, paused=None, limit=QUEUE_LIMIT)
    store.settings.put_queue(DEFAULT_NAMESPACE, RATED, paused=None, limit=None, rate=QUEUE_RATE)
    for change in KIND_CHANGES:
        store.settings.put_kind(DEFAULT_NAMESPACE, change)


def keys_of(kind: Kind, random: Random, names: str) -> dict[str, Any]:
    """The keys of a job: few, so that jobs wait for each other."""
    key = {"concurrency_key": f"{names}-{random.randrange(2)}"}
    rate_key = {"rate_key": f"{names}-{random.randrange(2)}"}
    match kind:
        case "keyed" | "single":
            return key
        case "metered":
            return rate_key
        case "both":
            return key | rate_key
        case "shifting":
            return random.choice([{}, key, rate_key, key | rate_key])
        case _:
            return {}


def new_job(store: Store, random: Random, names: str) -> Enqueue:
    """A job of any queue and kind; some are delayed, some expire."""
    kind = random.choice(KINDS)
    return Enqueue(
        job_id=new_job_id(store.now(), os.urandom(16)),
        namespace=DEFAULT_NAMESPACE,
        queue=random.choice(QUEUES),
        kind=kind,
        actor=client_actor("chaos"),
        priority=random.randrange(3),
        delay_us=Duration(random.choice([0, 0, 0, random.randrange(300_000)])),
        expires_us=random.choice([None, None, None, None, seconds(0.4)]),
        policy=POLICY,
        **keys_of(kind, random, names),
    )


class Claimer:
    """One thread that claims jobs of one scope and ends their attempts."""

    def __init__(self, coordinator: Coordinator, name: str, seed: int) -> None:
        self._coordinator, self._name = coordinator, name
        self._random = Random(seed)
        self._numbers = count(1)
        self._queues, self._kinds = self._random.choice(SCOPES)

    def run(self) -> None:
        """Until the process is killed."""
        while True:
            with suppress(StoreUnavailable, Contended):
                if not self._work():
                    time.sleep(self._random.uniform(0, 0.03))

    def _request_id(self) -> RequestId:
        return RequestId(f"{self._name}:{next(self._numbers)}")

    def _work(self) -> int:
        number = next(self._numbers)
        request = ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId(self._name),
            actor=worker_actor(self._name),
            queues=self._queues,
            kinds=self._kinds,
            limit=self._random.choice([1, 1, 3]),
            claim_seq=number,
            request_id=RequestId(f"{self._name}:{number}"),
        )
        grants = self._coordinator.claim(request).grants
        for grant in grants:
            self._end(grant)
        return len(grants)

    def _end(self, grant: Grant) -> None:
        """Most succeed; some fail, are given back or are forgotten."""
        luck = self._random.random()
        held: dict[str, Any] = {
            "job_id": grant.job_id,
            "lease_id": grant.lease_id,
            "actor": worker_actor(self._name),
            "request_id": self._request_id(),
        }
        if luck < 0.8:
            self._coordinator.execute(Complete(**held))
        elif luck < 0.9:
            error = JobError(error_class=ErrorClass.TRANSIENT, type="E", message="chaos")
            self._coordinator.execute(Fail(**held, error=error))
        elif luck < 0.98:
            self._coordinator.execute(Release(**held))


def claiming(url: str, seed: int) -> Callable[[], None]:
    """Threads that claim, each with a scope of its own, on one store."""
    coordinator = Coordinator(open_store(url), limits=LIMITS)
    for number in range(THREADS):
        claimer = Claimer(coordinator, f"claimer-{os.getpid()}-{number}", seed * 100 + number)
        Thread(target=claimer.run, daemon=True).start()
    return lambda: None


def making(url: str, seed: int) -> Callable[[], None]:
    """Rounds of a few jobs, the next one when all have ended: a job that claims pass by is not
    found because another one of its key or queue comes."""
    store, random, numbers = open_store(url), Random(seed), count()
    coordinator = Coordinator(store, limits=LIMITS)

    def make() -> None:
        names = f"{seed}-{next(numbers)}"
        jobs = random.randrange(1, MOST_JOBS_OF_A_ROUND + 1)
        commands = [new_job(store, random, names) for _ in range(jobs)]
        coordinator.submit_many(commands).result()
        began_at = time.monotonic()
        _wait_for_end(store, [command.job_id for command in commands])
        line = msgspec.json.encode(Round(jobs, time.monotonic() - began_at))
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.flush()

    return make


def _wait_for_end(store: Store, ids: list[JobId]) -> None:
    ends_at = time.monotonic() + LONGEST_ROUND_S
    while True:
        with suppress(StoreUnavailable):
            jobs = store.jobs.read(ids, bodies=False).values()
            left = [job for job in jobs if not job.status.is_terminal]
            if len(jobs) == len(ids) and not left:
                return
            if time.monotonic() >= ends_at:
                raise AssertionError(f"these jobs do not end: {left}")
        time.sleep(0.02)


def setting(url: str, seed: int) -> Callable[[], None]:
    """Changes of the rules of one queue and one kind; a queue is not paused for long."""
    store, random = open_store(url), Random(seed)

    def change() -> None:
        match random.randrange(4):
            case 0:
                store.settings.put_queue(DEFAULT_NAMESPACE, MOVING, paused=True, limit=None)
                time.sleep(random.uniform(0, 0.1))
                store.settings.put_queue(DEFAULT_NAMESPACE, MOVING, paused=False, limit=None)
            case 1:
                store.settings.put_queue(
                    DEFAULT_NAMESPACE,
                    MOVING,
                    paused=None,
                    limit=random.choice((1, 2, 5)),
                    rate=random.choice(MOVING_RATES),
                )
            case 2:
                store.settings.put_kind(
                    DEFAULT_NAMESPACE, KindChange(kind=SHIFTING, rate=random.choice(MOVING_RATES))
                )
            case _:
                store.settings.put_kind(
                    DEFAULT_NAMESPACE,
                    KindChange(
                        kind=SHIFTING,
                        concurrency_limit=random.choice(KEY_LIMITS),
                    ),
                )

    return change


def holding(url: str, seed: int) -> Callable[[], None]:
    """A transaction of somebody else that keeps some jobs locked for a while."""
    connection, random = psycopg.connect(url), Random(seed)

    def hold() -> None:
        connection.execute(
            "SELECT 1 FROM tenure.job WHERE status = %s ORDER BY md5(id::text || %s)"
            " LIMIT 3 FOR UPDATE SKIP LOCKED",
            [JobStatus.QUEUED.value, str(random.random())],
        )
        time.sleep(random.uniform(0, LONGEST_BLOCK_S))
        connection.rollback()

    return hold


def sweeping(url: str, seed: int) -> Callable[[], object]:
    """What a worker or a server does for all."""
    return Sweeper(Coordinator(open_store(url), limits=LIMITS)).sweep_once


ROLES: Mapping[str, Callable[[str, int], Callable[[], object]]] = {
    "claim": claiming,
    "make": making,
    "set": setting,
    "hold": holding,
    "sweep": sweeping,
}


def main(role: str, url: str, seed: int) -> None:
    """Do it until this process is killed."""
    round_of = ROLES[role](url, seed)
    sys.stdout.write("going\n")
    sys.stdout.flush()
    while True:
        with suppress(StoreUnavailable, Contended):
            round_of()
        time.sleep(PAUSE_S.get(role, 1.0))


def rounds(lines: Iterator[bytes]) -> Iterator[Round]:
    """The rounds of a process that makes jobs."""
    return (msgspec.json.decode(line, type=Round) for line in lines)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
