"""The log: histories, pages, counts, and the tail of all events in one order.

Each look-up goes by an index: a job's events by the key, events of a type by (type, ts), events of
a correlation id by that of their jobs. No index is by time alone: what is asked for by time is
merged from the types that the log has, each of which is in the order of time (docs/adr/0039).

A position of the tail is `NUMBER:JOB:SEQ`. The number is the store's (docs/adr/0031); job and seq
distinguish events of one number. When an event is visible, no other of its number can still be
committed.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from tenure.core.checks import check_integer
from tenure.core.events import MAX_DECISION_EVENTS, Event
from tenure.core.ids import JobId, job_correlated_by
from tenure.core.instants import Duration
from tenure.core.views.event_counts import EventCount, EventCounts, EventSpan, page_end
from tenure.core.views.events import (
    MAX_TAILED,
    EventFilter,
    EventKey,
    EventPage,
    EventPosition,
    TailDelay,
    TailedEvent,
    TailFilter,
    TailPage,
    next_key,
)
from tenure.core.vocabulary import EventType
from tenure.errors import InvalidInput
from tenure.ports import NO_WAIT
from tenure.stores.sql.database import Part, Transaction
from tenure.stores.sql.rows import event_from, value_from
from tenure.stores.sql.statements import Query, Shape

MAX_TYPES = 100
"""How many types of events are merged by time: a bound for types that were written by hand."""

_OLDEST_FIRST = {True: "seq", False: "ts, job_id, seq"}
_NEWEST_FIRST = {True: "seq DESC", False: "ts DESC, job_id DESC, seq DESC"}
"""ORDER BY for the events of one job (True) or of many (False). Within a job ts never falls, so
that the key's order is the order of time."""

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
_OF_CORRELATED_JOBS = (
    "job_id IN (SELECT j.id FROM {t}job AS j"
    " WHERE j.namespace = :namespace AND j.correlation_id = :correlation_id)"
)
_GIVEN_CORRELATION = "(SELECT j.correlation_id FROM {t}job AS j WHERE j.id = job_id)"
_CORRELATED = f"coalesce({_GIVEN_CORRELATION}, CAST(job_id AS text)) = :correlation_id"
"""As others see the job of an event. [OB26]"""
_TIMES = (
    "SELECT ts FROM (SELECT ts FROM {t}job_event WHERE type = :type_%d"
    " AND ts >= :since AND ts < :until ORDER BY ts LIMIT :most) AS arm_%d"
)
"""Each arm has its own order and limit: without, PostgreSQL reads all of every arm and sorts it."""


Place = tuple[int, str, int]
"""The number of an event, its job and its seq."""

_FIRST_JOB = ("00000000-0000-0000-0000-000000000000", 0)
LAST_JOB = ("ffffffff-ffff-ffff-ffff-ffffffffffff", 999_999_999)
_BEGIN: Place = (0, *_FIRST_JOB)
_POSITION = re.compile(r"(\d{1,18}):([0-9a-f-]{36}):(\d{1,9})")

ORDER = "position, job_id, seq"
NEWEST_FIRST = "position DESC, job_id DESC, seq DESC"
AFTER = (
    "position >= :position"
    " AND (position, job_id, seq) > (:position, CAST(:after_job_id AS {uuid}), :seq)"
)


