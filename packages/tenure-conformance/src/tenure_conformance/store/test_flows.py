"""Flows: edges get their parents' final statuses, and unchecked ones are found by the sweeper."""

import pytest
from msgspec.structs import replace

from tenure.coordinator.retention import DAY
from tenure.coordinator.sweeper import Sweeper
from tenure.core.commands import Unblock
from tenure.core.flow_rows import ParentPage
from tenure.core.ids import DEFAULT_NAMESPACE, FlowId, JobId, Namespace, QueueName
from tenure.core.instants import seconds
from tenure.core.job import Job
from tenure.core.leases import LeaseRef
from tenure.core.vocabulary import CancelMode, Cause, ErrorClass, EventCause, EventType, JobStatus
from tenure.errors import InvalidInput
from tenure_conformance.harness import CLIENT, KIND, OPERATOR, WORKER, Kit, ids, policy, race
from tenure_conformance.spec import spec

DIAMOND = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}


def run(kit: Kit, *, fail: bool = False) -> Job:
    """Run the next ready job to its end."""
    (job,) = kit.claimed()
    if fail:
        kit.fail(job, ErrorClass.PERMANENT)
    else:
        kit.complete(job, result=b"1")
    kit.settle()
    return kit.reload(job)


def statuses(kit: Kit, flow: dict[str, Job]) -> dict[str, str]:
    return {step: kit.reload(job).status.value for step, job in flow.items()}


@spec("FL1", "S11", "T1", "T28")
def test_a_job_waits_until_every_parent_has_succeeded(kit: Kit) -> None:
    flow = kit.flow(DIAMOND)
    assert flow["bottom"].status is JobStatus.WAITING
    assert (flow["bottom"].attempt, flow["bottom"].run_at) == (0, None)

    order = [run(kit).flow_step for _ in range(2)]
    assert order == ["top", "left"]
    assert statuses(kit, flow)["bottom"] == "waiting"
    run(kit)

    assert statuses(kit, flow)["bottom"] == "queued"
    assert kit.types(flow["bottom"]) == [EventType.ENQUEUED, EventType.READY]
    assert run(kit).flow_step == "bottom"


@spec("FL2", "T29")
def test_a_parent_that_ends_otherwise_cancels_those_that_need_its_success(kit: Kit) -> None:
    flow = kit.flow({**DIAMOND, "after all": ["bottom"]}, ended=["after all"])

    top = run(kit, fail=True)

    assert statuses(kit, flow) == {
        "top": "failed",
        "left": "cancelled",
        "right": "cancelled",
        "bottom": "cancelled",
        "after all": "queued",
    }
    end = kit.events(flow["left"])[-1]
    assert (end.type, end.cause) == (EventType.CANCELLED, EventCause.PARENT_ENDED)
    reason = kit.reload(flow["left"]).cancel_reason
    assert reason == f"its parent {top.id} ended as failed"


@spec("FL2")
def test_a_job_does_not_wait_for_the_others_once_one_parent_has_failed(kit: Kit) -> None:
    flow = kit.flow({"one": [], "two": [], "both": ["one", "two"]})

    run(kit, fail=True)

    assert statuses(kit, flow) == {"one": "failed", "two": "queued", "both": "cancelled"}


@spec("T17", "T21", "FL1")
def test_a_waiting_job_can_be_cancelled_or_dead_lettered(kit: Kit) -> None:
    flow = kit.flow({"first": [], "second": ["first"], "third": ["first"], "last": ["second"]})

    assert kit.cancel(flow["second"], mode=CancelMode.SOFT).is_ok
    assert kit.dead_letter(flow["third"]).is_ok
    kit.settle()

    assert statuses(kit, flow) == {
        "first": "queued",
        "second": "cancelled",
        "third": "dead_lettered",
        "last": "cancelled",
    }
    assert kit.requeue(flow["last"]).cause is Cause.JOB_FINISHED


@spec("FL1")
def test_a_waiting_job_is_not_claimed_requeued_or_swept(kit: Kit) -> None:
    flow = kit.flow({"first": [], "second": ["first"]})

    assert ids(kit.claimed(5)) == [flow["first"].id]
    kit.sweep(flow["second"])

    assert kit.requeue(flow["second"]).cause is Cause.NOT_HELD
    assert kit.reload(flow["second"]) == flow["second"]


