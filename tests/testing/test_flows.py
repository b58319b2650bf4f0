"""Flows in a user's own tests: jobs wait for each other, and find what the others returned."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tenure import (
    Conflict,
    Context,
    Flow,
    FlowJob,
    InvalidInput,
    JobStatus,
    PermanentError,
    Retry,
    Tenure,
    UnknownJob,
    WaitTimeout,
)
from tenure.core.commands import Parent
from tenure.core.flows import MAX_FLOW_JOBS
from tenure.core.instants import Duration
from tenure.testing import FakeContext, Inline
from tenure_conformance.spec import spec


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
        flow.add(app.call("merge"), after=second, name="a job behind the cycle")
        first.after = (Parent(job_id=second.id, step="second"),)

    def alone(flow: Flow, first: FlowJob[Any]) -> None:
        first.after = (Parent(job_id=first.id, step="first"),)

    wrong: dict[str, Callable[[Any, Any], object]] = {
        "a cycle, first, second among them; leave one of them out of the after of another": cyclic,
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
        "after: first waits for itself; leave it out of after": alone,
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


def test_a_chain_of_something_else_says_how_it_is_written(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    @app.job
    def size(text: str) -> int:
        return len(text)

    chained = "write app.chain(first.call(argument, …), second.call())"
    for wrong in (size, [size.call("a"), size.call("b")]):
        with pytest.raises(InvalidInput) as refused:
            app.chain(wrong)  # type: ignore[arg-type]  # what the error is about
        assert refused.value.hint == chained
    assert jobs.enqueued == []


def test_a_chain_is_short_for_a_flow(app: Tenure, jobs: Inline, fetched: list[str]) -> None:
    @app.job
    def double(ctx: Context) -> int:
        [before] = ctx.parents.values()
        return int(before) * 2

    @app.job
    def size(text: str) -> int:
        return len(text)

    chain = app.chain(size.call("four"), double.call(), double.call())

    assert chain.result(chain.jobs[-1]) == 16


def test_async_code_has_the_same(app: Tenure, jobs: Inline, fetched: list[str]) -> None:
    @app.job
    async def size(text: str) -> int:
        return len(text)

    async def run() -> tuple[int, int, dict[str, JobStatus]]:
        async with app.flow("async") as flow:
            total = flow.add(app.call("merge"), after=flow.add(size.call("abc")))
        ends = await flow.await_end()
        chain = await app.achain(size.call("abcd"), app.call("merge"))
        return await flow.aresult(total), await chain.aresult(chain.jobs[-1]), ends

    assert asyncio.run(run()) == (3, 4, {"merge-1": "succeeded", "size-1": "succeeded"})


def test_a_wait_that_is_over_says_how_many_jobs_are_left(app: Tenure, jobs: Inline) -> None:
    @app.job
    def never() -> None: ...

    with app.flow("slow") as flow:
        flow.add(never.using(delay="1h").call())
        flow.add(never.call())

    with pytest.raises(WaitTimeout, match="not ended: 1 of 2 jobs of the flow"):
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

    with app.flow("many") as flow:
        total = flow.add(count.call(), after=[flow.add(number.call(n % 10)) for n in range(150)])

    assert flow.result(total) == 15 * 45


def test_a_fake_context_has_the_parents_it_was_given() -> None:
    ctx = FakeContext(parents={"a": 1, "b": [2]})

    assert dict(ctx.parents) == {"a": 1, "b": [2]}
    assert dict(FakeContext().parents) == {}


# --- flows from handlers -------------------------------------------------------------------------


@spec("FL13")
def test_a_handler_makes_a_flow_once_however_often_it_is_attempted(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    made: list[bool | None] = []

    @app.job
    def plan(ctx: Context, urls: list[str]) -> str:
        with ctx.flow() as flow:
            pages = [flow.add(app.call("fetch", {"url": url})) for url in urls]
            flow.add(app.call("merge"), after=pages, name="total")
        made.append(flow.is_new)
        if ctx.attempt < 3:
            raise RuntimeError("after it made its flow")
        return flow.jobs[-1].id

    job = plan.enqueue(["a", "bb"])
    total = app.get(job.result())

    assert total.result() == 3
    assert made == [True, False, False]
    assert sorted(fetched) == ["a", "bb", "merge"]
    assert total.refresh().flow_step == "total"


@spec("FL13")
def test_an_async_handler_makes_flows_at_several_steps(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    @app.job
    async def plan(ctx: Context) -> list[str]:
        ids: list[str] = []
        for step in ("one", 2):
            async with ctx.flow(f"part {step}", step=step) as flow:
                flow.add(app.call("fetch", {"url": str(step)}))
            ids.append(flow.id)
        return ids

    ids = plan.enqueue().result()
    jobs.drain()

    assert sorted(fetched) == ["2", "one"]
    assert [app.flows.show(each).flow.name for each in ids] == ["part one", "part 2"]


@spec("FL13")
def test_a_flow_within_a_flow_goes_on_with_the_work_of_its_handler(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    @app.job
    def plan(ctx: Context, depth: int) -> None:
        with ctx.flow() as flow:
            inner = app.call("plan", {"depth": depth - 1})
            flow.add(inner if depth else app.call("fetch", {"url": "x"}))
            flow.add(app.call("fetch", {"url": f"after {depth}"}), after=ctx.job_id)

    plan.enqueue(3)
    jobs.drain()

    assert sorted(fetched) == ["after 0", "after 1", "after 2", "after 3", "x"]
    assert len(app.flows.ls()) == 4
    assert not any(flow.is_live for flow in app.flows.ls())


def test_what_is_wrong_with_a_handlers_flow_fails_the_attempt_and_makes_nothing(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    said: list[str] = []

    @app.job
    def plan(ctx: Context, wrong: str) -> None:
        try:
            with ctx.flow() as flow:
                first = flow.add(app.call("fetch", {"url": "a"}))
                match wrong:
                    case "id":
                        flow.add(app.call("fetch", {"url": "a"}, job_id=str(first.id)))
                    case "parent":
                        flow.add(app.call("merge"), after="01977420-dc00-7000-8000-000000000000")
                    case "twice":
                        flow.add(app.call("merge"), name=first.name)
                    case "key":
                        flow.add(app.call("merge", key="k"))
                    case _:
                        ctx.flow(step="\x00")
        except InvalidInput as refused:
            said.append(str(refused))

    for wrong in ("id", "parent", "twice", "key", "step"):
        plan.enqueue(wrong).result()

    words = ["follows from the handler", "there is no job", "two jobs of the flow", "key", "step"]
    assert all(word in heard for word, heard in zip(words, said, strict=True)), said
    assert fetched == []


@spec("F13")
def test_a_handler_whose_flow_tenure_refuses_fails_at_once(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    attempts: list[int] = []

    @app.job
    def plan(ctx: Context, jobs: int) -> None:
        attempts.append(ctx.attempt)
        with ctx.flow() as flow:
            for number in range(jobs):
                flow.add(app.call("fetch", {"url": str(number)}))

    job = plan.enqueue(MAX_FLOW_JOBS + 1)
    jobs.drain()

    record = job.refresh()
    assert (record.status, attempts) == (JobStatus.FAILED, [1])
    assert record.error is not None
    assert (record.error.type, record.error.stage) == ("InvalidInput", "exec")
    assert "a flow has 1 to 10000 of them" in record.error.message
    assert fetched == []


def test_two_flows_of_one_attempt_need_a_step(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    @app.job
    def plan(ctx: Context) -> str:
        for _ in range(2):
            try:
                with ctx.flow() as flow:
                    flow.add(app.call("fetch", {"url": "a"}))
            except InvalidInput as refused:
                return str(refused)
        return ""

    assert "already made a flow" in plan.enqueue().result()


def test_the_fake_context_remembers_flows(app: Tenure, fetched: list[str]) -> None:
    ctx = FakeContext()

    with ctx.flow("pages", step="s") as flow:
        page = flow.add(app.call("fetch", {"url": "a"}))
        flow.add(app.call("merge"), after=page, name="total")

    [plan] = ctx.flows
    assert (plan.name, plan.step) == ("pages", "s")
    assert [(job.name, [parent.step for parent in job.after]) for job in plan.jobs] == [
        ("fetch-1", []),
        ("total", ["fetch-1"]),
    ]
    assert flow.is_new
    with pytest.raises(InvalidInput, match="already made a flow"), ctx.flow(step="s") as again:
        again.add(app.call("merge"))


# --- redriving -----------------------------------------------------------------------------------


@spec("FL10", "FL11")
def test_a_flow_is_redriven_and_its_handles_are_about_the_new_jobs(
    app: Tenure, jobs: Inline
) -> None:
    broken = {"b"}

    @app.job
    def fetch(url: str) -> int:
        if url in broken:
            raise PermanentError("no such page")
        return len(url)

    @app.job
    def merge(ctx: Context) -> int:
        return sum(ctx.parents.values())

    with app.flow("import") as flow:
        pages = [flow.add(fetch.call(url)) for url in ("a", "b", "cc")]
        total = flow.add(merge.call(), after=pages, name="total")
    assert flow.wait()["total"] == "cancelled"
    old = total.id
    broken.clear()

    assert flow.redrive() == 2

    assert flow.result(total) == 4
    assert total.id != old
    assert set(flow.wait().values()) == {JobStatus.SUCCEEDED}
    shown = app.flows.show(flow.id)
    assert [step.replaces for step in shown.steps if step.job_id == total.id] == [old]
    assert [each.jobs for each in shown.redrives] == [2]
    with pytest.raises(Conflict, match="nothing_to_redrive"):
        flow.redrive()


@spec("FL12")
def test_a_dead_letter_of_a_flow_is_not_redriven_by_itself(app: Tenure, jobs: Inline) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def die() -> None:
        raise RuntimeError("for ever")

    with app.flow("dies") as flow:
        job = flow.add(die.call())
    assert flow.wait() == {"die-1": "dead_lettered"}

    with pytest.raises(Conflict, match="part_of_flow") as refused:
        app.dead_letters.redrive(job.id)

    assert "app.flows.redrive" in str(refused.value)
    assert [letter.job.id for letter in app.dead_letters.ls()] == [job.id]
    flow.redrive()
    assert app.dead_letters.ls() == []


def test_a_flow_is_redriven_in_async_code(app: Tenure, jobs: Inline) -> None:
    seen: list[int] = []

    @app.job
    def fail_once() -> str:
        if not seen:
            seen.append(1)
            raise PermanentError("once")
        return "done"

    async def redrive() -> str:
        async with app.flow("f") as flow:
            job = flow.add(fail_once.call())
        await flow.await_end()
        shown = await app.flows.aredrive(flow.id, request_id="once")
        again = await app.flows.aredrive(flow.id, request_id="once")
        assert len(shown.redrives) == len(again.redrives) == 1
        with pytest.raises(UnknownJob, match="there is no flow"):
            await app.flows.ashow(job.id)
        result = await app.get(shown.steps[-1].job_id).aresult()
        with pytest.raises(Conflict, match="nothing_to_redrive"):
            await flow.aredrive()
        assert [each.id for each in await app.flows.als()] == [flow.id]
        return str(result)

    assert asyncio.run(redrive()) == "done"


@spec("FL6")
def test_waiting_for_a_purged_flow_says_so(app: Tenure, jobs: Inline, fetched: list[str]) -> None:
    with app.flow("old") as flow:
        flow.add(app.call("fetch", {"url": "a"}))
    flow.wait()
    jobs.clock.advance("40d")
    jobs.store.upkeep.delete("jobs", older_than_us=Duration(0), limit=10)

    with pytest.raises(UnknownJob, match="purged"):
        flow.wait("1s")


@spec("HK9", "HK10", "FL10", "FL2")
def test_a_dead_letter_of_a_flow_is_reported_by_a_kind_that_is_a_job_of_the_flow_too(
    app: Tenure, jobs: Inline
) -> None:
    told: list[str] = []

    @app.job
    def tell(record: dict[str, Any]) -> None:
        told.append(record["kind"])

    @app.job(on_dead_letter="tell", retry=Retry(max_attempts=1))
    def part() -> None:
        raise RuntimeError("always")

    with app.flow("reported") as flow:
        bad = flow.add(part.call(), name="bad")
        flow.add(tell.call({"kind": "a member"}), after=bad, when="ended", name="told")
    jobs.drain()
    first = [sorted(told), flow.wait()]
    flow.redrive()
    jobs.drain()

    assert first == [
        ["a member", "part"],
        {"bad": JobStatus.DEAD_LETTERED, "told": JobStatus.SUCCEEDED},
    ]
    assert sorted(told) == ["a member", "part", "part"], "the new dead letter is reported, too"
    assert len(app.flows.show(flow.id).steps) == 3, "a report is no job of the flow"


@spec("EX1", "EX2", "FL2", "FL10")
def test_a_job_of_a_flow_that_expired_is_replaced_by_one_that_does_not(
    app: Tenure, jobs: Inline, fetched: list[str]
) -> None:
    with app.flow("late") as flow:
        late = flow.add(app.call("fetch", {"url": "a"}, expires="1m"), name="late")
        flow.add(app.call("merge"), after=late, name="total")
    jobs.advance("2m")
    jobs.drain()
    expired = flow.wait()
    flow.redrive()
    jobs.advance("1h")
    jobs.drain()

    assert set(expired.values()) == {JobStatus.CANCELLED}
    assert set(flow.wait().values()) == {JobStatus.SUCCEEDED}
    assert fetched == ["a", "merge"]
