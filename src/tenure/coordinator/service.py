"""The service: commands in, answers out.

`submit` returns a future; commands of concurrent calls share a batch, and a batch a transaction. A
batch starts as soon as a thread is free; while two run, a small one waits up to 50 ms for more
commands. So an idle service adds no wait, and a busy one batches by itself. If nothing else is
running, a caller that waits runs its batch in its own thread. Only one batch at a time is about a
given job or dedupe key, because a caller's own transaction may have locked its row. Plain threads:
sync callers run their batch or wait, async callers wrap the future (ADR 0004).
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TypeAlias

import msgspec

from tenure.clock import Monotonic, boot_now
from tenure.coordinator.batches import (
    LARGEST_REMEMBERED_BYTES,
    Executor,
    LastWritten,
    PendingCommand,
    PolicyCache,
)
from tenure.coordinator.outages import OutageWatch, Writability
from tenure.coordinator.schedules import CheckSchedule, allow_any, change_schedule
from tenure.coordinator.unblocking import unblock_at_once
from tenure.core.claims import (
    ClaimAnswer,
    ClaimConflict,
    ClaimPlan,
    ClaimRequest,
    ClaimScope,
    ClaimView,
    plan_claims,
    repeated_claim,
    wanted,
)
from tenure.core.commands import Command, Enqueue
from tenure.core.ids import ENTROPY_BYTES, JobId
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job
from tenure.core.outcomes import Moment
from tenure.core.schedules import ScheduleCommand, ScheduleOutcome, check_schedule_command
from tenure.core.validation import Limits, check_claim, check_commands
from tenure.core.verdicts import Answer
from tenure.core.views.job_search import FoundJobs, JobFilter
from tenure.deadlines import (
    CALL_TIMEOUT_S,
    DEADLINE,
    Deadline,
    deadline,
    deadline_error,
    waiting_until,
)
from tenure.errors import Closed, OutcomeUnknown, TenureError
from tenure.ports import NO_WAIT, DedupeKey, Entropy, LeasedJobs, Observer, Store
from tenure.telemetry.unclaimed import why_waiting

_log = logging.getLogger("tenure.coordinator")

MAX_BATCH = 1000
LAST_WRITTEN = 20_000
WORTHWHILE = 100
"""How many commands and wanted jobs start a batch at once, even while others run. Fewer wait for
more, because each transaction costs two milliseconds of CPU, whatever its size."""
UNDELAYED_BATCHES = 2
"""While fewer batches run, one starts with whatever there is: one is decided while another is
written."""


PATIENCE_S = 0.05
"""How long a small batch waits at most for the running ones: one of them may wait for a row that a
caller's own transaction has locked, up to the store's lock time-out."""


DEADLINES_APART_S = 1.0
"""How far the deadlines of calls in a batch may be from that of the first one."""


CLOSE_WITHIN_S = 60.0
"""Longer than a statement may take at any store."""


SweepOverdue: TypeAlias = Callable[[Iterable[Job], Instant | None], bool]
"""Sweeps the jobs whose time is over at an instant, None for now, and returns whether it did: the
sweeper's function of this name."""


def no_sweeper(_: Iterable[Job], __: Instant | None) -> bool:
    """In place of the sweeper's, where readers leave jobs to other processes."""
    return False


Subject: TypeAlias = JobId | DedupeKey
"""A job or dedupe key. If a caller's own transaction has locked it, commands about it wait."""


