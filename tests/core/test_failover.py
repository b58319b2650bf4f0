"""Whether a server has what was acknowledged: decided without one."""

from typing import Any

import pytest
from msgspec.structs import replace

from tenure.core.claims import ClaimView, QueueState, plan_claims
from tenure.core.failover import (
    SETTLING,
    Acknowledged,
    Remembered,
    Server,
    ServerFacts,
    ServerRefusal,
    StoredChange,
    is_settling,
    judge,
)
from tenure.core.ids import Epoch, JobId
from tenure.core.instants import Duration, Instant, after, seconds
from tenure.core.job import Job
from tenure.core.lifecycle import decide
from tenure.core.outcomes import DecisionContext, NeedsHistory, Refused, Replayed
from tenure.core.policy import SHORTEST_RETENTION, Policy
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import Cause, VerdictKind
from tenure_conformance.spec import spec
from tests.core.test_claims import request
from tests.support.jobs import BEGINNING, Driver
from tools import lives

JOB = JobId("01890000-0000-7000-8000-000000000001")
AT = BEGINNING
HERE = Server(7, 3)


def change(*, is_renewal: bool = False, kept_us: Duration = SHORTEST_RETENTION) -> Acknowledged:
    return Acknowledged(JOB, 5, AT, is_renewal, kept_us)


def found(
    kept: StoredChange | None = None,
    *,
    server: Server = HERE,
    recorded: Server = HERE,
    after_us: int = 0,
    tick: Instant | None = None,
) -> ServerFacts:
    return ServerFacts(
        server=server,
        recorded=recorded,
        now=Instant(AT + after_us),
        tick=tick,
        kept={} if kept is None else {(JOB, 5): kept},
    )


def is_lost(kept: StoredChange | None, *, is_renewal: bool = False, after_us: int = 0) -> bool:
    remembered = Remembered(changes=(change(is_renewal=is_renewal),), epoch=Epoch(4), server=HERE)
    ruling = judge(remembered, found(kept, after_us=after_us))
    assert ruling.epoch == (5 if ruling.missing else 0)
    return ruling.missing is not None


@spec("A8")
def test_a_change_that_is_still_stored_proves_no_loss() -> None:
    assert not is_lost(StoredChange(ts=AT, rev=9))


@spec("A8")
@pytest.mark.parametrize(
    "kept",
    [StoredChange(ts=None, rev=4), StoredChange(ts=Instant(AT + 1), rev=5), None],
    ids=["the job is behind", "decided anew", "the job is gone"],
)
@pytest.mark.parametrize("is_renewal", [False, True])
def test_a_change_that_is_gone_proves_a_loss(kept: StoredChange | None, is_renewal: bool) -> None:
    assert is_lost(kept, is_renewal=is_renewal)


@spec("A8")
def test_a_missing_change_that_retention_may_have_deleted_proves_nothing() -> None:
    assert not is_lost(StoredChange(ts=None, rev=9), is_renewal=True)
    assert is_lost(StoredChange(ts=None, rev=9), is_renewal=False)
    assert not is_lost(None, after_us=SHORTEST_RETENTION + 1)
    assert is_lost(None, after_us=SHORTEST_RETENTION)


@spec("A8", "G7")
def test_the_end_of_a_job_that_is_kept_for_a_minute_proves_nothing_after_it() -> None:
    kept_us = Policy(keep_us=seconds(60)).kept_at_least_us
    remembered = Remembered(changes=(change(kept_us=kept_us),), server=HERE)

    assert judge(remembered, found(after_us=seconds(60))).missing is not None
    assert judge(remembered, found(after_us=seconds(61))).missing is None
    assert Policy(keep_us=seconds(366 * 86400)).kept_at_least_us == SHORTEST_RETENTION


