"""What is sent to the coordinator, in which batches, and what is still unanswered.

Pure bookkeeping: it decides nothing about an attempt and reads no verdict. Requests that were lost
or refused travel alone, so that one bad command cannot delay its neighbours for ever.
"""

from collections.abc import Iterable
from itertools import islice, takewhile

import msgspec

from tenure.clock import NEVER, Boot
from tenure.core.commands import WorkerCommand
from tenure.core.instants import Duration, seconds
from tenure.core.leases import LeaseRef
from tenure.telemetry.tracing import trace_of_jobs
from tenure.worker.session.attempts import LeasedAttempt
from tenure.worker.session.messages import PollLeases, Send, Stats

POLL_INTERVAL = seconds(1)
"""Also the age from which on an attempt is polled: a worker of quick jobs never polls."""

MAX_POLLED = 1000
"""In one poll. A worker with more running attempts polls them in rounds, so that what it costs the
store has a limit; heartbeats come every half minute or so anyway."""

POLL_AFTER_FAILURE = seconds(15)
POLL_ANSWER_WITHIN = seconds(20)

ANSWER_WITHIN = seconds(20)  # a request without an answer for so long counts as lost

MAX_PER_CALL = 500
"""Commands in one call; more go into several."""

UNDELAYED_CALLS = 2
"""While fewer calls have no answer, reports wait only for other short jobs that run; else they
gather longer, because each transaction costs about as much as a hundred more commands in it."""

WORTHWHILE = 200
"""This many are sent whatever is under way."""

PATIENCE = seconds(0.02)
"""How long they gather at most for those under way: one that hangs must not delay the others."""

_Batch = list[tuple[LeasedAttempt, WorkerCommand]]


class Sent(msgspec.Struct, frozen=True):
    """A batch without an answer yet: its commands, and the runs they are about."""

    sent_at: Boot
    commands: tuple[WorkerCommand, ...]
    runs: tuple[int, ...]
    is_counted: bool  # among the calls under way: one that carries reports


