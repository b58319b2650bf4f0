"""Look-ups in the log: pages of events, and counts of them. A mixin of `SqlStore`.

Each look-up goes by an index: a job's events by the key, those of a type by (type, ts), those of a
correlation id by that. No index is by time alone: what is asked for by time is merged from the
types that the log has, each of which is in the order of time (docs/adr/0039).
"""

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from tenure.core.event_counts import EventCount, EventCounts, EventSpan, page_end
from tenure.core.event_pages import EventFilter, EventKey, EventPage, next_key
from tenure.core.ids import job_correlated_by
from tenure.core.vocabulary import EventType
from tenure.stores.sql.rows import event_from, word_from
from tenure.stores.sql.statements import Query
from tenure.stores.sql.transactions import Transaction, Transactional

MAX_TYPES = 100
"""Of events, that are merged by time: a bound for words that were written by hand."""

_OLDEST_FIRST = {True: "seq", False: "ts, job_id, seq"}
_NEWEST_FIRST = {True: "seq DESC", False: "ts DESC, job_id DESC, seq DESC"}
"""By whether they are one job's: within a job ts never falls, so that the key's order is the order
of time."""

_AFTER_SEQ = {False: "seq > :after_seq", True: "seq < :after_seq"}
_AFTER_KEY = {
    False: "ts >= :after_ts AND (ts, job_id, seq) >"
    " (:after_ts, CAST(:after_job_id AS {uuid}), :after_seq)",
    True: "ts <= :after_ts AND (ts, job_id, seq) <"
    " (:after_ts, CAST(:after_job_id AS {uuid}), :after_seq)",
}
"""By whether the newest come first. An index serves the first condition, which is on ts alone."""

_ARM = (
    "SELECT ts, job_id, seq FROM (SELECT ts, job_id, seq FROM {t}job_event"
    " WHERE %s ORDER BY {order} LIMIT :reads) AS arm_%d"
)
_TIMES = (
    "SELECT ts FROM (SELECT ts FROM {t}job_event WHERE type = :type_%d"
    " AND ts >= :since AND ts < :until ORDER BY ts LIMIT :most) AS arm_%d"
)
"""Each arm has its own order and limit: without, PostgreSQL reads all of every arm and sorts it."""