@spec("A8", "A9")
@pytest.mark.parametrize(("tick", "is_gone"), [(None, True), (9, True), (10, False), (11, False)])
def test_then_the_tick_decides(tick: int | None, is_gone: bool) -> None:
    remembered = Remembered(
        changes=(change(is_renewal=True),), tick=Instant(10), epoch=Epoch(2), server=HERE
    )
    seen = found(StoredChange(ts=None, rev=9), tick=None if tick is None else Instant(tick))

    ruling = judge(remembered, seen)

    assert (ruling.missing is not None) == is_gone
    assert ruling.epoch == (3 if is_gone else 0)


@spec("A11")
@pytest.mark.parametrize(
    ("server", "recorded", "known", "refusal"),
    [
        (Server(7, 3), Server(7, 3), None, None),
        (Server(7, 4), Server(7, 3), Server(7, 3), None),
        (Server(7, 2), Server(7, 3), None, ServerRefusal.BEHIND),
        (Server(7, 2), Server(7, 2), Server(7, 3), ServerRefusal.BEHIND),
        (Server(7, 2), Server(7, 2), Server(8, 3), None),
        (Server(7, None), Server(7, 3), Server(7, 3), None),
        (Server(8, 3), Server(7, 3), Server(8, 3), ServerRefusal.RESTORED),
    ],
    ids=["same", "ahead", "behind", "stray", "raised since", "standby", "restored"],
)
def test_which_servers_are_refused(
    server: Server, recorded: Server, known: Server | None, refusal: ServerRefusal | None
) -> None:
    ruling = judge(Remembered(server=known), found(server=server, recorded=recorded))

    assert ruling.refusal is refusal
    assert ruling.has_new_timeline == (server.timeline == 4)


@spec("A10")
def test_settling_takes_five_seconds_and_ends_when_the_clock_is_set_back() -> None:
    assert not is_settling(None, AT)
    assert is_settling(AT, AT)
    assert is_settling(AT, Instant(AT + seconds(5) - 1))
    assert not is_settling(AT, Instant(AT + seconds(5)))
    assert not is_settling(AT, Instant(AT - 1))


# --- What is decided while a store settles -------------------------------------------------------


@spec("A10")
@pytest.mark.parametrize(("waited_us", "granted"), [(0, 0), (SETTLING - 1, 0), (SETTLING, 1)])
def test_nothing_is_granted_while_a_store_settles(waited_us: int, granted: int) -> None:
    job = lives.queued().job
    view = ClaimView(
        now=after(job.enqueued_at, SETTLING),
        epoch=Epoch(1),
        sessions={},
        queues={job.queue: QueueState(name=job.queue)},
        candidates=[job],
        settling_since=Instant(job.enqueued_at + SETTLING - waited_us),
    )

    plan = plan_claims([request()], view, [bytes(16)])

    assert len(plan.changes) == granted
    assert [len(answer.grants) for answer in plan.answers] == [granted]


def settling(driver: Driver, job: Job | None, **read: Any) -> DecisionContext:
    return replace(driver.context(job=job, **read), is_settling=True)


@spec("A10")
def test_no_lease_is_expired_while_a_store_settles() -> None:
    driver = lives.running()
    driver.advance(61)

    assert isinstance(decide(driver.sweep(), settling(driver, driver.job)), Replayed)


@spec("A10")
def test_a_report_under_an_unknown_lease_is_cancelled_while_a_store_settles() -> None:
    driver = lives.running()
    report = driver.complete()
    before_the_grant = lives.queued()
    history = before_the_grant.events

    of_unknown_job = decide(report, settling(driver, None))
    unclear = decide(report, settling(driver, before_the_grant.job))
    of_unknown_lease = decide(report, settling(driver, before_the_grant.job, history=history))

    assert isinstance(unclear, NeedsHistory)
    for outcome in (of_unknown_job, of_unknown_lease):
        assert isinstance(outcome, Refused)
        assert isinstance(outcome.answer, Verdict)
        assert outcome.answer.kind is VerdictKind.CANCELLED
        assert outcome.answer.cause is Cause.EPOCH_CHANGED
