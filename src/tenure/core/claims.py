"""Claims: which ready jobs go to which worker session, and what a repeated claim gets.

One outstanding claim per session: the store locks the session, so that claims of one session wait
for each other, and `claim_seq` only rises. [Q1] [Q2] The planner hands out what the store found, in
the order it found it, never past the limit of a queue [Z3] or a rate [RL1]; each grant is still
`decide`'s. Jobs with a key are admitted before a claim reads jobs: see `core.concurrency`.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from tenure.core.commands import Claim
from tenure.core.failover import is_settling
from tenure.core.ids import (
    Actor,
    Epoch,
    Fingerprint,
    Kind,
    Namespace,
    QueueName,
    RequestId,
    WorkerId,
    epoch_of,
)
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import Job
from tenure.core.kind_settings import KindSettings
from tenure.core.lifecycle import decide, grant_of
from tenure.core.outcomes import (
    Applied,
    Change,
    DecisionContext,
    History,
    Moment,
    Session,
    SessionKey,
    Shared,
)
from tenure.core.rates import NOTHING_GRANTED, Meter, Rate, RateWait, kind_meter, queue_meter
from tenure.core.verdicts import Grant
from tenure.core.vocabulary import Cause, EventType

MAX_CLAIM_QUEUES = 64
MAX_CLAIM_KINDS = 1000

RULE_BUSY_US = seconds(0.01)
"""How soon to retry a claim that got nothing because another one had locked the limit or rate."""

MAX_CLAIM_BYTES = 8 << 20
"""The limit of the bodies that are granted in one transaction. Answering a claim takes about three
times the memory of its bodies. [Z10]"""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker session asks for up to `limit` jobs of these queues, of these kinds or any. With
    `start` its grants are running when it receives them: it executes them at once. [N4]"""

    namespace: Namespace
    worker: WorkerId
    actor: Actor
    queues: tuple[QueueName, ...]
    limit: int
    claim_seq: int
    request_id: RequestId
    kinds: tuple[Kind, ...] | None = None
    start: bool = False

    @property
    def scope(self) -> "ClaimScope":
        """The jobs it may receive. Requests of one scope can share a transaction."""
        return ClaimScope(namespace=self.namespace, queues=self.queues, kinds=self.kinds)

    def wants(self, kind: Kind) -> bool:
        """Whether it asks for jobs of this kind."""
        return self.kinds is None or kind in self.kinds

    @property
    def session(self) -> SessionKey:
        """The worker session that asks."""
        return SessionKey(namespace=self.namespace, actor=self.actor, worker=self.worker)


