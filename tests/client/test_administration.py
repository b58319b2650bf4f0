"""Queues, workers and dead letters from Python."""

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure import Conflict, InvalidInput, JobFunction, Retry, UnknownJob, ValidationError
from tenure.client.app import Application
from tenure.core.vocabulary import ErrorClass, EventType, ReasonCode, ResolutionKind, WorkerState
from tenure_conformance.spec import spec
from tests.client.scene import Scene
from tests.support.documents import REQUIRED_OF_DEAD_LETTERS


@pytest.fixture
def work(app: Application) -> JobFunction[[int], None, None]:
    """A job that becomes a dead letter with its first failure."""

    @app.job(queue="work", retry=Retry(max_attempts=1))
    def work(n: int) -> None: ...

    return work


# --- queues --------------------------------------------------------------------------------------


@spec("RL4")
def test_a_queue_and_a_kind_get_a_rate(
    scene: Scene, app: Application, work: JobFunction[[int], None, None]
) -> None:
    for number in range(5):
        work.enqueue(number)

    of_queue = app.queues.limit("work", rate="1/m", burst=2)
    assert len(scene.world.claim(limit=5)) == 2
    assert app.queues.limit("work", rate=None).rate is None
    of_kind = app.kinds.limit("work", rate="1/h")
    assert len(scene.world.claim(limit=5)) == 1

    assert (of_queue.rate, of_queue.burst, of_queue.limit) == ("1/m", 2, None)
    assert (of_kind.rate, of_kind.burst) == ("1/h", 1)
    assert app.kinds.ls() == [of_kind]
    with pytest.raises(InvalidInput, match="burst: belongs to a rate"):
        app.kinds.limit("work", rate=None, burst=3)
    with pytest.raises(InvalidInput, match="is not a rate"):
        app.queues.limit("work", rate=7)  # type: ignore[arg-type]  # what a user may try
    with pytest.raises(InvalidInput, match="jobs: is missing, and so is rate"):
        app.queues.limit("work")


def test_a_paused_queue_grants_nothing_until_it_is_resumed(
    scene: Scene, app: Application, work: JobFunction[[int], None, None]
) -> None:
    work.enqueue(1)

    assert app.queues.pause("work").paused
    assert scene.world.claim() == ()
    assert not app.queues.resume("work").paused
    assert len(scene.world.claim()) == 1


def test_a_queue_is_limited_and_listed(
    app: Application, work: JobFunction[[int], None, None]
) -> None:
    work.enqueue(1)

    assert app.queues.limit("work", 3).limit == 3
    [queue] = app.queues.ls()
    assert queue.to_dict() == {
        "name": "work",
        "paused": False,
        "limit": 3,
        "live": 0,
        "rate": None,
        "burst": None,
        "rate_since": None,
    }
    assert app.queues.limit("work", None).limit is None
    with pytest.raises(InvalidInput, match="None removes the limit"):
        app.queues.limit("work", 0)


def test_a_mistyped_queue_is_refused(
    app: Application, work: JobFunction[[int], None, None]
) -> None:
    work.enqueue(1)

    with pytest.raises(InvalidInput, match=r"no job has used wrok so far; did you mean work\?"):
        app.queues.pause("wrok")
    assert app.queues.pause("later", create=True).paused


# --- workers -------------------------------------------------------------------------------------


def test_workers_are_listed_and_drained(scene: Scene, app: Application) -> None:
    scene.see_worker("w1")

    [seen] = app.workers.ls()
    assert (seen.worker, seen.state) == ("w1", WorkerState.ALIVE)
    app.workers.drain("w1")
    [seen] = app.workers.ls()
    assert seen.drain_requested_at is not None
    with pytest.raises(InvalidInput, match="there is no worker w2"):
        app.workers.drain("w2")


# --- dead letters --------------------------------------------------------------------------------


@spec("F7", "OB26")
def test_a_dead_letter_has_the_required_fields(
    scene: Scene, app: Application, work: JobFunction[[int], None, None]
) -> None:
    dead = work.enqueue(1)
    scene.fail(ErrorClass.TRANSIENT)

    [letter] = app.dead_letters.ls()

    assert set(letter.to_dict()) == {*REQUIRED_OF_DEAD_LETTERS, "id", "job", "resolution"}
    assert (letter.id, letter.correlation_id) == (dead.id, dead.id)
    assert (letter.attempts, letter.reason_code) == (1, ReasonCode.EXHAUSTED_RETRIES)
    assert letter.last_error is not None
    assert (letter.stage, letter.last_owner) == (letter.job.stage, letter.job.last_owner)
    assert letter.last_lease_expires_at == letter.job.last_lease_expires_at is not None


