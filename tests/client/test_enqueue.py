"""Enqueueing: what a call and its options become."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure import Conflict, Context, InvalidInput, Job, Retry, ValidationError
from tenure.client.app import Application
from tenure.client.functions import CHUNK
from tenure.core.instants import Instant, seconds
from tenure.core.policy import Policy
from tenure.core.vocabulary import OnExhausted, OnLost
from tenure.handlers.options import policy_from
from tenure.protocol.fields import moment
from tenure.testing import FakeContext
from tenure_conformance.spec import spec
from tests.client.scene import Scene


def test_a_decorated_function_is_called_as_before(app: Application) -> None:
    @app.job
    def add(a: int, b: int = 2) -> int:
        """Adds."""
        return a + b

    assert add(1) == 3
    assert add.__name__ == "add"
    assert add.__doc__ == "Adds."


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delay", "; use enqueue(…)"),
        ("apply_async", "; use enqueue(…), with options using(queue=…, delay=…).enqueue(…)"),
        ("s", "; use call(…)"),
        ("si", "; use call(…)"),
        ("signature", "; use call(…)"),
        ("enqeue", ""),
    ],
)
def test_what_a_job_function_has_not_is_an_error_that_helps_users_of_celery(
    app: Application, name: str, hint: str
) -> None:
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    for found, kind in ((add, "JobFunction"), (add.using(key="x"), "Enqueueable")):
        with pytest.raises(AttributeError) as refused:
            getattr(found, name)
        assert str(refused.value) == f"'{kind}' object has no attribute '{name}'{hint}"


def test_a_decorated_coroutine_function_gives_a_coroutine(app: Application) -> None:
    @app.job()
    async def double(a: int) -> int:
        return a * 2

    assert asyncio.run(double(4)) == 8


def test_decorating_connects_to_nothing(scene: Scene, app: Application) -> None:
    @app.job
    def nothing() -> None: ...

    assert scene.opened == 0
    nothing.enqueue()
    nothing.enqueue()
    assert scene.opened == 1


def test_a_call_becomes_one_json_object_by_parameter_name(app: Application) -> None:
    @app.job
    def send(to: str, copies: int = 1, *, urgent: bool = False) -> None: ...

    record = send.enqueue("ann", urgent=True).refresh()

    assert record.kind == "send"
    assert record.queue == "default"
    assert record.payload == {"to": "ann", "urgent": True}


def test_the_kind_is_the_plain_name_unless_one_is_given(app: Application) -> None:
    @app.job(name="mail/send:v2")
    def send() -> None: ...

    assert send.kind == "mail/send:v2"
    assert send.enqueue().kind == "mail/send:v2"
    assert app.registry.kinds() == ("mail/send:v2",)


@spec("F5")
def test_a_jobs_policy_is_what_its_decorator_says(app: Application) -> None:
    @app.job(
        queue="research",
        lease="90s",
        timeout="2h",
        start_within=timedelta(minutes=3),
        grace=7.5,
        keep="7d",
        priority=3,
        on_lost="hold",
        retry=Retry(
            max_attempts=4,
            initial="1s",
            factor=3,
            cap="5m",
            on_exhausted="fail",
            max_releases=7,
        ),
    )
    def research(topic: str) -> None: ...

    record = research.enqueue("leases").refresh()

    policy = record.policy
    assert (record.queue, record.priority) == ("research", 3)
    assert policy.lease_s == 90
    assert policy.timeout_s == 7200
    assert policy.start_within_s == 180
    assert policy.grace_s == 7.5
    assert policy.keep_s == 7 * 86400
    assert policy.on_lost is OnLost.HOLD
    assert policy.max_attempts == 4
    assert policy.backoff.initial_s == 1
    assert policy.backoff.factor == 3
    assert policy.backoff.cap_s == 300
    assert policy.on_exhausted is OnExhausted.FAIL
    assert policy.max_releases == 7


def test_a_call_may_override_what_the_decorator_says(app: Application) -> None:
    @app.job(queue="slow", timeout="2h", retry=Retry(max_attempts=4))
    def work() -> None: ...

    record = (
        work.using(
            queue="fast", timeout=None, lease="45s", priority=-5, retry=Retry(max_attempts=1)
        )
        .enqueue()
        .refresh()
    )

    assert (record.queue, record.priority) == ("fast", -5)
    assert record.policy.timeout_s is None
    assert record.policy.lease_s == 45
    assert record.policy.max_attempts == 1


def test_a_timeout_is_none_only_when_asked_for(app: Application) -> None:
    @app.job
    def usual() -> None: ...

    @app.job(timeout=None)
    def endless() -> None: ...

    assert usual.enqueue().refresh().policy.timeout_s == 3600
    assert endless.enqueue().refresh().policy.timeout_s is None


def test_correlation_and_trace_travel_with_the_job(app: Application) -> None:
    @app.job
    def work() -> None: ...

    record = work.using(correlation_id="order-7", trace_id="t-1").enqueue().refresh()

    assert (record.correlation_id, record.trace_id) == ("order-7", "t-1")


@pytest.mark.parametrize("delay", ["5m", timedelta(minutes=5), 300, 300.0])
def test_a_delay_is_reckoned_by_the_stores_clock(
    scene: Scene, app: Application, delay: Any
) -> None:
    @app.job
    def work() -> None: ...

    record = work.using(delay=delay).enqueue().refresh()

    assert record.run_at == moment(Instant(scene.world.clock() + seconds(300)))


@spec("EX1")
def test_a_job_expires_as_its_kind_or_its_call_says(scene: Scene, app: Application) -> None:
    @app.job(expires="10m")
    def work() -> None: ...

    @app.job
    def patient() -> None: ...

    def start_by(job: Job[None]) -> object:
        return job.refresh().start_by

    def after(amount_s: float) -> datetime:
        return moment(Instant(scene.world.clock() + seconds(amount_s)))

    assert start_by(work.enqueue()) == after(600)
    assert start_by(work.using(expires="30s", delay=5).enqueue()) == after(35)
    assert start_by(work.using(expires=None).enqueue()) == after(600), "as the kind says"
    assert start_by(patient.using(expires=timedelta(minutes=1)).enqueue()) == after(60)
    assert start_by(app.enqueue("patient", {}, expires=60)) == after(60)
    assert start_by(patient.enqueue()) is None
    for wrong in (0, "0s", -5, "later"):
        with pytest.raises(InvalidInput, match=r"^expires="):
            app.job(name=f"never-{wrong}", expires=wrong)(lambda: None)


@spec("D13")
def test_a_key_stays_taken_as_the_call_says(app: Application) -> None:
    @app.job
    def work() -> None: ...

    hourly = work.using(key="k", unique_for="1h")
    first = hourly.enqueue()
    first.cancel()
    again = hourly.enqueue()

    assert (again.deduplicated, again) == (True, first)
    assert first.refresh().unique_for_s == 3600
    assert work.enqueue().refresh().unique_for_s is None


def test_a_job_may_be_given_an_instant_to_run_at(app: Application) -> None:
    @app.job
    def work() -> None: ...

    at = datetime(2040, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    instant = Instant(int(at.timestamp()) * 1_000_000 + 6)

    assert work.using(run_at=at).enqueue().refresh().run_at == at
    assert work.using(run_at=instant).enqueue().refresh().run_at == at


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"delay": "soon"}, "^delay=…: .*5m, 2h"),
        ({"delay": True}, "^delay=…: bool"),
        ({"delay": float("nan")}, "delay"),
        ({"expires": 0}, "^expires=…: is 0; omit expires"),
        ({"expires": -1}, "^expires=…: -1 s is outside 0 to 366 days"),
        ({"expires": "soon"}, "^expires=…: .*5m, 2h"),
        ({"unique_for": "1h"}, "^unique_for=…: given without a key; give a key"),
        ({"key": "k", "unique_for": 0}, "^unique_for=…: is 0; omit unique_for"),
        ({"key": "k", "unique_for": -1}, "^unique_for=…: -1 s is outside 0 to 366 days"),
        ({"key": "k", "unique_for": "400d"}, "^unique_for=…: 400 days is outside"),
        ({"key": "k", "unique_for": "soon"}, "^unique_for=…: .*5m, 2h"),
        ({"delay": -1}, "^delay=…: -1 s is outside 0 to 366 days"),
        ({"lease": "400d"}, "^lease=…: 400 days is outside 0 to 366 days"),
        ({"run_at": datetime(2040, 1, 1)}, "time zone"),  # noqa: DTZ001 - naive is the point here
        ({"run_at": 1_700_000_000}, "microseconds"),
        ({"run_at": "tomorrow"}, "aware datetime"),
        ({"run_at": datetime(2040, 1, 1, tzinfo=UTC), "delay": 1}, "run_at"),
        ({"lease": "5s"}, "^lease=…: 5 s is outside .*TENURE_LEASE_BOUNDS"),
        ({"heartbeat": "10s"}, "^heartbeat=…: 10 s is outside 15 s to 30 s, a quarter to half"),
        ({"keep": "59s"}, "^keep=…: finished jobs are kept for at least a minute"),
        ({"timeout": 0}, "^timeout=…: 0 s is too short"),
        ({"timeout": "99ms"}, "^timeout=…: 0.099 s is too short"),
        ({"priority": 99_999}, "^priority=…: "),
        ({"queue": "no spaces"}, "^queue=…: "),
        ({"key": ""}, "^key=…: "),
        ({"key": "x" * 201}, "^key=…: "),
        ({"retry": 3}, "Retry"),
        ({"retry": Retry(max_attempts=0)}, r"^Retry\(max_attempts=…\): 0 is outside 1"),
        ({"retry": Retry(initial="400d")}, r"^Retry\(initial=…\): "),
        ({"retry": Retry(factor=0)}, r"^Retry\(factor=…\): 0 is outside 1"),
        ({"grace": "400d"}, "^grace=…: "),
        ({"start_within": "50ms"}, "^start_within=…: 0.05 s is too short"),
        ({"retry": Retry(max_releases=-1)}, r"^Retry\(max_releases=…\): "),
        ({"retry": Retry(on_exhausted="explode")}, "on_exhausted.*dead_letter"),  # type: ignore[arg-type]  # the mistake
        ({"on_lost": "shrug"}, "on_lost.*requeue, hold, reclaim"),
        ({"connection": object()}, "connection"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_written(
    app: Application, options: dict[str, Any], match: str
) -> None:
    @app.job
    def work() -> None: ...

    with pytest.raises(InvalidInput, match=match):
        work.using(**options).enqueue()


def test_an_option_of_a_compensation_is_named_as_its_own(app: Application) -> None:
    @app.job(lease="5s")
    def undo(job_id: str, kind: str, status: str, payload: dict[str, int]) -> None: ...

    @app.job(compensate=undo)
    def work() -> None: ...

    with pytest.raises(InvalidInput, match=r"^lease=… of the compensation: 5 s is outside"):
        work.enqueue()


def test_a_kind_of_text_counts_as_the_text_it_is(app: Application) -> None:
    class Markup(str):
        __slots__ = ()

    @app.job(name=Markup("mail"), queue=Markup("letters"))
    def send() -> None: ...

    job = send.using(
        key=Markup("ann"), correlation_id=Markup("order-1"), trace_id=Markup("trace-1")
    ).enqueue()
    job.cancel(reason=Markup("enough"))
    record = job.refresh()

    texts = (record.kind, record.queue, record.dedupe_key, record.correlation_id)
    assert texts == ("mail", "letters", "ann", "order-1")
    assert (record.trace_id, record.cancel_reason) == ("trace-1", "enough")
    assert app.enqueue(Markup("mail")).refresh().queue == "letters"


@spec("D5")
def test_a_key_held_by_a_live_job_gives_that_job_flagged(scene: Scene, app: Application) -> None:
    @app.job(queue="work")
    def index(page: int) -> None: ...

    first = index.using(key="leases").enqueue(1)
    second = index.using(key="leases").enqueue(2)

    assert not first.deduplicated
    assert second.deduplicated
    assert second == first
    scene.finish()
    assert not index.using(key="leases").enqueue(3).deduplicated


@spec("D3")
def test_a_job_id_of_ones_own_makes_enqueueing_idempotent(app: Application) -> None:
    @app.job
    def work(n: int) -> None: ...

    job_id = "0190a5d4-7c3e-7000-8000-000000000001"
    first = work.using(job_id=job_id).enqueue(1)

    assert work.using(job_id=job_id).enqueue(1) == first
    assert len(first.events()) == 1
    with pytest.raises(Conflict, match="idempotency_key_reuse") as caught:
        work.using(job_id=job_id).enqueue(2)
    assert caught.value.job_id == job_id
    with pytest.raises(InvalidInput, match="lower-case UUID"):
        work.using(job_id="7").enqueue(1)


def test_an_option_among_the_arguments_is_refused_with_the_way_out(app: Application) -> None:
    @app.job
    def send(to: str) -> None: ...

    with pytest.raises(InvalidInput) as caught:
        send.enqueue("ann", delay="5m", key="k")  # type: ignore[call-arg]  # the mistake
    assert caught.value.field == "delay"
    assert "use send.using(delay=…, key=…).enqueue(…)" in str(caught.value)
    with pytest.raises(InvalidInput, match=r"use send\.using\(priority=…\)\.call\(…\)"):
        send.call("ann", priority=1)  # type: ignore[call-arg]  # the mistake


def test_using_keeps_options_and_arguments_apart(app: Application) -> None:
    @app.job
    def lookup(key: str, delay: int = 0) -> None: ...

    record = lookup.using(key="dedupe", priority=1).using(priority=2).enqueue("door", delay=7)

    assert record.refresh().payload == {"key": "door", "delay": 7}
    assert record.refresh().dedupe_key == "dedupe"
    assert record.refresh().priority == 2
    assert lookup.enqueue(key="door").refresh().dedupe_key is None


def test_a_wrong_argument_is_told_with_the_right_ones(app: Application) -> None:
    @app.job
    def send(to: str, ctx: Context, copies: int = 1) -> None: ...

    takes = "it takes to, copies, and the worker fills in ctx"
    with pytest.raises(
        ValidationError, match=rf"kind send: it has no parameter too \(did.* to\?\); {takes}"
    ):
        send.enqueue("ann", too="bob")
    with pytest.raises(ValidationError, match=f"kind send: its parameter to is missing; {takes}"):
        send.enqueue()
    with pytest.raises(ValidationError, match=f"kind send: too many .*; {takes}"):
        send.enqueue(FakeContext(), "ann", 1)


def test_a_misspelt_option_is_not_ignored(app: Application) -> None:
    @app.job
    def work(n: int) -> None: ...

    with pytest.raises(
        InvalidInput, match=r"dely: is not an option of using\(\); did you mean delay\?"
    ):
        work.using(dely="5m")  # type: ignore[call-arg]  # the mistake
    with pytest.raises(ValidationError, match="dely"):
        work.enqueue(1, dely="5m")  # type: ignore[call-arg]  # the mistake
    with pytest.raises(InvalidInput, match="queu"):
        app.job(queu="x")  # type: ignore[call-overload]  # the mistake


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"unique_for": "1h"},
            "unique_for: .* @app.job; it belongs to using\\(key=…, unique_for=…",
        ),
        ({"delay": "1h"}, "delay: is not an option of @app.job; it belongs to using\\(delay=…\\)"),
        ({"max_retries": 3}, "max_retries: .* @app.job; write retry=Retry\\(max_attempts=4\\)"),
        ({"rate_limit": "1/s"}, "rate_limit: .* of @app.job; Tenure calls it rate"),
        ({"zzz": 1}, "zzz: is not an option of @app.job; options are burst, .*timeout, tz"),
    ],
)
def test_an_option_in_the_wrong_place_or_of_another_name_is_told_its_own(
    app: Application, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        app.job(**options)


def test_an_option_of_another_queue_is_told_its_name_here(app: Application) -> None:
    @app.job
    def work(n: int) -> None: ...

    said = r"^countdown: is not an option of using\(\); Tenure calls it delay$"
    with pytest.raises(InvalidInput, match=said):
        work.using(countdown=5)  # type: ignore[call-arg]  # the mistake


def test_a_value_of_a_wrong_type_is_refused_with_its_kind(app: Application) -> None:
    @app.job
    def charge(customer: str, cents: int) -> None: ...

    said = (
        "kind charge: it has no parameter custmer .did you mean customer.*it takes customer, cents"
    )
    with pytest.raises(ValidationError, match=said):
        charge.enqueue(custmer="x", cents=1)  # type: ignore[call-arg]  # the mistake
    with pytest.raises(ValidationError, match=r"^kind charge: Expected `int`, got `str` at cents$"):
        charge.enqueue("x", cents="1")  # type: ignore[arg-type]  # the mistake


def test_many_calls_become_many_jobs_in_their_order(app: Application) -> None:
    @app.job
    def work(n: int) -> None: ...

    bulk = work.using(queue="bulk")
    jobs = app.enqueue_many(bulk.call(n) for n in range(CHUNK + 3))

    assert [job.refresh().payload for job in jobs] == [{"n": n} for n in range(CHUNK + 3)]
    assert {job.refresh().queue for job in jobs} == {"bulk"}
    assert app.enqueue_many([]) == []


@spec("Z1")
def test_jobs_of_one_instant_are_claimed_in_the_order_they_were_enqueued(
    scene: Scene, app: Application
) -> None:
    @app.job(queue="work")
    def work(n: int) -> None: ...

    jobs = [work.enqueue(n) for n in range(3)]
    jobs += app.enqueue_many(work.call(n) for n in range(50))

    claimed = [grant.job_id for grant in scene.world.claim(limit=99)]

    assert claimed == [job.id for job in jobs]


def test_one_bad_call_among_many_stops_all_of_them(app: Application, scene: Scene) -> None:
    @app.job
    def work(n: int) -> None: ...

    with pytest.raises(ValidationError, match="at n"):
        app.enqueue_many(work.call(n) for n in (1, "two"))  # type: ignore[arg-type]  # the mistake

    assert not list(scene.world.store.audit.records(page_size=10))


def test_a_call_is_one_job_however_often_it_is_sent(app: Application) -> None:
    @app.job
    def work(n: int) -> None: ...

    @app.job
    def other() -> None: ...

    calls = [work.using(key="a").call(1), other.call(), work.using(key="b").call(2)]

    first = app.enqueue_many(calls)
    again = app.enqueue_many(calls)

    assert [job.id for job in first] == [call.job_id for call in calls]
    assert again == first
    assert [len(job.events()) for job in again] == [1, 1, 1]


def test_a_kind_unknown_here_is_enqueued_by_name_unchecked(app: Application) -> None:
    job = app.enqueue("elsewhere/thing", {"any": [1, "x", None]}, queue="far", key="k")

    record = job.refresh()
    assert (record.kind, record.queue, record.dedupe_key) == ("elsewhere/thing", "far", "k")
    assert record.payload == {"any": [1, "x", None]}


def test_a_kind_known_here_is_checked_and_keeps_its_settings_by_name(app: Application) -> None:
    @app.job(queue="mail", priority=9)
    def send(to: str, at: datetime | None = None) -> None: ...

    record = app.enqueue("send", {"to": "ann", "at": "2030-01-01T00:00:00Z"}).refresh()

    assert (record.queue, record.priority) == ("mail", 9)
    with pytest.raises(ValidationError, match="at to"):
        app.enqueue("send", {"to": 7})
    with pytest.raises(ValidationError, match="unknown field `who`"):
        app.enqueue("send", {"to": "ann", "who": 7})


def test_async_code_enqueues_without_blocking_calls(app: Application) -> None:
    @app.job
    async def work(n: int) -> int:
        return n

    async def main() -> None:
        one = await work.using(key="k").aenqueue(1)
        same = await work.using(key="k").aenqueue(2)
        two = await app.aenqueue_many(work.call(n) for n in (2, 3))
        named = await app.aenqueue("elsewhere", {})
        sent = await app.aenqueue_many([work.call(4)])
        assert same == one
        assert len({one.id, *(job.id for job in two), named.id, sent[0].id}) == 5
        assert await one.astatus() == "queued"

    asyncio.run(main())


def test_a_compensation_names_a_function_or_a_kind(app: Application) -> None:
    @app.job(compensate="refund")
    def charge() -> None: ...

    @app.job(queue="undo", retry=Retry(max_attempts=9))
    def refund(job_id: str, kind: str, status: str, payload: dict[str, Any]) -> None: ...

    @app.job(compensate=refund)
    def sell() -> None: ...

    @app.job(queue="far", compensate="elsewhere")
    def ship() -> None: ...

    for function in (charge, sell):
        undo = function.enqueue().refresh().policy.compensation
        assert undo is not None
        assert (undo.kind, undo.queue, undo.policy.max_attempts) == ("refund", "undo", 9)
    elsewhere = ship.enqueue().refresh().policy.compensation
    assert elsewhere is not None
    assert (elsewhere.kind, elsewhere.queue) == ("elsewhere", "far")


@spec("M1")
def test_a_compensation_must_take_what_it_is_told(app: Application) -> None:
    @app.job
    def refund(job_id: str, payload: dict[str, Any]) -> None: ...

    @app.job(compensate="refund")
    def charge() -> None: ...

    with pytest.raises(InvalidInput, match=r"no parameter kind; .*job_id, kind, status, payload"):
        app.job(compensate=refund)(lambda: None)
    with pytest.raises(InvalidInput, match="no parameter kind"):
        charge.enqueue()


def test_a_compensation_that_is_no_job_is_refused(app: Application) -> None:
    def refund() -> None: ...

    with pytest.raises(InvalidInput, match="decorate the function first"):
        app.job(compensate=refund)(lambda: None)  # type: ignore[call-overload]  # the mistake


@spec("F6", "A13")
def test_a_retry_that_says_nothing_is_the_default_policy() -> None:
    assert policy_from({"retry": Retry()}, Policy()) == Policy()
