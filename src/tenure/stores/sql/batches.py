"""Batches for PostgreSQL: many changes of one shape as one statement.

Turns rows on their side, keeps what is equal over the batch as a scalar and the rest as array
literals, and writes the words that such a statement lacks. Column names come from the structs,
never from a caller.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from operator import attrgetter

import msgspec
from msgspec.inspect import IntType, StructType, UnionType, type_info

from tenure.core.events import Event
from tenure.core.evolution import BORN
from tenure.core.job import Job
from tenure.core.outcomes import Change
from tenure.core.vocabulary import EventType
from tenure.stores.sql.arrays import integers, texts
from tenure.stores.sql.rows import (
    EVENT_COLUMNS,
    EVENT_ENCODERS,
    JOB_ENCODERS,
    Encoder,
    Values,
    event_values,
    job_values,
    touched,
)
from tenure.stores.sql.statements import Shape

EventTypes = tuple[EventType, ...]


class Group(msgspec.Struct, frozen=True):
    """Changes that one statement can write: equal event types, and all new or none."""

    types: EventTypes
    changes: list[Change]

    @property
    def is_insert(self) -> bool:
        """Whether the jobs are new."""
        return self.changes[0].expected_rev == 0


class Batch(msgspec.Struct, frozen=True):
    """A group as a statement's open words and its parameters."""

    shape: Shape
    parameters: dict[str, object]


def groups_of(changes: Iterable[Change]) -> list[Group]:
    """The changes by shape, updates before inserts: a job that ends frees its key first. [D2]"""
    updates: dict[EventTypes, list[Change]] = {}
    inserts: list[Change] = []
    for change in changes:
        if change.expected_rev == 0:
            inserts.append(change)
        else:
            types = tuple([event.type for event in change.events])
            updates.setdefault(types, []).append(change)
    for found in updates.values():
        found.sort(key=_id_of)  # rows are written in this order, so that batches do not cross
    groups = [Group(types, found) for types, found in updates.items()]
    if inserts:
        # In the order of their keys, so that two batches do not wait for each other; the sort
        # is stable, so that of two equal keys the first offered is the one that sticks.
        inserts.sort(key=lambda change: change.job.dedupe_key or "")
        groups.append(Group((EventType.ENQUEUED,), inserts))
    return groups


_id_of = attrgetter("job.id")


def batch_of(group: Group) -> Batch:
    """What the statement of a group needs: the words of its shape, and its parameters."""
    changes = group.changes
    jobs = [change.job for change in changes]
    names = _INSERTED if group.is_insert else touched(group.types)
    turned = list(zip(*map(job_values(names), jobs), strict=True))
    turned.append(tuple([change.expected_rev for change in changes]))
    turned.append(tuple([change.not_after for change in changes]))
    parameters: dict[str, object] = {
        "ids": texts([job.id for job in jobs]),
        "count": len(jobs),
        "first_end": min((end for end in turned[-1] if end is not None), default=None),
    }
    job_arrays = _spread((*names, *_CONDITIONS), turned, _JOB_ENCODERS, "j_", parameters)
    events = [event for change in changes for event in change.events]
    logged = list(zip(*map(event_values, events), strict=True))
    if len(events) != len(jobs):
        parameters["event_ids"] = texts(logged[_JOB_ID])
    del logged[_JOB_ID]
    event_arrays = _spread(_LOGGED, logged, EVENT_ENCODERS, "e_", parameters)
    shape = _shape(
        names,
        job_arrays,
        event_arrays,
        has_limit=turned[-1].count(None) < len(jobs),
        source=_source_of_events(group, len(events)),
    )
    return Batch(shape, parameters)


# --- Columns -----------------------------------------------------------------------------------


def _integer_fields(struct: type[msgspec.Struct]) -> set[str]:
    described = type_info(struct)
    assert isinstance(described, StructType)
    return {
        field.name
        for field in described.fields
        if isinstance(field.type, IntType)
        or (isinstance(field.type, UnionType) and isinstance(field.type.types[0], IntType))
    }


def _truths(values: Values) -> Values:
    return ["t" if value else "f" for value in values]


