"""Batches: turns many changes of one shape into columns.

A value that all rows of a batch share is sent once, the others as columns; each dialect has its own
way to send columns. Column names come from the structs, never from a caller.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter

import msgspec

from tenure.core.ids import JobId
from tenure.core.outcomes import Change
from tenure.core.vocabulary import EventType
from tenure.stores.sql.rows import (
    EVENT_COLUMNS,
    EVENT_ENCODERS,
    Encoder,
    Values,
    event_values,
    job_values,
    touched,
)

EventTypes = tuple[EventType, ...]


CHANGES_PER_STATEMENT = 250
"""How many changes of a stream one statement writes while the next ones are decided."""


class ChangeStream:
    """Changes as they are decided, in pieces. It can be read again from the beginning."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self._rest = iter(changes)
        self._taken = [list(islice(self._rest, CHANGES_PER_STATEMENT))]

    @property
    def first(self) -> list[Change]:
        """The first piece."""
        return self._taken[0]

    @property
    def is_long(self) -> bool:
        """Whether there may be more than one piece."""
        return len(self._taken[0]) == CHANGES_PER_STATEMENT

    def pieces(self) -> Iterator[list[Change]]:
        """All pieces, including pieces that were read before."""
        yield from self._taken
        while piece := list(islice(self._rest, CHANGES_PER_STATEMENT)):
            self._taken.append(piece)
            yield piece

    def whole(self) -> list[Change]:
        """All changes at once."""
        if not self.is_long:
            return self._taken[0]
        return [change for piece in self.pieces() for change in piece]


class Group(msgspec.Struct, frozen=True):
    """Changes that one statement can write: equal event types, and all new or none."""

    types: EventTypes
    changes: list[Change]

    @property
    def is_insert(self) -> bool:
        """Whether the jobs are new."""
        return self.changes[0].expected_rev == 0


def groups_of(changes: Iterable[Change]) -> list[Group]:
    """The changes by shape, updates before inserts: a job that ends frees its key first. [D2]"""
    updates: dict[EventTypes, list[Change]] = {}
    inserts: dict[EventTypes, list[Change]] = {}
    for change in changes:
        types = tuple([event.type for event in change.events])
        found = updates if change.expected_rev else inserts
        found.setdefault(types, []).append(change)
    for group in updates.values():
        group.sort(key=_id_of)  # two batches write rows in the same order, so they cannot deadlock
    for group in inserts.values():
        # In the order of their keys, so that two batches do not wait for each other; the sort
        # is stable, so that of two changes with the same key the first one is applied.
        group.sort(key=_key_of)
    return [Group(types, found) for types, found in (*updates.items(), *inserts.items())]


_id_of = attrgetter("job.id")


def _key_of(change: Change) -> str:
    return change.job.dedupe_key or ""


class Columns(msgspec.Struct, frozen=True):
    """The encoded columns of a batch, by name."""

    same: dict[str, object]  # one value for all rows
    own: dict[str, Values]  # one for each


class GroupColumns(msgspec.Struct, frozen=True):
    """The columns of a group. Events come in the order of their jobs; `event_ids` is None if each
    job has one."""

    names: tuple[str, ...]
    ids: list[JobId]
    jobs: Columns
    events: Columns
    event_ids: Sequence[JobId] | None


FIRST_LANE = "CASE WHEN {ck} IS NOT NULL THEN 2 WHEN {rk} IS NOT NULL THEN 3 ELSE 0 END"
"""Where a job waits until its keys admit it; see core/concurrency.py."""
PARKED = (
    ("lane", FIRST_LANE.format(ck="concurrency_key", rk="rate_key")),
    ("admitted_at", "NULL"),
)
"""The store's own columns, which every change assigns that starts or ends the wait of a job."""

LOGGED = tuple(name for name in EVENT_COLUMNS if name != "job_id")


def group_columns(group: Group, job_encoders: Mapping[str, Encoder]) -> GroupColumns:
    """The columns that a group writes, and its events."""
    names = touched(group.types)
    if len(group.changes) == len(group.types) == 1:
        return _columns_of_one(group.changes[0], names, job_encoders)
    jobs = [change.job for change in group.changes]
    turned = zip(*map(job_values(names), jobs), strict=True)
    events = [event for change in group.changes for event in change.events]
    logged = event_values(events)
    event_ids = logged.pop("job_id")
    return GroupColumns(
        names=names,
        ids=[job.id for job in jobs],
        jobs=columns_of(names, turned, job_encoders),
        events=columns_of(tuple(logged), logged.values(), EVENT_ENCODERS),
        event_ids=None if len(events) == len(jobs) else event_ids,
    )


def _columns_of_one(
    change: Change, names: tuple[str, ...], job_encoders: Mapping[str, Encoder]
) -> GroupColumns:
    """One row and its only event: nothing to compare, as a producer's single calls have it."""
    job = change.job
    logged = {name: value for name, [value] in event_values(change.events).items()}
    del logged["job_id"]
    return GroupColumns(
        names=names,
        ids=[job.id],
        jobs=_single(dict(zip(names, job_values(names)(job), strict=True)), job_encoders),
        events=_single(logged, EVENT_ENCODERS),
        event_ids=None,
    )


def _single(row: dict[str, object], encoders: Mapping[str, Encoder]) -> Columns:
    for name, encode in encoders.items():
        value = row.get(name)
        if value is not None:
            row[name] = encode((value,))[0]
    return Columns(same=row, own={})


def columns_of(
    names: Sequence[str], columns: Iterable[Values], encoders: Mapping[str, Encoder]
) -> Columns:
    """Encode columns; one whose values are all equal becomes a single value."""
    found = Columns(same={}, own={})
    for name, values in zip(names, columns, strict=True):
        first, encode = values[0], encoders.get(name)
        if first == values[-1] and values.count(first) == len(values):
            found.same[name] = first if encode is None else encode((first,))[0]
        else:
            found.own[name] = values if encode is None else encode(values)
    return found
