"""Who takes part in the first rows, and how each is started: the commands that its users type.

Every contestant has a store of its own for each session. How the peers are configured, and why, is
in README.md.
"""

import sys
from pathlib import Path

import msgspec

from bench import redis_server
from bench.peers import HERE, environment
from bench.workload import QUEUE

PEER_DIRECTORY = HERE / "peer"
ASYNC_CONCURRENCY = 500
PROCESS_CONCURRENCY = 32
"""One process per running job: the best of 4, 8, 16 and 32."""
DEFAULT_CONCURRENCY = 4
"""That of `tenure worker`, for a line of its own."""
PROCRASTINATE_CONCURRENCY = 30
"""What its documentation shows: "Execute multiple jobs at the same time"."""


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the tables."""

    name: str
    queue: str
    """Which module of bench/peer, and which environment."""
    store: str
    """postgres, sqlite, http or redis."""
    processes: int = 1
    lane: str = ""
    slots: int = 0
    """How many jobs run at once in each worker process, where that is asked."""
    beside: str = ""
    """Whose figures its own are divided by."""
    speed: int = 1
    """How many jobs it gets, in thousands of a full run: about three seconds' worth."""
    has_bulk: bool = True
    """Whether one call enqueues many jobs."""
    is_drain_only: bool = False
    is_in_quick: bool = True
    appendfsync: str = ""
    """When Redis flushes its log; empty for others."""

    @property
    def is_producer(self) -> bool:
        """Whether it shows how fast jobs are enqueued, which does not depend on the lane."""
        return not self.is_drain_only and self.lane != "process"

    @property
    def first_jobs(self) -> int:
        """How many jobs its workers find when they start, so that they start all their children:
        most of those of our process lane are started when there are first jobs for them."""
        return self.slots * self.processes if self.lane == "process" else 1

    @property
    def producer_name(self) -> str:
        """Its name where only its producer matters."""
        if self.is_ours:
            return f"Tenure, {STORES[self.store]}"
        return self.name.rpartition(",")[0] or self.name  # without its processes

    @property
    def is_ours(self) -> bool:
        """Whether its history can be verified."""
        return self.queue == "tenure"

    @property
    def needs_postgres(self) -> bool:
        """Tenure's HTTP server has its jobs there too."""
        return self.store in ("postgres", "http")

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return Path(sys.executable) if self.is_ours else environment(self.queue)

    def prepare(self) -> None:
        """Install what it needs, if it is not there yet."""
        if not self.is_ours:
            environment(self.queue)
        if self.store == "redis":
            redis_server.find()

    def workers(self) -> list[list[str]]:
        """The commands that start its worker processes."""
        program = self.python.parent
        one = self.processes
        match self.queue:
            case "tenure":
                app = f"queue_tenure:{self.lane}_app"
                words = ["-m", "tenure", "worker", app, "-q", QUEUE, "-c", str(self.slots)]
                return [[str(self.python), *words]] * one
            case "pgqueuer":
                words = ["run", "--batch-size", "500"]
                return [[str(program / "pgq"), *words, "queue_pgqueuer:manager"]] * one
            case "procrastinate":
                words = ["--app=queue_procrastinate.app", "worker", "--queues", "bench"]
                words += ["--concurrency", str(PROCRASTINATE_CONCURRENCY)]
                return [[str(program / "procrastinate"), *words]] * one
            case "huey":
                words = ["queue_huey.huey", "--workers", "1", "--no-periodic", "--quiet"]
                words += ["--delay", "0.01", "--max-delay", "0.1"]
                return [[str(program / "huey_consumer"), *words]] * one
            case "celery":
                words = ["-A", "queue_celery", "worker", "--concurrency", str(one)]
                words += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
                return [[str(program / "celery"), *words, "--loglevel", "ERROR"]]
            case "dramatiq":
                words = ["queue_dramatiq", "--processes", str(one)]
                return [[str(program / "dramatiq"), *words]]
            case "taskiq":
                words = ["worker", "queue_taskiq:broker", "--workers", str(one)]
                return [[str(program / "taskiq"), *words, "--log-level", "WARNING"]]
            case "rq":
                words = ["worker", "--worker-class", "rq.worker.SimpleWorker", "--quiet"]
                return [[str(program / "rq"), *words, "bench"]] * one
            case _:
                raise AssertionError(self.queue)


FLUSHES = ("everysec", "always")
"""`appendfsync` of Redis."""
SLOTS = {"async": ASYNC_CONCURRENCY, "process": PROCESS_CONCURRENCY}
TENURE_ON = ("postgres", "sqlite", "http")
STORES = {"postgres": "PostgreSQL", "sqlite": "SQLite", "http": "HTTP", "redis": "Redis"}


def field() -> list[Contestant]:
    """Everybody, in the order of the tables."""
    pgqueuer_1 = "PgQueuer, 1 process"
    found: list[Contestant] = []
    for store in TENURE_ON:
        beside = "Huey" if store == "sqlite" else pgqueuer_1
        for lane, speed in (("async", 10), ("process", 5)):
            for processes in (1, 2):
                found.append(
                    Contestant(
                        name=f"Tenure, {STORES[store]}, {lane} lane, {_processes(processes)}",
                        queue="tenure",
                        store=store,
                        lane=lane,
                        slots=SLOTS[lane],
                        processes=processes,
                        beside=beside,
                        speed=speed,
                        is_drain_only=processes > 1,
                        is_in_quick=processes == 1 or store == "postgres",
                    )
                )
    found.append(
        Contestant(
            name=f"Tenure, PostgreSQL, process lane with -c {DEFAULT_CONCURRENCY}, 1 process",
            queue="tenure",
            store="postgres",
            lane="process",
            slots=DEFAULT_CONCURRENCY,
            beside=pgqueuer_1,
            speed=2,
            is_drain_only=True,
            is_in_quick=False,
        )
    )
    peers = (
        ("PgQueuer", "postgres", 20, True),
        ("Procrastinate", "postgres", 3, True),
        ("Huey", "sqlite", 4, False),
        ("Celery", "redis", 4, False),
        ("Dramatiq", "redis", 4, False),
        ("Taskiq", "redis", 4, False),
        ("RQ", "redis", 2, True),
    )
    for title, store, speed, has_bulk in peers:
        # Of Huey and those on Redis one process: Huey's threads share a connection, and what two
        # processes of the others do is no measure for us.
        for processes in (1, 2) if store == "postgres" else (1,):
            for appendfsync in FLUSHES if store == "redis" else ("",):
                flushing = f", appendfsync {appendfsync}" if appendfsync else ""
                found.append(
                    Contestant(
                        name=title
                        if title == "Huey"
                        else f"{title}{flushing}, {_processes(processes)}",
                        queue=title.lower(),
                        store=store,
                        processes=processes,
                        beside=pgqueuer_1 if title != "Huey" else title,
                        speed=speed,
                        has_bulk=has_bulk,
                        is_drain_only=processes > 1,
                        is_in_quick=_is_in_quick(title, processes, appendfsync),
                        appendfsync=appendfsync,
                    )
                )
    return found


def _is_in_quick(title: str, processes: int, appendfsync: str) -> bool:
    """Of two processes only PgQueuer's, of Redis that flushes always only the one that drains
    fastest there."""
    if appendfsync == "always":
        return title == "Taskiq"
    return processes == 1 or title == "PgQueuer"


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"