_CONDITIONS = ("expected_rev", "not_after")
_INSERTED = BORN[1:]
_LOGGED = tuple(name for name in EVENT_COLUMNS if name != "job_id")
_JOB_ID = EVENT_COLUMNS.index("job_id")
_INTEGERS = _integer_fields(Job) | _integer_fields(Event) | set(_CONDITIONS)
_TYPES = {"was_started": "boolean", "origin_id": "uuid"} | dict.fromkeys(_INTEGERS, "bigint")
_JOB_ENCODERS: Mapping[str, Encoder] = {**JOB_ENCODERS, "was_started": _truths}


def _spread(
    names: Sequence[str],
    columns: Sequence[Values],
    encoders: Mapping[str, Encoder],
    prefix: str,
    parameters: dict[str, object],
) -> tuple[str, ...]:
    """Put each column into `parameters`, equal values as one scalar, others as an array literal;
    the names of the arrays."""
    arrays = []
    for name, values in zip(names, columns, strict=True):
        first, encode = values[0], encoders.get(name)
        if first == values[-1] and values.count(first) == len(values):
            parameters[prefix + name] = first if encode is None else encode((first,))[0]
            continue
        arrays.append(name)
        literal: Callable[[Values], str] = integers if name in _INTEGERS else texts
        parameters[prefix + name] = literal(values if encode is None else encode(values))
    return tuple(arrays)


class EventSource(Enum):
    """Where a statement finds the values of its events."""

    UPDATED_ROWS = auto()  # one event each: they travel with the rows, and are returned by them
    SAME_IDS = auto()  # one event each, but an INSERT returns nothing that it did not store
    OWN_IDS = auto()


def _source_of_events(group: Group, events: int) -> EventSource:
    if events != len(group.changes):
        return EventSource.OWN_IDS
    return EventSource.SAME_IDS if group.is_insert else EventSource.UPDATED_ROWS


# --- Words -------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _shape(
    names: tuple[str, ...],
    job_arrays: tuple[str, ...],
    event_arrays: tuple[str, ...],
    *,
    has_limit: bool,
    source: "EventSource",
) -> Shape:
    values = {name: _value(name, "j_", "i", job_arrays) for name in (*names, *_CONDITIONS)}
    logged = {name: _value(name, "e_", "e", event_arrays) for name in _LOGGED}
    not_after = values["not_after"]
    inputs = [("j_", job_arrays)]
    ids = "event_ids" if source is EventSource.OWN_IDS else "ids"
    event_input = _input(ids, [("e_", event_arrays)], "e")
    if source is EventSource.UPDATED_ROWS:
        inputs.append(("e_", event_arrays))
        returned = "".join([f", i.e_{name}" for name in event_arrays])
        event_source = "written AS e"
    else:
        returned = ""
        event_source = f"{event_input} JOIN written USING (id)"
    return (
        ("assignments", ", ".join(f"{name} = {values[name]}" for name in names)),
        ("inserted_columns", ", ".join(("id", *names))),
        ("inserted_values", ", ".join(["i.id", *[values[name] for name in names]])),
        ("job_input", _input("ids", inputs, "i")),
        ("returned", returned),
        ("expected_rev", values["expected_rev"]),
        (
            "in_time",
            f"({not_after} IS NULL OR judged.now < {not_after})" if has_limit else "TRUE",
        ),
        ("logged_columns", ", ".join(("job_id", *logged))),
        ("logged_values", ", ".join(("e.id", *logged.values()))),
        ("event_input", event_input),
        ("event_source", event_source),
    )


def _value(name: str, prefix: str, alias: str, arrays: tuple[str, ...]) -> str:
    if name in arrays:
        return f"{alias}.{prefix}{name}"
    return f"CAST(:{prefix}{name} AS {_TYPES.get(name, 'text')})"


def _input(ids: str, inputs: Sequence[tuple[str, tuple[str, ...]]], alias: str) -> str:
    """One unnest of all arrays, the ids first; columns are named like their parameters."""
    names = [(prefix + name, name) for prefix, arrays in inputs for name in arrays]
    casts = [f"CAST(:{column} AS {_TYPES.get(name, 'text')}[])" for column, name in names]
    listed = ", ".join([f"CAST(:{ids} AS uuid[])", *casts])
    return f"unnest({listed}) AS {alias}({', '.join(['id', *[column for column, _ in names]])})"
