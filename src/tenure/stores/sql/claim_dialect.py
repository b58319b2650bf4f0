"""What each dialect does in its own way for claims: locks, and statements that take many values."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from tenure.core.concurrency import Key
from tenure.core.ids import Epoch, Kind, Namespace
from tenure.core.instants import Instant
from tenure.core.outcomes import Session, SessionKey
from tenure.core.rates import Meter
from tenure.stores.sql.database import Part, Transaction
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query, Shape

MAX_DIRTY_KEYS = 1000
"""How many marks of a kind are on a page: this many that were due at once, and as many that became
due later, so that neither sort delays the other. [CK10]"""

Refresh: TypeAlias = Callable[[Transaction, Namespace, Epoch, int], None]
"""Reads the settings of a namespace, unless they are known as of this epoch and revision."""


class DirtyKey(msgspec.Struct, frozen=True, order=True):
    """A key about whose jobs must be decided at this time. `noted_at` is 0 unless a claim says so:
    if that is in the future, the clock was set back, and it is due. [RL3]"""

    namespace: Namespace
    key: Key
    at: int
    noted_at: int = 0


class ClaimDialect(Part, ABC):
    """The statements of claims that are not the same in every dialect."""

    admits_apart = False
    """Whether keys are decided about in a transaction of their own, before that of the claim: its
    locks last only for that, and other claims find what was admitted at once."""

    locked_by_others = 0
    """How many jobs that other claims have locked a merged claim skips. If that is 0, there is
    only one writer."""

    @abstractmethod
    def settings_lock(self, namespace: Namespace) -> list[Query]:
        """The lock that every claim waits for while settings change."""

    @abstractmethod
    def claim_locks(self, namespace: Namespace, sessions: Sequence[SessionKey]) -> list[Query]:
        """Locks that keep claims apart from changes of settings, and from other claims of the same
        sessions."""

    @abstractmethod
    def session_queries(self, sessions: Sequence[Session]) -> list[Query]:
        """The statements that record what each session was granted last."""

    @abstractmethod
    def slot_changes(self, namespace: Namespace, states: Mapping[Meter, Instant]) -> list[Query]:
        """The statements that write the states of these rates; none for none."""

    @abstractmethod
    def pack_places(self, places: Sequence[tuple[Kind, int]]) -> dict[str, object]:
        """Kinds and lanes as the parameters of `delayed_levels`."""

    @abstractmethod
    def dirty_key_queries(self, keys: Sequence[DirtyKey]) -> list[Query]:
        """The statements that mark these keys."""

    @abstractmethod
    def take_dirty(
        self,
        tx: Transaction,
        namespace: Namespace,
        kinds: Sequence[Kind] | None,
        refresh: Refresh,
    ) -> tuple[Instant, list[Row]]:
        """The clock, and marks of these kinds, or of all, that were due, a page of each sort: kind,
        is_rate, key, at, noted_at. They are deleted. The settings that this process knows are
        current then, and stay so until the commit."""

    @abstractmethod
    def jobs_of_keys(
        self,
        tx: Transaction,
        shape: Shape,
        namespace: Namespace,
        keys: Mapping[Key, int],
        now: Instant,
        *,
        is_rate: bool,
    ) -> tuple[Instant, Sequence[Row]]:
        """From each key, in one state of the store, its first jobs that are ready at `now`, up to N
        of each queue, and those that are admitted: kind, key, how many leases it has or the state
        of its rate, and what decides about a job. A key without jobs has a row without a job. And
        the clock after that: by an earlier one, a rate that was granted meanwhile would seem too
        far ahead."""