@spec("FL3")
def test_a_repeated_flow_is_made_once(kit: Kit) -> None:
    command = kit.new_flow(DIAMOND)

    replies = [kit.reply(command), kit.reply(command)]

    assert [reply.replayed for reply in replies] == [False, True]
    other = kit.new_flow({"only": []}, job_id=command.job_id)
    assert kit.reply(other).cause is Cause.IDEMPOTENCY_KEY_REUSE


@spec("FL3")
def test_a_flow_whose_last_job_exists_leaves_nothing_behind(kit: Kit) -> None:
    there = kit.enqueue()
    command = kit.new_flow({"one": [], "two": ["one"]})
    last = command.members[1]
    clash = type(command)(
        flow_id=command.flow_id,
        name=command.name,
        members=(
            command.members[0],
            type(last)(job=kit.new(job_id=there.id), step=last.step, after=last.after),
        ),
    )

    assert kit.reply(clash).cause is Cause.IDEMPOTENCY_KEY_REUSE

    assert not kit.exists(command.job_id)
    assert list(kit.store.flows.edges([there.id])) == []


@spec("FL3")
def test_a_flow_with_the_id_of_another_is_refused(kit: Kit) -> None:
    flow = kit.flow({"one": []})
    command = kit.new_flow({"two": []})
    clash = type(command)(
        flow_id=FlowId(str(flow["one"].flow_id)), name="other", members=command.members
    )

    assert kit.reply(clash).cause is Cause.IDEMPOTENCY_KEY_REUSE

    assert not kit.exists(command.job_id)
    [listed] = kit.store.flows.page(DEFAULT_NAMESPACE, before=None, limit=10)
    assert listed.flow.name == "kit"


@spec("FL3", "H21")
def test_a_flow_with_the_id_of_one_in_another_namespace_is_refused(kit: Kit) -> None:
    flow = kit.flow({"one": []}, namespace=Namespace("elsewhere"))
    command = kit.new_flow({"two": []})
    clash = type(command)(
        flow_id=FlowId(str(flow["one"].flow_id)), name="other", members=command.members
    )

    assert kit.reply(clash).cause is Cause.IDEMPOTENCY_KEY_REUSE

    assert not kit.exists(command.job_id)


@spec("FL3", "FL13")
def test_a_store_says_which_of_many_flows_exist(kit: Kit) -> None:
    made = [
        FlowId(str(kit.flow({"one": []}, namespace=Namespace(name))["one"].flow_id))
        for name in ("default", "default", "elsewhere")
    ]
    unknown = FlowId(kit.new_id())

    assert kit.store.flows.existing([unknown, *made[1:]]) == {*made[1:]}
    assert kit.store.flows.existing([]) == frozenset()


@spec("FL3")
def test_an_unknown_parent_or_one_of_another_namespace_is_refused(kit: Kit) -> None:
    elsewhere = kit.enqueue(namespace=Namespace("other"))
    unknown = kit.new(job_id=kit.new_id())

    for parent in (elsewhere.id, unknown.job_id):
        command = kit.new_flow({"one": [], "two": ["one", elsewhere]})
        two = command.members[1]
        moved = [
            each if each.job_id != elsewhere.id else type(each)(job_id=parent, step="outside")
            for each in two.after
        ]
        members = (command.members[0], type(two)(job=two.job, step="two", after=tuple(moved)))
        refused = type(command)(flow_id=command.flow_id, name="kit", members=members)

        with pytest.raises(InvalidInput, match="there is no job"):
            kit.coordinator.execute(refused)

        assert not kit.exists(command.job_id)


@spec("FL3")
def test_a_job_that_waits_cannot_be_delayed_expire_or_have_a_parent_twice(kit: Kit) -> None:
    command = kit.new_flow({"one": [], "other": [], "two": ["one", "other"]})
    *parents, two = command.members
    one, other = two.after
    wrong = {
        "cannot have a delay": replace(two, job=replace(two.job, delay_us=seconds(60))),
        "cannot expire": replace(two, job=replace(two.job, expires_us=seconds(60))),
        "one job twice": replace(two, after=(one, one)),
        "two jobs of one name": replace(two, after=(one, replace(other, step=one.step))),
    }

    for what, member in wrong.items():
        with pytest.raises(InvalidInput, match=what):
            kit.coordinator.execute(replace(command, members=(*parents, member)))

    assert not kit.exists(command.job_id)


