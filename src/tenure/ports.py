"""Ports: what the parts of Tenure ask of each other and of the outside.

`Coordination` decides about jobs. `JobStore` is how all others read, in this process or over HTTP.
`Store` is all that a database does. Both are small objects by subject. Deciding needs `jobs`,
`claims`, `events`, `flows`, `schedules`, `settings` and `upkeep`, and `verify` reads `audit`.
People and servers read `views`, `workers`, `artifacts` and `tokens`: a store may leave these out.
A class that inherits from a protocol also gets its methods that have a body.

A store can lose a race but cannot have an opinion: it loads, it saves what was decided if the
revision still matches, and it returns which changes it applied. Instants come from the store's
clock; no other clock's time is ever written."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import UNSET, UnsetType

from tenure.core.artifacts import (
    Artifact,
    ArtifactQuotas,
    ArtifactUpload,
    AttemptLog,
    AttemptOutput,
    Staging,
    StoredArtifact,
)
from tenure.core.claims import (
    ClaimAnswer,
    ClaimConflict,
    ClaimPlan,
    ClaimRequest,
    ClaimScope,
    ClaimView,
    QueueState,
)
from tenure.core.commands import Command, Complete, Outage
from tenure.core.events import Event
from tenure.core.failover import is_settling
from tenure.core.flow_rows import (
    Edge,
    EdgeCheck,
    FlowSummary,
    FlowView,
    ParentPage,
    UnblockedJobs,
)
from tenure.core.ids import (
    Actor,
    Epoch,
    FlowId,
    JobId,
    Kind,
    Namespace,
    QueueName,
    ScheduleName,
    WorkerId,
)
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.leases import LeaseRef
from tenure.core.outcomes import Change, Session, SessionKey
from tenure.core.rates import GrantMade, Rate, RateInForce, RateWait
from tenure.core.schedules import (
    Firing,
    Schedule,
    ScheduleChange,
    ScheduleCommand,
    ScheduleOutcome,
)
from tenure.core.tokens import LoadedToken, NewToken, Token, TokenId
from tenure.core.verdicts import Answer, Observation, Resolution, Verdict
from tenure.core.views.dead_letter_groups import DeadLetterGroupFilter, DeadLetterGroups
from tenure.core.views.event_counts import EventCounts, EventSpan
from tenure.core.views.events import (
    EventFilter,
    EventPage,
    EventPosition,
    TailDelay,
    TailedEvent,
    TailFilter,
    TailPage,
)
from tenure.core.views.job_search import FoundJobs, JobFilter
from tenure.core.views.overview import Overview, OverviewFilter
from tenure.core.views.rollups import MAX_CATCH_UP, Fold, UnfoldedPage
from tenure.core.vocabulary import (
    Cause,
    HealthState,
    LeaseNews,
)
from tenure.core.workers import FIRST_WORKER, ListedWorker, WorkerKey, WorkerProcess
from tenure.errors import NotSupported

Clock: TypeAlias = Callable[[], Instant]
Entropy: TypeAlias = Callable[[int], bytes]
"""Given a number of bytes, that many random ones."""

LoadHistories: TypeAlias = Callable[[Sequence[JobId]], dict[JobId, list[Event]]]
"""Given jobs, the events of each in order of seq."""

NO_WAIT = Duration(0)

NO_AGE = Duration(0)

NO_LIMIT = (1 << 31) - 1
"""The limit of a list that is read as a whole."""


class Loaded(msgspec.Struct, frozen=True):
    """Jobs as they were at `now`; an id that is missing is a job that does not exist."""

    now: Instant
    epoch: Epoch
    jobs: dict[JobId, Job]
    settling_since: Instant | None = None
    """When another server took over, if one did. [A10]"""

    @property
    def is_settling(self) -> bool:
        """Whether a loss in a failover may not have been noticed yet."""
        return is_settling(self.settling_since, self.now)


class DueJobs(msgspec.Struct, frozen=True):
    """Claimed and running jobs whose `due_at` has come, and jobs that wait and whose `start_by` has
    come, up to `limit`, longest overdue first. [W1] [EX2]"""

    limit: int


class LeasedJobs(msgspec.Struct, frozen=True):
    """The claimed and running jobs of a worker session, expired ones included."""

    session: SessionKey


class Locked(Loaded, frozen=True, kw_only=True):
    """What a store has locked while `decide` runs: rows that no other transaction can change
    before the transaction ends. Histories are read in the same transaction. [K9]"""

    sessions: dict[SessionKey, Session]
    load_histories: LoadHistories


class ClockWindow(msgspec.Struct, frozen=True, gc=False):
    """What the store's clock must show when a decision is written that was made by an estimate of
    it. [K11]"""

    earliest: Instant
    latest: Instant

    def has(self, now: Instant) -> bool:
        """Whether the clock shows an instant of the window."""
        return self.earliest <= now <= self.latest


ANY_TIME = ClockWindow(Instant(0), Instant(2**63 - 1))


class Saved(msgspec.Struct, frozen=True):
    """Which of the changes the store applied, and its clock at the write."""

    now: Instant
    applied: frozenset[JobId]


class LoadedSchedule(msgspec.Struct, frozen=True):
    """A schedule as it was at `now`; None if the store never had one of this name."""

    now: Instant
    epoch: Epoch
    schedule: Schedule | None


MAX_DUE_READ = 10_000
"""How many due schedules take turns, the ones that are longest due."""


class DueSchedules(msgspec.Struct, frozen=True):
    """Schedules whose next time has come, without their payloads: of each namespace the one that is
    longest due, then of each the second, and so on. [SC20]"""

    now: Instant
    epoch: Epoch
    schedules: tuple[Schedule, ...]
    next_in_us: Duration | None
    """How long until a schedule is due: 0 if one is; None if none will be."""


Deletable: TypeAlias = Literal[
    "renewals",
    "observations",
    "artifacts",
    "jobs",
    "sessions",
    "outages",
    "keys",
    "workers",
    "rollups",
]
"""What retention deletes."""


class PruneResult(msgspec.Struct, frozen=True):
    """How much a step of retention deleted. If it hit its limit, there may be more to delete where
    it stopped. [G4]"""

    deleted: int
    hit_limit: bool


class DedupeKey(msgspec.Struct, frozen=True):
    """What at most one live job may have. [I17]"""

    namespace: Namespace
    kind: Kind
    key: str


def dedupe_key_of(job: Job) -> DedupeKey:
    """The key of a job that has one."""
    assert job.dedupe_key is not None
    return DedupeKey(job.namespace, job.kind, job.dedupe_key)


class KeyHolders(msgspec.Struct, frozen=True):
    """The jobs that have these dedupe keys: live ones, and ended jobs that keep their key until
    another job takes it over. [D13] [D14]"""

    keys: tuple[DedupeKey, ...]


JobsWanted: TypeAlias = Sequence[JobId] | DueJobs | LeasedJobs | KeyHolders
"""Which jobs to load."""


class Unreadable(msgspec.Struct, frozen=True):
    """A row, event or observation that this version cannot read, and why: for example a word that
    is in none of its sets. `seq` is the event's, or the row's rev."""

    seq: int
    problem: str


class JobHistory(msgspec.Struct, frozen=True):
    """A job with its whole log and its observations, read in one snapshot.

    `job` is None for events without a row: `verify` reports them. What is `unreadable` is missing
    from the rest.
    """

    job_id: JobId
    job: Job | None
    events: Sequence[Event]
    observations: Sequence[Observation] = ()
    unreadable: tuple[Unreadable, ...] = ()


class HealthFact(msgspec.Struct, frozen=True, kw_only=True):
    """Something true of a store; with advice where it should not be. [B14]"""

    name: str
    value: str | int | float | bool
    state: HealthState = HealthState.OK
    advice: str = ""


def fact(
    name: str,
    value: str | int | float | bool,
    *,
    bad: bool = False,
    warning: bool = False,
    advice: str = "",
) -> HealthFact:
    """A fact whose advice is given only where it is needed."""
    if not (bad or warning):
        return HealthFact(name=name, value=value)
    state = HealthState.BAD if bad else HealthState.WARNING
    return HealthFact(name=name, value=value, state=state, advice=advice)


class QueueMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """How full a queue is. A number as large as the limit means "that many or more"."""

    namespace: Namespace
    queue: QueueName
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    suspect: int = 0
    """The leased jobs whose workers have missed two heartbeats. [L18]"""
    oldest_ready_at: Instant | None = None


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """How full a store is, queue by queue; `left_out` queues were not measured. [B27]"""

    now: Instant
    queues: tuple[QueueMeasure, ...]
    left_out: int
    dead_letters: dict[Namespace, int]
    schedules_due_since: dict[Namespace, Instant] = {}
    """Since when the schedule that is longest due has been due, where there is one. [OB40]"""
    losses: int = 0
    """Failovers after which acknowledged work was missing. [OB20]"""


class Observer(Protocol):
    """A coordinator calls it after each transaction, in the same thread, so its methods must be
    quick and must not raise."""

    def saved(self, changes: Sequence[Change], before: Mapping[JobId, Job | None]) -> None:
        """These are committed; `before` has the rows they were decided on."""

    def observed(self, observations: Sequence[Observation], jobs: Mapping[JobId, Job]) -> None:
        """These were kept of refused reports about these jobs. [U4]"""

    def missed(self, commands: Sequence[Command]) -> None:
        """The changes decided for these lost their compare-and-swap."""

    def contended(self, conflict: ClaimConflict, number: int) -> None:
        """Claims met this many conflicts of this sort."""

    def scheduled(self, before: Schedule, firing: Firing) -> None:
        """What was due of this schedule was dealt with."""

    def swept(self, overdue_us: Duration) -> None:
        """A sweep is over; the longest overdue job it found had been so for this long."""


class ReadableJobs(Protocol):
    """What clients read of jobs, one by one."""

    def read(self, ids: Sequence[JobId], *, bodies: bool = True) -> dict[JobId, Job]:
        """The rows of these jobs; unknown ones are missing. Without `bodies` as `without_bodies`
        has them: for readers of many jobs, whose bodies may be megabytes each."""

    def resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters; an unresolved one is missing."""

    def observations(self, job_id: JobId) -> list[Observation]:
        """What was observed of a job besides its history: the first 500, oldest first; a server
        leaves out bodies and digests for readers who may not see them. [U3]"""

    def peek_leases(self, leases: Sequence[LeaseRef], actor: Actor) -> list[LeaseNews]:
        """Which of an actor's leases deserve a heartbeat now, in this order. Decides and changes
        nothing. [C2]"""


