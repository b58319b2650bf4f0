"""Lists are newest first by the time of enqueue, whatever an id says."""

from collections.abc import Callable

import pytest

from tenure.core.commands import Command
from tenure.core.ids import DEFAULT_NAMESPACE, FlowId, JobId, Kind, new_job_id
from tenure.core.job import Job
from tenure.core.policy import Compensation, DeadLetterJob, Policy
from tenure.core.views.job_search import FoundJobs, JobFilter
from tenure.core.vocabulary import CancelMode, ErrorClass, EventCause, JobStatus
from tenure_conformance.harness import KIND, QUEUE, Kit, ids, policy
from tenure_conformance.spec import spec
from tenure_conformance.store.test_dead_letter_jobs import UNREADABLE
from tenure_conformance.store.test_follow_ups import follow_up
from tenure_conformance.store.test_handler_flows import made_by

UNDO = Compensation(kind=KIND, queue=QUEUE, policy=Policy())
REPORT = DeadLetterJob(kind=Kind("report"), queue=QUEUE, policy=Policy())
LONG = 24 * 3600
LATER = 8 * 3600


def redriven(kit: Kit) -> Callable[[], Command]:
    job = kit.dead_letter_job()
    return lambda: kit.redriving(job, request_id="again")


def rerun(kit: Kit) -> Callable[[], Command]:
    job = kit.succeeded_job()
    return lambda: kit.redriving(job, request_id="again", cause=EventCause.RERUN)


def followed_up(kit: Kit) -> Callable[[], Command]:
    job = kit.running_job(policy=policy(lease_s=LONG, timeout_us=None))
    return lambda: follow_up(kit, job)


def flow_of_a_handler(kit: Kit) -> Callable[[], Command]:
    job = kit.running_job(policy=policy(lease_s=LONG, timeout_us=None))
    return lambda: made_by(kit, job, {"only": []})


def flow_redriven(kit: Kit) -> Callable[[], Command]:
    flow = kit.flow({"only": []})
    kit.dead_letter(flow["only"])
    flow_id = flow["only"].flow_id
    assert flow_id is not None
    return lambda: kit.redriving_flow(flow_id, request_id="again")


def compensated(kit: Kit) -> Callable[[], Command]:
    job = kit.running_job(policy=policy(lease_s=LONG, timeout_us=None, compensation=UNDO))
    return lambda: kit.cancellation(job, mode=CancelMode.HARD, request_id="again")


def reported(kit: Kit) -> Callable[[], Command]:
    job = kit.running_job(policy=policy(lease_s=LONG, timeout_us=None), on_dead_letter=REPORT)
    return lambda: kit.failure(job, ErrorClass.VALIDATION, error=UNREADABLE, request_id="again")


MADE = [redriven, rerun, followed_up, flow_of_a_handler, flow_redriven, compensated, reported]
"""Each makes a job whose id is derived from that of one that is there already."""


def id_of_now(kit: Kit) -> JobId:
    """An id that says the store's time, as clients make them."""
    return new_job_id(kit.now(), bytes.fromhex(kit.new_id().replace("-", ""))[6:])


def listed(kit: Kit, **wanted: object) -> list[Job]:
    return kit.store.views.jobs(JobFilter(namespace=DEFAULT_NAMESPACE, **wanted)).jobs  # type: ignore[arg-type]  # fields are named by the tests below


@spec("J11", "T27", "D9", "M1", "HK9")
@pytest.mark.parametrize("prepare", MADE)
def test_a_job_that_was_enqueued_last_is_the_first_of_every_list(
    kit: Kit, prepare: Callable[[Kit], Callable[[], Command]]
) -> None:
    make = prepare(kit)
    kit.advance(seconds=LATER)
    others = [
        kit.enqueue(job_id=id_of_now(kit)),
        kit.succeeded_job(job_id=id_of_now(kit), priority=9),
    ]
    kit.advance(seconds=LATER)
    there = set(ids(listed(kit)))

    kit.ask(make())
    kit.ask(make())

    first, *rest = listed(kit)
    assert [first.id] == [job.id for job in listed(kit) if job.id not in there]
    assert first.enqueued_at == kit.now()
    assert ids(rest)[:2] == sorted(ids(others), reverse=True)
    assert listed(kit, limit=1) == [first]
    assert listed(kit, before=first.id) == rest
    for wanted in (
        {"kind": first.kind},
        {"queue": first.queue},
        {"statuses": (JobStatus.QUEUED,)},
        {"statuses": tuple(JobStatus)},
        {"enqueued_since": first.enqueued_at},
    ):
        assert listed(kit, **wanted)[0] == first, wanted


@spec("J11")
def test_a_job_is_listed_by_when_it_was_enqueued_though_its_caller_chose_its_id(kit: Kit) -> None:
    chosen = JobId("ffffffff-ffff-4fff-8fff-ffffffffffff")
    first = kit.enqueue(job_id=chosen)
    kit.advance(seconds=60)
    second, third = kit.enqueue(), kit.enqueue()
    kit.advance(seconds=60)
    lowest = kit.enqueue(job_id=JobId("00000000-0000-4000-8000-000000000000"))

    assert ids(listed(kit)) == [lowest.id, third.id, second.id, chosen]
    assert ids(listed(kit, before=third.id)) == [second.id, chosen]
    assert ids(listed(kit, enqueued_until=second.enqueued_at)) == [first.id]
    assert ids(listed(kit, enqueued_since=second.enqueued_at, limit=2)) == [lowest.id, third.id]


@spec("J11")
def test_a_list_goes_on_at_the_time_of_an_id_whose_job_was_deleted(kit: Kit) -> None:
    old = kit.enqueue()
    kit.advance(seconds=60)
    gone = id_of_now(kit)
    kit.advance(seconds=60)
    kit.enqueue(job_id=id_of_now(kit))

    assert listed(kit, before=gone) == [old]


@spec("FL16")
def test_flows_are_listed_by_when_they_were_made(kit: Kit) -> None:
    parent = kit.running_job(policy=policy(lease_s=LONG, timeout_us=None))
    kit.advance(seconds=LATER)
    earlier = kit.flow({"only": []})["only"].flow_id
    kit.advance(seconds=LATER)
    kit.ask(made_by(kit, parent, {"only": []}))

    def shown(*, before: FlowId | None = None, id_prefix: str | None = None) -> list[FlowId]:
        found = kit.store.flows.page(
            DEFAULT_NAMESPACE, before=before, limit=10, id_prefix=id_prefix
        )
        return [each.flow.id for each in found]

    newest, *rest = shown()
    assert rest == [earlier]
    assert shown(before=newest) == rest
    assert shown(id_prefix=newest[:18]) == [newest]
    assert shown(id_prefix="ffffffff") == []


@spec("J11")
def test_the_newest_dead_letters_come_first(kit: Kit) -> None:
    letter = kit.dead_letter_job()
    kit.advance(seconds=LATER)
    other = kit.dead_letter_job(job_id=id_of_now(kit))
    kit.advance(seconds=LATER)
    made = kit.redrive(letter).job
    assert made is not None
    kit.dead_letter(made)

    def listed(*, resolved: bool | None = None) -> FoundJobs:
        return kit.store.views.jobs(
            JobFilter(
                namespace=DEFAULT_NAMESPACE, statuses=(JobStatus.DEAD_LETTERED,), resolved=resolved
            )
        )

    assert ids(listed().jobs) == [made.id, other.id, letter.id]
    assert ids(listed(resolved=False).jobs) == [made.id, other.id]
    assert listed(resolved=True).resolutions == kit.store.jobs.resolutions([letter.id])
