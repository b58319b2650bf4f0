"""Redriving flows: what did not succeed is replaced, once, and joined to the results there are."""

from collections import Counter

import pytest

from tenure.coordinator.retention import DAY
from tenure.core import flow_rows
from tenure.core.flow_rows import FlowView
from tenure.core.ids import DEFAULT_NAMESPACE, FlowId, Kind, QueueName, replacement_id
from tenure.core.job import Job
from tenure.core.leases import LeaseRef
from tenure.core.policy import Compensation, DeadLetterJob
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import (
    Cause,
    ErrorClass,
    EventCause,
    EventType,
    JobStatus,
    ResolutionKind,
)
from tenure.verify import assert_holds
from tenure_conformance.harness import OPERATOR, Kit, policy, race
from tenure_conformance.spec import spec
from tenure_conformance.store.test_flows import DIAMOND, run, statuses

Q = QueueName("default")


def failed_diamond(kit: Kit) -> dict[str, Job]:
    """`left` has failed, so `bottom` was cancelled; `after all` ran anyway."""
    flow = kit.flow({**DIAMOND, "after all": ["bottom"]}, ended=["after all"])
    run(kit)
    run(kit, fail=True)
    run(kit)
    run(kit)
    assert statuses(kit, flow) == {
        "top": "succeeded",
        "left": "failed",
        "right": "succeeded",
        "bottom": "cancelled",
        "after all": "succeeded",
    }
    return flow


def view(kit: Kit, flow: dict[str, Job]) -> FlowView:
    flow_id = next(iter(flow.values())).flow_id
    assert flow_id is not None
    found = kit.store.flows.load(DEFAULT_NAMESPACE, flow_id)
    assert found is not None
    return found


def current(kit: Kit, flow: dict[str, Job]) -> dict[str, str]:
    return {step.step: step.status.value for step in view(kit, flow).current}


@spec("FL10", "T27", "I37")
def test_what_did_not_succeed_is_replaced_and_joined_to_the_results_there_are(kit: Kit) -> None:
    flow = failed_diamond(kit)
    before = [kit.reload(job) for job in flow.values()]

    reply = kit.redrive_flow(flow["top"].flow_id)

    assert reply.redrive is not None
    assert (reply.redrive.number, reply.redrive.jobs) == (1, 2)
    assert current(kit, flow) == {
        "top": "succeeded",
        "left": "queued",
        "right": "succeeded",
        "bottom": "waiting",
        "after all": "succeeded",
    }
    assert [kit.reload(job) for job in flow.values()] == before
    assert [run(kit).flow_step for _ in range(2)] == ["left", "bottom"]
    assert set(current(kit, flow).values()) == {"succeeded"}
    assert_holds(kit.store)


@spec("FL15", "FL10")
def test_a_list_of_flows_counts_replacements_instead_of_what_they_replace(kit: Kit) -> None:
    flow = failed_diamond(kit)
    [before] = kit.store.flows.page(DEFAULT_NAMESPACE, before=None, limit=10)

    kit.redrive_flow(flow["top"].flow_id)

    [after] = kit.store.flows.page(DEFAULT_NAMESPACE, before=None, limit=10)
    assert before.statuses == Counter(kit.reload(job).status for job in flow.values())
    assert after.statuses == {
        JobStatus.QUEUED: 1,
        JobStatus.WAITING: 1,
        JobStatus.SUCCEEDED: 3,
    }


@spec("FL15", "FL10")
def test_jobs_that_are_replaced_count_towards_the_limit_of_a_list(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_rows, "MAX_COUNTED_JOBS", 5)
    flow = failed_diamond(kit)
    [before] = kit.store.flows.page(DEFAULT_NAMESPACE, before=None, limit=10)

    kit.redrive_flow(flow["top"].flow_id)

    [after] = kit.store.flows.page(DEFAULT_NAMESPACE, before=None, limit=10)
    assert (before.flow.jobs, before.statuses is None) == (5, False)
    assert (after.flow.jobs, after.statuses) == (5, None)


