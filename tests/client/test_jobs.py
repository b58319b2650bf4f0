"""Handles: status, waiting, results, cancelling, history."""

import asyncio
from dataclasses import dataclass

import pytest

from tenure import (
    Conflict,
    InvalidInput,
    JobCancelled,
    JobDeadLettered,
    JobFailed,
    NoResult,
    UnknownJob,
    WaitTimeout,
)
from tenure.client.app import Application
from tenure.client.functions import JobFunction
from tenure.core.job import Job, Progress
from tenure.core.vocabulary import ErrorClass, JobStatus, Stage
from tenure.errors import StoreUnavailable
from tests.client.scene import Scene

NOWHERE = "0190a5d4-7c3e-7000-8000-00000000dead"


@dataclass
class Answer:
    text: str
    score: float


Ask = JobFunction[[str], Answer, Answer]


@pytest.fixture
def ask(app: Application) -> JobFunction[..., Answer, Answer]:
    @app.job(queue="work")
    def ask(question: str) -> Answer:
        return Answer(question, 1.0)

    return ask


def test_status_is_read_anew_until_the_job_has_ended(scene: Scene, ask: Ask) -> None:
    job = ask.enqueue("why")
    seen = [job.status]

    grant = scene.claim()
    seen.append(job.status)
    scene.beat(grant, Progress(done=3, total=12, note="reading"))

    assert seen == [JobStatus.QUEUED, JobStatus.RUNNING]
    assert job.progress == Progress(done=3, total=12, note="reading")
    assert job.attempts == 1
    assert job.kind == "ask"


def test_a_result_comes_back_as_the_type_the_function_returns(scene: Scene, ask: Ask) -> None:
    job = ask.enqueue("why")
    scene.finish(b'{"text":"because","score":0.5}')

    assert job.wait() is JobStatus.SUCCEEDED
    assert job.result() == Answer("because", 0.5)
    assert app_result(scene, job.id) == {"text": "because", "score": 0.5}


def app_result(scene: Scene, job_id: str) -> object:
    """The same job, seen by an application that does not know the kind."""
    return scene.app().get(job_id).result()


def test_waiting_pauses_longer_and_longer_up_to_a_quarter_second(scene: Scene, ask: Ask) -> None:
    job = ask.enqueue("why")

    with pytest.raises(WaitTimeout, match="still queued after 5 s") as caught:
        job.wait(timeout="5s")

    assert scene.pauses[:3] == pytest.approx([0.01, 0.015, 0.0225])
    assert max(scene.pauses) == 0.25
    assert sum(scene.pauses) == pytest.approx(5)
    assert len(scene.pauses) < 40
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.job_id, caught.value.status) == (job.id, "queued")


def test_a_wait_that_is_over_says_which_failures_it_saw(scene: Scene, ask: Ask) -> None:
    job = ask.enqueue("why")
    scene.fail(ErrorClass.TRANSIENT)

    with pytest.raises(WaitTimeout) as caught:
        job.wait(timeout="5s")

    told = "1 of 15 attempts failed, the last with Boom: it broke; no worker is alive that takes "
    assert caught.value.reason.startswith(told)
    assert caught.value.reason in str(caught.value)


def test_a_wait_for_a_job_that_is_not_due_says_when_it_is(scene: Scene, ask: Ask) -> None:
    job = ask.using(delay="1h").enqueue("why")

    with pytest.raises(WaitTimeout, match="it is not due before") as caught:
        job.wait(timeout="5s")

    assert "attempts failed" not in caught.value.reason


def test_a_wait_that_is_over_says_why_the_job_waits(ask: Ask) -> None:
    job = ask.enqueue("why")

    with pytest.raises(WaitTimeout, match="still queued after 5 s: no worker is alive that takes"):
        job.wait(timeout="5s")


