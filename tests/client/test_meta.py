"""The meta of jobs in an application: given, added to the kind's, passed on and searched."""

from collections.abc import Iterator
from typing import Any

import pytest

from tenure import Context, InvalidInput, Tenure
from tenure.testing import FakeContext, Inline, inline
from tenure_conformance.spec import spec


@pytest.fixture
def app() -> Tenure:
    return Tenure("sqlite:////nonexistent/never-opened.db")


@pytest.fixture
def jobs(app: Tenure) -> Iterator[Inline]:
    with inline(app) as made:
        yield made


@spec("J13")
def test_the_meta_of_a_call_adds_to_that_of_its_kind(app: Tenure, jobs: Inline) -> None:
    @app.job(meta={"team": "billing", "tenant": "none"})
    def bill(ctx: Context) -> dict[str, str]:
        with pytest.raises(TypeError):
            ctx.meta["tenant"] = "changed"  # type: ignore[index]  # what a handler may try
        return dict(ctx.meta)

    given = {"tenant": "acme"}
    call = bill.using(meta=given).call()
    plain, called = app.enqueue_many([bill.call(), call])
    given["tenant"] = "changed later"
    jobs.drain()

    assert hash(call) == hash(bill.using(meta={"tenant": "acme"}).call())
    assert plain.result() == plain.meta == {"team": "billing", "tenant": "none"}
    assert called.result() == called.meta == {"team": "billing", "tenant": "acme"}
    assert called.refresh().meta == called.events()[0].payload.meta == called.meta
    assert app.enqueue("bill", meta={}).meta == plain.meta
    assert app.enqueue("unknown").meta == {}


@spec("J13")
def test_a_job_with_an_empty_meta_is_the_same_request_as_one_without(
    app: Tenure, jobs: Inline
) -> None:
    made = app.enqueue("mail", job_id="01890000-0000-7000-8000-000000000007")

    again = app.enqueue("mail", job_id=made.id, meta={})

    assert again.id == made.id
    assert [each.meta for each in app.jobs.ls(kind="mail")] == [None]


@spec("J14")
def test_a_handler_passes_its_meta_on_if_it_says_so(app: Tenure, jobs: Inline) -> None:
    @app.job
    def ship() -> None: ...

    @app.job
    def order(ctx: Context) -> None:
        ctx.enqueue(ship.call(), step="without")
        ctx.enqueue(ship.using(meta=ctx.meta).call(), step="with")
        with ctx.flow() as flow:
            flow.add(ship.using(meta={**ctx.meta, "part": "2"}).call())

    order.using(meta={"tenant": "acme"}).enqueue()
    jobs.drain()

    passed_on = [each.meta for each in app.jobs.ls(kind="ship")]
    assert len(passed_on) == 3
    for expected in (None, {"tenant": "acme"}, {"tenant": "acme", "part": "2"}):
        assert expected in passed_on


@spec("J13")
def test_the_jobs_of_a_schedule_have_the_meta_of_its_call(app: Tenure, jobs: Inline) -> None:
    @app.job
    def report() -> None: ...

    app.schedules.add("nightly", report.using(meta={"tenant": "acme"}).call(), every="1h")
    jobs.advance("1h")

    assert [each.meta for each in app.jobs.ls(kind="report")] == [{"tenant": "acme"}]


@spec("J12")
def test_jobs_are_searched_by_one_entry(app: Tenure, jobs: Inline) -> None:
    job = app.enqueue("mail", meta={"tenant": "acme", "request": "r-17"})
    app.enqueue("mail")

    assert [each.id for each in app.jobs.ls(meta={"tenant": "acme"})] == [job.id]
    assert app.jobs.ls(meta={"tenant": "other"}) == []
    for wrong in ({}, {"a": "1", "b": "2"}):
        with pytest.raises(InvalidInput, match="search by one of them"):
            app.jobs.ls(meta=wrong)


@spec("J13", "J6")
@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (["tenant"], 'meta.*: list is not a mapping; write {"tenant": "acme"}'),
        ({"a b": "x"}, "meta.*: 'a b' is not a key of meta; use ASCII letters"),
        ({"tenant": 7}, r"meta\[tenant\]: int is not text"),
        ({"tenant": "x" * 257}, r"meta\[tenant\]: 257 characters are over the limit of 256"),
        ({str(number): "" for number in range(17)}, "meta.*: 17 entries are over the limit of 16"),
    ],
)
def test_meta_beyond_the_limits_is_refused_where_it_is_given(
    app: Tenure, jobs: Inline, wrong: Any, problem: str
) -> None:
    for ask in (
        lambda: app.enqueue("mail", meta=wrong),
        lambda: app.job(meta=wrong)(print),
        lambda: FakeContext(meta=wrong),
    ):
        with pytest.raises(InvalidInput, match=problem):
            ask()
    assert app.jobs.ls() == []