@spec("FL10", "FL7")
def test_a_replacement_is_like_its_job_and_reads_the_results_of_its_parents(kit: Kit) -> None:
    flow = failed_diamond(kit)
    kit.redrive_flow(flow["top"].flow_id)
    run(kit)

    (made,) = kit.claimed()

    old = kit.reload(flow["bottom"])
    assert made.id == replacement_id(old.id)
    assert (made.payload, made.policy, made.kind, made.flow_step, made.flow_id) == (
        old.payload,
        old.policy,
        old.kind,
        "bottom",
        old.flow_id,
    )
    first = kit.events(made)[0]
    assert (first.type, first.cause, first.actor) == (
        EventType.ENQUEUED,
        EventCause.REDRIVE,
        OPERATOR,
    )
    assert (first.payload.origin_id, first.payload.parents) == (old.id, 2)
    assert made.lease_id is not None
    held = LeaseRef(made.id, made.lease_id)
    page = kit.store.flows.parents(held, made.principal or OPERATOR, after=-1)
    assert [(each.step, each.outcome, each.result) for each in page.parents] == [
        ("left", JobStatus.SUCCEEDED, b"1"),
        ("right", JobStatus.SUCCEEDED, b"1"),
    ]


@spec("FL11")
def test_a_repeated_redrive_makes_nothing_and_gets_the_recorded_answer(kit: Kit) -> None:
    flow = failed_diamond(kit)
    first = kit.redrive_flow(flow["top"].flow_id, request_id="once")
    run(kit, fail=True)

    again = kit.redrive_flow(flow["top"].flow_id, request_id="once")

    assert again.replayed
    assert again.redrive == first.redrive
    assert current(kit, flow)["left"] == "failed"
    assert len(view(kit, flow).redrives) == 1


@spec("FL10", "FL11")
def test_a_flow_can_be_redriven_until_it_succeeds(kit: Kit) -> None:
    flow = failed_diamond(kit)
    for number in range(1, 4):
        reply = kit.redrive_flow(flow["top"].flow_id)
        assert reply.redrive is not None
        assert (reply.redrive.number, reply.redrive.jobs) == (number, 2)
        run(kit, fail=True)

    kit.redrive_flow(flow["top"].flow_id)
    run(kit)
    run(kit)

    assert set(current(kit, flow).values()) == {"succeeded"}
    names = [step.step for step in view(kit, flow).steps]
    assert (names.count("left"), names.count("bottom"), names.count("top")) == (5, 5, 1)
    assert kit.redrive_flow(flow["top"].flow_id).cause is Cause.NOTHING_TO_REDRIVE
    assert_holds(kit.store)


@spec("FL10", "B17")
def test_a_dead_letter_of_a_redriven_flow_is_resolved_and_a_discarded_one_stays_so(
    kit: Kit,
) -> None:
    flow = kit.flow({"one": [], "two": []})
    kit.dead_letter(flow["one"])
    kit.dead_letter(flow["two"])
    kit.discard(flow["two"])

    assert kit.redrive_flow(flow["one"].flow_id).is_ok

    found = kit.store.jobs.resolutions([job.id for job in flow.values()])
    one, two = found[flow["one"].id], found[flow["two"].id]
    assert (one.kind, one.new_job_id) == (
        ResolutionKind.REDRIVEN,
        replacement_id(flow["one"].id),
    )
    assert two.kind is ResolutionKind.DISCARDED
    assert current(kit, flow) == {"one": "queued", "two": "queued"}


@spec("FL11")
def test_a_live_flow_an_unknown_one_and_one_that_succeeded_are_not_redriven(kit: Kit) -> None:
    live = kit.flow({"one": [], "two": []})
    kit.dead_letter(live["one"])

    assert kit.redrive_flow(live["one"].flow_id).cause is Cause.NOT_FINISHED
    assert kit.redrive_flow(FlowId(kit.new_id())).cause is Cause.UNKNOWN_JOB
    run(kit)
    kit.redrive_flow(live["one"].flow_id)
    run(kit)
    assert kit.redrive_flow(live["one"].flow_id).cause is Cause.NOTHING_TO_REDRIVE
    assert len(view(kit, live).redrives) == 1


@spec("FL11")
def test_a_job_whose_compensation_has_not_ended_is_not_replaced(kit: Kit) -> None:
    undo = Compensation(kind=kit.new().kind, queue=Q, policy=policy(lease_s=30))
    flow = kit.flow({"one": []}, policy=policy(lease_s=30, max_attempts=1, compensation=undo))
    (job,) = kit.claimed()
    kit.start(job)
    kit.fail(job, ErrorClass.TRANSIENT)

    reply = kit.redrive_flow(flow["one"].flow_id)

    assert reply.cause is Cause.COMPENSATION_PENDING
    assert reply.job is not None
    assert reply.job.id == flow["one"].id
    run(kit)
    assert kit.redrive_flow(flow["one"].flow_id).is_ok


