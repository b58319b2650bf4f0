"""The worker's side of the contract, without input or output: events in, actions out.

Workers do work, never decide truth: every verdict is final for its attempt and nothing is retried
but transport. Holds no clock (its owner sets `now`, in microseconds of the boot clock), no thread
and no randomness of its own, so a test or a simulator drives it through years in milliseconds.

An event is a call of a method; `turn` then returns what must be done, once for all events since the
last turn, so that their commands travel in one batch. A claim starts what it is granted, and asks
for no more than children can start at once: an attempt runs from its grant on.

What a job costs does not depend on how many others run: deadlines are in a heap, slots are counted
as they fill and empty, and no turn walks through all attempts, except when every one of them is
concerned (a drain, a jump of the clock) and once a second for polled attempts.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import msgspec

from tenure.clock import NEVER, Boot
from tenure.core.claims import ClaimAnswer
from tenure.core.commands import Fail, Heartbeat, Release, Settle, WorkerCommand
from tenure.core.ids import Kind, LeaseId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant, seconds
from tenure.core.policy import Random, delay_us
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import Cause, Disposition, LeaseNews, VerdictKind, counted
from tenure.handlers.registry import Isolation
from tenure.telemetry.log_lines import FailureLog
from tenure.worker.frames import (
    AskToStop,
    Authority,
    CheckpointSaved,
    Conflicted,
    LeaseRenewed,
    ProgressMade,
    SelfCompleted,
    Stopped,
)
from tenure.worker.session import messages
from tenure.worker.session.attempts import (
    NO_RENEWAL,
    LeasedAttempt,
    Phase,
    StopFor,
    describe_end,
    describe_kill,
    malformed,
    report_of,
)
from tenure.worker.session.claims import (
    AT_ONCE,
    MAX_PER_CLAIM,
    RETRY,
    ClaimPlanner,
    ClaimSettings,
)
from tenure.worker.session.outbox import LeasePolls, Outbox
from tenure.worker.session.timers import Timers

CLAIM_ANSWER_WITHIN = seconds(60)  # a coordinator may keep a claim open while it waits for work
REPORT_WITHIN = seconds(60)
MAX_REPORT_TRIES = 12
MAX_REFUSED_REPORTS = 3
SERVER_REFUSES = "the server refuses this worker; its token may be revoked or limited"
LONGEST_CANCEL_RESERVE = seconds(1)
SHUTDOWN = "shutdown"
QUICK_STOP = seconds(3)
TIME_TO_STOP = seconds(2)
"""How long a handler that was asked to stop has at least, even on a busy machine."""

HAND_BACK_DELAY = seconds(1)
"""How long a job waits that this worker could not run, unless the worker stops."""

SHORT_RUN = seconds(0.05)
"""Jobs that usually run longer gain nothing from claims and reports that wait for others."""

GATHER = seconds(0.005)
LONGEST_GATHER = seconds(0.02)
"""How long claims wait for more free slots, and reports for more reports, while short jobs run: as
long as a claim takes, within these bounds."""

LAST_CLAIM_TRIES = 4
"""How often a drain repeats an unanswered claim before it takes the coordinator for gone. One try
may be the claim that the drain itself ended."""

CLAIM_LOST = (
    "ending without an answer to a claim: jobs that it was granted run after their leases expire"
)
_SELF_COMPLETED = (Cause.DUPLICATE_COMPLETION,)


class Drain(msgspec.Struct, frozen=True):
    """When an ending worker asks its handlers to stop, when it kills them, and when it exits."""

    ask_at: Boot
    kill_at: Boot
    end_at: Boot


def drain_within(grace_us: Duration, now: Boot) -> Drain:
    """Ask at three quarters of the grace, kill and hand back at nine tenths. With a short
    grace handlers are asked earlier, down to half of it: to stop takes a moment."""
    kill_us = grace_us * 9 // 10
    ask_us = max(grace_us // 2, min(grace_us * 3 // 4, kill_us - TIME_TO_STOP))
    return Drain(
        ask_at=Boot(now + ask_us),
        kill_at=Boot(now + kill_us),
        end_at=Boot(now + grace_us),
    )


def stop_at_once(before: Drain | None, now: Boot) -> Drain:
    """Kill now, hand back what can be handed back quickly; never later than the drain before it."""
    end_at = Boot(now + QUICK_STOP)
    if before is not None:
        end_at = min(end_at, before.end_at)
    return Drain(ask_at=now, kill_at=now, end_at=end_at)


def describe_drain(running: int, left_us: Duration, *, by_signal: bool) -> str:
    """What a drain waits for, how long, and what the next signal does."""
    if not running:
        return "draining: no job is running"
    one = running == 1
    jobs = counted(running, "job is running and has", "jobs are running and have")
    text = f"draining: {jobs} {_in_seconds(left_us):.3g} s to end"
    if not by_signal:
        return text
    return f"{text}; press Ctrl-C or send SIGTERM again to stop {'it' if one else 'them'} now"


class WorkerSession:
    """One worker session. Feed it events with `turn`, carry out the actions it returns."""

    def __init__(
        self,
        settings: ClaimSettings,
        *,
        concurrency: int,
        random: Random,
        stats: messages.Stats,
        notes_every_end: bool = True,
    ) -> None:
        self.stats = stats
        self.failure: str | None = None
        self._failure_log = FailureLog()
        self.next_at = Boot(0)
        self.actor = settings.actor
        self._concurrency = concurrency
        self._random = random
        self._notes_every_end = notes_every_end
        self._claimer = ClaimPlanner(settings, random)
        self._claim: tuple[int, Boot] | None = None  # ticket and send time of the claim in flight
        self._ended_claim: int | None = None  # the ticket of an open claim that we ended ourselves
        self._attempts: dict[int, LeasedAttempt] = {}
        self._timers = Timers()  # the next deadline of each attempt, by run
        self._running: dict[int, LeasedAttempt] = {}  # the longest unpolled first
        self._occupied = 0  # slots: attempts with a handler
        self._occupied_by: Counter[Kind] = Counter()
        self._occupied_in: Counter[Isolation | None] = Counter()
        self._lanes = settings.lanes
        self._serving: dict[Isolation, int] = {}  # children, as far as is known
        self._room_since: Boot | None = None  # since when slots become free for the next claim
        self._usual_run_us = 2 * SHORT_RUN
        self._usual_claim_us = GATHER
        self._leases: set[LeaseId] = set()
        self._outbox = Outbox(stats)
        self._lease_polls = LeasePolls()
        self._actions: list[messages.Action] = []
        self._drain: Drain | None = None
        self._ask_at = NEVER  # when a drain asks all handlers to stop
        self._runs = 0
        self.now = Boot(0)  # set before the events of a turn

    @property
    def has_reported_silence(self) -> bool:
        """Whether the coordinator does not answer, and the log states that."""
        return self._failure_log.is_reported

    @property
    def is_draining(self) -> bool:
        """Whether it claims nothing more and ends soon. May be read by any thread."""
        return self._drain is not None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do, or the time is over."""
        if self._drain is None:
            return False
        is_idle = not self._attempts and (self._claimer.unanswered is None or self._is_claim_lost)
        return is_idle or self.now >= self._drain.end_at

    @property
    def _is_claim_lost(self) -> bool:
        """Whether a drain abandons the claim. Jobs that it was granted come back when their leases
        end: no reason to wait for a coordinator that is gone."""
        return self._claim is None and self._claimer.tries >= LAST_CLAIM_TRIES

    def turn(self) -> list[messages.Action]:
        """What must be done after the events since the last turn, and because time has passed."""
        self._do_due()
        is_gathering = self._occupied and self._drain is None and self._runs_short_jobs
        self._outbox.gather_us = self._gather_us() if is_gathering else AT_ONCE
        self._actions += self._outbox.flush(self.now)
        self.next_at = self._earliest()
        actions, self._actions = self._actions, []
        return actions

    # --- time ----------------------------------------------------------------------------------

    def _earliest(self) -> Boot:
        """When something is due next."""
        next_at = min(
            self._timers.next_at,
            self._outbox.next_at,
            self._lease_polls.next_at(self._running),
            self._next_claim_at(),
        )
        return next_at if self._drain is None else min(next_at, self._ask_at, self._drain.end_at)

    def _schedule(self, attempt: LeasedAttempt) -> None:
        """One of its deadlines may be sooner than before."""
        self._timers.by(attempt.run, attempt.next_at)

    def _do_due(self) -> None:
        self._drop_overdue_requests()
        self._continue_drain()
        if self.now >= self._timers.next_at:
            self._do_due_of_attempts()
        self._poll_leases()
        self._claim_jobs()

    def _do_due_of_attempts(self) -> None:
        due = [self._attempts[run] for run in self._timers.due(self.now)]
        for attempt in due:
            self._check_lease(attempt)
        self._heartbeats(due)
        for attempt in due:
            if attempt.run in self._attempts:
                self._retry(attempt)
            if attempt.run in self._attempts:
                self._schedule(attempt)

    def _drop_overdue_requests(self) -> None:
        for ticket in self._outbox.overdue(self.now):
            self.unanswered(ticket, "no answer in time")
        if self._claim is not None:
            _, sent_at = self._claim
            if self.now >= sent_at + CLAIM_ANSWER_WITHIN:
                self._claim_failed("no answer in time")

    def _check_lease(self, attempt: LeasedAttempt) -> None:
        if not attempt.is_open or attempt.phase is Phase.REPORTING:
            return
        if self.now >= attempt.fence_at:
            # By the time the coordinator grants the job to another worker, this handler must be
            # gone. Nothing is reported.
            self._count_overdue(attempt)
            self._note_about(attempt, attempt.ends_by)
            self._lose(attempt)
            return
        if self.now >= attempt.kill_at and attempt.phase is Phase.RUNNING:
            if attempt.is_cancelled:
                self._note_about(attempt, describe_kill(attempt, self.now))
            self._stop(attempt, StopFor.CANCEL if attempt.is_cancelled else StopFor.SHUTDOWN)

    def _count_overdue(self, attempt: LeasedAttempt) -> None:
        is_silence = attempt.ends_by is NO_RENEWAL
        self.stats.fenced += is_silence
        self.stats.timed_out += not is_silence

    # --- claiming ------------------------------------------------------------------------------

    def _next_claim_at(self) -> Boot:
        """When to claim, or to stop waiting for the answer to a claim."""
        if self._claim is not None:
            return Boot(self._claim[1] + CLAIM_ANSWER_WITHIN)
        claim_at = max(self._claimer.next_at, self._gathers_until())
        # A claim that is due and was not sent needs a slot of its kinds: an event will bring it.
        return claim_at if self.now < claim_at and self._may_claim() else NEVER

    @property
    def is_waiting_for_work(self) -> bool:
        """Whether it has room and has found nothing to do, so that a hint is worth something. May
        be read by any thread: a wrong answer only costs a moment."""
        return self._claim is None and self.now < self._claimer.next_at and self._may_claim()

    def _may_claim(self) -> bool:
        """Whether a claim could be sent now, as far as this session is concerned."""
        if self._claimer.unanswered is not None:
            return True
        if self._drain is not None:
            return False
        # Reports that cannot be delivered must not pile up while the store is unreachable.
        is_piling_up = len(self._attempts) >= 2 * self._concurrency
        return self._occupied < self._concurrency and not is_piling_up

    @property
    def _runs_short_jobs(self) -> bool:
        """Whether the jobs that run are likely to end soon one after the other."""
        return self._usual_run_us <= SHORT_RUN

    def _gather_us(self) -> Duration:
        """How long a claim or a report waits at most: a few milliseconds, or as long as a claim
        takes if jobs take no longer than that. On a busy machine both take long."""
        usual_us = max(GATHER, self._usual_claim_us)
        return GATHER if self._usual_run_us > usual_us else usual_us

    def _gathers_until(self) -> Boot:
        """Short jobs end one soon after the other, and a claim of one costs almost as much as one
        of many: while others run, a claim waits a moment."""
        free = self._concurrency - self._occupied
        is_enough = free >= min(self._concurrency, MAX_PER_CLAIM) or self._drain is not None
        if self._room_since is None or is_enough or not self._runs_short_jobs:
            return Boot(0)
        return Boot(self._room_since + self._gather_us())

    def _ready_in(self, lane: Isolation) -> int:
        """How many attempts could start at once in this lane."""
        serving = self._serving.get(lane, 0)
        if lane is Isolation.PROCESS:
            return max(0, serving - self._occupied_in[lane])
        return self._concurrency if serving else 0

    def children_serving(self, lane: Isolation, children: int) -> None:
        """This number of children of this lane can run attempts now."""
        is_more = children > self._serving.get(lane, 0)
        self._serving[lane] = children
        if is_more:
            self._claimer.room_was_made(self.now)

    def trust_hints(self, hints_arrive: Callable[[], bool]) -> None:
        """Ask less often while this returns that hints arrive."""
        self._claimer.hints_arrive = hints_arrive

    def work_expected(self) -> None:
        """A hint: there may be work."""
        self._claimer.wake(self.now)

    def _claim_jobs(self) -> None:
        if self._claim is not None or self.now < self._claimer.next_at or not self._may_claim():
            return
        if self._claimer.unanswered is None and self.now < self._gathers_until():
            return
        free = self._concurrency - self._occupied
        request = self._claimer.ask(free=free, running=self._occupied_by, ready=self._ready_in)
        if request is None:
            return
        self._room_since = None
        ticket = self._outbox.ticket()
        self._claim = (ticket, self.now)
        self.stats.claims += 1
        wait_us = AT_ONCE if self._drain is not None else self._claimer.wait_us
        self._actions.append(messages.SendClaim(ticket, request, wait_us))

    def _claim_failed(self, why: str, retry_after_us: Duration = AT_ONCE) -> None:
        assert self._claim is not None
        (ticket, _), self._claim = self._claim, None
        if ticket != self._ended_claim:
            self.stats.transport_failures += 1
            self._note_failure("a claim", why)
        self._claimer.failed(self.now, retry_after_us=retry_after_us)
        if self.is_done:
            self._note(CLAIM_LOST)

    def claim_answered(self, ticket: int, answer: ClaimAnswer) -> None:
        """The coordinator answered a claim."""
        self._coordinator_answers()
        if self._claim is None or self._claim[0] != ticket:
            return  # its retry, already sent, brings the same grants
        sent_at = self._claim[1]
        self._claim = None
        if answer.cause is not None:
            self.stats.rejected += 1
            self._claimer.answered(0, self.now)
            worker = "another worker uses the same worker id"
            self.break_off(f"a claim was REJECTED ({answer.cause}): {worker}")
            return
        took_us = self.now - sent_at
        self._claimer.answered(
            len(answer.grants), self.now, waited_us=took_us, held=answer.rate_limited
        )
        if answer.grants:
            took_us = min(took_us - min(answer.waited_us, took_us), LONGEST_GATHER)
            self._usual_claim_us = Duration((3 * self._usual_claim_us + took_us) // 4)
        # While the coordinator kept the claim open, no lease had started. [WP12]
        begun_at = Boot(sent_at + min(answer.waited_us, self.now - sent_at))
        for grant in answer.grants:
            if grant.lease_id not in self._leases:
                self._granted(grant, begun_at)

    def _granted(self, grant: Grant, begun_at: Boot) -> None:
        """Take a grant whose lease started no earlier than `begun_at`."""
        self.stats.granted += 1
        self._runs += 1
        run, kind = self._runs, grant.job.kind
        attempt = LeasedAttempt(run, grant, actor=self.actor, sent_at=begun_at, began_at=self.now)
        self._attempts[run] = attempt
        self._leases.add(grant.lease_id)
        self._occupied += 1
        self._occupied_by[kind] += 1
        self._occupied_in[self._lanes.get(kind)] += 1
        self._running[run] = attempt
        self._timers.put(run, min(attempt.heartbeat_at, attempt.fence_at))
        # Too late to run it; handing it back costs the job nothing.
        if self._drain is not None or self.now >= attempt.fence_at:
            attempt.unrun_because = SHUTDOWN if self._drain is not None else attempt.is_late
            self._leave_slot(attempt)
            self._report(attempt, attempt.release())
            return
        self.stats.started += 1
        self._actions.append(messages.Begin(run, grant, attempt.fence_at))

    def _leave_slot(self, attempt: LeasedAttempt) -> None:
        """Its handler is gone."""
        kind = attempt.grant.job.kind
        lane = self._lanes.get(kind)
        self._occupied -= 1
        self._occupied_by[kind] -= 1
        self._occupied_in[lane] -= 1
        self._running.pop(attempt.run, None)
        attempt.phase = Phase.REPORTING
        if self._room_since is None:
            self._room_since = self.now
        if lane is Isolation.PROCESS and self._ready_in(lane) == 1:
            self._claimer.room_was_made(self.now)

    # --- heartbeats and answers ----------------------------------------------------------------

    def _heartbeats(self, looked_at: list[LeasedAttempt]) -> None:
        """Renew every lease that is due, and with it leases that would be due soon."""
        due = [e for e in looked_at if e.is_open and self.now >= e.heartbeat_at]
        if not due:
            return
        while (run := self._timers.first()) is not None:
            attempt = self._attempts[run]
            if not attempt.is_open or self.now < attempt.heartbeat_at - attempt.heartbeat_us // 2:
                break
            self._timers.drop(run)
            looked_at.append(attempt)
            due.append(attempt)
        self._actions += self._outbox.renew(due, self.now)

    def _poll_leases(self) -> None:
        poll = self._lease_polls.poll(self._running, self.now)
        if poll is not None:
            self._actions.append(poll)

    def leases_polled(self, news: Mapping[int, LeaseNews] | None) -> None:
        """What a poll of leases found, by run; None if it failed. [C2]"""
        self._lease_polls.answered(self.now, is_answer=news is not None)
        for run, found in (news or {}).items():
            attempt = self._attempts.get(run)
            if attempt is not None and attempt.hurry(found, self.now):
                self._schedule(attempt)

    def answered(self, ticket: int, verdicts: Sequence[Verdict]) -> None:
        """The coordinator answered a batch, in its order."""
        self._coordinator_answers()
        sent = self._outbox.returned(ticket)
        if sent is None:
            return
        for run, command, verdict in zip(sent.runs, sent.commands, verdicts, strict=True):
            attempt = self._attempts.get(run)
            if attempt is not None:
                self._verdict(attempt, command, verdict, sent.sent_at)

    def unanswered(self, ticket: int, why: str, retry_after_us: Duration = AT_ONCE) -> None:
        """A claim or a batch got no answer; `why` is for the log. It may or may not have been
        carried out, and is not repeated before `retry_after_us`."""
        if self._claim is not None and self._claim[0] == ticket:
            self._claim_failed(why, retry_after_us)
            return
        sent = self._outbox.returned(ticket)
        if sent is None:
            return
        self.stats.transport_failures += 1
        self._note_failure(counted(len(sent.commands), "request"), why)
        for run, command in zip(sent.runs, sent.commands, strict=True):
            attempt = self._attempts.get(run)
            if attempt is not None:
                self._repeat(attempt, command, retry_after_us)

    def refused(self, ticket: int, why: str) -> None:
        """A batch was not sent: a field of it is out of bounds."""
        sent = self._outbox.returned(ticket)
        if sent is None:
            return
        for run, command in zip(sent.runs, sent.commands, strict=True):
            attempt = self._attempts.get(run)
            if attempt is not None:
                self._refused(attempt, command, why, is_alone=len(sent.commands) == 1)

    # --- verdicts ------------------------------------------------------------------------------

    def _verdict(
        self, attempt: LeasedAttempt, command: WorkerCommand, verdict: Verdict, sent_at: Boot
    ) -> None:
        match verdict.kind:
            case VerdictKind.COMMITTED:
                self.stats.count(verdict.disposition)
                self._note_end(attempt, command, verdict.disposition, verdict.run_at)
                self._close(attempt)
            case VerdictKind.CANCELLED:
                self.stats.cancelled += 1
                self._note_about(attempt, f"CANCELLED ({verdict.cause}), discarding its outcome")
                self._lose(attempt)
            case VerdictKind.REJECTED if attempt.is_lent and verdict.cause in _SELF_COMPLETED:
                # The handler died after its own commit, before it could report it.
                self.stats.succeeded += 1
                self._note_end(attempt, command, Disposition.SUCCEEDED)
                self._close(attempt)
            case VerdictKind.REJECTED:
                self.stats.rejected += 1
                what = type(command).__name__.lower()
                text = f"its {what} was REJECTED ({verdict.cause or SERVER_REFUSES}), stopping it"
                self._note_about(attempt, text, is_error=True)
                self._lose(attempt)
            case VerdictKind.OK:
                self._authorised(attempt, command, verdict, sent_at)
            case _:
                assert_never(verdict.kind)

    def _authorised(
        self, attempt: LeasedAttempt, command: WorkerCommand, verdict: Verdict, sent_at: Boot
    ) -> None:
        if isinstance(command, Heartbeat):
            attempt.heartbeat_answered(command.hb_seq, sent_at)
        if verdict.settled or not attempt.is_open:
            return  # the report overtook its heartbeat [R21]
        is_renewed = attempt.renewed(sent_at, self.now, verdict)
        if is_renewed and attempt.phase is Phase.RUNNING:
            self._actions.append(LeaseRenewed(attempt.run, attempt.fence_at))
        if verdict.cancel is not None and not attempt.is_cancelled:
            attempt.is_cancelled = True
            remaining_us = verdict.cancel.remaining_us
            reserve_us = min(remaining_us // 5, LONGEST_CANCEL_RESERVE)
            kill_at = Boot(sent_at + remaining_us - reserve_us)
            self._ask_to_stop(attempt, verdict.cancel.reason or "cancelled", kill_at)
        self._schedule(attempt)

    def _repeat(
        self, attempt: LeasedAttempt, command: WorkerCommand, retry_after_us: Duration = AT_ONCE
    ) -> None:
        not_before = self.now + retry_after_us
        if isinstance(command, Heartbeat):
            latest = self.now + attempt.heartbeat_us
            again_at = max(attempt.repeat_at(self.now), min(not_before, latest))
            attempt.heartbeat_lost(command.hb_seq, again_at=Boot(again_at))
        elif command is attempt.report:
            attempt.tries += 1
            delay = delay_us(RETRY, failures=attempt.tries, fraction=self._random())
            attempt.retry_at = Boot(not_before + delay)
        self._schedule(attempt)

    def _refused(
        self, attempt: LeasedAttempt, command: WorkerCommand, why: str, *, is_alone: bool
    ) -> None:
        """Nothing was sent. Find the invalid command by sending each alone; then drop its part."""
        if not is_alone:
            attempt.sends_alone = True
            self._repeat(attempt, command)
            return
        self._note_about(attempt, why, is_error=True)
        if isinstance(command, Heartbeat):
            attempt.drop_news()
            attempt.heartbeat_at = self.now
            self._schedule(attempt)
        elif attempt.report is command and attempt.tries <= MAX_REFUSED_REPORTS:
            attempt.tries += 1
            self._report(attempt, malformed(attempt, why))
        else:
            self.stats.rejected += 1
            self._lose(attempt)

    def _retry(self, attempt: LeasedAttempt) -> None:
        if self.now < attempt.retry_at:
            return
        attempt.retry_at = NEVER
        assert attempt.report is not None
        assert attempt.first_try_at is not None
        is_late = self.now >= attempt.first_try_at + REPORT_WITHIN
        if is_late or attempt.tries >= MAX_REPORT_TRIES:
            self.stats.unreported += 1
            self._note_about(attempt, "its report could not be delivered", is_error=True)
            self._close(attempt)
        else:
            self._outbox.put(attempt, attempt.report, self.now)

    # --- handlers ------------------------------------------------------------------------------

    def child_sent(self, message: CheckpointSaved | ProgressMade | SelfCompleted) -> None:
        """A handler has news of its attempt."""
        attempt = self._attempts.get(message.run)
        if attempt is None or not attempt.is_open:
            return
        match message:
            case CheckpointSaved():
                attempt.saved_checkpoint(message.checkpoint, self.now)
            case ProgressMade():
                attempt.progressed(message.progress, self.now)
            case SelfCompleted():
                attempt.settled = message.result
        self._schedule(attempt)

    def lend(self, run: int) -> Authority | None:
        """The lease, for a handler that is about to complete its attempt in a transaction of its
        own; None if the attempt has lost it."""
        attempt = self._attempts.get(run)
        if attempt is None or not attempt.is_open:
            return None
        attempt.is_lent = True
        return Authority(attempt.grant.lease_id, self.actor)

    def _ask_to_stop(self, attempt: LeasedAttempt, reason: str, kill_at: Boot) -> None:
        if kill_at < attempt.kill_at:
            attempt.kill_at = kill_at
            self._schedule(attempt)
        if attempt.asked_at is None and attempt.phase is Phase.RUNNING:
            attempt.asked_at = self.now
            self._actions.append(AskToStop(attempt.run, reason))

    def _stop(self, attempt: LeasedAttempt, why: StopFor) -> None:
        if attempt.phase is Phase.RUNNING:
            self.stats.kills += 1
            attempt.phase = Phase.STOPPING
            del self._running[attempt.run]
            self._actions.append(messages.Kill(attempt.run))
        attempt.stop_for = why

    def _lose(self, attempt: LeasedAttempt) -> None:
        """The lease is lost: nothing that the handler still does is reported."""
        attempt.is_open = False
        if attempt.phase is Phase.REPORTING:
            self._close(attempt)
        else:
            self._stop(attempt, StopFor.LOST)

    def _close(self, attempt: LeasedAttempt) -> None:
        attempt.is_open = False
        del self._attempts[attempt.run]
        self._timers.drop(attempt.run)
        self._leases.discard(attempt.grant.lease_id)

    def finished(self, run: int, outcome: messages.Outcome) -> None:
        """The attempt's handler is gone, for certain; this is how."""
        attempt = self._attempts.get(run)
        if attempt is None:
            return
        self.stats.crashes += isinstance(outcome, messages.Died)
        self.stats.displaced += isinstance(outcome, messages.Displaced)
        if isinstance(outcome, messages.Unstarted):
            attempt.unrun_because = outcome.why
        self._leave_slot(attempt)
        attempt.ran_us = Duration(self.now - attempt.began_at)
        self._usual_run_us = (7 * self._usual_run_us + min(attempt.ran_us, 2 * SHORT_RUN)) // 8
        if not attempt.is_open:
            self._close(attempt)
            return
        report = report_of(attempt, outcome)
        if report is not None:
            self._report(attempt, report)
            return
        self.stats.conflicts += isinstance(outcome, Conflicted)
        if isinstance(outcome, Stopped):
            self._count_overdue(attempt)
        self._note_about(attempt, "its lease is lost, reporting nothing")
        self._close(attempt)

    def _report(self, attempt: LeasedAttempt, report: Settle) -> None:
        if attempt.unrun_because and isinstance(report, Release) and not attempt.is_cancelled:
            why = attempt.unrun_because
            self._note_about(attempt, f"handing it back, it did not run: {why}")
            delay_us = AT_ONCE if self._drain is not None else HAND_BACK_DELAY
            report = attempt.release(delay_us=delay_us)
        attempt.report = report
        if attempt.first_try_at is None:
            attempt.first_try_at = self.now
        self._outbox.put(attempt, report, self.now)

    # --- ending --------------------------------------------------------------------------------

    def clock_jumped(self) -> None:
        """The wall clock ran ahead: the leases may be older than they seem."""
        self._note("the wall clock jumped ahead: renewing every lease now")
        for attempt in self._attempts.values():
            attempt.heartbeat_at = self.now
            self._schedule(attempt)

    def drain(self, grace_us: Duration, *, by_signal: bool = True) -> None:
        """Finish within the grace, then stop. A signal is answered by a line in the log, even if
        the worker was draining: the next one stops at once."""
        drain = self._drain
        if drain is not None and not by_signal:
            return
        if drain is None:
            drain = self._begin_drain(grace_us)
        running = sum(
            attempt.phase is Phase.RUNNING and attempt.stop_for is None
            for attempt in self._attempts.values()
        )
        left_us = Duration(max(0, drain.kill_at - self.now))
        text = describe_drain(running, left_us, by_signal=by_signal)
        self._actions.append(messages.Draining(text, running))

    def _begin_drain(self, grace_us: Duration) -> Drain:
        """Stop claiming; what runs may finish."""
        self._drain = drain = drain_within(grace_us, self.now)
        self._ask_at = drain.ask_at
        self._claimer.hurry(self.now)
        self._end_waits()
        return drain

    def _end_waits(self) -> None:
        """End a claim that is kept open longer than the drain lasts; its retry does not wait."""
        if self._claim is not None:
            self._ended_claim = self._claim[0]
            self._actions.append(messages.EndWaits())

    def _continue_drain(self) -> None:
        """Ask all handlers to stop; any that has not is killed later."""
        if self._drain is None or self.now < self._ask_at:
            return
        self._ask_at = NEVER
        for attempt in list(self._running.values()):
            self._ask_to_stop(attempt, SHUTDOWN, self._drain.kill_at)

    def stop(self) -> None:
        """Stop now: kill, hand back what can be handed back quickly."""
        self._drain = stop_at_once(self._drain, self.now)
        self._ask_at = NEVER  # all is stopped here
        for attempt in list(self._running.values()):
            self._stop(attempt, StopFor.SHUTDOWN)
        self._end_waits()

    def break_off(self, why: str) -> None:
        """The worker has to stop: its children do not start, or claims are refused."""
        self.failure = self.failure or why
        self._note(why, is_error=True)
        self.stop()

    def _coordinator_answers(self) -> None:
        """The coordinator answered."""
        if self._drain is not None:
            self._claimer.hurry(self.now)  # grants of a claim that was lost can be handed back
        lasted_us = self._failure_log.succeeded(self.now)
        if lasted_us is not None:
            self._note(f"the coordinator answers again, after {_in_seconds(lasted_us):.1f} s")

    def _note_failure(self, what: str, why: str) -> None:
        """Log that a request got no answer, at most every half minute. Decides nothing."""
        line = self._failure_log.failed(self.now)
        if line is not None and line.is_reminder:
            self._note(f"still no answer after {_in_seconds(line.lasts_us):.0f} s: {why}")
        elif line is not None:
            self._note(f"no answer to {what}, asking until there is one: {why}")

    def _note_end(
        self,
        attempt: LeasedAttempt,
        report: WorkerCommand,
        disposition: Disposition | None,
        run_at: Instant | None = None,
    ) -> None:
        is_routine = not isinstance(report, Fail)
        if is_routine and not self._notes_every_end:
            return
        how = describe_end(attempt, report, disposition, run_at=run_at, now=self.now)
        below = ""
        if isinstance(report, Fail) and self._notes_every_end:
            below = report.error.traceback  # bounded, and without secrets, as it was reported
        self._actions.append(
            messages.Note(
                f"{attempt.name}: {how}", job=attempt.grant.job, is_routine=is_routine, below=below
            )
        )

    def _note_about(self, attempt: LeasedAttempt, text: str, *, is_error: bool = False) -> None:
        self._actions.append(messages.Note(f"{attempt.name}: {text}", is_error, attempt.grant.job))

    def _note(self, text: str, *, is_error: bool = False) -> None:
        self._actions.append(messages.Note(text, is_error))


def _in_seconds(span_us: Duration) -> float:
    return span_us / MICROSECONDS_PER_SECOND
