"""The sweeper: writes down what time has already revoked, records outages of the store, and fires
schedules.

Any number may run; each passed deadline is recorded once, because every sweep is a command that
compare-and-swap judges. [W1] It expires nothing on a clock that jumped until a second reading
confirms it [W2], and records an outage or a jump that its process saw before it expires a lease.
[O6] [O11] Where no sweeper runs, a process that reads a job whose lease is over sweeps that job,
under the same rules. [W5]

Sweepers share the work: one of them sweeps, and the others only read its ticks, until these stop or
they saw something themselves that must be recorded. [W6]
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock

import msgspec

from tenure.clock import Boot, Monotonic, boot_now
from tenure.coordinator.outages import SHORTEST_OUTAGE
from tenure.coordinator.periodic import Periodic
from tenure.coordinator.schedules import Firer
from tenure.coordinator.service import Coordinator
from tenure.coordinator.unblocking import unblock_recorded
from tenure.core.commands import Outage, Sweep
from tenure.core.events import has_unknown_value
from tenure.core.ids import JobId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant, seconds
from tenure.core.job import Job
from tenure.core.leases import needs_sweep
from tenure.core.verdicts import Answer, Reply
from tenure.deadlines import waiting_at_most
from tenure.errors import Closed, StoreUnavailable
from tenure.ports import DueJobs, Tick
from tenure.telemetry.log_lines import FailureLog, LostAttemptLog

SWEEP_INTERVAL = seconds(0.75)
"""Less than the second in which a passed deadline is on record: a pass takes time, too. [V1]"""
JUMP_THRESHOLD = seconds(10)
FIRE_WITHIN = seconds(0.25)
"""How long one pass fires schedules: leases must expire in time also while thousands of occurrences
are caught up with. [V1]"""
TICK_IS_LATE = Duration(2 * SWEEP_INTERVAL)
"""A process that follows takes over when the last tick is as old as this. [W6]"""
FOLLOWERS_SPREAD = Duration(2 * SWEEP_INTERVAL)
"""A process that follows reads the tick again up to this long after it might be late. [W6]"""
LONGEST_PAUSE = Duration(TICK_IS_LATE + FOLLOWERS_SPREAD)
SAW_NO_OUTAGE = seconds(4)
"""Two answers that came within this time leave no room for an outage between them: it is a second
less than the shortest one, and a second more than the longest pause of a process that follows."""

PAGE = 500
PAGES_PER_PASS = 20

FRESH = SHORTEST_OUTAGE
"""How old the last tick may be for a reader to sweep at once. If it is older, this process may have
missed an outage since, so the reader starts over, like a sweeper that starts."""
READER_WAITS = seconds(3)
"""How long a reader waits until it may sweep: usually two intervals. [O6]"""
READER_CALL_S = 2.0
"""How long a reader waits for the store: the caller's own transaction may have it locked."""
RETRY_AFTER = seconds(5)
"""After a sweep that failed, reads are not delayed by another for this long."""

