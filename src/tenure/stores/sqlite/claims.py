"""What claims need in SQLite: no locks, and a statement for each value."""

import json
from collections.abc import Mapping, Sequence

from msgspec.structs import asdict

from tenure.core.concurrency import Key
from tenure.core.ids import Kind, Namespace
from tenure.core.instants import Instant
from tenure.core.outcomes import Session, SessionKey
from tenure.core.rates import Meter
from tenure.stores.sql.claim_dialect import MAX_DIRTY_KEYS, ClaimDialect, DirtyKey, Refresh
from tenure.stores.sql.database import Transaction
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query, Shape


class SqliteClaimDialect(ClaimDialect):
    """One writer at a time."""

    def claim_locks(self, namespace: Namespace, sessions: Sequence[SessionKey]) -> list[Query]:
        return []  # one writer

    def settings_lock(self, namespace: Namespace) -> list[Query]:
        return []

    def pack_places(self, places: Sequence[tuple[Kind, int]]) -> dict[str, object]:
        return {"places": json.dumps(places)}

    def dirty_key_queries(self, keys: Sequence[DirtyKey]) -> list[Query]:
        return [self._query("note_dirty_key", **(asdict(each) | asdict(each.key))) for each in keys]

    def take_dirty(
        self,
        tx: Transaction,
        namespace: Namespace,
        kinds: Sequence[Kind] | None,
        refresh: Refresh,
    ) -> tuple[Instant, list[Row]]:
        if kinds is None:
            [found] = tx.fetch(self._query("dirty_kinds", namespace=namespace))
            kinds = [Kind(kind) for (kind,) in found]
        *taken, [(now, _)] = tx.fetch(
            *[
                self._query("take_dirty_keys", namespace=namespace, kind=kind, page=MAX_DIRTY_KEYS)
                for kind in dict.fromkeys(kinds)
            ],
            self._query("moment"),
        )
        return now, [row for rows in taken for row in rows]

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
        rows: list[Row] = []
        queues: dict[Kind, list[Row]] = {}
        for key, most in keys.items():
            of_kind = {"namespace": namespace, "kind": key.kind}
            if key.kind not in queues:
                [queues[key.kind]] = tx.fetch(
                    self._query("queues_of_kind", is_rate=is_rate, **of_kind)
                )
            of_key = of_kind | {"key": key.key}
            [(uses,)], admitted, *waiting = tx.fetch(
                self._query("used_of_key", shape, **of_key),
                self._query("admitted_of_key", shape, **of_key),
                *[
                    self._query(
                        "jobs_of_key",
                        shape,
                        queue=queue,
                        delayed=delayed,
                        most=most,
                        now=now,
                        **of_key,
                    )
                    for (queue,) in queues[key.kind]
                    for delayed in (0, 1)
                ],
            )
            found = {row[0]: row for rows in (admitted, *waiting) for row in rows}
            rows += [(key.kind, key.key, uses, *row) for row in found.values() or [(None,) * 8]]
        [[(read_at, _)]] = tx.fetch(self._query("moment"))
        return read_at, rows

    def slot_changes(self, namespace: Namespace, states: Mapping[Meter, Instant]) -> list[Query]:
        return [
            self._query(
                "set_slot",
                namespace=namespace,
                scope=meter.scope.value,
                name=meter.name,
                key=meter.key,
                tat=tat,
            )
            for meter, tat in states.items()
        ]

    def session_queries(self, sessions: Sequence[Session]) -> list[Query]:
        return [
            self._query("remember_session", **asdict(each.key), **asdict(each)) for each in sessions
        ]
