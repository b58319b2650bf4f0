"""Flows through a server: the same calls and the same answers as on a store."""

import pytest

from tenure.conformance.harness import WORKER
from tenure.conformance.spec import spec
from tenure.core.ids import DEFAULT_NAMESPACE, FlowId
from tenure.core.leases import HeldLease
from tenure.core.vocabulary import JobStatus
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
