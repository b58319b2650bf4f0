"""What no two jobs may share is noticed between jobs that are each lawful."""

from collections.abc import Iterator

from msgspec.structs import replace

from tenure.core.ids import JobId
from tenure.core.instants import seconds
from tenure.core.job import Job
from tenure.core.policy import Policy
from tenure.ports import DedupeKey, JobHistory
from tenure.verify import verify
from tenure_conformance.spec import spec
from tests.support.histories import RecordedAudit, RecordedStore, World


def two_leased_jobs() -> tuple[Job, Job]:
    world = World(0)
    ids = [world.enqueue(Policy(lease_us=seconds(30)), dedupe_key=key) for key in ("a", "b")]
    world.advance(seconds_=10)
    for job_id in ids:
        world.claim(job_id)
    one, other = (world.rows[job_id] for job_id in ids)
    return one, other


def violated(*jobs: Job) -> dict[str, set[JobId]]:
    report = verify(RecordedStore([JobHistory(job.id, job, ()) for job in jobs]))
    return {
        finding.id: {violation.job_id for violation in finding.first}
        for finding in report.findings
        if finding.id in ("I9", "I17") and "also of job" in str(finding.first)
    }


@spec("I9", "I17")
def test_jobs_with_leases_and_keys_of_their_own_are_accepted() -> None:
    assert not violated(*two_leased_jobs())


@spec("I9")
def test_two_jobs_with_one_lease_are_noticed() -> None:
    one, other = two_leased_jobs()

    assert violated(one, replace(other, lease_id=one.lease_id)).keys() == {"I9"}


@spec("I17")
def test_two_live_jobs_with_one_key_are_noticed() -> None:
    one, other = two_leased_jobs()

    assert violated(one, replace(other, dedupe_key=one.dedupe_key)).keys() == {"I17"}


@spec("I17")
def test_a_key_is_shared_only_within_its_namespace_and_kind() -> None:
    one, other = two_leased_jobs()
    elsewhere = replace(other, dedupe_key=one.dedupe_key, kind="another")

    assert not violated(one, elsewhere)


@spec("I17")
def test_a_key_that_a_new_job_took_over_during_the_reading_is_accepted() -> None:
    one, other = two_leased_jobs()
    key = DedupeKey(one.namespace, one.kind, "a")

    class Paged(RecordedAudit):
        """A stream that read one job before it ended and the other after it was enqueued."""

        def live_keys(self) -> Iterator[tuple[DedupeKey, JobId]]:
            return iter([(key, one.id), (key, other.id)])

    records = [JobHistory(one.id, one, ()), JobHistory(other.id, other, ())]
    store = RecordedStore(records)
    store.audit = Paged(records)

    assert "I17" not in verify(store).violated