class ReadableEvents(Protocol):
    """What clients read of the log."""

    def load(self, ids: Sequence[JobId]) -> dict[JobId, list[Event]]:
        """The events of these jobs in order of seq; an unknown job has none."""

    def page(self, wanted: EventFilter) -> EventPage:
        """A page of events in the order of time, and where the next one starts. It reads at most
        `wanted.reads` events, so that a page may have fewer than are wanted. [E4] [E8]"""

    def count(self, span: EventSpan) -> EventCounts:
        """The number of events in a span of time by type, kind and queue: at most `span.limit` of
        them, or all of one instant; the answer has the place where counting stopped. [B31]"""

    def follow(self, wanted: TailFilter, *, wait_us: Duration = NO_WAIT) -> TailPage:
        """The next events of one namespace in the order of the tail, and where to continue. It
        reads at most `wanted.reads` events, so that a page may have none and not be at the end. A
        server may keep the call open for `wait_us` until there is an event; a store in this process
        answers at once. [E32] [E10]"""

    def delay(self) -> TailDelay | None:
        """The open transaction because of which committed events are not visible yet; None if there
        is none, or if a server does not name it. [E35]"""
        return None


class ReadableFlows(Protocol):
    """What clients read of flows."""

    def page(
        self,
        namespace: Namespace,
        *,
        before: FlowId | None,
        limit: int,
        id_prefix: str | None = None,
    ) -> list[FlowSummary]:
        """A page of flows, newest first; `before` is the last id of the previous page, and
        `id_prefix` the beginning of their ids. [FL9] [FL16]"""

    def load(self, namespace: Namespace, flow_id: FlowId) -> FlowView | None:
        """A flow with its jobs and what they wait for; None if there is none. [FL9]"""

    def parents(self, held: LeaseRef, actor: Actor, *, after: int) -> ParentPage:
        """The next parents of a leased job, after this position, with their results: for the
        worker that has its lease. [FL7]"""