def test_a_dead_letter_is_redriven_once(
    scene: Scene, app: Application, work: JobFunction[[int], None, None]
) -> None:
    dead = work.enqueue(1)
    scene.fail(ErrorClass.TRANSIENT)

    [letter] = app.dead_letters.ls(kind="work", queue="work", reason="exhausted_retries")
    new = app.dead_letters.redrive(letter.job.id)

    assert letter.job.id == dead.id
    assert letter.resolution is None
    assert new.refresh().payload == {"n": 1}
    assert new.refresh().origin_id == dead.id
    with pytest.raises(Conflict, match="already_resolved"):
        app.dead_letters.redrive(dead.id)
    assert app.dead_letters.redrive(dead.id, again=True) != new
    assert app.dead_letters.ls() == []
    [letter] = app.dead_letters.ls(resolved=True)
    assert letter.resolution is not None
    assert letter.resolution.kind is ResolutionKind.REDRIVEN
    assert letter.resolution.actor == "operator:tests"


def test_a_redrive_may_correct_the_payload(
    scene: Scene, app: Application, work: JobFunction[[int], None, None]
) -> None:
    dead = work.enqueue(1)
    scene.fail(ErrorClass.TRANSIENT)

    with pytest.raises(ValidationError, match="at n"):
        app.dead_letters.redrive(dead.id, payload={"n": "two"})
    new = app.dead_letters.redrive(dead.id, payload={"n": 2})

    assert new.refresh().payload == {"n": 2}


def test_a_redrive_whose_key_is_held_makes_nothing(
    scene: Scene, app: Application, work: JobFunction[[int], None, None]
) -> None:
    dead = work.using(key="k").enqueue(1)
    scene.fail(ErrorClass.TRANSIENT)
    holder = work.using(key="k").enqueue(2)

    with pytest.raises(Conflict, match=f"dedupe key is held by job {holder.id}"):
        app.dead_letters.redrive(dead.id)


def test_a_dead_letter_is_discarded_with_a_note(
    scene: Scene, app: Application, work: JobFunction[[int], None, None]
) -> None:
    dead = work.enqueue(1)
    scene.fail(ErrorClass.TRANSIENT)

    app.dead_letters.discard(dead.id, note="too old")

    [letter] = app.dead_letters.ls(resolved=True)
    assert letter.resolution is not None
    assert letter.resolution.note == "too old"
    assert letter.to_dict()["resolution"]["kind"] == "discarded"


def test_only_dead_letters_of_the_namespace_are_redriven(
    scene: Scene, app: Application, work: JobFunction[[int], None, None]
) -> None:
    alive = work.enqueue(1)
    elsewhere = scene.app(namespace="elsewhere")

    with pytest.raises(Conflict):
        app.dead_letters.redrive(alive.id)
    with pytest.raises(UnknownJob):
        elsewhere.dead_letters.redrive(alive.id)
    with pytest.raises(InvalidInput, match="reason: 'bad luck' is not one of"):
        app.dead_letters.ls(reason="bad luck")


def test_async_code_administers_likewise(
    scene: Scene, app: Application, work: JobFunction[[int], None, None]
) -> None:
    first, second = work.enqueue(1), work.enqueue(2)
    scene.fail(ErrorClass.TRANSIENT)
    scene.fail(ErrorClass.TRANSIENT)
    scene.see_worker("w1")

    async def main() -> None:
        assert (await app.queues.apause("work")).paused
        assert not (await app.queues.aresume("work")).paused
        assert (await app.queues.alimit("work", 2)).limit == 2
        assert (await app.kinds.alimit("work", rate="5/s")).rate == "5/s"
        assert [kind.kind for kind in await app.kinds.als()] == ["work"]
        assert [queue.name for queue in await app.queues.als()] == ["work"]
        await app.workers.adrain("w1")
        assert [seen.state for seen in await app.workers.als()] == [WorkerState.DRAINING]
        assert len(await app.dead_letters.als()) == 2
        new = await app.dead_letters.aredrive(first.id)
        assert (await new.arefresh()).payload == {"n": 1}
        await app.dead_letters.adiscard(second.id)
        assert await app.dead_letters.als() == []

    asyncio.run(main())


# --- events --------------------------------------------------------------------------------------


@spec("E4", "E6", "E8")
def test_events_of_all_jobs_are_listed_by_filters(
    scene: Scene, app: Application, work: JobFunction[[int], None, None]
) -> None:
    first = work.enqueue(1)
    scene.world.clock.advance(60)
    second = work.using(correlation_id="order-7").enqueue(2)
    scene.world.clock.advance(1)
    scene.finish()

    def names(**filters: Any) -> list[str]:
        return [event.name for event in app.events(oldest_first=True, **filters)]

    done = ["job_claimed", "job_started", "job_succeeded"]
    assert names() == ["job_enqueued", "job_enqueued", *done]
    assert names(job_id=first.id) == names(correlation_id=first.id) == ["job_enqueued", *done]
    assert names(correlation_id="order-7") == ["job_enqueued"]
    assert names(type="claimed") == names(type="job_claimed") == ["job_claimed"]
    assert names(type=["job_started", EventType.SUCCEEDED]) == done[1:]
    assert names(since="30s") == ["job_enqueued", *done]
    assert names(until=second.events()[0].ts) == ["job_enqueued"]
    [newest] = asyncio.run(app.aevents(limit=1))
    assert newest.name == "job_succeeded"
    assert app.events(job_id=second.id)[0].to_dict() == second.events()[0].to_dict()


