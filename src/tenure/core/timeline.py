"""The timeline of a job: its log and what was observed beside it, in the order of time, for people.

Renewals of ended attempts are pruned and leave gaps in the log; an entry stands for each gap. It
only arranges: words, columns and colours are the business of those who show it.
"""

from collections.abc import Sequence

import msgspec

from tenure.core.events import Event
from tenure.core.ids import Actor
from tenure.core.instants import Instant
from tenure.core.observations import Observation
from tenure.core.vocabulary import RENEWALS, EventType


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
    holder: Actor | None = None  # whoever claimed the attempt has renewed it
    seen = after_seq
    for run in _runs(events, folded=folded):
        first, last = run[0], run[-1]
        if first.seq > seen + 1:
            gap = (seen + 1, first.seq - 1)
            entries.append(
                TimelineEntry(ts=first.ts, actor=holder, attempt=first.attempt, pruned=gap)
            )
        if first.type is EventType.CLAIMED:
            holder = first.actor
        entries.append(
            TimelineEntry(ts=last.ts, actor=first.actor, attempt=first.attempt, events=tuple(run))
        )
        seen = last.seq
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


def _observed(seen: Observation, events: Sequence[Event]) -> TimelineEntry:
    of_lease = [event.attempt for event in events if event.lease_id == seen.lease_id]
    attempt = None if seen.lease_id is None or not of_lease else of_lease[-1]
    return TimelineEntry(ts=seen.ts, actor=seen.actor, attempt=attempt, observation=seen)
