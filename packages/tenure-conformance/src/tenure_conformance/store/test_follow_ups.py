"""Jobs that a handler enqueues: one per parent, kind and step, and only under a valid lease."""

from typing import Any

import pytest

from tenure.core.commands import FollowUp, ParentAttempt
from tenure.core.ids import Actor, Kind, Namespace, follow_up_id
from tenure.core.job import Job, compensation_id
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import CancelMode, Cause, ErrorClass, EventCause, JobStatus
from tenure.errors import InvalidInput
from tenure_conformance.harness import CLIENT, KIND, WORKER, Kit, policy
from tenure_conformance.spec import spec


def follow_up(kit: Kit, parent: Job, *, step: str = "", **fields: Any) -> FollowUp:
    """What the handler of `parent` enqueues."""
    assert parent.lease_id is not None
    assert parent.principal is not None
    kind = fields.setdefault("kind", KIND)
    fields.setdefault("actor", parent.principal)
    fields.setdefault("job_id", follow_up_id(parent.id, kind=kind, step=step))
    plain = kit.new(**fields)
    named = {name: getattr(plain, name) for name in plain.__struct_fields__}
    attempt = ParentAttempt(job_id=parent.id, lease_id=parent.lease_id, step=step)
    return FollowUp(**named, parent=attempt)


@spec("D8", "D9")
def test_a_second_attempt_finds_the_follow_up_of_the_first(kit: Kit) -> None:
    first = kit.running_job()
    made = kit.reply(follow_up(kit, first, payload=b'"one"')).job
    kit.fail(first, ErrorClass.TRANSIENT)
    kit.advance(seconds=3600)
    kit.claimed(limit=2)
    second = kit.reload(first)

    again = kit.reply(follow_up(kit, second, payload=b'"two"'))

    assert (second.attempt, again.replayed) == (2, True)
    assert again.job is not None
    assert made is not None
    assert (again.job.id, again.job.payload) == (made.id, b'"one"')


@spec("D9")
def test_a_follow_up_that_has_ended_is_found_as_well(kit: Kit) -> None:
    parent = kit.running_job()
    made = kit.reply(follow_up(kit, parent)).job
    assert made is not None
    kit.cancel_hard(made)

    again = kit.reply(follow_up(kit, parent))

    assert again.replayed
    assert again.job == kit.reload(made)


@spec("D8")
def test_another_kind_or_step_makes_another_follow_up(kit: Kit) -> None:
    parent = kit.running_job()

    named = [("a", ""), ("b", ""), ("a", "1"), ("a", "2"), ("a:b", "c"), ("a", "b:c")]
    made = [
        kit.reply(follow_up(kit, parent, kind=Kind(kind), step=step)).job for kind, step in named
    ]

    assert len({job.id for job in made if job is not None}) == len(named)


@spec("D8", "J3")
def test_derived_ids_cannot_be_chosen_for_other_jobs(kit: Kit) -> None:
    parent = kit.running_job(policy=policy(lease_s=30))

    with pytest.raises(InvalidInput, match="does not follow"):
        kit.ask(follow_up(kit, parent, job_id=compensation_id(parent.id)))
    with pytest.raises(InvalidInput, match="version 8"):
        kit.ask(kit.new(job_id=follow_up_id(parent.id, kind=KIND, step="")))


@spec("D11")
def test_a_follow_up_names_its_parent(kit: Kit) -> None:
    parent = kit.running_job()

    made = kit.reply(follow_up(kit, parent)).job

    assert made is not None
    assert (made.origin_id, made.origin_cause) == (parent.id, EventCause.FOLLOW_UP)
    [born] = kit.events(made)
    assert (born.cause, born.actor) == (EventCause.FOLLOW_UP, parent.principal)


def _expires(kit: Kit, parent: Job) -> None:
    kit.advance_to(parent.due_at)


def _expires_and_is_swept(kit: Kit, parent: Job) -> None:
    kit.advance_to(parent.due_at)
    kit.sweep(parent)


def _goes_to_another(kit: Kit, parent: Job) -> None:
    _expires_and_is_swept(kit, parent)
    kit.advance(seconds=60)
    kit.claimed()


def _ends(kit: Kit, parent: Job) -> None:
    kit.complete(parent)


def _is_cancelled(kit: Kit, parent: Job) -> None:
    kit.cancel(parent, mode=CancelMode.HARD)


def _loses_the_epoch(kit: Kit, parent: Job) -> None:
    kit.store.raise_epoch()


@spec("D10", "R24")
@pytest.mark.parametrize(
    ("lose", "cause"),
    [
        (_expires, Cause.LEASE_EXPIRED),
        (_expires_and_is_swept, Cause.LEASE_EXPIRED),
        (_goes_to_another, Cause.SUPERSEDED),
        (_ends, Cause.LEASE_SETTLED),
        (_is_cancelled, Cause.JOB_CANCELLED),
        (_loses_the_epoch, Cause.EPOCH_CHANGED),
    ],
)
def test_an_attempt_without_a_lease_enqueues_nothing(kit: Kit, lose: Any, cause: Cause) -> None:
    parent = kit.running_job(lease_s=30)
    lose(kit, parent)
    command = follow_up(kit, parent)

    reply = kit.reply(command)

    assert (reply.cause, reply.job) == (cause, None)
    assert not kit.exists(command.job_id)


@spec("D10")
@pytest.mark.parametrize("actor", [CLIENT, Actor("worker:stranger")])
def test_a_follow_up_under_another_principals_lease_is_refused(kit: Kit, actor: Actor) -> None:
    parent = kit.running_job()

    reply = kit.reply(follow_up(kit, parent, actor=actor))

    assert reply.cause is Cause.INVALID_LEASE
    assert actor != WORKER


@spec("D10")
def test_a_follow_up_stays_in_the_namespace_of_its_parent(kit: Kit) -> None:
    parent = kit.running_job()

    reply = kit.reply(follow_up(kit, parent, namespace=Namespace("else")))

    assert reply.cause is Cause.UNKNOWN_JOB


@spec("D10")
def test_a_lease_that_ends_before_the_write_enqueues_nothing(kit: Kit) -> None:
    parent = kit.running_job(lease_s=30)
    command = follow_up(kit, parent)
    slow = kit.interpose(lambda changes: kit.advance_to(parent.due_at))

    reply = slow.execute(command)

    assert isinstance(reply, Reply)
    assert reply.cause is Cause.LEASE_EXPIRED
    assert not kit.exists(command.job_id)


@spec("D8")
def test_a_follow_up_is_an_ordinary_job_afterwards(kit: Kit) -> None:
    parent = kit.running_job()
    made = kit.reply(follow_up(kit, parent)).job
    assert made is not None

    [claimed] = kit.claimed()
    kit.start(claimed)
    kit.complete(claimed)

    assert claimed.id == made.id
    assert kit.reload(made).status is JobStatus.SUCCEEDED
