"""Flows through a server: the same calls and the same answers as on a store."""

import pytest
from msgspec.structs import replace

from tenure.core.commands import Cancel
from tenure.core.flow_rows import in_order
from tenure.core.ids import DEFAULT_NAMESPACE, FlowId, RequestId
from tenure.core.leases import LeaseRef
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause, JobStatus
from tenure.errors import InvalidInput
from tenure.protocol.requests import MAX_CANCELLED
from tenure_conformance.harness import CLIENT, WORKER
from tenure_conformance.spec import spec
from tenure_conformance.store.test_handler_flows import made_by
from tests.remote.over_http import RemoteKit
from tests.remote.script import new_job
from tests.remote.serving import ThreadedServer
from tests.remote.test_batches import playing

CANCEL_MANY = "POST /v1/jobs/cancel"


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
    page = store.flows.parents(
        LeaseRef(second.id, second.lease_id), second.principal or WORKER, after=-1
    )
    [listed] = store.flows.page(DEFAULT_NAMESPACE, before=None, limit=5)
    view = store.flows.load(DEFAULT_NAMESPACE, command.flow_id)

    assert [(each.step, each.outcome) for each in page.parents] == [("a", JobStatus.SUCCEEDED)]
    assert page.is_last
    assert (listed.flow.id, listed.is_live) == (command.flow_id, True)
    assert view is not None
    assert [(step.step, step.after) for step in view.steps] == [("a", ()), ("b", ("a",))]
    assert store.flows.load(DEFAULT_NAMESPACE, FlowId(kit.new_id())) is None


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
    view = kit.coordinator.store.flows.load(DEFAULT_NAMESPACE, command.flow_id)
    assert view is not None
    assert view.redrives == (first.redrive,)
    assert [(step.step, step.status.value) for step in in_order(view.current)] == [
        ("a", "queued"),
        ("b", "waiting"),
    ]
    assert kit.redrive_flow(FlowId(kit.new_id())).cause is Cause.UNKNOWN_JOB


@spec("FL14", "H90")
def test_many_jobs_of_a_flow_are_cancelled_with_few_requests(server: ThreadedServer) -> None:
    jobs = [new_job(number) for number in range(10, 10 + 2 * MAX_CANCELLED + 1)]
    with playing(server, lost=3) as (script, proxy):
        script.client.execute_many(jobs)
        before = len(proxy.answers)
        commands = [
            Cancel(job_id=each.job_id, actor=CLIENT, request_id=RequestId("r")) for each in jobs
        ]

        replies = script.client.execute_many(commands)

        assert proxy.answers[before:] == [CANCEL_MANY] * 4  # one answer was lost
        statuses = {each.job.status for each in replies if isinstance(each, Reply) and each.job}
        assert (len(replies), statuses) == (len(jobs), {JobStatus.CANCELLED})


@spec("H90")
def test_cancels_that_differ_or_expect_something_are_sent_alone(server: ThreadedServer) -> None:
    jobs = [new_job(number) for number in range(10, 14)]
    with playing(server) as (script, proxy):
        script.client.execute_many(jobs)
        before = len(proxy.answers)
        commands = [
            Cancel(job_id=each.job_id, actor=CLIENT, request_id=RequestId(f"r{number // 2}"))
            for number, each in enumerate(jobs)
        ]
        commands[2:] = [replace(each, expected_rev=7) for each in commands[2:]]

        replies = script.client.execute_many(commands)

        assert [each.cause for each in replies if isinstance(each, Reply)] == [
            *(None, None),
            *[Cause.REVISION_MISMATCH] * 2,
        ]
        assert [each.split("?")[0] for each in proxy.answers[before:]] == [
            CANCEL_MANY,
            *(f"POST /v1/jobs/{each.job_id}/cancel" for each in jobs[2:]),
        ]


@spec("FL13")
def test_a_handlers_flow_is_made_once_over_http(kit: RemoteKit) -> None:
    parent = kit.running_job()
    command = made_by(kit, parent, {"a": [], "b": ["a"]})

    replies = [kit.coordinator.execute(command) for _ in range(2)]

    assert [(reply.cause, reply.replayed) for reply in replies if isinstance(reply, Reply)] == [
        (None, False),
        (None, True),
    ]
    view = kit.coordinator.store.flows.load(DEFAULT_NAMESPACE, command.flow_id)
    assert view is not None
    assert {step.step: step.after for step in view.steps} == {"a": (), "b": ("a",)}
