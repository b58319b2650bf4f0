"""The tail of events: all jobs' in one order, whole or within a scope. A mixin of `SqlStore`.

A position is `NUMBER:JOB:SEQ`. The number is the store's (docs/adr/0031); job and seq tell events
of one number apart. When an event is shown, no other of its number can still be committed.
"""

import re
from functools import partial

from msgspec.structs import replace

from tenure.core.checks import check_integer
from tenure.core.event_tail import (
    MAX_TAILED,
    EventPosition,
    TailDelay,
    TailedEvent,
    TailFilter,
    TailPage,
)
from tenure.core.events import Event
from tenure.core.instants import Duration
from tenure.errors import InvalidInput
from tenure.ports import NO_WAIT
from tenure.stores.sql.rows import event_from
from tenure.stores.sql.statements import Query, Shape
from tenure.stores.sql.transactions import Transaction, Transactional

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


class SqlTail(Transactional):
    """The part of `tenure.ports.Store` that reads the tail."""

    def tail_events(self, *, after: EventPosition | None, limit: int) -> list[TailedEvent]:
        """The next events in the order of the tail. [E32]"""
        check_integer("limit", limit, low=1, high=MAX_TAILED)
        position, job_id, seq = place_of(after)
        query = self._query("tail_events", position=position, job_id=job_id, seq=seq, limit=limit)
        rows = self._rows(query, listing=True)
        return [_tailed(position, event_from(tuple(row))) for position, *row in rows]

    def follow_events(self, wanted: TailFilter, *, wait_us: Duration = NO_WAIT) -> TailPage:
        """The next events of one namespace in the order of the tail. [E10]"""
        begin = place_of(wanted.after)
        return self._read(
            partial(self._follow, wanted=wanted, begin=begin), snapshot=True, listing=True
        )

    def tail_delay(self) -> TailDelay | None:
        """The oldest transaction that has written and is open, if committed events wait for its
        end. [E35]"""
        rows = self._rows(self._query("tail_delay"), listing=True)
        if not rows:
            return None
        transaction, pid, name, state, open_us = rows[0]
        return TailDelay(transaction=transaction, pid=pid, name=name, state=state, open_us=open_us)

    def _follow(self, tx: Transaction, wanted: TailFilter, begin: Place) -> TailPage:
        # Most logs have one namespace, and most readers are at the end: more events than are
        # wanted are read only where some of the first were not to be shown. PostgreSQL reads whole
        # tables if it expects thousands of events.
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
        return _page(wanted, begin, events, (number, str(job_id), seq), is_cut=read == wanted.reads)

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
        shape = _shape(wanted, given)
        return (
            self._query("follow_events", shape, **given),
            self._query("last_followed", shape[:2], **given),
        )


def _shape(wanted: TailFilter, given: dict[str, object]) -> Shape:
    order = ORDER if wanted.newest is None else NEWEST_FIRST
    conditions = ["TRUE"]
    if wanted.job_id is not None:
        conditions.append("e.job_id = :job_id")
    if wanted.correlation_id is not None:
        conditions.append("coalesce(e.correlation_id, CAST(e.job_id AS text)) = :correlation_id")
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


def _page(
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
    """What a position says; without one, the place before the first event."""
    if after is None:
        return _BEGIN
    found = _POSITION.fullmatch(after)
    if found is None:
        raise InvalidInput(
            "after", f"{after[:60]!a} is not a position", hint="give one that this store returned"
        )
    return int(found[1]), found[2], int(found[3])


def position_of(place: Place) -> EventPosition:
    """The position that says this place."""
    number, job_id, seq = place
    return EventPosition(f"{number}:{job_id}:{seq}")


def _tailed(number: int, event: Event) -> TailedEvent:
    return TailedEvent(position_of((number, event.job_id, event.seq)), event)
