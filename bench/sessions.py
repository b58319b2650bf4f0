"""One session of one contestant: what its users would see, from an empty store to an empty queue.

Every contestant goes through the same steps, with its own producer and its own worker processes:

1. the producer enqueues single jobs, while there is no worker; for our process lane as many jobs as
   it has slots, of which none ends before all have begun, so that every worker starts all of its
   children;
2. the workers start, run those jobs, and come to rest: their CPU is that of an idle system;
3. single jobs are sent to the idle system;
4. the workers are frozen (SIGSTOP), the producer enqueues the bulk, and they go on together;
5. the queue is drained;
6. jobs arrive at a steady rate.

Handlers write down when they start (bench/peer/marks.py); nothing else is asked of a contestant.
"""

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from bench.contestants import PEER_DIRECTORY, Contestant
from bench.harness import BrokenHistory, Options, Unavailable
from bench.peer.marks import RECORD, VARIABLE
from bench.processes import Started, tree_cpu_s
from bench.sites import Site

BATCH = 1000
BUSY_PER_S = 100.0
PROBE_GAP_S = 0.05
FAST = 10
"""From this speed on, a fifth of the jobs would be over in a few calls."""
PATIENCE_S = 180.0
REPORTING_S = 0.3
"""After the last job, so that the CPU of the last reports is counted too."""
LOOK_EVERY_S = 0.01
REST_S = 0.4
REST_CORES = 0.15
"""A worker whose processes use less of a core than this has started."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much a session does."""

    jobs: int
    singles: int
    probes: int
    busy: int
    idle_s: float

    @classmethod
    def of(cls, contestant: Contestant, options: Options) -> "Sizes":
        """For a run that may take its time, or not."""
        return Sizes(
            jobs=contestant.speed * options.sized(1000, 500 if contestant.speed >= FAST else 200),
            singles=options.sized(500, 100) if contestant.is_producer else contestant.first_jobs,
            probes=options.sized(50, 15),
            busy=options.sized(300, 100),
            idle_s=options.sized(5, 1) if not contestant.is_drain_only else 0.1,
        )


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a session has shown; None is what it did not ask. Times in ms, CPU per job in µs."""

    drain_per_s: float
    drain_cpu_us: float
    single_per_s: float | None = None
    single_cpu_us: float | None = None
    bulk_per_s: float | None = None
    bulk_cpu_us: float | None = None
    idle_p50_ms: float | None = None
    idle_p95_ms: float | None = None
    busy_p50_ms: float | None = None
    busy_p95_ms: float | None = None
    idle_cpu_percent: float | None = None


class Took(msgspec.Struct, frozen=True):
    """What a producer says about something that it did."""

    elapsed_s: float
    cpu_s: float


class Marks:
    """The file that handlers write to."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def count(self) -> int:
        """How many handlers have started."""
        with suppress(FileNotFoundError):
            return self.file.stat().st_size // RECORD.size
        return 0

    def since(self, start: int) -> list[tuple[int, int]]:
        """When their jobs were sent, and when they started, in nanoseconds."""
        return [*RECORD.iter_unpack(self.file.read_bytes()[start * RECORD.size :])]


