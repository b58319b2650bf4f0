"""What is set for kinds, and where rates stand. A mixin of `SqlStore`.

A claim does not read the settings of kinds: it compares their revision, which comes with the clock,
with the one that this process has read them at. So a store without such settings pays nothing for
them. Decides nothing: `core.rates` says what a state means.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tenure.core.claims import QueueState, rates_of, standings
from tenure.core.concurrency import concurrency_limit_of, is_fair
from tenure.core.ids import Epoch, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindChange, KindSettings, put_over
from tenure.core.policy import Policy
from tenure.core.rates import Meter, Rate, RateScope, RateStanding, RateUnit
from tenure.stores.sql.rows import Row, decode_policy, encode_document, rate_states_from
from tenure.stores.sql.statements import Query, Statements
from tenure.stores.sql.transactions import Transaction, Transactional
from tenure.stores.sql.turns import rate_group

RATE_COLUMNS = ("rate_grants", "rate_per", "rate_burst", "rate_since")
QUEUE_COLUMNS = ("name", "paused", "concurrency_limit", *RATE_COLUMNS)
KIND_COLUMNS = (
    "kind",
    *RATE_COLUMNS,
    "concurrency_limit",
    "concurrency_since",
    "fair",
    "limits_set",
    "policy",
)

COLUMN_WORDS = {"queue_columns": ", ".join(QUEUE_COLUMNS), "kind_columns": ", ".join(KIND_COLUMNS)}


class KnownKinds(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a namespace's kinds as this process has read them, and at which revision."""

    epoch: Epoch | None = None
    rev: int = 0
    settings: Mapping[Kind, KindSettings] = msgspec.field(default_factory=dict)

    def is_current(self, epoch: Epoch, rev: int) -> bool:
        """Whether nothing was set since. After a loss the revisions of a new epoch begin anew;
        before the first setting there is nothing to know."""
        return self.rev == rev and (rev == 0 or self.epoch == epoch)


NOTHING_KNOWN = KnownKinds()


class SqlLimits(Transactional):
    """The part of `tenure.ports.Store` about settings of kinds and states of rates."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        self._kinds: dict[Namespace, KnownKinds] = {}

    @abstractmethod
    def _kinds_lock(self) -> list[Query]:
        """The lock that every claim waits for while the settings of kinds change."""

    def kinds(self, namespace: Namespace) -> list[KindSettings]:
        """Every kind that has settings."""
        rows = self._rows(self._query("load_kinds", namespace=namespace), listing=True)
        return [kind_settings_from(row) for row in rows]

    def policies(self, namespace: Namespace, kinds: Sequence[Kind]) -> dict[Kind, Policy]:
        """The policies of these kinds; a kind that no worker declared is missing."""
        names = self._pack(sorted(kinds))
        rows = self._rows(self._query("declared_policies", namespace=namespace, names=names))
        return {Kind(kind): decode_policy(policy) for kind, policy in rows}

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
            tx.fetch(*self._kinds_lock())
            rows, [(now, _)] = tx.fetch(self._query("load_kind", **key), self._query("moment"))
            before = kind_settings_from(rows[0]) if rows else None
            after = put_over(before, change, Instant(now), only_new=only_new)
            if after is before:
                return after
            tx.fetch(
                self._query("delete_kind", **key),
                self._query(
                    "insert_kind",
                    **key,
                    **rate_parameters(after.rate, after.rate_since),
                    concurrency_limit=after.concurrency_limit,
                    concurrency_since=after.concurrency_since,
                    fair=after.fair,
                    limits_set=after.limits_set,
                    policy=None if after.policy is None else encode_document(after.policy),
                ),
                *(self._limits_changed(namespace, after) if change.sets_limits else []),
            )
            return after

        return self._write(put)

    def _limits_changed(self, namespace: Namespace, after: KindSettings) -> list[Query]:
        """What claims have to notice; they do not use a kind's policy."""
        key = {"namespace": namespace, "kind": after.kind}
        return [
            *([] if after.fair else [self._query("forget_served", **key)]),
            self._query("raise_kind_settings_rev"),
            # Their turns are chosen again, because more or fewer may run now. [CK7]
            self._query("note_keys_of_group", namespace=namespace, concurrency_group=after.kind),
            self._query("note_rate_keys_of_kind", key_group=rate_group(after.kind), **key),
        ]

    def _known_kinds(self, namespace: Namespace) -> KnownKinds:
        return self._kinds.get(namespace, NOTHING_KNOWN)

    def _settings_of_kinds(self, namespace: Namespace) -> Mapping[Kind, KindSettings]:
        """What is set for kinds, in a claim that has checked that it is current."""
        return self._known_kinds(namespace).settings

    def _is_fair(self, namespace: Namespace, group: str) -> bool:
        """Whether the keys of this group take turns, in such a claim. [CK8]"""
        return is_fair(self._settings_of_kinds(namespace).get(Kind(group)))

    def _concurrency_limit(self, namespace: Namespace, group: str) -> int:
        """How many jobs of one key of this group may run at a time, in such a claim. [CK2]"""
        return concurrency_limit_of(self._settings_of_kinds(namespace).get(Kind(group)))

    def _refresh_kinds(self, tx: Transaction, namespace: Namespace, epoch: Epoch, rev: int) -> None:
        """Read the settings of kinds, if they have changed since this process read them."""
        if self._known_kinds(namespace).is_current(epoch, rev):
            return
        [rows] = tx.fetch(self._query("load_kinds", namespace=namespace))
        settings = {each.kind: each for each in map(kind_settings_from, rows)}
        self._kinds[namespace] = KnownKinds(epoch=epoch, rev=rev, settings=settings)

    def _rate_queries(self, namespace: Namespace, rates: Iterable[Meter]) -> list[Query]:
        """Where these rates stand."""
        by_scope: dict[tuple[RateScope, str], list[str]] = {}
        for meter in rates:
            by_scope.setdefault((meter.scope, meter.key), []).append(meter.name)
        return [
            self._query(
                "load_rate_states",
                namespace=namespace,
                scope=scope.value,
                names=self._pack(names),
                key=key,
            )
            for (scope, key), names in by_scope.items()
        ]

    @abstractmethod
    def _rate_state_changes(
        self, namespace: Namespace, states: Mapping[Meter, Instant]
    ) -> list[Query]:
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
    kind, grants, per, burst, since, limit, limited_since, fair, limits_set, policy = row
    return KindSettings(
        kind=Kind(kind),
        rate=_rate_from(grants, per, burst),
        rate_since=since,
        concurrency_limit=limit,
        concurrency_since=limited_since,
        fair=bool(fair),
        limits_set=bool(limits_set),
        policy=None if policy is None else decode_policy(policy),
    )


def queue_state_from(row: Row, live: int = 0) -> QueueState:
    """A queue's settings with its live leases, from a row."""
    name, paused, limit, grants, per, burst, since, *_ = row
    return QueueState(
        name=QueueName(name),
        paused=bool(paused),
        limit=limit,
        live=live,
        rate=_rate_from(grants, per, burst),
        rate_since=since,
    )
