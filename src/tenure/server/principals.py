"""Who sends a request, and what it may do.

A principal may do what its token's role, namespace, queues and kinds allow. [H21] [H22] Its checks
raise or return nothing, and do not read the store.

The authenticator finds the principal of an `Authorization` header. [H20] [H25] Tokens are cached
for two seconds after they were read, so that a busy worker costs no reads and a revoked token is
refused soon. The secret is compared by digest, in constant time; a 401 is the same whether the id
exists or not. A made-up token costs a read, so only a few unknown tokens are looked up at a time,
and known ones never wait behind them. [H30]
"""

import asyncio
import hmac
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from tenure.core.ids import DEFAULT_NAMESPACE, Actor, Kind, Namespace, QueueName
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job
from tenure.core.policy import DeadLetterJob, Policy
from tenure.core.tokens import LoadedToken, Presented, Token, TokenId, read_token
from tenure.core.vocabulary import Role
from tenure.core.workers import ListedWorker
from tenure.errors import InvalidInput, TenureError, UnknownJob
from tenure.ports import Store
from tenure.protocol.routes import Limit, Route
from tenure.server.limits import ServerSettings
from tenure.server.problems import out_of_scope, too_many_unknown_tokens, unauthenticated
from tenure.server.threads import Blocking, Requester

ANONYMOUS_NAME = "anonymous"

_Name = TypeVar("_Name", bound=str)