@spec("FL1", "FL5")
def test_parents_that_have_already_ended_count(kit: Kit) -> None:
    done = kit.succeeded_job()
    failed = kit.enqueue()
    kit.cancel(failed)

    flow = kit.flow(
        {"ready": [done], "given up": [done, failed], "anyway": [failed]}, ended=["anyway"]
    )

    assert statuses(kit, flow) == {"ready": "queued", "given up": "cancelled", "anyway": "queued"}


@spec("FL5")
def test_a_live_parent_outside_the_flow_is_noticed_by_the_sweeper(kit: Kit) -> None:
    outside = kit.running_job()
    flow = kit.flow({"waits": [outside]})
    kit.complete(outside)
    kit.settle()
    assert statuses(kit, flow) == {"waits": "waiting"}

    sweep(kit)

    assert statuses(kit, flow) == {"waits": "queued"}


@spec("FL5")
def test_a_flow_made_after_the_end_of_a_shared_parent_leaves_the_others_to_the_sweeper(
    kit: Kit,
) -> None:
    outside = kit.running_job()
    earlier = kit.flow({"waits": [outside]})
    sweep(kit)  # and forget the note that the flow left
    kit.complete(outside)

    later = kit.flow({"waits too": [outside]})

    assert statuses(kit, later) == {"waits too": "queued"}
    sweep(kit)
    assert statuses(kit, earlier) == {"waits": "queued"}


@spec("FL5")
def test_what_a_process_left_undone_when_it_died_is_done_by_a_sweeper(kit: Kit) -> None:
    flow = kit.flow({"first": [], "second": ["first"], "third": ["second"]}, ended=["third"])
    (first,) = kit.claimed()
    ends = kit.change(kit.failure(first, ErrorClass.PERMANENT))
    assert kit.save(ends) == {first.id}  # below the coordinator: no process checks the children
    assert statuses(kit, flow)["second"] == "waiting"
    assert kit.store.flows.checks(limit=1, of=[first.id])

    sweep(kit)
    sweep(kit)

    assert statuses(kit, flow) == {"first": "failed", "second": "cancelled", "third": "queued"}
    assert not kit.store.flows.checks(limit=1, of=[job.id for job in flow.values()])


def sweep(kit: Kit) -> None:
    """A whole pass of a sweeper that may sweep at once."""
    sweeper = Sweeper(kit.coordinator, monotonic=kit.monotonic)
    for _ in range(4):
        kit.advance(seconds=1)
        sweeper.sweep_once()
    kit.settle()


@spec("FL4")
def test_an_end_that_lost_its_race_marks_nothing(kit: Kit) -> None:
    flow = kit.flow({"first": [], "second": ["first"]})
    (first,) = kit.claimed()
    late = kit.change(kit.completion(first))
    kit.heartbeat(first)

    assert kit.save(late) == frozenset()

    [edge] = kit.store.flows.edges([flow["second"].id])
    assert edge.outcome is None
    assert not kit.store.flows.checks(limit=1, of=[first.id])


@spec("FL5", "T28")
def test_two_parents_that_end_at_the_same_time_make_one_ready_event(kit: Kit) -> None:
    rival = kit.rival()
    for _ in range(5):
        flow = kit.flow({"one": [], "two": [], "join": ["one", "two"]})
        one, two = kit.claimed(2)

        race(
            lambda one=one: kit.coordinator.execute(kit.completion(one)),  # type: ignore[misc]  # a default binds the loop's value
            lambda two=two: rival.execute(kit.completion(two)),  # type: ignore[misc]  # a default binds the loop's value
        )
        kit.settle()

        assert kit.types(flow["join"]) == [EventType.ENQUEUED, EventType.READY]
        (join,) = kit.claimed()
        kit.complete(join)


@spec("T28", "T29")
def test_a_second_unblock_changes_nothing(kit: Kit) -> None:
    flow = kit.flow({"first": [], "second": ["first"]})
    run(kit)
    queued = kit.reload(flow["second"])

    kit.coordinator.execute(Unblock(job_id=queued.id))

    assert kit.reload(queued) == queued


