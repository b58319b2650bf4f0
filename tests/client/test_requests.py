"""Requests about one job: under the caller's own id, and for one revision of the job."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tenure import Conflict, InvalidInput, JobFunction, Retry, UnknownJob
from tenure.client import administration, jobs
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

    with pytest.raises(Conflict, match=f"revision_mismatch.*has rev {rev} now") as caught:
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

    with pytest.raises(Conflict, match=f"dedupe key is held by job {holder.id}") as caught:
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


# --- Many jobs -----------------------------------------------------------------------------------


def test_many_jobs_are_decided_and_each_refusal_is_said(
    scene: Scene, app: Application, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "DECIDED_TOGETHER", 2)
    monkeypatch.setattr(administration, "PER_PAGE", 2)
    ended, *left = [work.enqueue(n) for n in range(5)]
    ended.cancel()

    ids = app.jobs.ids(status="queued", kind="work", queue="work")
    outcomes = app.jobs.dead_letter([ended.id, *ids, NOWHERE], "parse_error", "not JSON")

    assert set(ids) == {job.id for job in left}
    assert [each.status for each in outcomes[1:-1]] == [JobStatus.DEAD_LETTERED] * 4
    assert (outcomes[0].cause, outcomes[0].problem) == ("job_finished", "it is cancelled already")
    assert (outcomes[-1].cause, outcomes[-1].problem) == ("unknown_job", "there is no such job")


def test_dead_letters_are_redriven_and_discarded_together(
    scene: Scene, app: Application, work: Work
) -> None:
    first, second = dead(scene, work), dead(scene, work)

    ids = asyncio.run(app.dead_letters.aids(reason="exhausted_retries", stage="exec"))
    [redriven] = app.dead_letters.redrive_many([first.id], payload={"n": 7})
    told = app.dead_letters.discard_many(ids, note="old")

    assert set(ids) == {first.id, second.id}
    assert redriven.new_job_id is not None
    assert app.get(redriven.new_job_id).refresh().payload == {"n": 7}
    by_id = {each.job_id: each for each in told}
    assert f"it was redriven as job {redriven.new_job_id} by" in str(by_id[first.id].problem)
    assert by_id[second.id].problem is None
    assert app.dead_letters.ids() == []


def test_jobs_that_were_rerun_under_a_request_id_are_told_apart(
    scene: Scene, app: Application, work: Work
) -> None:
    old, other = succeeded(scene, work), succeeded(scene, work)

    first = app.jobs.rerun([old.id], request_id="nightly")
    again = app.jobs.rerun([old.id], request_id="nightly")

    assert first == again
    assert app.jobs.not_rerun([old.id, other.id], "nightly") == [other.id]


@spec("T33", "T21")
def test_many_running_jobs_are_stalled_requeued_and_asked_to_stop(
    scene: Scene, app: Application, work: Work
) -> None:
    ids = [running(scene, work).id for _ in range(2)]

    asked = app.jobs.cancel(ids, reason="stop")
    stalled = app.jobs.stall(ids)

    assert [(each.status, each.pending) for each in asked] == [(JobStatus.RUNNING, True)] * 2
    assert [each.job_id for each in stalled] == ids
    with pytest.raises(InvalidInput, match="job_ids"):
        app.jobs.requeue("not a list")