@spec("FL11", "FL6")
def test_a_flow_whose_jobs_are_purged_is_not_redriven(kit: Kit) -> None:
    outside = kit.succeeded_job()
    flow = kit.flow({"one": [outside]})
    run(kit, fail=True)
    kit.advance(seconds=2 * 86_400)
    kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=1)

    reply = kit.redrive_flow(flow["one"].flow_id)

    assert reply.cause is Cause.JOBS_PURGED
    assert not kit.exists(replacement_id(flow["one"].id))


@spec("FL12")
@pytest.mark.parametrize("cause", [EventCause.REDRIVE, EventCause.RERUN])
def test_a_single_job_of_a_flow_is_neither_redriven_nor_run_again(
    kit: Kit, cause: EventCause
) -> None:
    flow = kit.flow({"one": [], "two": []})
    kit.dead_letter(flow["one"])
    run(kit)

    for job in flow.values():
        assert kit.redrive(job, cause=cause).cause is Cause.PART_OF_FLOW


@spec("FL10")
def test_of_several_who_redrive_a_flow_at_once_one_replaces_its_jobs(kit: Kit) -> None:
    flow = kit.flow({f"part {number}": [] for number in range(20)})
    for job in flow.values():
        kit.dead_letter(job)
    flow_id = flow["part 0"].flow_id
    assert flow_id is not None
    coordinators = [kit.coordinator, kit.rival(), kit.rival()]
    commands = [kit.redriving_flow(flow_id) for _ in coordinators]

    replies = race(
        *(
            lambda each=each, command=command: each.execute(command)
            for each, command in zip(coordinators, commands, strict=True)
        )
    )

    causes = [reply.cause for reply in replies if isinstance(reply, Reply)]
    assert sorted(causes, key=str) == [None, Cause.NOT_FINISHED, Cause.NOT_FINISHED]
    assert len(view(kit, flow).steps) == 40
    assert [each.jobs for each in view(kit, flow).redrives] == [20]
    assert_holds(kit.store)


@spec("FL10", "FL5")
def test_a_replacement_waits_for_a_live_parent_outside_the_flow(kit: Kit) -> None:
    outside = kit.running_job()
    flow = kit.flow({"one": [outside]})
    kit.cancel(flow["one"])

    kit.redrive_flow(flow["one"].flow_id)

    assert current(kit, flow) == {"one": "waiting"}
    kit.fail(outside, ErrorClass.PERMANENT)
    kit.settle()
    kit.store.flows.checks(limit=10)
    [edge] = kit.store.flows.edges([replacement_id(flow["one"].id)])
    assert (edge.is_outside, edge.outcome) == (True, JobStatus.FAILED)


@spec("FL6")
def test_a_redriven_flow_is_purged_with_its_redrives(kit: Kit) -> None:
    flow = failed_diamond(kit)
    kit.redrive_flow(flow["top"].flow_id)
    kit.advance(seconds=2 * 86_400)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 0, "it is live"
    run(kit)
    run(kit)
    kit.advance(seconds=2 * 86_400)

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 7

    flow_id = flow["top"].flow_id
    assert flow_id is not None
    assert kit.store.flows.load(DEFAULT_NAMESPACE, flow_id) is None
    assert kit.redrive_flow(flow_id).cause is Cause.UNKNOWN_JOB


@spec("FL6", "FL11", "HK11")
def test_a_reported_dead_letter_may_outlive_its_flow_which_is_then_not_redriven(kit: Kit) -> None:
    report = DeadLetterJob(kind=Kind("report"), queue=Q, policy=policy())
    flow = kit.flow({"a": [], "b": ["a"], "c": []}, on_dead_letter=report)
    kit.dead_letter(flow["a"])
    kit.settle()
    kit.cancel(flow["c"])
    kit.advance(seconds=2 * DAY / 1_000_000)

    kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100)

    assert [kit.exists(job.id) for job in flow.values()] == [True, False, False]
    assert kit.redrive_flow(flow["a"].flow_id).cause is Cause.JOBS_PURGED
    assert_holds(kit.store)
    [made] = kit.claimed()
    kit.complete(made)
    kit.advance(seconds=2 * DAY / 1_000_000)
    while kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted:
        pass
    assert kit.store.flows.page(DEFAULT_NAMESPACE, before=None, limit=10) == []
