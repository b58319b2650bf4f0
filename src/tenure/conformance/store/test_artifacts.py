"""Artifacts: staged under a lease, seen when the attempt has succeeded, collected otherwise."""

import hashlib
from typing import Any

import pytest

from tenure.conformance.harness import WORKER, Kit, policy
from tenure.conformance.spec import spec
from tenure.coordinator.retention import DAY
from tenure.core.beside import (
    MAX_ARTIFACT_BYTES,
    MAX_ARTIFACTS_PER_ATTEMPT,
    ArtifactUpload,
    Staging,
)
from tenure.core.ids import LeaseId, worker_actor
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.vocabulary import Cause, ErrorClass, OnLost
from tenure.errors import InvalidInput
from tenure.ports import Bite


def _upload(job: Job, name: str = "report.txt", body: bytes = b"done", **fields: Any) -> Any:
    lease: dict[str, Any] = {"job_id": job.id, "lease_id": job.lease_id, "actor": WORKER}
    return ArtifactUpload(name=name, body=body, **(lease | fields))


def _stage(kit: Kit, job: Job, *words: Any, **fields: Any) -> Staging:
    return kit.coordinator.stage_artifact(_upload(job, *words, **fields))


def _names(kit: Kit, job: Job) -> list[str]:
    return [artifact.name for artifact in kit.store.list_artifacts(job.id)]


# --- seeing --------------------------------------------------------------------------------------


@spec("B8")
def test_an_artifact_is_seen_when_its_attempt_has_succeeded_and_not_before(kit: Kit) -> None:
    job = kit.running_job()
    staging = _stage(kit, job, "report.txt", b"\x00\xffdone", media_type="text/plain")
    before = (_names(kit, job), kit.store.load_artifact(job.id, "report.txt"))

    kit.complete(job)

    made = staging.artifact
    assert made is not None
    assert (made.size, made.media_type, made.attempt) == (6, "text/plain", 1)
    assert (made.sha256, made.ts) == (hashlib.sha256(b"\x00\xffdone").hexdigest(), kit.now())
    assert before == ([], None)
    assert kit.store.list_artifacts(job.id) == [made]
    stored = kit.store.load_artifact(job.id, "report.txt")
    assert stored is not None
    assert (stored.artifact, stored.body) == (made, b"\x00\xffdone")


@spec("B8")
def test_only_the_artifacts_of_the_attempt_that_succeeded_are_seen(kit: Kit) -> None:
    first = kit.running_job()
    _stage(kit, first, "a", b"first")
    _stage(kit, first, "only-first", b"first")
    kit.fail(first)
    kit.advance(seconds=60)
    (second,) = kit.claimed()
    _stage(kit, second, "a", b"second")

    kit.complete(second)

    stored = kit.store.load_artifact(first.id, "a")
    assert _names(kit, first) == ["a"]
    assert stored is not None
    assert stored.body == b"second"
    assert kit.store.load_artifact(first.id, "only-first") is None


@spec("B8")
def test_a_name_staged_again_replaces_and_names_are_listed_in_order(kit: Kit) -> None:
    job = kit.running_job()
    for name, body in (("b", b"1"), ("a", b"2"), ("b", b"three")):
        _stage(kit, job, name, body)

    kit.complete(job)

    assert [(each.name, each.size) for each in kit.store.list_artifacts(job.id)] == [
        ("a", 1),
        ("b", 5),
    ]


@spec("B8")
@pytest.mark.parametrize("ending", ["failed", "cancelled", "dead_lettered"])
def test_the_artifacts_of_a_job_that_did_not_succeed_are_never_seen(kit: Kit, ending: str) -> None:
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
def test_an_artifact_is_taken_until_the_lease_ends_and_not_then(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    assert job.due_at is not None
    kit.advance_to(Instant(job.due_at - 1))

    in_time = _stage(kit, job)
    kit.advance(microseconds=1)
    late = _stage(kit, job)

    assert (in_time.cause, in_time.artifact is None) == (None, False)
    assert (late.cause, late.artifact) == (Cause.LEASE_EXPIRED, None)


@spec("B7")
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

    assert {each.cause for each in (late, foreign, made_up, after)} == {Cause.INVALID_LEASE}
    assert _names(kit, new) == []


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

    stored = kit.store.load_artifact(job.id, "big")

    assert stored is not None
    assert stored.body == body


# --- collecting ----------------------------------------------------------------------------------


@spec("B10")
def test_leftovers_are_collected_and_nothing_else_is(kit: Kit) -> None:
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

    assert kit.store.collect_artifacts(limit=100) == Bite(2, is_full=False)
    assert kit.store.collect_artifacts(limit=100) == Bite(0, is_full=False)

    kit.complete(live)
    assert (_names(kit, live), _names(kit, good)) == (["live"], ["good"])


@spec("B10")
def test_an_earlier_attempt_is_collected_while_the_next_one_lives(kit: Kit) -> None:
    first = kit.running_job()
    _stage(kit, first, "first")
    kit.fail(first)
    kit.advance(seconds=60)
    (second,) = kit.claimed()
    _stage(kit, second, "second")

    assert kit.store.collect_artifacts(limit=100).gone == 1

    kit.complete(second)
    assert _names(kit, second) == ["second"]


@spec("B10")
def test_a_collection_looks_at_a_page_and_goes_on_from_there(kit: Kit) -> None:
    jobs = [kit.running_job() for _ in range(5)]
    for job in jobs:
        _stage(kit, job)
    for job in jobs[1:]:
        kit.fail(job, ErrorClass.PERMANENT)
    kit.complete(jobs[0])

    bites = [kit.store.collect_artifacts(limit=2) for _ in range(3)]

    assert [bite.is_full for bite in bites] == [True, True, False]
    assert sum(bite.gone for bite in bites) == 4
    assert max(bite.gone for bite in bites) == 2
    assert _names(kit, jobs[0]) == ["report.txt"]


@spec("B6", "T26")
def test_a_purge_takes_artifacts_along(kit: Kit) -> None:
    job = kit.running_job()
    _stage(kit, job)
    kit.complete(job)
    kit.advance(seconds=24 * 3600 + 1)

    assert kit.store.purge(older_than_us=DAY, limit=10) == 1

    assert _names(kit, job) == []
    assert kit.store.collect_artifacts(limit=10).gone == 0
