"""One attempt as its worker sees it: its lease, its handler, its news and its report.

Pure bookkeeping with instants of the boot clock. Two things end independently: the lease (the
right to report) and the handler (a process, a task, a thread); an attempt is over when both have.
"""

from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, TypeVar, assert_never

from tenure.clock import NEVER, Boot
from tenure.core.commands import Complete, Fail, Heartbeat, Release, Settle, WorkerCommand
from tenure.core.ids import Actor
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant, seconds
from tenure.core.job import JobError, Progress
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import Disposition, ErrorClass, LeaseNews, ReleaseKind, Stage
from tenure.worker.frames import (
    Conflicted,
    Raised,
    Returned,
    Snoozed,
    Stopped,
    completion,
    report_id,
)
from tenure.worker.session.messages import Died, Displaced, Killed, Outcome, Unstarted

LONG_LEASE = seconds(20)
LEAST_MARGIN = seconds(2)
NO_DELAY = Duration(0)
NEWS_INTERVAL = seconds(1)
SHORTEST_REPEAT = seconds(2)
"""The shortest pause before a heartbeat without an answer is repeated, however little of its lease
remains."""
BOUNDED_MARGIN = seconds(0.02)
SLOW_ANSWER = seconds(2)

NO_RENEWAL = "its lease was not renewed in time, stopping it"
TIMED_OUT = "it ran into its timeout, stopping it"
CANCEL_DUE = "it did not stop within the grace of its cancel, stopping it"

News = tuple[Progress | None, bytes | None]
"""Progress and checkpoint that the coordinator does not know yet."""
NO_NEWS: News = (None, None)


def _merge(older: News, newer: News) -> News:
    return (
        older[0] if newer[0] is None else newer[0],
        older[1] if newer[1] is None else newer[1],
    )


_C = TypeVar("_C", Fail, Release)


class Phase(Enum):
    """How far an attempt is."""

    RUNNING = auto()  # or about to: its child gets it as soon as it may
    STOPPING = auto()  # killed, not yet known to be gone
    REPORTING = auto()  # the handler is gone, its report is on its way


class StopFor(Enum):
    """Why a handler was killed; decides what is reported once it is gone."""

    LOST = auto()  # the lease is lost: report nothing
    CANCEL = auto()  # the cancel's grace is over: acknowledge it
    SHUTDOWN = auto()  # hand the job back


