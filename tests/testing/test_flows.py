"""Flows in a user's own tests: jobs wait for each other, and find what the others returned."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tenure import (
    Context,
    Flow,
    FlowJob,
    InvalidInput,
    JobStatus,
    PermanentError,
    Tenure,
    WaitTimeout,
)
from tenure.conformance.spec import spec
from tenure.core.commands import Parent
from tenure.testing import FakeContext, Inline


@pytest.fixture
def fetched(app: Tenure) -> list[str]:
    """The pages that were fetched, in order; `fetch`, `merge` and `notify` are registered."""
    pages: list[str] = []

    @app.job
    def fetch(url: str) -> int:
        if url == "broken":
            raise PermanentError("no such page")
        pages.append(url)
        return len(url)

    @app.job
    def merge(ctx: Context) -> int:
        pages.append("merge")
        return sum(ctx.parents.values())

    @app.job
    def notify(ctx: Context, whom: str) -> str:
        pages.append("notify")
        ends = ", ".join(f"{name} {status}" for name, status in ctx.parents.statuses.items())
        return f"{whom}: {ends}"

    return pages


@spec("FL1", "FL7")
def test_a_job_runs_after_those_it_waits_for_and_finds_their_results(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    with app.flow("import 42") as flow:
        pages = [flow.add(app.call("fetch", {"url": url})) for url in ("a", "bb", "ccc")]
        total = flow.add(app.call("merge"), after=pages)
        last = flow.add(app.call("notify", {"whom": "ops"}), after=total, when="ended")

    assert flow.result(total) == 6
    assert flow.result(last) == "ops: merge-1 succeeded"
    assert fetched == ["a", "bb", "ccc", "merge", "notify"]
    assert set(flow.wait().values()) == {JobStatus.SUCCEEDED}


@spec("FL2", "T29")
def test_a_job_whose_parent_failed_does_not_run_unless_it_only_needs_its_end(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    with app.flow("import") as flow:
        page = flow.add(app.call("fetch", {"url": "broken"}), name="page")
        total = flow.add(app.call("merge"), after=page)
        last = flow.add(app.call("notify", {"whom": "ops"}), after=[page, total], when="ended")

    assert flow.wait() == {"page": "failed", "merge-1": "cancelled", "notify-1": "succeeded"}
    assert flow.result(last) == "ops: page failed, merge-1 cancelled"
    assert "merge" not in fetched


@spec("FL3")
def test_nothing_is_sent_before_the_block_ends_or_if_it_raises(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    def send() -> None:
        with app.flow("never") as flow:
            flow.add(app.call("fetch", {"url": "a"}))
            assert jobs.enqueued == []
            raise RuntimeError("changed my mind")

    with pytest.raises(RuntimeError, match="changed my mind"):
        send()

    assert jobs.enqueued == []


@spec("FL3")
def test_what_cannot_work_is_refused_and_nothing_is_written(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    def sent(add: Callable[[Flow, FlowJob[Any]], object]) -> None:
        with app.flow("wrong") as flow:
            add(flow, flow.add(app.call("fetch", {"url": "a"}), name="first"))

    def cyclic(flow: Flow, first: FlowJob[Any]) -> None:
        second = flow.add(app.call("merge"), after=first, name="second")
        first.after = (Parent(job_id=second.id, step="second"),)

    def alone(flow: Flow, first: FlowJob[Any]) -> None:
        first.after = (Parent(job_id=first.id, step="first"),)

    wrong: dict[str, Callable[[Any, Any], object]] = {
        "a cycle": cyclic,
        "there is no job": lambda flow, first: flow.add(
            app.call("merge"), after="01977420-dc00-7000-8000-000000000000"
        ),
        "dedupe_key|key=": lambda flow, first: flow.add(app.call("merge", key="k")),
        "delay": lambda flow, first: flow.add(app.call("merge", delay="5s"), after=first),
        "two jobs of the flow": lambda flow, first: flow.add(app.call("merge"), name="first"),
        "neither succeeded nor ended": lambda flow, first: flow.add(
            app.call("merge"), after=first, when="failed"
        ),
        "is not a job": lambda flow, first: flow.add(app.call("merge"), after=[7]),
        "int is not a job": lambda flow, first: flow.add(app.call("merge"), after=7),
        "is not a call": lambda flow, first: flow.add("merge"),
        "'first' is not a job id; give what flow.add returned for first": (
            lambda flow, first: flow.add(app.call("merge"), after="first")
        ),
        "after: first waits for itself": alone,
        "flow: has not been sent; it is sent when its block ends": (
            lambda flow, first: flow.result(first)
        ),
    }
    for problem, add in wrong.items():
        with pytest.raises(InvalidInput, match=problem):
            sent(add)
        assert jobs.enqueued == [], problem


def test_an_empty_flow_sends_nothing_and_a_sent_one_takes_no_more(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    with app.flow("empty") as flow:
        pass

    assert flow.wait() == {}
    with pytest.raises(InvalidInput, match="has been sent"):
        flow.add(app.call("merge"))


@spec("FL5")
def test_a_flow_can_wait_for_a_job_that_exists(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    before = app.enqueue("fetch", {"url": "before"})
    with app.flow("after it") as flow:
        total = flow.add(
            app.call("merge"), after=[before, flow.add(app.call("fetch", {"url": "x"}))]
        )

    assert flow.result(total) == 7


def test_a_chain_and_a_map_are_short_for_flows(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    @app.job
    def double(ctx: Context) -> int:
        [before] = ctx.parents.values()
        return int(before) * 2

    @app.job
    def size(text: str) -> int:
        return len(text)

    chain = app.chain(size.call("four"), double.call(), double.call())
    mapped = app.map(size, ["a", "bb"]).then(app.call("merge"))

    assert chain.result(chain.jobs[-1]) == 16
    assert mapped.result(mapped.jobs[-1]) == 3


def test_async_code_has_the_same(app: Tenure, jobs: Inline, fetched: list[str]) -> None:
    @app.job
    async def size(text: str) -> int:
        return len(text)

    async def run() -> tuple[int, int, dict[str, JobStatus]]:
        async with app.flow("async") as flow:
            total = flow.add(app.call("merge"), after=flow.add(size.call("abc")))
        ends = await flow.await_end()
        chain = await app.achain(size.call("abcd"), app.call("merge"))
        mapped = await app.map(size, ["x"]).athen(app.call("merge"))
        await mapped.await_end()
        return await flow.aresult(total), await chain.aresult(chain.jobs[-1]), ends

    assert asyncio.run(run()) == (3, 4, {"merge-1": "succeeded", "size-1": "succeeded"})


def test_a_wait_that_is_over_says_how_many_jobs_are_left(app: Tenure, jobs: Inline) -> None:
    @app.job
    def never() -> None: ...

    with app.flow("slow") as flow:
        flow.add(never.using(delay="1h").call())

    with pytest.raises(WaitTimeout, match="1 of 1 jobs of the flow"):
        flow.wait(timeout="1s")


@spec("FL7")
def test_parents_are_a_mapping_of_results_and_say_what_is_missing(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    heard: list[str] = []

    @app.job
    def curious(ctx: Context) -> list[str]:
        for name in ("nobody", "bad"):
            try:
                ctx.parents[name]
            except KeyError as missing:
                heard.append(str(missing))
        assert "good" in ctx.parents
        assert "bad" not in ctx.parents
        return list(ctx.parents)

    with app.flow("questions") as flow:
        good = flow.add(app.call("fetch", {"url": "a"}), name="good")
        bad = flow.add(app.call("fetch", {"url": "broken"}), name="bad")
        asks = flow.add(curious.call(), after=[good, bad], when="ended")

    assert flow.result(asks) == ["good"]
    assert "this job has no parent 'nobody'" in heard[0]
    assert "it ended as failed" in heard[1]


@spec("FL7")
def test_a_join_of_many_reads_all_of_them_page_by_page(app: Tenure, jobs: Inline) -> None:
    @app.job
    def number(n: int) -> str:
        return str(n) * 10_000

    @app.job
    def count(ctx: Context) -> int:
        return sum(int(each[0]) for each in ctx.parents.values())

    flow = app.map(number, [n % 10 for n in range(150)]).then(count.call())

    assert flow.result(flow.jobs[-1]) == 15 * 45


def test_a_fake_context_has_the_parents_it_was_given() -> None:
    ctx = FakeContext(parents={"a": 1, "b": [2]})

    assert dict(ctx.parents) == {"a": 1, "b": [2]}
    assert dict(FakeContext().parents) == {}