@spec("E8")
def test_events_are_listed_page_by_page(
    app: Application, work: JobFunction[[int], None, None]
) -> None:
    jobs = [work.enqueue(number) for number in range(5)]

    shown = app.events(limit=2)
    while page := app.events(limit=2, after=shown[-1]):
        shown += page

    assert [event.job_id for event in shown] == [job.id for job in reversed(jobs)]


@pytest.mark.parametrize(
    ("filters", "match"),
    [
        ({"type": "nope"}, "type: 'nope' is not one of enqueued"),
        ({"limit": 0}, "limit"),
        ({"limit": 501}, "limit"),
        ({"job_id": "x"}, "job_id"),
        ({"correlation_id": ""}, "correlation_id"),
        ({"since": "soon"}, "since"),
        ({"since": timedelta.max}, "since: no store holds such a time"),
        ({"until": 10**40}, "until: no store holds such a time"),
        ({"since": "1h", "until": datetime(2020, 1, 1, tzinfo=UTC)}, "since: is not before until"),
    ],
)
def test_a_wrong_filter_of_events_is_named(
    app: Application, filters: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidInput, match=match):
        app.events(**filters)


@spec("OB28")
def test_an_overview_shows_what_the_jobs_are_doing(
    scene: Scene, app: Application, work: JobFunction[[int], None, None]
) -> None:
    work.enqueue(1)
    work.enqueue(2)
    scene.world.claim()

    found = app.overview("15m", queue="work")

    assert [(each.queue, each.ready, each.leased) for each in found.queues] == [("work", 1, 1)]
    assert sum(each.enqueued for each in found.buckets) == 2
    assert app.overview(kind="other").queues[0].ready == 0
    assert asyncio.run(app.aoverview("15m", queue="work")) == found
    with pytest.raises(InvalidInput, match="range: '1y' is not one of 15m, 1h"):
        app.overview("1y")  # type: ignore[arg-type]  # what a user may try


@spec("J12")
def test_jobs_are_searched(
    scene: Scene, app: Application, work: JobFunction[[int], None, None]
) -> None:
    job = work.enqueue(1)

    assert [each.id for each in app.jobs.ls(enqueued_since=datetime(2020, 1, 1, tzinfo=UTC))] == [
        job.id
    ]
    assert app.jobs.ls(worker="nobody") == app.jobs.ls(error="refused") == []
    with pytest.raises(InvalidInput, match="is not an option"):
        app.jobs.ls(text="refused")  # type: ignore[call-arg]  # what a user may try


# --- bad input: what happened, to what, what to do; and nothing is written ------------------------


def test_the_settings_of_a_kind_that_nobody_has_are_refused(app: Application) -> None:
    @app.job(concurrency_key="customer")
    def bill(customer: str) -> None: ...

    app.enqueue("mail")

    with pytest.raises(InvalidInput) as mistyped:
        app.kinds.limit("mial", rate="1/s")
    assert str(mistyped.value) == (
        "kind: no job, worker, setting or function has kind mial so far; did you mean mail?"
        " `create` sets it anyway"
    )
    assert app.kinds.ls() == []
    for known in ("mail", "bill"):
        app.kinds.limit(known, rate="1/s")
    assert app.kinds.limit("later", rate="1/s", create=True).kind == "later"


def test_bad_input_is_told_with_what_to_do(app: Application) -> None:
    def boom(customer: str) -> str:
        raise LookupError(f"no customer {customer}")

    @app.job(concurrency_key=boom)
    def bill(customer: str) -> None: ...

    @app.job
    def mail() -> None: ...

    wrong: dict[str, Callable[[], object]] = {
        "raised LookupError: no customer ada; make it return a key": lambda: bill.enqueue("ada"),
        "is not from 1 to 1,000,000 jobs; to stop a queue, pause it": (
            lambda: app.kinds.limit("mail", rate="0/s")
        ),
        "is not from 1 to 1,000,000 jobs; to remove a rate, set none": (
            lambda: app.kinds.limit("mail", rate="9999999/d")
        ),
        "every: is less than a second; write 1s or more": (
            lambda: app.schedules.add("n", mail.call(), every="0s")
        ),
        "'-1m' is not a duration; write 250ms": lambda: mail.using(expires="-1m").enqueue(),
        "given without a key; give a key too": lambda: mail.using(unique_for="1h").enqueue(),
    }
    for said, ask in wrong.items():
        with pytest.raises(InvalidInput, match=re.escape(said)):
            ask()
    assert (app.jobs.ls(), app.kinds.ls(), app.schedules.ls()) == ([], [], [])