_log = logging.getLogger("tenure.sweeper")


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass did."""

    swept: int = 0
    fired: int = 0
    next_in_us: Duration | None = None
    is_behind: bool = False
    distrusts_clock: bool = False
    is_idle: bool = False
    """There was nothing to do."""
    follows: bool = False
    """Another process sweeps: this one only read its tick. [W6]"""
    outage: Outage | None = None


class ClockGuard:
    """Whether a reading of the store's clock may be swept by. Pure bookkeeping, no clock of its
    own: a single bad step of the store's clock must not expire every lease at once."""

    def __init__(self, *, threshold_us: Duration, interval_us: Duration) -> None:
        self._threshold_us = threshold_us
        self._interval_us = interval_us
        self._trusted: tuple[Instant, int] | None = None
        self._suspect: tuple[Instant, int] | None = None
        self.jump: Outage | None = None
        """The jump that the last reading confirmed, if it did."""

    @property
    def has_trusted(self) -> bool:
        """Whether a reading was admitted before."""
        return self._trusted is not None

    def admits(self, *, last_tick: Instant | None, now: Instant, monotonic_us: int) -> bool:
        """Take a reading; False while a jump ahead waits for its confirmation. [W2]"""
        self.jump = None
        is_ahead = self._is_ahead(last_tick, now, monotonic_us)
        if self._suspect is not None:
            suspected_at, read_at = self._suspect
            elapsed = monotonic_us - read_at
            if elapsed < self._interval_us:
                return False
            self._suspect = None
            if now - (suspected_at + elapsed) <= self._threshold_us:
                if is_ahead and self._trusted is not None:
                    # Only an earlier reading of this process proves a jump: the last tick may
                    # be old because no process was running. [O11]
                    self.jump = Outage(self._trusted[0], min(suspected_at, now), is_jump=True)
                self._trusted = (now, monotonic_us)
                return True
        if is_ahead:
            self._suspect = (now, monotonic_us)
            return False
        self._trusted = (now, monotonic_us)
        return True

    def agrees(self, now: Instant, *, monotonic_us: int) -> bool:
        """Whether a reading is no jump since the last one that was admitted."""
        return self.has_trusted and not self._is_ahead(None, now, monotonic_us)

    def _is_ahead(self, last_tick: Instant | None, now: Instant, monotonic_us: int) -> bool:
        expected = last_tick
        if self._trusted is not None:
            trusted_at, read_at = self._trusted
            expected = Instant(trusted_at + monotonic_us - read_at)
        return expected is not None and now - expected > self._threshold_us