@spec("FL5")
def test_unblocked_names_each_job_once_and_no_more_than_the_limit(kit: Kit) -> None:
    steps: dict[str, list[str | Job]] = {"one": [], "two": []}
    steps |= {f"child {number}": ["one", "two"] for number in range(5)}
    flow = kit.flow(steps)
    parents = [flow["one"].id, flow["two"].id]
    for job in kit.claimed(2):
        kit.save(kit.change(kit.failure(job, ErrorClass.PERMANENT)))

    found = kit.store.flows.unblocked(parents, limit=100).jobs

    assert len(found) == len({each.job_id for each in found}) == 5
    assert {each.outcome for each in found} == {JobStatus.FAILED}
    part = kit.store.flows.unblocked(parents, limit=3)
    assert 1 <= len(part.jobs) <= 3
    assert part.hit_limit
    alone = kit.store.flows.unblocked([flow["child 1"].id], limit=100)
    assert ([each.job_id for each in alone.jobs], alone.hit_limit) == ([flow["child 1"].id], False)
    sweep(kit)


@spec("FL6", "T26", "G6")
def test_no_parent_is_purged_before_its_flow_has_ended(kit: Kit) -> None:
    outside = kit.succeeded_job()
    flow = kit.flow({"first": [outside], "second": ["first"], "third": ["second"]})
    run(kit)
    kit.advance(seconds=2 * 24 * 3600)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 0

    run(kit)
    run(kit)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 0, (
        "its last job has just ended"
    )
    kit.advance(seconds=2 * 24 * 3600)

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 4
    assert list(kit.store.flows.edges()) == []
    assert not any(kit.exists(job.id) for job in flow.values())


@spec("FL6", "G7")
def test_a_flow_is_kept_as_long_as_the_job_of_it_that_is_kept_longest(kit: Kit) -> None:
    flow = kit.flow({"first": [], "second": ["first"]}, policy=policy(keep_us=seconds(60)))
    other = kit.flow({"third": [flow["second"]]}, policy=policy(keep_us=seconds(3600)))
    for _ in range(3):
        run(kit)
    kit.advance(seconds=61)
    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 1
    assert not kit.exists(flow["first"].id)

    kit.advance(seconds=3600)

    assert kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100).deleted == 2
    assert not any(kit.exists(job.id) for job in (*flow.values(), *other.values()))
    kit.advance(seconds=24 * 3600)  # verify takes a younger job that is gone for a lost one


@spec("FL3", "FL6")
def test_a_parent_that_is_purged_while_a_flow_is_made_does_not_exist(kit: Kit) -> None:
    outside = kit.succeeded_job()
    kit.advance(seconds=2 * 24 * 3600)
    command = kit.new_flow({"waits": [outside]})
    slow = kit.interpose(lambda _: purge_all(kit))

    with pytest.raises(InvalidInput, match="there is no job"):
        slow.execute(command)

    assert not kit.exists(command.job_id)
    assert list(kit.store.flows.edges()) == []


def purge_all(kit: Kit) -> None:
    kit.store.upkeep.delete("jobs", older_than_us=DAY, limit=100)


@spec("FL1", "J3")
def test_edges_and_members_are_read_as_they_were_written(kit: Kit) -> None:
    outside = kit.succeeded_job(actor=CLIENT, kind=KIND)
    flow = kit.flow({'a "b"': [], "c": ['a "b"', outside]}, ended=["c"])

    one, two = kit.store.flows.edges([flow["c"].id])

    assert (one.position, one.parent_id, one.step, one.needs, one.is_outside) == (
        0,
        flow['a "b"'].id,
        'a "b"',
        None,
        False,
    )
    assert (two.parent_id, two.is_outside, two.outcome) == (outside.id, True, JobStatus.SUCCEEDED)
    assert list(kit.store.flows.edges()) == [one, two]
    assert flow["c"].flow_id == flow['a "b"'].flow_id
    assert list(kit.store.flows.edges([JobId(outside.id)])) == []


def test_many_edges_are_read_page_by_page(kit: Kit) -> None:
    steps: dict[str, list[str | Job]] = {f"{number}": [] for number in range(60)}
    steps |= {f"join {number}": [f"{each}" for each in range(60)] for number in range(40)}
    kit.flow(steps)

    edges = list(kit.store.flows.edges())

    assert len(edges) == 2400
    keys = [(edge.child_id, edge.position) for edge in edges]
    assert keys == sorted(keys)
    assert len(set(keys)) == 2400


