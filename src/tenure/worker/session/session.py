"""The worker's side of the contract, without input or output: events in, actions out.

Workers do work, never decide truth: every verdict is final for its attempt and nothing is retried
but transport. Holds no clock (events come with one, in microseconds of the boot clock), no thread
and no randomness of its own, so a test or a simulator drives it through years in milliseconds.

What a job costs does not depend on how many others run: deadlines are in a heap, slots are counted
as they fill and empty, and no turn walks through all attempts, except when every one of them is
concerned (a drain, a jump of the clock) and once a second for polled attempts.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import assert_never

import msgspec

from tenure.clock import NEVER, Boot
from tenure.core.claims import ClaimAnswer
from tenure.core.commands import Fail, Heartbeat, Release, Start, WorkerCommand
from tenure.core.ids import JobId, Kind, LeaseId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant, seconds
from tenure.core.policy import Backoff, Random, delay_us
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import Cause, Disposition, VerdictKind, counted
from tenure.handlers.registry import Isolation
from tenure.telemetry.log_lines import FailureLog
from tenure.worker.frames import (
    AskToStop,
    CheckpointSaved,
    Conflicted,
    LeaseRenewed,
    ProgressMade,
    SelfCompleted,
    Stopped,
)
from tenure.worker.session import messages
from tenure.worker.session.attempts import (
    NO_CHILD,
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

CLAIM_ANSWER_WITHIN = seconds(60)  # a coordinator may hold a claim open while it waits for work
REPORT_WITHIN = seconds(60)
MAX_REPORT_TRIES = 12
MAX_REFUSED_REPORTS = 3
SERVER_REFUSES = "the server refuses this worker; its token may be revoked or limited"
LONGEST_CANCEL_RESERVE = seconds(1)
SHUTDOWN = "shutdown"
QUICK_STOP = seconds(3)
TIME_TO_STOP = seconds(2)
"""How long a handler that was asked to stop has at least, even on a busy machine."""

HAND_BACK = Backoff(initial_us=seconds(1), cap_us=seconds(60))
"""How long a job waits that was handed back again without having run."""

MAX_HANDED_BACK = 1000
"""How many jobs are remembered that were handed back without having run."""

SHORT_RUN = seconds(0.05)
"""Jobs that usually run longer gain nothing from claims that wait for more free slots."""

GATHER = seconds(0.005)
LONGEST_GATHER = seconds(0.02)
"""How long claims wait for more free slots while short jobs run: as long as a claim takes, within
these bounds."""

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

    def next_at(self, now: Boot) -> Boot:
        """The next of the three instants."""
        return min((at for at in (self.ask_at, self.kill_at) if now < at), default=self.end_at)


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
    """One worker session. Feed it events with `handle`, carry out the actions it returns."""

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
        self._actor = settings.actor
        self._concurrency = concurrency
        self._random = random
        self._notes_every_end = notes_every_end
        self._claimer = ClaimPlanner(settings, random)
        self._claim: tuple[int, Boot] | None = None  # ticket and send time of the claim in flight
        self._ended_claim: int | None = None  # the ticket of a held claim that we ended ourselves
        self._attempts: dict[int, LeasedAttempt] = {}
        self._timers = Timers()  # the next deadline of each attempt, by run
        self._running: dict[int, LeasedAttempt] = {}  # the longest unpolled first
        self._occupied = 0  # slots: attempts with a handler or a child reserved for it
        self._occupied_by: Counter[Kind] = Counter()
        self._occupied_in: Counter[Isolation | None] = Counter()
        self._lanes = settings.lanes
        self._serving: dict[Isolation, int] = {}  # children, as far as is known
        self._can_grow: dict[Isolation, bool] = {}
        self._room_since: Boot | None = None  # since when slots become free for the next claim
        self._usual_run_us = 2 * SHORT_RUN
        self._usual_claim_us = GATHER
        self._young: deque[LeasedAttempt] = deque()  # began within SHORT_RUN, the oldest first
        self._long = 0  # slots whose handlers have run for longer
        self._leases: set[LeaseId] = set()
        self._handed_back: dict[JobId, int] = {}  # how often in a row, the longest ago first
        self._outbox = Outbox(stats)
        self._lease_polls = LeasePolls()
        self._actions: list[messages.Action] = []
        self._has_begun = False
        self._drain: Drain | None = None
        self._next_drain_step_at = NEVER
        self._runs = 0
        self._now = Boot(0)

    @property
    def has_reported_silence(self) -> bool:
        """Whether the coordinator does not answer, and the log says so."""
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
        return is_idle or self._now >= self._drain.end_at

    @property
    def _is_claim_lost(self) -> bool:
        """Whether a drain gives the claim up. Jobs that it was granted come back when their leases
        end: no reason to wait for a coordinator that is gone."""
        return self._claim is None and self._claimer.tries >= LAST_CLAIM_TRIES

    def handle(self, event: messages.Event, now: Boot) -> list[messages.Action]:
        """Take one event; return what must be done now."""
        return self.handle_all([event], now)

    def handle_all(self, events: Sequence[messages.Event], now: Boot) -> list[messages.Action]:
        """Take all events since the last turn, so that their commands are sent in one batch."""
        self._now = now
        for event in events:
            self._dispatch(event)
        self._count_long()
        self._do_due()
        self._actions += self._outbox.flush(now)
        self.next_at = self._earliest()
        actions, self._actions = self._actions, []
        return actions

    def _dispatch(self, event: messages.Event) -> None:
        match event:
            case messages.Finished():
                self._finished(event)
            case messages.Prepared():
                self._prepared(event.run)
            case messages.Answered(answer=ClaimAnswer() as answer):
                self._coordinator_answers()
                self._claim_answered(event.ticket, answer)
            case messages.Answered():
                self._coordinator_answers()
                self._batch_returned(event)
            case messages.Unanswered():
                if self._claim is not None and self._claim[0] == event.ticket:
                    self._claim_failed(event.why, event.retry_after_us)
                else:
                    self._batch_returned(event)
            case messages.Ticked():
                pass
            case messages.ChildrenReady() | messages.Woken():
                self._has_begun |= isinstance(event, messages.ChildrenReady)
                self._claimer.wake(self._now)
            case messages.ChildrenServing():
                self._serving[event.lane] = event.children
                self._can_grow[event.lane] = event.can_grow
            case messages.ClockJumped():
                self._clock_jumped()
            case messages.LeasesPolled():
                self._leases_polled(event)
            case CheckpointSaved() | ProgressMade() | messages.LeaseWanted() | SelfCompleted():
                self._child_sent(event)
            case messages.DrainRequested():
                self._asked_to_drain(event)
            case messages.StopRequested():
                self._stop_now()
            case messages.Broken():
                self._break(event.why)
            case _:
                assert_never(event)

    # --- time ----------------------------------------------------------------------------------

    def _earliest(self) -> Boot:
        """When something is due next."""
        next_at = min(
            self._timers.next_at,
            self._outbox.next_at,
            self._lease_polls.next_at(self._running),
            self._next_claim_at(),
        )
        return next_at if self._drain is None else min(next_at, self._drain.next_at(self._now))

    def _schedule(self, attempt: LeasedAttempt) -> None:
        """One of its deadlines may be sooner than before."""
        self._timers.by(attempt.run, attempt.next_at)

    def _do_due(self) -> None:
        self._drop_overdue_requests()
        self._continue_drain()
        if self._now >= self._timers.next_at:
            self._do_due_of_attempts()
        self._poll_leases()
        self._claim_jobs()

    def _do_due_of_attempts(self) -> None:
        due = [self._attempts[run] for run in self._timers.due(self._now)]
        for attempt in due:
            self._check_lease(attempt)
        self._heartbeats(due)
        for attempt in due:
            if attempt.run in self._attempts:
                self._retry(attempt)
            if attempt.run in self._attempts:
                self._schedule(attempt)

    def _drop_overdue_requests(self) -> None:
        for ticket in self._outbox.overdue(self._now):
            self._batch_returned(messages.Unanswered(ticket, "no answer in time"))
        if self._claim is not None:
            _, sent_at = self._claim
            if self._now >= sent_at + CLAIM_ANSWER_WITHIN:
                self._claim_failed("no answer in time")

    def _check_lease(self, attempt: LeasedAttempt) -> None:
        if not attempt.is_open or not attempt.phase.has_handler:
            return
        if self._now >= attempt.fence_at and attempt.phase is Phase.PREPARING:
            # Nothing of it has run, and its lease is still valid for a moment. [WP24]
            attempt.unrun_because = NO_CHILD
            self._stop(attempt, StopFor.SHUTDOWN)
            return
        if self._now >= attempt.fence_at:
            # By the time the coordinator gives the job to someone else, this handler must be
            # gone. Nothing is reported.
            self._count_overdue(attempt)
            self._note_about(attempt, attempt.ends_by)
            self._lose(attempt)
            return
        is_running = attempt.phase is Phase.RUNNING
        if is_running and attempt.kill_at is not None and self._now >= attempt.kill_at:
            if attempt.is_cancelled:
                self._note_about(attempt, describe_kill(attempt, self._now))
            self._stop(attempt, StopFor.CANCEL if attempt.is_cancelled else StopFor.SHUTDOWN)

    def _count_overdue(self, attempt: LeasedAttempt) -> None:
        is_silence = attempt.ends_by is NO_RENEWAL
        self.stats.fenced += is_silence
        self.stats.timed_out += not is_silence

    # --- claiming ------------------------------------------------------------------------------

    def _next_claim_at(self) -> Boot:
        """When to claim, or to give up waiting for the answer to a claim."""
        if self._claim is not None:
            return Boot(self._claim[1] + CLAIM_ANSWER_WITHIN)
        claim_at = max(self._claimer.next_at, self._gathers_until())
        if self._now >= claim_at and self._awaits_children:
            claim_at = Boot(self._young[0].began_at + SHORT_RUN)
        # A claim that is due and was not sent needs a slot of its kinds: an event will bring it.
        return claim_at if self._now < claim_at and self._may_claim() else NEVER

    @property
    def is_waiting_for_work(self) -> bool:
        """Whether it has room and has found nothing to do, so that a hint is worth something. May
        be read by any thread: a wrong answer only costs a moment."""
        return self._claim is None and self._now < self._claimer.next_at and self._may_claim()

    def _may_claim(self) -> bool:
        """Whether a claim could be sent now, as far as this session is concerned."""
        if self._claimer.unanswered is not None:
            return True
        if self._drain is not None or not self._has_begun:
            return False
        # Reports that cannot be delivered must not pile up while the store is unreachable.
        is_piling_up = len(self._attempts) >= 2 * self._concurrency
        return self._occupied < self._concurrency and not is_piling_up

    def _good_part(self) -> int:
        """How many jobs a claim should be about at least. Short jobs end one soon after the other,
        and a claim of one costs almost as much as one of many: while more of them run, it waits a
        moment. Long ones are not waited for."""
        is_quiet = self._occupied <= self._long or self._drain is not None
        if is_quiet or self._usual_run_us > SHORT_RUN:
            return 1
        return min(self._concurrency - self._long, MAX_PER_CLAIM)

    @property
    def _awaits_children(self) -> bool:
        """Whether running jobs will soon leave their children, so that no job is claimed that would
        need a new one: a start of a process takes longer than many short jobs."""
        return bool(self._young) and self._good_part() > 1

    def _gather_us(self) -> Duration:
        """How long a claim waits at most: a few milliseconds, or as long as a claim takes if jobs
        take no longer than that. On a busy machine both take long."""
        usual_us = max(GATHER, self._usual_claim_us)
        return GATHER if self._usual_run_us > usual_us else usual_us

    def _gathers_until(self) -> Boot:
        free = self._concurrency - self._occupied
        if self._room_since is None or free >= self._good_part():
            return Boot(0)
        return Boot(self._room_since + self._gather_us())

    def _count_long(self) -> None:
        """Find the handlers that are no longer young."""
        while self._young:
            oldest = self._young[0]
            if self._now < oldest.began_at + SHORT_RUN:
                return
            self._young.popleft()
            oldest.is_long = oldest.phase.has_handler
            self._long += oldest.is_long

    def _ready(self, kinds: tuple[Kind, ...]) -> int:
        """How many attempts of any of these kinds could start at once."""
        return min(map(self._ready_in, {self._lanes.get(kind) for kind in kinds}))

    def _needs_ready(self, kinds: tuple[Kind, ...]) -> bool:
        """Whether only attempts are worth claiming that could start at once."""
        lanes = (self._lanes.get(kind) for kind in kinds)
        can_grow = all(lane is None or self._can_grow.get(lane, True) for lane in lanes)
        return self._awaits_children or not can_grow

    def _ready_in(self, lane: Isolation | None) -> int:
        serving = 0 if lane is None else self._serving.get(lane, 0)
        if lane is Isolation.PROCESS:
            return max(0, serving - self._occupied_in[lane])
        return self._concurrency if serving else 0

    def _claim_jobs(self) -> None:
        if self._claim is not None or self._now < self._claimer.next_at or not self._may_claim():
            return
        if self._claimer.unanswered is None and self._now < self._gathers_until():
            return
        free = self._concurrency - self._occupied
        request = self._claimer.ask(
            free=free,
            running=self._occupied_by,
            ready=self._ready,
            only_ready=self._needs_ready,
        )
        if request is None:
            return
        self._room_since = None
        ticket = self._outbox.ticket()
        self._claim = (ticket, self._now)
        self.stats.claims += 1
        is_closed = self._drain is not None or not self._has_begun
        wait_us = AT_ONCE if is_closed else self._claimer.wait_us
        self._actions.append(messages.SendClaim(ticket, request, wait_us))

    def _claim_failed(self, why: str, retry_after_us: Duration = AT_ONCE) -> None:
        assert self._claim is not None
        (ticket, _), self._claim = self._claim, None
        if ticket != self._ended_claim:
            self.stats.transport_failures += 1
            self._note_failure("a claim", why)
        self._claimer.failed(self._now, retry_after_us=retry_after_us)
        if self.is_done:
            self._note(CLAIM_LOST)

    def _claim_answered(self, ticket: int, answer: ClaimAnswer) -> None:
        if self._claim is None or self._claim[0] != ticket:
            return  # its retry, already sent, brings the same grants
        sent_at = self._claim[1]
        self._claim = None
        if answer.cause is not None:
            self.stats.rejected += 1
            self._claimer.answered(0, self._now)
            worker = "another worker uses the same worker id"
            self._break(f"a claim was REJECTED ({answer.cause}): {worker}")
            return
        took_us = self._now - sent_at
        self._claimer.answered(len(answer.grants), self._now, waited_us=took_us, held=answer.held)
        if answer.grants:
            took_us = min(took_us - min(answer.waited_us, took_us), LONGEST_GATHER)
            self._usual_claim_us = Duration((3 * self._usual_claim_us + took_us) // 4)
        # While the coordinator held the claim, no lease had begun. [WP12]
        begun_at = Boot(sent_at + min(answer.waited_us, self._now - sent_at))
        for grant in answer.grants:
            if grant.lease_id not in self._leases:
                self._granted(grant, begun_at)

    def _granted(self, grant: Grant, begun_at: Boot) -> None:
        """Take a grant whose lease began no earlier than `begun_at`."""
        self.stats.granted += 1
        self._runs += 1
        attempt = LeasedAttempt(self._runs, grant, actor=self._actor, sent_at=begun_at)
        self._attempts[attempt.run] = attempt
        self._leases.add(grant.lease_id)
        self._occupied += 1
        self._occupied_by[grant.job.kind] += 1
        self._occupied_in[self._lanes.get(grant.job.kind)] += 1
        self._schedule(attempt)
        # Too late to start it; handing it back costs the job nothing.
        if self._drain is not None or self._now >= attempt.fence_at:
            attempt.unrun_because = SHUTDOWN if self._drain is not None else attempt.is_late
            self._report(attempt, attempt.release())
            return
        if grant.is_started:
            self._begin(attempt)
        else:
            self._actions.append(messages.Prepare(attempt.run, grant))

    def _begin(self, attempt: LeasedAttempt) -> None:
        """Its claim has started it."""
        attempt.start_sent_at = attempt.claim_sent_at  # its grant answers its start, too [N4]
        self._move(attempt, Phase.RUNNING)
        self.stats.started += 1
        self._actions.append(messages.Prepare(attempt.run, attempt.grant, attempt.fence_at))
        self._schedule(attempt)

    def _move(self, attempt: LeasedAttempt, phase: Phase) -> None:
        """Count the slots and remember who runs: the only place where a phase changes."""
        if attempt.phase is phase:
            return
        if phase is Phase.RUNNING:
            self._running[attempt.run] = attempt
            self._young.append(attempt)
            self._handed_back.pop(attempt.grant.job_id, None)
            attempt.began_at = self._now
        elif attempt.phase is Phase.RUNNING:
            del self._running[attempt.run]
        if attempt.phase.has_handler and not phase.has_handler:
            kind = attempt.grant.job.kind
            self._occupied -= 1
            self._long -= attempt.is_long
            self._occupied_by[kind] -= 1
            self._occupied_in[self._lanes.get(kind)] -= 1
            if self._room_since is None:
                self._room_since = self._now
        attempt.phase = phase

    def _prepared(self, run: int) -> None:
        attempt = self._attempts.get(run)
        if attempt is not None and attempt.phase is Phase.PREPARING:
            self._move(attempt, Phase.STARTING)
            self._outbox.put(attempt, attempt.start(self._now), self._now)

    # --- heartbeats and answers ----------------------------------------------------------------

    def _heartbeats(self, looked_at: list[LeasedAttempt]) -> None:
        """Renew every lease that is due, and with it the ones that would be due soon."""
        due = [e for e in looked_at if e.is_open and self._now >= e.heartbeat_at]
        if not due:
            return
        while (run := self._timers.first()) is not None:
            attempt = self._attempts[run]
            if not attempt.is_open or self._now < attempt.heartbeat_at - attempt.heartbeat_us // 2:
                break
            self._timers.drop(run)
            looked_at.append(attempt)
            due.append(attempt)
        self._actions += self._outbox.renew(due, self._now)

    def _poll_leases(self) -> None:
        poll = self._lease_polls.poll(self._running, self._now)
        if poll is not None:
            self._actions.append(poll)

    def _leases_polled(self, found: messages.LeasesPolled) -> None:
        self._lease_polls.answered(found, self._now)
        for run, news in (found.news or {}).items():
            attempt = self._attempts.get(run)
            if attempt is not None and attempt.hurry(news, self._now):
                self._schedule(attempt)

    def _batch_returned(self, event: messages.Answered | messages.Unanswered) -> None:
        sent = self._outbox.returned(event.ticket)
        if sent is None:
            return
        if isinstance(event, messages.Unanswered) and not event.is_refused:
            self.stats.transport_failures += 1
            self._note_failure(counted(len(sent.commands), "request"), event.why)
        for position, (run, command) in enumerate(zip(sent.runs, sent.commands, strict=True)):
            attempt = self._attempts.get(run)
            if attempt is None:
                continue
            if isinstance(event, messages.Answered):
                assert not isinstance(event.answer, ClaimAnswer)
                self._verdict(attempt, command, event.answer[position], sent.sent_at)
            elif event.is_refused:
                self._refused(attempt, command, event.why, is_alone=len(sent.commands) == 1)
            else:
                self._unanswered(attempt, command, event.retry_after_us)

    # --- verdicts ------------------------------------------------------------------------------

    def _verdict(
        self, attempt: LeasedAttempt, command: WorkerCommand, verdict: Verdict, sent_at: Boot
    ) -> None:
        match verdict.kind:
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
            case VerdictKind.COMMITTED:
                self.stats.count(verdict.disposition)
                self._note_end(attempt, command, verdict.disposition, verdict.run_at)
                self._close(attempt)
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
        is_renewed = attempt.renewed(sent_at, self._now, verdict)
        if isinstance(command, Start) and attempt.phase is Phase.STARTING:
            self.stats.started += 1
            self._move(attempt, Phase.RUNNING)
            attempt.tries = 0
            self._actions.append(messages.Begin(attempt.run, attempt.fence_at))
            if self._drain is not None and self._now >= self._drain.ask_at:
                self._ask_to_stop(attempt, SHUTDOWN, self._drain.kill_at)
        elif is_renewed and attempt.phase is Phase.RUNNING:
            self._actions.append(LeaseRenewed(attempt.run, attempt.fence_at))
        if verdict.cancel is not None and not attempt.is_cancelled:
            attempt.is_cancelled = True
            remaining_us = verdict.cancel.remaining_us
            reserve_us = min(remaining_us // 5, LONGEST_CANCEL_RESERVE)
            kill_at = Boot(sent_at + remaining_us - reserve_us)
            self._ask_to_stop(attempt, verdict.cancel.reason or "cancelled", kill_at)
        self._schedule(attempt)

    def _unanswered(
        self, attempt: LeasedAttempt, command: WorkerCommand, retry_after_us: Duration = AT_ONCE
    ) -> None:
        not_before = self._now + retry_after_us
        if isinstance(command, Heartbeat):
            latest = self._now + attempt.heartbeat_us
            again_at = max(attempt.repeat_at(self._now), min(not_before, latest))
            attempt.heartbeat_lost(command.hb_seq, again_at=Boot(again_at))
        elif command is attempt.report or attempt.phase is Phase.STARTING:
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
            self._unanswered(attempt, command)
            return
        self._note_about(attempt, why, is_error=True)
        if isinstance(command, Heartbeat):
            attempt.drop_news()
            attempt.heartbeat_at = self._now
            self._schedule(attempt)
        elif attempt.report is command and attempt.tries <= MAX_REFUSED_REPORTS:
            attempt.tries += 1
            self._report(attempt, malformed(attempt, why))
        else:
            self.stats.rejected += 1
            self._lose(attempt)

    def _retry(self, attempt: LeasedAttempt) -> None:
        if attempt.retry_at is None or self._now < attempt.retry_at:
            return
        attempt.retry_at = None
        if attempt.phase is Phase.STARTING:
            self._outbox.put(attempt, attempt.start(self._now), self._now)
        elif attempt.report is not None:
            assert attempt.first_try_at is not None
            is_late = self._now >= attempt.first_try_at + REPORT_WITHIN
            if is_late or attempt.tries >= MAX_REPORT_TRIES:
                self.stats.unreported += 1
                self._note_about(attempt, "its report could not be delivered", is_error=True)
                self._close(attempt)
            else:
                self._outbox.put(attempt, attempt.report, self._now)

    # --- handlers ------------------------------------------------------------------------------

    def _child_sent(
        self, event: CheckpointSaved | ProgressMade | messages.LeaseWanted | SelfCompleted
    ) -> None:
        attempt = self._attempts.get(event.run)
        if attempt is None or not attempt.is_open:
            return
        match event:
            case CheckpointSaved():
                attempt.saved_checkpoint(event.checkpoint, self._now)
            case ProgressMade():
                attempt.progressed(event.progress, self._now)
            case messages.LeaseWanted() if not attempt.is_lent:
                attempt.is_lent = True
                self._actions.append(
                    messages.LeaseLent(attempt.run, attempt.grant.lease_id, self._actor)
                )
            case messages.LeaseWanted():
                pass  # it has the lease; answering each time would let a handler fill our memory
            case SelfCompleted():
                attempt.settled = event.result
        self._schedule(attempt)

    def _ask_to_stop(self, attempt: LeasedAttempt, reason: str, kill_at: Boot) -> None:
        is_sooner = attempt.kill_at is None or kill_at < attempt.kill_at
        if is_sooner:
            attempt.kill_at = kill_at
            self._schedule(attempt)
        if not attempt.asked_to_stop and attempt.phase is Phase.RUNNING:
            attempt.asked_at = self._now
            self._actions.append(AskToStop(attempt.run, reason))

    def _stop(self, attempt: LeasedAttempt, why: StopFor) -> None:
        if attempt.phase.has_handler and attempt.phase is not Phase.STOPPING:
            self.stats.kills += attempt.phase is Phase.RUNNING
            self._move(attempt, Phase.STOPPING)
            self._actions.append(messages.Kill(attempt.run))
        attempt.stop_for = why

    def _lose(self, attempt: LeasedAttempt) -> None:
        """The lease is lost: nothing that the handler still does is reported."""
        attempt.is_open = False
        if attempt.phase.has_handler:
            self._stop(attempt, StopFor.LOST)
        else:
            self._close(attempt)

    def _close(self, attempt: LeasedAttempt) -> None:
        attempt.is_open = False
        self._move(attempt, Phase.REPORTING)
        del self._attempts[attempt.run]
        self._timers.drop(attempt.run)
        self._leases.discard(attempt.grant.lease_id)

    def _finished(self, event: messages.Finished) -> None:
        attempt = self._attempts.get(event.run)
        if attempt is None:
            return
        outcome = event.outcome
        self.stats.crashes += isinstance(outcome, messages.Died)
        self.stats.displaced += isinstance(outcome, messages.Displaced)
        if isinstance(outcome, messages.Unstarted):
            attempt.unrun_because = outcome.why
        self._move(attempt, Phase.REPORTING)
        if attempt.began_at != NEVER:
            attempt.ran_us = Duration(self._now - attempt.began_at)
            ran_us = min(attempt.ran_us, 2 * SHORT_RUN)
            self._usual_run_us = (7 * self._usual_run_us + ran_us) // 8
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

    def _hand_back(self, attempt: LeasedAttempt) -> Release:
        """The release of an attempt that did not run. The first one of a job leaves it its place;
        if the job comes back and cannot run again, others get a longer chance each time. [WP24]"""
        why = attempt.unrun_because or SHUTDOWN
        self._note_about(attempt, f"handing it back, it did not run: {why}")
        if why == SHUTDOWN:
            return attempt.release()
        times = self._handed_back.pop(attempt.grant.job_id, 0)
        self._handed_back[attempt.grant.job_id] = times + 1
        if len(self._handed_back) > MAX_HANDED_BACK:
            del self._handed_back[next(iter(self._handed_back))]
        if not times:
            return attempt.release()
        delay = delay_us(HAND_BACK, failures=times, fraction=self._random())
        return attempt.release(delay_us=delay)

    def _report(self, attempt: LeasedAttempt, report: WorkerCommand) -> None:
        assert not isinstance(report, Start | Heartbeat)
        did_not_run = attempt.began_at == NEVER or bool(attempt.unrun_because)
        if isinstance(report, Release) and did_not_run and not attempt.is_cancelled:
            report = self._hand_back(attempt)
        self._move(attempt, Phase.REPORTING)
        attempt.report = report
        if attempt.first_try_at is None:
            attempt.first_try_at = self._now
        self._outbox.put(attempt, report, self._now)

    # --- ending --------------------------------------------------------------------------------

    def _clock_jumped(self) -> None:
        self._note("the wall clock jumped ahead: renewing every lease now")
        for attempt in self._attempts.values():
            if attempt.heartbeat_at != NEVER:  # else a heartbeat would start its timeout
                attempt.heartbeat_at = self._now
                self._schedule(attempt)

    def _asked_to_drain(self, request: messages.DrainRequested) -> None:
        """Drain. A signal is answered by a line in the log, even if the worker was draining."""
        drain = self._drain
        if drain is not None and not request.by_signal:
            return
        if drain is None:
            drain = self._begin_drain(request.grace_us)
        running = sum(
            attempt.phase.has_handler and attempt.stop_for is None
            for attempt in self._attempts.values()
        )
        left_us = Duration(max(0, drain.kill_at - self._now))
        text = describe_drain(running, left_us, by_signal=request.by_signal)
        self._actions.append(messages.Draining(text, running))

    def _begin_drain(self, grace_us: Duration) -> Drain:
        """Stop claiming; what runs may finish."""
        self._drain = drain = drain_within(grace_us, self._now)
        self._next_drain_step_at = drain.ask_at
        self._claimer.hurry(self._now)
        for attempt in list(self._attempts.values()):
            if attempt.phase is Phase.PREPARING:
                self._stop(attempt, StopFor.SHUTDOWN)
        self._end_waits()
        return drain

    def _end_waits(self) -> None:
        """End a claim that is held open longer than the drain lasts; its retry does not wait."""
        if self._claim is not None:
            self._ended_claim = self._claim[0]
            self._actions.append(messages.EndWaits())

    def _continue_drain(self) -> None:
        """Ask all to stop, later kill those that have not started. An attempt that starts to run
        in between is asked then."""
        drain = self._drain
        if drain is None or self._now < self._next_drain_step_at:
            return
        self._next_drain_step_at = drain.kill_at if self._now < drain.kill_at else NEVER
        for attempt in list(self._attempts.values()):
            if attempt.phase is Phase.RUNNING:
                self._ask_to_stop(attempt, SHUTDOWN, drain.kill_at)
            if attempt.phase is Phase.STARTING and self._now >= drain.kill_at:
                self._stop(attempt, StopFor.SHUTDOWN)

    def _stop_now(self) -> None:
        self._drain = stop_at_once(self._drain, self._now)
        self._next_drain_step_at = NEVER  # all is stopped here
        for attempt in list(self._attempts.values()):
            if attempt.phase.has_handler and attempt.stop_for is None:
                self._stop(attempt, StopFor.SHUTDOWN)
        self._end_waits()

    def _break(self, why: str) -> None:
        self.failure = self.failure or why
        self._note(why, is_error=True)
        self._stop_now()

    def _coordinator_answers(self) -> None:
        """The coordinator answered."""
        if self._drain is not None:
            self._claimer.hurry(self._now)  # grants of a claim that was lost can be handed back
        lasted_us = self._failure_log.succeeded(self._now)
        if lasted_us is not None:
            self._note(f"the coordinator answers again, after {_in_seconds(lasted_us):.1f} s")

    def _note_failure(self, what: str, why: str) -> None:
        """Log that a request got no answer, at most every half minute. Decides nothing."""
        line = self._failure_log.failed(self._now)
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
        how = describe_end(attempt, report, disposition, run_at=run_at, now=self._now)
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
