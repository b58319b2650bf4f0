"""Dedupe keys that stay taken for a time after their job has ended."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.commands import Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job
from tenure.core.policy import SHORTEST_RETENTION
from tenure.core.verdicts import Answer, Reply
from tenure.core.vocabulary import EventCause, JobStatus, OnLost
from tenure.errors import InvalidInput
from tenure.ports import DedupeKey
from tenure.verify import assert_holds
from tenure_conformance.harness import ENDS, Kit, ids, policy, race
from tenure_conformance.spec import spec

HOUR = 3600
RACERS = 4


def _ended(kit: Kit, key: str = "k", unique_for_s: float = HOUR) -> Job:
    """A job that has ended and whose key stays taken."""
    job = kit.running_job(dedupe_key=key, unique_for_us=seconds(unique_for_s))
    kit.complete(job)
    return kit.reload(job)


def _holders(kit: Kit, key: str = "k") -> list[Job]:
    held = kit.holders(DedupeKey(DEFAULT_NAMESPACE, kit.new().kind, key))
    return list(held.values())


@spec("D13")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_key_stays_taken_after_its_job_has_ended(
    kit: Kit, end: Callable[[Kit, Job], object]
) -> None:
    job = kit.running_job(dedupe_key="k", unique_for_us=seconds(HOUR), policy=policy(lease_s=30))
    kit.advance(seconds=20)
    end(kit, job)
    ended = kit.reload(job)
    kit.advance(seconds=HOUR - 1)
    command = kit.new(dedupe_key="k")

    reply = kit.reply(command)

    assert ended.finished_at is not None
    assert ended.key_free_at == Instant(ended.finished_at + seconds(HOUR))
    assert (reply.deduplicated, reply.job) == (True, ended)
    assert not kit.exists(command.job_id)
    assert _holders(kit) == [ended]
    assert_holds(kit.store)


@spec("D13", "D14")
def test_the_first_enqueue_after_the_time_makes_a_job(kit: Kit) -> None:
    ended = _ended(kit)
    history = kit.events(ended)
    kit.advance(seconds=HOUR)

    first = kit.reply(kit.new(dedupe_key="k"))
    second = kit.reply(kit.new(dedupe_key="k"))

    assert first.job is not None
    assert not first.deduplicated
    assert (second.deduplicated, second.job) == (True, first.job)
    assert _holders(kit) == [first.job]
    assert (kit.reload(ended), kit.events(ended)) == (ended, history)  # [I19]
    assert_holds(kit.store)


@spec("D2", "D13")
def test_who_takes_the_key_says_how_long_it_stays_taken(kit: Kit) -> None:
    _ended(kit)
    kit.advance(seconds=HOUR)
    plain = kit.running_job(dedupe_key="k")
    kit.complete(plain)
    longer = kit.running_job(dedupe_key="k", unique_for_us=seconds(2 * HOUR))
    kit.complete(longer)
    kit.advance(seconds=HOUR)

    reply = kit.reply(kit.new(dedupe_key="k"))

    assert reply.deduplicated
    assert reply.job == kit.reload(longer)
    assert_holds(kit.store)


@spec("D13")
def test_other_keys_kinds_and_jobs_without_it_are_free(kit: Kit) -> None:
    _ended(kit)

    assert not kit.reply(kit.new(dedupe_key="other")).deduplicated
    assert not kit.reply(kit.new()).deduplicated
    assert kit.reply(kit.new(dedupe_key="k")).deduplicated


@spec("D14")
def test_one_call_with_the_key_many_times_makes_one_job(kit: Kit) -> None:
    _ended(kit)
    kit.advance(seconds=HOUR)
    commands = [kit.new(dedupe_key="k") for _ in range(5)]
    commands += [kit.new() for _ in range(5)]

    replies = kit.coordinator.submit_many(commands).result()

    made = [each for each in replies if isinstance(each, Reply) and not each.deduplicated]
    assert len(made) == 1 + 5
    assert_holds(kit.store)


@spec("D14")
def test_racing_enqueues_after_the_time_make_one_job(kit: Kit) -> None:
    rivals = [kit.rival() for _ in range(RACERS)]
    keys = [f"k{number}" for number in range(10)]
    for key in keys:
        _ended(kit, key)
    kit.advance(seconds=HOUR)

    def enqueue_all(number: int) -> list[Reply]:
        ordered = keys if number % 2 else keys[::-1]
        commands = [kit.new(dedupe_key=key) for key in ordered]
        answers = rivals[number].submit_many(commands).result()
        return [each for each in answers if isinstance(each, Reply)]

    replies = [
        each for found in race(*(partial(enqueue_all, n) for n in range(RACERS))) for each in found
    ]

    made = [reply.job for reply in replies if not reply.deduplicated]
    jobs = [job for job in made if job is not None]
    assert sorted(job.dedupe_key or "" for job in jobs) == sorted(keys)
    assert {job.id for key in keys for job in _holders(kit, key)} == {*ids(jobs)}
    assert_holds(kit.store)


def _enqueue(coordinator: Coordinator, command: Enqueue) -> Answer:
    [answer] = coordinator.submit(command).result()
    return answer


@spec("D13", "D2")
def test_an_end_that_races_an_enqueue_leaves_no_gap(kit: Kit) -> None:
    rival = kit.rival()
    for number in range(8):
        key = f"k{number}"
        job = kit.running_job(dedupe_key=key, unique_for_us=seconds(HOUR))

        command = kit.new(dedupe_key=key)

        _, reply = race(partial(kit.complete, job), partial(_enqueue, rival, command))

        assert isinstance(reply, Reply)
        assert reply.deduplicated
        assert ids(_holders(kit, key)) == [job.id]


@spec("D15")
def test_a_purge_keeps_a_job_whose_key_stays_taken(kit: Kit) -> None:
    kept_s = SHORTEST_RETENTION / seconds(1)
    ended = _ended(kit, unique_for_s=2 * kept_s + 2)
    other = kit.running_job(dedupe_key="other")
    kit.complete(other)
    kit.advance(seconds=kept_s + 1)

    assert kit.store.upkeep.delete("jobs", older_than_us=SHORTEST_RETENTION, limit=10).deleted == 1
    assert kit.exists(ended.id)
    assert kit.reply(kit.new(dedupe_key="k")).deduplicated

    kit.advance(seconds=kept_s + 1)
    assert kit.store.upkeep.delete("jobs", older_than_us=SHORTEST_RETENTION, limit=10).deleted == 1
    assert not kit.exists(ended.id)
    assert _holders(kit) == []
    assert not kit.reply(kit.new(dedupe_key="k")).deduplicated


@spec("D16")
@pytest.mark.parametrize("cause", [EventCause.REDRIVE, EventCause.RERUN])
def test_a_redrive_takes_the_key_from_the_job_it_is_made_of(kit: Kit, cause: EventCause) -> None:
    job = kit.running_job(dedupe_key="k", unique_for_us=seconds(HOUR))
    kit.dead_letter(job)
    command = kit.redriving(job, cause=cause)

    made = kit.reply(command)
    again = kit.reply(command)

    assert made.job is not None
    assert not made.deduplicated
    assert (made.job.origin_id, made.job.unique_for_us) == (job.id, seconds(HOUR))
    assert (again.job, again.replayed) == (made.job, True)
    assert _holders(kit) == [made.job]
    assert_holds(kit.store)


@spec("D16")
def test_a_redrive_takes_no_key_from_another_job_before_its_time(kit: Kit) -> None:
    job = kit.running_job(dedupe_key="k")
    kit.dead_letter(job)
    holder = _ended(kit)
    command = kit.redriving(job)

    refused = kit.reply(command)
    kit.advance(seconds=HOUR)
    made = kit.reply(command)

    assert (refused.deduplicated, refused.job) == (True, holder)
    assert made.job is not None
    assert (made.deduplicated, made.job.origin_id) == (False, job.id)
    assert_holds(kit.store)


@spec("D13")
def test_a_job_that_is_requeued_still_holds_its_key(kit: Kit) -> None:
    job = kit.claimed_job(
        dedupe_key="k", unique_for_us=seconds(1), policy=policy(lease_s=30, on_lost=OnLost.REQUEUE)
    )
    kit.advance(seconds=31)

    assert kit.reply(kit.new(dedupe_key="k")).deduplicated
    assert kit.reload(job).status is not JobStatus.SUCCEEDED


@spec("D17")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"unique_for_us": seconds(HOUR)}, "without a key"),
        ({"dedupe_key": "k", "unique_for_us": 0}, "is 0"),
        ({"dedupe_key": "k", "unique_for_us": -1}, "outside 0 to 366 days"),
        ({"dedupe_key": "k", "unique_for_us": seconds(400 * 24 * HOUR)}, "400 days is outside"),
        ({"dedupe_key": "k", "unique_for_us": 1.5}, "float"),
    ],
)
def test_a_time_that_makes_no_sense_is_refused(kit: Kit, fields: dict[str, Any], said: str) -> None:
    command = kit.new(**fields)

    with pytest.raises(InvalidInput, match=said) as refused:
        kit.reply(command)

    assert refused.value.field == "unique_for_us"
    assert not kit.exists(command.job_id)
