"""What is set for queues and kinds, and the states of rates.

A claim does not read the settings: it compares their revision, which comes with the clock, with the
one that this process has read them at. So a store without settings pays nothing for them. Decides
nothing: `core.rates` states what a state means.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from tenure.core.claims import QueueState, rate_waits, rates_of
from tenure.core.ids import Epoch, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindChange, KindSettings, changes_limits, put_over
from tenure.core.rates import Meter, Rate, RateScope, RateUnit, RateWait, kind_meter, queue_meter
from tenure.ports import NO_LIMIT, Hint, HintedChange
from tenure.stores.sql.claim_dialect import ClaimDialect
from tenure.stores.sql.database import Database, Part, Transaction
from tenure.stores.sql.rows import Row, decode_policy, encode_policy, rate_states_from
from tenure.stores.sql.statements import Query

RATE_COLUMNS = ("rate_grants", "rate_per", "rate_burst", "rate_since")
QUEUE_COLUMNS = ("name", "paused", "concurrency_limit", *RATE_COLUMNS)
KIND_COLUMNS = (
    "kind",
    *RATE_COLUMNS,
    "concurrency_limit",
    "concurrency_since",
    "limits_set",
    "policy",
)

MAX_HINTED_QUEUES = 200
"""After a change of a kind, the workers of this many queues get a hint; others find out by
polling."""

COLUMN_PLACEHOLDERS = {
    "queue_columns": ", ".join(QUEUE_COLUMNS),
    "kind_columns": ", ".join(KIND_COLUMNS),
}


class KnownSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is set for a namespace's kinds and queues, as this process has read it, and at which
    revision. Queues for which nothing is set are missing."""

    epoch: Epoch | None = None
    rev: int = 0
    kinds: Mapping[Kind, KindSettings] = msgspec.field(default_factory=dict)
    queues: Mapping[QueueName, QueueState] = msgspec.field(default_factory=dict)

    def is_current(self, epoch: Epoch, rev: int) -> bool:
        """Whether nothing was set since. After a loss the revisions of a new epoch start anew;
        before the first setting there is nothing to know."""
        return self.rev == rev and (rev == 0 or self.epoch == epoch)


NOTHING_KNOWN = KnownSettings()


