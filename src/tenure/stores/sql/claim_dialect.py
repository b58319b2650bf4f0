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
"""Dirty keys of a kind on a page: up to N with at = 0, and up to N whose time has come, so that
neither sort delays the other. [CK10]"""

Refresh: TypeAlias = Callable[[Transaction, Namespace, Epoch, int], None]
"""Reads the settings of a namespace, unless they are known at this epoch and revision."""


class DirtyKey(msgspec.Struct, frozen=True, order=True):
    """A key to decide about at time `at`. `noted_at` is when a claim wrote the row, else 0. If that
    is in the future, the clock was set back, and the key is due now. [RL3]"""

    namespace: Namespace
    key: Key
    at: int
    noted_at: int = 0


class ClaimDialect(Part, ABC):
    """The statements of claims that are not the same in every dialect."""

    admits_apart = False
    """Whether admission runs in its own transaction before the claim's: then its locks are released
    at once, and other claims see the admitted jobs immediately."""

    locked_by_others = 0
    """How many extra jobs a merged read fetches, because other claims may have locked the first
    ones. If that is 0, there is only one writer."""

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
        """The statements that mark these keys dirty."""

    @abstractmethod
    def take_dirty(
        self,
        tx: Transaction,
        namespace: Namespace,
        kinds: Sequence[Kind] | None,
        refresh: Refresh,
    ) -> tuple[Instant, list[Row]]:
        """Delete a page of each sort of due dirty keys of these kinds (None: of all). Returns the
        clock and the rows: kind, is_rate, key, at, noted_at. Also refreshes the settings that this
        process knows, and locks them until the commit."""

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
        of each queue, and its admitted jobs: kind, key, how many leases it has or the state of its
        rate, and what decides about a job. A key without jobs has a row without a job. Also the
        clock, read after that: by an earlier reading, a rate granted in between would seem too far
        ahead."""
