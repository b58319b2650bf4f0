"""Where the store's clock was set back, as far as the order of the log shows it."""

from tenure.core.instants import seconds
from tenure.ports import RecordSource

STEP_BACK_US = seconds(1)
"""An event that is dated so much before one that was written earlier shows that the clock was set
back. Less can have other reasons: where several write at a time, their events are in the order in
which their transactions began."""

SHORT_STEP_BACK_US = seconds(0.02)
"""The same where one writes at a time: events are dated by an estimate of the clock."""

EVENTS_READ = 1000


def times_shown_twice(store: RecordSource) -> list[tuple[int, int]]:
    """From when to when the clock was set back, by the order in which events were written."""
    found: list[tuple[int, int]] = []
    step_us = SHORT_STEP_BACK_US if store.parallelism == 1 else STEP_BACK_US
    latest, lowest, after = 0, 0, None
    while events := store.tail_events(after=after, limit=EVENTS_READ):
        for event in [each.event for each in events]:
            if event.ts > latest - step_us:
                latest = max(latest, event.ts)
                continue
            lowest = min(lowest, event.ts) if found and found[-1][1] == latest else event.ts
            if found and found[-1][1] == latest:
                found[-1] = (lowest, latest)
            else:
                found.append((lowest, latest))
        after = events[-1].position
    return found
