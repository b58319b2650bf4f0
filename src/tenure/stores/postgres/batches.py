"""Batches for PostgreSQL: one statement, which unnests its columns from array literals."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache

import msgspec
from msgspec.inspect import IntType, StructType, UnionType, type_info

from tenure.core.events import Event
from tenure.core.job import Job
from tenure.stores.postgres.arrays import integers, texts
from tenure.stores.sql.batches import (
    FIRST_LANE,
    LOGGED,
    PARKED,
    Columns,
    Group,
    GroupColumns,
    columns_of,
    group_columns,
)
from tenure.stores.sql.rows import JOB_ENCODERS, Encoder, Values
from tenure.stores.sql.statements import Shape


class Batch(msgspec.Struct, frozen=True):
    """A group as a statement's placeholders and its parameters."""

    shape: Shape
    parameters: dict[str, object]


def batch_of(group: Group) -> Batch:
    """What the statement of a group needs: the placeholders of its shape, and its parameters."""
    changes = group.changes
    found = group_columns(group, _JOB_ENCODERS)
    ends = [change.not_after for change in changes]
    conditions = columns_of(_CONDITIONS, [[each.expected_rev for each in changes], ends], {})
    parameters: dict[str, object] = {
        "ids": texts(found.ids),
        "count": len(changes),
        "first_end": min((end for end in ends if end is not None), default=None),
    }
    # An insert sends only values: more than half of the columns of a new job are NULL.
    absent = _absent(found.jobs) if group.is_insert else frozenset()
    unlogged = _absent(found.events)
    job_arrays = _put(found.jobs, "j_", parameters, absent)
    job_arrays += _put(conditions, "j_", parameters)
    event_arrays = _put(found.events, "e_", parameters, unlogged)
    if found.event_ids is not None:
        parameters["event_ids"] = texts(found.event_ids)
    shape = _shape(
        tuple([name for name in found.names if name not in absent]),
        tuple([name for name in LOGGED if name not in unlogged]),
        job_arrays,
        event_arrays,
        has_limit=ends.count(None) < len(ends),
        source=_source_of_events(group, found),
        is_insert=group.is_insert,
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
_INTEGERS = _integer_fields(Job) | _integer_fields(Event) | {*_CONDITIONS, "size"}
_TYPES = {"was_started": "boolean", "origin_id": "uuid", "flow_id": "uuid"} | dict.fromkeys(
    _INTEGERS, "bigint"
)
_JOB_ENCODERS: Mapping[str, Encoder] = {**JOB_ENCODERS, "was_started": _truths}


def _absent(columns: Columns) -> frozenset[str]:
    """The columns that are NULL in all rows."""
    return frozenset([name for name, value in columns.same.items() if value is None])


def _put(
    columns: Columns,
    prefix: str,
    parameters: dict[str, object],
    absent: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Put each column but the absent ones into `parameters`, as one value or as an array literal.
    Returns the names of the arrays."""
    for name, value in columns.same.items():
        if name not in absent:
            parameters[prefix + name] = value
    for name, values in columns.own.items():
        literal: Callable[[Values], str] = integers if name in _INTEGERS else texts
        parameters[prefix + name] = literal(values)
    return tuple(columns.own)


class EventSource(Enum):
    """Where a statement finds the values of its events."""

    UPDATED_ROWS = auto()  # one event per row: an UPDATE can return its values with the row
    SAME_IDS = auto()  # one event per row, but an INSERT returns only what it stored
    OWN_IDS = auto()  # several events per row


def _source_of_events(group: Group, columns: GroupColumns) -> EventSource:
    if columns.event_ids is not None:
        return EventSource.OWN_IDS
    return EventSource.SAME_IDS if group.is_insert else EventSource.UPDATED_ROWS


# --- Words -------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _shape(
    names: tuple[str, ...],
    logged_names: tuple[str, ...],
    job_arrays: tuple[str, ...],
    event_arrays: tuple[str, ...],
    *,
    has_limit: bool,
    source: "EventSource",
    is_insert: bool,
) -> Shape:
    values = {name: _value(name, "j_", "i", job_arrays) for name in (*names, *_CONDITIONS)}
    logged = {name: _value(name, "e_", "e", event_arrays) for name in logged_names}
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
    assigned = {name: values[name] for name in names}
    if is_insert:
        logged["position"] = "{position}"
        assigned |= {"event_position": "{position}", **_first_lane(names, values)}
    else:
        assigned |= dict(PARKED) if "not_before" in names else {}
        # A transaction may have got its id before the one that wrote the job's last event.
        assigned["event_position"] = "greatest(j.event_position, {position})"
        row = "e" if source is EventSource.UPDATED_ROWS else "written"
        logged["position"] = f"{row}.event_position"
    return (
        ("assignments", ", ".join(f"{name} = {value}" for name, value in assigned.items())),
        ("inserted_columns", ", ".join(("id", *assigned))),
        ("inserted_values", ", ".join(("i.id", *assigned.values()))),
        ("job_input", _input("ids", inputs, "i")),
        *_words_of_keys(values),
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


def _words_of_keys(values: Mapping[str, str]) -> Shape:
    """What a statement needs whose jobs take dedupe keys."""
    if "dedupe_key" not in values:
        return ()
    columns = [values[name] for name in ("namespace", "kind", "dedupe_key")]
    return (("key_values", ", ".join(columns)), ("dedupe_key", columns[-1]))


def _first_lane(names: tuple[str, ...], values: Mapping[str, str]) -> dict[str, str]:
    """Where new jobs with keys wait; the others are in the lane that is the column's default."""
    keys = [values[n] if n in names else "NULL" for n in ("concurrency_key", "rate_key")]
    return {} if keys == ["NULL", "NULL"] else {"lane": FIRST_LANE.format(ck=keys[0], rk=keys[1])}


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
