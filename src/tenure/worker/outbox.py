"""What is sent to the coordinator, in which batches, and what is still unanswered.

Pure bookkeeping: it decides nothing about an attempt and hears no verdict. Requests that were lost
or refused travel alone, so that one bad command cannot hold up its neighbours for ever.
"""

from collections.abc import Iterable

import msgspec

from tenure.clock import NEVER, Boot
from tenure.core.commands import Heartbeat, Start, WorkerCommand
from tenure.core.instants import seconds
from tenure.core.leases import HeldLease
from tenure.telemetry.tracing import trace_of_jobs
from tenure.worker.attempts import Attempt, Phase
from tenure.worker.messages import LeasesPolled, PollLeases, Send
from tenure.worker.stats import Stats

POLL_INTERVAL = seconds(1)
"""Also the age from which on an attempt is polled: a worker of quick jobs never polls."""

POLL_AFTER_FAILURE = seconds(15)
POLL_ANSWER_WITHIN = seconds(20)

ANSWER_WITHIN = seconds(20)  # a request without an answer for so long counts as lost

_Batch = list[tuple[Attempt, WorkerCommand]]


class Sent(msgspec.Struct, frozen=True):
    """A batch without an answer yet: its commands, and the runs they are about."""

    sent_at: Boot
    commands: tuple[WorkerCommand, ...]
    runs: tuple[int, ...]


class Outbox:
    """Collects the commands of one turn; `flush` makes batches of them."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._waiting: _Batch = []
        self._sent: dict[int, Sent] = {}  # by ticket, and so by age
        self._tickets = 0

    def ticket(self) -> int:
        """A number for a request, by which its answer is recognised."""
        self._tickets += 1
        return self._tickets

    # --- sending -------------------------------------------------------------------------------

    def put(self, attempt: Attempt, command: WorkerCommand) -> None:
        """Send this command with the next `flush`."""
        self._waiting.append((attempt, command))

    def flush(self, now: Boot) -> list[Send]:
        """One batch for all first tries, one for each retry."""
        waiting, self._waiting = self._waiting, []
        together = [pair for pair in waiting if pair[0].may_share_batch]
        alone = [[pair] for pair in waiting if not pair[0].may_share_batch]
        return [
            send for batch in [together, *alone] if batch for send in self._with_news(batch, now)
        ]

    def renew(self, due: Iterable[Attempt], now: Boot) -> list[Send]:
        """A heartbeat for each of these leases, in as few batches as possible."""
        together: _Batch = []
        alone: list[_Batch] = []
        for attempt in due:
            pair = (attempt, self._heartbeat(attempt, now))
            if attempt.sends_alone:
                alone.append([pair])
            else:
                together.append(pair)
        return [self._post(batch, now) for batch in [together, *alone] if batch]

    def _with_news(self, batch: _Batch, now: Boot) -> list[Send]:
        """Put the last checkpoint before the report that ends the attempt.

        Batches may overtake each other on their way, so what an earlier heartbeat carries counts
        as news until its answer is here: it would be refused behind the report. [R21]
        """
        sends: list[Send] = []
        with_news: _Batch = []
        for attempt, command in batch:
            is_report = not isinstance(command, Start | Heartbeat)
            if is_report and attempt.has_unconfirmed and attempt.is_open:
                heartbeat = (attempt, self._heartbeat(attempt, now))
                if attempt.sends_alone:
                    sends.append(self._post([heartbeat], now))
                else:
                    with_news.append(heartbeat)
            with_news.append((attempt, command))
        return [*sends, self._post(with_news, now)]

    def _heartbeat(self, attempt: Attempt, now: Boot) -> WorkerCommand:
        self._stats.heartbeats += 1
        return attempt.heartbeat(now)

    def _post(self, batch: _Batch, now: Boot) -> Send:
        ticket = self.ticket()
        commands = tuple(command for _, command in batch)
        self._sent[ticket] = Sent(now, commands, tuple(attempt.run for attempt, _ in batch))
        return Send(ticket, commands, trace_of_jobs(attempt.grant.job for attempt, _ in batch))

    # --- hearing -------------------------------------------------------------------------------

    @property
    def next_at(self) -> Boot:
        """When the oldest unanswered batch counts as lost."""
        for sent in self._sent.values():
            return Boot(sent.sent_at + ANSWER_WITHIN)
        return NEVER

    def overdue(self, now: Boot) -> list[int]:
        """The tickets of batches that count as lost."""
        return [t for t, sent in self._sent.items() if now >= sent.sent_at + ANSWER_WITHIN]

    def returned(self, ticket: int) -> Sent | None:
        """What was sent under this ticket; None if it was counted as lost meanwhile, and its
        repetition is on its way."""
        return self._sent.pop(ticket, None)


class LeasePolls:
    """When a worker polls its leases between two heartbeats; one poll is under way at most.

    A worker hears of a cancel by a heartbeat, and a heartbeat is a write: often enough for a lease,
    every fifteen seconds or so, is too seldom for somebody who waits for a job to stop. A poll is
    a read. It decides nothing: where it finds news, the next heartbeat is due at once and brings
    the verdict. [C2]
    """

    def __init__(self) -> None:
        self._next_at = Boot(0)

    def poll(self, attempts: Iterable[Attempt], now: Boot) -> PollLeases | None:
        """The leases to poll now, if any."""
        seen = [each for each in attempts if _poll_from(each) <= now]
        if not seen or now < self._next_at:
            return None
        self._next_at = Boot(now + POLL_ANSWER_WITHIN)
        leases = {each.run: HeldLease(each.grant.job_id, each.grant.lease_id) for each in seen}
        return PollLeases(leases, trace_of_jobs(each.grant.job for each in seen))

    def next_at(self, attempts: Iterable[Attempt]) -> Boot:
        """When the next poll is due."""
        first_at = min((_poll_from(each) for each in attempts), default=NEVER)
        return Boot(max(first_at, self._next_at))

    def answered(self, found: LeasesPolled, now: Boot) -> None:
        """A poll came back."""
        self._next_at = Boot(now + (POLL_AFTER_FAILURE if found.news is None else POLL_INTERVAL))


def _poll_from(attempt: Attempt) -> Boot:
    if attempt.phase is not Phase.RUNNING or not attempt.is_open or attempt.start_sent_at is None:
        return NEVER
    return Boot(attempt.start_sent_at + POLL_INTERVAL)
