"""What is set for queues and kinds, and where rates stand. A mixin of `SqlStore`.

A claim does not read the settings: it compares their revision, which comes with the clock, with the
one that this process has read them at. So a store without settings pays nothing for them. Decides
nothing: `core.rates` says what a state means.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tenure.core.claims import QueueState, kind_meter, rates_of, standings
from tenure.core.ids import Epoch, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindChange, KindSettings, changes_limits, put_over
from tenure.core.rates import Meter, Rate, RateScope, RateStanding, RateUnit
from tenure.stores.sql.database import Database, Part, Transaction
from tenure.stores.sql.rows import Row, decode_policy, encode_document, rate_states_from
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

COLUMN_WORDS = {"queue_columns": ", ".join(QUEUE_COLUMNS), "kind_columns": ", ".join(KIND_COLUMNS)}


class KnownSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is set for a namespace's kinds and queues, as this process has read it, and at which
    revision. Queues for which nothing is set are missing."""

    epoch: Epoch | None = None
    rev: int = 0
    kinds: Mapping[Kind, KindSettings] = msgspec.field(default_factory=dict)
    queues: Mapping[QueueName, QueueState] = msgspec.field(default_factory=dict)

    def is_current(self, epoch: Epoch, rev: int) -> bool:
        """Whether nothing was set since. After a loss the revisions of a new epoch begin anew;
        before the first setting there is nothing to know."""
        return self.rev == rev and (rev == 0 or self.epoch == epoch)


NOTHING_KNOWN = KnownSettings()


class SqlLimits(Part):
    """The part of `tenure.ports.Store` about settings of kinds and states of rates."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._known_settings: dict[Namespace, KnownSettings] = {}

    @abstractmethod
    def _settings_lock(self, namespace: Namespace) -> list[Query]:
        """The lock that every claim waits for while settings change."""

    @abstractmethod
    def _admit_again(self, namespace: Namespace, kind: Kind) -> list[Query]:
        """Park the jobs of the kind's keys, and mark these keys dirty."""

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
    ) -> list[RateStanding]:
        """The rates that such jobs are under."""

        def read(tx: Transaction) -> list[RateStanding]:
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
            return standings(rates, states, Instant(now))

        return self._read(read)

    def put_kind(
        self, namespace: Namespace, change: KindChange, *, only_new: bool = False
    ) -> KindSettings:
        """Change a kind's settings, after all claims that use the old ones have ended."""
        key = {"namespace": namespace, "kind": change.kind}

        def put(tx: Transaction) -> KindSettings:
            tx.fetch(*self._settings_lock(namespace))
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
                    policy=None if after.policy is None else encode_document(after.policy),
                ),
                *(self._limits_changed(namespace, after) if changes_limits(before, after) else []),
            )
            return after

        return self._write(put)

    def _limits_changed(self, namespace: Namespace, after: KindSettings) -> list[Query]:
        """What claims have to notice."""
        return [
            self._query("raise_settings_rev"),
            *self._slot_queries(namespace, kind_meter(after.kind), after.rate is not None),
            # Because more or fewer of their jobs may run now. [CK7]
            *self._admit_again(namespace, after.kind),
        ]

    def _slot_queries(self, namespace: Namespace, meter: Meter, is_ruled: bool) -> list[Query]:
        """What claims lock while they count under this rule; none for no rule."""
        slot = {"namespace": namespace, "scope": meter.scope.value, "name": meter.name}
        return [self._query("make_slot", **slot)] if is_ruled else []

    def _known(self, namespace: Namespace) -> KnownSettings:
        """What is set, as this process has read it last."""
        return self._known_settings.get(namespace, NOTHING_KNOWN)

    def _refresh(self, tx: Transaction, namespace: Namespace, epoch: Epoch, rev: int) -> None:
        """Read the settings, if they have changed since this process read them."""
        if self._known(namespace).is_current(epoch, rev):
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

    @abstractmethod
    def _slot_changes(self, namespace: Namespace, states: Mapping[Meter, Instant]) -> list[Query]:
        """The statements that write where these rates stand; none for none."""


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