def test_a_wait_is_over_even_if_nobody_can_say_why(
    scene: Scene, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ask.enqueue("why")

    def fail(record: Job) -> str | None:
        raise StoreUnavailable("the store is gone")

    monkeypatch.setattr(scene.world.coordinator, "why_waiting", fail)

    with pytest.raises(WaitTimeout, match="still queued after 5 s; the job itself continues"):
        job.wait(timeout="5s")


def test_a_result_waits_for_the_job_to_end(scene: Scene, ask: Ask) -> None:
    job = ask.enqueue("why")
    scene.then = lambda: scene.finish(b'{"text":"so","score":1}')

    assert job.result(timeout="10m") == Answer("so", 1.0)
    assert scene.pauses == [0.01]


def test_a_failed_job_has_no_result_and_says_why(scene: Scene, ask: Ask) -> None:
    job = ask.enqueue("why")
    scene.fail(ErrorClass.PERMANENT)

    with pytest.raises(JobFailed, match=r"\(ask\) failed: Boom: it broke") as caught:
        job.result()

    assert caught.value.error_type == "Boom"
    assert caught.value.error_message == "it broke"
    assert job.error is not None
    assert job.error.type == "Boom"


def test_a_dead_letter_has_no_result_and_says_why(scene: Scene, ask: Ask) -> None:
    job = ask.enqueue("why")
    scene.fail(ErrorClass.VALIDATION, stage=Stage.INPUT)

    with pytest.raises(JobDeadLettered, match="validation_failed") as caught:
        job.result()

    assert caught.value.reason == "validation_failed"
    assert caught.value.status == "dead_lettered"
    assert isinstance(caught.value, NoResult)


def test_only_the_first_line_of_an_error_is_in_the_message() -> None:
    ended = JobFailed(
        job_id="1", kind="ask", status="failed", error_type="Boom", error_message="one\ntwo"
    )

    assert str(ended) == "job 1 (ask) failed: Boom: one"
    assert ended.error_message == "one\ntwo"


def test_a_cancelled_job_has_no_result_and_says_why(ask: Ask) -> None:
    job = ask.enqueue("why")

    assert job.cancel(reason="changed my mind") is JobStatus.CANCELLED
    assert job.cancel() is JobStatus.CANCELLED
    with pytest.raises(JobCancelled, match="changed my mind") as caught:
        job.result()
    assert caught.value.reason == "changed my mind"


def test_a_soft_cancel_of_a_running_job_waits_and_a_hard_one_does_not(
    scene: Scene, ask: Ask
) -> None:
    job = ask.enqueue("why")
    scene.claim()

    assert job.cancel() is JobStatus.RUNNING
    assert job.cancel(hard=True) is JobStatus.CANCELLED


def test_cancelling_a_finished_job_is_a_conflict(scene: Scene, ask: Ask) -> None:
    job = ask.enqueue("why")
    scene.finish(b'{"text":"so","score":1}')

    with pytest.raises(Conflict, match=r"job_finished.*succeeded") as caught:
        job.cancel()

    assert caught.value.status == "succeeded"


def test_a_job_is_found_by_its_id_and_its_history_is_told(scene: Scene, ask: Ask) -> None:
    job = ask.enqueue("why")
    scene.finish(b'{"text":"so","score":1}')

    found = scene.app().get(job.id)

    assert found == job
    assert hash(found) == hash(job)
    assert found.kind == "ask"
    assert [event.type.value for event in found.events()] == [
        "enqueued",
        "claimed",
        "started",
        "succeeded",
    ]
    assert found.events()[0].actor == "client:tests"


def test_an_unknown_job_is_an_error_at_the_first_question(app: Application) -> None:
    job = app.get(NOWHERE)

    for question in (job.refresh, job.wait, job.result, job.events, job.cancel):
        with pytest.raises(UnknownJob, match=NOWHERE):
            question()
    with pytest.raises(InvalidInput, match="UUID"):
        app.get("seven")


def test_another_namespaces_job_is_unknown_and_untouched(scene: Scene, ask: Ask) -> None:
    job = ask.enqueue("why")
    elsewhere = scene.app(namespace="elsewhere").get(job.id)

    for question in (elsewhere.refresh, elsewhere.events, elsewhere.cancel):
        with pytest.raises(UnknownJob):
            question()

    assert job.status is JobStatus.QUEUED


def test_a_handle_shows_what_it_last_saw(app: Application, ask: Ask) -> None:
    job = ask.enqueue("why")

    assert repr(job) == f"<Job {job.id} ask, last seen queued>"
    assert repr(app.get(job.id)) == f"<Job {job.id}>"


def test_async_code_has_the_same_questions(scene: Scene, ask: Ask) -> None:
    async def main() -> None:
        job = await ask.aenqueue("why")
        scene.then = lambda: scene.finish(b'{"text":"so","score":1}')
        assert await job.await_end(timeout="1m") is JobStatus.SUCCEEDED
        assert await job.aresult() == Answer("so", 1.0)
        assert len(await job.aevents()) == 4
        other = await ask.aenqueue("what")
        with pytest.raises(WaitTimeout):
            await other.aresult(timeout=1)
        assert await other.acancel(reason="late") is JobStatus.CANCELLED
        found = scene.app().get(other.id)
        assert (await found.arefresh()).cancel_reason == "late"
        with pytest.raises(UnknownJob):
            await scene.app().get(NOWHERE).acancel()

    asyncio.run(main())