class Principal(msgspec.Struct, frozen=True):
    """The holder of a token; without one, any user of this machine, who may do everything."""

    token: Token | None = None

    @property
    def token_id(self) -> TokenId | None:
        """The id of its token, if it has one."""
        return None if self.token is None else self.token.id

    @property
    def caller(self) -> Requester | None:
        """Whose share of the server its requests use; no one's without a token."""
        return None if self.token is None else Requester(self.token.namespace, self.token.id)

    @property
    def is_limited(self) -> bool:
        """Whether its token is limited to some queues or kinds of its namespace."""
        return bool(self.queues or self.kinds)

    @property
    def rights(self) -> tuple[object, ...]:
        """Everything that the answer to a read depends on: callers with equal rights get equal
        answers."""
        token = self.token
        return () if token is None else (token.role, token.namespace, token.queues, token.kinds)

    @property
    def sees_bodies(self) -> bool:
        """Whether it may see payloads, results, checkpoints and digests of them. [H46]"""
        return self.token is None or self.token.role.sees_bodies

    @property
    def sees_store(self) -> bool:
        """Whether it may see who else uses the database. [E35]"""
        is_operator = self.token is None or self.token.role is Role.OPERATOR
        return is_operator and not self.is_limited

    def check_route(self, route: Route) -> None:
        """Raise unless a token of this role and with these limits may use the route. What the route
        is asked about may still be out of its scope."""
        refusal = self._refusal(route)
        if refusal is not None:
            raise out_of_scope(refusal)
        if not self._may_declare(route):
            raise out_of_scope(
                f"this worker's token may not {route.action}: it was created without --may-declare",
                hint="give the worker a token of `tenure tokens create --may-declare`, or write"
                " what the code declares with `tenure kinds sync` and `tenure schedules sync`",
            )

    def may_use(self, route: Route) -> bool:
        """Whether `check_route` lets it pass."""
        return self._refusal(route) is None and self._may_declare(route)

    def _may_declare(self, route: Route) -> bool:
        """Whether it may use the route as far as that declares something. [H78]"""
        token = self.token
        is_worker = token is not None and token.role is Role.WORKER
        return not (route.declares and is_worker) or (token is not None and token.may_declare)

    def _refusal(self, route: Route) -> str | None:
        if self.token is None:
            return None
        if self.token.role not in route.roles:
            allowed = _and([f"{role.value}s" for role in route.roles])
            its = f"{_a(self.token.role.value)}'s"
            return f"only {allowed} may {route.action}; this token is {its}"
        given = {Limit.QUEUES: self.token.queues, Limit.KINDS: self.token.kinds}
        limits = [limit.value for limit in route.about_all if given[limit]]
        if limits:
            return f"only a token for all {limits[0]} may {route.action}; this one is for some"
        return None

    def actor(self, route: Route) -> Actor:
        """The actor that its commands are recorded under."""
        if self.token is not None:
            return self.token.actor
        return Actor(f"{route.roles[0].value}:{ANONYMOUS_NAME}")

    def namespace(self, believed: Namespace | None) -> Namespace:
        """The token's namespace. Raises if the caller named another one. [H21]"""
        if self.token is None:
            return believed or DEFAULT_NAMESPACE
        if believed is not None and believed != self.token.namespace:
            raise out_of_scope(
                f"this token is for the namespace {self.token.namespace}", field="namespace"
            )
        return self.token.namespace

    def check_bodies(self, *, wanted: bool, field: str = "bodies") -> None:
        """Raise if the caller wants payloads and results but may not see them. [H46]"""
        if wanted and not self.sees_bodies:
            assert self.token is not None
            raise out_of_scope(f"{_a(self.token.role)} sees no payloads or results", field=field)

    def check_queues(self, queues: Sequence[QueueName]) -> None:
        """Raise unless all of these are within its scope."""
        for queue in queues:
            if not self.sees_queue(queue):
                raise out_of_scope(self._not_its_own(f"queue {queue}"), field="queue")

    def check_kinds(self, kinds: Sequence[Kind]) -> None:
        """Raise unless all of these are within its scope."""
        for kind in kinds:
            if not self.sees_kind(kind):
                raise out_of_scope(self._not_its_own(f"kind {kind}"), field="kind")

    def _not_its_own(self, what: str) -> str:
        assert self.token is not None
        return f"the token {self.token.name} is not for the {what}"

    def check_job_ends(self, policy: Policy | None, on_dead_letter: DeadLetterJob | None) -> None:
        """Raise unless it may make the jobs that compensate another, or report its dead letter:
        they appear in their queues by themselves, with the payload of the job that is made now.
        [H36]"""
        undo = None if policy is None else policy.compensation
        for made in (undo, on_dead_letter):
            if made is not None:
                self.check_queues([made.queue])
                self.check_kinds([made.kind])

    def sees_worker(self, worker: ListedWorker) -> bool:
        """Whether a worker may run jobs that are within its scope. [H41]"""
        may_run = not worker.kinds or any(map(self.sees_kind, worker.kinds))
        return may_run and any(map(self.sees_queue, worker.queues))

    def seen_of(self, worker: ListedWorker) -> ListedWorker:
        """A worker with those of its queues and kinds that are within its scope. [H41]"""
        if not self.is_limited:
            return worker
        return msgspec.structs.replace(
            worker,
            queues=tuple(filter(self.sees_queue, worker.queues)),
            kinds=tuple(filter(self.sees_kind, worker.kinds)),
            schedules=None,  # [H80] of which queues and kinds they are, a worker does not report
        )

    def check_worker(self, worker: ListedWorker) -> None:
        """Raise unless it may decide about a worker. The refusal does not name the queues and
        kinds others have."""
        if not self.decides_worker(worker):
            raise out_of_scope(
                f"the worker {worker.worker} takes jobs that this token is not for", field="worker"
            )

    def decides_worker(self, worker: ListedWorker) -> bool:
        """Whether it may decide about a worker: one without kinds runs all."""
        has_kinds = all(map(self.sees_kind, worker.kinds)) and bool(worker.kinds or not self.kinds)
        return has_kinds and all(map(self.sees_queue, worker.queues))

    def claimed_kinds(self, kinds: tuple[Kind, ...] | None) -> tuple[Kind, ...] | None:
        """The kinds a claim is for: those it names, or else the token's."""
        if kinds is not None:
            self.check_kinds(kinds)
            return kinds
        return self.kinds or None

    def listed_queue(self, queue: QueueName | None) -> QueueName | None:
        """The queue of a listing; a token of one queue lists that one."""
        return _narrowed("queue", queue, self.queues, self.check_queues)

    def listed_kind(self, kind: Kind | None) -> Kind | None:
        """The kind of a listing; a token of one kind lists that one."""
        return _narrowed("kind", kind, self.kinds, self.check_kinds)

    @property
    def queues(self) -> tuple[QueueName, ...]:
        """The queues that it is limited to; empty if it is not."""
        return () if self.token is None else self.token.queues

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that it is limited to; empty if it is not."""
        return () if self.token is None else self.token.kinds

    def measured_namespace(self) -> Namespace | None:
        """The namespace whose metrics it sees, None for all. [OB2]"""
        return None if self.token is None else self.token.namespace

    def find(self, job: Job | None, job_id: str) -> Job:
        """The job, if it is within this principal's scope; any other is unknown. [H21] [H41]"""
        if job is None or not self.sees(job):
            raise UnknownJob(job_id)
        return job

    def sees(self, job: Job) -> bool:
        """Whether a job is within its scope."""
        return self.is_here(job) and self.sees_work(job.queue, job.kind)

    def sees_work(self, queue: QueueName, kind: Kind) -> bool:
        """Whether jobs of this kind in this queue are within its scope."""
        return self.sees_queue(queue) and self.sees_kind(kind)

    def is_here(self, job: Job) -> bool:
        """Whether a job is in its namespace. [H21]"""
        return self.token is None or job.namespace == self.token.namespace

    def sees_queue(self, queue: QueueName) -> bool:
        """Whether this queue is within its scope."""
        return not self.queues or queue in self.queues

    def sees_kind(self, kind: Kind) -> bool:
        """Whether this kind is within its scope."""
        return not self.kinds or kind in self.kinds


