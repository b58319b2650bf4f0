"""Attempts: splits a job's log into its attempts, and computes when each lease ended.

Works on broken logs too: it splits at each claim and at each end of an attempt, and reports nothing
itself.
"""

from collections.abc import Iterator, Sequence

import msgspec

from tenure.core.events import Event
from tenure.core.ids import LeaseId
from tenure.core.instants import Instant
from tenure.core.job import due_at
from tenure.core.policy import Policy
from tenure.core.vocabulary import ATTEMPT_ENDS, RENEWALS, EventType

EXTENDING = frozenset(
    {EventType.CLAIMED, EventType.STARTED, EventType.LEASE_RENEWED, EventType.HEARTBEAT}
)
"""The events that set a lease's expiry; nothing else moves it. [L16]"""


class Attempt(msgspec.Struct):
    """One attempt's events, from its claim to its end, if it has ended."""

    events: list[Event]
    end: Event | None = None

    @property
    def claimed(self) -> Event:
        """The event that began it."""
        return self.events[0]

    @property
    def lease_id(self) -> LeaseId | None:
        """The lease it was granted under."""
        return self.events[0].lease_id


def attempts_of(events: Sequence[Event]) -> list[Attempt]:
    """The attempts of a log, in order. Events between attempts belong to none."""
    found: list[Attempt] = []
    current: Attempt | None = None
    for event in events:
        if event.type is EventType.CLAIMED:
            current = Attempt([event])
            found.append(current)
        elif current is not None:
            current.events.append(event)
            if event.type in ATTEMPT_ENDS:
                current.end = event
                current = None
    return found


def lease_ends(attempt: Attempt, policy: Policy) -> Iterator[tuple[Event, Instant]]:
    """Each event after the claim, with the end of the lease just before it. [L9]

    Pruned renewals leave a gap in the seqs. The next event then tells the expiry that they set; if
    that event set a new expiry itself, the latest possible one is assumed.
    """
    claimed = attempt.claimed
    expires_at = claimed.lease_expires_at or claimed.ts
    started_at: Instant | None = None
    cancel_deadline: Instant | None = None
    renewals = 0
    before = claimed
    for event in attempt.events[1:]:
        if event.seq > before.seq + 1:
            renewals += event.seq - before.seq - 1
            known = None if event.type in EXTENDING else event.lease_expires_at
            expires_at = max(expires_at, known or Instant(event.ts + policy.lease_us))
        yield (
            event,
            due_at(
                policy=policy,
                claimed_at=claimed.ts,
                started_at=started_at,
                lease_expires_at=expires_at,
                cancel_deadline=cancel_deadline,
                renewals=renewals,
            ),
        )
        if event.type is EventType.STARTED:
            started_at = event.ts
        if event.type in RENEWALS:
            renewals += 1
        if event.type is EventType.CANCEL_REQUESTED:
            cancel_deadline = event.payload.cancel_deadline
        if event.type in EXTENDING and event.lease_expires_at is not None:
            expires_at = event.lease_expires_at
        before = event
