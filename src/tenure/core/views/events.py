"""Events of the log for readers: pages of them, followers of the log, a job's timeline. [E4] [E8]

A page is bounded twice: it has at most `limit` events, and a store reads at most `reads` events of
the log for it. So a page may have fewer events than were asked for, or none, and still not be the
last one. Pages go by key, so that nothing is listed twice or left out while the log grows.
"""

import re
from collections.abc import Callable, Sequence
from typing import NewType

import msgspec

from tenure.core.checks import check_integer, check_job_id
from tenure.core.events import COMPENSATED_NAME, NAME_PREFIX, Event
from tenure.core.ids import Actor, JobId
from tenure.core.instants import Duration, Instant
from tenure.core.verdicts import Observation
from tenure.core.views.job_search import Scope
from tenure.core.vocabulary import RENEWALS, EventCause, EventType
from tenure.errors import InvalidInput

MAX_LISTED_EVENTS = 500
MAX_EVENTS_READ = 5000
"""Events of the log, of any namespace, that a store reads for one page."""

MAX_NEWEST = 100
"""How many events before the end of the tail a reader that starts there may get."""

MAX_PAGES = 2000
"""Questions that are asked for one answer: ten million events."""

_KEY = re.compile(r"(-?\d{1,18}):([0-9a-f-]{36}):(\d{1,9})")


_FIRST_OF_AN_INSTANT = (JobId("00000000-0000-0000-0000-000000000000"), 0)
_LAST_OF_AN_INSTANT = (JobId("ffffffff-ffff-ffff-ffff-ffffffffffff"), 999_999_999)


class EventKey(msgspec.Struct, frozen=True, order=True):
    """Where an event comes among all others in the order of time."""

    ts: Instant
    job_id: JobId
    seq: int

    @property
    def text(self) -> str:
        """The key as callers send it back."""
        return f"{self.ts}:{self.job_id}:{self.seq}"


def parse_event_key(text: str) -> EventKey:
    """The key that a page ended with. Raises `InvalidInput`."""
    found = _KEY.fullmatch(text)
    if found is None:
        raise InvalidInput(
            "after", f"{text[:80]!a} is not a place in the log", hint="give a page's next_after"
        )
    check_job_id("after", found[2])
    return EventKey(Instant(int(found[1])), JobId(found[2]), int(found[3]))


def key_of(event: Event) -> EventKey:
    """The key of an event."""
    return EventKey(event.ts, event.job_id, event.seq)


class TypeFilter(msgspec.Struct, frozen=True):
    """Events of one type; with a cause, only events that have it."""

    type: EventType
    cause: EventCause | None = None

    @property
    def word(self) -> str:
        """The word that `parse_type_filter` reads as this filter."""
        return self.type.value if self.cause is None else COMPENSATED_NAME

    def accepts(self, event: Event) -> bool:
        """Whether an event passes it."""
        return event.type is self.type and self.cause in (None, event.cause)


def parse_type_filter(word: str) -> TypeFilter:
    """The filter that a type or a name of events means. [E6] Raises `InvalidInput`."""
    word = word.lower()  # [E30]
    if word in (COMPENSATED_NAME, COMPENSATED_NAME.removeprefix(NAME_PREFIX)):
        return TypeFilter(EventType.SUCCEEDED, EventCause.COMPENSATION)
    try:
        return TypeFilter(EventType.known(word.removeprefix(NAME_PREFIX)))
    except ValueError as wrong:
        raise InvalidInput(
            "type",
            f"{word[:40]!a} is not one of {', '.join(EventType)}",
            hint="each may have job_ in front of it",
        ) from wrong


def _disjoint(types: tuple[TypeFilter, ...]) -> tuple[TypeFilter, ...]:
    """Removes filters whose events another filter also accepts."""
    return tuple(
        each
        for each in dict.fromkeys(types)
        if each.cause is None or TypeFilter(each.type) not in types
    )


class _LogFilter(Scope, frozen=True, kw_only=True):
    """Which events of one namespace a reader wants, of any type if `types` is empty. No two of
    `types` accept the same event: a caller who names one twice, or a name beside its type, means it
    once."""

    job_id: JobId | None = None
    types: tuple[TypeFilter, ...] = ()
    correlation_id: str | None = None
    limit: int = MAX_LISTED_EVENTS
    reads: int = MAX_EVENTS_READ

    def __post_init__(self) -> None:
        """Refuse names that nothing can have. [J6]"""
        super().__post_init__()
        msgspec.structs.force_setattr(self, "types", _disjoint(self.types))
        check_integer("limit", self.limit, low=1, high=MAX_LISTED_EVENTS)
        check_integer("reads", self.reads, low=1, high=MAX_EVENTS_READ)


