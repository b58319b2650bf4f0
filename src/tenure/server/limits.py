"""Limits of a server besides its threads. Only the event loop's thread uses what counts them.

- `ServerSettings`: all of them. The defaults are the documented ones.
- `Quotas`: leases and open claims of one token. [H26] The store counts leases, for all servers that
  share it; each server counts its own claims. A count is reused for a second while it is far from
  the limit, and for one claim only when it is near. So several servers exceed the limit at most by
  what they grant at the same moment.
- `MemoryLimit`: the memory that large requests and responses use together. [H45] The number of
  connections and the size of each body are limited, but all of them at their limits need more
  memory than a machine has. Small messages are never refused: large files must not keep a
  heartbeat out.
- `NamespaceLimits`: queues, schedules, live workers and kinds with settings of one namespace. [H77]
  Two requests that add names at the same moment may both pass. Names are remembered, so that the
  store is asked once for each.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import msgspec

from tenure.clock import Monotonic
from tenure.core.commands import Enqueue
from tenure.core.ids import Actor, Kind, Namespace, QueueName, ScheduleName, WorkerId
from tenure.core.instants import seconds
from tenure.core.tokens import Token, TokenId
from tenure.core.workers import ListedWorker, WorkerKey, WorkerProcess
from tenure.ports import Store
from tenure.protocol.replies import ProblemCode
from tenure.server.problems import RefusedRequest, busy, too_many
from tenure.server.threads import Blocking, Requester, Shares


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and deadlines of one server. [H43] [H62]"""

    max_connections: int = 4096
    max_connections_per_address: int = 3072
    """Keeps one address from using all connections. A proxy in front counts as one address."""
    max_header_bytes: int = 16 << 10
    max_memory_bytes: int = 256 << 20
    """Memory for all large requests and responses together. [H45]"""
    handshake_within_s: float = 5.0
    """How long a TLS handshake may take, from the moment the connection is accepted. [H44]"""
    head_within_s: float = 10.0
    body_within_s: float = 30.0
    send_within_s: float = 20.0
    slowest_bytes_per_s: int = 320 << 10
    """How fast a client has to read an answer once that time is over, on average so far. [H62]"""
    idle_s: int = 75
    unknown_idle_s: int = 10
    """How long a connection may be idle on which no request had a valid token or session. [H75]"""
    shutdown_within_s: int = 10
    poll_every_s: float = 0.25
    """How often waiting claims poll the store. Wake-ups are only hints; polling finds every job."""
    max_idle_claims_per_s: int = 200
    """How often all waiting claims together may poll the store."""
    max_followers: int = 64
    """Readers of the tail that may wait for events at a time; others are answered at once."""
    recheck_token_s: float = 2.0
    """How long a token is cached; a revoked one is refused within twice that. [H25]"""
    max_remembered_tokens: int = 10_000
    unknown_tokens_at_once: int = 2
    """Unknown tokens that are looked up at a time, on the threads that all reads share."""
    max_unknown_tokens: int = 64
    """Unknown tokens that may wait for a look-up; more get a 503. [H30]"""
    blocking_calls: int = 8
    """Threads for reads that wait for the store."""
    listing_calls: int = 4
    """Separate threads for lists, so that these do not delay other reads. [H61]"""
    max_queues: int = 10_000
    max_schedules: int = 1_000
    max_live_workers: int = 2_000
    max_kinds: int = 2_000
    """How many of each a namespace may have; removed schedules, silent workers and kinds without
    settings not counted. [H77]"""


# --- Of one token --------------------------------------------------------------------------------


COUNT_EVERY = seconds(1)
NEAR = 0.5
"""From this part of the limit on, a principal's leases are counted for each claim."""

_PrincipalKey = tuple[Namespace, Actor]


