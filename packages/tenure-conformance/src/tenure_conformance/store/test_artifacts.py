"""Artifacts: staged under a lease, seen when the attempt has succeeded, collected otherwise."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tenure.coordinator.retention import DAY
from tenure.core.artifacts import (
    MAX_ARTIFACT_BYTES,
    MAX_ARTIFACTS_PER_ATTEMPT,
    ArtifactQuotas,
    ArtifactUpload,
    Staging,
)
from tenure.core.ids import LeaseId, Namespace, QueueName, worker_actor
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.vocabulary import Cause, ErrorClass, OnLost
from tenure.errors import InvalidInput
from tenure.ports import PruneResult
from tenure_conformance.harness import WORKER, Kit, policy
from tenure_conformance.spec import spec


def _upload(job: Job, name: str = "report.txt", body: bytes = b"done", **fields: Any) -> Any:
    lease: dict[str, Any] = {"job_id": job.id, "lease_id": job.lease_id, "actor": WORKER}
    return ArtifactUpload(name=name, body=body, **(lease | fields))


def _stage(kit: Kit, job: Job, *words: Any, **fields: Any) -> Staging:
    return kit.coordinator.store.artifacts.stage(_upload(job, *words, **fields))


def _names(kit: Kit, job: Job) -> list[str]:
    return [artifact.name for artifact in kit.store.artifacts.of_job(job.id)]


# --- seeing --------------------------------------------------------------------------------------


@spec("B8")
def test_an_artifact_is_visible_when_its_attempt_has_succeeded_and_not_before(kit: Kit) -> None:
    job = kit.running_job()
    staging = _stage(kit, job, "report.txt", b"\x00\xffdone", media_type="text/plain")
    before = (_names(kit, job), kit.store.artifacts.load(job.id, "report.txt"))

    kit.complete(job)

    made = staging.artifact
    assert made is not None
    assert (made.size, made.media_type, made.attempt) == (6, "text/plain", 1)
    assert (made.sha256, made.ts) == (hashlib.sha256(b"\x00\xffdone").hexdigest(), kit.now())
    assert before == ([], None)
    assert kit.store.artifacts.of_job(job.id) == [made]
    stored = kit.store.artifacts.load(job.id, "report.txt")
    assert stored is not None
    assert (stored.artifact, stored.body) == (made, b"\x00\xffdone")


@spec("B8")
def test_only_the_artifacts_of_the_attempt_that_succeeded_are_visible(kit: Kit) -> None:
    first = kit.running_job()
    _stage(kit, first, "a", b"first")
    _stage(kit, first, "only-first", b"first")
    kit.fail(first)
    kit.advance(seconds=60)
    (second,) = kit.claimed()
    _stage(kit, second, "a", b"second")

    kit.complete(second)

    stored = kit.store.artifacts.load(first.id, "a")
    assert _names(kit, first) == ["a"]
    assert stored is not None
    assert stored.body == b"second"
    assert kit.store.artifacts.load(first.id, "only-first") is None


@spec("B8")
def test_an_artifact_of_the_same_name_replaces_the_earlier_one_and_names_are_sorted(
    kit: Kit,
) -> None:
    job = kit.running_job()
    for name, body in (("b", b"1"), ("a", b"2"), ("b", b"three")):
        _stage(kit, job, name, body)

    kit.complete(job)

    assert [(each.name, each.size) for each in kit.store.artifacts.of_job(job.id)] == [
        ("a", 1),
        ("b", 5),
    ]


@spec("B8")
@pytest.mark.parametrize("ending", ["failed", "cancelled", "dead_lettered"])
def test_the_artifacts_of_a_job_that_did_not_succeed_are_never_visible(
    kit: Kit, ending: str
) -> None:
    job = kit.running_job()
    _stage(kit, job)

    match ending:
        case "failed":
            kit.fail(job, ErrorClass.PERMANENT)
        case "cancelled":
            kit.cancel_hard(job)
        case _:
            kit.dead_letter(job)

    assert kit.reload(job).status == ending
    assert _names(kit, job) == []


# --- the fence -----------------------------------------------------------------------------------


@spec("B7", "L9")
def test_an_artifact_is_accepted_only_before_the_end_of_its_lease(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    assert job.due_at is not None
    kit.advance_to(Instant(job.due_at - 1))

    in_time = _stage(kit, job)
    kit.advance(microseconds=1)
    late = _stage(kit, job)

    assert (in_time.cause, in_time.artifact is None) == (None, False)
    assert (late.cause, late.artifact) == (Cause.LEASE_EXPIRED, None)


@spec("B7", "R24")
def test_an_artifact_under_another_lease_than_the_current_one_is_refused(kit: Kit) -> None:
    old = kit.running_job()
    kit.fail(old)
    kit.advance(seconds=60)
    (new,) = kit.claimed()

    late = _stage(kit, old)
    foreign = _stage(kit, new, actor=worker_actor("other"))
    made_up = _stage(kit, new, lease_id=LeaseId("1-" + "0" * 32))
    kit.complete(new)
    after = _stage(kit, new)

    assert {each.cause for each in (late, after)} == {Cause.LEASE_SETTLED}
    assert {each.cause for each in (foreign, made_up)} == {Cause.INVALID_LEASE}
    assert _names(kit, new) == []


@spec("B7", "R24")
def test_an_artifact_under_an_own_lease_that_was_lost_names_how_it_was_lost(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    kit.advance_to(job.due_at)
    kit.sweep(job)

    expired = _stage(kit, job)
    kit.advance(seconds=60)
    kit.claimed()
    superseded = _stage(kit, job)

    assert (expired.cause, superseded.cause) == (Cause.LEASE_EXPIRED, Cause.SUPERSEDED)


@spec("B7", "A5", "R2")
def test_an_artifact_under_a_lease_of_an_earlier_epoch_is_refused(kit: Kit) -> None:
    job = kit.running_job()
    kit.store.raise_epoch()

    assert _stage(kit, job).cause is Cause.EPOCH_CHANGED
    assert _stage(kit, job, job_id=kit.new_id()).cause is Cause.EPOCH_CHANGED
    assert _stage(kit, job, lease_id=LeaseId("1-" + "0" * 32)).cause is Cause.EPOCH_CHANGED


@spec("B7")
def test_an_artifact_of_an_unknown_job_is_refused(kit: Kit) -> None:
    job = kit.running_job()

    assert _stage(kit, job, job_id=kit.new_id()).cause is Cause.UNKNOWN_JOB


# --- limits --------------------------------------------------------------------------------------


@spec("B9")
def test_an_attempt_has_a_limited_number_of_artifacts(kit: Kit) -> None:
    job = kit.running_job()
    for number in range(MAX_ARTIFACTS_PER_ATTEMPT):
        assert _stage(kit, job, f"n{number}").cause is None

    assert _stage(kit, job, "one-more").cause is Cause.TOO_MANY_ARTIFACTS
    assert _stage(kit, job, "n0", b"replaced").cause is None


@spec("B9", "J6")
@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("name", {"name": "../etc/passwd"}),
        ("name", {"name": ""}),
        ("name", {"name": "x" * 129}),
        ("media_type", {"media_type": "text"}),
        ("media_type", {"media_type": "text/html\r\nSet-Cookie: x"}),
        ("body", {"body": b"x" * (MAX_ARTIFACT_BYTES + 1)}),
        ("body", {"body": "text"}),
        ("lease_id", {"lease_id": "7"}),
        ("job_id", {"job_id": "7"}),
    ],
)
def test_an_artifact_over_a_limit_is_refused_by_name(
    kit: Kit, field: str, fields: dict[str, Any]
) -> None:
    job = kit.running_job()

    with pytest.raises(InvalidInput, match=f"^{field}: "):
        _stage(kit, job, **fields)


@spec("B9")
def test_the_largest_artifact_is_kept_whole(kit: Kit) -> None:
    job = kit.running_job()
    body = b"\x01" * MAX_ARTIFACT_BYTES
    _stage(kit, job, "big", body)
    kit.complete(job)

    stored = kit.store.artifacts.load(job.id, "big")

    assert stored is not None
    assert stored.body == body


# --- quotas ------------------------------------------------------------------------------------


def _stage_within(
    kit: Kit, job: Job, name: str, size: int, **quotas: int | None
) -> tuple[Cause | None, int | None]:
    """Stage N bytes: why it was refused, and how many bytes were in use then."""
    upload = _upload(job, name, bytes(size), actor=job.principal)
    kit.store.artifact_quotas = ArtifactQuotas(**quotas)
    staging = kit.store.artifacts.stage(upload)
    assert (staging.artifact is None) == (staging.cause is not None)
    return staging.cause, staging.used_bytes


def _used_bytes(kit: Kit, namespace: str = "default") -> int:
    """The bytes that the store counts for a namespace, by a refusal."""
    job = kit.running_job(namespace=Namespace(namespace), queue=QueueName("asking"))
    cause, used = _stage_within(kit, job, "asks", 1, namespace_bytes=-1)
    assert cause is Cause.NAMESPACE_ARTIFACT_QUOTA
    assert used is not None
    kit.cancel_hard(job)
    return used


@spec("B28", "J9")
def test_the_artifacts_of_a_job_have_a_quota(kit: Kit) -> None:
    job, other = kit.running_job(), kit.running_job()

    def stage(name: str, size: int, of: Job = job) -> tuple[Cause | None, int | None]:
        return _stage_within(kit, of, name, size, job_bytes=10)

    assert stage("a", 6) == (None, None)
    assert stage("b", 5) == (Cause.JOB_ARTIFACT_QUOTA, 6)
    assert stage("b", 4) == (None, None)
    assert stage("a", 7) == (Cause.JOB_ARTIFACT_QUOTA, 4)  # what it replaces does not count
    assert stage("a", 5) == (None, None)
    assert stage("a", 10, other) == (None, None)
    assert _stage_within(kit, job, "c", 100, job_bytes=None) == (None, None)
    kit.complete(job)
    assert [(each.name, each.size) for each in kit.store.artifacts.of_job(job.id)] == [
        ("a", 5),
        ("b", 4),
        ("c", 100),
    ]


@spec("B28", "J9")
def test_the_artifacts_of_a_namespace_have_a_quota(kit: Kit) -> None:
    jobs = [kit.running_job() for _ in range(3)]
    elsewhere = kit.running_job(namespace=Namespace("elsewhere"))

    def stage(job: Job, name: str, size: int) -> tuple[Cause | None, int | None]:
        return _stage_within(kit, job, name, size, namespace_bytes=10)

    assert stage(jobs[0], "a", 4) == (None, None)
    assert stage(jobs[1], "a", 4) == (None, None)
    assert stage(jobs[2], "a", 3) == (Cause.NAMESPACE_ARTIFACT_QUOTA, 8)
    assert stage(jobs[0], "a", 6) == (None, None)
    assert stage(jobs[0], "a", 7) == (Cause.NAMESPACE_ARTIFACT_QUOTA, 4)
    assert stage(elsewhere, "a", 10) == (None, None)
    assert _stage_within(kit, jobs[2], "a", 100, namespace_bytes=None) == (None, None)
    assert (_used_bytes(kit), _used_bytes(kit, "elsewhere")) == (110, 10)


@spec("B28")
def test_a_refusal_names_the_quota_and_changes_nothing(kit: Kit) -> None:
    job = kit.running_job()
    kit.store.artifacts.stage(_upload(job, "a", b"kept"))

    kit.store.artifact_quotas = ArtifactQuotas(job_bytes=7)
    of_job = kit.store.artifacts.stage(_upload(job, "b"))
    kit.store.artifact_quotas = ArtifactQuotas(namespace_bytes=6)
    of_namespace = kit.store.artifacts.stage(_upload(job, "b"))

    assert (of_job.used_bytes, of_job.quota_bytes) == (4, 7)
    assert of_job.problem is not None
    assert "this job use 4 bytes of their quota of 7" in of_job.problem
    assert "TENURE_ARTIFACT_QUOTA_PER_JOB" in of_job.problem
    assert (of_namespace.used_bytes, of_namespace.quota_bytes) == (4, 6)
    assert of_namespace.problem is not None
    assert "namespace use 4 bytes of their quota of 6" in of_namespace.problem
    assert "TENURE_ARTIFACT_QUOTA_PER_NAMESPACE" in of_namespace.problem
    kit.complete(job)
    assert _names(kit, job) == ["a"]


@spec("B28")
def test_a_retry_has_all_of_its_jobs_quota(kit: Kit) -> None:
    first = kit.running_job()
    _stage_within(kit, first, "a", 5)
    _stage_within(kit, first, "b", 5)
    kit.fail(first)
    kit.advance(seconds=60)
    (second,) = kit.claimed()

    taken = _stage_within(kit, second, "c", 10, job_bytes=10, namespace_bytes=10)

    assert taken == (None, None)
    assert _used_bytes(kit) == 10
    assert kit.store.upkeep.delete("artifacts", limit=10).deleted == 0


@spec("B28")
def test_deleted_and_purged_artifacts_do_not_count_towards_the_quota(kit: Kit) -> None:
    good, bad, live = kit.running_job(), kit.running_job(), kit.running_job()
    for number, job in enumerate((good, bad, live)):
        _stage_within(kit, job, "a", 10**number)
        _stage_within(kit, job, "b", 10**number)
    kit.complete(good)
    kit.fail(bad, ErrorClass.PERMANENT)
    before = _used_bytes(kit)

    kit.store.upkeep.delete("artifacts", limit=10)
    collected = _used_bytes(kit)
    kit.advance(seconds=24 * 3600 + 1)
    kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=10)

    assert (before, collected, _used_bytes(kit)) == (222, 202, 200)


@spec("B28")
def test_the_bytes_are_counted_right_when_many_stage_and_collect_at_once(kit: Kit) -> None:
    kept = [kit.running_job() for _ in range(4)]
    left = [kit.running_job() for _ in range(6)]
    for job in left:
        for number in range(5):
            _stage_within(kit, job, f"n{number}", 1000)
        kit.fail(job, ErrorClass.PERMANENT)

    def stage(job: Job) -> None:
        for number in range(20):
            assert _stage_within(kit, job, f"n{number % 10}", number) == (None, None)

    with ThreadPoolExecutor(5) as threads:
        staging = [threads.submit(stage, job) for job in kept]
        collected = threads.submit(
            lambda: [kit.store.upkeep.delete("artifacts", limit=7) for _ in range(30)]
        )

    for each in staging:
        each.result()
    assert sum(each.deleted for each in collected.result()) == 30
    assert _used_bytes(kit) == 4 * sum(range(10, 20))


# --- collecting ----------------------------------------------------------------------------------


@spec("B10")
def test_only_leftover_artifacts_are_deleted(kit: Kit) -> None:
    live = kit.running_job()
    _stage(kit, live, "live")
    good = kit.running_job()
    _stage(kit, good, "good")
    kit.complete(good)
    bad = kit.running_job()
    _stage(kit, bad, "bad")
    kit.fail(bad, ErrorClass.PERMANENT)
    held = kit.running_job(policy=policy(lease_s=30, on_lost=OnLost.HOLD))
    _stage(kit, held, "held")
    kit.advance_to(held.due_at)
    kit.sweep(held)

    assert kit.store.upkeep.delete("artifacts", limit=100) == PruneResult(2, hit_limit=False)
    assert kit.store.upkeep.delete("artifacts", limit=100) == PruneResult(0, hit_limit=False)

    kit.complete(live)
    assert (_names(kit, live), _names(kit, good)) == (["live"], ["good"])


@spec("B10")
def test_leftovers_of_an_earlier_attempt_are_deleted_while_the_next_one_is_live(kit: Kit) -> None:
    first = kit.running_job()
    _stage(kit, first, "first")
    kit.fail(first)
    kit.advance(seconds=60)
    (second,) = kit.claimed()

    assert kit.store.upkeep.delete("artifacts", limit=100).deleted == 1

    _stage(kit, second, "second")
    kit.complete(second)
    assert _names(kit, second) == ["second"]


@spec("B10")
def test_each_deletion_of_leftovers_reads_one_page_and_the_next_continues_from_there(
    kit: Kit,
) -> None:
    jobs = [kit.running_job() for _ in range(5)]
    for job in jobs:
        _stage(kit, job)
    for job in jobs[1:]:
        kit.fail(job, ErrorClass.PERMANENT)
    kit.complete(jobs[0])

    steps = [kit.store.upkeep.delete("artifacts", limit=2) for _ in range(3)]

    assert [each.hit_limit for each in steps] == [True, True, False]
    assert sum(each.deleted for each in steps) == 4
    assert max(each.deleted for each in steps) == 2
    assert _names(kit, jobs[0]) == ["report.txt"]


@spec("B6", "T26")
def test_a_purge_deletes_artifacts(kit: Kit) -> None:
    job = kit.running_job()
    _stage(kit, job)
    kit.complete(job)
    kit.advance(seconds=24 * 3600 + 1)

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=10).deleted == 1

    assert _names(kit, job) == []
    assert kit.store.upkeep.delete("artifacts", limit=10).deleted == 0