class EventFilter(_LogFilter, frozen=True, kw_only=True):
    """Events by job and time, by type and time, or by correlation id. [E4]

    `after` is the key that the previous page ended with; of one job's events only its `seq` counts.
    """

    since: Instant | None = None
    until: Instant | None = None
    newest_first: bool = False
    after: EventKey | None = None

    def __post_init__(self) -> None:
        """Refuse a span of time that is empty, too."""
        super().__post_init__()
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InvalidInput("since", "is not before until")


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events in the order that was asked for. `next` is the `after` of the next page; None: there
    are no more."""

    events: tuple[Event, ...] = ()
    next: EventKey | None = None


def next_key(
    events: list[Event], last_read: EventKey | None, wanted: EventFilter
) -> EventKey | None:
    """Where the next page starts: after the last event of a full page, or else at the instant of
    the last event that was read for it, if reading stopped at the limit. That event may be of a job
    that the reader must not know of [E9]: the key names it only where a whole page has one instant
    and could not be left behind otherwise."""
    if len(events) == wanted.limit or last_read is None or wanted.job_id is not None:
        return key_of(events[-1]) if len(events) == wanted.limit else last_read
    if events and events[-1].ts == last_read.ts:
        return key_of(events[-1])
    job_id, seq = _LAST_OF_AN_INSTANT if wanted.newest_first else _FIRST_OF_AN_INSTANT
    instant = EventKey(last_read.ts, job_id, seq)
    if wanted.after is None:
        return instant
    is_further = instant < wanted.after if wanted.newest_first else instant > wanted.after
    return instant if is_further else last_read


def full_page(list_events: Callable[[EventFilter], EventPage], wanted: EventFilter) -> EventPage:
    """A page with `wanted.limit` events, if the log has them."""
    found: list[Event] = []
    rest: EventKey | None = wanted.after
    for _ in range(MAX_PAGES):
        limit = wanted.limit - len(found)
        page = list_events(msgspec.structs.replace(wanted, after=rest, limit=limit))
        found += page.events
        rest = page.next
        if rest is None or len(found) == wanted.limit:
            break
    return EventPage(events=tuple(found), next=rest)


# --- A job's timeline ----------------------------------------------------------------------------


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An event, renewals in a row, renewals that were pruned, or an observation: the fields of the
    others are empty. `attempt` is the one that it belongs to, None if no event names it."""

    ts: Instant
    actor: Actor | None
    attempt: int | None
    events: tuple[Event, ...] = ()
    pruned: tuple[int, int] | None = None
    """The first and the last seq that are missing."""
    observation: Observation | None = None


def timeline(
    events: Sequence[Event],
    observations: Sequence[Observation],
    *,
    folded: bool = False,
    after_seq: int = 0,
) -> list[TimelineEntry]:
    """The entries of a log whose events after `after_seq` are given. `folded`: renewals in a row
    are one entry. Observations come where their time is: they are no part of the log. [U3]"""
    entries: list[TimelineEntry] = []
    owner: Actor | None = None  # of the attempt: it has made the renewals
    last_seq = after_seq
    for run in _runs(events, folded=folded):
        first, last = run[0], run[-1]
        if first.seq > last_seq + 1:
            gap = (last_seq + 1, first.seq - 1)
            entries.append(
                TimelineEntry(ts=first.ts, actor=owner, attempt=first.attempt, pruned=gap)
            )
        if first.type is EventType.CLAIMED:
            owner = first.actor
        entries.append(
            TimelineEntry(ts=last.ts, actor=first.actor, attempt=first.attempt, events=tuple(run))
        )
        last_seq = last.seq
    entries += [_observed(each, events) for each in observations]
    # Stable: an observation comes after the event that caused it.
    return sorted(entries, key=lambda entry: entry.ts)


def _runs(events: Sequence[Event], *, folded: bool) -> list[list[Event]]:
    """Every event alone; `folded`, the renewals between two other events together."""
    runs: list[list[Event]] = []
    for event in events:
        last = runs[-1][-1] if runs else None
        if folded and last is not None and {last.type, event.type} <= RENEWALS:
            runs[-1].append(event)
        else:
            runs.append([event])
    return runs


def _observed(observation: Observation, events: Sequence[Event]) -> TimelineEntry:
    lease_id = observation.lease_id
    attempts = [event.attempt for event in events if event.lease_id == lease_id]
    return TimelineEntry(
        ts=observation.ts,
        actor=observation.actor,
        attempt=attempts[-1] if attempts and lease_id is not None else None,
        observation=observation,
    )


# --- Following the log ---------------------------------------------------------------------------


EventPosition = NewType("EventPosition", str)
"""Where an event comes in the tail of its store. Only that store can read it."""

MAX_TAILED = 10_000
"""How many events one call of `tail_events` returns at most."""


class TailedEvent(msgspec.Struct, frozen=True):
    """An event with its position in the tail, from which reading can continue later."""

    position: EventPosition
    event: Event


class TailDelay(msgspec.Struct, frozen=True, kw_only=True):
    """The open transaction because of which committed events are not visible yet. [E35]

    `pid` is None for a prepared transaction, whose name is `name`; else that is the application's.
    `state` and `open_us` are None where the role may not see them.
    """

    transaction: int
    pid: int | None
    name: str
    state: str | None
    open_us: Duration | None


class TailFilter(_LogFilter, frozen=True, kw_only=True):
    """Which events a reader of the tail follows. [E10]

    `after` is where the reader was; None: before the oldest event. With `newest` the reader starts
    at the end instead, with at most this many of the newest events.
    """

    after: EventPosition | None = None
    newest: int | None = None

    def __post_init__(self) -> None:
        """Refuse two places to start, too."""
        super().__post_init__()
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
    """Events in the order of the tail, and the position from which the reader continues: there is
    always one. `is_end`: the page was neither full nor cut short, so there were no more events."""

    events: tuple[TailedEvent, ...] = ()
    next: EventPosition
    is_end: bool