class _Commands:
    """Commands of one caller, answered together."""

    __slots__ = ("deadline", "future", "pending", "subjects", "waiting", "was_parked")

    def __init__(self, commands: Sequence[Command], until: Deadline) -> None:
        self.pending = list(map(PendingCommand, commands))
        self.subjects = _subjects(commands)
        self.was_parked = False  # for a batch about the same job or key
        self.deadline = until
        self.waiting = self.pending  # commands that wait for a batch
        self.future: Future[list[Answer]] | None = None  # None: the caller's thread runs it

    def fail(self, error: Exception) -> None:
        """Answer the commands that have no answer yet with this error."""
        for pending in self.pending:
            if pending.is_open:
                pending.error = error
        self.finish()

    def promise(self) -> "Future[list[Answer]]":
        """The future answers, for a caller that waits."""
        if self.future is None:
            self.future = Future()
        return self.future

    def finish(self) -> None:
        """Answer the caller, unless its own thread decides."""
        if self.future is None:
            return
        try:
            answers = self.answers()
        except Exception as failure:  # handed to the caller, never swallowed
            self.future.set_exception(failure)
        else:
            self.future.set_result(answers)

    def answers(self) -> list[Answer]:
        """The answers, once every command has one or failed; raises the failure."""
        failures = [pending.error for pending in self.pending if pending.error is not None]
        if failures:
            raise self._summary(failures)
        answers = [pending.answer for pending in self.pending if pending.answer is not None]
        assert len(answers) == len(self.pending)
        return answers

    def _summary(self, failures: list[Exception]) -> Exception:
        """One error for the whole call. It may state that nothing changed only if no command was
        carried out."""
        for error in failures:
            if not (isinstance(error, TenureError) and error.nothing_changed):
                return error
        error = failures[0]
        if not any(pending.answer for pending in self.pending):
            return error
        partly = OutcomeUnknown(
            f"a part of the call was carried out, then: {error}",
            hint="send the same request again: its ids show what became of it",
        )
        partly.__cause__ = error
        return partly


def _subjects(commands: Sequence[Command]) -> list[Subject]:
    """The jobs and dedupe keys that these are about."""
    subjects: list[Subject] = []
    for command in commands:
        subjects.append(command.job_id)
        if isinstance(command, Enqueue) and command.dedupe_key is not None:
            subjects.append(DedupeKey(command.namespace, command.kind, command.dedupe_key))
    return subjects


class _Claim:
    """One claim of one worker session."""

    __slots__ = ("deadline", "future", "request")

    def __init__(self, request: ClaimRequest, until: Deadline) -> None:
        self.request = request
        self.deadline = until
        self.future: Future[ClaimAnswer] = Future()

    def fail(self, error: Exception) -> None:
        """Give the caller this error."""
        self.future.set_exception(error)


def _may_share(one: _Commands | _Claim, other: _Commands | _Claim) -> bool:
    """Whether the deadlines of two calls allow one batch: it has the earliest deadline of its
    calls, so that calls which may wait longer are not in it. [K16]"""
    return abs(one.deadline.until_s - other.deadline.until_s) <= DEADLINES_APART_S


def _earliest(calls: Sequence[_Commands | _Claim]) -> Deadline:
    """The deadline of a batch: none of its callers waits longer than its own. [K16]"""
    if len(calls) == 1:
        return calls[0].deadline
    return Deadline(min(call.deadline.until_s for call in calls))


