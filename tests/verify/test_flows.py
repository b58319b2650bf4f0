"""Jobs that went on too early, or wait for nothing, are noticed; what is about to happen is not."""

from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from tenure.core.events import Event
from tenure.core.flow_rows import Edge
from tenure.core.ids import JobId
from tenure.core.job import Job
from tenure.core.vocabulary import EventType, JobStatus
from tenure.ports import JobHistory
from tenure.verify import Violation, check_across, check_record
from tenure.verify.projections import as_documents_see_it
from tenure_conformance.spec import spec
from tests.support.histories import RecordedStore
from tools import lives
from tools.driver import PARENT_ID, Driver


def parent(status: JobStatus) -> Job:
    return replace(lives.IN_STATUS[status]().job, id=PARENT_ID)


def edge(driver: Driver, **fields: object) -> Edge:
    made = Edge(driver.job.id, 0, PARENT_ID, "first", JobStatus.SUCCEEDED)
    return replace(made, **fields)


def found(driver: Driver, of: Job, *edges: Edge, noted: tuple[JobId, ...] = ()) -> list[Violation]:
    records = [JobHistory(job.id, job, ()) for job in (driver.job, of)]
    return list(check_across(RecordedStore(records, edges=edges, noted=noted)))


def went_on() -> Driver:
    driver = lives.waiting()
    driver.do(driver.unblock())
    return driver


@spec("I32")
@pytest.mark.parametrize(
    ("outcome", "status"),
    [(None, JobStatus.RUNNING), (JobStatus.FAILED, JobStatus.FAILED)],
)
def test_a_job_that_went_on_before_its_parent_is_noticed(
    outcome: JobStatus | None, status: JobStatus
) -> None:
    driver = went_on()

    [violation] = found(driver, parent(status), edge(driver, outcome=outcome))

    assert (violation.invariant, violation.job_id) == ("I32", driver.job.id)
    assert str(PARENT_ID) in violation.message


@spec("I32")
def test_an_edge_that_says_something_else_than_its_parent_is_noticed() -> None:
    driver = went_on()
    succeeded = edge(driver, outcome=JobStatus.SUCCEEDED)

    [violation] = found(driver, parent(JobStatus.FAILED), succeeded)

    assert "which is failed" in violation.message
    assert found(driver, parent(JobStatus.SUCCEEDED), succeeded) == []


class ParentEndsMeanwhile(RecordedStore):
    """A store in which a parent ends after the rows of the jobs were read and before the edges."""

    def __init__(self, child: Job, edge: Edge, ends_as: JobStatus) -> None:
        self._child = child
        super().__init__(self._with(JobStatus.RUNNING), edges=[edge], noted=(PARENT_ID,))
        self._ends_as = ends_as

    def _with(self, status: JobStatus) -> list[JobHistory]:
        return [JobHistory(job.id, job, ()) for job in (self._child, parent(status))]

    def edges_of(self, children: Sequence[JobId] | None = None) -> Iterator[Edge]:
        self._records = self._with(self._ends_as)
        return super().edges_of(children)


@spec("I32")
def test_a_parent_that_ends_while_the_store_is_verified_is_not_taken_for_one_that_has_not() -> None:
    driver = lives.waiting()
    succeeded = edge(driver, outcome=JobStatus.SUCCEEDED)

    lawful = ParentEndsMeanwhile(driver.job, succeeded, JobStatus.SUCCEEDED)
    assert list(check_across(lawful)) == []

    wrong = ParentEndsMeanwhile(driver.job, succeeded, JobStatus.FAILED)
    [violation] = check_across(wrong)
    assert (violation.invariant, "which is failed" in violation.message) == ("I32", True)


@spec("I32")
def test_a_job_that_runs_whatever_became_of_its_parent_may_follow_any_end() -> None:
    driver = went_on()

    assert not found(
        driver, parent(JobStatus.FAILED), edge(driver, needs=None, outcome=JobStatus.FAILED)
    )


@spec("I33", "FL5")
@pytest.mark.parametrize("outcome", [JobStatus.SUCCEEDED, JobStatus.FAILED])
def test_a_job_that_waits_for_parents_that_have_ended_is_noticed_unless_it_is_noted(
    outcome: JobStatus,
) -> None:
    driver = lives.waiting()
    marked = edge(driver, outcome=outcome)

    [violation] = found(driver, parent(outcome), marked)

    assert violation.invariant == "I33"
    assert found(driver, parent(outcome), marked, noted=(PARENT_ID,)) == []
    assert found(driver, parent(outcome), marked, noted=(driver.job.id,)) == []


@spec("I33", "FL4")
def test_a_parent_that_ended_without_marking_its_edge_is_noticed() -> None:
    driver = lives.waiting()

    [violation] = found(driver, parent(JobStatus.SUCCEEDED), edge(driver))

    assert "did not mark its edge" in violation.message
    outside = edge(driver, is_outside=True)
    assert found(driver, parent(JobStatus.SUCCEEDED), outside) == []
    assert found(driver, parent(JobStatus.RUNNING), edge(driver)) == []


@spec("I33", "FL6")
def test_a_job_that_waits_for_one_that_does_not_exist_is_noticed() -> None:
    driver = lives.waiting()
    gone = edge(driver, parent_id=JobId("01977420-dc00-7000-8000-00000000dead"), is_outside=True)

    [violation] = found(driver, parent(JobStatus.RUNNING), gone)

    assert violation.invariant == "I33"
    assert "does not exist" in violation.message


def projected(driver: Driver) -> list[tuple[EventType, JobStatus]]:
    events: list[Event] = list(as_documents_see_it(driver.events))
    return [(event.type, event.to_status) for event in events]


@spec("P5")
def test_for_the_documents_a_job_begins_when_its_parents_have_ended() -> None:
    driver = went_on()
    assert projected(lives.waiting()) == []
    assert projected(driver) == [(EventType.ENQUEUED, JobStatus.QUEUED)]

    for end in (JobStatus.CANCELLED, JobStatus.DEAD_LETTERED):
        ended = lives.waiting()
        ended.do(ended.cancel() if end is JobStatus.CANCELLED else ended.dead_letter())
        assert ended.job.status is end
        assert projected(ended) == []
        assert not list(check_record(JobHistory(ended.job.id, ended.job, ended.events)))
