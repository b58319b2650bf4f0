"""What a handler returns, raises, saves or prints reaches the history."""

import msgspec
import pytest
from msgspec.structs import replace

from tenure.core.instants import seconds
from tenure.core.vocabulary import ErrorClass, JobStatus, ReasonCode, Stage
from tests.support.waiting import until
from tests.worker.harness import POLICY, Shop

pytestmark = pytest.mark.process

ONCE = replace(POLICY, max_attempts=1)


def test_a_handler_runs_and_its_result_is_committed(shop: Shop) -> None:
    worker = shop.start()

    job = shop.wait(shop.enqueue("add", {"a": 2, "b": 3}))

    assert job.status is JobStatus.SUCCEEDED
    assert job.result == b"5"
    assert shop.types(job.id) == ["enqueued", "claimed", "started", "succeeded"]
    assert shop.stop(worker).succeeded == 1


def test_a_failed_attempt_is_retried_by_the_coordinator(shop: Shop) -> None:
    shop.start()

    job = shop.wait(shop.enqueue("fail", {"how": "once"}))

    assert job.status is JobStatus.SUCCEEDED
    assert job.result == b'"second"'
    assert (job.attempt, job.failures) == (2, 1)


def test_every_exception_is_reported_in_its_class_and_stage(shop: Shop) -> None:
    shop.start(concurrency=1)
    names = ["permanent", "transient", "dependency", "validation", "other", "exit"]
    ids = {how: shop.enqueue("fail", {"how": how}, policy=ONCE) for how in names}
    ids["policy"] = shop.enqueue("fail", {"how": "policy"})
    errors = {}
    for how, job_id in ids.items():
        job = shop.wait(job_id)
        assert job.error is not None
        errors[how] = (job.status, job.error, job.reason_code)

    assert errors["permanent"][0] is JobStatus.FAILED
    assert errors["permanent"][1].error_class is ErrorClass.PERMANENT
    assert errors["permanent"][1].message == "no such account"
    assert errors["transient"][1].error_class is ErrorClass.TRANSIENT
    assert errors["transient"][2] is ReasonCode.EXHAUSTED_RETRIES
    assert errors["dependency"][2] is ReasonCode.DEPENDENCY_UNAVAILABLE
    assert errors["policy"][0] is JobStatus.DEAD_LETTERED
    assert errors["policy"][1].message == "may not leave the EU"
    assert errors["policy"][2] is ReasonCode.POLICY_VIOLATION
    assert errors["validation"][0] is JobStatus.FAILED
    assert errors["validation"][1].message == "bad row at rows[3]"
    assert errors["other"][1].error_class is ErrorClass.UNCLASSIFIED
    assert errors["other"][1].type == "RuntimeError"
    assert "in fail" in errors["other"][1].traceback
    assert "tenure/worker" not in errors["other"][1].traceback, "our frames are not shown"
    assert errors["exit"][1].type == "SystemExit"
    assert {error.stage for _, error, _ in errors.values()} == {Stage.EXEC}


def test_retry_after_keeps_the_job_waiting(shop: Shop) -> None:
    shop.start()
    job_id = shop.enqueue("fail", {"how": "transient"})

    until(lambda: shop.job(job_id).failures == 1, "the failure is recorded")

    job = shop.job(job_id)
    assert job.status is JobStatus.QUEUED
    assert job.run_at is not None
    assert job.run_at > shop.store.now() + seconds(3000)


def test_a_snooze_costs_neither_failure_nor_release(shop: Shop) -> None:
    worker = shop.start()
    job_id = shop.enqueue("fail", {"how": "snooze"})

    until(lambda: worker.stats.released, "the job is handed back")

    job = shop.job(job_id)
    assert job.status is JobStatus.QUEUED
    assert (job.failures, job.releases) == (0, 0)
    assert job.run_at is not None
    assert job.run_at > shop.store.now() + seconds(3000)


def test_a_lease_conflict_reports_nothing_and_the_lease_runs_out(shop: Shop) -> None:
    worker = shop.start()

    job = shop.wait(shop.enqueue("fail", {"how": "conflict"}, policy=ONCE))

    assert shop.stop(worker).conflicts == 1
    assert shop.types(job.id)[-2:] == ["stalled", "dead_lettered"]


def test_arguments_that_do_not_fit_are_dead_letters_at_stage_input(shop: Shop) -> None:
    shop.start(concurrency=1)
    payloads = [b'{"a": 1}', b'{"a": 1, "b": "two"}', b'{"a": 1, "b": 2, "c": 3}', b"[1, 2]"]

    for job_id in [shop.enqueue("add", payload=payload) for payload in payloads]:
        job = shop.wait(job_id)

        assert job.status is JobStatus.DEAD_LETTERED
        assert (job.reason_code, job.stage) == (ReasonCode.VALIDATION_FAILED, Stage.INPUT)
        assert job.failures == 0


def test_a_result_that_cannot_travel_is_permanent_at_stage_output(shop: Shop) -> None:
    shop.start(concurrency=1)

    for job_id in [shop.enqueue(kind) for kind in ("unencodable", "huge")]:
        job = shop.wait(job_id)

        assert job.status is JobStatus.FAILED
        assert job.error is not None
        assert job.error.stage is Stage.OUTPUT
        assert job.error.error_class is ErrorClass.PERMANENT


def test_a_checkpoint_is_handed_to_the_next_attempt(shop: Shop) -> None:
    shop.start()

    job = shop.wait(shop.enqueue("saver"))

    assert job.result == b"[1,11,21,32,42,52]"
    assert job.progress is not None
    assert (job.progress.done, job.progress.total, job.progress.note) == (6, 6, "step 5")


def test_the_context_knows_its_attempt(shop: Shop) -> None:
    shop.start()

    job = shop.wait(shop.enqueue("fences"))

    assert job.result is not None
    assert msgspec.json.decode(job.result) == [(1 << 32) + 1, 1, True, job.id]


def test_output_is_kept_with_its_attempt_bounded_and_never_blocks(shop: Shop) -> None:
    worker = shop.start(output_bytes=10_000)
    job_id = shop.enqueue("chatty", {"lines": 100_000})

    assert shop.wait(job_id).result == b'"said"'
    shop.stop(worker)

    text = shop.output_of(job_id)
    assert text.startswith(b"line 0 ")
    assert text.endswith(b"the end\n")
    assert b"bytes left out" in text
    assert len(text) < 10_100
    assert shop.store.artifacts.logs(job_id)[0].left_out_bytes > 8_000_000


def test_a_handler_may_remove_its_output_streams(shop: Shop) -> None:
    worker = shop.start()

    job = shop.wait(shop.enqueue("mute", policy=ONCE))

    assert (job.status, job.result) == (JobStatus.SUCCEEDED, b'"said nothing"')
    assert shop.stop(worker).crashes == 0


def test_jobs_of_unregistered_kinds_are_not_claimed(shop: Shop) -> None:
    shop.start()
    unknown = shop.enqueue("written_in_go")

    shop.wait(shop.enqueue("add", {"a": 1, "b": 1}))

    assert shop.job(unknown).status is JobStatus.QUEUED
    assert shop.types(unknown) == ["enqueued"]


def test_a_kind_with_a_concurrency_never_exceeds_it(
    shop: Shop, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("marks")
    shop.start(concurrency=4, warm_children=4)

    jobs = [
        shop.wait(job_id)
        for job_id in [shop.enqueue("limited", {"directory": str(directory)}) for _ in range(8)]
    ]

    seen = {int(job.result or b"0") for job in jobs}
    assert max(seen) == 2
