"""The eight operations of the lifecycle plan, over a coordinator, obey the plan."""

from collections.abc import Iterator

import pytest

from tenure.contract import CoordinatedQueue, DistributedJobQueue
from tenure.core.job import JobError
from tenure.core.vocabulary import Cause, ErrorClass, JobStatus, VerdictKind
from tenure_conformance.spec import spec
from tests.support.coordinators import World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.coordinator.close()


@spec("T33", "T14", "K13", "Q1")
def test_the_plans_operations_lead_a_job_through_the_plans_statuses(world: World) -> None:
    adapter = CoordinatedQueue(world.coordinator, "w1", queue="q")
    queue: DistributedJobQueue = adapter
    job_id = adapter.new_job_id()

    made = queue.enqueue("mail", b"1", job_id=job_id)
    again = queue.enqueue("mail", b"1", job_id=job_id)
    first = queue.claimNext("c1")
    same = queue.claimNext("c1")
    assert first is not None
    assert same is not None
    stalled = queue.stall(job_id, "s1", expected_rev=2)
    late = queue.complete(job_id, first.lease_id, "r1")
    back = queue.requeueStalled(job_id, "q1")
    second = queue.claimNext("c2")
    assert second is not None
    started = queue.start(job_id, second.lease_id, "b", expected_rev=second.job.rev)
    renewed = queue.heartbeat(job_id, second.lease_id, 1)
    mismatch = queue.complete(job_id, second.lease_id, "r2", expected_rev=1)
    done = queue.complete(job_id, second.lease_id, "r2", b'"sent"')

    assert (made.job and made.job.rev, again.replayed) == (1, True)
    assert (first.lease_id, first.attempt, second.attempt) == (same.lease_id, 1, 2)
    assert (stalled.job and stalled.job.status, late.cause) == (JobStatus.STALLED, Cause.REVOKED)
    assert back.job is not None
    assert back.job.status is JobStatus.QUEUED
    assert (started.kind, renewed.kind) == (VerdictKind.OK, VerdictKind.OK)
    assert mismatch.cause is Cause.REVISION_MISMATCH
    assert (done.kind, done.job_status) == (VerdictKind.COMMITTED, JobStatus.SUCCEEDED)
    assert queue.claimNext("c3") is None


def test_a_permanent_failure_of_the_plans_worker_ends_the_job_failed(world: World) -> None:
    queue = CoordinatedQueue(world.coordinator, "w1", queue="q")
    job_id = queue.new_job_id()
    queue.enqueue("mail", b"1", job_id=job_id)
    grant = queue.claimNext("c1")
    assert grant is not None

    error = JobError(error_class=ErrorClass.PERMANENT, type="Gone", message="no such user")
    failed = queue.fail(job_id, grant.lease_id, "f", error)

    assert (failed.kind, failed.job_status) == (VerdictKind.COMMITTED, JobStatus.FAILED)
