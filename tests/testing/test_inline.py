"""Inline jobs: the real lifecycle in this process, in virtual time."""

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from tenure import (
    Cancelled,
    Context,
    DeadLetter,
    InvalidInput,
    JobCancelled,
    JobDeadLettered,
    JobFailed,
    LeaseConflictError,
    PermanentError,
    Retry,
    Snooze,
    Tenure,
    TenureError,
    TransientError,
    ValidationError,
    WaitTimeout,
)
from tenure.core.instants import seconds
from tenure.core.vocabulary import ObservationType
from tenure.testing import FakeContext, Inline, inline
from tenure_conformance.spec import spec


def test_a_drained_job_has_its_result(app: Tenure, jobs: Inline) -> None:
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    job = add.enqueue(1, b=2)
    ran = jobs.drain()

    assert ran == [job]
    assert job.status == "succeeded"
    assert job.result() == 3
    assert [event.type.value for event in job.events()] == [
        "enqueued",
        "claimed",
        "started",
        "succeeded",
    ]


@spec("EX2", "EX3")
def test_a_job_expires_in_virtual_time(app: Tenure, jobs: Inline) -> None:
    ran: list[str] = []

    @app.job(expires="10m", retry=Retry(initial="1h", max_attempts=2))
    def remind(who: str) -> None:
        ran.append(who)
        if who == "bob":
            raise OSError("engaged")

    late = remind.enqueue("ada")
    app.queues.pause("default")
    jobs.advance("10m")
    app.queues.resume("default")
    retried = remind.enqueue("bob")
    jobs.drain()

    assert late.status == "cancelled"
    assert late.events()[-1].cause == "expired"
    assert (retried.status, retried.attempts) == ("dead_lettered", 2)
    assert ran == ["bob", "bob"]


@spec("D13", "D14")
def test_a_key_stays_taken_in_virtual_time(app: Tenure, jobs: Inline) -> None:
    ran: list[int] = []

    @app.job
    def digest(user: int) -> None:
        ran.append(user)

    hourly = digest.using(key="user-7", unique_for="1h")
    first = hourly.enqueue(7)
    jobs.drain()
    jobs.advance("59m")
    early = hourly.enqueue(7)
    jobs.drain()
    jobs.advance("1m")
    late = hourly.enqueue(7)
    jobs.drain()

    assert (early.deduplicated, early) == (True, first)
    assert (late.deduplicated, late == first) == (False, False)
    assert ran == [7, 7]


@spec("EX2")
def test_waiting_for_a_job_that_cannot_run_here_ends_when_it_expires(
    app: Tenure, jobs: Inline
) -> None:
    job = app.enqueue("elsewhere", {}, expires="1h")

    assert job.wait() == "cancelled"


def test_waiting_for_a_result_runs_the_job(app: Tenure, jobs: Inline) -> None:
    @app.job
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    assert add.using(delay="7d").enqueue(1, b=2).result() == 3
    assert add.enqueue(2, b=2).wait() == "succeeded"


def test_coroutines_run_inside_a_running_loop_too(app: Tenure, jobs: Inline) -> None:
    @app.job
    async def double(a: int) -> int:
        return a * 2

    async def main() -> None:
        first, second = await double.aenqueue(1), await double.aenqueue(2)
        assert await first.aresult() == 2
        jobs.drain()
        assert second.result() == 4
        third = await double.aenqueue(3)
        assert await jobs.adrain() == [third]

    asyncio.run(main())


