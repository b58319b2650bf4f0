"""Rate keys in an application: what is declared, computed, refused and obeyed."""

from collections.abc import Callable, Iterator
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
    @app.job(rate="1/s", rate_key=key)
    def call_api(customer_id: int, region: str = "north", *, ctx: Context) -> None: ...

    return call_api


@spec("RL12")
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("customer_id", "42"),
        ("region", "north"),
        (lambda region, customer_id: f"{customer_id}/{region}", "42/north"),
        (lambda customer_id: None, None),
    ],
)
def test_a_rate_key_is_an_argument_or_a_function_of_some_arguments(
    app: Tenure, jobs: Inline, key: str | Callable[..., Any], expected: str | None
) -> None:
    call_api = _declare(app, key)

    for job in (call_api.enqueue(42), app.enqueue("call_api", {"customer_id": 42})):
        assert job.refresh().rate_key == expected
        assert job.refresh().concurrency_key is None
    assert call_api.using(rate_key=7).enqueue(42).refresh().rate_key == "7"


@spec("RL12")
@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (lambda customer_id: 1 / 0, "rate_key: the key function of call_api raised ZeroDivision"),
        (lambda customer_id: [customer_id], "rate_key: list is neither text nor a number"),
        (lambda customer_id: "x" * 201, "rate_key: 201 characters are over the limit of 200"),
        (lambda customer_id: "", "is empty"),
        ("ctx", "rate_key: ctx of call_api is not enqueued"),
    ],
)
def test_a_rate_key_that_is_none_is_refused_and_nothing_is_written(
    app: Tenure, jobs: Inline, key: str | Callable[..., Any], problem: str
) -> None:
    call_api = _declare(app, key)

    with pytest.raises(InvalidInput, match=problem):
        call_api.enqueue(42)
    with pytest.raises(InvalidInput, match=problem):
        app.enqueue_many([call_api.call(41), call_api.call(42)])

    assert app.jobs.ls() == []


@spec("RL12", "CK13")
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"rate_key": "customer_id"}, "rate_key: belongs to a rate"),
        ({"rate": "1/s", "rate_key": "customer"}, "has no argument 'customer'"),
        ({"rate": "1/s", "rate_key": 42}, "int is neither an argument's name nor a function"),
    ],
)
def test_a_wrong_declaration_is_refused(app: Tenure, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):

        @app.job(**options)
        def call_api(customer_id: int) -> None: ...


@spec("RL11")
def test_rate_keys_hold_in_virtual_time(app: Tenure, jobs: Inline) -> None:
    seen: list[int] = []

    @app.job(rate="1/s", burst=2, rate_key="customer_id")
    def call_api(customer_id: int) -> None:
        seen.append(customer_id)

    for customer_id in (1, 1, 1, 1, 2):
        call_api.enqueue(customer_id)

    assert len(jobs.run_ready()) == 3
    assert sorted(seen) == [1, 1, 2]
    assert len(jobs.advance("1s")) == 1
    began = jobs.clock()
    assert len(jobs.drain()) == 1  # moves the clock to where there is room
    assert jobs.clock() - began == 1_000_000


@spec("CK13")
def test_keys_take_turns_in_virtual_time(app: Tenure, jobs: Inline) -> None:
    seen: list[str] = []

    @app.job(concurrency_key="customer")
    def sync(customer: str) -> None:
        seen.append(customer)
        jobs.clock.advance("1s")  # the job takes a second

    for customer in "aaaabbc":
        sync.enqueue(customer)
    jobs.drain()

    assert "".join(seen) == "abcabaa"
