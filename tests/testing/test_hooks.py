"""Hooks around attempts: what they see, what they may change, and what their errors do."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import pytest

from tenure import (
    Attempt,
    Context,
    InvalidInput,
    Job,
    JobFailed,
    PermanentError,
    Retry,
    Snooze,
    Tenure,
    TransientError,
)
from tenure.core.vocabulary import ErrorClass, Stage
from tenure.protocol.records import ErrorRecord
from tenure.testing import Inline
from tenure_conformance.spec import spec

ONCE = Retry(max_attempts=1)

who: ContextVar[str] = ContextVar("who", default="nobody")


def error_of(job: Job[Any]) -> ErrorRecord:
    error = job.refresh().error
    assert isinstance(error, ErrorRecord)
    return error


def told_by(said: list[str], name: str) -> Callable[[Attempt], Iterator[None]]:
    def hook(attempt: Attempt) -> Iterator[None]:
        said.append(f"{name} begins")
        try:
            yield
        finally:
            ended = "raised" if attempt.error else "returned"
            said.append(f"{name} ends: {ended} {attempt.error or attempt.result}")

    return hook


async def awaiting(attempt: Attempt) -> AsyncIterator[None]:
    await asyncio.sleep(0)
    token = who.set("an async hook")
    yield
    await asyncio.sleep(0)
    who.reset(token)


@spec("HK1", "HK2", "HK3")
@pytest.mark.parametrize("kind", ["plain", "thread", "coroutine"])
def test_hooks_run_around_every_handler_the_first_outermost(
    app: Tenure, jobs: Inline, kind: str
) -> None:
    said: list[str] = []
    app.around_attempt(told_by(said, "outer"))
    app.around_attempt(told_by(said, "inner"))

    def plain(value: int) -> int:
        said.append(f"handler with {value}")
        return value + 1

    async def coroutine(value: int) -> int:
        return plain(value)

    app.job(plain)
    app.job(name="thread", isolation="thread")(plain)
    app.job(coroutine)

    job = app.enqueue(kind, {"value": 2})
    jobs.drain()

    assert job.result() == 3
    assert said == [
        "outer begins",
        "inner begins",
        "handler with 2",
        "inner ends: returned 3",
        "outer ends: returned 3",
    ]


@spec("HK3")
def test_a_hook_sees_what_runs_and_how_it_ended(app: Tenure, jobs: Inline) -> None:
    seen: list[Attempt] = []

    @app.around_attempt
    @contextmanager
    def watch(attempt: Attempt) -> Iterator[None]:
        assert not attempt.is_ended
        seen.append(attempt)
        yield

    @app.job(retry=ONCE)
    def divide(a: int, b: int, ctx: Context) -> float:
        return a / b

    good, bad = divide.enqueue(6, 3), divide.enqueue(6, 0)
    jobs.drain()

    assert [attempt.ctx.job_id for attempt in seen] == [good.id, bad.id]
    assert [attempt.kind for attempt in seen] == ["divide", "divide"]
    assert [attempt.arguments for attempt in seen] == [{"a": 6, "b": 3}, {"a": 6, "b": 0}]
    assert (seen[0].is_ended, seen[0].result) == (True, 2)
    assert isinstance(seen[1].error, ZeroDivisionError)
    assert seen[1].result is None
    assert repr(seen[0]) == f"<Attempt 1 of divide, job {good.id}>"


@spec("HK1")
def test_refused_arguments_run_no_hook(app: Tenure, jobs: Inline) -> None:
    said: list[str] = []

    @app.job
    def count(number: int) -> int:
        return number

    job = app.enqueue("count", {"number": 1})
    other = Tenure(app.own_url)
    other.around_attempt(told_by(said, "hook"))

    @other.job(name="count")
    def recount(number: int, step: int) -> int:
        return number + step

    app.registry = other.registry
    jobs.drain()

    assert job.status == "dead_lettered"
    assert said == []


@spec("HK3", "HK4")
def test_a_result_that_cannot_be_stored_is_an_error_for_hooks(app: Tenure, jobs: Inline) -> None:
    said: list[str] = []
    committed: list[bool] = []

    @app.around_attempt
    def session(attempt: Attempt) -> Iterator[None]:
        yield
        committed.append(True)

    app.around_attempt(told_by(said, "hook"))

    @app.job
    def shapeless() -> Any:
        return object()

    job = shapeless.enqueue()
    jobs.drain()

    assert job.status == "failed"
    assert error_of(job).stage is Stage.OUTPUT
    assert error_of(job).error_class is ErrorClass.PERMANENT
    assert said[-1].startswith("hook ends: raised")
    assert committed == []


@spec("HK4")
def test_a_hook_that_swallows_an_error_makes_no_success(app: Tenure, jobs: Inline) -> None:
    said: list[str] = []
    app.around_attempt(told_by(said, "outer"))

    @app.around_attempt
    def swallow(attempt: Attempt) -> Iterator[None]:
        with suppress(PermanentError):
            yield

    @app.job
    def pay() -> None:
        raise PermanentError("declined")

    @app.job
    async def apay() -> None:
        raise PermanentError("declined")

    for job in (pay.enqueue(), apay.enqueue()):
        jobs.drain()

        with pytest.raises(JobFailed, match="declined"):
            job.result()
    assert said.count("outer ends: raised declined") == 2


@spec("HK4")
def test_a_hook_may_raise_another_error_in_its_place(app: Tenure, jobs: Inline) -> None:
    @app.around_attempt
    def classify(attempt: Attempt) -> Iterator[None]:
        try:
            yield
        except ConnectionError as lost:
            raise TransientError("the bank is away", dependency_unavailable=True) from lost

    @app.job(retry=ONCE)
    def pay() -> None:
        raise ConnectionRefusedError("port 443")

    job = pay.enqueue()
    jobs.drain()

    assert job.status == "dead_lettered"
    assert job.refresh().reason_code == "dependency_unavailable"
    assert error_of(job).stage is Stage.EXEC


@spec("HK5")
@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_before_the_handler_fails_the_attempt_at_exec(
    app: Tenure, jobs: Inline, is_async: bool
) -> None:
    said: list[str] = []
    app.around_attempt(told_by(said, "outer"))

    def broken(attempt: Attempt) -> AbstractContextManager[None]:
        raise OSError("no session")

    async def abroken(attempt: Attempt) -> AsyncIterator[None]:
        if attempt.ctx.attempt:
            raise OSError("no session")
        yield

    app.around_attempt(abroken if is_async else broken)
    app.around_attempt(told_by(said, "inner"))

    @app.job(retry=Retry(max_attempts=2))
    def work() -> None:
        said.append("handler")

    job = work.enqueue()
    jobs.drain()

    record = job.refresh()
    assert record.status == "dead_lettered"
    assert record.failures == 2, "retried, as an exception of the handler is"
    assert error_of(job).stage is Stage.EXEC
    assert error_of(job).type == "OSError"
    assert "no session" in error_of(job).traceback
    assert said == ["outer begins", "outer ends: raised no session"] * 2


@spec("HK5")
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_an_error_after_the_handler_fails_the_attempt_at_output(
    app: Tenure, jobs: Inline, is_coroutine: bool
) -> None:
    fails = [True, False]

    @app.around_attempt
    def session(attempt: Attempt) -> Iterator[None]:
        yield
        if fails.pop(0):
            raise OSError("could not commit")

    def plain() -> str:
        return "done"

    async def coroutine() -> str:
        return plain()

    app.job(name="work")(coroutine if is_coroutine else plain)

    job = app.enqueue("work", {})
    jobs.drain()

    assert job.result() == "done"
    [stalled] = [event for event in job.events() if event.type == "stalled"]
    error = stalled.payload.error
    assert error is not None
    assert (error.stage, error.error_class) == (Stage.OUTPUT, ErrorClass.UNCLASSIFIED)
    assert "could not commit" in error.traceback


@spec("HK5")
def test_an_error_after_a_committed_transaction_is_only_logged(app: Tenure, jobs: Inline) -> None:
    @app.around_attempt
    def untidy(attempt: Attempt) -> Iterator[None]:
        yield
        raise OSError("late")

    @app.job
    def book(ctx: Context) -> str:
        with (
            closing(sqlite3.connect(":memory:", isolation_level=None)) as connection,
            ctx.transaction(connection) as transaction,
        ):
            return transaction.complete("booked")

    job = book.enqueue()
    jobs.drain()

    assert job.result() == "booked"


@spec("HK3")
def test_a_snooze_passes_through_the_hooks(app: Tenure, jobs: Inline) -> None:
    said: list[str] = []
    app.around_attempt(told_by(said, "hook"))

    @app.job
    def poll(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise Snooze(60)
        return "there"

    job = poll.enqueue()
    jobs.drain()

    assert job.result() == "there"
    assert job.refresh().failures == 0
    assert said[1].startswith("hook ends: raised")


@spec("HK6")
def test_context_variables_reach_the_handler_and_not_the_next_attempt(
    app: Tenure, jobs: Inline
) -> None:
    before: list[str] = []

    @app.around_attempt
    def bind(attempt: Attempt) -> Iterator[None]:
        before.append(who.get())
        who.set(attempt.kind)
        yield

    @app.job
    def tell() -> str:
        return who.get()

    @app.job
    async def atell() -> str:
        return who.get()

    told = [tell.enqueue(), atell.enqueue(), tell.enqueue()]
    jobs.drain()

    assert [job.result() for job in told] == ["tell", "atell", "tell"]
    assert before == ["nobody"] * 3


@spec("HK6")
def test_an_async_hook_around_a_plain_function_has_a_loop_of_its_own(
    app: Tenure, jobs: Inline
) -> None:
    app.around_attempt(awaiting)

    @app.job
    def plain() -> list[str]:
        async def inside() -> str:
            return who.get()

        return [who.get(), asyncio.run(inside())]

    @app.job
    async def coroutine() -> list[str]:
        return [who.get(), await asyncio.to_thread(who.get)]

    for job in (plain.enqueue(), coroutine.enqueue()):
        jobs.drain()

        assert job.result() == ["an async hook", "an async hook"]


class Both:
    """A context manager of both colours."""

    used: list[str] = []  # noqa: RUF012 - what the test looks at

    def __init__(self, attempt: Attempt) -> None:
        self._kind = attempt.kind

    def __enter__(self) -> None:
        self.used.append(f"{self._kind}: sync")

    def __exit__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> None:
        self.used.append(f"{self._kind}: async")

    async def __aexit__(self, *_: object) -> None:
        pass


@spec("HK6")
def test_a_manager_of_both_colours_is_used_as_its_surroundings_are(
    app: Tenure, jobs: Inline
) -> None:
    Both.used.clear()
    app.around_attempt(Both)

    @app.job
    def plain() -> None: ...

    @app.job
    async def coroutine() -> None: ...

    plain.enqueue()
    coroutine.enqueue()
    jobs.drain()

    assert Both.used == ["plain: sync", "coroutine: async"]


@spec("HK9", "HK10")
def test_a_dead_letter_calls_the_job_that_its_kind_names(app: Tenure, jobs: Inline) -> None:
    told: list[dict[str, Any]] = []

    @app.job(queue="alarms", priority=5)
    def page(record: dict[str, Any], ctx: Context) -> None:
        told.append(record)

    @app.job(retry=ONCE, on_dead_letter=page)
    def pay(amount: int) -> None:
        raise OSError("no bank")

    @app.job(retry=ONCE, on_dead_letter="page")
    def ship() -> None: ...

    paid = pay.using(correlation_id="order 7").enqueue(5)
    shipped = ship.enqueue()
    jobs.drain()

    [record] = told
    assert (record["job_id"], record["kind"], record["queue"]) == (paid.id, "pay", "default")
    assert (record["payload"], record["attempts"]) == ({"amount": 5}, 1)
    assert (record["reason_code"], record["stage"]) == ("exhausted_retries", "exec")
    assert (record["error"]["type"], record["error"]["message"]) == ("OSError", "no bank")
    assert shipped.status == "succeeded"
    [report] = app.jobs.ls(kind="page")
    assert (report.origin_id, report.origin_cause) == (paid.id, "dead_letter")
    assert (report.queue, report.correlation_id) == ("alarms", "order 7")


@spec("HK10")
def test_what_cannot_report_a_dead_letter_is_refused(app: Tenure, jobs: Inline) -> None:
    @app.job
    def silent() -> None: ...

    @app.job(on_dead_letter="nobody")
    def lost() -> None: ...

    @app.job(on_dead_letter="silent")
    def deaf() -> None: ...

    def work() -> None: ...

    with pytest.raises(InvalidInput, match="work names itself"):
        app.job(on_dead_letter="work")(work)
    with pytest.raises(InvalidInput, match="has no parameter record"):
        app.job(on_dead_letter=silent)(work)
    with pytest.raises(InvalidInput, match="neither a kind nor a job"):
        app.job(on_dead_letter=print)(work)  # type: ignore[call-overload]  # the mistake
    with pytest.raises(InvalidInput, match="this application has no kind nobody"):
        lost.enqueue()
    with pytest.raises(InvalidInput, match="has no parameter record"):
        deaf.enqueue()
    assert jobs.enqueued == []
    assert "work" not in app.registry.kinds()


@spec("HK8")
def test_what_cannot_be_a_hook_is_refused(app: Tenure) -> None:
    async def no_yield(attempt: Attempt) -> None: ...

    def no_parameter() -> Iterator[None]:
        yield

    def two(attempt: Attempt, other: int) -> Iterator[None]:
        yield

    for wrong, why in [
        (3, "int is not a function"),
        (no_yield, "async def without yield"),
        (no_parameter, "too many positional arguments"),
        (two, "missing a required argument: 'other'"),
    ]:
        with pytest.raises(InvalidInput, match=why):
            app.around_attempt(wrong)  # type: ignore[type-var]  # the mistake
    assert app.registry.hooks == ()


@spec("HK5", "HK8")
def test_a_function_without_yield_fails_the_attempt_with_a_hint(app: Tenure, jobs: Inline) -> None:
    def forgot(attempt: Attempt) -> None:
        return None

    app.around_attempt(forgot)  # type: ignore[type-var]  # the mistake

    @app.job(retry=ONCE)
    def work() -> None: ...

    job = work.enqueue()
    jobs.drain()

    error = error_of(job)
    assert "returned NoneType, which is no context manager" in error.message
    assert error.stage is Stage.EXEC


# --- tracebacks ----------------------------------------------------------------------------------


def frames_of(job: Job[Any]) -> list[str]:
    """The function of each frame that the traceback shows."""
    lines = error_of(job).traceback.splitlines()
    return [line.rpartition(" in ")[2] for line in lines if line.lstrip(" |").startswith("File ")]


@pytest.mark.parametrize("hook", [told_by([], "a hook"), awaiting])
@pytest.mark.parametrize("isolation", ["process", "async", "thread"])
def test_a_traceback_has_the_frames_of_the_handler_only(
    app: Tenure, jobs: Inline, hook: Any, isolation: Any
) -> None:
    def reason() -> None:
        raise ValueError("unlucky")

    def work() -> None:
        try:
            reason()
        except ValueError as unlucky:
            raise LookupError("nothing found") from unlucky

    async def awork() -> None:
        work()

    app.around_attempt(hook)
    handler = awork if isolation == "async" else work
    app.job(name="work", retry=ONCE, isolation=isolation)(handler)

    job = app.enqueue("work")
    jobs.drain()

    own = ["awork", "work"] if isolation == "async" else ["work"]
    assert frames_of(job) == ["work", "reason", *own]
    assert "During handling" not in error_of(job).traceback


def test_the_error_of_a_hook_shows_the_hook_and_what_the_handler_raised(
    app: Tenure, jobs: Inline
) -> None:
    @app.around_attempt
    def session(attempt: Attempt) -> Iterator[None]:
        try:
            yield
        finally:
            raise OSError("could not commit")

    @app.job(retry=ONCE)
    def work() -> None:
        raise ValueError("unlucky")

    job = work.enqueue()
    jobs.drain()

    assert frames_of(job) == ["session", "work", "session"]
    assert "ValueError: unlucky" in error_of(job).traceback


def test_a_fault_in_the_code_around_handlers_keeps_its_frames(
    app: Tenure, jobs: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.around_attempt
    def nothing(attempt: Attempt) -> Iterator[None]:
        yield

    @app.job(retry=ONCE)
    def work() -> None: ...

    monkeypatch.setattr("tenure.handlers.hooks._Entered.enter", None)
    job = work.enqueue()
    jobs.drain()

    assert frames_of(job)[-1] == "_steps"
