"""What users note about a job: kept, inherited, found by one entry, and bounded."""

from typing import Any

import pytest

from tenure.core.ids import JobId, Kind, QueueName, replacement_id
from tenure.core.job import Job, compensation_id, dead_letter_job_id
from tenure.core.policy import Compensation, DeadLetterJob, Policy
from tenure.core.vocabulary import Cause, EventCause
from tenure.errors import InvalidInput
from tenure_conformance.harness import Kit
from tenure_conformance.spec import spec
from tenure_conformance.store.test_dead_letter_jobs import UNREADABLE
from tenure_conformance.store.test_searching import find, found

OTHER_QUEUE = QueueName("other")
META = {"tenant": "acme", "request": "r-17"}


@spec("J13", "J6")
@pytest.mark.parametrize(
    "wrong",
    [
        {str(number): "" for number in range(17)},
        {"": "x"},
        {"a=b": "x"},
        {"a:b": "x"},
        {"-a": "x"},
        {"a" * 65: "x"},
        {"é": "x"},
        {"a": "x" * 257},
        {"a": "x\x00"},
        {"a": "\ud800"},
        {"a": 1},
        {1: "a"},
        [("a", "x")],
    ],
)
def test_meta_beyond_the_limits_is_refused(kit: Kit, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="meta"):
        kit.reply(kit.new(meta=wrong))

    assert find(kit).jobs == []


@spec("J13")
def test_meta_is_in_the_row_the_log_and_the_grant(kit: Kit) -> None:
    longest = {f"{number:a<64}": "ü" * 256 for number in range(16)}
    job, full, empty = kit.enqueue(meta=META), kit.enqueue(meta=longest), kit.enqueue(meta={})

    assert [kit.reload(each).meta for each in (job, full, empty)] == [META, longest, None]
    assert [kit.events(each)[0].payload.meta for each in (job, empty)] == [META, None]
    assert [grant.job.meta for grant in kit.claim(3).grants] == [META, longest, None]


@spec("J13", "D3")
def test_a_repeated_enqueue_has_the_same_meta_in_any_order(kit: Kit) -> None:
    asked = kit.new(meta=META)
    kit.reply(asked)

    same = kit.new(job_id=asked.job_id, meta=dict(reversed(META.items())))
    other = kit.new(job_id=asked.job_id, meta={**META, "tenant": "other"})

    assert kit.reply(same).replayed
    assert kit.reply(other).cause is Cause.IDEMPOTENCY_KEY_REUSE


@spec("J14")
def test_jobs_that_come_from_a_job_have_its_meta(kit: Kit) -> None:
    undo = Compensation(kind=Kind("undo"), queue=OTHER_QUEUE, policy=Policy())
    report = DeadLetterJob(kind=Kind("report"), queue=OTHER_QUEUE, policy=Policy())
    dead = kit.running_job(meta=META, policy=Policy(compensation=undo), on_dead_letter=report)
    kit.fail(dead, error=UNREADABLE)
    in_flow = kit.flow({"a": []}, meta=META)["a"]
    kit.cancel(in_flow)
    kit.redrive_flow(in_flow.flow_id)
    rerun = kit.redrive(kit.succeeded_job(meta=META, priority=1), cause=EventCause.RERUN).job

    assert rerun is not None
    made = [compensation_id(dead.id), dead_letter_job_id(dead.id), replacement_id(in_flow.id)]
    assert [_job(kit, each).meta for each in (*made, rerun.id)] == [META] * 4


def _job(kit: Kit, job_id: JobId) -> Job:
    return kit.store.jobs.load([job_id]).jobs[job_id]


@spec("J12")
def test_jobs_are_found_by_one_entry_of_their_meta(kit: Kit) -> None:
    job = kit.enqueue(meta={"tenant": 'a"b\\=%_é', "request": "", "x.tenant": "acme"})
    kit.enqueue(meta={"tenant": '","request":"1'})
    kit.enqueue(payload=b'{"tenant":"acme"}')

    for entry in ('tenant=a"b\\=%_é', "request=", "x.tenant=acme"):
        assert found(kit, meta=entry) == [job.id]
    for entry in ("tenant=acme", 'tenant=A"b\\=%_é', "tenant=", "request=1", "enant=acme"):
        assert found(kit, meta=entry) == []


@spec("J12")
def test_a_search_by_meta_reads_a_bounded_number_of_jobs(kit: Kit) -> None:
    job = kit.enqueue(meta=META)
    for _ in range(3):
        kit.enqueue(meta={"tenant": "other"})

    first = find(kit, meta="tenant=acme", reads=3)
    second = find(kit, meta="tenant=acme", reads=3, before=first.next_before)

    assert (first.jobs, first.next_before is None) == ([], False)
    assert [each.id for each in second.jobs] == [job.id]


@spec("J12", "J6")
@pytest.mark.parametrize("wrong", ["tenant", "", "=x", "a b=x", "a=\x00", "a=" + "x" * 257])
def test_what_is_no_entry_is_refused(kit: Kit, wrong: str) -> None:
    with pytest.raises(InvalidInput, match="meta"):
        find(kit, meta=wrong)