class Producer:
    """The process that enqueues. Leaving the `with` block ends it."""

    def __init__(self, contestant: Contestant, site: Site, marks: Marks) -> None:
        self._name = contestant.name
        self._process = subprocess.Popen(
            [
                str(contestant.python),
                str(PEER_DIRECTORY / "produce.py"),
                f"queue_{contestant.queue}",
            ],
            cwd=PEER_DIRECTORY,
            env=os.environ | site.producer | {VARIABLE: str(marks.file)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._hear()

    def _hear(self) -> bytes:
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise Unavailable(f"the producer of {self._name} ended with {self._process.wait()}")
        return line

    def tell(self, task: str, **settings: Any) -> Took:
        """Have it do something, and wait for it."""
        stream = _pipe(self._process.stdin)
        stream.write(msgspec.json.encode({"task": task, **settings}) + b"\n")
        stream.flush()
        return msgspec.json.decode(self._hear(), type=Took)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            _pipe(self._process.stdin).close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _pipe(self._process.stdout).close()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "opened as a pipe"
    return stream


class Session:
    """The steps; see the module."""

    def __init__(self, contestant: Contestant, site: Site, sizes: Sizes, directory: Path) -> None:
        self._contestant = contestant
        self._site = site
        self._sizes = sizes
        self._marks = Marks(directory / "marks")
        self._directory = directory
        self._sent = 0

    def run(self) -> Measured:
        """All steps; verifies the history of ours."""
        with (
            Producer(self._contestant, self._site, self._marks) as producer,
            Started(self._directory) as workers,
        ):
            measured = self._measure(producer, workers)
            codes = workers.stop()
            if self._contestant.is_ours and any(codes):
                raise BrokenHistory(f"a worker ended with {codes}: {workers.output()}")
        self._site.verify(self._sent)
        return measured

    def _measure(self, producer: Producer, workers: Started) -> Measured:
        sizes, is_whole = self._sizes, not self._contestant.is_drain_only
        producer.tell("bulk", jobs=1, batch=1)  # connects
        self._sent += 1
        if self._contestant.lane == "process":
            others = self._sent + sizes.singles
            single = self._enqueue(producer, "together", sizes.singles, others=others)
        else:
            single = self._enqueue(producer, "singles", sizes.singles)
        self._start(workers)
        idle_cores = self._rest(workers)
        idle = self._latencies(producer, workers, "probes", sizes.probes, gap_s=PROBE_GAP_S)
        self._freeze(workers)
        bulk = self._enqueue(producer, "bulk", sizes.jobs, batch=BATCH)
        self._site.settle()
        drain = self._drain(workers)
        if not is_whole:
            return Measured(drain_per_s=drain[0], drain_cpu_us=drain[1])
        busy = self._latencies(producer, workers, "stream", sizes.busy, per_s=BUSY_PER_S)
        return Measured(
            drain_per_s=drain[0],
            drain_cpu_us=drain[1],
            single_per_s=single[0],
            single_cpu_us=single[1],
            bulk_per_s=bulk[0],
            bulk_cpu_us=bulk[1],
            idle_p50_ms=statistics.median(idle),
            idle_p95_ms=percentile(idle, 95),
            busy_p50_ms=statistics.median(busy),
            busy_p95_ms=percentile(busy, 95),
            idle_cpu_percent=idle_cores * 100,
        )

    def _freeze(self, workers: Started) -> None:
        """Not in the middle of a report: a frozen process would keep its lock on the database."""
        self._wait_until_reported(workers)
        time.sleep(REPORTING_S)
        workers.send(signal.SIGSTOP)

    def _enqueue(
        self, producer: Producer, task: str, jobs: int, **settings: Any
    ) -> tuple[float, float]:
        """Jobs per second, and CPU of producer and servers per job."""
        before_s = tree_cpu_s(self._site.servers)
        took = producer.tell(task, jobs=jobs, **settings)
        self._sent += jobs
        cpu_s = took.cpu_s + tree_cpu_s(self._site.servers) - before_s
        return jobs / took.elapsed_s, cpu_s / jobs * 1e6

    def _start(self, workers: Started) -> None:
        variables = self._site.worker | {
            VARIABLE: str(self._marks.file),
            "PYTHONPATH": str(PEER_DIRECTORY),
        }
        for command in self._contestant.workers():
            workers.start(command, variables, cwd=PEER_DIRECTORY)

    def _rest(self, workers: Started) -> float:
        """Wait until all processes have started and have nothing to do; the cores that they use."""
        self._wait_for_all(workers)
        give_up_at_s = time.monotonic() + PATIENCE_S
        quiet = 0
        while quiet < 2:
            quiet = quiet + 1 if _cores(workers, REST_S) < REST_CORES else 0
            workers.check()
            if time.monotonic() > give_up_at_s:
                raise Unavailable(f"the worker does not come to rest: {workers.output()}")
        return _cores(workers, self._sizes.idle_s)

    def _wait_for_all(self, workers: Started) -> None:
        give_up_at_s = time.monotonic() + PATIENCE_S
        while self._marks.count() < self._sent:
            workers.check()
            if time.monotonic() > give_up_at_s:
                done = f"{self._marks.count()} of {self._sent} jobs"
                raise Unavailable(f"only {done} were started: {workers.output()}")
            time.sleep(LOOK_EVERY_S)

    def _wait_until_reported(self, workers: Started) -> None:
        give_up_at_s = time.monotonic() + PATIENCE_S
        while self._site.has_unfinished():
            workers.check()
            if time.monotonic() > give_up_at_s:
                raise Unavailable(f"not every job was reported: {workers.output()}")
            time.sleep(LOOK_EVERY_S)

    def _latencies(
        self, producer: Producer, workers: Started, task: str, jobs: int, **settings: Any
    ) -> list[float]:
        """Milliseconds from the call that enqueues a job to the start of its handler."""
        first = self._marks.count()
        if self._contestant.is_drain_only:
            return []
        producer.tell(task, jobs=jobs, **settings)
        self._sent += jobs
        self._wait_for_all(workers)
        return [(started - sent) / 1e6 for sent, started in self._marks.since(first)]

    def _drain(self, workers: Started) -> tuple[float, float]:
        """Jobs per second from the first handler until the last job is reported, and the CPU of
        workers and servers per job."""
        first = self._marks.count()
        roots = [*workers.pids, *self._site.servers]
        before_s = tree_cpu_s(roots)
        workers.send(signal.SIGCONT)
        self._wait_for_all(workers)
        self._wait_until_reported(workers)
        reported_ns = time.monotonic_ns()
        time.sleep(REPORTING_S)
        cpu_s = tree_cpu_s(roots) - before_s
        started = [at for _, at in self._marks.since(first)]
        return len(started) / (reported_ns - min(started)) * 1e9, cpu_s / len(started) * 1e6


def _cores(workers: Started, seconds: float) -> float:
    before_s, began_s = tree_cpu_s(workers.pids), time.monotonic()
    time.sleep(seconds)
    return (tree_cpu_s(workers.pids) - before_s) / (time.monotonic() - began_s)


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
