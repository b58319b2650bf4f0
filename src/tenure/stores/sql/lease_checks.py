"""What the core needs to judge a lease besides its job's row: the moment and the job's events."""

from collections.abc import Callable, Sequence

from tenure.core.events import MAX_DECISION_EVENTS, Event
from tenure.core.failover import is_settling
from tenure.core.ids import Epoch, JobId
from tenure.core.instants import Instant
from tenure.core.outcomes import Moment
from tenure.stores.sql.rows import Row, event_from
from tenure.stores.sql.statements import Query
from tenure.stores.sql.transactions import Transaction


def moment_from(row: Row) -> Moment:
    """From the row of `moment_to_decide`. Without entropy: no job is made here."""
    now, epoch, settling_since = row
    return Moment(
        now=Instant(now),
        epoch=Epoch(epoch),
        entropy=b"",
        is_settling=is_settling(settling_since, Instant(now)),
    )


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