class _Count:
    """An upper bound of one principal's leases: the store's count plus what this server granted
    since."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.counted_at: int | None = None
        self.leases = 0
        self.granted_since = 0
        self.in_flight = 0

    def at_most(self) -> int:
        """The upper bound."""
        return self.leases + self.granted_since + self.in_flight


class Quotas:
    """Counts per token. Only the event loop's thread uses it."""

    def __init__(self, store: Store, blocking: Blocking, monotonic: Monotonic) -> None:
        self._store = store
        self._blocking = blocking
        self._monotonic = monotonic
        self._polls: Counter[TokenId] = Counter()
        self._counts: dict[_PrincipalKey, _Count] = {}

    @contextmanager
    def polling(self, token: Token | None) -> Iterator[None]:
        """Count one open claim. Raises a 429 problem when there are too many."""
        if token is None:
            yield
            return
        if self._polls[token.id] >= token.max_polls:
            raise too_many(
                ProblemCode.TOO_MANY_POLLS,
                f"this token already has {token.max_polls} open claims",
                hint="wait for one to end, or make a token with a higher --max-polls",
            )
        self._polls[token.id] += 1
        try:
            yield
        finally:
            self._polls[token.id] -= 1
            if not self._polls[token.id]:
                del self._polls[token.id]

    async def reserve(self, token: Token | None, leases: int) -> bool:
        """Reserve `leases` more leases. Returns False if they would exceed the token's limit."""
        if token is None:
            return True
        key = (token.namespace, token.actor)
        count = self._counts.setdefault(key, _Count())
        is_near = count.at_most() + leases > token.max_leases * NEAR
        await self._count(key, count, at_most_old=0 if is_near else COUNT_EVERY)
        if count.at_most() + leases > token.max_leases:
            return False
        count.in_flight += leases
        return True

    def settle(self, token: Token | None, reserved: int, granted: int) -> None:
        """Record how many of the reserved leases were granted."""
        if token is not None:
            count = self._counts[token.namespace, token.actor]
            count.in_flight -= reserved
            count.granted_since += granted

    async def _count(self, key: _PrincipalKey, count: _Count, *, at_most_old: int) -> None:
        asked_at = self._monotonic()
        async with count.lock:
            # If another claim counted while this one waited, its count is recent enough.
            if count.counted_at is None or asked_at - count.counted_at >= at_most_old:
                now = self._monotonic()
                before = count.granted_since
                count.leases = await self._blocking(lambda: self._store.tokens.count_leases(*key))
                # The store's count may or may not include what was granted while it counted.
                count.granted_since -= before
                count.counted_at = now


# --- Memory --------------------------------------------------------------------------------------


LARGE_BYTES = 64 << 10


class MemoryLimit:
    """Counts the bytes in use. Only the event loop's thread uses it."""

    def __init__(self, most_bytes: int) -> None:
        self._shares = Shares(most_bytes)

    @property
    def used_bytes(self) -> int:
        """The bytes in use."""
        return self._shares.used

    @contextmanager
    def request(self) -> Iterator["RequestMemory"]:
        """Count for one request; its bytes are free again at the end of the block."""
        memory = RequestMemory(self)
        try:
            yield memory
        finally:
            self.free(memory.caller, memory.in_bytes + memory.read_bytes + memory.out_bytes)

    def free(self, caller: Requester | None, amount_bytes: int) -> None:
        """Stop counting these bytes."""
        self._shares.give_back(caller, amount_bytes)

    def take(self, caller: Requester | None, amount_bytes: int, *, is_large: bool) -> None:
        """Count these bytes. Raises a 503 problem if they are part of something large and there is
        no room for them, or not in the caller's share."""
        if is_large and not self._shares.has_room(caller, amount_bytes):
            raise busy()
        self._shares.take(caller, amount_bytes)


class RequestMemory:
    """Counts the memory of one request."""

    def __init__(self, memory: MemoryLimit) -> None:
        self._memory = memory
        self.caller: Requester | None = None
        self.in_bytes = 0
        self.read_bytes = 0
        self.out_bytes = 0

    def belongs_to(self, caller: Requester | None) -> None:
        """Count the request as this caller's, also what it has used before its sender was known."""
        used_bytes = self.in_bytes + self.read_bytes + self.out_bytes
        self._memory.free(self.caller, used_bytes)
        self._memory.take(caller, used_bytes, is_large=False)
        self.caller = caller

    def receive(self, amount_bytes: int) -> None:
        """Count a piece of the request's body."""
        is_large = self.in_bytes + amount_bytes > LARGE_BYTES
        self._memory.take(self.caller, amount_bytes, is_large=is_large)
        self.in_bytes += amount_bytes

    @contextmanager
    def parsing(self, amount_bytes: int) -> Iterator[None]:
        """Count what a parser makes of the body until the end of the block, in no caller's share:
        one request at a time is parsed, in turn for all. Raises a 503 problem if there is no room
        for it. [H89]"""
        self._memory.take(None, amount_bytes, is_large=amount_bytes > LARGE_BYTES)
        try:
            yield
        finally:
            self._memory.free(None, amount_bytes)

    def read(self, amount_bytes: int) -> None:
        """Count bytes that were read from the store for the response. Raises a 503 problem if there
        is no room for them."""
        is_large = self.read_bytes + amount_bytes > LARGE_BYTES
        self._memory.take(self.caller, amount_bytes, is_large=is_large)
        self.read_bytes += amount_bytes

    def answer(self, amount_bytes: int, *, can_refuse: bool) -> None:
        """Count the response instead of what was read for it. Raises a 503 problem for lack of room
        only if the request can be sent again (`can_refuse`)."""
        self._memory.free(self.caller, self.read_bytes)
        self.read_bytes = 0
        is_large = can_refuse and amount_bytes > LARGE_BYTES
        self._memory.take(self.caller, amount_bytes, is_large=is_large)
        self.out_bytes += amount_bytes


# --- Of one namespace ----------------------------------------------------------------------------


