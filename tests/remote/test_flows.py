"""Flows through a server: the same calls and the same answers as on a store."""

import pytest

from tenure.conformance.harness import WORKER
from tenure.conformance.spec import spec
from tenure.conformance.store.test_handler_flows import made_by
from tenure.core.flow_rows import in_order
from tenure.core.ids import DEFAULT_NAMESPACE, FlowId
from tenure.core.leases import HeldLease
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause, JobStatus
from tenure.errors import InvalidInput
from tests.remote.over_http import RemoteKit


@spec("FL7", "FL8", "FL9")
def test_a_flow_is_made_run_and_read_over_http(kit: RemoteKit) -> None:
    command = kit.new_flow({"a": [], "b": ["a"]})
    assert kit.reply(command).is_ok
    assert kit.reply(command).replayed
    store = kit.coordinator.store

    (first,) = kit.claimed()
    kit.complete(first, result=b'{"n": 1}')
    kit.settle()
    (second,) = kit.claimed()
    assert second.lease_id is not None
    page = store.load_parents(
        HeldLease(second.id, second.lease_id), second.principal or WORKER, after=-1
    )
    [listed] = store.list_flows(DEFAULT_NAMESPACE, before=None, limit=5)
    view = store.load_flow(DEFAULT_NAMESPACE, command.flow_id)

    assert [(each.step, each.outcome) for each in page.parents] == [("a", JobStatus.SUCCEEDED)]
    assert page.is_last
    assert (listed.flow.id, listed.is_live) == (command.flow_id, True)
    assert view is not None
    assert [(step.step, step.after) for step in view.steps] == [("a", ()), ("b", ("a",))]
    assert store.load_flow(DEFAULT_NAMESPACE, FlowId(kit.new_id())) is None


@spec("FL3", "FL8")
def test_a_flow_with_an_unknown_parent_is_refused_over_http(kit: RemoteKit) -> None:
    gone = kit.enqueue()
    command = kit.new_flow({"a": [gone]})
    [member] = command.members
    parent = type(member.after[0])(job_id=kit.new_id(), step="nobody")
    wrong = type(member)(job=member.job, step="a", after=(parent,))

    with pytest.raises(InvalidInput, match="there is no job"):
        kit.coordinator.execute(type(command)(flow_id=command.flow_id, name="x", members=(wrong,)))

    assert not kit.exists(member.job.job_id)


@spec("FL10", "FL11", "FL8")
def test_a_flow_is_redriven_over_http(kit: RemoteKit) -> None:
    command = kit.new_flow({"a": [], "b": ["a"]})
    kit.reply(command)
    early = kit.redrive_flow(command.flow_id)
    kit.dead_letter(kit.claimed()[0])
    kit.settle()

    first = kit.redrive_flow(command.flow_id, request_id="r")
    again = kit.redrive_flow(command.flow_id, request_id="r")

    assert (early.cause, first.cause, again.cause) == (Cause.NOT_FINISHED, None, None)
    assert first.redrive is not None
    assert (first.redrive.jobs, again.redrive, again.replayed) == (2, first.redrive, True)
    view = kit.coordinator.store.load_flow(DEFAULT_NAMESPACE, command.flow_id)
    assert view is not None
    assert view.redrives == (first.redrive,)
    assert [(step.step, step.status.value) for step in in_order(view.current)] == [
        ("a", "queued"),
        ("b", "waiting"),
    ]
    assert kit.redrive_flow(FlowId(kit.new_id())).cause is Cause.UNKNOWN_JOB


@spec("FL13")
def test_a_handlers_flow_is_made_once_over_http(kit: RemoteKit) -> None:
    parent = kit.running_job()
    command = made_by(kit, parent, {"a": [], "b": ["a"]})

    replies = [kit.coordinator.execute(command) for _ in range(2)]

    assert [(reply.cause, reply.replayed) for reply in replies if isinstance(reply, Reply)] == [
        (None, False),
        (None, True),
    ]
    view = kit.coordinator.store.load_flow(DEFAULT_NAMESPACE, command.flow_id)
    assert view is not None
    assert {step.step: step.after for step in view.steps} == {"a": (), "b": ("a",)}
