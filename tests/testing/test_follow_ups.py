"""`ctx.enqueue`: what a handler enqueues exists once, however often the handler runs."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure import Context, InvalidInput, JobFunction, Retry, Tenure, ValidationError
from tenure.testing import FakeContext, Inline
from tenure_conformance.spec import spec

QUICK = Retry(max_attempts=4, initial="1s")


@spec("D9")
def test_a_retried_handler_enqueues_the_next_job_once(app: Tenure, jobs: Inline) -> None:
    """Even if the next job has ended meanwhile, which frees a key, and is asked for differently."""
    charged = []

    @app.job
    def charge(order: int, attempt: int) -> None:
        charged.append((order, attempt))

    @app.job(retry=QUICK)
    def book(ctx: Context, order: int) -> bool:
        enqueued = ctx.enqueue(charge.call(order, attempt=ctx.attempt))
        if ctx.attempt < 3:
            raise RuntimeError("after the enqueue")
        return enqueued.is_new

    job = book.enqueue(7)
    jobs.drain()

    assert charged == [(7, 1)]
    assert job.result() is False
    assert [each.kind for each in jobs.enqueued] == ["book", "charge"]


def test_the_same_kind_twice_needs_a_step(app: Tenure, jobs: Inline) -> None:
    sent = []

    @app.job
    def mail(to: str) -> None:
        sent.append(to)

    @app.job(retry=Retry(max_attempts=1))
    def careless(ctx: Context) -> None:
        ctx.enqueue(mail.call("ann"))
        ctx.enqueue(mail.call("bob"))

    @app.job
    def careful(ctx: Context) -> None:
        for number, to in enumerate(["cid", "dee"]):
            ctx.enqueue(mail.call(to), step=number)

    refused = careless.enqueue()
    careful.enqueue()
    jobs.drain()

    assert sorted(sent) == ["ann", "cid", "dee"]
    assert refused.error is not None
    assert "has already enqueued a job of the kind mail" in refused.error.message
    assert "step=" in refused.error.message


def test_a_handler_enqueues_itself_again(app: Tenure, jobs: Inline) -> None:
    polled = []

    @app.job(retry=QUICK)
    def poll(ctx: Context, number: int = 0) -> None:
        polled.append(number)
        if number < 3:
            ctx.enqueue(poll.using(delay="5m").call(number + 1))
        if ctx.attempt == 1:
            raise RuntimeError("each of them is retried")

    poll.enqueue()
    jobs.drain()

    assert sorted(polled) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(jobs.enqueued) == 4


def test_a_job_that_would_find_itself_by_its_key_is_told(app: Tenure, jobs: Inline) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def poll(ctx: Context) -> None:
        ctx.enqueue(poll.using(key="poll").call())

    job = poll.using(key="poll").enqueue()
    jobs.drain()

    assert job.error is not None
    assert "this job holds the key 'poll' itself" in job.error.message


def test_a_coroutine_enqueues_without_blocking_its_loop(app: Tenure, jobs: Inline) -> None:
    @app.job
    async def second(n: int) -> int:
        return n

    @app.job
    async def first(ctx: Context) -> str:
        made = await asyncio.gather(*(ctx.aenqueue(second.call(n), step=n) for n in range(5)))
        return str(len({each.id for each in made}))

    assert first.enqueue().result() == "5"
    jobs.drain()
    assert len(jobs.enqueued) == 6


def test_a_kind_of_another_application_is_enqueued_by_name(app: Tenure, jobs: Inline) -> None:
    @app.job
    def first(ctx: Context) -> None:
        ctx.enqueue(app.call("thumbnails/make", {"image": 7}, queue="images", priority=3))

    first.enqueue()
    jobs.drain()

    [_, made] = jobs.enqueued
    assert (made.kind, made.queue, made.priority) == ("thumbnails/make", "images", 3)
    assert made.payload == {"image": 7}


def _call_nothing(ctx: Context, job: JobFunction[[int], None, None]) -> object:
    return ctx.enqueue(job)  # type: ignore[arg-type]  # the mistake


def _step_over_two_lines(ctx: Context, job: JobFunction[[int], None, None]) -> object:
    return ctx.enqueue(job.call(1), step="a\nb")


def _leave_out_an_argument(ctx: Context, job: JobFunction[[int], None, None]) -> object:
    return ctx.enqueue(job.call())  # type: ignore[call-arg]  # the mistake


def _choose_an_id(ctx: Context, job: JobFunction[[int], None, None]) -> object:
    return ctx.enqueue(job.using(job_id="0190a5d4-7c3e-7000-8000-000000000001").call(1))


def _give_a_connection(ctx: Context, job: JobFunction[[int], None, None]) -> object:
    return ctx.enqueue(job.using(connection=object()).call(1))


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (_call_nothing, "ctx.enqueue(function.call(argument, …))"),
        (_step_over_two_lines, "is not the name of a step"),
        (_leave_out_an_argument, "its parameter n is missing"),
        (_choose_an_id, "follows from the handler's own job"),
        (_give_a_connection, "function.using(connection=…).enqueue(…)"),
    ],
)
def test_mistakes_are_told_with_the_way_out(
    app: Tenure, mistake: Callable[[Context, Any], object], said: str
) -> None:
    @app.job
    def next_one(n: int) -> None: ...

    with pytest.raises((InvalidInput, ValidationError)) as caught:
        mistake(FakeContext(), next_one)

    assert said in str(caught.value)


def test_within_its_own_transaction_a_handler_is_told_to_use_the_connection(
    app: Tenure, jobs: Inline, tmp_path: Path
) -> None:
    @app.job
    def next_one() -> None: ...

    @app.job(retry=Retry(max_attempts=1))
    def first(ctx: Context) -> None:
        connection = sqlite3.connect(tmp_path / "own.db")
        try:
            with ctx.transaction(connection) as transaction:
                ctx.enqueue(next_one.call())
                transaction.complete(None)
        finally:
            connection.close()

    job = first.enqueue()
    jobs.drain()

    assert job.error is not None
    assert "connection=" in job.error.message
    assert len(jobs.enqueued) == 1


def test_a_fake_context_remembers_the_calls(app: Tenure) -> None:
    @app.job
    def ship(order: int) -> None: ...

    @app.job
    def pay(ctx: Context, order: int) -> str:
        return ctx.enqueue(ship.call(order)).id

    ctx = FakeContext()

    assert pay(ctx, 7) == pay(FakeContext(), 7)
    with pytest.raises(InvalidInput, match="step"):
        pay(ctx, 8)
    assert ctx.enqueued == [ship.call(7)]
