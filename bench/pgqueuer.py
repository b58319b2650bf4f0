"""PgQueuer as a contestant: a fresh database, its own schema, one or more of its processes."""

import subprocess

import psycopg

from bench.harness import Unavailable
from bench.peers import Peer, Timing, environment, script_of
from tests.support.postgres import PostgresServer

CONSUMERS = 2
DEQUEUE_BATCH = 500
"""Its best on two cores: the highest median of eight combinations, see README.md."""


def prepare(server: PostgresServer) -> str:
    """A fresh database with PgQueuer's tables; its URL."""
    dsn = server.create_database()
    done = subprocess.run(
        [str(environment("pgqueuer")), str(script_of("pgqueuer")), "install"],
        env={"BENCH_DSN": dsn},
        check=False,
    )
    if done.returncode != 0:
        raise Unavailable(f"PgQueuer could not install its tables: exit code {done.returncode}")
    return dsn


def enqueue(dsn: str, *, jobs: int, batch: int) -> float:
    """Seconds that a bulk enqueue of `jobs` takes."""
    arguments = ["enqueue", "--jobs", str(jobs), "--batch", str(batch)]
    with Peer("pgqueuer", arguments, {"BENCH_DSN": dsn}) as peer:
        peer.wait_until_ready()
        peer.go()
        timing = peer.timing()
    return timing.ended_s - timing.began_s


def drain(
    dsn: str,
    *,
    jobs: int,
    processes: int,
    consumers: int = CONSUMERS,
    batch: int = DEQUEUE_BATCH,
) -> float:
    """Seconds from the first process' start to the last committed completion."""
    timings = drain_timings(dsn, jobs=jobs, processes=processes, consumers=consumers, batch=batch)
    return max(each.ended_s for each in timings) - min(each.began_s for each in timings)


def drain_timings(
    dsn: str,
    *,
    jobs: int,
    processes: int,
    consumers: int = CONSUMERS,
    batch: int = DEQUEUE_BATCH,
) -> list[Timing]:
    """What each process reports of a drain."""
    arguments = ["drain", "--consumers", str(consumers), "--batch", str(batch)]
    peers = [Peer("pgqueuer", arguments, {"BENCH_DSN": dsn}) for _ in range(processes)]
    timings: list[Timing] = []
    try:
        for peer in peers:
            peer.wait_until_ready()
        _settle(dsn)
        for peer in peers:
            peer.go()
        timings = [peer.timing() for peer in peers]
    finally:
        for peer in peers:
            peer.__exit__()
    done = sum(timing.jobs for timing in timings)
    if done != jobs:
        raise Unavailable(f"PgQueuer completed {done} of {jobs} jobs")
    return timings


def _settle(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ANALYZE")