class ReadableSchedules(Protocol):
    """What clients read of schedules."""

    def page(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[Schedule]:
        """The schedules after this name that were not removed, by name, without payloads, up to
        `limit`. [B43]"""


class ReadableViews(Protocol):
    """Lists and summaries for people, whose cost does not grow with the number of jobs."""

    def jobs(self, wanted: JobFilter) -> FoundJobs:
        """A page of jobs, newest first, and where the next one starts; a server leaves out their
        bodies. [J12]"""

    def dead_letter_groups(self, wanted: DeadLetterGroupFilter) -> DeadLetterGroups:
        """The newest dead letters without a resolution, as `core.dead_letter_groups.group` makes
        groups of them; `MAX_GROUPED` dead letters are read. [OB31]"""

    def overview(self, wanted: OverviewFilter) -> Overview:
        """What the jobs of a namespace are doing and did lately, as `core.overview.assemble` makes
        it. Each number stops at a limit: the cost does not grow with the number of jobs. [OB28]"""


class ReadableSettings(Protocol):
    """What is set for queues and kinds."""

    def queues(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[QueueState]:
        """The queues after this name that have jobs or settings, with their live leases, by name;
        a queue that had jobs once may be among them. Reads up to `limit` of them. [B43]"""

    def put_queue(
        self,
        namespace: Namespace,
        name: QueueName,
        *,
        paused: bool | None,
        limit: int | None,
        rate: Rate | UnsetType | None = UNSET,
    ) -> QueueState:
        """Pause or resume a queue (None: unchanged), set its limit (None: unchanged; 0: none) and
        its rate (UNSET: unchanged; None: none). When this returns no claim that ignores it can
        commit. [Z2] [RL5]"""

    def kinds(self, namespace: Namespace) -> list[KindSettings]:
        """Every kind that has settings, by name."""

    def put_kind(
        self, namespace: Namespace, change: KindChange, *, only_new: bool = False
    ) -> KindSettings:
        """Set what holds for a kind; what is UNSET stays unchanged. With `only_new`, only if the
        store has no settings of it. Returns what the store has then. When this returns no claim
        that ignores it can commit. [RL5] [RL6]"""


class StoredWorkers(Protocol):
    """The workers that were seen lately."""

    def page(
        self, namespace: Namespace, *, after: WorkerKey = FIRST_WORKER, limit: int = NO_LIMIT
    ) -> list[ListedWorker]:
        """The workers after this key that were seen lately, by name and principal, up to `limit`.
        [B43]"""

    def drain(self, namespace: Namespace, worker: WorkerId) -> bool:
        """Ask the processes of this name to finish and stop. Returns whether there is one. [B12]"""

    def see(self, process: WorkerProcess) -> bool:
        """Remember that this worker lives, or forget it if it reports its end. Returns whether it
        was asked to drain. [B12] [B13]"""


class StoredArtifacts(Protocol):
    """What attempts leave besides their result: artifacts, and their output."""

    def stage(self, upload: ArtifactUpload) -> Staging:
        """Keep an artifact iff its job's current lease is the upload's, the clock is before the
        lease's end and the quotas have room; the same name in the same attempt replaces. Deletes
        the artifacts of the job's earlier attempts. [B7] [B28]"""

    def of_job(self, job_id: JobId) -> list[Artifact]:
        """The artifacts of the attempt that succeeded, by name; none before it has. [B8]"""

    def load(self, job_id: JobId, name: str) -> StoredArtifact | None:
        """One of them with its body."""

    def put_log(self, output: AttemptOutput) -> Cause | None:
        """Keep the output of the attempt that this lease was issued for, unless it has some of the
        same or a higher part already. Returns None, or why it was not kept. [B20]"""

    def logs(self, job_id: JobId) -> list[AttemptLog]:
        """The kept output of the latest attempts, in order. [B26]"""


class JobStore(Protocol):
    """What clients, workers, operators and servers read of a store, and the few writes that decide
    nothing about a job. Every store is one, and so is a server's, over HTTP."""

    def now(self) -> Instant:
        """The store's clock."""

    @property
    def jobs(self) -> ReadableJobs: ...

    @property
    def events(self) -> ReadableEvents: ...

    @property
    def flows(self) -> ReadableFlows: ...

    @property
    def schedules(self) -> ReadableSchedules: ...

    @property
    def views(self) -> ReadableViews: ...

    @property
    def settings(self) -> ReadableSettings: ...

    @property
    def workers(self) -> StoredWorkers: ...

    @property
    def artifacts(self) -> StoredArtifacts: ...


class Coordination(Protocol):
    """What clients, workers and operators need of a coordinator, in this process or on a server.

    It decides; everything that decides nothing is asked of its `store`. Futures fail with
    `StoreUnavailable` when the outcome is not known; sending the same request id again is always
    safe.
    """

    @property
    def store(self) -> JobStore:
        """The jobs it decides about."""

    def read_jobs(self, ids: Sequence[JobId], *, bodies: bool = True) -> dict[JobId, Job]:
        """The store's `jobs.read` for a reader: jobs whose lease is over are swept first. [W5]"""

    def list_jobs(self, wanted: JobFilter) -> FoundJobs:
        """The store's `views.jobs` for a reader: jobs whose lease is over are swept first. [W5]"""

    def why_waiting(self, job: Job) -> str | None:
        """Why no worker claims this job, or why its attempt may never end, in a sentence; None if
        no reason is known, or if the caller may not see it. Decides nothing. [OB32]"""

    def submit_many(self, commands: Sequence[Command]) -> "Future[list[Answer]]":
        """Answers in the order asked. Raises `InvalidInput` at once, before anything is sent."""

    def execute_many(self, commands: Sequence[Command]) -> list[Answer]:
        """Submit commands and wait."""

    def execute(self, command: Command) -> Answer:
        """Submit one command and wait."""

    def change_schedule(self, command: ScheduleCommand) -> ScheduleOutcome:
        """Put, pause, resume, run or remove a schedule, and wait. Raises `InvalidInput` at once,
        before anything is written. [SC12]"""

    def submit_claim(
        self, request: ClaimRequest, *, wait_us: Duration = NO_WAIT
    ) -> "Future[ClaimAnswer]":
        """Ask for work. A server may keep the claim open for `wait_us` until there is some; a
        coordinator in this process answers at once."""

    def end_waits(self) -> None:
        """Let claims that are kept open end now, without an answer; they can be repeated."""


Scope: TypeAlias = AbstractContextManager[Callable[[Complete], Verdict]]
AsyncScope: TypeAlias = AbstractAsyncContextManager[Callable[[Complete], Awaitable[Verdict]]]
"""A transaction on a caller's connection, and the way to complete a job in it."""


@runtime_checkable
class Transactions(Protocol):
    """Transactions on the connections of callers who share the database of the jobs."""

    def transaction_on(self, connection: Any) -> Scope:
        """Start on this connection; commit at the end, roll back on an error."""

    def atransaction_on(self, connection: Any) -> AsyncScope:
        """The same on an asynchronous connection."""


class HintedChange(StrEnum):
    """What a hint is about."""

    READY = "ready"
    LATER = "later"
    ENDED = "ended"


class Hint(msgspec.Struct, frozen=True, array_like=True):
    """Jobs of a queue became ready, will be ready later, or have ended."""

    change: HintedChange
    namespace: Namespace
    queue: QueueName


class NextReady(msgspec.Struct, frozen=True):
    """Whether some queues have a ready job, and how long until the next delayed one is due; None if
    none is known: a store reads a limited number of kinds and priorities. Jobs that stay ready,
    because a limit blocks them, do not hide the next one."""

    is_ready: bool
    later_in_us: Duration | None = None


OnHint: TypeAlias = Callable[[Hint | None], None]
"""Takes a hint; None: anything may have changed. Any thread may call it, also one that has a lock
of the store: it must be quick, and must neither raise nor call the store."""


class StoredJobs(ReadableJobs, Protocol):
    """What deciding about jobs needs of a store."""

    def load(self, wanted: JobsWanted, *, bodies: bool = True) -> Loaded:
        """The rows of these jobs, and when they were read; without `bodies` as `without_bodies` has
        them."""

    def read(self, ids: Sequence[JobId], *, bodies: bool = True) -> dict[JobId, Job]:
        """The rows of these jobs."""
        return self.load(ids, bodies=bodies).jobs

    def body_sizes(self, ids: Sequence[JobId]) -> dict[JobId, int]:
        """How many bytes the payload, checkpoint and result of each of these jobs have together.
        [H90]"""
        found = (job for job_id in ids for job in self.read([job_id]).values())
        return {
            job.id: len(job.payload) + len(job.checkpoint or b"") + len(job.result or b"")
            for job in found
        }

    def save(
        self, changes: Iterable[Change], *, epoch: Epoch, window: ClockWindow = ANY_TIME
    ) -> Saved:
        """Apply each change iff its job's rev is still `expected_rev` (0: no job has this id, and
        none has its dedupe key), the clock is before `not_after` and within `window`, and the
        store is still in `epoch`. [K1] [K2] [K11] A change with a resolution is applied only if its
        dead letter exists and has no resolution yet [B17], one with a flow only if its parents
        outside the flow exist [FL3], one that redrives a flow only if what it replaces exists, too.
        [FL10] The ended job that a new one takes its key from has the key no longer. [D14]

        One transaction writes all changes, each with its row, events, observations, spawned
        jobs, flow, redrive and edges, and with its resolutions of dead letters that have none;
        there is one change per job. [K3] It marks the edges that lead from
        jobs that it ends, and new edges whose parent has ended, with the parent's status. It notes
        a check of each job that it ends and that has children, and of each new job with a parent
        that was there before. [FL4] [FL5] `changes` may be an iterator that decides while the store
        writes: the store reads it once, and the iterator never calls the store.
        """

    def save_locked(
        self,
        ids: Sequence[JobId],
        sessions: Sequence[SessionKey],
        decide: Callable[[Locked], Sequence[Change]],
    ) -> Saved:
        """One transaction: lock these sessions and the rows of these jobs, read them and then the
        clock, let `decide` return the changes of these jobs to write, and write them as `save`
        does. They cannot lose a race: the rows are locked. `decide` may run again if the store has
        to start the transaction again. [K9]"""

    def resolve(self, resolutions: Sequence[Resolution]) -> frozenset[JobId]:
        """Record each unless its job has a resolution already or is gone. Returns the jobs whose
        resolution was recorded. [B1]"""

    def observe(self, observations: Sequence[Observation]) -> list[Observation]:
        """Keep refused results, at most ten per lease. Returns the ones that were kept. [U1]"""


class Claiming(Protocol):
    """What claims need of a store."""

    def claim(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        """One transaction: lock the sessions, read the queues and what is set for kinds, lock up to
        `wanted` ready jobs of each queue in claim order, let `plan` decide, write its result.
        Jobs of a queue or a kind that has no room now are not read. Claimers pass each other's
        locked jobs; queues with a limit or a rate, and kinds with a rate, serialise theirs. Of jobs
        with large bodies it reads those that `usable_candidates` keeps. [Z1]–[Z4] [Z10] [Q1]
        [RL1]"""

    def next_ready(self, namespace: Namespace, queues: Sequence[QueueName]) -> NextReady:
        """Whether these queues have a ready job, and when the next one will be. Decides nothing."""


class StoredEvents(ReadableEvents, Protocol):
    """The log: what decisions and its followers in this process read of it."""

    def load(self, ids: Sequence[JobId], *, latest: int | None = None) -> dict[JobId, list[Event]]:
        """The events of these jobs in order of seq; an unknown job has none. With `latest`, only
        the first event of each job and this many of the latest others that are no renewals: with
        `MAX_DECISION_EVENTS` all that a decision needs, however long the log is. [J8]"""

    def tail(self, *, after: EventPosition | None, limit: int) -> list[TailedEvent]:
        """The next events in the order in which they were written."""


class StoredFlows(ReadableFlows, Protocol):
    """What deciding about flows needs of a store."""

    def existing(self, ids: Sequence[FlowId]) -> frozenset[FlowId]:
        """Which of these flows exist, in whatever namespace. [FL3] [FL13]"""

    def edges(self, children: Sequence[JobId] | None = None) -> Iterator[Edge]:
        """The edges of these jobs, or every edge, by child and position; bounded memory however
        many there are."""

    def unblocked(self, ids: Sequence[JobId], *, limit: int) -> UnblockedJobs:
        """From these jobs and their children, the jobs that wait although they need not: no parent
        is live, or one has ended otherwise than the job needs. Each once, at most `limit`; fewer do
        not mean that there are no more. [FL5]"""

    def checks(self, *, limit: int, of: Sequence[JobId] | None = None) -> list[EdgeCheck]:
        """Mark edges from parents outside their flow that have ended since. Returns the checks
        that are noted. With `of`, only reads which are noted of these jobs. [FL5]"""

    def delete_checks(self, checks: Sequence[EdgeCheck]) -> None:
        """Delete these notes: their jobs were checked."""


class StoredSchedules(ReadableSchedules, Protocol):
    """What deciding about schedules needs of a store."""

    def load(self, namespace: Namespace, name: ScheduleName) -> LoadedSchedule:
        """A schedule, also a removed one."""

    def due(self, *, limit: int) -> DueSchedules:
        """Up to `limit` schedules of all namespaces whose `next_at` has come, or that will fire and
        were written by a clock far ahead of the present one, in turns. [SC25] [SC15] [SC20]"""

    def save(self, change: ScheduleChange, *, epoch: Epoch) -> bool:
        """One transaction: write the schedule's row iff its rev is still `expected_rev` (0: there
        is no such row) and the store is still in `epoch`, and with it the new job, unless a job of
        its id exists already. Returns whether it was written. [SC3]"""


class Views(ReadableViews, Protocol):
    """What a server and its gauges read besides, and the rollups that plots are made of."""

    def measure(self, *, queues: int, jobs: int, namespace: Namespace | None = None) -> Measures:
        """How full the store is, or one namespace of it. Measures at most `queues` queues, which
        `core.queue_sample` chooses, and counts at most `jobs` jobs of each, and as many of the
        newest dead letters of each namespace: the cost does not grow with the number of jobs.
        [B27]"""

    def unfolded(self, *, limit: int, catch_up: int = MAX_CATCH_UP) -> UnfoldedPage:
        """The next `limit` events in the order of the tail that were not folded, none of which one
        that comes before it may follow. [E32] If folding has not started and the log has more than
        `catch_up` events, the first of these is about that many before the last one. One snapshot:
        the rollups are as they were after the last fold."""

    def save_fold(self, fold: Fold) -> bool:
        """One transaction: if the log is still folded up to `expected` and no further, write the
        rollups and the progress. Returns whether it did. [OB33]"""


class StoredSettings(ReadableSettings, Protocol):
    """What enqueuing, and a reader of why jobs wait, need of them besides."""

    def kinds(self, namespace: Namespace, only: Sequence[Kind] | None = None) -> list[KindSettings]:
        """The kinds that have settings, or `only` these of them, by name. [F9]"""

    def rates(
        self, namespace: Namespace, queue: QueueName, kind: Kind, rate_key: str | None = None
    ) -> list[RateWait]:
        """The rates that jobs of this queue, kind and rate key are under: the queue's, then the
        kind's. Decides nothing. [RL10]"""


class NameCounts(msgspec.Struct, frozen=True):
    """How many of these a namespace has; removed schedules and silent workers not counted."""

    queues: int
    schedules: int
    live_workers: int
    kinds: int


class StoredTokens(Protocol):
    """The tokens of a server, and what it counts for quotas. [H20]"""

    def create(self, new: NewToken) -> Token:
        """Keep a token; its instants are the store's."""

    def load(self, token_id: TokenId) -> LoadedToken:
        """The token of this id, if there is one, and when it was read."""

    def all(self) -> list[Token]:
        """Every token, oldest first; expired and revoked ones too."""

    def revoke(self, token_id: TokenId) -> tuple[ScheduleName, ...] | None:
        """End a token for good, and pause schedules of its holder by `pauses_after_revocation`.
        Returns the names of the paused ones, or None if there is no such token. [SC24]"""

    def use(self, token_id: TokenId) -> None:
        """Remember that it was used now."""

    def count_leases(self, namespace: Namespace, actor: Actor) -> int:
        """How many leases a principal has, expired ones included until they are swept."""

    def count_names(self, namespace: Namespace) -> NameCounts:
        """How many queues, schedules, live workers and kinds a namespace has. [H77]"""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweeper learns from its tick."""

    before: Instant | None
    """The highest tick before this one. [W2]"""
    now: Instant
    written: Instant | None = None
    """The highest tick from now on, if this call wrote it."""
    has_work: bool = True
    """Whether a job is due or an edge has to be checked. True if the store does not know."""
    next_in_us: Duration | None = Duration(0)
    """How long until a schedule is due; None if none will be. 0 if the store does not know."""


class Upkeep(Protocol):
    """What the threads that sweep and prune need of a store."""

    def tick(self, *, after: Instant | None = None) -> Tick:
        """Record that a sweeper is alive. With `after`, nothing is written unless the highest tick
        is still this one. [W2] [W6]"""

    def last_tick(self) -> tuple[Instant | None, Instant]:
        """The highest tick, and now. Writes nothing. [W6]"""

    def record_outage(self, outage: Outage) -> None:
        """Remember that the store failed its callers for this long. [O5]"""

    def outages(self, *, since: Instant) -> list[Outage]:
        """Outages that ended after `since`."""

    def delete(
        self, what: Deletable, *, older_than_us: Duration = NO_AGE, limit: int
    ) -> PruneResult:
        """Delete rows that retention lets go of, reading `limit` rows at most. [G4]

        - `renewals` of ended attempts, and `artifacts` of ended attempts that did not succeed (of
          any age) [B10]; these, `sessions` that have no lease and received nothing for this long
          [Q7]: from where the last call stopped; others may be skipped. [G1] [E31]
        - `observations`: only their bodies. [G2]
        - `jobs`: terminal jobs that finished longer ago than this, or than their policy allows,
          with everything of theirs. [T26] [G7]
        - `outages` that ended longer ago than this and before every claim of a job that is still
          leased. [O4]
        - `keys`: what is remembered of rate keys that have a whole burst again. [RL13]
        - `workers` that were not seen for this long. [B13]
        - `rollups` that began longer ago than `KEPT_FOR` keeps those of their length. [OB36]
        """


AUDIT_PAGE = 500
"""How many records a store without an index of keys or leases reads at a time."""


class Audit(Protocol):
    """What `verify` reads besides: whole records, and what at most one job may have. That is also
    found in the records, by a store without an index of it: these methods have a body."""

    def records(self, *, page_size: int, job_id: JobId | None = None) -> Iterator[JobHistory]:
        """Every job with its log, by id, or this one, if there is a row or an event; each is read
        in one snapshot. Bounded memory however many there are."""

    def live_keys(self) -> Iterator[tuple[DedupeKey, JobId]]:
        """The dedupe keys of live jobs in order, so that equal neighbours show a duplicate."""
        jobs = [job for job in _jobs_of(self) if job.dedupe_key and not job.status.is_terminal]
        keys = [(dedupe_key_of(job), job.id) for job in jobs]
        return iter(sorted(keys, key=lambda each: (each[0].namespace, each[0].kind, each[0].key)))

    def lease_holders(self) -> Iterator[tuple[str, JobId]]:
        """The ids of live leases in order, so that equal neighbours show a shared lease."""
        return iter(sorted((job.lease_id, job.id) for job in _jobs_of(self) if job.lease_id))

    def rates_in_force(self) -> list[RateInForce]:
        """Every rate that is set for a queue or a kind, in all namespaces."""

    def grants(self, *, since: Instant) -> Iterator[GrantMade]:
        """The grants that are dated after `since`, in the order of their commits. [I30]"""


def _jobs_of(audit: Audit) -> Iterator[Job]:
    found = (record.job for record in audit.records(page_size=AUDIT_PAGE))
    return (job for job in found if job is not None)


class RecordSource(Protocol):
    """What `verify` needs of a store: reading, and nothing that could write."""

    @property
    def parallelism(self) -> int:
        """How many calls can write at a time."""

    def now(self) -> Instant:
        """The store's clock."""

    @property
    def jobs(self) -> StoredJobs: ...

    @property
    def flows(self) -> StoredFlows: ...

    @property
    def events(self) -> StoredEvents: ...

    @property
    def settings(self) -> ReadableSettings: ...

    @property
    def audit(self) -> Audit: ...


class Store(Protocol):
    """Everything that a database has to do. `tenure_conformance` tests every sentence."""

    artifact_quotas: ArtifactQuotas
    """The quotas of `artifacts.stage`; the code that opens the store sets them. [J9]"""

    @property
    def parallelism(self) -> int:
        """How many calls make progress at once: 1 for SQLite, the pool's size for PostgreSQL."""

    @property
    def jobs(self) -> StoredJobs: ...

    @property
    def claims(self) -> Claiming: ...

    @property
    def events(self) -> StoredEvents: ...

    @property
    def flows(self) -> StoredFlows: ...

    @property
    def schedules(self) -> StoredSchedules: ...

    @property
    def settings(self) -> StoredSettings: ...

    @property
    def upkeep(self) -> Upkeep: ...

    @property
    def audit(self) -> Audit: ...

    # --- what a store may leave out: `upkeep.delete` then finds nothing of it --------------------

    @property
    def views(self) -> Views:
        raise NotSupported("views")

    @property
    def workers(self) -> StoredWorkers:
        raise NotSupported("workers")

    @property
    def artifacts(self) -> StoredArtifacts:
        raise NotSupported("artifacts")

    @property
    def tokens(self) -> StoredTokens:
        raise NotSupported("tokens")

    def now(self) -> Instant:
        """The store's clock."""

    def watch(self, on_hint: OnHint) -> Callable[[], None]:
        """Call `on_hint` when jobs change, whichever process changes them, until the function that
        is returned is called."""

    @property
    def hints_arrive(self) -> bool:
        """Whether the hints of other processes are known to reach `watch` now, so that polling may
        be rare. [V5]"""
        return False

    def health(self) -> list[HealthFact]:
        """What is true of the store now, and what to do about it. [B14]"""

    def raise_epoch(self) -> Epoch:
        """Start a new epoch: every lease of an earlier one is lost. [A5]"""

    def close(self) -> None:
        """Let go of connections and threads. Calls after it fail with `Closed`."""
