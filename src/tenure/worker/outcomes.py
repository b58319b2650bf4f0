"""How a handler ended, and what its worker reports for it.

A handler that stopped on request is handed back: under a cancel request the coordinator takes
that as the acknowledgement [T10], at a shutdown it costs no budget [T11].
"""

from datetime import UTC, datetime
from typing import assert_never

import msgspec

from tenure.clock import Boot
from tenure.core.commands import Complete, Fail, Settle, WorkerCommand
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant
from tenure.core.job import JobError
from tenure.core.vocabulary import Disposition, ErrorClass, ReleaseKind, Stage
from tenure.worker.attempts import Attempt, StopFor
from tenure.worker.stats import Stats

# --- how it ended, as its child or its supervisor saw it: strings travel, never classes ----------


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """It returned, and this is the result as JSON."""

    result: bytes


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """It raised, or its input or output did not fit."""

    error: JobError
    retry_after_us: Duration = Duration(0)


class Snoozed(msgspec.Struct, frozen=True, tag="snoozed"):
    """It asked to be run again later."""

    delay_us: Duration


class Conflicted(msgspec.Struct, frozen=True, tag="conflicted"):
    """Another system saw a newer fence. The attempt has lost its lease; nothing is reported."""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """It stopped because it was asked to, or because it saw its lease run out."""


class Died(msgspec.Struct, frozen=True, tag="died"):
    """Its process ended by itself, and `how` names the signal or the exit code."""

    how: str


class Killed(msgspec.Struct, frozen=True, tag="killed"):
    """The supervisor killed it because this attempt had to stop."""


class Displaced(msgspec.Struct, frozen=True, tag="displaced"):
    """The supervisor killed its process because a neighbour in it did not stop."""


class Unstarted(msgspec.Struct, frozen=True, tag="unstarted"):
    """No process could be started for it, and `why` names what the system refused."""

    why: str


FromChild = Returned | Raised | Snoozed | Conflicted | Stopped
Outcome = FromChild | Died | Killed | Displaced | Unstarted

# --- what is reported --------------------------------------------------------------------------

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
    attempt: Attempt,
    report: WorkerCommand,
    disposition: Disposition | None,
    *,
    run_at: Instant | None,
    now: Boot,
) -> str:
    """How an attempt ended, after how long, when the next one begins if there is one, and with
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


def _when(attempt: Attempt, run_at: Instant, now: Boot) -> str:
    """The time until an instant of the store's clock. The host's clock may show another time, but
    the claim of this attempt is known on both."""
    claimed_at = attempt.grant.job.claimed_at
    if claimed_at is None:  # over HTTP a grant has durations only [L8]
        at = datetime.fromtimestamp(run_at / MICROSECONDS_PER_SECOND, UTC)
        return f"at {at:%Y-%m-%d %H:%M:%S} UTC"
    left_us = max(0, (run_at - claimed_at) - (now - attempt.claim_sent_at))
    return f"in {left_us / MICROSECONDS_PER_SECOND:.1f} s"


def describe_kill(attempt: Attempt, now: Boot) -> str:
    """Why a cancelled handler is killed now."""
    assert attempt.asked_at is not None
    had_s = (now - attempt.asked_at) / MICROSECONDS_PER_SECOND
    return f"it did not stop within {had_s:.1f} s after it was asked to, killing it"


def report_of(attempt: Attempt, outcome: Outcome) -> Settle | None:
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
            # Nobody asked it to stop: it saw by the host's clock that its lease ended.
            return attempt.release() if attempt.asked_to_stop else None
        case Conflicted():
            return None
        case _:
            assert_never(outcome)


def malformed(attempt: Attempt, why: str) -> Settle:
    """The report of an attempt whose own report cannot be sent as it is."""
    is_result = isinstance(attempt.report, Complete)
    return attempt.fail(
        JobError(
            error_class=ErrorClass.PERMANENT if is_result else ErrorClass.UNCLASSIFIED,
            type="InvalidInput",
            message=why.encode("ascii", "backslashreplace").decode()[:2000],
            stage=Stage.OUTPUT if is_result else Stage.COMMIT,
        )
    )


def count_committed(stats: Stats, disposition: Disposition | None) -> None:
    """Count one accepted report."""
    match disposition:
        case Disposition.SUCCEEDED:
            stats.succeeded += 1
        case Disposition.FAILED:
            stats.failed += 1
        case Disposition.RETRY_SCHEDULED:
            stats.retried += 1
        case Disposition.DEAD_LETTERED:
            stats.dead_lettered += 1
        case Disposition.CANCELLED:
            stats.acknowledged_cancels += 1
        case Disposition.RELEASED:
            stats.released += 1
        case _:
            pass  # none, or one of a newer server: accepted all the same [Y4]
