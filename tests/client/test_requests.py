"""Requests about one job: under the caller's own id, and for one revision of the job."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tenure import Conflict, InvalidInput, JobFunction, Retry, UnknownJob
from tenure.client.app import Application
from tenure.client.jobs import Job
from tenure.core.vocabulary import ErrorClass, EventType, JobStatus, ReasonCode
from tenure_conformance.spec import spec
from tests.client.scene import Scene

Work = JobFunction[[int], None, None]
NOWHERE = "0190a5d4-7c3e-7000-8000-00000000dead"


@pytest.fixture
def work(app: Application) -> Work:
    @app.job(queue="work", retry=Retry(max_attempts=1))
    def work(n: int) -> None: ...

    return work


def queued(scene: Scene, work: Work) -> Job[None]:
    return work.enqueue(1)


def running(scene: Scene, work: Work) -> Job[None]:
    job = work.enqueue(1)
    scene.claim()
    return job


def stalled(scene: Scene, work: Work) -> Job[None]:
    job = running(scene, work)
    job.stall()
    return job


def succeeded(scene: Scene, work: Work) -> Job[None]:
    job = work.enqueue(1)
    scene.finish()
    return job


def dead(scene: Scene, work: Work) -> Job[None]:
    job = work.enqueue(1)
    scene.fail(ErrorClass.TRANSIENT)
    return job


MADE: dict[str, Callable[[Scene, Work], Job[None]]] = {
    "cancel": queued,
    "stall": running,
    "requeue": stalled,
    "dead_letter": queued,
    "rerun": succeeded,
    "redrive": dead,
    "discard": dead,
}


def ask(app: Application, verb: str, job: Job[Any], way: str, **options: Any) -> Any:
    """`job.cancel(…)` or `app.dead_letters.redrive(ID, …)`, or the async twin."""
    of_letters = verb in ("redrive", "discard")
    on, words = (app.dead_letters, (job.id,)) if of_letters else (app.get(job.id), ())
    if way == "sync":
        return getattr(on, verb)(*words, **options)

    async def main() -> Any:
        return await getattr(on, f"a{verb}")(*words, **options)

    return asyncio.run(main())


@spec("K12")
@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("verb", MADE)
def test_a_request_for_another_rev_is_a_conflict_that_names_the_current_one(
    scene: Scene, app: Application, work: Work, verb: str, way: str
) -> None:
    job = MADE[verb](scene, work)
    rev = job.refresh().rev

    with pytest.raises(Conflict, match=f"revision_mismatch.*its rev is {rev} now") as caught:
        ask(app, verb, job, way, expected_rev=rev + 1)

    assert (caught.value.cause, caught.value.rev) == ("revision_mismatch", rev)
    assert job.refresh().rev == rev
    ask(app, verb, job, way, expected_rev=rev)


@spec("Q4")
@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("verb", MADE)
def test_a_request_repeated_under_its_id_is_carried_out_once(
    scene: Scene, app: Application, work: Work, verb: str, way: str
) -> None:
    job = MADE[verb](scene, work)

    first = ask(app, verb, job, way, request_id="mine")
    count = len(app.events())
    again = ask(app, verb, job, way, request_id="mine")

    assert again == first
    assert len(app.events()) == count
    if verb == "discard":
        [letter] = app.dead_letters.ls(resolved=True)
        assert letter.resolution is not None
        assert letter.resolution.request_id == "mine"
    else:
        assert "mine" in [event.request_id for event in app.events()]


@spec("Q4")
def test_a_request_id_that_was_used_for_another_request_is_a_conflict(
    scene: Scene, work: Work
) -> None:
    job = queued(scene, work)
    job.cancel(request_id="mine")

    with pytest.raises(Conflict, match=r"idempotency_key_reuse.*used for another request"):
        job.cancel(request_id="mine", reason="another")


@pytest.mark.parametrize("verb", MADE)
def test_mistyped_options_and_unknown_jobs_are_refused(
    scene: Scene, app: Application, work: Work, verb: str
) -> None:
    job = MADE[verb](scene, work)
    rev = job.refresh().rev
    elsewhere = scene.app(namespace="elsewhere")

    with pytest.raises(InvalidInput, match="expected_revision"):
        ask(app, verb, job, "sync", expected_revision=1)
    with pytest.raises(InvalidInput, match="expected_rev"):
        ask(app, verb, job, "sync", expected_rev=0)
    with pytest.raises(InvalidInput, match="request_id"):
        ask(app, verb, job, "sync", request_id="")
    with pytest.raises(UnknownJob):
        ask(elsewhere, verb, job, "sync")
    with pytest.raises(UnknownJob):
        ask(app, verb, app.get(NOWHERE), "sync")
    assert job.refresh().rev == rev


@spec("T33", "T14", "T21", "T27")
def test_an_operator_stalls_requeues_buries_and_reruns_jobs(
    scene: Scene, app: Application, work: Work
) -> None:
    job = running(scene, work)

    assert job.stall() is JobStatus.STALLED
    assert job.requeue() is JobStatus.QUEUED
    assert job.dead_letter("parse_error", "not JSON") is JobStatus.DEAD_LETTERED
    new = job.rerun()

    record = job.refresh()
    assert record.reason_code is ReasonCode.PARSE_ERROR
    assert record.error is not None
    assert record.error.message == "not JSON"
    assert (new.refresh().payload, new.refresh().origin_id) == ({"n": 1}, job.id)
    assert new.events()[0].cause == "rerun"
    assert {event.actor for event in job.events() if event.type is EventType.DEAD_LETTERED} == {
        "operator:tests"
    }
    with pytest.raises(Conflict, match="already_resolved"):
        job.rerun()
    assert job.rerun(again=True) != new
    with pytest.raises(InvalidInput, match="reason: 'bad luck' is not one of"):
        work.enqueue(2).dead_letter("bad luck")


def test_a_rerun_whose_key_is_held_makes_nothing(scene: Scene, work: Work) -> None:
    old = work.using(key="k").enqueue(1)
    scene.finish()
    holder = work.using(key="k").enqueue(2)

    with pytest.raises(Conflict, match=f"job {holder.id} holds its dedupe key") as caught:
        old.rerun()

    assert caught.value.cause == "dedupe_key_held"


@spec("K12")
def test_a_redrive_of_what_is_no_dead_letter_says_so(
    scene: Scene, app: Application, work: Work
) -> None:
    job = queued(scene, work)
    job.cancel()

    for verb in ("redrive", "discard"):
        with pytest.raises(Conflict, match="not_dead_lettered") as caught:
            ask(app, verb, job, "sync")
        assert caught.value.cause == "not_dead_lettered"