class SqlEvents(Part):
    """`tenure.ports.StoredEvents`."""

    def load(self, ids: Sequence[JobId], *, latest: int | None = None) -> dict[JobId, list[Event]]:
        """The events of these jobs in order of seq, or the part that decisions need. [J8]"""
        if latest is not None:
            return self._read(lambda tx: decision_histories(tx, self._query, ids, latest))
        histories: dict[JobId, list[Event]] = {job_id: [] for job_id in ids}
        for row in self._rows(self._query("load_histories", ids=self._pack(ids))):
            event = event_from(row)
            histories[event.job_id].append(event)
        return histories

    def tail(self, *, after: EventPosition | None, limit: int) -> list[TailedEvent]:
        """The next events in the order of the tail. [E32]"""
        check_integer("limit", limit, low=1, high=MAX_TAILED)
        position, job_id, seq = place_of(after)
        query = self._query("tail_events", position=position, job_id=job_id, seq=seq, limit=limit)
        rows = self._rows(query, listing=True)
        return [_tailed(position, event_from(tuple(row))) for position, *row in rows]

    def follow(self, wanted: TailFilter, *, wait_us: Duration = NO_WAIT) -> TailPage:
        """The next events of one namespace in the order of the tail. [E10]"""
        begin = place_of(wanted.after)
        return self._read(
            partial(self._followed, wanted=wanted, begin=begin), snapshot=True, listing=True
        )

    def delay(self) -> TailDelay | None:
        """The oldest transaction that has written and is open, if committed events wait for its
        end. [E35]"""
        rows = self._rows(self._query("tail_delay"), listing=True)
        if not rows:
            return None
        transaction, pid, name, state, open_us = rows[0]
        return TailDelay(transaction=transaction, pid=pid, name=name, state=state, open_us=open_us)

    def _followed(self, tx: Transaction, wanted: TailFilter, begin: Place) -> TailPage:
        # Most logs have one namespace, and most readers are at the end: more events than are
        # wanted are read only where some of the first are not listed. PostgreSQL reads whole tables
        # if it expects thousands of events.
        most = wanted.limit if wanted.newest is None else wanted.newest
        few = replace(wanted, reads=min(max(1, most), wanted.reads))
        page = self._read_tail(tx, few, begin)
        is_enough = len(page.events) == most or few == wanted
        if is_enough or (page.is_end and wanted.newest is None):
            return page
        return self._read_tail(tx, wanted, begin)

    def _read_tail(self, tx: Transaction, wanted: TailFilter, begin: Place) -> TailPage:
        rows, last = tx.fetch(*self._tail_queries(wanted, begin))
        events = [_tailed(position, event_from(tuple(row))) for position, *row in rows]
        if not last:
            return TailPage(next=position_of(begin), is_end=True)
        number, job_id, seq, read = last[0]
        return _tail_page(
            wanted, begin, events, (number, str(job_id), seq), is_cut=read == wanted.reads
        )

    def _tail_queries(self, wanted: TailFilter, begin: Place) -> tuple[Query, Query]:
        """The events of a page, and the last event that was read for it."""
        position, after_job_id, seq = begin
        given: dict[str, object] = {
            "namespace": wanted.namespace,
            "position": position,
            "after_job_id": after_job_id,
            "seq": seq,
            "reads": wanted.reads,
            "limit": wanted.limit if wanted.newest is None else wanted.newest,
            "queues": self._pack(wanted.queues),
            "kinds": self._pack(wanted.kinds),
            "job_id": wanted.job_id,
            "correlation_id": wanted.correlation_id,
        }
        shape = _tail_shape(wanted, given)
        return (
            self._query("follow_events", shape, **given),
            self._query("last_followed", shape[:2], **given),
        )

    def page(self, wanted: EventFilter) -> EventPage:
        """A page of events, oldest or newest first. [E8]"""
        return self._read(partial(self._page, wanted=wanted), snapshot=True, listing=True)

    def _page(self, tx: Transaction, wanted: EventFilter) -> EventPage:
        types = self._types_to_merge(tx, wanted)
        # Most logs have one namespace: more events than are wanted are read only where some of the
        # first are not listed.
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
        """The types of events that the log has, types of newer versions too."""
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

    def count(self, span: EventSpan) -> EventCounts:
        """The number of events in a span, by type, kind and queue. [B31]"""
        return self._read(partial(self._counted, span=span), snapshot=True, listing=True)

    def _counted(self, tx: Transaction, span: EventSpan) -> EventCounts:
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
                type=value_from(EventType, type_, where="an event's type"),
                events=int(events),
            )
            for queue, kind, type_, events in rows
        )
        return EventCounts(until=until, counts=tuple(counts))

    def _first_uncounted(self, span: EventSpan, types: Sequence[str]) -> Query:
        arms = " UNION ALL ".join(_TIMES % (position, position) for position in range(len(types)))
        named = {f"type_{position}": type_ for position, type_ in enumerate(types)}
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
    """A condition for each type that is asked for or merged; its parameters go to `given`."""
    conditions = []
    asked = [(each.type.value, each.cause) for each in wanted.types]
    for position, (type_, cause) in enumerate(asked or [(each, None) for each in types]):
        given[f"type_{position}"] = type_
        condition = f"type = :type_{position}"
        if cause is not None:
            given[f"cause_{position}"] = cause.value
            condition += f" AND cause = :cause_{position}"
        conditions.append(condition)
    return conditions