def _narrowed(
    field: str, chosen: _Name | None, given: tuple[_Name, ...], check: Callable[[list[_Name]], None]
) -> _Name | None:
    if chosen is not None:
        check([chosen])
        return chosen
    if len(given) > 1:
        hint = "this token has several; list them one at a time"
        raise InvalidInput(field, "is missing", hint=hint)
    return given[0] if given else None


def _and(words: Sequence[str]) -> str:
    """These words as a list in a sentence."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _a(noun: str) -> str:
    """A noun with its article."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


# --- From a header to a principal ----------------------------------------------------------------


_log = logging.getLogger("tenure.server")

SCHEME = "bearer "
NO_DIGEST = "0" * 64
LAST_USED_EVERY = seconds(60)


class _CachedToken(msgspec.Struct):
    """A cached token, and when this process read it."""

    loaded: LoadedToken
    at_s: float
    is_use_recorded: bool = False

    def now(self, at_s: float) -> Instant:
        """The store's clock, estimated without asking the store."""
        return Instant(self.loaded.now + seconds(at_s - self.at_s))


class Authenticator:
    """Checks tokens. Only the event loop's thread uses it."""

    def __init__(self, store: Store, settings: ServerSettings, blocking: Blocking) -> None:
        self._store = store
        self._settings = settings
        self._blocking = blocking
        self._cached: OrderedDict[TokenId, _CachedToken] = OrderedDict()
        self._asking: dict[TokenId, asyncio.Task[_CachedToken]] = {}
        self.recording: set[asyncio.Task[None]] = set()
        """Uses of tokens that are being recorded."""
        self._unknown: set[TokenId] = set()
        self._look_ups = asyncio.Semaphore(settings.unknown_tokens_at_once)

    async def principal(self, *headers: str) -> Principal:
        """The principal of the `Authorization` header. Raises a 401 problem. Two of them are
        refused: a proxy in front may have checked the other one. [H73]"""
        if not headers:
            raise unauthenticated("a token is required")
        if len(headers) > 1:
            raise unauthenticated("the request has more than one Authorization header")
        [header] = headers
        is_bearer = header[: len(SCHEME)].lower() == SCHEME
        presented = read_token(header[len(SCHEME) :].strip()) if is_bearer else None
        if presented is None:
            raise unauthenticated("this is not a Tenure token")
        token = await self._valid(presented)
        if token is None:
            raise unauthenticated("this token is not valid")
        return Principal(token)

    async def principal_of(self, token_id: TokenId) -> Principal | None:
        """The principal of a token that was presented before, as a signed session names it; None if
        the token is no longer valid. [DB4]"""
        cached = await self._recent(token_id)
        token = cached.loaded.token
        now = cached.now(asyncio.get_running_loop().time())
        if token is None or not token.is_valid(now):
            return None
        self._record_use(cached)
        return Principal(token)

    async def check_still_valid(self, principal: Principal, *, ask: bool = False) -> None:
        """Raise a 401 problem if the token is no longer valid. For requests that take long, and, if
        the store is to be asked now, for requests with lasting effects. [H79]"""
        token = principal.token
        if token is None:
            return
        if ask:
            await self._ask(token.id)
        if await self._valid(Presented(token.id, token.secret_sha256)) is None:
            raise unauthenticated("this token is no longer valid")

    async def _valid(self, presented: Presented) -> Token | None:
        cached = await self._recent(presented.id)
        token = cached.loaded.token
        if token is None:
            # Takes as long as for a token that exists, so that timing does not reveal ids.
            hmac.compare_digest(NO_DIGEST, presented.digest)
            return None
        if not token.has_secret(presented.digest):
            return None
        now = cached.now(asyncio.get_running_loop().time())
        if not token.is_valid(now):
            return None
        self._record_use(cached)
        return token

    async def _recent(self, token_id: TokenId) -> _CachedToken:
        """The token as it was read within the last two seconds."""
        cached = self._cached.get(token_id)
        now_s = asyncio.get_running_loop().time()
        if cached is None or now_s - cached.at_s > self._settings.recheck_token_s:
            return await self._ask(token_id)
        return cached

    async def _ask(self, token_id: TokenId) -> _CachedToken:
        """Read a token; callers that ask for it meanwhile wait for the same read."""
        task = self._asking.get(token_id)
        if task is None:
            is_known = token_id in self._cached
            if not is_known and len(self._unknown) >= self._settings.max_unknown_tokens:
                raise too_many_unknown_tokens()
            load = self._load if is_known else self._load_unknown
            task = asyncio.create_task(load(token_id))
            self._asking[token_id] = task
            if not is_known:
                self._unknown.add(token_id)
            task.add_done_callback(lambda _: self._loaded(token_id))
        return await asyncio.shield(task)

    def _loaded(self, token_id: TokenId) -> None:
        del self._asking[token_id]
        self._unknown.discard(token_id)

    async def _load_unknown(self, token_id: TokenId) -> _CachedToken:
        async with self._look_ups:
            return await self._load(token_id)

    async def _load(self, token_id: TokenId) -> _CachedToken:
        loaded = await self._blocking(lambda: self._store.tokens.load(token_id))
        cached = _CachedToken(loaded, asyncio.get_running_loop().time())
        if loaded.token is not None:  # made-up ids must not evict real ones
            self._cached[token_id] = cached
            self._cached.move_to_end(token_id)
            if len(self._cached) > self._settings.max_remembered_tokens:
                self._cached.popitem(last=False)
        return cached

    def _record_use(self, cached: _CachedToken) -> None:
        """Record the use of a valid token, once for each time that it was read. [H72]"""
        token = cached.loaded.token
        if token is None or cached.is_use_recorded:
            return
        cached.is_use_recorded = True
        last_at = token.last_used_at
        if last_at is not None and cached.loaded.now - last_at < LAST_USED_EVERY:
            return
        task = asyncio.create_task(self._write_use(token.id))
        self.recording.add(task)
        task.add_done_callback(self.recording.discard)

    async def _write_use(self, token_id: TokenId) -> None:
        try:
            await self._blocking(lambda: self._store.tokens.use(token_id))
        except TenureError as failure:
            _log.warning("could not record the use of token %s: %s", token_id, failure)