class ClaimScope(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs a claim may receive."""

    namespace: Namespace
    queues: tuple[QueueName, ...]
    kinds: tuple[Kind, ...] | None


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at the moment of a claim; `live` is counted only where there is a limit."""

    name: QueueName
    paused: bool = False
    limit: int | None = None
    live: int = 0
    rate: Rate | None = None
    rate_since: Instant | None = None
    """When the rate was set last. [RL5]"""

    @property
    def room(self) -> int | None:
        """How many more leases it may have; None is unlimited. Its rate is counted apart. [Z3]"""
        if self.paused:
            return 0
        return None if self.limit is None else max(0, self.limit - self.live)

    def with_rate(self, rate: Rate | None, now: Instant) -> "QueueState":
        """The queue with this rate; one that stays the same keeps its instant. [RL5]"""
        if rate == self.rate:
            return self
        since = None if rate is None else now
        return msgspec.structs.replace(self, rate=rate, rate_since=since)


class RateLimited(msgspec.Struct, frozen=True):
    """Why a claim received nothing: rates have no room for jobs that it asked for. The first one
    has room again after `wait_us`. `is_all`: every job that it could receive is rate-limited, so it
    need not retry sooner. [RL9]"""

    wait_us: Duration
    is_all: bool


class GrantRoom:
    """How many grants each queue, each kind and each rate key may still have at one instant. Stores
    ask it how much to read, the planner how much to grant."""

    def __init__(self, view: "ClaimView") -> None:
        self._now = view.now
        self._leases = {name: state.room for name, state in view.queues.items()}
        self._rates = rates_in_force(view.queues, view.kinds)
        self._states = dict(view.rate_states)
        self._kinds = tuple(view.kinds)
        self._key_waits = view.key_waits
        self._busy = view.busy
        # Nearly always: then no job is checked by itself.
        self.is_endless = not (
            self._rates or self._busy or any(left is not None for left in self._leases.values())
        )
        self.changed = self._too_far_ahead()

    def _too_far_ahead(self) -> dict[Meter, Instant]:
        """Rate states more than one burst ahead of now, lowered to that. They are written even if
        nothing is granted: otherwise they would stay a whole burst ahead of now. [RL3]"""
        found = {}
        for meter, tat in self._states.items():
            rate = self._rate(meter)
            if rate is not None and tat > (least := rate.used(tat, self._now)) > self._now:
                found[meter] = least
        self._states |= found
        return found

    def is_busy(self, meter: Meter) -> bool:
        """Whether another claim has locked this limit or rate."""
        return meter in self._busy

    def of_queue(self, name: QueueName) -> int | None:
        """How many more; None is any number."""
        if queue_meter(name) in self._busy:
            return 0
        return _least(self._leases.get(name), self._rate_room(queue_meter(name)))

    def of_kind(self, kind: Kind, rate_key: str | None = None) -> int | None:
        """How many more, of its jobs with this rate key or without one; None is any number."""
        if kind_meter(kind) in self._busy:
            return 0
        return self._rate_room(kind_meter(kind, rate_key))

    def has_room_for(self, job: Job) -> bool:
        """Whether this job may be granted."""
        return _least(self.of_queue(job.queue), self.of_kind(job.kind, job.rate_key)) != 0

    def take(self, job: Job) -> None:
        """This job is granted."""
        left = self._leases.get(job.queue)
        if left is not None:
            self._leases[job.queue] = left - 1
        for meter in (queue_meter(job.queue), kind_meter(job.kind, job.rate_key)):
            rate = self._rate(meter)
            if rate is not None:
                tat = rate.after(self._states.get(meter, NOTHING_GRANTED), self._now)
                self._states[meter] = self.changed[meter] = tat

    def rate_limited(self, request: ClaimRequest) -> RateLimited | None:
        """The rates without room for what this claim asks for."""
        if self.is_endless:
            return None
        kinds = self._kinds if request.kinds is None else request.kinds
        of_queues = [self._rate_wait(queue_meter(name)) for name in request.queues]
        of_kinds = [self._rate_wait(kind_meter(kind)) for kind in kinds]
        of_keys = [wait for kind, wait in self._key_waits.items() if request.wants(kind)]
        waits = [wait for wait in (*of_queues, *of_kinds, *of_keys) if wait]
        if not waits:
            return None
        # For a kind with rate keys, a job with a different key may arrive at any time.
        is_all = all(of_queues) or (request.kinds is not None and all(of_kinds) and not of_keys)
        return RateLimited(min(waits), is_all)

    def _rate(self, meter: Meter) -> Rate | None:
        """The rate that limits a meter. The rate of a kind limits each of its rate keys."""
        return self._rates.get(Meter(meter.scope, meter.name) if meter.key else meter)

    def _rate_wait(self, meter: Meter) -> Duration:
        if meter in self._busy:
            return RULE_BUSY_US
        rate = self._rate(meter)
        if rate is None:
            return Duration(0)
        return rate.wait_us(self._states.get(meter, NOTHING_GRANTED), self._now)

    def _rate_room(self, meter: Meter) -> int | None:
        rate = self._rate(meter)
        if rate is None:
            return None
        return rate.room(self._states.get(meter, NOTHING_GRANTED), self._now)


def rates_in_force(
    queues: Mapping[QueueName, QueueState], kinds: Mapping[Kind, KindSettings]
) -> dict[Meter, Rate]:
    """The rates of these queues and kinds, by what they count."""
    found = {queue_meter(name): each.rate for name, each in queues.items()}
    found |= {kind_meter(kind): each.rate for kind, each in kinds.items()}
    return {meter: rate for meter, rate in found.items() if rate is not None}


def rates_of(
    queue: QueueState | None, settings: KindSettings | None, rate_key: str | None
) -> dict[Meter, Rate]:
    """The rates that jobs of one queue, one kind and one rate key are under."""
    found: dict[Meter, Rate] = {}
    if queue is not None and queue.rate is not None:
        found[queue_meter(queue.name)] = queue.rate
    if settings is not None and settings.rate is not None:
        found[kind_meter(settings.kind, rate_key)] = settings.rate
    return found


def rate_waits(
    rates: Mapping[Meter, Rate], states: Mapping[Meter, Instant | None], now: Instant
) -> list[RateWait]:
    """How long each rate has no room."""
    return [
        RateWait(
            meter=meter, rate=rate, wait_us=rate.wait_us(states.get(meter) or NOTHING_GRANTED, now)
        )
        for meter, rate in rates.items()
    ]


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


class ClaimView(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has locked while a claim is planned."""

    now: Instant
    epoch: Epoch
    sessions: dict[SessionKey, Session]
    queues: dict[QueueName, QueueState]
    candidates: Sequence[Job]
    kinds: dict[Kind, KindSettings] = msgspec.field(default_factory=dict)
    """What is set for kinds that the claim may receive."""
    rate_states: dict[Meter, Instant] = msgspec.field(default_factory=dict)
    """The states of the rates of these queues and kinds; a missing one has its whole burst left."""
    settling_since: Instant | None = None
    """When another server took over, if one did."""
    key_waits: dict[Kind, Duration] = msgspec.field(default_factory=dict)
    """The kinds that have had jobs with rate keys in these queues, and how long until a job that
    waits for such a rate may be granted; 0 if none is known to wait."""
    busy: frozenset[Meter] = frozenset()
    """The queues and kinds whose limits and rates another claim has locked: nothing of them is
    granted."""

    @property
    def room(self) -> GrantRoom:
        """How much may be granted now."""
        return GrantRoom(self)

    @property
    def ready(self) -> Sequence[Job]:
        """The candidates that may be granted now: none soon after a failover. [A10]"""
        return () if is_settling(self.settling_since, self.now) else self.candidates


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one claim: grants, or why there are none. `waited_us` is how long the claim was
    kept open before the store was asked: no lease started before that, whatever its ttl. [WP12]"""

    grants: tuple[Grant, ...] = ()
    cause: Cause | None = None
    is_repeat: bool = False
    waited_us: Duration = Duration(0)
    rate_limited: RateLimited | None = None
    """Whether jobs were rate-limited, if there are no grants."""


class ClaimPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the store must write, and the answers to give once it is written. The store sets
    `restarts`: how often it had to start again, because settings changed under the claim; and
    `skipped_locked`: whether candidates are missing because other transactions had locked them."""

    changes: tuple[Change, ...]
    sessions: tuple[Session, ...]
    answers: tuple[ClaimAnswer, ...]
    rate_states: dict[Meter, Instant] = msgspec.field(default_factory=dict)
    restarts: int = 0
    skipped_locked: bool = False


class ClaimConflict(StrEnum):
    """How a claim conflicted with another claim or with a change of settings."""

    REFUSED = "refused"  # another claim of its session came first
    RESTARTED = "restarted"  # the settings of its queues changed
    LOST = "lost"  # the database aborted its transaction in favour of another one
    LOCKED = "locked"  # it received too few jobs: others had locked jobs that it asked for
    HELD = "held"  # it received nothing: jobs that it asked for are rate-limited


_encode = msgspec.msgpack.Encoder().encode


def first_with_room(jobs: Iterable[Job], room: GrantRoom, *, wanted: int) -> list[Job]:
    """From jobs in claim order, keep those that can be granted together: up to `wanted` of each
    queue, and no more of a queue, kind or rate key than its room. [Z1] [Z3] [RL1]"""
    of_queues: dict[QueueName, int] = {}
    of_kinds: dict[tuple[Kind, str | None], int | None] = {}
    chosen: list[Job] = []
    for job in jobs:
        if job.queue not in of_queues:
            most = room.of_queue(job.queue)
            of_queues[job.queue] = wanted if most is None else min(wanted, most)
        rated = (job.kind, job.rate_key)
        if rated not in of_kinds:
            of_kinds[rated] = room.of_kind(*rated)
        left = of_kinds[rated]
        if of_queues[job.queue] and left != 0:
            of_queues[job.queue] -= 1
            of_kinds[rated] = None if left is None else left - 1
            chosen.append(job)
    return chosen


def claim_fingerprint(request: ClaimRequest) -> Fingerprint:
    """A digest of what the claim asked."""
    return Fingerprint(hashlib.blake2b(_encode(request), digest_size=16).hexdigest())


def answer_without_planning(session: Session | None, request: ClaimRequest) -> ClaimAnswer | None:
    """The answer to a claim that is a repeat or out of order, by its session's last claim; None to
    a new one. [Q1] [Q2]"""
    if session is None:
        return None
    if session.request_id == request.request_id:
        if session.fingerprint == claim_fingerprint(request):
            return ClaimAnswer(is_repeat=True)
        return ClaimAnswer(cause=Cause.IDEMPOTENCY_KEY_REUSE)
    is_new = request.claim_seq > session.claim_seq
    return None if is_new else ClaimAnswer(cause=Cause.STALE_CLAIM)


def plan_claims(
    requests: Sequence[ClaimRequest], view: ClaimView, entropies: Sequence[bytes]
) -> ClaimPlan:
    """Hand the candidates out in order. `entropies` has one entry per candidate."""
    pool = _Pool(view, entropies)
    sessions = dict(view.sessions)
    changed: dict[SessionKey, Session] = {}
    answers: list[ClaimAnswer] = []
    for position, request in enumerate(requests):
        session = sessions.get(request.session)
        answer = answer_without_planning(session, request)
        if answer is None:
            asked = claim_fingerprint(request)
            grants = pool.take(request, asked, claims_left=len(requests) - position)
            limited = None if grants else pool.room.rate_limited(request)
            answer = ClaimAnswer(grants=grants, rate_limited=limited)
            if grants:  # empty answers are not remembered [Q3]
                session = Session(
                    key=request.session,
                    claim_seq=request.claim_seq,
                    request_id=request.request_id,
                    fingerprint=asked,
                    claimed_at=view.now,
                )
                sessions[session.key] = changed[session.key] = session
        elif answer.is_repeat and session is not None and not session.is_repeated:
            session = msgspec.structs.replace(session, is_repeated=True)
            sessions[session.key] = changed[session.key] = session
        answers.append(answer)
    return ClaimPlan(
        changes=tuple(pool.changes),
        sessions=tuple(changed.values()),
        answers=tuple(answers),
        rate_states=pool.room.changed,
    )


def repeated_claim(
    request: ClaimRequest, leased: Iterable[tuple[Job, History]], at: Moment
) -> ClaimAnswer:
    """The grants of an earlier, equal claim whose leases are still valid: never other jobs, never a
    revived lease. [Q1] The grants of a different claim under the same request id are left out: this
    caller may not be allowed to see them. [Q2]"""
    asked = claim_fingerprint(request)
    grants: list[Grant] = []
    is_reused = False
    for job, history in leased:
        lease = job.lease
        if lease is None or not lease.is_live(at.now) or epoch_of(lease.id) != at.epoch:
            continue
        granted_to = {
            event.fingerprint
            for event in history
            if event.type is EventType.CLAIMED
            and event.lease_id == lease.id
            and event.request_id == request.request_id
        }
        if granted_to == {asked}:
            grants.append(grant_of(job, at))
        elif granted_to:
            is_reused = True
    if is_reused and not grants:
        return ClaimAnswer(cause=Cause.IDEMPOTENCY_KEY_REUSE)
    return ClaimAnswer(grants=tuple(grants), is_repeat=True)


class _Pool:
    """The candidates of one plan. Each is granted at most once, and only while its queue, kind and
    key have room."""

    def __init__(self, view: ClaimView, entropies: Sequence[bytes]) -> None:
        # Entropies are left over when nothing may be granted.
        self._candidates = deque(zip(view.ready, entropies, strict=False))
        self._bytes_left = MAX_CLAIM_BYTES
        self.room = view.room
        self._view = view
        self._shared = Shared()
        self.changes: list[Change] = []

    def take(
        self, request: ClaimRequest, asked: Fingerprint, *, claims_left: int
    ) -> tuple[Grant, ...]:
        """The grants of one claim. The bytes that are left are shared with the claims after it; a
        job that does not fit stays for the next claim. [Z10]"""
        grants: list[Grant] = []
        if request.limit <= 0:
            return ()
        share, used = self._bytes_left // claims_left, 0
        while self._candidates and len(grants) < request.limit:
            job, entropy = self._candidates[0]
            size = body_bytes(job)
            if grants and used + size > share:
                break
            self._candidates.popleft()
            grant = self._grant(job, entropy, request, asked)
            if grant is not None:
                grants.append(grant)
                used += size
        self._bytes_left = max(0, self._bytes_left - used)
        return tuple(grants)

    def _grant(
        self, job: Job, entropy: bytes, request: ClaimRequest, asked: Fingerprint
    ) -> Grant | None:
        is_counted = not self.room.is_endless
        if is_counted and not self.room.has_room_for(job):
            return None
        command = Claim(
            job_id=job.id,
            actor=request.actor,
            owner=request.worker,
            request_id=request.request_id,
            fingerprint=asked,
            start=request.start,
        )
        context = DecisionContext(
            now=self._view.now,
            epoch=self._view.epoch,
            entropy=entropy,
            shared=self._shared,
            job=job,
        )
        outcome = decide(command, context)
        if not isinstance(outcome, Applied):
            return None
        assert isinstance(outcome.answer, Grant)
        if is_counted:
            self.room.take(job)
        self.changes.append(outcome.change)
        return outcome.answer


def body_bytes(job: Job) -> int:
    """The size of the bodies that a grant of this job brings to its worker."""
    return len(job.payload) + (0 if job.checkpoint is None else len(job.checkpoint))


def usable_candidates(sizes: Iterable[int], *, claims: int) -> int:
    """How many of the first candidates a plan for `claims` claims can use, by the sizes of their
    bodies: the leading candidates that fit into MAX_CLAIM_BYTES (at least one), and one more for
    each further claim, because every claim may receive one job of any size. [Z10]"""
    total = number = 0
    for size in sizes:
        total += size
        if total > MAX_CLAIM_BYTES:
            break
        number += 1
    return max(1, number) + max(0, claims - 1)


def wanted(requests: Sequence[ClaimRequest]) -> int:
    """How many candidates a plan for `requests` can use at most."""
    return sum(max(0, request.limit) for request in requests)
