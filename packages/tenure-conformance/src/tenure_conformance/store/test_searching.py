"""Searches: lists of jobs by what no index has, a bounded number of them at a time."""

from typing import Any

import pytest

from tenure.core.ids import DEFAULT_NAMESPACE, FlowId, JobId, Kind, WorkerId
from tenure.core.instants import Instant
from tenure.core.job import Job, JobError
from tenure.core.views.job_search import ERROR_CHARS, FoundJobs, JobFilter
from tenure.core.vocabulary import ErrorClass, JobStatus, OnLost
from tenure.errors import InvalidInput
from tenure_conformance.harness import WORKER_ID, Kit, policy
from tenure_conformance.spec import spec

MAIL, BILL = Kind("mail"), Kind("bill")


def find(kit: Kit, **wanted: Any) -> FoundJobs:
    """A page of the default namespace."""
    return kit.store.views.jobs(JobFilter(namespace=DEFAULT_NAMESPACE, **wanted))


def found(kit: Kit, **wanted: Any) -> list[JobId]:
    """The ids of a page, in no particular order."""
    return sorted(job.id for job in find(kit, **wanted).jobs)


def failed_job(kit: Kit, message: str, *, type_: str = "OSError", **fields: Any) -> Job:
    """A job that failed for good with this error."""
    job = kit.running_job(**fields)
    kit.fail(job, error=JobError(error_class=ErrorClass.PERMANENT, type=type_, message=message))
    return kit.reload(job)


@spec("J12")
def test_jobs_are_found_by_the_worker_that_has_or_had_them_last(kit: Kit) -> None:
    kit.enqueue(priority=-1)
    running, ended = kit.running_job(), kit.succeeded_job()

    assert found(kit, worker=WORKER_ID) == sorted([running.id, ended.id])
    assert found(kit, worker=WorkerId("nobody")) == []
    assert found(kit, worker=WORKER_ID, statuses=(JobStatus.SUCCEEDED,)) == [ended.id]


@spec("L19")
def test_orphaned_jobs_are_those_whose_workers_have_been_silent(kit: Kit) -> None:
    silent = kit.running_job(policy=policy(lease_s=600))
    kit.stalled_job(policy=policy(on_lost=OnLost.HOLD))
    kit.advance(seconds=60)
    other = kit.running_job(policy=policy(lease_s=600))
    kit.enqueue()

    assert found(kit, orphaned=True) == [silent.id]
    assert found(kit, orphaned=True, statuses=(JobStatus.RUNNING,)) == [silent.id]
    assert found(kit, orphaned=True, statuses=(JobStatus.CLAIMED, JobStatus.QUEUED)) == []
    assert found(kit, orphaned=True, statuses=(JobStatus.QUEUED,)) == []
    [shown] = find(kit, orphaned=True, bodies=True).jobs
    assert shown == kit.reload(silent)
    kit.advance(seconds=60)
    page = find(kit, orphaned=True, limit=1, bodies=False)
    assert [job.id for job in page.jobs] == [other.id]
    rest = find(kit, orphaned=True, limit=1, before=page.next_before)
    assert [job.id for job in rest.jobs] == [silent.id]


@spec("J12")
def test_jobs_are_found_by_when_they_were_enqueued_and_finished(kit: Kit) -> None:
    early = kit.succeeded_job()
    kit.advance(seconds=60)
    late = kit.enqueue()
    began, ended = early.enqueued_at, kit.now()

    assert found(kit, enqueued_since=began, enqueued_until=ended) == [early.id]
    assert found(kit, enqueued_since=ended) == [late.id]
    assert found(kit, finished_since=began) == [early.id]
    assert early.finished_at is not None
    assert found(kit, finished_since=Instant(early.finished_at + 1)) == []
    assert found(kit, finished_until=early.finished_at) == []


@spec("J12")
def test_text_in_an_error_is_found_literally(kit: Kit) -> None:
    kit.enqueue(priority=-1)
    job = failed_job(kit, 'Connection refused: 100% of "quoted" grün\nsecond line')
    expected = {
        "refused": True,
        "CONNECTION Refused": True,
        "oserror: conn": True,
        "100%": True,
        "100_": False,
        "%": True,
        "_": False,
        "!": False,
        "quoted": True,
        '"quoted"': True,
        "grün": True,
        "GRÜN": False,
        "second line": True,
        "permanent": False,
        "message": False,
    }

    assert {text: found(kit, error=text) == [job.id] for text in expected} == expected
    assert all(found(kit, error=text) in ([], [job.id]) for text in expected)


@spec("J12")
def test_only_the_beginning_of_an_error_is_searched(kit: Kit) -> None:
    beginning = f"OSError: {'ü' * (ERROR_CHARS - 9 - 4)}last"
    job = failed_job(kit, f"{beginning.removeprefix('OSError: ')}beyond")

    assert len(beginning) == ERROR_CHARS
    assert found(kit, error="last") == [job.id]
    assert found(kit, error="beyond") == []
    assert found(kit, error="lastb") == []


@spec("J12")
def test_the_last_error_of_a_job_that_is_tried_again_is_found(kit: Kit) -> None:
    job = kit.running_job()
    kit.fail(job, error=JobError(error_class=ErrorClass.TRANSIENT, message="try again"))

    assert found(kit, error="again") == [job.id]


@spec("J12")
def test_a_page_that_stopped_reading_says_where_the_next_one_begins(kit: Kit) -> None:
    wanted = failed_job(kit, "rare")
    for _ in range(4):
        failed_job(kit, "common")

    first = find(kit, error="rare", reads=3)
    assert first.next_before is not None
    second = find(kit, error="rare", reads=3, before=first.next_before)

    assert first.jobs == []
    assert [job.id for job in second.jobs] == [wanted.id]
    assert second.next_before is None


@spec("J12")
def test_a_search_is_among_the_jobs_that_match_the_rest(kit: Kit) -> None:
    wanted = failed_job(kit, "same", kind=MAIL)
    for _ in range(4):
        failed_job(kit, "same", kind=BILL)

    page = find(kit, error="same", kind=MAIL, reads=2)

    assert [job.id for job in page.jobs] == [wanted.id]
    assert page.next_before is None


@spec("J12")
def test_pages_of_a_search_leave_nothing_out_and_show_nothing_twice(kit: Kit) -> None:
    jobs = [failed_job(kit, "odd" if number % 2 else "even") for number in range(9)]
    shown: list[JobId] = []
    before: JobId | None = None
    for _ in range(20):
        page = find(kit, error="odd", reads=2, limit=1, before=before)
        shown += [job.id for job in page.jobs]
        before = page.next_before
        if before is None:
            break

    assert sorted(shown) == sorted(job.id for job in jobs[1::2])


@spec("J12")
def test_jobs_of_a_flow_are_listed(kit: Kit) -> None:
    kit.enqueue()
    flow = kit.flow({"first": [], "then": ["first"]})

    flow_id = flow["first"].flow_id
    assert flow_id is not None
    assert found(kit, flow_id=flow_id) == sorted(job.id for job in flow.values())
    assert found(kit, flow_id=FlowId(kit.new_id())) == []


@spec("J12", "J6")
@pytest.mark.parametrize(
    "wanted",
    [{"worker": "a\x00"}, {"error": "x" * 201}, {"error": "\x00"}, {"enqueued_since": 2**64}],
)
def test_what_no_job_can_have_is_refused(kit: Kit, wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        find(kit, **wanted)