def margin_us(lease_us: Duration) -> Duration:
    """How long before its end the worker abandons a lease: room for skew and for the kill
    itself."""
    if lease_us >= LONG_LEASE:
        return Duration(max(lease_us // 10, LEAST_MARGIN))
    return Duration(lease_us // 10 + min(lease_us // 20, seconds(0.1)))


def fence_at(
    sent_at: Boot, *, ttl_us: Duration, lease_us: Duration, is_bounded: bool = False
) -> Boot:
    """When the worker abandons its lease, counted from when it *sent* the request.

    If a timeout or a cancel deadline ends the lease, renewing cannot move that end, and no other
    worker is about to get the job: the whole margin would only shorten the handler's time.
    """
    margin = margin_us(lease_us)
    if is_bounded:
        margin = Duration(min(margin, BOUNDED_MARGIN + ttl_us // 100))
    return Boot(sent_at + max(0, min(ttl_us, lease_us) - margin))


class LeasedAttempt:
    """What the session keeps of one grant, which its claim has started. [N4]"""

    # What most attempts never change: an assignment for each would cost every job.
    phase = Phase.RUNNING
    is_open = True  # as far as is known, the lease is valid
    asked_at: Boot | None = None  # when its handler was asked to stop
    is_cancelled = False  # asked to stop by a cancel, not by this worker's shutdown
    kill_at = NEVER
    stop_for: StopFor | None = None
    sends_alone = False  # a batch it was part of was refused
    is_lent = False  # the handler may complete the attempt itself
    settled: bytes | None = None  # the result that the handler committed itself
    unrun_because = ""  # why it is handed back without having run
    ran_us: Duration | None = None
    report: Settle | None = None
    tries = 0  # of the report
    first_try_at: Boot | None = None
    retry_at = NEVER
    _repeat_at = NEVER  # when the last heartbeat is repeated if it is not answered
    _news = NO_NEWS
    _unconfirmed = NO_NEWS
    _news_sent_at = Boot(0)
    _found = LeaseNews.NONE

    def __init__(
        self, run: int, grant: Grant, *, actor: Actor, sent_at: Boot, began_at: Boot
    ) -> None:
        policy = grant.job.policy
        timeout_us, lease_us = policy.timeout_us, policy.lease_us
        self.run = run
        self.grant = grant
        self.actor = actor
        self.claim_sent_at = sent_at
        self.began_at = began_at  # on this worker
        is_bounded = timeout_us is not None and timeout_us <= lease_us
        self.fence_at = fence_at(
            sent_at, ttl_us=grant.ttl_us, lease_us=lease_us, is_bounded=is_bounded
        )
        # The reason to log if nothing changes until `fence_at`.
        self.ends_by = TIMED_OUT if is_bounded else NO_RENEWAL
        self.heartbeat_us = policy.heartbeat_interval_us
        self.heartbeat_at = Boot(sent_at + self.heartbeat_us)
        self._hb_seq = grant.job.hb_seq

    @property
    def name(self) -> str:
        """What log lines call it."""
        return f"job {self.grant.job_id} ({self.grant.job.kind}) attempt {self.grant.attempt}"

    @property
    def next_at(self) -> Boot:
        """Its next deadline."""
        if self.phase is Phase.REPORTING:
            return min(self.retry_at, self.heartbeat_at) if self.is_open else self.retry_at
        next_at = min(self.fence_at, self.heartbeat_at) if self.is_open else NEVER
        return min(next_at, self.kill_at) if self.phase is Phase.RUNNING else next_at

    # --- the lease -----------------------------------------------------------------------------

    def renewed(self, sent_at: Boot, answered_at: Boot, verdict: Verdict) -> bool:
        """A heartbeat sent at `sent_at` was accepted; whether the lease's end moved."""
        lease_us, ttl_us = self.grant.job.policy.lease_us, verdict.ttl_us or NO_DELAY
        bound = self._bound(sent_at, answered_at, verdict)
        until = fence_at(sent_at, ttl_us=ttl_us, lease_us=lease_us, is_bounded=bound is not None)
        # Answers may overtake each other: an older one must not shorten what a newer one gave.
        # A bound does: no renewal moves the end that it names.
        if until <= self.fence_at and bound is None:
            return False
        self.fence_at = until
        self.ends_by = bound or NO_RENEWAL
        return True

    @property
    def is_late(self) -> str:
        """Why a grant whose lease is over, or almost, was too late."""
        if self.ends_by is TIMED_OUT and self.grant.job.policy.timeout_us is not None:
            timeout_s = self.grant.job.policy.timeout_us / MICROSECONDS_PER_SECOND
            return f"its timeout of {timeout_s:g} s was over before it could start"
        return "its lease was almost over when the grant arrived"

    def _bound(self, sent_at: Boot, answered_at: Boot, verdict: Verdict) -> str | None:
        """The timeout or cancel deadline that ends this lease, if any. That less than the whole
        lease is left proves neither: an early heartbeat renews nothing. [L16]"""
        policy, ttl_us = self.grant.job.policy, verdict.ttl_us or NO_DELAY
        if verdict.cancel is not None and verdict.cancel.remaining_us <= ttl_us:
            return CANCEL_DUE
        if ttl_us >= policy.lease_us or policy.timeout_us is None:
            return None
        # The coordinator counted the ttl from some instant between these two.
        latest_end = min(answered_at, sent_at + SLOW_ANSWER) + ttl_us
        return TIMED_OUT if latest_end >= self.claim_sent_at + policy.timeout_us else None

    # --- heartbeats and news -------------------------------------------------------------------

    def progressed(self, progress: Progress, now: Boot) -> None:
        """The handler made progress: a heartbeat carries it soon, at most one each second."""
        self._news = (progress, self._news[1])
        self._news_due(now)

    def saved_checkpoint(self, checkpoint: bytes, now: Boot) -> None:
        """The handler saved a checkpoint."""
        self._news = (self._news[0], checkpoint)
        self._news_due(now)

    def _news_due(self, now: Boot) -> None:
        soon = Boot(max(now, self._news_sent_at + NEWS_INTERVAL))
        self.heartbeat_at = min(self.heartbeat_at, soon)

    @property
    def has_unconfirmed(self) -> bool:
        """Whether there is progress or a checkpoint that no answer has confirmed yet."""
        return self._news != NO_NEWS or self._unconfirmed != NO_NEWS

    def heartbeat(self, now: Boot) -> Heartbeat:
        """The next heartbeat, with whatever is new."""
        self._hb_seq += 1
        # Without an answer the next is due at half of what remains, with one after the interval.
        self.heartbeat_at = self._repeat_at = self.repeat_at(now)
        if self._news != NO_NEWS:
            self._news_sent_at = now
        # Sends again what an earlier heartbeat carried and no answer confirmed.
        carried = _merge(self._unconfirmed, self._news)
        self._unconfirmed, self._news = carried, NO_NEWS
        progress, checkpoint = carried
        return Heartbeat(
            job_id=self.grant.job_id,
            lease_id=self.grant.lease_id,
            actor=self.actor,
            hb_seq=self._hb_seq,
            progress=progress,
            checkpoint=checkpoint,
        )

    def hurry(self, news: LeaseNews, now: Boot) -> bool:
        """A poll found this: whether a heartbeat is due now. Once for each kind of news, because
        what it finds may last: a handler may keep running after its own commit."""
        is_known = news is LeaseNews.NONE or news is self._found
        if is_known or (news is LeaseNews.CANCEL and self.is_cancelled):
            return False
        self._found = news
        self.heartbeat_at = now
        return True

    def repeat_at(self, now: Boot) -> Boot:
        """When a heartbeat that is not answered now is repeated: at half of what remains of the
        lease, as long as that is some time, and no later than any other heartbeat. [WP26]"""
        shortest_us = min(self.heartbeat_us // 8, SHORTEST_REPEAT)
        remaining_us = max((self.fence_at - now) // 2, shortest_us)
        return Boot(now + min(remaining_us, self.heartbeat_us))

    def heartbeat_answered(self, hb_seq: int, sent_at: Boot) -> None:
        """What it carried is stored. An older heartbeat confirms nothing of the newest."""
        if hb_seq == self._hb_seq:
            self._unconfirmed = NO_NEWS
            if self.heartbeat_at == self._repeat_at:
                self.heartbeat_at = Boot(sent_at + self.heartbeat_us)

    def heartbeat_lost(self, hb_seq: int, *, again_at: Boot) -> None:
        """It got no answer: what it carried is sent again, unless there is newer news."""
        if hb_seq == self._hb_seq:
            self._news = _merge(self._unconfirmed, self._news)
            self._unconfirmed = NO_NEWS
            is_repeat = self.heartbeat_at == self._repeat_at  # nothing else has made it due since
            self.heartbeat_at = again_at if is_repeat else min(self.heartbeat_at, again_at)

    def drop_news(self) -> None:
        """Progress or checkpoint is out of bounds, and every heartbeat with it would be refused."""
        self._news = self._unconfirmed = NO_NEWS

    # --- commands ------------------------------------------------------------------------------

    def _command(self, command: type[_C], what: str, **fields: Any) -> _C:
        return command(
            job_id=self.grant.job_id,
            lease_id=self.grant.lease_id,
            actor=self.actor,
            request_id=report_id(self.grant.lease_id, what),
            **fields,
        )

    def complete(self, result: bytes) -> Complete:
        """The report of a success."""
        return completion(self.grant.job_id, self.grant.lease_id, self.actor, result)

    def fail(self, error: JobError, retry_after_us: Duration = NO_DELAY) -> Fail:
        """The report of a failure."""
        return self._command(Fail, "fail", error=error, retry_after_us=retry_after_us)

    def release(
        self, kind: ReleaseKind = ReleaseKind.DEPLOY, delay_us: Duration = NO_DELAY
    ) -> Release:
        """Hands the job back; under a cancel the coordinator takes it as acknowledgement."""
        return self._command(Release, "release", kind=kind, delay_us=delay_us)

    def crash(self, how: str) -> Fail:
        """The report of a handler whose process died."""
        error = JobError(
            error_class=ErrorClass.UNCLASSIFIED,
            type="ProcessDied",
            message=f"the handler's process {how}",
            stage=Stage.EXEC,
        )
        return self.fail(error)


# --- what is reported and logged of it -----------------------------------------------------------

_ENDS = {
    Disposition.SUCCEEDED: ("succeeded", ""),
    Disposition.FAILED: ("failed for good", ""),
    Disposition.RETRY_SCHEDULED: ("failed", ", retry scheduled"),
    Disposition.DEAD_LETTERED: ("failed", ", dead lettered"),
    Disposition.CANCELLED: ("cancelled", ""),
    Disposition.RELEASED: ("handed back", ""),
    None: ("over", ""),
}


def describe_end(
    attempt: LeasedAttempt,
    report: WorkerCommand,
    disposition: Disposition | None,
    *,
    run_at: Instant | None,
    now: Boot,
) -> str:
    """How an attempt ended, after how long, when the next one starts if there is one, and with
    which error if it failed."""
    ran_us = attempt.ran_us
    after = "" if ran_us is None else f" after {ran_us / MICROSECONDS_PER_SECOND:.3f} s"
    said = ""
    if isinstance(report, Fail):
        said = f": {report.error.type}: {report.error.message}".partition("\n")[0]
    newer = (f"was accepted as {disposition}", "")  # a word of a newer server [Y4]
    ended, became = _ENDS.get(disposition, newer)
    if disposition is Disposition.RETRY_SCHEDULED and run_at is not None:
        became = f", next attempt {_when(attempt, run_at, now)}"
    return f"{ended}{after}{became}{said}"


def _when(attempt: LeasedAttempt, run_at: Instant, now: Boot) -> str:
    """The time until an instant of the store's clock. The host's clock may show another time, but
    the claim of this attempt is known on both."""
    claimed_at = attempt.grant.job.claimed_at
    if claimed_at is None:  # over HTTP a grant has durations only [L8]
        at = datetime.fromtimestamp(run_at / MICROSECONDS_PER_SECOND, UTC)
        return f"at {at:%Y-%m-%d %H:%M:%S} UTC"
    left_us = max(0, (run_at - claimed_at) - (now - attempt.claim_sent_at))
    return f"in {left_us / MICROSECONDS_PER_SECOND:.1f} s"


def describe_kill(attempt: LeasedAttempt, now: Boot) -> str:
    """Why a cancelled handler is killed now."""
    assert attempt.asked_at is not None
    had_s = (now - attempt.asked_at) / MICROSECONDS_PER_SECOND
    return f"it did not stop within {had_s:.1f} s after it was asked to, killing it"


def report_of(attempt: LeasedAttempt, outcome: Outcome) -> Settle | None:
    """The report of an attempt whose lease is still valid; None: report nothing."""
    if attempt.settled is not None:
        return attempt.complete(attempt.settled)  # a replay, however the handler then ended
    match outcome:
        case Returned():
            return attempt.complete(outcome.result)
        case Raised():
            return attempt.fail(outcome.error, outcome.retry_after_us)
        case Snoozed():
            return attempt.release(ReleaseKind.SNOOZE, outcome.delay_us)
        case Died():
            return attempt.crash(outcome.how)
        case Displaced() | Unstarted():
            return attempt.release()
        case Killed():
            return None if attempt.stop_for is StopFor.LOST else attempt.release()
        case Stopped():
            # It was not asked to stop: it saw by the host's clock that its lease ended.
            return None if attempt.asked_at is None else attempt.release()
        case Conflicted():
            return None
        case _:
            assert_never(outcome)


def malformed(attempt: LeasedAttempt, why: str) -> Settle:
    """The report of an attempt whose own report cannot be sent."""
    is_result = isinstance(attempt.report, Complete)
    return attempt.fail(
        JobError(
            error_class=ErrorClass.PERMANENT if is_result else ErrorClass.UNCLASSIFIED,
            type="InvalidInput",
            message=why.encode("ascii", "backslashreplace").decode()[:2000],
            stage=Stage.OUTPUT if is_result else Stage.COMMIT,
        )
    )
