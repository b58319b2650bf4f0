"""How many events the log has in a span of time: totals that agree with the log by construction.

A store counts a page at a time, so that no question reads more than `MAX_COUNTED_EVENTS` events
however long the span is; `Totals` adds the pages up. [B31]
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

import msgspec

from tenure.core.checks import check_fields
from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.instants import Instant, seconds
from tenure.core.vocabulary import EventType

MAX_COUNTED_EVENTS = 50_000
"""Events that one question counts, unless more than that have the same instant."""

DEFAULT_SPAN = seconds(24 * 3600)

MAX_PAGES = 2000
"""Questions that are asked for one answer: a hundred million events."""


class EventSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are counted: all of one namespace from `since` until before `until`."""

    namespace: Namespace
    since: Instant
    until: Instant
    limit: int = MAX_COUNTED_EVENTS

    def __post_init__(self) -> None:
        """Refuse times that no store can represent. [J6]"""
        check_fields(self)


class EventCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of events of one type, of jobs of one kind in one queue."""

    type: EventType
    kind: Kind
    queue: QueueName
    events: int


class EventCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted. Later events than `until` were not: the next page starts there."""

    until: Instant
    counts: tuple[EventCount, ...]


class Grouping(StrEnum):
    """What totals can be grouped by."""

    TYPE = "type"
    KIND = "kind"
    QUEUE = "queue"


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a span. `until` is where counting stopped: before the end that was asked for if
    the log has more events than are counted for one answer."""

    since: Instant
    until: Instant
    by: tuple[Grouping, ...]
    events: dict[tuple[str, ...], int]
    """The number of events by the values of `by`, in its order."""


def count_all(
    count: Callable[[EventSpan], EventCounts], span: EventSpan, by: Sequence[Grouping]
) -> Totals:
    """The totals of a span, page by page."""
    found: Counter[tuple[str, ...]] = Counter()
    until = span.since
    for page in _pages(count, span):
        for each in page.counts:
            found[tuple(str(getattr(each, group)) for group in by)] += each.events
        until = page.until
    return Totals(since=span.since, until=until, by=tuple(by), events=dict(found))


def _pages(count: Callable[[EventSpan], EventCounts], span: EventSpan) -> Iterator[EventCounts]:
    since = span.since
    for _ in range(MAX_PAGES):
        if since >= span.until:
            return
        page = count(msgspec.structs.replace(span, since=since))
        yield page
        since = page.until


def page_end(span: EventSpan, first_beyond: int | None) -> Instant:
    """Where a page ends: before the first event beyond the limit, if there is one; but every page
    counts at least one instant, or counting would never end."""
    if first_beyond is None:
        return span.until
    return Instant(max(first_beyond, span.since + 1))
