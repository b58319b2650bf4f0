"""Huey as a contestant: a fresh SQLite file, its producer, then its consumer."""

from pathlib import Path

from bench.harness import Unavailable
from bench.peers import Peer

WORKERS = 1
"""Its best of 1, 2, 4 and 8 threads by a fifth: they share one connection behind a lock."""


def enqueue_and_drain(file: Path, *, jobs: int, workers: int = WORKERS) -> tuple[float, float]:
    """Seconds to enqueue, seconds to drain."""
    return (
        _timed(file, "enqueue", jobs=jobs, workers=workers),
        _timed(file, "drain", jobs=jobs, workers=workers),
    )


def _timed(file: Path, what: str, *, jobs: int, workers: int) -> float:
    arguments = [what, "--file", str(file), "--jobs", str(jobs), "--workers", str(workers)]
    with Peer("huey", arguments, {}) as peer:
        peer.wait_until_ready()
        peer.go()
        timing = peer.timing()
    if timing.jobs != jobs:
        raise Unavailable(f"Huey did {timing.jobs} of {jobs} tasks")
    return timing.ended_s - timing.began_s