class Coordinator:
    """Decides for every caller that shares this store. Thread-safe; close it when done."""

    def __init__(
        self,
        store: Store,
        *,
        limits: Limits | None = None,
        entropy: Entropy = os.urandom,
        monotonic: Monotonic = boot_now,
        threads: int | None = None,
        remembered: int = LAST_WRITTEN,
        observer: Observer | None = None,
        outages: OutageWatch | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Every call is answered within `timeout_s`. [K16]"""
        self.outages = outages or OutageWatch(monotonic)
        self.store = store
        self.sweep_overdue: SweepOverdue = no_sweeper
        self.observer, self.limits = observer, limits or Limits()
        self._last_checked: Enqueue | None = None
        self._entropy = entropy
        self._last_written = LastWritten(remembered)
        self.policies = PolicyCache(self.store.settings, monotonic, self.limits.lease)
        self._executor = Executor(
            self.store,
            entropy=entropy,
            watch=self.outages,
            last_written=self._last_written,
            observer=observer,
            policies=self.policies,
        )
        self.timeout_s = timeout_s
        self.writability = Writability(monotonic, timeout_s=timeout_s)
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._commands: deque[_Commands] = deque()
        self._under_way: set[Subject] = set()
        self._parked: deque[_Commands] = deque()  # until a batch about the same has ended
        self._parked_subjects: set[Subject] = set()  # what they are about
        self._claims: dict[ClaimScope, deque[_Claim]] = {}
        self._idle = self._running_in_threads = 0  # threads without a batch, and with one
        self._gathered = 0  # commands and wanted jobs that wait for a batch
        self._batch_started_at = 0.0  # the last one: what waits now has waited since then at most
        self._is_watched = self._closed = False
        self._deciding_callers: set[int] = set()  # threads of callers that run their own batch
        self._threads = [
            threading.Thread(target=self._run, name=f"tenure-coordinator-{number}", daemon=True)
            for number in range(threads or store.parallelism)
        ]
        for thread in self._threads:
            thread.start()

    # --- what callers use ----------------------------------------------------------------------

    def submit_many(
        self, commands: Sequence[Command], *, bodies_are_checked: bool = False
    ) -> Future[list[Answer]]:
        """Answers in the order asked. Raises `InvalidInput` at once, before anything is sent. With
        `bodies_are_checked` the caller has checked payloads and results, or no command can be
        carried out: they are not checked here."""
        call = self._checked(commands, bodies_are_checked=bodies_are_checked)
        promised = call.promise()
        if not commands:
            call.finish()
            return promised
        with self._lock:
            if threading.current_thread() not in self._threads:
                self._refuse_if_closed()
            # Our own threads may still submit follow-on work while closing. [FL5]
            self._gather(call)
        return promised

    def execute_many(self, commands: Sequence[Command]) -> list[Answer]:
        """Submit and wait. If nothing else is under way, the caller's own thread runs the batch: to
        hand it to another thread and back took as long as to decide it. The store keeps the call's
        deadline, as it does when it is read. [K16]"""
        call = self._checked(commands)
        runs_here = is_done = False
        try:
            with self._lock:
                if self._closed:
                    raise Closed
                runs_here = not (self._running or self._gathered)
                if runs_here:
                    self._under_way.update(call.subjects)
                    self._deciding_callers.add(threading.get_ident())
                    self._batch_started_at = time.monotonic()
                else:
                    call.promise()
                    self._gather(call)
            if runs_here:
                self._run_commands([call])
                is_done = True
        finally:  # around the lock too: a signal handler may raise in any call, also in this one
            if runs_here:
                try:
                    self._end_here(call, is_done=is_done)
                except BaseException:
                    self._end_here(call, is_done=is_done)
                    raise
        if call.future is None:  # this thread has run all of it
            return call.answers()
        return call.future.result()

    def submit(self, command: Command) -> Future[list[Answer]]:
        """One command; the future holds a list of one answer."""
        return self.submit_many([command])

    def submit_claim(
        self, request: ClaimRequest, *, wait_us: Duration = NO_WAIT
    ) -> Future[ClaimAnswer]:
        """A claim; concurrent ones of the same scope share a transaction. Answered at once, even if
        there is no work: only a server waits for some."""
        check_claim(request, self.limits)
        call = _Claim(request, deadline(self.timeout_s))
        with self._lock:
            self._refuse_if_closed()
            self._claims.setdefault(request.scope, deque()).append(call)
            self._gathered += request.limit
            self._wake()
        return call.future

    def end_waits(self) -> None:
        """Nothing to end: claims are answered at once here."""

    def execute(self, command: Command) -> Answer:
        """Submit and wait."""
        return self.execute_many([command])[0]

    def claim(self, request: ClaimRequest) -> ClaimAnswer:
        """Claim and wait."""
        return self.submit_claim(request).result()

    def repeat_claim(self, request: ClaimRequest) -> ClaimAnswer:
        """What is left of the grants an earlier, equal claim received; grants nothing. [Q1]"""
        check_claim(request, self.limits)
        # Without candidates nothing is granted, but a repeat is recorded. [Q8]
        planned = self.store.claims.claim(
            request.scope, [request.session], 0, lambda view: plan_claims([request], view, [])
        )
        self._count_conflicts(planned, tries=1, short=0)
        [answer] = planned.answers
        return self._repeat(request) if answer.is_repeat else answer

    def change_schedule(
        self, command: ScheduleCommand, *, check: CheckSchedule = allow_any
    ) -> ScheduleOutcome:
        """Put, pause, resume, run or remove a schedule, in the caller's thread: such requests are
        rare. [SC12] `check` is called with the schedule that the decision is about. [SC13]"""
        check_schedule_command(command, self.limits)
        with self._lock:
            self._refuse_if_closed()
        with waiting_until(deadline(self.timeout_s)):
            return change_schedule(self.store, command, self.observer, self.policies, check)

    def read_jobs(self, ids: Sequence[JobId], *, bodies: bool = True) -> dict[JobId, Job]:
        """The rows of these jobs, for a reader: jobs whose time is over are swept first. [W5]"""
        jobs, now = self._rows(ids, bodies)
        return self._rows(ids, bodies)[0] if self.sweep_overdue(jobs.values(), now) else jobs

    def _rows(self, ids: Sequence[JobId], bodies: bool) -> tuple[dict[JobId, Job], Instant | None]:
        """With the clock that comes with whole rows: a caller that waits for a running job asks
        four times a second."""
        if bodies:
            loaded = self.outages.call(self.store.jobs.load, ids)
            return loaded.jobs, loaded.now
        return self.outages.call(self.store.jobs.read, ids, bodies=False), None

    def why_waiting(self, job: Job) -> str | None:
        """Why a job waits, in a sentence. [OB32]"""
        return why_waiting(self.store, job)

    def list_jobs(self, wanted: JobFilter) -> FoundJobs:
        """A page of jobs, for a reader. It is listed again after a sweep, because a job may no
        longer have the status that is wanted. [W5]"""
        found = self.store.views.jobs(wanted)
        return self.store.views.jobs(wanted) if self.sweep_overdue(found.jobs, None) else found

    @property
    def is_busy(self) -> bool:
        """Whether anything that was submitted, or follows from it, is still under way."""
        with self._lock:
            return bool(self._running or self._gathered or self._parked)

    def close(self) -> None:
        """Finish what was submitted, then stop. The store stays open: it is its owner's. A thread
        that hangs with its store is left behind: it ends with the process."""
        with self._lock:
            self._closed = True
            self._condition.notify_all()
        until = time.monotonic() + CLOSE_WITHIN_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            left_s = max(0.0, until - time.monotonic())
            self._condition.wait_for(lambda: not self._other_callers(), left_s)
            is_hanging = bool(self._other_callers())
        if is_hanging or any(thread.is_alive() for thread in self._threads):
            _log.warning("closed while the store does not answer: what was asked last is unknown")

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Closed

    def _checked(
        self, commands: Sequence[Command], *, bodies_are_checked: bool = False
    ) -> _Commands:
        """A call whose commands are within the limits. A producer's calls repeat its names and
        policies, the very same objects."""
        limits = self.limits
        if bodies_are_checked:
            limits = msgspec.structs.replace(limits, bodies_are_checked=True)
        check_commands(commands, limits, self._last_checked)
        last = commands[-1] if commands else None
        if isinstance(last, Enqueue) and len(last.payload) <= LARGEST_REMEMBERED_BYTES:
            self._last_checked = last
        return _Commands(commands, deadline(self.timeout_s))

    def _gather(self, call: _Commands) -> None:
        """Called with the lock held."""
        self._commands.append(call)
        self._gathered += len(call.waiting)
        self._wake()

    def _end_here(self, call: _Commands, *, is_done: bool) -> None:
        """After a batch in its caller's own thread. `is_done`: no signal handler ended it early."""
        with self._lock:
            if not is_done:
                self._end_batch([call])
            self._deciding_callers.discard(threading.get_ident())
            if self._closed:
                self._condition.notify_all()
            self._wake()

    @property
    def _running(self) -> int:
        """How many batches run."""
        return self._running_in_threads + len(self._deciding_callers)

    def _other_callers(self) -> set[int]:
        """Called with the lock held. Not this thread: a signal handler that closes would wait for
        the call that it interrupts."""
        return self._deciding_callers - {threading.get_ident()}

    # --- batches -------------------------------------------------------------------------------

    def _run(self) -> None:
        """One thread: take whatever has gathered, run it, again.

        It takes claims and commands alternately, never both at once: an idle thread can take the
        other.
        """
        claims_first = True
        while True:
            with self._lock:
                while not self._is_worth_starting():
                    if self._closed and not self._gathered:
                        self._condition.notify_all()  # the threads that wait for a batch
                        return
                    self._wait()
                takes_claims = bool(self._claims) and (claims_first or not self._commands)
                claims = self._take_claims() if takes_claims else []
                commands = [] if takes_claims else self._take_commands()
                self._running_in_threads += 1
                self._batch_started_at = time.monotonic()
                self._wake()
            claims_first = not takes_claims
            if claims:
                self._run_claims(claims)
            if commands:
                self._run_commands(commands)
            with self._lock:
                self._running_in_threads -= 1

    def _is_worth_starting(self) -> bool:
        if not (self._commands or self._claims):
            return False
        return (
            self._running < UNDELAYED_BATCHES
            or self._gathered >= WORTHWHILE
            or time.monotonic() - self._batch_started_at >= PATIENCE_S
        )

    def _wait(self) -> None:
        """Called with the lock held. While batches run, one of the waiting threads wakes up now and
        then: a batch that hangs must not block all others."""
        watches = self._running > 0 and not self._is_watched
        self._is_watched |= watches
        self._idle += 1
        self._condition.wait(PATIENCE_S if watches else None)
        self._idle -= 1
        if watches:
            self._is_watched = False

    def _wake(self) -> None:
        """Called with the lock held. If no thread is idle, the next one that ends its batch checks
        again."""
        if self._idle and (self._is_worth_starting() or (self._running and not self._is_watched)):
            self._condition.notify()

    def _take_commands(self) -> list[_Commands]:
        """The calls of the next batch. One about a job or dedupe key that a running batch is about
        is parked: if a caller's own transaction has locked the row, only one thread waits for
        it. Parked calls get batches of their own, so that no others wait with them."""
        taken: list[_Commands] = []
        room = MAX_BATCH
        while self._commands and (not taken or len(self._commands[0].waiting) <= room):
            call = self._commands[0]
            if taken and not (
                call.was_parked is taken[0].was_parked and _may_share(call, taken[0])
            ):
                break
            self._commands.popleft()
            self._gathered -= len(call.waiting)
            if not self._is_free(call):
                self._parked.append(call)
                self._parked_subjects.update(call.subjects)
            elif self._may_start(call):
                room -= len(call.waiting)
                taken.append(call)
        for call in taken:
            self._under_way.update(call.subjects)
        return taken

    def _may_start(self, call: _Commands | _Claim) -> bool:
        """Whether the caller still waits; then it cannot cancel from now on. A call whose deadline
        has passed while it waited for a batch is answered here, and never carried out. [K16]"""
        future = call.future
        assert future is not None  # only calls that another thread decides are gathered
        if not (future.running() or future.set_running_or_notify_cancel()):
            return False
        if call.deadline.has_passed:
            call.fail(deadline_error(self.timeout_s, is_known=True))
            return False
        return True

    def _is_free(self, call: _Commands) -> bool:
        """Whether no running batch and no parked call is about the same jobs. No call overtakes a
        parked one, or a call about many jobs might wait for ever."""
        return self._under_way.isdisjoint(call.subjects) and self._parked_subjects.isdisjoint(
            call.subjects
        )

    def _end_batch(self, calls: list[_Commands]) -> None:
        """Called with the lock held. What was parked for these calls goes to the front of the
        queue."""
        for call in calls:
            self._under_way.difference_update(call.subjects)
        if not self._parked or all(
            self._parked_subjects.isdisjoint(call.subjects) for call in calls
        ):
            return
        for call in self._parked:
            call.was_parked = True
            self._gathered += len(call.waiting)
        self._commands.extendleft(reversed(self._parked))
        self._parked.clear()
        self._parked_subjects.clear()
        self._wake()

    def _take_claims(self) -> list[_Claim]:
        if not self._claims:
            return []
        scope, waiting = next(iter(self._claims.items()))
        taken: list[_Claim] = []
        room = MAX_BATCH
        while waiting and (not taken or waiting[0].request.limit <= room):
            if taken and not _may_share(waiting[0], taken[0]):
                break
            call = waiting.popleft()
            self._gathered -= call.request.limit
            if self._may_start(call):
                room -= call.request.limit
                taken.append(call)
        del self._claims[scope]
        if waiting:
            self._claims[scope] = waiting  # at the end: other scopes come first
        return taken

    def _run_commands(self, calls: list[_Commands]) -> None:
        batch: list[PendingCommand] = []
        for call in calls:
            for pending in call.waiting:
                if pending.answer is None and pending.error is None:
                    batch.append(pending)
        later: list[PendingCommand] = []
        before = DEADLINE.get()
        try:
            DEADLINE.set(_earliest(calls))
            later = self._executor.run_wave(batch)
        except Exception as failure:  # handed to every caller that still waits, never swallowed
            for pending in batch:
                if pending.is_open:
                    pending.error = failure
        finally:
            DEADLINE.set(before)
        with self._lock:  # before the answers: a caller's next command is not parked
            self._end_batch(calls)
            if later:
                calls = self._put_back(calls)
        for call in calls:
            if call.future is not None:
                call.finish()
        blocked: list[JobId] = []
        for pending in batch:
            blocked += pending.may_unblock
        if blocked:
            unblock_at_once(self.store, self.submit_many, blocked)

    def _put_back(self, calls: list[_Commands]) -> list[_Commands]:
        """Called with the lock held. Commands that waited for an earlier one about their job go to
        the end of the queue, so that a caller who sends many about one job delays no other.
        Returns the calls that are done."""
        done: list[_Commands] = []
        for call in calls:
            call.waiting = [pending for pending in call.pending if pending.is_open]
            if call.waiting:
                call.promise()  # another thread may continue with it
                call.was_parked = False
                self._commands.append(call)
                self._gathered += len(call.waiting)
            else:
                done.append(call)
        self._wake()
        return done

    def _run_claims(self, calls: list[_Claim]) -> None:
        before = DEADLINE.get()
        try:
            DEADLINE.set(_earliest(calls))
            answered = self._plan_and_claim(calls)
        except Exception as failure:  # handed to every caller that waits, never swallowed
            for call in calls:
                call.fail(failure)
            return
        finally:
            DEADLINE.set(before)
        for call, answer in answered:
            if answer.is_repeat:
                self._run_repeat(call)
            else:
                call.future.set_result(answer)

    def _run_repeat(self, call: _Claim) -> None:
        # On its own: if the store fails now, the grants of the others are committed nevertheless.
        try:
            with waiting_until(call.deadline):
                answer = self._repeat(call.request)
        except Exception as failure:  # handed to the caller that waits, never swallowed
            call.fail(failure)
        else:
            call.future.set_result(answer)

    def _plan_and_claim(self, calls: list[_Claim]) -> list[tuple[_Claim, ClaimAnswer]]:
        before: dict[JobId, Job] = {}
        sent_us = self.outages.monotonic()
        requests = [call.request for call in calls]
        tries = 0

        def plan(view: ClaimView) -> ClaimPlan:
            nonlocal tries
            tries += 1
            if self.observer is not None:
                before.update((job.id, job) for job in view.candidates)
            self.outages.read_clock(view.now, sent_us=sent_us, epoch=view.epoch)
            entropy = self._entropy(ENTROPY_BYTES * len(view.candidates))
            starts = range(0, len(entropy), ENTROPY_BYTES)
            pieces = [entropy[start : start + ENTROPY_BYTES] for start in starts]
            return plan_claims(requests, view, pieces)

        sessions = list(dict.fromkeys(request.session for request in requests))
        planned = self.outages.call(
            self.store.claims.claim, requests[0].scope, sessions, wanted(requests), plan
        )
        self._last_written.remember(planned.changes)
        if self.observer is not None:
            self.observer.saved(planned.changes, before)
        answered = list(zip(calls, planned.answers, strict=True))
        short = sum(len(answer.grants) < call.request.limit for call, answer in answered)
        self._count_conflicts(planned, tries=tries, short=short)
        return answered

    def _count_conflicts(self, planned: ClaimPlan, *, tries: int, short: int) -> None:
        """Count the conflicts that claims met; `short` of them got fewer jobs than wanted."""
        if self.observer is None:
            return
        refused = sum(answer.cause is not None for answer in planned.answers)
        limited = sum(answer.rate_limited is not None for answer in planned.answers)
        for conflict, number in (
            (ClaimConflict.REFUSED, refused),
            (ClaimConflict.RESTARTED, planned.restarts),
            (ClaimConflict.LOST, tries - 1),
            (ClaimConflict.LOCKED, short if planned.skipped_locked else 0),
            (ClaimConflict.HELD, limited),
        ):
            if number:
                self.observer.contended(conflict, number)

    def _repeat(self, request: ClaimRequest) -> ClaimAnswer:
        """What is left of the grants an earlier, equal claim received. [Q1]"""
        loaded = self.outages.call(self.store.jobs.load, LeasedJobs(request.session), bodies=False)
        histories = self.outages.call(self.store.events.load, list(loaded.jobs))
        at = Moment(now=loaded.now, epoch=loaded.epoch, entropy=b"")
        jobs = [(job, histories[job.id]) for job in loaded.jobs.values()]
        answer = repeated_claim(request, jobs, at)
        if not answer.grants:
            return answer
        # The session may have many more leases: bodies are read only for this answer. [Z10]
        whole = self.outages.call(self.store.jobs.load, [grant.job_id for grant in answer.grants])
        at = Moment(now=whole.now, epoch=whole.epoch, entropy=b"")
        jobs = [(job, histories[job.id]) for job in whole.jobs.values()]
        return repeated_claim(request, jobs, at)
