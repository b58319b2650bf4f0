"""Flows that a handler makes: one per job and step, and only under a valid lease."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tenure.core.commands import EnqueueFlow, FlowMember, Parent, ParentAttempt
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    FlowId,
    JobId,
    handler_flow_id,
    handler_member_id,
)
from tenure.core.job import Job
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import CancelMode, Cause, ErrorClass, EventCause, JobStatus
from tenure.errors import InvalidInput
from tenure_conformance.harness import Kit, race
from tenure_conformance.spec import spec


def made_by(
    kit: Kit, parent: Job, steps: Mapping[str, Sequence[str]], *, step: str = "", **fields: Any
) -> EnqueueFlow:
    """The flow that the handler of `parent` makes: each job with the jobs that it waits for."""
    assert parent.lease_id is not None
    assert parent.principal is not None
    fields = {"actor": parent.principal, "namespace": parent.namespace} | fields
    ids = {name: handler_member_id(parent.id, step=step, name=name) for name in steps}
    return EnqueueFlow(
        flow_id=handler_flow_id(parent.id, step=step),
        name="by a handler",
        members=tuple(
            FlowMember(
                job=kit.new(job_id=ids[name], **fields),
                step=name,
                after=tuple(Parent(job_id=ids[each], step=each) for each in after),
            )
            for name, after in steps.items()
        ),
        handler=ParentAttempt(job_id=parent.id, lease_id=parent.lease_id, step=step),
    )


def stored(kit: Kit, job_id: JobId) -> Job:
    return kit.store.jobs.load([job_id]).jobs[job_id]


def names(kit: Kit, flow_id: FlowId) -> list[str]:
    found = kit.store.flows.load(DEFAULT_NAMESPACE, flow_id)
    return [] if found is None else sorted(step.step for step in found.steps)


@spec("FL13", "D11", "OB4")
def test_a_handlers_flow_names_its_job_as_the_origin_and_takes_over_its_ids(kit: Kit) -> None:
    parent = kit.running_job(correlation_id="order 7")

    assert kit.reply(made_by(kit, parent, {"a": [], "b": ["a"]})).is_ok

    for name, status in (("a", JobStatus.QUEUED), ("b", JobStatus.WAITING)):
        made = stored(kit, handler_member_id(parent.id, step="", name=name))
        assert (made.status, made.origin_id, made.origin_cause, made.correlation_id) == (
            status,
            parent.id,
            EventCause.FOLLOW_UP,
            "order 7",
        )


@spec("FL13", "D9")
def test_a_second_attempt_finds_the_flow_of_the_first_even_if_it_asks_for_other_jobs(
    kit: Kit,
) -> None:
    first = kit.running_job()
    command = made_by(kit, first, {"a": [], "b": ["a"]})
    made = kit.reply(command)
    kit.fail(first, ErrorClass.TRANSIENT)
    kit.advance(seconds=3600)
    kit.claimed(limit=2)
    second = kit.reload(first)
    assert second.attempt == 2

    same = kit.reply(made_by(kit, second, {"a": [], "b": ["a"]}))
    other = kit.reply(made_by(kit, second, {"c": [], "b": ["c"]}))
    none_in_common = kit.reply(made_by(kit, second, {"d": []}))

    assert (made.replayed, same.replayed, other.replayed) == (False, True, True)
    assert none_in_common.replayed
    assert names(kit, command.flow_id) == ["a", "b"]


@spec("FL13")
def test_another_step_makes_another_flow(kit: Kit) -> None:
    parent = kit.running_job()

    for step in ("", "one", "two"):
        assert not kit.reply(made_by(kit, parent, {"a": []}, step=step)).replayed

    found = kit.store.flows.page(DEFAULT_NAMESPACE, before=None, limit=10)
    assert len(found) == 3


@spec("FL13", "D10", "R24")
def test_without_the_lease_no_flow_is_made(kit: Kit) -> None:
    parent = kit.running_job()
    command = made_by(kit, parent, {"a": []})
    kit.cancel(parent, mode=CancelMode.HARD)

    refused = kit.reply(command)

    assert refused.cause is Cause.JOB_CANCELLED
    assert names(kit, command.flow_id) == []


@spec("FL13", "D10")
def test_a_flow_decided_before_the_lease_ended_is_not_written_after_it(kit: Kit) -> None:
    parent = kit.running_job(lease_s=30)
    command = made_by(kit, parent, {"a": [], "b": ["a"]})
    slow = kit.interpose(lambda changes: kit.advance(seconds=31))

    answer = slow.execute(command)

    assert isinstance(answer, Reply)
    assert answer.cause is not None
    assert names(kit, command.flow_id) == []


@spec("FL13", "D8")
@pytest.mark.parametrize("wrong", ["flow_id", "job_id", "no handler", "its own"])
def test_ids_that_do_not_follow_from_the_job_are_refused(kit: Kit, wrong: str) -> None:
    parent = kit.running_job()
    command = made_by(kit, parent, {"a": []})
    [member] = command.members
    fields = {name: getattr(command, name) for name in command.__struct_fields__}
    match wrong:
        case "flow_id":
            fields["flow_id"] = FlowId(kit.new_id())
        case "job_id":
            job = kit.new(actor=parent.principal)
            fields["members"] = (FlowMember(job=job, step="a"),)
        case "no handler":
            fields["handler"] = None
        case _:
            fields |= {"handler": None, "flow_id": command.flow_id}
            fields["members"] = (FlowMember(job=kit.new(), step=member.step),)

    with pytest.raises(InvalidInput, match=r"follow|version 8"):
        kit.coordinator.execute(EnqueueFlow(**fields))

    assert names(kit, command.flow_id) == []


@spec("FL13")
def test_an_attempt_that_sends_its_flow_twice_at_once_makes_it_once(kit: Kit) -> None:
    coordinators = [kit.coordinator, kit.rival(), kit.rival()]
    for _ in range(3):
        parent = kit.running_job()
        command = made_by(kit, parent, {"a": [], "b": ["a"], "c": ["a", "b"]})

        answers = race(
            *(lambda each=each, command=command: each.execute(command) for each in coordinators)
        )

        replies = [answer for answer in answers if isinstance(answer, Reply)]
        assert [reply.cause for reply in replies] == [None, None, None]
        assert [reply.replayed for reply in replies].count(False) == 1
        assert names(kit, command.flow_id) == ["a", "b", "c"]
        kit.complete(parent)
        kit.cancel(stored(kit, handler_member_id(parent.id, step="", name="a")))


@spec("FL13", "FL10")
def test_a_flow_of_a_handler_is_redriven_like_any_other(kit: Kit) -> None:
    parent = kit.running_job()
    command = made_by(kit, parent, {"a": [], "b": ["a"]})
    kit.reply(command)
    kit.dead_letter(stored(kit, handler_member_id(parent.id, step="", name="a")))
    kit.settle()

    reply = kit.redrive_flow(command.flow_id)

    assert reply.redrive is not None
    assert reply.redrive.jobs == 2
    assert kit.reply(command).replayed, "a repeated attempt makes nothing"
    assert names(kit, command.flow_id) == ["a", "a", "b", "b"]


@spec("FL13", "FL5")
def test_a_job_can_wait_for_the_job_whose_handler_made_it(kit: Kit) -> None:
    parent = kit.running_job()
    command = made_by(kit, parent, {"a": []})
    [member] = command.members
    waits = FlowMember(
        job=member.job, step="a", after=(Parent(job_id=parent.id, step="its maker"),)
    )
    fields = {name: getattr(command, name) for name in command.__struct_fields__}
    kit.reply(EnqueueFlow(**fields | {"members": (waits,)}))
    assert stored(kit, member.job.job_id).status is JobStatus.WAITING

    kit.complete(parent)
    kit.store.flows.checks(limit=10)

    [found] = kit.store.flows.unblocked([member.job.job_id], limit=10).jobs
    assert (found.job_id, found.parent_id) == (JobId(member.job.job_id), None)
