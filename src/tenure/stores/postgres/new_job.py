"""One new job that is ready at once: the usual call of a producer.

What is equal for all such jobs, or for all that have a value in the same columns, is prepared once:
the text of the statement and the order of its parameters. Writes nothing that `batches` would not.
"""

from collections.abc import Callable
from itertools import chain
from operator import attrgetter, itemgetter

from tenure.core.ids import Epoch
from tenure.core.job import AT_ONCE
from tenure.core.outcomes import Change
from tenure.core.vocabulary import EventType
from tenure.ports import ClockWindow
from tenure.stores.sql.batches import Group
from tenure.stores.sql.rows import (
    EVENT_COLUMNS,
    EVENT_ENCODERS,
    JOB_ENCODERS,
    event_values,
    touched,
    value_encoder,
)
from tenure.stores.sql.statements import Query, Statement

_ENQUEUED = EventType.ENQUEUED
_JOB_COLUMNS = touched((_ENQUEUED,))
_NAMES = (
    *[f"j_{name}" for name in _JOB_COLUMNS],
    *[f"e_{name}" for name in EVENT_COLUMNS],
    *("ids", "count", "j_expected_rev", "j_not_after", "first_end"),
    *("epoch", "epoch_lock", "earliest", "latest"),
)
"""Every parameter that the statement may have, in the order of `NewJobs._values`."""

_job_values = attrgetter(*_JOB_COLUMNS)
_ENCODERS = tuple(
    (_NAMES.index(f"{prefix}{name}"), value_encoder(encode))
    for prefix, encoders in (("j_", JOB_ENCODERS), ("e_", EVENT_ENCODERS))
    for name, encode in encoders.items()
    if f"{prefix}{name}" in _NAMES and name != "was_started"  # sent as a boolean
)

MAX_PREPARED = 1000
"""Combinations of columns with a value; when there are more, all are prepared again."""


def is_one_new_job(changes: object) -> bool:
    """Whether this is one new job that any worker may claim at once, and nothing else has to be
    written: no key, no flow, no other job."""
    if not isinstance(changes, list) or len(changes) != 1:
        return False
    change = changes[0]
    job = change.job
    return (
        change.expected_rev == 0
        and job.not_before == AT_ONCE
        and job.dedupe_key is None
        and job.concurrency_key is None
        and job.rate_key is None
        and len(change.events) == 1
        and change.events[0].type is _ENQUEUED
        and not (change.spawned or change.observations or change.resolution)
        and not (change.flow or change.redrive)
    )


class NewJobs:
    """The statements that insert one new job, by which of its columns have a value."""

    def __init__(self, statement_of: Callable[[Group], Statement], epoch_lock: int) -> None:
        self._statement_of = statement_of
        self._epoch_lock = epoch_lock
        self._prepared: dict[tuple[bool, ...], tuple[str, itemgetter[object]]] = {}

    def query(self, change: Change, epoch: Epoch, window: ClockWindow) -> Query:
        """The statement that inserts this job."""
        job, end = change.job, change.not_after
        values: list[object] = [
            *_job_values(job),
            *chain.from_iterable(event_values(change.events).values()),
            *(f"{{{job.id}}}", 1, 0, end, end),
            *(epoch, self._epoch_lock, window.earliest, window.latest),
        ]
        for position, encode in _ENCODERS:
            value = values[position]
            if value is not None:
                values[position] = encode(value)
        has_value = tuple([value is not None for value in values])
        found = self._prepared.get(has_value)
        if found is None:
            found = self._prepare(change, has_value)
        text, in_order = found
        return Query(text, in_order(values))

    def _prepare(
        self, change: Change, has_value: tuple[bool, ...]
    ) -> tuple[str, "itemgetter[object]"]:
        statement = self._statement_of(Group((_ENQUEUED,), [change]))
        if len(self._prepared) >= MAX_PREPARED:
            self._prepared.clear()
        made = statement.text, itemgetter(*[_NAMES.index(name) for name in statement.names])
        self._prepared[has_value] = made
        return made
