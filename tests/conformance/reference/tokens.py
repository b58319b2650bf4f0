"""Tokens of the reference store. A mixin of `ReferenceStore`."""

from abc import abstractmethod

from msgspec.structs import replace

from tenure.core.claims import QueueState
from tenure.core.ids import Actor, Namespace, ScheduleName
from tenure.core.instants import after
from tenure.core.kind_settings import KindSettings
from tenure.core.outcomes import Moment
from tenure.core.schedules import Schedule, pauses_after_revocation
from tenure.core.tokens import LoadedToken, NewToken, Token, TokenId
from tenure.core.workers import FIRST_WORKER, SILENT_AFTER, WorkerKey, WorkerSeen
from tenure.ports import NO_LIMIT, NameCounts
from tests.conformance.reference.part import MemoryPart


class MemoryTokens(MemoryPart):
    """The tokens of `tenure.ports.Store` in a dictionary."""

    _schedules: dict[tuple[Namespace, ScheduleName], Schedule]

    def __init__(self) -> None:
        super().__init__()
        self._tokens: dict[TokenId, Token] = {}

    def create_token(self, new: NewToken) -> Token:
        """Keep a token, as of the store's clock."""
        with self._lock:
            self._open()
            now = self._clock()
            lasts = new.expires_in_us
            token = Token(
                id=new.id,
                secret_sha256=new.secret_sha256,
                name=new.name,
                role=new.role,
                namespace=new.namespace,
                queues=new.queues,
                kinds=new.kinds,
                max_leases=new.max_leases,
                max_polls=new.max_polls,
                may_declare=new.may_declare,
                created_at=now,
                expires_at=None if lasts is None else after(now, lasts),
            )
            self._tokens[token.id] = token
            return token

    def load_token(self, token_id: TokenId) -> LoadedToken:
        """The token of this id, if there is one."""
        with self._lock:
            self._open()
            return LoadedToken(self._clock(), self._tokens.get(token_id))

    def list_tokens(self) -> list[Token]:
        """Every token, oldest first."""
        with self._lock:
            self._open()
            return sorted(self._tokens.values(), key=lambda token: (token.created_at, token.id))

    def revoke_token(self, token_id: TokenId) -> tuple[ScheduleName, ...] | None:
        """End a token for good, and pause what its holder scheduled."""
        with self._lock:
            self._open()
            token = self._tokens.get(token_id)
            if token is None:
                return None
            at = Moment(now=self._clock(), epoch=self._epoch, entropy=b"")
            if token.revoked_at is None:
                self._tokens[token_id] = replace(token, revoked_at=at.now)
            known = sorted(self._schedules.values(), key=lambda each: each.name)
            paused = pauses_after_revocation(token, self._tokens.values(), known, at)
            for change in paused:
                self._schedules[token.namespace, change.schedule.name] = change.schedule
            return tuple(change.schedule.name for change in paused)

    def use_token(self, token_id: TokenId) -> None:
        """Remember that it was used now."""
        with self._lock:
            self._open()
            if token_id in self._tokens:
                used = replace(self._tokens[token_id], last_used_at=self._clock())
                self._tokens[token_id] = used

    def count_leases(self, namespace: Namespace, actor: Actor) -> int:
        """How many leases a principal has."""
        with self._lock:
            self._open()
            return sum(
                job.namespace == namespace and job.lease_id is not None and job.principal == actor
                for job in self._jobs.values()
            )

    def count_names(self, namespace: Namespace) -> NameCounts:
        """How many queues, schedules, live workers and kinds a namespace has."""
        with self._lock:
            self._open()
            latest = self._clock() - SILENT_AFTER
            return NameCounts(
                queues=len(self.list_queues(namespace)),
                schedules=len(self.list_schedules(namespace)),
                live_workers=sum(each.seen_at >= latest for each in self.list_workers(namespace)),
                kinds=len(self.list_kinds(namespace)),
            )

    @abstractmethod
    def list_queues(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[QueueState]:
        """See `JobStore`."""

    @abstractmethod
    def list_kinds(self, namespace: Namespace) -> list[KindSettings]:
        """See `JobStore`."""

    @abstractmethod
    def list_schedules(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[Schedule]:
        """See `JobStore`."""

    @abstractmethod
    def list_workers(
        self, namespace: Namespace, *, after: WorkerKey = FIRST_WORKER, limit: int = NO_LIMIT
    ) -> list[WorkerSeen]:
        """See `JobStore`."""
