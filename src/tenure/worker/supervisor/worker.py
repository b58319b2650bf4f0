"""The worker's public face: made from a coordinator, a registry and options; run and stop it."""

import ctypes
import gc
import logging
import os
import random
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version

from msgspec.structs import replace

from tenure.clock import boot_now
from tenure.core.ids import QueueName, WorkerId, worker_actor
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration
from tenure.core.workers import WorkerProcess
from tenure.errors import InvalidInput
from tenure.handlers.registry import Isolation, Registry
from tenure.ports import Coordination
from tenure.worker.application import load_registry
from tenure.worker.session.claims import ClaimSettings
from tenure.worker.session.messages import Stats
from tenure.worker.session.session import WorkerSession
from tenure.worker.supervisor.background import BackgroundTasks
from tenure.worker.supervisor.declarations import declare_and_warn, declare_schedules
from tenure.worker.supervisor.options import WorkerOptions
from tenure.worker.supervisor.supervisor import Supervisor

MAX_CONCURRENCY = 10_000
LEAST_MEMORY_BYTES = 64 * 1024 * 1024
SHOWN_NAMES = 20
PR_SET_DUMPABLE = 4
GC_THRESHOLDS = (20_000, 20, 50)
"""Garbage collection in the supervisor: the objects of a batch live long, and with Python's
threshold of 700 the collector took a twentieth of its CPU."""
SWITCH_INTERVAL_S = 0.001
"""How long a thread of the supervisor keeps the interpreter while another wants it: with Python's
5 ms children and database were idle meanwhile."""

_log = logging.getLogger("tenure.worker")


def new_worker_id() -> WorkerId:
    """Host, process and a random part: one run of a worker is one session. [Q2]"""
    host = "".join(c if c.isalnum() or c in ".-" else "-" for c in socket.gethostname())
    return WorkerId(f"{host.strip('.-')[:60] or 'worker'}-{os.getpid()}-{os.urandom(4).hex()}")


class Worker:
    """Runs the jobs of a registry. `run` blocks; `stop` and `wake` may be called by any thread."""

    def __init__(
        self,
        coordination: Coordination,
        registry: Registry,
        *,
        app: str,
        options: WorkerOptions | None = None,
        stats: Stats | None = None,
    ) -> None:
        options = options or WorkerOptions()
        _check(registry, options)
        self.id = options.worker_id or new_worker_id()
        self.actor = options.actor or worker_actor(self.id)
        self.stats = stats or Stats()
        self._session = session = self._new_session(registry, options)
        self._app, self._coordination, self._registry = app, coordination, registry
        self._options, self._began, self._instance = options, boot_now(), os.urandom(8).hex()
        self._background = BackgroundTasks(
            coordination,
            self._describe,
            actor=self.actor,
            namespace=options.namespace,
            drain=self.drain,
            is_silence_reported=lambda: session.has_reported_silence,
            interval_s=options.sign_interval_us / MICROSECONDS_PER_SECOND,
        )
        self._supervisor = Supervisor(
            coordination,
            registry,
            session,
            options,
            app=app,
            background=self._background,
        )

    def _new_session(self, registry: Registry, options: WorkerOptions) -> WorkerSession:
        settings = ClaimSettings(
            namespace=options.namespace,
            worker=self.id,
            actor=self.actor,
            queues=dict(options.queues),
            kinds={handler.kind: handler.concurrency for handler in registry},
            lanes={handler.kind: handler.isolation for handler in registry},
            # A worker id may be used again after a restart, and claim_seq may only rise.
            first_claim_seq=time.time_ns() // 1_000_000,
            shortest_poll_us=options.shortest_poll_us,
            longest_poll_us=options.longest_poll_us,
        )
        return WorkerSession(
            settings,
            concurrency=options.concurrency,
            random=random.SystemRandom().random,
            stats=self.stats,
            notes_every_end=options.tells_every_end,
        )

    def run(self) -> int:
        """Work until stopped; 0, or 1 if the worker had to stop."""
        _log.info(
            "worker %s: queues %s; kinds %s; %d at once",
            self.id,
            _listed(self._options.queues),
            _listed(self._registry.kinds()),
            self._options.concurrency,
        )
        self._tell_of_other_queues()
        warn_of_few_descriptors(self._registry, self._options.concurrency)
        declare_and_warn(
            self._coordination.store,
            self._options.namespace,
            list(self._registry),
            app=self._app,
            overwrites=self._options.overwrites_declared,
        )
        self._background.start()
        code = 1
        try:
            code = self._supervisor.run()
        finally:
            self._background.close()
            ended = "stopped after an error that it cannot recover from" if code else "stopped"
            _log.info("worker %s %s; %s", self.id, ended, self.stats.summary())
        return code

    def stop(self) -> None:
        """Drain; called again, stop at once. Any thread."""
        self._supervisor.stop()

    def drain(self) -> None:
        """Drain; called again, change nothing. Any thread."""
        self._supervisor.drain()

    def wake(self) -> None:
        """Ask for jobs now. Any thread."""
        self._supervisor.wake()

    def trust_hints(self, hints_arrive: Callable[[], bool]) -> None:
        """Poll rarely while `hints_arrive` returns true."""
        self._session.trust_hints(hints_arrive)

    def introduce(self) -> None:
        """Give a first sign of life. A coordinator that would refuse this worker's claims refuses
        it too, so the error comes before anything is started."""
        self._coordination.store.workers.see(self._describe())

    def _tell_of_other_queues(self) -> None:
        """Warn: perhaps another worker serves them, perhaps an option was forgotten."""
        served = self._options.queues
        elsewhere = [each for each in self._registry if each.queue not in served]
        if elsewhere:
            kinds = _listed(f"{each.kind} (queue {each.queue})" for each in elsewhere)
            missing = sorted({each.queue for each in elsewhere})
            # The whole list: -q replaces the queues that a worker serves without it.
            words = " ".join(f"-q {each}" for each in (*map(_weighted, served.items()), *missing))
            _log.warning(
                "this worker does not serve the queues of %s; to serve them too, start it with %s",
                kinds,
                words,
            )

    def _describe(self) -> WorkerProcess:
        return WorkerProcess(
            namespace=self._options.namespace,
            worker=self.id,
            actor=self.actor,
            host=socket.gethostname() or "unknown",
            pid=os.getpid(),
            queues=tuple(self._options.queues),
            concurrency=self._options.concurrency,
            version=_version(),
            uptime_us=Duration(boot_now() - self._began),
            kinds=self._registry.kinds(),
            schedules=tuple(self._registry.schedules()),
            is_draining=self._session.is_draining,
            instance=self._instance,
        )

    @property
    def is_waiting_for_work(self) -> bool:
        """Whether it has room and has found nothing to do."""
        return self._session.is_waiting_for_work