class SqlSettings(Part):
    """`tenure.ports.StoredSettings`, and what this process knows of them."""

    def __init__(self, database: Database, dialect: ClaimDialect) -> None:
        super().__init__(database)
        self._database = database
        self._dialect = dialect
        self.admit_again: Callable[[Namespace, Kind], list[Query]] = lambda *_: []
        """Parks the jobs of a kind's keys, and marks these keys dirty."""
        self._known_settings: dict[Namespace, KnownSettings] = {}

    def queues(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[QueueState]:
        """The queues after this name that had jobs or settings, with their live leases. [B43]"""
        page = {"namespace": namespace, "after": after, "limit": limit}
        settings, counts = self._read(
            lambda tx: tx.fetch(
                self._query("load_queues", **page),
                self._query("count_live_by_queue", **page),
                last=True,
            ),
            listing=True,
        )
        live: dict[str, int] = {row[0]: row[1] for row in counts}
        return [queue_state_from(row, live.get(row[0], 0)) for row in settings]

    def kinds(self, namespace: Namespace, only: Sequence[Kind] | None = None) -> list[KindSettings]:
        """Every kind that has settings, or `only` these."""
        if only is None:
            rows = self._rows(self._query("load_kinds", namespace=namespace), listing=True)
        else:
            names = self._pack(sorted(only))
            rows = self._rows(self._query("load_kinds_among", namespace=namespace, names=names))
        return [kind_settings_from(row) for row in rows]

    def rates(
        self, namespace: Namespace, queue: QueueName, kind: Kind, rate_key: str | None = None
    ) -> list[RateWait]:
        """The rates that such jobs are under."""

        def read(tx: Transaction) -> list[RateWait]:
            queues, kinds, [(now, _)] = tx.fetch(
                self._query("load_queue_settings", namespace=namespace, queues=self._pack([queue])),
                self._query("load_kind", namespace=namespace, kind=kind),
                self._query("moment"),
            )
            rates = rates_of(
                queue_state_from(queues[0]) if queues else None,
                kind_settings_from(kinds[0]) if kinds else None,
                rate_key,
            )
            rows = tx.fetch(*self._rate_queries(namespace, rates), last=True)
            states = rate_states_from(row for each in rows for row in each)
            return rate_waits(rates, states, Instant(now))

        return self._read(read)

    def put_queue(
        self,
        namespace: Namespace,
        name: QueueName,
        *,
        paused: bool | None,
        limit: int | None,
        rate: Rate | UnsetType | None = UNSET,
    ) -> QueueState:
        """Change a queue's settings, after all claims that use the old ones have ended."""
        key = {"namespace": namespace, "name": name}
        changes = [self._query("register_queue", **key)]
        if paused is not None:
            changes.append(self._query("set_queue_paused", paused=paused, **key))
        if limit is not None:
            changes.append(self._query("set_queue_limit", concurrency_limit=limit or None, **key))
        reads = [
            self._query("load_queue_settings", namespace=namespace, queues=self._pack([name])),
            self._query("count_live", namespace=namespace, queue=name),
            self._query("moment"),
        ]

        def change(tx: Transaction) -> QueueState:
            tx.fetch(*self._dialect.settings_lock(namespace), *changes)
            [settings], [(live,)], [(now, _)] = tx.fetch(*reads)
            state = queue_state_from(settings, live)
            if rate is not UNSET:
                state = state.with_rate(rate, Instant(now))
                to_set = rate_parameters(state.rate, state.rate_since)
                tx.fetch(self._query("set_queue_rate", **key, **to_set))
            is_ruled = state.limit is not None or state.rate is not None
            tx.fetch(
                self._query("raise_settings_rev"),
                *self._slot_queries(namespace, queue_meter(name), is_ruled),
            )
            return state

        state = self._write(change)
        self._database.notify(
            [Hint(HintedChange.READY, namespace, name)]
        )  # its jobs may be ready now
        return state

    def put_kind(
        self, namespace: Namespace, change: KindChange, *, only_new: bool = False
    ) -> KindSettings:
        """Change a kind's settings, after all claims that use the old ones have ended."""
        key = {"namespace": namespace, "kind": change.kind}

        def put(tx: Transaction) -> KindSettings:
            tx.fetch(*self._dialect.settings_lock(namespace))
            rows, [(now, _)] = tx.fetch(self._query("load_kind", **key), self._query("moment"))
            before = kind_settings_from(rows[0]) if rows else None
            after = put_over(before, change, Instant(now), only_new=only_new)
            if after == before:
                return after
            tx.fetch(
                self._query("delete_kind", **key),
                self._query(
                    "insert_kind",
                    **key,
                    **rate_parameters(after.rate, after.rate_since),
                    concurrency_limit=after.concurrency_limit,
                    concurrency_since=after.concurrency_since,
                    limits_set=after.limits_set,
                    policy=None if after.policy is None else encode_policy(after.policy),
                ),
                *(self._limits_changed(namespace, after) if changes_limits(before, after) else []),
            )
            return after

        kept = self._write(put)
        if change.sets_limits:  # jobs of any queue may be ready now
            queues = self.queues(namespace, limit=MAX_HINTED_QUEUES)
            self._database.notify(
                [Hint(HintedChange.READY, namespace, each.name) for each in queues]
            )
        return kept

    def _limits_changed(self, namespace: Namespace, after: KindSettings) -> list[Query]:
        """What claims have to notice."""
        return [
            self._query("raise_settings_rev"),
            *self._slot_queries(namespace, kind_meter(after.kind), after.rate is not None),
            # Because more or fewer of their jobs may run now. [CK7]
            *self.admit_again(namespace, after.kind),
        ]

    def _slot_queries(self, namespace: Namespace, meter: Meter, is_ruled: bool) -> list[Query]:
        """What claims lock while they count under this rule; none for no rule."""
        slot = {"namespace": namespace, "scope": meter.scope.value, "name": meter.name}
        return [self._query("make_slot", **slot)] if is_ruled else []

    def known(self, namespace: Namespace) -> KnownSettings:
        """What is set, as this process has read it last."""
        return self._known_settings.get(namespace, NOTHING_KNOWN)

    def refresh(self, tx: Transaction, namespace: Namespace, epoch: Epoch, rev: int) -> None:
        """Read the settings, if they have changed since this process read them."""
        if self.known(namespace).is_current(epoch, rev):
            return
        kinds, queues = tx.fetch(
            self._query("load_kinds", namespace=namespace),
            self._query("load_unusual_queues", namespace=namespace),
        )
        self._known_settings[namespace] = KnownSettings(
            epoch=epoch,
            rev=rev,
            kinds={each.kind: each for each in map(kind_settings_from, kinds)},
            queues={each.name: each for each in map(queue_state_from, queues)},
        )

    def _rate_queries(self, namespace: Namespace, rates: Iterable[Meter]) -> list[Query]:
        """The levels of these rates."""
        by_scope: dict[tuple[RateScope, str], list[str]] = {}
        for meter in rates:
            by_scope.setdefault((meter.scope, meter.key), []).append(meter.name)
        return [
            self._query(
                "load_slots",
                namespace=namespace,
                scope=scope.value,
                names=self._pack(names),
                key=key,
            )
            for (scope, key), names in by_scope.items()
        ]


def rate_parameters(rate: Rate | None, since: Instant | None) -> dict[str, object]:
    """The columns of a rate."""
    return {
        "rate_grants": None if rate is None else rate.grants,
        "rate_per": None if rate is None else rate.per.value,
        "rate_burst": None if rate is None else rate.burst,
        "rate_since": since,
    }


def _rate_from(grants: int | None, per: str | None, burst: int | None) -> Rate | None:
    if grants is None or per is None or burst is None:
        return None
    return Rate(grants=grants, per=RateUnit(per), burst=burst)


def kind_settings_from(row: Row) -> KindSettings:
    """A kind's settings, from a row."""
    kind, grants, per, burst, since, limit, limited_since, limits_set, policy = row
    return KindSettings(
        kind=Kind(kind),
        rate=_rate_from(grants, per, burst),
        rate_since=since,
        concurrency_limit=limit,
        concurrency_since=limited_since,
        limits_set=bool(limits_set),
        policy=None if policy is None else decode_policy(policy),
    )


def queue_state_from(row: Row, live: int = 0) -> QueueState:
    """A queue's settings with its live leases, from a row."""
    name, paused, limit, grants, per, burst, since = row
    return QueueState(
        name=QueueName(name),
        paused=bool(paused),
        limit=limit,
        live=live,
        rate=_rate_from(grants, per, burst),
        rate_since=since,
    )
