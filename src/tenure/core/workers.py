"""Worker processes: what they report about themselves, its limits, and the state they are in.

It is for people: no decision about a job uses it.
"""

from typing import NamedTuple

import msgspec

from tenure.core.checks import (
    MAX_COUNT,
    MAX_NAME,
    check_fields,
    check_integer,
    check_label,
    check_name,
    check_names,
)
from tenure.core.claims import MAX_CLAIM_KINDS, MAX_CLAIM_QUEUES
from tenure.core.ids import Actor, Kind, Namespace, QueueName, ScheduleName, WorkerId
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.vocabulary import WorkerState
from tenure.errors import InvalidInput

SILENT_AFTER = seconds(60)
"""A worker that gave no sign of life for this long is silent."""


MAX_DECLARED_SCHEDULES = 1000
MAX_NAMES_BYTES = 64 << 10
"""All names of queues, kinds and schedules together."""

MAX_ACTOR = len("operator:") + MAX_NAME
MAX_WORKER_KEY = MAX_NAME + len(" ") + MAX_ACTOR


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker as it describes itself. `uptime_us` is a duration, because only the store's clock
    is ever written."""

    namespace: Namespace
    worker: WorkerId
    actor: Actor
    host: str
    pid: int
    queues: tuple[QueueName, ...]
    concurrency: int
    version: str
    uptime_us: Duration
    kinds: tuple[Kind, ...] = ()
    schedules: tuple[ScheduleName, ...] = ()  # what its application declares
    is_draining: bool = False  # it claims nothing more, and ends when its jobs have ended [B33]
    is_ending: bool = False  # its last report: it is not listed any more [B13]
    instance: str = ""  # made anew at each start, so that its start is worked out once [B21]

    def __post_init__(self) -> None:
        """Refuse what is over a limit."""
        check_fields(self)
        check_label("host", self.host, most=2 * MAX_NAME)
        check_names("queues", self.queues, most=MAX_CLAIM_QUEUES, least=1)
        check_names("kinds", self.kinds, most=MAX_CLAIM_KINDS, least=0)
        check_names("schedules", self.schedules, most=MAX_DECLARED_SCHEDULES, least=0)
        names_bytes = sum(map(len, (*self.queues, *self.kinds, *self.schedules)))
        if names_bytes > MAX_NAMES_BYTES:
            raise InvalidInput(
                "kinds",
                f"the names of queues, kinds and schedules have {names_bytes} bytes together,"
                f" {MAX_NAMES_BYTES} are allowed",
                hint="use shorter names, or divide the application among several workers",
            )
        check_integer("concurrency", self.concurrency, low=0, high=MAX_COUNT)
        check_label("version", self.version, most=MAX_NAME)
        if self.instance:
            check_name("instance", self.instance)


class WorkerKey(NamedTuple):
    """Where a worker comes in a list: by name, then by principal. [B43]"""

    worker: str
    actor: str

    @property
    def text(self) -> str:
        """The key as callers send it back."""
        return f"{self.worker} {self.actor}"


FIRST_WORKER = WorkerKey("", "")
"""Comes before every worker."""


def parse_worker_key(text: str) -> WorkerKey:
    """The key that a page ended with. Raises `InvalidInput`."""
    worker, _, actor = text.partition(" ")
    check_name("after", worker)
    check_label("after", actor, most=MAX_ACTOR)
    return WorkerKey(worker, actor)


class KnownStart(msgspec.Struct, frozen=True, gc=False):
    """When a worker process of this name started, and which instance it was."""

    started_at: Instant
    instance: str


def start_of(process: WorkerProcess, known: KnownStart | None, *, now: Instant) -> Instant:
    """When a process started. The first calculation for an instance is kept: later ones vary with
    how long the sign of life took to arrive. [B21]"""
    if known is not None and process.instance and process.instance == known.instance:
        return known.started_at
    return Instant(now - process.uptime_us)


class ListedWorker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker as the store last saw it."""

    namespace: Namespace
    worker: WorkerId
    actor: Actor
    host: str
    pid: int
    queues: tuple[QueueName, ...]
    kinds: tuple[Kind, ...]
    schedules: tuple[ScheduleName, ...] | None  # None: hidden from this caller [H80]
    concurrency: int
    version: str
    started_at: Instant
    seen_at: Instant
    drain_requested_at: Instant | None = None
    drain_reported: bool = False  # by the process itself, however it was asked to stop

    @property
    def key(self) -> WorkerKey:
        """Where it comes in a list."""
        return WorkerKey(self.worker, self.actor)

    @property
    def has_drain_request(self) -> bool:
        """Whether an operator asked this process to stop; a request to an earlier process of the
        same name is not meant for it. [B12]"""
        return self.drain_requested_at is not None and self.drain_requested_at >= self.started_at

    @property
    def draining(self) -> bool:
        """Whether this process was asked to stop, by an operator or by a signal. [B33]"""
        return self.drain_reported or self.has_drain_request

    def state(self, now: Instant) -> WorkerState:
        """Its state at `now`, by its last sign of life."""
        if now - self.seen_at > SILENT_AFTER:
            return WorkerState.SILENT
        return WorkerState.DRAINING if self.draining else WorkerState.ALIVE