def _version() -> str:
    try:
        return version("tenure")
    except PackageNotFoundError:  # run from a copy of the source
        return "unknown"


def _weighted(queue: tuple[QueueName, int]) -> str:
    """A queue as `-q` takes it."""
    name, weight = queue
    return name if weight == 1 else f"{name}={weight}"


def _listed(names: Iterable[str]) -> str:
    given = list(names)
    more = len(given) - SHOWN_NAMES
    return ", ".join(given[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _check(registry: Registry, options: WorkerOptions) -> None:
    if not registry.kinds():
        raise InvalidInput("app", "has no jobs", hint="decorate a function with @app.job")
    if not 1 <= options.concurrency <= MAX_CONCURRENCY:
        problem = f"{options.concurrency} is outside 1 to {MAX_CONCURRENCY}"
        raise InvalidInput("concurrency", problem)
    memory_bytes = options.child_memory_bytes
    if memory_bytes is not None and memory_bytes < LEAST_MEMORY_BYTES:
        problem = f"{memory_bytes} bytes are less than the {LEAST_MEMORY_BYTES} a child needs"
        raise InvalidInput("memory limit", problem)
    if options.jobs_per_child < 1:
        raise InvalidInput("jobs per child", f"{options.jobs_per_child} is less than 1")
    if not options.queues or any(weight < 1 for weight in options.queues.values()):
        raise InvalidInput("queues", "give at least one queue, each with a weight of 1 or more")


def run_worker(
    coordination: Coordination,
    import_string: str,
    options: WorkerOptions,
    *,
    stats: Stats | None = None,
    made: Callable[[Worker], None] | None = None,
) -> int:
    """`tenure worker module:app`: drain on SIGTERM and SIGINT; the exit code of the process.

    `made` is called with the worker before it runs, for callers that have hints for it.
    """
    hide_from_other_processes()
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109 - compared as text
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as text, like every other entry
    registry = load_registry(import_string)
    options = replace(options, handles_signals=True)
    worker = Worker(coordination, registry, app=import_string, options=options, stats=stats)
    if made is not None:
        made(worker)
    declare_schedules(
        coordination,
        registry.schedules(),
        namespace=options.namespace,
        actor=worker.actor,
        app=import_string,
        overwrites=options.overwrites_declared,
    )
    gc.freeze()  # what the imports made stays: collections skip it
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return worker.run()


def hide_from_other_processes() -> None:
    """No other process of this user may read this one's environment and memory, which hold the
    worker's token, or trace it. Programs that it starts are not affected."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


# --- file descriptors ---------------------------------------------------------------------------

PER_CHILD = 4
"""A socket, a pipe for its output, a descriptor that reports its exit, and the page of memory that
the two share."""

OTHERS = 48
"""For the store, the keeper, and what a start of a child needs for a moment."""

USUALLY_OPEN = 16


def needed_descriptors(registry: Registry, concurrency: int) -> int:
    """How many a worker with these handlers needs when all its slots are in use."""
    lanes = {handler.isolation for handler in registry}
    children = len(lanes - {Isolation.PROCESS}) + (Isolation.PROCESS in lanes) * concurrency
    return _open_now() + OTHERS + PER_CHILD * children


def warn_of_few_descriptors(registry: Registry, concurrency: int) -> None:
    """Warn if the process may open fewer. The worker works with fewer children then. [WP25]"""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = needed_descriptors(registry, concurrency)
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        _log.warning(
            "%d jobs at once need about %d open files, and this process may open %d: raise the"
            " limit (ulimit -n %d) or lower the concurrency; until then fewer jobs run at once",
            concurrency,
            needed,
            allowed,
            needed,
        )


def _open_now() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only counted
    except OSError:  # no such directory here
        return USUALLY_OPEN
