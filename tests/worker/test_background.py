"""What a worker does beside its jobs: output, signs of life, being asked to drain."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.core.artifacts import MAX_ARTIFACT_BYTES, MAX_ATTEMPT_LOG_BYTES
from tenure.core.ids import DEFAULT_NAMESPACE, JobId, LeaseId, WorkerId, worker_actor
from tenure.core.instants import seconds
from tenure.core.vocabulary import JobStatus
from tenure.core.workers import WorkerProcess
from tenure.errors import StoreUnavailable
from tenure.worker.frames import Ask, AskAnswer, StoreArtifact
from tenure.worker.supervisor.background import (
    MAX_WAITING,
    MAX_WAITING_REQUEST_BYTES,
    BackgroundTasks,
)
from tenure.worker.supervisor.output import storable
from tenure.worker.supervisor.requests import HandlerRequest
from tenure_conformance.spec import spec
from tests.support.waiting import threads_named, until
from tests.worker.harness import Shop, read_pids

pytestmark = pytest.mark.process

OFTEN = seconds(0.05)
ACTOR = worker_actor(WorkerId("w"))


@spec("B20")
def test_what_a_handler_printed_is_stored_with_its_attempt(shop: Shop) -> None:
    worker = shop.start()

    job_id = shop.enqueue("chatty", {"lines": 2})
    shop.wait(job_id)
    shop.stop(worker)

    [log] = shop.coordinator.store.artifacts.logs(job_id)
    assert log.attempt == 1
    assert "line 1" in log.text


@spec("B12")
def test_a_worker_gives_signs_of_life_and_drains_when_asked(shop: Shop) -> None:
    worker = shop.start(worker_id=WorkerId("w1"), sign_interval_us=OFTEN)
    until(lambda: shop.store.workers.page(DEFAULT_NAMESPACE), "the first sign of life is there")
    [seen] = shop.store.workers.page(DEFAULT_NAMESPACE)
    running = shop.enqueue("add", {"a": 1, "b": 2})
    shop.wait(running)

    assert shop.store.workers.drain(DEFAULT_NAMESPACE, WorkerId("w1"))
    shop.join(worker)

    assert (seen.worker, seen.concurrency) == ("w1", 2)
    assert "add" in seen.kinds
    assert shop.job(running).status is JobStatus.SUCCEEDED


def test_a_drain_request_is_logged_once(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = tmp_path / "go_on"
    worker = shop.start(worker_id=WorkerId("w1"), sign_interval_us=OFTEN)
    shop.enqueue("waiting", {"file": str(tmp_path / "pid"), "until": str(go_on)})
    read_pids(tmp_path / "pid")
    shop.store.workers.drain(DEFAULT_NAMESPACE, WorkerId("w1"))
    until(lambda: "asked this worker to drain" in caplog.text, "the worker has heard")
    [heard] = shop.store.workers.page(DEFAULT_NAMESPACE)

    def signs_on() -> bool:
        [seen] = shop.store.workers.page(DEFAULT_NAMESPACE)
        return seen.seen_at > heard.seen_at + 2 * OFTEN

    until(signs_on, "there are more signs of life")
    go_on.touch()
    shop.join(worker)

    assert caplog.text.count("asked this worker to drain") == 1


def test_a_worker_logs_what_it_serves_and_what_it_has_done(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="tenure.worker")
    worker = shop.start(worker_id=WorkerId("w1"))

    shop.wait(shop.enqueue("add", {"a": 1, "b": 2}))
    shop.stop(worker)

    first, last = caplog.messages[0], caplog.messages[-1]
    assert first.startswith("worker w1: queues default; kinds add, ")
    assert first.endswith("; 2 at once")
    assert last.startswith("worker w1 stopped; 1 started, 1 succeeded")


def test_output_is_cleaned_and_cut_to_fit_the_store() -> None:
    output = b"begin\x00" + b"\xff" * MAX_ATTEMPT_LOG_BYTES + b"end"

    text, left_out_bytes = storable(output, 7)

    assert len(text.encode()) <= MAX_ATTEMPT_LOG_BYTES
    assert text.startswith("begin\\x00")
    assert text.endswith("end")
    assert left_out_bytes > 2 * MAX_ATTEMPT_LOG_BYTES


def test_a_store_that_hangs_never_blocks_the_supervisor(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    background = _background(shop, _nobody)
    background.start()

    taken = [background.submit("waiting", go_on.wait) for _ in range(MAX_WAITING + 2)]
    go_on.set()
    background.close()

    assert not all(taken)
    assert "the store is too slow" in caplog.text


def test_artifacts_that_wait_for_a_store_do_not_fill_the_supervisors_memory(shop: Shop) -> None:
    go_on = threading.Event()
    answers: list[AskAnswer] = []
    background = _background(shop, _nobody)
    background.start()
    background.submit("waiting", go_on.wait)

    body = bytes(MAX_ARTIFACT_BYTES)
    most = MAX_WAITING_REQUEST_BYTES // MAX_ARTIFACT_BYTES
    for number in range(most + 1):
        background.carry_out(_received(number, body), answers.append)
    refused_at_once = list(answers)
    go_on.set()
    until(lambda: len(answers) == most + 1, "the others are answered")
    background.carry_out(_received(99, body), answers.append)
    background.close()

    [too_many] = refused_at_once
    assert too_many.refused is not None
    assert (too_many.id, too_many.refused.problem) == (most, "the store is too slow")
    others = [each.refused for each in answers if each.id != most]
    assert {each.why for each in others if each is not None} == {"lost"}


def test_failed_signs_of_life_are_not_logged_while_the_silence_is_reported(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    signs, is_away = Signs(), threading.Event()
    background = _background(shop, signs, is_silence_reported=is_away.is_set, interval_s=0.01)
    background.start()
    signs.wait_for(3)
    before = [record.levelname for record in caplog.records]
    is_away.set()
    signs.wait_for(2)  # the one under way may have been told before
    caplog.clear()
    signs.wait_for(3)
    background.submit("storing the output of job 7", _nobody)
    until(lambda: caplog.messages, "the lost output is reported")
    background.close()

    assert set(before) == {"WARNING"}
    assert caplog.messages == ["storing the output of job 7 failed: the store is away"]


def test_no_last_sign_of_life_is_sent_to_a_coordinator_that_is_gone(shop: Shop) -> None:
    signs, before = Signs(), threads_named("tenure-background")
    background = _background(shop, signs, is_silence_reported=lambda: True)
    background.start()
    until(lambda: signs.given == 1, "the first sign of life is there")

    background.close()
    until(lambda: threads_named("tenure-background") <= before, "its thread has ended")

    assert signs.given == 1


class Signs:
    """Counts the signs of life that a coordinator does not hear."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self) -> WorkerProcess:
        self.given += 1
        return _nobody()

    def wait_for(self, more: int) -> None:
        enough = self.given + more
        until(lambda: self.given >= enough, f"there are {more} more signs of life")


def _background(
    shop: Shop,
    describe: Callable[[], WorkerProcess],
    *,
    is_silence_reported: Callable[[], bool] = lambda: False,
    interval_s: float = 3600,
) -> BackgroundTasks:
    return BackgroundTasks(
        shop.coordinator,
        describe,
        actor=ACTOR,
        namespace=DEFAULT_NAMESPACE,
        drain=lambda: None,
        is_silence_reported=is_silence_reported,
        interval_s=interval_s,
    )


def _received(number: int, body: bytes) -> HandlerRequest:
    return HandlerRequest(
        Ask(1, number, StoreArtifact("large", "application/zip", body)),
        JobId("01890000-0000-7000-8000-000000000000"),
        LeaseId("0-" + "0" * 32),
    )


def _nobody() -> WorkerProcess:
    raise StoreUnavailable("the store is away")