def _arms(wanted: EventFilter, of_types: Sequence[str]) -> list[str]:
    """What is read: the events of one job, of a correlation id, or of each type, merged by time."""
    if wanted.job_id is None and wanted.correlation_id is None:
        return list(of_types)
    of_any = " OR ".join(f"({condition})" for condition in of_types)
    typed = f" AND ({of_any})" if of_types else ""
    if wanted.job_id is not None:
        correlated = ""
        if wanted.correlation_id is not None:
            correlated = f" AND {_CORRELATED}"
        return [f"job_id = :job_id{correlated}{typed}"]
    arms = [f"{_OF_CORRELATED_JOBS}{typed}"]
    if job_correlated_by(wanted.correlation_id) is not None:
        arms.append(f"job_id = :correlated_job AND {_GIVEN_CORRELATION} IS NULL{typed}")
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


def _tail_shape(wanted: TailFilter, given: dict[str, object]) -> Shape:
    order = ORDER if wanted.newest is None else NEWEST_FIRST
    conditions = ["TRUE"]
    if wanted.job_id is not None:
        conditions.append("e.job_id = :job_id")
    if wanted.correlation_id is not None:
        conditions.append(_CORRELATED)
    of_types = []
    for at, each in enumerate(wanted.types):
        given[f"type_{at}"] = each.type.value
        condition = f"e.type = :type_{at}"
        if each.cause is not None:
            given[f"cause_{at}"] = each.cause.value
            condition += f" AND e.cause = :cause_{at}"
        of_types.append(f"({condition})")
    if of_types:
        conditions.append(f"({' OR '.join(of_types)})")
    return (
        ("place", AFTER if wanted.newest is None else "TRUE"),
        ("order", order),
        ("wanted", " AND ".join(conditions)),
        ("of_queues", "AND j.queue {among_queues}" if wanted.queues else ""),
        ("of_kinds", "AND j.kind {among_kinds}" if wanted.kinds else ""),
    )


def _tail_page(
    wanted: TailFilter, begin: Place, events: list[TailedEvent], last: Place, *, is_cut: bool
) -> TailPage:
    """The page, and a place after everything that was read for it. The last event that was read may
    be of a job that the reader must not know of: the place names it only where more events than
    a page reads have one number. [E10]"""
    number = last[0]
    if wanted.newest is not None or not is_cut:
        is_full = wanted.newest is None and len(events) == wanted.limit
        end = events[-1].position if is_full else position_of((number, *LAST_JOB))
        return TailPage(events=tuple(events), next=end, is_end=not is_full)
    before_number = (number, *_FIRST_JOB)
    if len(events) == wanted.limit or (events and place_of(events[-1].position)[0] == number):
        reached = events[-1].position
    else:
        reached = position_of(before_number if before_number > begin else last)
    return TailPage(events=tuple(events), next=reached, is_end=False)


def place_of(after: EventPosition | None) -> Place:
    """The place of a position; without one, the place before the first event."""
    if after is None:
        return _BEGIN
    found = _POSITION.fullmatch(after)
    if found is None:
        raise InvalidInput(
            "after", f"{after[:60]!a} is not a position", hint="give one that this store returned"
        )
    return int(found[1]), found[2], int(found[3])


def position_of(place: Place) -> EventPosition:
    """The position of this place."""
    number, job_id, seq = place
    return EventPosition(f"{number}:{job_id}:{seq}")


def _tailed(number: int, event: Event) -> TailedEvent:
    return TailedEvent(position_of((number, event.job_id, event.seq)), event)


def decision_histories(
    tx: Transaction,
    query: Callable[..., Query],
    ids: Sequence[JobId],
    events: int = MAX_DECISION_EVENTS,
) -> dict[JobId, list[Event]]:
    """The part of their events that decisions need. [J8]"""
    name = "load_decision_history"
    found = tx.fetch(*[query(name, job_id=job_id, events=events) for job_id in ids])
    return {
        job_id: [event_from(row) for row in rows] for job_id, rows in zip(ids, found, strict=True)
    }
