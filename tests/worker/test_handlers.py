"""What a handler returns, raises or prints reaches the history."""

from tenure.core.vocabulary import JobStatus
from tests.worker.harness import Shop


def test_a_handler_runs_and_its_result_is_committed(shop: Shop) -> None:
    worker = shop.start()

    job = shop.wait(shop.enqueue("add", {"a": 2, "b": 3}))

    assert job.status is JobStatus.SUCCEEDED
    assert job.result == b"5"
    assert shop.types(job.id) == ["enqueued", "claimed", "started", "succeeded"]
    assert shop.stop(worker).succeeded == 1