class Sweeper:
    """Sweeps one store through a coordinator: once, or from `start` to `stop` in a thread, or the
    jobs that are read. Thread-safe."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        interval_us: Duration = SWEEP_INTERVAL,
        jump_threshold_us: Duration = JUMP_THRESHOLD,
        monotonic: Monotonic = boot_now,
        pause: Callable[[float], None] = time.sleep,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        self._coordinator = coordinator
        self._store = coordinator.store
        self._monotonic = monotonic
        self._pause = pause
        self._fraction = fraction
        self._watch = coordinator.outages
        self._unrecorded: list[Outage] = []
        self._lost = LostAttemptLog()
        self._interval_us = interval_us
        self._jump_threshold_us = jump_threshold_us
        self._begin()
        self._admission = Lock()
        self._is_running = False
        self._firer = Firer(coordinator, monotonic=monotonic)
        self._next_in_us: Duration | None = None  # until a schedule is due
        self._failure_log = FailureLog()
        self._retries_at = boot_now()
        self._periodic = Periodic(
            "sweeper",
            self._sweep_often,
            interval_us=interval_us,
            next_in=lambda: self._next_in_us,
        )

    def _begin(self) -> None:
        """Start over, without any reading of the clock."""
        self._guard = ClockGuard(
            threshold_us=self._jump_threshold_us, interval_us=self._interval_us
        )
        self._sweeps_from_us: int | None = None
        self._skipped_last_pass = False
        self._ticked_us: int | None = None
        self._is_admitted = False
        self._swept_after: Instant | None = None  # the tick to replace; None: another sweeps
        self._was_overtaken = False
        self._followed_us: int | None = None  # when the tick of another was read last

    def start(self) -> None:
        """Sweep in a thread from now on. Call it once."""
        self._is_running = True
        self._periodic.start()

    def stop(self) -> bool:
        """End after the pass under way, if any. Returns whether it has ended."""
        self._is_running = False
        return self._periodic.stop()

    def _sweep_often(self) -> bool:
        self._next_in_us = None  # also if the pass fails
        report = self.sweep_once()
        self._next_in_us = report.next_in_us
        if not report.follows and report.next_in_us is not None:
            self._next_in_us = min(report.next_in_us, self._interval_us)
        return report.is_behind

    @property
    def is_sweeping(self) -> bool:
        """Whether this process is the one that sweeps, or takes over. [W6]"""
        return self._swept_after is not None

    def sweep_once(self) -> SweepReport:
        """One pass. Raises what the store raises."""
        with self._admission:
            is_admitted, report = self._admit()
        if not is_admitted:
            return report
        self._lost.log_left_out(self._monotonic())
        if report.is_idle:
            self._observe(0)
            return report
        swept, is_behind, overdue_us = 0, True, 0
        for _ in range(PAGES_PER_PASS):
            with self._coordinator.writability.judged():
                due = self._watch.call(self._store.jobs.load, DueJobs(PAGE))
            self._coordinator.writability.wrote()
            if self._watch.is_out:  # since the tick: the next pass records it
                return SweepReport(swept=swept, is_behind=True, outage=report.outage)
            late_us = [due.now - job.due_at for job in due.jobs.values() if job.due_at is not None]
            overdue_us = max([overdue_us, *late_us])
            swept += self._sweep(due.jobs)
            is_behind = len(due.jobs) == PAGE
            if not is_behind:
                break
        self._observe(overdue_us)
        # Where the process that ended the last parent has not done it. [FL5]
        submit = self._coordinator.submit_many
        is_behind |= unblock_recorded(self._store, submit, limit=PAGE).is_behind
        # After the sweep: whether a schedule's last run is still live depends on it. [SC7]
        firing = self._firer.fire_due(within_us=FIRE_WITHIN)
        return SweepReport(
            swept=swept,
            fired=firing.fired,
            next_in_us=firing.next_in_us,
            is_behind=is_behind,
            outage=report.outage,
        )

    def _observe(self, overdue_us: int) -> None:
        if self._coordinator.observer is not None:
            self._coordinator.observer.swept(Duration(overdue_us))

    def sweep_overdue(self, jobs: Iterable[Job], now: Instant | None) -> bool:
        """For a reader: sweep the jobs whose lease or wait is over. Returns whether some were over
        and could be swept, by this process or another. A read never fails because the sweep did,
        and writes nothing while nothing is over. [W5]"""
        timed = [job for job in jobs if job.due_at is not None or job.start_by is not None]
        if not timed or boot_now() < self._retries_at:
            return False
        if now is None:
            # Good enough to learn whether something may be due.
            estimate = self._watch.estimate()
            now = self._store.now() if estimate is None else estimate[0]
        overdue = [job.id for job in timed if needs_sweep(job, now)]
        if not overdue:
            return False
        try:
            self._sweep_for_reader(overdue)
        except Exception as failure:  # for example a role or a file that may only be read
            self._retries_at = Boot(boot_now() + RETRY_AFTER)
            if self._failure_log.failed(boot_now()) is not None:
                _log.warning("leases that are over could not be recorded: %s", failure)
            return False
        return True

    def _sweep_for_reader(self, ids: Sequence[JobId]) -> None:
        """Waits while a sweeper that has just started would wait, unless one runs in this process:
        then its next pass has the jobs. Another process may sweep them meanwhile."""
        give_up_us = self._monotonic() + READER_WAITS
        while True:
            with waiting_at_most(READER_CALL_S):
                overdue = self._overdue_of(ids)
                if not overdue:
                    return
                if self._admits_reader():
                    self._sweep(overdue)
                    return
            if self._is_running or self._monotonic() >= give_up_us:
                return
            self._pause(self._interval_us / MICROSECONDS_PER_SECOND)

    # --- whether leases may be expired now -----------------------------------------------------

    def _admit(self, *, is_regular: bool = True) -> tuple[bool, SweepReport]:
        """Tick, record the outages and jumps that were noticed, and return whether leases may be
        expired now. Called with the lock held: what one thread has still to record, another must
        not overlook."""
        sent_us = self._watch.monotonic()
        self._is_admitted = False
        with self._coordinator.writability.judged():
            tick = self._tick(is_regular=is_regular)
        if not isinstance(tick, Tick):
            self._coordinator.writability.wrote()  # the other process has, just now
            self._observe(0)
            return False, SweepReport(follows=True, next_in_us=tick)
        last_tick, now = tick.before, tick.now
        self._ticked_us = self._monotonic()
        outage = self._record(self._watch.wrote(now, is_regular=is_regular))
        if self._lets_others_record(last_tick):
            return False, SweepReport(outage=outage)
        if outage is None and self._watch.is_late(sent_us) and not self._skipped_last_pass:
            # Either this process was suspended, or the answer took long. The other calls of this
            # process show which; they are answered by the next pass.
            self._skipped_last_pass = True
            return False, SweepReport(is_behind=True)
        self._skipped_last_pass = False  # answers that are always late must not end all sweeping
        if not self._guard.admits(last_tick=last_tick, now=now, monotonic_us=self._monotonic()):
            if self._guard.has_trusted:  # else it was not read for a while: no jump
                _log.warning("the store's clock jumped ahead; waiting for a second reading")
            return False, SweepReport(distrusts_clock=True, outage=outage)
        outage = self._record(self._guard.jump) or outage
        self._is_admitted = True
        self._coordinator.writability.wrote()
        is_idle = not tick.has_work and tick.next_in_us != 0
        return True, SweepReport(outage=outage, is_idle=is_idle, next_in_us=tick.next_in_us)

    def _tick(self, *, is_regular: bool) -> Tick | Duration:
        """Tick for a pass. If another process sweeps, and this one has nothing to record: how long
        until it reads the tick of that process again. [W6]"""
        if not is_regular or self._watch.is_failing or self._unrecorded:
            tick = self._watch.call(self._store.upkeep.tick)
        else:
            if self._swept_after is None:
                sent_us = self._watch.monotonic()
                last_tick, now = self._watch.call(self._store.upkeep.last_tick)
                self._watch.read_clock(now, sent_us=sent_us)
                if self._follows(last_tick, now):
                    return self._until_late(last_tick, now)
                self._swept_after = last_tick
            tick = self._watch.call(self._store.upkeep.tick, after=self._swept_after)
        if tick.written is not None:
            self._swept_after, self._was_overtaken = tick.written, False
        elif not self._was_overtaken:
            # Perhaps by a reader, which ticks once: this process sweeps until it is again.
            self._swept_after, self._was_overtaken = tick.before, True
        else:
            self._swept_after, self._was_overtaken = None, False
            return self._until_late(tick.before, tick.now)
        return tick

    def _follows(self, last_tick: Instant | None, now: Instant) -> bool:
        """Whether another process has swept just now, by a clock that this one agrees with."""
        now_us = self._monotonic()
        self._lets_others_record(last_tick)
        followed_us, self._followed_us = self._followed_us, now_us
        is_late = last_tick is None or not 0 <= now - last_tick < TICK_IS_LATE
        if is_late and followed_us is not None and now_us - followed_us > SAW_NO_OUTAGE:
            # The store may have failed the process that swept until now, which records it. [O6]
            self._sweeps_from_us = now_us + 2 * self._interval_us
        if is_late or (
            self._guard.has_trusted and not self._guard.agrees(now, monotonic_us=now_us)
        ):
            return False
        return self._guard.admits(last_tick=last_tick, now=now, monotonic_us=now_us)

    def _until_late(self, last_tick: Instant | None, now: Instant) -> Duration:
        """Until the tick could be late, and a random share more: so that one of many processes
        takes over first, and each of them asks seldom."""
        age_us = 0 if last_tick is None else min(max(0, now - last_tick), TICK_IS_LATE)
        return Duration(TICK_IS_LATE - age_us + int(FOLLOWERS_SPREAD * self._fraction()))

    def _admits_reader(self) -> bool:
        """Whether a reader may have its jobs swept now. It ticks only if the last tick is no longer
        fresh, the clock disagrees with it, or a call failed since: a reader may ask often."""
        if not self._admission.acquire(timeout=READER_CALL_S):
            return False
        try:
            now = self._watch.call(self._store.jobs.load, []).now
            monotonic_us = self._monotonic()
            is_fresh = self._ticked_us is not None and monotonic_us - self._ticked_us <= FRESH
            if (
                is_fresh
                and self._is_admitted
                and not self._watch.is_failing
                and self._guard.agrees(now, monotonic_us=monotonic_us)
            ):
                return True
            if self._is_running:
                return False
            if not is_fresh:
                self._begin()
            return self._admit(is_regular=False)[0]
        finally:
            self._admission.release()

    def _record(self, outage: Outage | None) -> Outage | None:
        """Before anything is swept: what an outage, or a jump of the clock, overlapped costs
        nothing. [O6] [O10] [O11]"""
        if outage is not None:
            self._unrecorded.append(outage)
            if outage.is_jump:
                _log.warning(
                    "the store's clock jumped ahead by about %.0f s; leases and time-outs that end "
                    "because of it cost no attempt",
                    (outage.ended_at - outage.began_at) / MICROSECONDS_PER_SECOND,
                )
        while self._unrecorded:  # the store may fail again just now, and the outage still counts
            self._watch.call(self._store.upkeep.record_outage, self._unrecorded[0])
            del self._unrecorded[0]
        return outage

    def _lets_others_record(self, last_tick: Instant | None) -> bool:
        """Whether this sweeper has just started on a store that others have swept. It cannot know
        of an outage that has just ended; the processes that noticed it record it within an
        interval. [O6]"""
        now_us = self._monotonic()
        if self._sweeps_from_us is None:
            is_alone = last_tick is None
            self._sweeps_from_us = now_us if is_alone else now_us + 2 * self._interval_us
        return now_us < self._sweeps_from_us

    # --- sweeping ------------------------------------------------------------------------------

    def _sweep(self, due: Mapping[JobId, Job]) -> int:
        # Jobs of a newer version are left to its processes. [Y5]
        jobs = {job_id: job for job_id, job in due.items() if not has_unknown_value(job)}
        if not jobs:
            return 0
        # A time-out may count from the claim, which is before every renewal.
        claimed_at = [job.claimed_at for job in jobs.values() if job.claimed_at is not None]
        outages: Sequence[Outage] = ()
        if claimed_at:
            outages = self._watch.call(self._store.upkeep.outages, since=min(claimed_at))
        # One call each, coalesced anyway: a job that cannot be swept must not stop the others.
        calls = [
            (job, self._coordinator.submit(Sweep(job_id=job.id, outages=tuple(outages))))
            for job in jobs.values()
        ]
        moved = [(job, reply) for job, call in calls if (reply := _moved_on(job, call)) is not None]
        now = self._monotonic()
        for job, reply in moved:
            if reply.job is not None and not reply.replayed:  # otherwise another process logs it
                self._lost.swept(job, reply.job, now)
        return len(moved)

    def _overdue_of(self, ids: Sequence[JobId]) -> dict[JobId, Job]:
        now = self._watch.call(self._store.jobs.load, []).now
        rows = self._watch.call(self._store.jobs.read, ids, bodies=False)
        return {job_id: job for job_id, job in rows.items() if needs_sweep(job, now)}


def _moved_on(job: Job, call: "Future[list[Answer]]") -> Reply | None:
    """The answer if this sweep, or another at the same time, moved the job on; None if none did."""
    try:
        (answer,) = call.result()
    except (StoreUnavailable, Closed):
        raise
    except Exception:
        _log.exception("job %s could not be swept", job.id)
        return None
    assert isinstance(answer, Reply)
    return answer if answer.job is not None and answer.job.rev != job.rev else None
