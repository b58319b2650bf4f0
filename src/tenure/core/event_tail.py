"""The tail: all events in one fixed order, and which ones a reader follows. [E32] [E10]

Pure: a store keeps the order and says the position of each event; only it can read a position.
"""

from typing import NewType

import msgspec

from tenure.core.checks import check_correlation_id, check_integer, check_job_id
from tenure.core.event_pages import MAX_EVENTS_READ, MAX_LISTED_EVENTS, MAX_NEWEST, TypeFilter
from tenure.core.events import Event
from tenure.core.ids import JobId
from tenure.core.instants import Duration
from tenure.core.scopes import Scope
from tenure.errors import InvalidInput

EventPosition = NewType("EventPosition", str)
"""Where an event comes in the tail of its store. Only that store can read it."""

MAX_TAILED = 10_000
"""How many events one call of `tail_events` returns at most."""


class TailedEvent(msgspec.Struct, frozen=True):
    """An event with its position in the tail, from which reading can go on later."""

    position: EventPosition
    event: Event


class TailDelay(msgspec.Struct, frozen=True, kw_only=True):
    """The open transaction because of which committed events are not shown yet. [E35]

    `pid` is None for a prepared transaction, whose name is `name`; else that is the application's.
    `state` and `open_us` are None where the role may not see them.
    """

    transaction: int
    pid: int | None
    name: str
    state: str | None
    open_us: Duration | None


class TailFilter(Scope, frozen=True, kw_only=True):
    """Which events of one namespace a reader of the tail follows. [E10]

    `after` is where the reader was; None: before the oldest event. With `newest` the reader begins
    at the end instead, with at most so many of the newest events. `types`: only such events, any if
    empty.
    """

    job_id: JobId | None = None
    types: tuple[TypeFilter, ...] = ()
    correlation_id: str | None = None
    after: EventPosition | None = None
    newest: int | None = None
    limit: int = MAX_LISTED_EVENTS
    reads: int = MAX_EVENTS_READ

    def __post_init__(self) -> None:
        """Refuse names that nothing can have [J6], and two places to begin."""
        super().__post_init__()
        if self.job_id is not None:
            check_job_id("job_id", self.job_id)
        if self.correlation_id is not None:
            check_correlation_id("correlation_id", self.correlation_id)
        check_integer("limit", self.limit, low=1, high=MAX_LISTED_EVENTS)
        check_integer("reads", self.reads, low=1, high=MAX_EVENTS_READ)
        if self.newest is not None:
            check_integer("newest", self.newest, low=0, high=MAX_NEWEST)
            if self.after is not None:
                raise InvalidInput("newest", "is not for a reader that has a position")

    def accepts(self, event: Event) -> bool:
        """Whether an event of a job within the scope is one of them."""
        return (
            self.job_id in (None, event.job_id)
            and (not self.types or any(each.accepts(event) for each in self.types))
            and self.correlation_id in (None, event.correlated_by)
        )


class TailPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events in the order of the tail, and the position from which the reader goes on: there is
    always one. `is_end`: the page was neither full nor cut short, so there were no more events."""

    events: tuple[TailedEvent, ...] = ()
    next: EventPosition
    is_end: bool
