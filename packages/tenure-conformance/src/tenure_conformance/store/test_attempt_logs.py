"""The output of attempts: the latest of each is kept, if its lease was the caller's."""

from typing import Any

import pytest

from tenure.coordinator.retention import DAY
from tenure.core.artifacts import MAX_ATTEMPT_LOG_BYTES, MAX_LOGS_READ, AttemptLog, AttemptOutput
from tenure.core.ids import LeaseId, worker_actor
from tenure.core.job import Job
from tenure.core.vocabulary import Cause
from tenure.errors import InvalidInput
from tenure_conformance.harness import WORKER, Kit, policy
from tenure_conformance.spec import spec


def _put(kit: Kit, job: Job, text: str = "hello", **fields: Any) -> Cause | None:
    lease: dict[str, Any] = {"job_id": job.id, "lease_id": job.lease_id, "actor": WORKER}
    return kit.coordinator.store.artifacts.put_log(AttemptOutput(text=text, **(lease | fields)))


@spec("B20")
def test_the_output_of_each_attempt_is_kept_after_its_end(kit: Kit) -> None:
    first = kit.running_job()
    kit.fail(first)
    kit.advance(seconds=60)
    (second,) = kit.claimed()

    assert _put(kit, second, "two\nlines ✓", left_out_bytes=7) is None
    kit.complete(second)
    assert _put(kit, first, "late") is None

    assert kit.store.artifacts.logs(first.id) == [
        AttemptLog(job_id=first.id, attempt=1, text="late", left_out_bytes=0),
        AttemptLog(job_id=first.id, attempt=2, text="two\nlines ✓", left_out_bytes=7),
    ]


@spec("B20")
def test_the_output_of_an_attempt_with_the_highest_part_stays(kit: Kit) -> None:
    job = kit.running_job()

    def kept_after(text: str, part: int, left_out_bytes: int = 0) -> list[tuple[str, int]]:
        assert _put(kit, job, text, part=part, left_out_bytes=left_out_bytes) is None
        return [(log.text, log.left_out_bytes) for log in kit.store.artifacts.logs(job.id)]

    assert kept_after("so far", 0) == [("so far", 0)]
    assert kept_after("the same part again", 0) == [("so far", 0)]
    assert kept_after("so far, and more", 2, 7) == [("so far, and more", 7)]
    assert kept_after("late", 1) == [("so far, and more", 7)]


@spec("B20")
def test_output_under_a_lease_that_is_not_the_callers_is_refused(kit: Kit) -> None:
    job, other = kit.running_job(), kit.running_job()

    causes = [
        _put(kit, job, actor=worker_actor("other")),
        _put(kit, job, lease_id=LeaseId("1-" + "0" * 32)),
        _put(kit, job, lease_id=other.lease_id),
        _put(kit, job, job_id=kit.new_id()),
    ]

    assert causes == [Cause.INVALID_LEASE] * 3 + [Cause.UNKNOWN_JOB]
    assert kit.store.artifacts.logs(job.id) == []


@spec("B20", "R2")
def test_output_under_a_lease_whose_record_may_be_lost_is_refused_as_such(kit: Kit) -> None:
    job = kit.running_job()
    kit.store.raise_epoch()

    of_unknown_job = _put(kit, job, job_id=kit.new_id())
    of_unknown_lease = _put(kit, job, lease_id=LeaseId("1-" + "0" * 32))

    assert {of_unknown_job, of_unknown_lease} == {Cause.EPOCH_CHANGED}
    assert _put(kit, job, "what it wrote") is None


@spec("B20", "J6")
@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("text", {"text": "x" * (MAX_ATTEMPT_LOG_BYTES + 1)}),
        ("text", {"text": "ü" * (MAX_ATTEMPT_LOG_BYTES // 2 + 1)}),
        ("text", {"text": "\x00"}),
        ("left_out_bytes", {"left_out_bytes": -1}),
        ("part", {"part": -1}),
        ("lease_id", {"lease_id": ""}),
    ],
)
def test_output_over_a_limit_is_refused_by_name(
    kit: Kit, field: str, fields: dict[str, Any]
) -> None:
    job = kit.running_job()

    with pytest.raises(InvalidInput, match=f"^{field}: "):
        _put(kit, job, **fields)


@spec("B6", "T26")
def test_a_purge_deletes_output(kit: Kit) -> None:
    job = kit.succeeded_job()
    (claimed,) = [event for event in kit.events(job) if event.type == "claimed"]
    assert _put(kit, job, lease_id=claimed.lease_id) is None
    kit.advance(seconds=24 * 3600 + 1)

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=10).deleted == 1

    assert kit.store.artifacts.logs(job.id) == []


@spec("B26")
def test_the_output_of_the_latest_attempts_is_shown(kit: Kit) -> None:
    job = kit.running_job(policy=policy(max_releases=MAX_LOGS_READ + 5))
    for number in range(MAX_LOGS_READ + 2):
        assert _put(kit, job, f"attempt {number + 1}") is None
        kit.release(job)
        (job,) = kit.claimed()

    texts = [log.text for log in kit.store.artifacts.logs(job.id)]

    assert texts == [f"attempt {number + 3}" for number in range(MAX_LOGS_READ)]