class SqlEvents(Transactional):
    """The part of `tenure.ports.Store` that finds events."""

    def list_events(self, wanted: EventFilter) -> EventPage:
        """A page of events, oldest or newest first. [E8]"""
        return self._read(partial(self._list_events, wanted=wanted), snapshot=True, listing=True)

    def _list_events(self, tx: Transaction, wanted: EventFilter) -> EventPage:
        types = self._types_to_merge(tx, wanted)
        # Most logs have one namespace: more events than are wanted are read only where some of the
        # first were not to be shown.
        few = replace(wanted, reads=min(wanted.limit, wanted.reads))
        page = self._read_page(tx, few, types)
        if page.next is None or len(page.events) == wanted.limit or few == wanted:
            return page
        return self._read_page(tx, wanted, types)

    def _read_page(self, tx: Transaction, wanted: EventFilter, types: Sequence[str]) -> EventPage:
        rows, last = tx.fetch(*self._events_queries(wanted, types))
        events = [event_from(row) for row in rows]
        last_read = EventKey(*last[0]) if last else None
        return EventPage(events=tuple(events), next=next_key(events, last_read, wanted))

    def _types_to_merge(self, tx: Transaction, wanted: EventFilter) -> list[str]:
        if wanted.types or wanted.job_id is not None or wanted.correlation_id is not None:
            return []
        return self._types(tx)

    def _types(self, tx: Transaction) -> list[str]:
        """The types of events that the log has, words of newer versions too."""
        [rows] = tx.fetch(self._query("event_types", types=MAX_TYPES))
        return [row[0] for row in rows]

    def _events_queries(self, wanted: EventFilter, types: Sequence[str]) -> tuple[Query, Query]:
        """The events of a page, and the key of the last event that may be read for it."""
        given: dict[str, object] = {
            "namespace": wanted.namespace,
            "limit": wanted.limit,
            "reads": wanted.reads,
            "skipped": wanted.reads - 1,
            "queues": self._pack(wanted.queues),
            "kinds": self._pack(wanted.kinds),
            "job_id": wanted.job_id,
            "correlation_id": wanted.correlation_id,
            "correlated_job": job_correlated_by(wanted.correlation_id),
            "since": wanted.since,
            "until": wanted.until,
        }
        if wanted.after is not None:
            after = wanted.after
            given |= {
                "after_ts": after.ts,
                "after_job_id": after.job_id,
                "after_seq": after.seq,
            }
        of_types = _of_types(wanted, types, given)
        both = " AND ".join(_both(wanted))
        arms = [
            _ARM % (f"{arm} AND {both}", position)
            for position, arm in enumerate(_arms(wanted, of_types) or ["FALSE"])
        ]
        order = (_NEWEST_FIRST if wanted.newest_first else _OLDEST_FIRST)[wanted.job_id is not None]
        shape = (
            ("arms", " UNION ALL ".join(arms).replace("{order}", order)),
            ("order", order),
            ("of_queues", "AND j.queue {among_queues}" if wanted.queues else ""),
            ("of_kinds", "AND j.kind {among_kinds}" if wanted.kinds else ""),
        )
        return (
            self._query("list_events", shape, **given),
            self._query("last_event_read", shape[:2], **given),
        )

    def count_events(self, span: EventSpan) -> EventCounts:
        """The number of events in a span, by type, kind and queue. [B31]"""
        return self._read(partial(self._count_events, span=span), snapshot=True, listing=True)

    def _count_events(self, tx: Transaction, span: EventSpan) -> EventCounts:
        types = self._types(tx)
        if not types:
            return EventCounts(until=span.until, counts=())
        [beyond] = tx.fetch(self._first_uncounted(span, types))
        until = page_end(span, beyond[0][0] if beyond else None)
        query = self._query(
            "count_events",
            namespace=span.namespace,
            types=self._pack(types),
            since=span.since,
            until=until,
        )
        [rows] = tx.fetch(query, last=True)
        counts = (
            EventCount(
                queue=queue,
                kind=kind,
                type=word_from(EventType, type_, where="an event's type"),
                events=int(events),
            )
            for queue, kind, type_, events in rows
        )
        return EventCounts(until=until, counts=tuple(counts))

    def _first_uncounted(self, span: EventSpan, types: Sequence[str]) -> Query:
        arms = " UNION ALL ".join(_TIMES % (position, position) for position in range(len(types)))
        named = {f"type_{position}": word for position, word in enumerate(types)}
        return self._query(
            "first_uncounted_event",
            (("arms", arms),),
            since=span.since,
            until=span.until,
            limit=span.limit,
            most=span.limit + 1,
            **named,
        )


def _of_types(wanted: EventFilter, types: Sequence[str], given: dict[str, object]) -> list[str]:
    """A condition for each type that is asked for, or that is merged; its words go to `given`."""
    conditions = []
    asked = [(each.type.value, each.cause) for each in wanted.types]
    for position, (word, cause) in enumerate(asked or [(each, None) for each in types]):
        given[f"type_{position}"] = word
        condition = f"type = :type_{position}"
        if cause is not None:
            given[f"cause_{position}"] = cause.value
            condition += f" AND cause = :cause_{position}"
        conditions.append(condition)
    return conditions


def _arms(wanted: EventFilter, of_types: Sequence[str]) -> list[str]:
    """What is read: of one job, of a correlation id, or of each type, merged by time."""
    if wanted.job_id is None and wanted.correlation_id is None:
        return list(of_types)
    of_any = " OR ".join(f"({condition})" for condition in of_types)
    typed = f" AND ({of_any})" if of_types else ""
    if wanted.job_id is not None:
        correlated = ""
        if wanted.correlation_id is not None:
            correlated = " AND coalesce(correlation_id, CAST(job_id AS text)) = :correlation_id"
        return [f"job_id = :job_id{correlated}{typed}"]
    arms = [f"correlation_id = :correlation_id{typed}"]
    if job_correlated_by(wanted.correlation_id) is not None:
        arms.append(f"job_id = :correlated_job AND correlation_id IS NULL{typed}")
    return arms


def _both(wanted: EventFilter) -> list[str]:
    """What holds for every event that is read: its time, and its place after the last page."""
    conditions = ["TRUE"]
    if wanted.since is not None:
        conditions.append("ts >= :since")
    if wanted.until is not None:
        conditions.append("ts < :until")
    if wanted.after is not None:
        place = _AFTER_KEY if wanted.job_id is None else _AFTER_SEQ
        conditions.append(place[wanted.newest_first])
    return conditions
