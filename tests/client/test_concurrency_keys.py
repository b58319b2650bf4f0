"""Concurrency keys in an application: where a call's key comes from, and what is refused."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import pytest

from tenure import Context, InvalidInput, Tenure
from tenure.testing import Inline, inline
from tenure_conformance.spec import spec


@pytest.fixture
def app() -> Tenure:
    return Tenure("sqlite:////nonexistent/never-opened.db")


@pytest.fixture
def jobs(app: Tenure) -> Iterator[Inline]:
    with inline(app) as made:
        yield made


def _declare(app: Tenure, key: Any) -> Any:
    @app.job(concurrency_key=key)
    def bill(customer_id: int, month: str = "2026-11", *, ctx: Context) -> None: ...

    return bill


@spec("CK5")
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("customer_id", "42"),
        ("month", "2026-11"),
        (lambda customer_id: customer_id, "42"),
        (lambda month, customer_id: f"{customer_id}/{month}", "42/2026-11"),
        (lambda: "all", "all"),
        (lambda customer_id: None, None),
        (lambda customer_id: customer_id / 4, "10.5"),
    ],
)
def test_a_key_is_an_argument_or_a_function_of_some_arguments(
    app: Tenure, jobs: Inline, key: str | Callable[..., Any], expected: str | None
) -> None:
    bill = _declare(app, key)

    for job in (bill.enqueue(42), app.enqueue("bill", {"customer_id": 42})):
        assert job.refresh().concurrency_key == expected


@spec("CK5")
def test_a_call_may_have_a_key_of_its_own(app: Tenure, jobs: Inline) -> None:
    class Region(StrEnum):
        NORTH = "north"

    @app.job(concurrency_key=lambda customer_id: None)
    def bill(customer_id: int) -> None: ...

    @app.job
    def mail(to: str) -> None: ...

    own = bill.using(concurrency_key=7).enqueue(42).refresh()
    other = mail.using(concurrency_key=Region.NORTH).enqueue("a").refresh()

    assert own.concurrency_key == "7"
    assert other.concurrency_key == "north"


@spec("CK5")
@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (lambda customer_id: 1 / 0, "the key function of bill raised ZeroDivisionError"),
        (lambda customer_id: [customer_id], "list is neither text nor a number"),
        (lambda customer_id: True, "bool is neither text nor a number"),
        (lambda customer_id: float("nan"), "float is neither text nor a number"),
        (lambda customer_id: "x" * 201, "201 characters are over the limit of 200"),
        (lambda customer_id: "", "is empty"),
        ("ctx", "ctx of bill is not enqueued"),
    ],
)
def test_a_key_that_is_none_is_refused_and_nothing_is_written(
    app: Tenure, jobs: Inline, key: str | Callable[..., Any], problem: str
) -> None:
    bill = _declare(app, key)

    with pytest.raises(InvalidInput, match=problem):
        bill.enqueue(42)

    assert app.jobs.ls() == []


@spec("CK5")
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"concurrency_key": "customer"}, "bill has no argument 'customer'"),
        ({"concurrency_key": lambda who: who}, "bill has no argument 'who'"),
        ({"concurrency_key": 42}, "int is neither an argument's name nor a function"),
    ],
)
def test_a_wrong_key_is_refused_where_the_kind_is_declared(
    app: Tenure, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem):

        @app.job(**options)
        def bill(customer_id: int) -> None: ...


@spec("CK3", "CK6")
def test_inline_jobs_of_one_key_run_one_after_the_other(app: Tenure, jobs: Inline) -> None:
    seen: list[int] = []

    @app.job(concurrency_key="customer_id")
    def bill(customer_id: int, number: int, ctx: Context) -> None:
        running = [each for each in app.jobs.ls(kind="bill") if each.status == "running"]
        assert len([each for each in running if each.concurrency_key == str(customer_id)]) == 1
        seen.append(number)

    for number in range(4):
        bill.enqueue(customer_id=number % 2, number=number)
    jobs.drain()

    assert sorted(seen) == [0, 1, 2, 3]
    assert seen.index(0) < seen.index(2)
    assert seen.index(1) < seen.index(3)


@spec("CK7")
@pytest.mark.parametrize("limit", [0, -1, True, "2", 1.5, 1_000_001])
def test_a_limit_that_is_no_number_of_jobs_is_refused(app: Tenure, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="concurrency_limit"):

        @app.job(concurrency_key="customer_id", concurrency_limit=limit)
        def bill(customer_id: int) -> None: ...


@spec("CK7")
def test_a_limit_without_a_key_is_refused(app: Tenure) -> None:
    with pytest.raises(InvalidInput, match="given without a key"):

        @app.job(concurrency_limit=2)
        def bill(customer_id: int) -> None: ...


@spec("CK7")
def test_what_is_declared_is_written_and_shown(app: Tenure, jobs: Inline) -> None:
    @app.job(concurrency_key="customer_id", concurrency_limit=2, rate="10/s")
    def bill(customer_id: int) -> None: ...

    @app.job
    def close(customer_id: int) -> None: ...

    bill.enqueue(1)
    jobs.drain()

    found = {each.kind: (each.rate, each.concurrency_limit) for each in app.kinds.ls()}
    assert found == {"bill": ("10/s", 2), "close": (None, None)}


@spec("CK7")
def test_what_is_not_given_stays_as_it_is(app: Tenure, jobs: Inline) -> None:
    app.kinds.limit("bill", rate="10/s", concurrency_limit=2, create=True)
    by_rate = app.kinds.limit("bill", rate=None)
    by_limit = app.kinds.limit("bill", concurrency_limit=None)

    assert (by_rate.rate, by_rate.concurrency_limit) == (None, 2)
    assert (by_limit.rate, by_limit.concurrency_limit) == (None, None)
    with pytest.raises(InvalidInput, match="concurrency_limit"):
        app.kinds.limit("bill", concurrency_limit=0)
    with pytest.raises(InvalidInput, match="rate: is missing, as is concurrency_limit"):
        app.kinds.limit("bill")
