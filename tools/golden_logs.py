"""Writes golden logs that do not exist yet; `python -m tools.golden_logs`.

Existing files are never touched: a core that would write another log today must still read them.
To cover something new, add a life to `LIVES` and run this once.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tenure.core.commands import Outage
from tenure.core.instants import Instant, seconds
from tenure.core.job import JobError, Progress
from tenure.core.policy import Policy
from tenure.core.vocabulary import (
    CancelMode,
    ErrorClass,
    EventCause,
    JobStatus,
    OnExhausted,
    ReasonCode,
    ReleaseKind,
    Stage,
)
from tenure_conformance.golden import FOLDER, GoldenLog, golden
from tools.driver import FORBIDDEN, OTHER_OWNER, OTHER_WORKER, PERMANENT, TRANSIENT, Driver
from tools.lives import HOLD, RECLAIM, SHORT, UNDOABLE, claimed, queued, running


def _work(driver: Driver) -> None:
    """Renewals of both kinds, ten seconds apart."""
    driver.advance(10)
    driver.do(driver.heartbeat())
    driver.advance(10)
    driver.do(
        driver.heartbeat(
            progress=Progress(done=1, total=3, note="page 1"), checkpoint=b'{"page":1}'
        )
    )
    driver.advance(10)
    driver.do(driver.heartbeat(progress=Progress(done=2, total=3)))
    driver.advance(1)


def _again(driver: Driver) -> None:
    driver.advance(61)
    driver.do(driver.claim(actor=OTHER_WORKER, owner=OTHER_OWNER))
    driver.advance(1)
    driver.do(driver.start(actor=OTHER_WORKER))
    driver.advance(1)


def _succeeds() -> Driver:
    driver = Driver(policy=Policy(max_attempts=3))
    driver.do(driver.enqueue(priority=5, dedupe_key="order-7", trace_id="trace-1", delay_s=2))
    driver.advance(3)
    driver.do(driver.claim())
    driver.advance(1)
    driver.do(driver.start())
    _work(driver)
    driver.do(driver.complete(result=b'{"sent":true}'))
    return driver


def _waits() -> Driver:
    driver = Driver(policy=Policy())
    driver.do(driver.flow())
    return driver


def _ready() -> Driver:
    driver = _waits()
    driver.advance(5)
    driver.do(driver.unblock())
    driver.advance(1)
    driver.do(driver.claim())
    driver.advance(1)
    driver.do(driver.complete())
    return driver


def _parent_failed() -> Driver:
    driver = _waits()
    driver.advance(5)
    driver.do(driver.unblock(JobStatus.FAILED))
    return driver


def _implicit_start() -> Driver:
    driver = claimed(Policy())
    driver.advance(2)
    driver.do(driver.complete(result=b"null"))
    return driver


def _retries() -> Driver:
    driver = running(Policy())
    _work(driver)
    error = JobError(
        error_class=ErrorClass.TRANSIENT,
        type="ConnectionError",
        message="connection refused, nächster Versuch",
        stage=Stage.EXEC,
        reason_code=ReasonCode.DEPENDENCY_UNAVAILABLE,
    )
    driver.do(driver.fail(error, retry_after_s=3))
    _again(driver)
    driver.do(driver.complete(actor=OTHER_WORKER))
    return driver


def _exhausted_by_expiry() -> Driver:
    driver = running(Policy(max_attempts=2))
    driver.do(driver.fail(replace(TRANSIENT, reason_code=ReasonCode.DEPENDENCY_UNAVAILABLE)))
    _again(driver)
    driver.advance(60)
    driver.do(driver.sweep())
    return driver


def _exhausted_by_timeout() -> Driver:
    driver = running(replace(SHORT, max_attempts=2))
    driver.advance(45)
    driver.do(driver.sweep())
    driver.advance(61)
    driver.do(driver.claim())
    driver.advance(45)
    driver.do(driver.sweep())
    return driver


def _exhausted_fails() -> Driver:
    driver = running(Policy(max_attempts=1, on_exhausted=OnExhausted.FAIL))
    _work(driver)
    driver.do(driver.fail())
    return driver


def _soft_cancel() -> Driver:
    driver = running(Policy())
    _work(driver)
    driver.do(driver.cancel(reason="the customer called"))
    driver.advance(5)
    driver.do(driver.heartbeat(checkpoint=b'{"page":2}'))
    driver.do(driver.release())
    return driver


def _hard_cancel() -> Driver:
    driver = running(Policy())
    _work(driver)
    driver.do(driver.cancel(CancelMode.HARD))
    return driver


def _grace_over() -> Driver:
    driver = running(Policy(grace_us=seconds(15)))
    driver.do(driver.cancel())
    driver.advance(45)
    driver.do(driver.sweep())
    return driver


def _cancel_outlives_attempt() -> Driver:
    driver = running(Policy(grace_us=seconds(3600)))
    driver.do(driver.cancel())
    driver.advance(60)
    driver.do(driver.sweep())
    return driver


def _held() -> Driver:
    driver = running(HOLD)
    _work(driver)
    driver.advance(60)
    driver.do(driver.sweep())
    driver.advance(500)
    driver.do(driver.requeue())
    _again(driver)
    driver.do(driver.complete(actor=OTHER_WORKER))
    return driver


def _still_held() -> Driver:
    driver = running(HOLD)
    driver.advance(60)
    driver.do(driver.sweep())
    return driver


def _reclaimed() -> Driver:
    driver = running(RECLAIM)
    _work(driver)
    driver.advance(60)
    driver.do(driver.sweep())
    _again(driver)
    return driver


def _released() -> Driver:
    driver = running(Policy(max_releases=1))
    driver.do(driver.release(delay_s=30))
    _again(driver)
    driver.do(driver.release(ReleaseKind.SNOOZE, delay_s=30, actor=OTHER_WORKER))
    _again(driver)
    driver.do(driver.release(actor=OTHER_WORKER))
    driver.do(driver.claim())
    driver.do(driver.undelivered())
    return driver


def _released_to_its_place() -> Driver:
    driver = running(Policy())
    driver.do(driver.release())
    _again(driver)
    driver.do(driver.release(ReleaseKind.SNOOZE, actor=OTHER_WORKER))
    driver.do(driver.claim())
    driver.advance(1)
    driver.do(driver.undelivered())
    return driver


def _released_too_often() -> Driver:
    driver = running(Policy(max_releases=0, max_attempts=1))
    driver.do(driver.release())
    return driver


def _outage() -> Driver:
    driver = running(Policy())
    driver.advance(60)
    driver.do(driver.sweep(Outage(Instant(driver.now - seconds(40)), driver.now)))
    _again(driver)
    driver.advance(60)
    driver.do(driver.sweep())
    return driver


def _dead_letter() -> Driver:
    driver = queued(Policy())
    driver.advance(9)
    driver.do(driver.dead_letter(ReasonCode.POLICY_VIOLATION, message="may not leave the EU"))
    return driver


def _unreadable() -> Driver:
    driver = running(Policy())
    driver.do(
        driver.fail(
            JobError(
                error_class=ErrorClass.VALIDATION,
                type="JSONDecodeError",
                message="line 1",
                stage=Stage.INPUT,
                reason_code=ReasonCode.PARSE_ERROR,
            )
        )
    )
    return driver


def _forbidden() -> Driver:
    driver = running(Policy())
    _work(driver)
    driver.do(driver.fail(FORBIDDEN))
    return driver


def _lost_every_time() -> Driver:
    driver = running(Policy(max_attempts=2))
    for _ in range(2):
        driver.advance(60)
        driver.do(driver.sweep())
        if driver.job.status is JobStatus.QUEUED:
            _again(driver)
    return driver


def _to_be_compensated() -> Driver:
    driver = running(UNDOABLE)
    driver.advance(5)
    driver.do(driver.fail(PERMANENT))
    return driver


def _compensation() -> Driver:
    original = _to_be_compensated()
    driver = original.follow(original.spawned[0])
    driver.advance(1)
    driver.do(driver.claim())
    driver.do(driver.complete())
    return driver


def _redriven() -> Driver:
    driver = _dead_letter()
    driver.advance(100)
    driver.do(driver.redrive(EventCause.REDRIVE, payload=b'{"order":7,"region":"EU"}'))
    return driver.follow(driver.spawned[0])


def _pruned() -> Driver:
    driver = running(HOLD)
    _work(driver)
    driver.do(driver.fail())
    _again(driver)
    driver.do(driver.heartbeat(actor=OTHER_WORKER, checkpoint=b'{"page":3}'))
    driver.do(driver.cancel(reason="enough"))
    driver.advance(9)
    driver.do(driver.heartbeat(actor=OTHER_WORKER, progress=Progress(done=3)))
    driver.do(driver.fail(actor=OTHER_WORKER))
    driver.prune_renewals()
    return driver


def _clock_stepped_back() -> Driver:
    driver = running(Policy())
    driver.advance(-100)
    driver.do(driver.heartbeat())
    driver.do(driver.fail())
    return driver


LIVES: dict[str, tuple[str, Callable[[], Driver]]] = {
    "succeeds": ("renewals, progress, a checkpoint, a result", _succeeds),
    "waits": ("a job of a flow that waits for another one", _waits),
    "ready": ("it waited, went on and was done", _ready),
    "parent-failed": ("it waited for a job that failed", _parent_failed),
    "implicit-start": ("completed without a start", _implicit_start),
    "retries": ("a failure with a lower bound, then success by another worker", _retries),
    "exhausted-by-expiry": ("dead letter, dependency unavailable", _exhausted_by_expiry),
    "exhausted-by-timeout": ("timeout, then start_within: a dead letter", _exhausted_by_timeout),
    "exhausted-fails": ("the last failure under on_exhausted: fail", _exhausted_fails),
    "soft-cancel": ("asked to stop, heard it, acknowledged by a release", _soft_cancel),
    "hard-cancel": ("revoked while running", _hard_cancel),
    "grace-over": ("asked to stop and never heard of again", _grace_over),
    "cancel-outlives-attempt": ("expired before the grace was over", _cancel_outlives_attempt),
    "held": ("lost, held, let go by an operator, done", _held),
    "still-held": ("lost and held", _still_held),
    "reclaimed": ("lost and reclaimed, running", _reclaimed),
    "released": ("a release, a snooze, one release too many, an undelivered grant", _released),
    "released-to-its-place": ("a release, a snooze, an undelivered grant", _released_to_its_place),
    "released-too-often": ("dead letter by a release", _released_too_often),
    "outage": ("one expiry with a credit, one without", _outage),
    "dead-letter": ("taken out by an operator while queued", _dead_letter),
    "unreadable": ("a parse error at stage input", _unreadable),
    "forbidden": ("a dead letter because its handler said so", _forbidden),
    "lost-every-time": ("each lease ran out and no attempt reported an error", _lost_every_time),
    "compensated": ("failed, with a compensating kind", _to_be_compensated),
    "compensation": ("the job that undoes another, done", _compensation),
    "redriven": ("made out of a dead letter with another payload", _redriven),
    "pruned": ("two attempts whose renewals were pruned", _pruned),
    "clock-stepped-back": ("events that share the latest instant", _clock_stepped_back),
}


def log_of(name: str) -> GoldenLog:
    """The golden log that today's core would write."""
    about, build = LIVES[name]
    driver = build()
    return golden(name, about=about, job=driver.job, events=driver.events)


def write_missing(folder: Path) -> list[Path]:
    """Write the logs that `folder` lacks; which ones."""
    folder.mkdir(exist_ok=True)
    written = []
    for name in LIVES:
        path = folder / f"{name}.json"
        if path.exists():
            continue
        text = msgspec.json.format(msgspec.json.encode(log_of(name)), indent=1)
        path.write_bytes(text + b"\n")
        written.append(path)
    return written


def main() -> None:
    """Write what is missing from version 1, and say so."""
    for path in write_missing(FOLDER / "v1"):
        sys.stdout.write(f"{path.name}\n")


if __name__ == "__main__":
    main()
