"""Dedupe keys and job ids: what is the same work, what is the same request."""

from collections.abc import Callable

import pytest

from tenure.coordinator.batches import MAX_TRIES
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, QueueName
from tenure.core.job import Job
from tenure.core.vocabulary import Cause, JobStatus, OnLost
from tenure.ports import DedupeKey
from tenure_conformance.harness import ENDS, KIND, Kit, policy
from tenure_conformance.spec import spec


@spec("D5", "T1")
def test_a_key_held_by_a_live_job_answers_with_that_job(kit: Kit) -> None:
    holder = kit.enqueue(dedupe_key="k")
    command = kit.new(dedupe_key="k", payload=b'"other"')

    reply = kit.reply(command)

    assert reply.deduplicated
    assert reply.job == holder
    assert not kit.exists(command.job_id)
    assert kit.events(holder)[-1].seq == 1


@spec("D5")
def test_the_same_key_is_free_under_another_kind_or_namespace(kit: Kit) -> None:
    kit.enqueue(dedupe_key="k")

    assert not kit.reply(kit.new(dedupe_key="k", kind=Kind("other"))).deduplicated
    assert not kit.reply(kit.new(dedupe_key="k", namespace=Namespace("else"))).deduplicated
    assert kit.reply(kit.new(dedupe_key="k")).deduplicated


@spec("D5")
def test_a_key_is_held_across_the_queues_of_its_kind(kit: Kit) -> None:
    holder = kit.enqueue(dedupe_key="k")

    reply = kit.reply(kit.new(dedupe_key="k", queue=QueueName("another")))

    assert (reply.deduplicated, reply.job) == (True, holder)


@spec("D5")
@pytest.mark.parametrize("other", ["K", "k ", " k", "k\u0301", "ḱ", "k%", "k_"])
def test_keys_are_compared_character_by_character(kit: Kit, other: str) -> None:
    kit.enqueue(dedupe_key="k")

    assert not kit.reply(kit.new(dedupe_key=other)).deduplicated
    assert kit.reply(kit.new(dedupe_key=other)).deduplicated


@spec("D5")
def test_a_key_is_held_in_every_live_status(kit: Kit) -> None:
    claimed = kit.claimed_job(dedupe_key="claimed")
    running = kit.running_job(dedupe_key="running")
    stalled = kit.stalled_job(dedupe_key="stalled", policy=policy(lease_s=30, on_lost=OnLost.HOLD))

    for holder in (claimed, running, stalled):
        reply = kit.reply(kit.new(dedupe_key=holder.dedupe_key))
        assert reply.deduplicated
        assert reply.job is not None
        assert reply.job.id == holder.id


@spec("D2")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_job_that_ends_frees_its_key(kit: Kit, end: Callable[[Kit, Job], object]) -> None:
    ended = kit.running_job(dedupe_key="k")
    end(kit, ended)

    reply = kit.reply(kit.new(dedupe_key="k"))

    assert not reply.deduplicated
    assert reply.job is not None
    assert kit.reload(ended).status.is_terminal
    assert kit.holders(DedupeKey(DEFAULT_NAMESPACE, KIND, "k")) == {
        DedupeKey(DEFAULT_NAMESPACE, KIND, "k"): reply.job
    }


@spec("D2")
def test_a_retry_keeps_its_key(kit: Kit) -> None:
    job = kit.running_job(dedupe_key="k")
    kit.fail(job)
    assert kit.reload(job).status is JobStatus.QUEUED

    assert kit.reply(kit.new(dedupe_key="k")).deduplicated


@spec("D3")
def test_the_same_id_and_body_return_the_existing_job_and_write_nothing(kit: Kit) -> None:
    command = kit.new(payload=b"[1]", dedupe_key="k")
    first = kit.reply(command).job
    kit.advance(seconds=5)

    again = kit.reply(command)

    assert again.replayed
    assert not again.deduplicated
    assert again.job == first
    assert first is not None
    assert len(kit.events(first)) == 1


@spec("D3")
def test_the_same_id_is_replayed_after_the_job_has_moved_on(kit: Kit) -> None:
    command = kit.new()
    kit.reply(command)
    (job,) = kit.claimed()
    kit.complete(job)

    again = kit.reply(command)

    assert again.replayed
    assert again.job == kit.reload(job)


@spec("D3")
def test_the_same_id_with_another_body_is_refused(kit: Kit) -> None:
    job = kit.enqueue(payload=b"1")

    reply = kit.reply(kit.new(job_id=job.id, payload=b"2"))

    assert reply.cause is Cause.IDEMPOTENCY_KEY_REUSE
    assert kit.reload(job) == job


@spec("D3")
def test_the_id_is_checked_before_the_key(kit: Kit) -> None:
    command = kit.new(dedupe_key="k")
    ended = kit.reply(command).job
    assert ended is not None
    kit.cancel(ended)
    holder = kit.enqueue(dedupe_key="k")

    again = kit.reply(command)

    assert again.replayed
    assert again.job == kit.reload(ended)
    assert again.job != holder


def test_a_deduplicated_id_sent_again_after_the_holder_ended_creates_the_job(kit: Kit) -> None:
    holder = kit.enqueue(dedupe_key="k")
    command = kit.new(dedupe_key="k")
    assert kit.reply(command).deduplicated
    kit.cancel(holder)

    reply = kit.reply(command)

    assert not reply.deduplicated
    assert reply.job is not None
    assert reply.job.id == command.job_id


@spec("D5")
def test_many_enqueues_with_one_key_in_one_batch_make_one_job(kit: Kit) -> None:
    commands = [kit.new(dedupe_key="k") for _ in range(5 * MAX_TRIES)]

    replies = kit.coordinator.submit_many(commands).result()

    kept = {reply.job.id for reply in replies if reply.job is not None}  # type: ignore[union-attr]  # enqueues are answered by replies
    assert len(kept) == 1
    assert sum(kit.exists(command.job_id) for command in commands) == 1


def test_only_holders_of_the_requested_keys_are_found(kit: Kit) -> None:
    one, two = kit.enqueue(dedupe_key="1"), kit.running_job(dedupe_key="2", priority=1)
    kit.enqueue(dedupe_key="3")
    ended = kit.enqueue(dedupe_key="4")
    kit.cancel(ended)
    keys = [DedupeKey(DEFAULT_NAMESPACE, KIND, key) for key in ("1", "2", "4", "5")]

    assert kit.holders(*keys) == {keys[0]: one, keys[1]: two}
    assert kit.holders() == {}