MAX_REMEMBERED = 100_000
"""Names that a server remembers; then it starts anew."""

NAMESAKES_AT_ONCE = 10

_Name = TypeVar("_Name", bound=Hashable)


class _Names(NamedTuple):
    """What a namespace may have a limited number of."""

    counted: str
    """The field of `NameCounts`; with `max_` before it that of the settings."""
    code: ProblemCode
    field: str
    noun: str


_QUEUES = _Names("queues", ProblemCode.TOO_MANY_QUEUES, "queue", "queues")
_SCHEDULES = _Names("schedules", ProblemCode.TOO_MANY_SCHEDULES, "schedule", "schedules")
_KINDS = _Names("kinds", ProblemCode.TOO_MANY_KINDS, "kind", "kinds with settings")
_WORKERS = _Names("live_workers", ProblemCode.TOO_MANY_WORKERS, "worker", "live workers")


class NamespaceLimits:
    """Counts per namespace. Only the event loop's thread uses it."""

    def __init__(self, store: Store, settings: ServerSettings, blocking: Blocking) -> None:
        self._store = store
        self._settings = settings
        self._blocking = blocking
        self._known: set[tuple[object, ...]] = set()

    async def check_jobs(self, namespace: Namespace, jobs: Sequence[Enqueue]) -> None:
        """Raise if these jobs, or jobs that their ends make, need a queue too many."""
        try:
            await self.check_queues(namespace, [name for job in jobs for name in _queues_of(job)])
        except RefusedRequest:
            ids = [job.job_id for job in jobs]
            made = await self._blocking(lambda: self._store.jobs.read(ids, bodies=False))
            new = [job for job in jobs if job.job_id not in made]  # the others are repeated
            await self.check_queues(namespace, [name for job in new for name in _queues_of(job)])

    async def check_queues(self, namespace: Namespace, queues: Iterable[QueueName]) -> None:
        """Raise if one of these queues does not exist and is one too many."""
        settings = self._store.settings
        await self._check(
            _QUEUES, namespace, queues, lambda: [each.name for each in settings.queues(namespace)]
        )

    async def check_new_schedule(self, namespace: Namespace, name: ScheduleName) -> None:
        """Raise if one more schedule is too many."""
        await self._check(_SCHEDULES, namespace, [name], list)
        self._known.discard((_SCHEDULES, namespace, name))  # it may be removed, and made again

    async def check_kind(self, namespace: Namespace, kind: Kind) -> None:
        """Raise if nothing was ever set for this kind and one more is too many."""
        settings = self._store.settings
        await self._check(
            _KINDS, namespace, [kind], lambda: [each.kind for each in settings.kinds(namespace)]
        )

    async def check_worker(self, process: WorkerProcess) -> None:
        """Raise if this worker is not known and one more is too many."""
        namespace, name = process.namespace, (process.worker, process.actor)
        if process.is_ending:
            self._known.discard((_WORKERS, namespace, name))
            return

        def existing() -> list[tuple[WorkerId, Actor]]:
            found = workers_named(self._store, namespace, process.worker)
            return [(each.worker, each.actor) for each in found]

        await self._check(_WORKERS, namespace, [name], existing)

    async def _check(
        self,
        what: _Names,
        namespace: Namespace,
        names: Iterable[_Name],
        existing: Callable[[], Iterable[_Name]],
    ) -> None:
        """Raise if those of these names that do not exist are too many."""
        unknown = {name for name in names if (what, namespace, name) not in self._known}
        if not unknown:
            return
        limit = getattr(self._settings, f"max_{what.counted}")
        counts = await self._blocking(lambda: self._store.tokens.count_names(namespace))
        count = getattr(counts, what.counted)
        if count + len(unknown) > limit:
            new = unknown.difference(await self._blocking(existing))
            if new and count + len(new) > limit:
                raise RefusedRequest(
                    422,
                    what.code,
                    f"this namespace has {limit} {what.noun}, which is the limit",
                    field=what.field,
                    hint="use fewer, or other namespaces",
                )
        if len(self._known) > MAX_REMEMBERED:
            self._known.clear()
        self._known.update((what, namespace, name) for name in unknown)


def workers_named(store: Store, namespace: Namespace, worker: WorkerId) -> list[ListedWorker]:
    """The worker processes of this name. Does not read all of the namespace: a row may be large."""
    found: list[ListedWorker] = []
    after = WorkerKey(worker, "")
    while True:
        rows = store.workers.page(namespace, after=after, limit=NAMESAKES_AT_ONCE)
        found += [row for row in rows if row.worker == worker]
        if len(rows) < NAMESAKES_AT_ONCE or rows[-1].worker != worker:
            return found
        after = rows[-1].key


def _queues_of(job: Enqueue) -> list[QueueName]:
    undo = None if job.policy is None else job.policy.compensation
    ends = (undo, job.on_dead_letter)
    return [job.queue, *(each.queue for each in ends if each is not None)]