@spec("FL7", "R24")
def test_parents_are_read_in_order_under_the_lease_of_their_child(kit: Kit) -> None:
    outside = kit.enqueue()
    kit.cancel(outside)
    steps: dict[str, list[str | Job]] = {f"{number:02}": [] for number in range(25)}
    flow = kit.flow({**steps, "join": [outside, *steps]}, ended=["join"])
    for number, job in enumerate(kit.claimed(25)):
        kit.complete(job, result=b"%d" % number)
    kit.settle()
    (join,) = kit.claimed()
    assert join.id == flow["join"].id
    assert join.lease_id is not None
    held = LeaseRef(join.id, join.lease_id)

    first = kit.store.flows.parents(held, WORKER, after=-1)
    rest = kit.store.flows.parents(held, WORKER, after=first.parents[-1].position)

    found = [*first.parents, *rest.parents]
    assert [each.position for each in found] == list(range(26))
    assert (first.is_last, rest.is_last) == (False, True)
    assert (found[0].outcome, found[0].result) == (JobStatus.CANCELLED, None)
    assert (found[3].step, found[3].outcome, found[3].result) == ("02", JobStatus.SUCCEEDED, b"2")
    stranger = kit.store.flows.parents(held, OPERATOR, after=-1)
    assert (stranger.parents, stranger.cause) == ((), Cause.INVALID_LEASE)
    kit.advance_to(join.due_at)
    assert kit.store.flows.parents(held, WORKER, after=-1).cause is Cause.LEASE_EXPIRED
    kit.sweep(join)
    assert kit.store.flows.parents(held, WORKER, after=-1).cause is Cause.LEASE_EXPIRED
    unknown = LeaseRef(kit.new_id(), held.lease_id)
    assert kit.store.flows.parents(unknown, WORKER, after=-1).cause is Cause.UNKNOWN_JOB


@spec("FL7")
def test_a_page_of_parents_has_at_most_half_a_megabyte_unless_one_is_larger(kit: Kit) -> None:
    sizes = (300_000, 300_000, 700_000, 10)
    steps: dict[str, list[str | Job]] = {f"{number}": [] for number in range(len(sizes))}
    kit.flow({**steps, "join": [*steps]})
    for job, size in zip(kit.claimed(4), sizes, strict=True):
        kit.complete(job, result=b'"' + b"x" * size + b'"')
    kit.settle()
    (join,) = kit.claimed()
    assert join.lease_id is not None
    held = LeaseRef(join.id, join.lease_id)

    pages: list[ParentPage] = []
    after = -1
    while not pages or not pages[-1].is_last:
        pages.append(kit.store.flows.parents(held, WORKER, after=after))
        after = pages[-1].parents[-1].position

    assert [[each.position for each in page.parents] for page in pages] == [[0], [1], [2], [3]]


@spec("FL9", "FL15")
def test_flows_are_listed_and_shown_with_their_jobs(kit: Kit) -> None:
    first = kit.flow({"a": [], "b": ["a"]})
    done = kit.succeeded_job(queue=QueueName("aside"))
    second = kit.flow({"only": [done]})
    ids_of = [first["a"].flow_id, second["only"].flow_id]
    kit.cancel(second["only"])
    kit.settle()

    listed = kit.store.flows.page(DEFAULT_NAMESPACE, before=None, limit=10)
    older = kit.store.flows.page(DEFAULT_NAMESPACE, before=listed[0].flow.id, limit=10)
    assert ids_of[0] is not None
    view = kit.store.flows.load(DEFAULT_NAMESPACE, ids_of[0])

    assert [each.flow.id for each in listed] == sorted(map(str, ids_of), reverse=True)
    assert {each.flow.id: (each.flow.jobs, each.is_live) for each in listed} == {
        ids_of[0]: (2, True),
        ids_of[1]: (1, False),
    }
    assert {each.flow.id: each.statuses for each in listed} == {
        ids_of[0]: {JobStatus.QUEUED: 1, JobStatus.WAITING: 1},
        ids_of[1]: {JobStatus.CANCELLED: 1},
    }
    assert [each.flow.id for each in older] == [listed[1].flow.id]
    assert view is not None
    assert view.flow.name == "kit"
    assert {(step.step, step.status, step.after) for step in view.steps} == {
        ("a", JobStatus.QUEUED, ()),
        ("b", JobStatus.WAITING, ("a",)),
    }
    assert kit.store.flows.load(Namespace("other"), ids_of[0]) is None
    assert kit.store.flows.load(DEFAULT_NAMESPACE, FlowId(kit.new_id())) is None