class Outbox:
    """Collects commands; `flush` makes batches of them."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._waiting: _Batch = []
        self._waiting_since = Boot(0)
        self._sent: dict[int, Sent] = {}  # by ticket, and so by age
        self._under_way = 0  # calls with reports
        self._tickets = 0
        self.gather_us = Duration(0)  # how long a report waits for others

    def ticket(self) -> int:
        """A number for a request, by which its answer is recognised."""
        self._tickets += 1
        return self._tickets

    # --- sending -------------------------------------------------------------------------------

    def put(self, attempt: LeasedAttempt, command: WorkerCommand, now: Boot) -> None:
        """Send this command soon."""
        if not self._waiting:
            self._waiting_since = now
        self._waiting.append((attempt, command))

    def flush(self, now: Boot) -> list[Send]:
        """All first tries together, each retry alone; nothing while it is better to gather."""
        if now < self._flush_at and len(self._waiting) < WORTHWHILE:
            return []
        waiting, self._waiting = self._waiting, []
        alone = [[pair] for pair in waiting if pair[0].tries or pair[0].sends_alone]
        together = waiting
        if alone:
            together = [pair for pair in waiting if not (pair[0].tries or pair[0].sends_alone)]
        batches = [*_pieces(together), *alone]
        return [send for batch in batches for send in self._with_news(batch, now)]

    @property
    def _flush_at(self) -> Boot:
        """When what has gathered is sent, however little it is."""
        if not self._waiting:
            return NEVER
        is_delayed = self._under_way >= UNDELAYED_CALLS
        return Boot(self._waiting_since + (PATIENCE if is_delayed else self.gather_us))

    def renew(self, due: Iterable[LeasedAttempt], now: Boot) -> list[Send]:
        """A heartbeat for each of these leases, at once and in as few batches as possible."""
        together: _Batch = []
        alone: list[_Batch] = []
        for attempt in due:
            pair = (attempt, self._heartbeat(attempt, now))
            if attempt.sends_alone:
                alone.append([pair])
            else:
                together.append(pair)
        return [self._post(batch, now) for batch in [*_pieces(together), *alone]]

    def _with_news(self, batch: _Batch, now: Boot) -> list[Send]:
        """Put the last checkpoint before the report that ends the attempt.

        Batches may overtake each other on their way, so what an earlier heartbeat carries counts
        as news until its answer is here: it would be refused behind the report. [R21]
        """
        sends: list[Send] = []
        with_news: _Batch = []
        for attempt, command in batch:
            if attempt.has_unconfirmed and attempt.is_open:
                heartbeat = (attempt, self._heartbeat(attempt, now))
                if attempt.sends_alone:
                    sends.append(self._post([heartbeat], now))
                else:
                    with_news.append(heartbeat)
            with_news.append((attempt, command))
        return [*sends, self._post(with_news, now, is_counted=True)]

    def _heartbeat(self, attempt: LeasedAttempt, now: Boot) -> WorkerCommand:
        self._stats.heartbeats += 1
        return attempt.heartbeat(now)

    def _post(self, batch: _Batch, now: Boot, *, is_counted: bool = False) -> Send:
        ticket = self.ticket()
        commands = tuple([command for _, command in batch])
        runs = tuple([attempt.run for attempt, _ in batch])
        self._sent[ticket] = Sent(now, commands, runs, is_counted)
        self._under_way += is_counted
        return Send(ticket, commands, trace_of_jobs(attempt.grant.job for attempt, _ in batch))

    # --- answers -------------------------------------------------------------------------------

    @property
    def next_at(self) -> Boot:
        """When the oldest unanswered batch counts as lost, or what has gathered is sent."""
        for sent in self._sent.values():
            return min(self._flush_at, Boot(sent.sent_at + ANSWER_WITHIN))
        return self._flush_at

    def overdue(self, now: Boot) -> list[int]:
        """The tickets of batches that count as lost."""
        tickets: list[int] = []
        for ticket, sent in self._sent.items():  # the oldest first
            if now < sent.sent_at + ANSWER_WITHIN:
                break
            tickets.append(ticket)
        return tickets

    def returned(self, ticket: int) -> Sent | None:
        """What was sent under this ticket; None if it was counted as lost meanwhile, and its
        repetition is on its way."""
        sent = self._sent.pop(ticket, None)
        self._under_way -= sent is not None and sent.is_counted
        return sent


def _pieces(batch: _Batch) -> list[_Batch]:
    return [batch[start : start + MAX_PER_CALL] for start in range(0, len(batch), MAX_PER_CALL)]


class LeasePolls:
    """When a worker polls its leases between two heartbeats; one poll is under way at most.

    A worker learns of a cancel by a heartbeat, and a heartbeat is a write: often enough for a
    lease, every half minute or so, is too seldom for a user who waits for a job to stop. A poll is
    a read. It decides nothing: where it finds news, the next heartbeat is due at once and brings
    the verdict. [C2]

    `running` are the attempts that run, by run, longest without a poll first.
    """

    def __init__(self) -> None:
        self._next_at = Boot(0)

    def poll(self, running: dict[int, LeasedAttempt], now: Boot) -> PollLeases | None:
        """The leases to poll now, if any: longest without a poll first. They go to the end."""
        if now < self.next_at(running):
            return None
        self._next_at = Boot(now + POLL_ANSWER_WITHIN)
        waiting = takewhile(
            lambda each: each.claim_sent_at + POLL_INTERVAL <= now, running.values()
        )
        seen = list(islice(waiting, MAX_POLLED))
        for each in seen:
            running[each.run] = running.pop(each.run)
        leases = {each.run: LeaseRef(each.grant.job_id, each.grant.lease_id) for each in seen}
        return PollLeases(leases, trace_of_jobs(each.grant.job for each in seen))

    def next_at(self, running: dict[int, LeasedAttempt]) -> Boot:
        """When the next poll is due."""
        for first in running.values():
            return Boot(max(first.claim_sent_at + POLL_INTERVAL, self._next_at))
        return NEVER

    def answered(self, now: Boot, *, is_answer: bool) -> None:
        """A poll came back."""
        self._next_at = Boot(now + (POLL_INTERVAL if is_answer else POLL_AFTER_FAILURE))