def test_a_failing_job_is_retried_by_moving_the_clock(app: Tenure, jobs: Inline) -> None:
    attempts: list[int] = []

    @app.job(retry=Retry(max_attempts=3, initial="10s"))
    def flaky(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise TransientError("not yet", retry_after_s=60)
        return "done"

    began = jobs.clock()
    job = flaky.enqueue()

    assert jobs.run_ready() == [job]
    assert job.status == "queued"
    assert jobs.advance("59s") == []
    assert jobs.advance("1s") == [job]
    jobs.drain()
    assert job.result() == "done"
    assert attempts == [1, 2, 3]
    assert jobs.clock() - began >= seconds(120)


def test_an_exhausted_job_is_a_dead_letter(app: Tenure, jobs: Inline) -> None:
    @app.job(retry=Retry(max_attempts=2))
    def broken() -> None:
        raise RuntimeError("always")

    job = broken.enqueue()
    jobs.drain()

    assert job.attempts == 2
    with pytest.raises(JobDeadLettered, match=r"exhausted_retries.*always"):
        job.result()


def test_errors_end_a_job_as_they_say(app: Tenure, jobs: Inline) -> None:
    @app.job
    def permanent() -> None:
        raise PermanentError("no use")

    @app.job
    def forbidden() -> None:
        raise DeadLetter("policy_violation", "not here")

    @app.job
    async def unreachable() -> None:
        raise DeadLetter("infrastructure_failure", "no disk")

    @app.job
    def invalid(n: int) -> None:
        raise ValidationError("not that")

    @app.job
    def no_json() -> object:
        return object()

    with pytest.raises(JobFailed, match="no use"):
        permanent.enqueue().result()
    buried = forbidden.enqueue()
    with pytest.raises(JobDeadLettered, match=r"policy_violation.*not here"):
        buried.result()
    assert buried.attempts == 1
    with pytest.raises(JobDeadLettered, match=r"infrastructure_failure.*no disk"):
        unreachable.enqueue().result()
    with pytest.raises(JobFailed, match="not that"):
        invalid.enqueue(1).result()
    with pytest.raises(JobFailed, match="no JSON form"):
        no_json.enqueue().result()


def test_a_payload_that_does_not_fit_is_a_dead_letter(app: Tenure, jobs: Inline) -> None:
    @app.job
    def work(n: int) -> None: ...

    job = app.enqueue("work", {"n": 1})
    elsewhere = Tenure("memory://")
    with elsewhere.channel.diverted(jobs.link):
        wrong = app.get(elsewhere.enqueue("work", {"n": "one"}).id)

    jobs.drain()

    assert job.status == "succeeded"
    with pytest.raises(JobDeadLettered, match="validation_failed"):
        wrong.result()


def test_a_checkpoint_reaches_the_next_attempt(app: Tenure, jobs: Inline) -> None:
    @app.job
    def count(ctx: Context) -> list[int]:
        done: list[int] = ctx.checkpoint or []
        ctx.save([*done, ctx.attempt])
        ctx.progress(ctx.attempt, 3, "counting")
        if ctx.attempt < 3:
            raise TransientError
        return [*done, ctx.attempt]

    job = count.enqueue()

    assert job.result() == [1, 2, 3]
    assert job.progress is not None
    assert job.progress.done == 3


def test_a_handler_hears_of_its_cancellation_with_a_heartbeat(app: Tenure, jobs: Inline) -> None:
    @app.job
    def stubborn(ctx: Context) -> None:
        app.get(ctx.job_id).cancel(reason="enough")
        ctx.check()
        ctx.progress(1)
        with pytest.raises(Cancelled, match="enough"):
            ctx.check()
        ctx.check()

    job = stubborn.enqueue()

    with pytest.raises(JobCancelled, match="enough"):
        job.result()


def test_a_snooze_costs_no_budget(app: Tenure, jobs: Inline) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def later(ctx: Context) -> int:
        if ctx.attempt < 4:
            raise Snooze(3600)
        return ctx.attempt

    assert later.enqueue().result() == 4


@spec("F8")
def test_a_lost_attempt_is_swept_when_its_lease_ends(app: Tenure, jobs: Inline) -> None:
    @app.job
    def conflicted(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise LeaseConflictError
        return ctx.attempt

    assert conflicted.enqueue().result() == 2


def test_jobs_may_enqueue_and_wait_for_jobs(app: Tenure, jobs: Inline) -> None:
    @app.job
    def child(n: int) -> int:
        return n * n

    @app.job
    def parent(n: int) -> int:
        return sum(each.result() for each in app.enqueue_many(child.call(i) for i in range(n)))

    assert parent.enqueue(4).result() == 14
    assert [job.kind for job in jobs.enqueued] == ["parent", "child", "child", "child", "child"]


@spec("U3", "M5")
def test_a_failed_job_is_compensated(app: Tenure, jobs: Inline) -> None:
    undone: list[str] = []

    @app.job(name="refund")
    def refund(job_id: str, kind: str, status: str, payload: dict[str, int]) -> None:
        undone.append(f"{kind} {status} {payload['amount']}")

    @app.job(compensate=refund)
    def charge(amount: int) -> None:
        raise PermanentError("no funds")

    charged = charge.enqueue(7)
    jobs.drain()

    assert undone == ["charge failed 7"]
    undoing = app.get(str(charged.refresh().compensated_by))
    assert undoing.refresh().compensates == charged.id
    [seen] = charged.observations()
    assert (seen.type, seen.compensated_by) == (ObservationType.COMPENSATED, undoing.id)
    assert asyncio.run(charged.aobservations()) == [seen]
    assert undoing.observations() == []


def test_waiting_for_what_cannot_run_here_says_so(app: Tenure, jobs: Inline) -> None:
    job = app.enqueue("elsewhere", {})

    with pytest.raises(TenureError, match="unknown to this application"):
        job.result()
    with pytest.raises(WaitTimeout):
        job.wait(timeout=0)
    assert jobs.drain() == []


def test_a_job_that_never_ends_is_stopped(app: Tenure) -> None:
    @app.job
    def again() -> None:
        again.enqueue()

    with inline(app, max_attempts=9) as jobs:
        again.enqueue()
        with pytest.raises(TenureError, match="step by step"):
            jobs.drain()
        assert len(jobs.enqueued) == 11


def test_after_the_test_the_application_is_as_before(app: Tenure) -> None:
    with inline(app):
        app.enqueue("work", {})

    with pytest.raises(Exception, match="nonexistent"):
        app.enqueue("work", {})


def test_a_fake_context_lets_a_function_be_called_directly(app: Tenure) -> None:
    @app.job
    def work(topic: str, ctx: Context) -> int:
        ctx.save([topic])
        ctx.progress(1, 2)
        ctx.log("half")
        ctx.check()
        return ctx.attempt

    ctx = FakeContext(attempt=2)

    assert work("leases", ctx) == 2
    assert ctx.saved == [["leases"]]
    assert ctx.progressed[0].total == 2
    assert ctx.logged == ["half"]
    assert ctx.still_mine()
    ctx.cancel("stop")
    with pytest.raises(Cancelled, match="stop"):
        work("leases", ctx)
    lost = FakeContext()
    lost.lose()
    with pytest.raises(Cancelled, match="lost"):
        work("leases", lost)


@pytest.mark.process
def test_the_fixture_runs_the_users_application(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        from tenure import Tenure

        pytest_plugins = ["tenure.testing.fixtures"]
        app = Tenure()

        @app.job
        def add(a: int, b: int) -> int:
            return a + b

        @pytest.fixture
        def tenure_app():
            return app
        """
    )
    pytester.makepyfile(
        """
        from conftest import add

        def test_it(tenure_inline):
            job = add.enqueue(1, 2)
            tenure_inline.drain()
            assert job.result() == 3
        """
    )

    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_artifacts_are_seen_if_and_only_if_the_attempt_succeeds(app: Tenure) -> None:
    @app.job(retry=Retry(max_attempts=2))
    def leave(ctx: Context, fails: bool) -> None:
        ctx.artifact("notes.txt", f"attempt {ctx.attempt}")
        if fails:
            raise RuntimeError("no")

    with inline(app) as jobs:
        good, bad = leave.enqueue(False), leave.enqueue(True)
        jobs.drain()

        assert good.artifact("notes.txt") == b"attempt 1"
        assert good.artifact("other.txt") is None
        assert [file.size for file in good.artifacts()] == [9]
        assert bad.artifacts() == []


# --- transactions ------------------------------------------------------------------------------


@pytest.fixture
def till() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE entry (amount INTEGER NOT NULL)")
    connection.commit()
    yield connection
    connection.close()


def entries(till: sqlite3.Connection) -> list[int]:
    return [amount for (amount,) in till.execute("SELECT amount FROM entry")]


def test_a_job_enqueued_in_a_transaction_is_there_at_once(
    app: Tenure, jobs: Inline, till: sqlite3.Connection
) -> None:
    @app.job
    def double(n: int) -> int:
        return 2 * n

    till.execute("INSERT INTO entry VALUES (1)")
    job = double.using(connection=till).enqueue(21)
    till.rollback()

    assert job.result() == 42


def test_a_handlers_own_transaction_commits_with_its_result(
    app: Tenure, jobs: Inline, till: sqlite3.Connection
) -> None:
    @app.job
    def post(amount: int, ctx: Context) -> int:
        with ctx.transaction(till) as tx:
            till.execute("INSERT INTO entry VALUES (?)", (amount,))
            return tx.complete(amount)

    assert post.enqueue(40).result() == 40
    assert entries(till) == [40]


def test_a_handlers_own_transaction_that_fails_leaves_nothing(
    app: Tenure, jobs: Inline, till: sqlite3.Connection
) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def post(amount: int, ctx: Context) -> int:
        with ctx.transaction(till):
            till.execute("INSERT INTO entry VALUES (?)", (amount,))
            raise RuntimeError("the till is stuck")

    with pytest.raises(JobDeadLettered):
        post.enqueue(40).result()

    assert entries(till) == []


def test_a_handlers_own_transaction_is_fenced(
    app: Tenure, jobs: Inline, till: sqlite3.Connection
) -> None:
    @app.job(lease="30s", retry=Retry(max_attempts=2))
    def post(amount: int, ctx: Context) -> int:
        if ctx.attempt == 1:
            jobs.clock.advance("31s")
        with ctx.transaction(till) as tx:
            till.execute("INSERT INTO entry VALUES (?)", (amount,))
            return tx.complete(ctx.attempt)

    assert post.enqueue(40).result() == 2
    assert entries(till) == [40]


@spec("RL1", "RL9")
def test_rates_hold_in_virtual_time(app: Tenure, jobs: Inline) -> None:
    @app.job(rate="1/m", burst=2)
    def letter(number: int) -> int:
        return number

    @app.job
    def other() -> None: ...

    began = jobs.clock()
    letters = [letter.enqueue(number) for number in range(4)]
    free = other.enqueue()

    assert jobs.run_ready() == [*letters[:2], free]
    assert jobs.run_ready() == []
    assert jobs.advance("59s") == []
    assert jobs.advance("1s") == [letters[2]]
    assert letters[3].result() == 3
    assert jobs.clock() - began == seconds(120)


@spec("RL6")
def test_a_rate_that_was_set_by_hand_stays(app: Tenure, jobs: Inline) -> None:
    app.kinds.limit("letter", rate="1/d", create=True)

    @app.job(rate="10/s")
    def letter() -> None: ...

    for _ in range(3):
        letter.enqueue()

    assert len(jobs.run_ready()) == 1
    assert jobs.advance("1h") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rate": "0/s"}, "rate: 0/s is not from 1"),
        ({"rate": "10 per s"}, "rate: '10 per s' is not a rate"),
        ({"rate": 10}, "rate: '10' is not a rate"),
        ({"rate": "10/s", "burst": 0}, "burst: 0 is not from 1"),
        ({"burst": 3}, "burst: belongs to a rate"),
    ],
)
@spec("RL4")
def test_what_is_no_rate_of_a_kind_is_refused_where_it_is_declared(
    app: Tenure, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)):
        app.job(**options)(lambda: None)
