"""What claims need in PostgreSQL: advisory locks, and statements that take arrays."""

from collections.abc import Mapping, Sequence

from tenure.core.concurrency import Key
from tenure.core.ids import Kind, Namespace
from tenure.core.instants import Instant
from tenure.core.outcomes import Session, SessionKey
from tenure.core.rates import Meter
from tenure.stores.postgres.arrays import integers, texts, truths
from tenure.stores.postgres.database import PostgresDialect
from tenure.stores.sql.claim_dialect import MAX_DIRTY_KEYS, ClaimDialect, DirtyKey, Refresh
from tenure.stores.sql.database import Transaction
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query, Shape


class PostgresClaimDialect(ClaimDialect):
    """Any number of claimers, which lock rows."""

    admits_apart = True
    locked_by_others = 1000

    def __init__(self, database: PostgresDialect) -> None:
        super().__init__(database)
        self._database = database

    def claim_locks(self, namespace: Namespace, sessions: Sequence[SessionKey]) -> list[Query]:
        """Epoch, then sessions, sorted, then settings, so that no deadlock can occur.

        Advisory locks, not row locks: a claim that finds nothing must write nothing.
        """
        key = self._database.key
        own = sorted({key("session", each.namespace, each.actor, each.worker) for each in sessions})
        locks = [(key("epoch"), True), *[(each, False) for each in own]]
        return [self._database.locks_in_order([*locks, (key("settings", namespace), True)])]

    def session_queries(self, sessions: Sequence[Session]) -> list[Query]:
        if not sessions:
            return []
        rows = [
            (
                *(each.key.namespace, each.key.actor, each.key.worker),
                *(each.claim_seq, each.request_id, each.fingerprint),
                *(each.claimed_at, each.is_repeated),
            )
            for each in sessions
        ]
        namespaces, actors, workers, claim_seqs, request_ids, fingerprints, *rest = zip(
            *rows, strict=True
        )
        query = self._query(
            "remember_sessions",
            namespaces=texts(namespaces),
            actors=texts(actors),
            workers=texts(workers),
            claim_seqs=integers(claim_seqs),
            request_ids=texts(request_ids),
            fingerprints=texts(fingerprints),
            claimed_ats=integers(rest[0]),
            are_repeated=truths(rest[1]),
        )
        return [query]

    def pack_places(self, places: Sequence[tuple[Kind, int]]) -> dict[str, object]:
        return {
            "kinds": texts([kind for kind, _ in places]),
            "lanes": integers([lane for _, lane in places]),
        }

    def dirty_key_queries(self, keys: Sequence[DirtyKey]) -> list[Query]:
        query = self._query(
            "note_dirty_keys",
            namespaces=texts([each.namespace for each in keys]),
            kinds=texts([each.key.kind for each in keys]),
            are_rates=truths([each.key.is_rate for each in keys]),
            keys=texts([each.key.key for each in keys]),
            instants=integers([each.at for each in keys]),
            noted_ats=integers([each.noted_at for each in keys]),
        )
        return [query]

    def take_dirty(
        self,
        tx: Transaction,
        namespace: Namespace,
        kinds: Sequence[Kind] | None,
        refresh: Refresh,
    ) -> tuple[Instant, list[Row]]:
        _, rows, [(now, epoch, rev)] = tx.fetch(
            *self.claim_locks(namespace, ()),
            self._query(
                "take_dirty_keys",
                namespace=namespace,
                kinds=None if kinds is None else texts(kinds),
                page=MAX_DIRTY_KEYS,
            ),
            self._query("moment_to_admit"),
        )
        refresh(tx, namespace, epoch, rev)
        return now, rows

    def jobs_of_keys(
        self,
        tx: Transaction,
        shape: Shape,
        namespace: Namespace,
        keys: Mapping[Key, int],
        now: Instant,
        *,
        is_rate: bool,
    ) -> tuple[Instant, list[Row]]:
        query = self._query(
            "jobs_of_keys",
            shape,
            namespace=namespace,
            kinds=texts([key.kind for key in keys]),
            keys=texts([key.key for key in keys]),
            most=integers(list(keys.values())),
            now=now,
        )
        rows, [(read_at, _)] = tx.fetch(query, self._query("moment"))
        return read_at, rows

    def slot_changes(self, namespace: Namespace, states: Mapping[Meter, Instant]) -> list[Query]:
        if not states:
            return []
        query = self._query(
            "set_slots",
            namespace=namespace,
            scopes=texts([meter.scope.value for meter in states]),
            names=texts([meter.name for meter in states]),
            keys=texts([meter.key for meter in states]),
            tats=integers(list(states.values())),
        )
        return [query]

    def settings_lock(self, namespace: Namespace) -> list[Query]:
        return self._database.lock("settings", namespace)
