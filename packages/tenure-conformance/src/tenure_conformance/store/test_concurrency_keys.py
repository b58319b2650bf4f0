"""Concurrency keys: how many jobs of one key run at a time, and which of them comes next."""

from collections.abc import Callable
from typing import Any

import pytest

from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, QueueName
from tenure.core.instants import seconds
from tenure.core.job import Job
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.rates import parse_rate
from tenure.core.vocabulary import EventType, JobStatus, OnLost
from tenure_conformance.harness import KIND, Kit, ids, policy
from tenure_conformance.spec import spec

OTHER_KIND = Kind("other")
OTHER_QUEUE, THIRD_QUEUE = QueueName("other"), QueueName("third")


@spec("CK1", "CK2", "CK3")
def test_one_job_of_a_key_is_granted_at_a_time(kit: Kit) -> None:
    first = kit.enqueue(concurrency_key="42")
    kit.enqueue(concurrency_key="42")
    another = kit.enqueue(concurrency_key="43")
    free = kit.enqueue()

    granted = kit.claimed(limit=10)

    assert ids(granted) == ids([first, another, free])
    assert kit.claimed(limit=10) == []


@spec("CK4")
def test_a_job_that_is_passed_by_stays_as_it_is_and_counts_as_ready(kit: Kit) -> None:
    kit.claimed_job(concurrency_key="42")
    held = kit.enqueue(concurrency_key="42")

    kit.claim(limit=10)

    assert kit.reload(held) == held
    assert kit.types(held) == [EventType.ENQUEUED]
    [measure] = kit.store.views.measure(queues=10, jobs=10).queues
    assert (measure.ready, measure.oldest_ready_at) == (1, held.run_at)


@spec("CK4", "CK6")
def test_when_a_job_succeeds_the_next_one_of_its_key_follows(kit: Kit) -> None:
    jobs = [kit.enqueue(concurrency_key="42") for _ in range(3)]

    for expected in jobs:
        [granted] = kit.claimed(limit=10)
        assert granted.id == expected.id
        kit.start(granted)
        kit.complete(granted)

    assert kit.claimed(limit=10) == []


@spec("CK4")
def test_every_end_of_an_attempt_frees_its_key(kit: Kit) -> None:
    ends: dict[str, Callable[[Job], object]] = {
        "fails": kit.fail,
        "is released": kit.release,
        "is cancelled": kit.cancel_hard,
        "is dead-lettered": kit.dead_letter,
    }

    for key, end in ends.items():
        running = kit.running_job(concurrency_key=key, priority=-1)
        held = kit.enqueue(concurrency_key=key, priority=1)

        end(running)

        assert ids(kit.claimed()) == [held.id], key


@spec("CK4", "CK3")
def test_a_lost_lease_holds_its_key_until_it_is_swept(kit: Kit) -> None:
    lost = kit.running_job(concurrency_key="42", policy=policy(lease_s=30))
    held = kit.enqueue(concurrency_key="42")
    kit.advance(seconds=31)

    before = kit.claimed(limit=10)
    kit.sweep(lost)

    assert before == []
    assert ids(kit.claimed(limit=10)) == ids([held])


@spec("CK4")
def test_a_job_in_backoff_does_not_hold_its_key(kit: Kit) -> None:
    failed = kit.running_job(concurrency_key="42")
    later = kit.enqueue(concurrency_key="42")

    kit.fail(failed)
    [granted] = kit.claimed(limit=10)
    kit.advance_to(kit.reload(failed).run_at)
    while_it_runs = kit.claimed(limit=10)
    kit.complete(granted)

    assert granted.id == later.id
    assert while_it_runs == []
    assert ids(kit.claimed(limit=10)) == [failed.id]


@spec("CK3", "T22")
def test_a_reclaim_is_held_to_the_limit_too(kit: Kit) -> None:
    stalled = kit.stalled_job(
        concurrency_key="42", policy=policy(lease_s=30, on_lost=OnLost.RECLAIM)
    )
    rival = kit.enqueue(concurrency_key="42", priority=1)
    kit.advance_to(stalled.run_at)

    first = kit.claimed(limit=10)
    kit.complete(first[0])
    second = kit.claimed(limit=10)

    assert kit.reload(stalled).status is JobStatus.CLAIMED
    assert (ids(first), ids(second)) == ([rival.id], [stalled.id])


@spec("CK1")
def test_keys_count_within_their_namespace_and_kind(kit: Kit) -> None:
    kit.claimed_job(concurrency_key="42")
    kit.enqueue(concurrency_key="42")
    other_kind = kit.enqueue(concurrency_key="42", kind=OTHER_KIND)
    elsewhere = kit.enqueue(concurrency_key="42", namespace=Namespace("else"))

    assert ids(kit.claimed(limit=10)) == [other_kind.id]
    assert ids(kit.claimed(limit=10, namespace=Namespace("else"))) == [elsewhere.id]


@spec("CK4")
def test_a_key_is_free_for_a_claim_of_another_queue(kit: Kit) -> None:
    kit.enqueue(concurrency_key="42", priority=5)
    kit.enqueue(concurrency_key="42", priority=4, queue=THIRD_QUEUE)
    wanted = kit.enqueue(concurrency_key="42", queue=OTHER_QUEUE)

    assert ids(kit.claimed(limit=10, queues=(OTHER_QUEUE,))) == [wanted.id]
    assert kit.claimed(limit=10) == []


@spec("CK6")
def test_a_later_arrival_does_not_overtake_unless_its_priority_is_higher(kit: Kit) -> None:
    running = kit.claimed_job(concurrency_key="42")
    early = kit.enqueue(concurrency_key="42")
    kit.claimed(limit=10)
    kit.complete(running)
    late = kit.enqueue(concurrency_key="42")
    urgent = kit.enqueue(concurrency_key="42", priority=5)

    order = []
    while granted := kit.claimed(limit=10):
        order += ids(granted)
        kit.complete(granted[0])

    assert order == ids([urgent, early, late])


@spec("CK6", "Z1", "Z6")
def test_ready_and_due_delayed_jobs_of_a_key_are_in_one_order(kit: Kit) -> None:
    running = kit.claimed_job(concurrency_key="42")
    low = kit.enqueue(concurrency_key="42", priority=-1)
    second = kit.enqueue(concurrency_key="42", delay_s=5)
    first = kit.enqueue(concurrency_key="42")
    urgent = kit.enqueue(concurrency_key="42", priority=1, delay_s=3)
    kit.advance(seconds=5)
    third = kit.enqueue(concurrency_key="42")  # has the `run_at` of the second
    kit.complete(running)

    order = []
    while granted := kit.claimed(limit=10):
        order += ids(granted)
        kit.complete(granted[0])

    assert order == ids([urgent, first, second, third, low])


@spec("CK6", "Z6")
def test_a_delayed_job_takes_its_place_when_it_is_due(kit: Kit) -> None:
    urgent = kit.enqueue(concurrency_key="42", priority=5, delay_s=10)
    first = kit.enqueue(concurrency_key="42")
    second = kit.enqueue(concurrency_key="42")

    granted = kit.claimed(limit=10)
    kit.advance(seconds=11)
    kit.complete(granted[0])

    assert ids(granted) == [first.id]
    assert ids(kit.claimed(limit=10)) == [urgent.id]
    assert kit.reload(second).status is JobStatus.QUEUED


@spec("CK4")
def test_a_cancelled_job_gives_its_turn_to_the_next(kit: Kit) -> None:
    first = kit.enqueue(concurrency_key="42")
    second = kit.enqueue(concurrency_key="42")
    kit.claimed(limit=1, kinds=(OTHER_KIND,))

    kit.cancel(first)

    assert ids(kit.claimed(limit=10)) == [second.id]


@spec("EX2", "CK4")
def test_an_expired_job_gives_its_turn_to_the_next_before_it_is_swept(kit: Kit) -> None:
    expired = [kit.enqueue(concurrency_key="42", expires_us=seconds(20)) for _ in range(2)]
    delayed = kit.enqueue(concurrency_key="42", expires_us=seconds(20), delay_s=5, priority=1)
    lasting = kit.enqueue(concurrency_key="42", priority=-1)
    _grant_to_another_key(kit)

    kit.advance(seconds=20)
    _grant_to_another_key(kit)
    _grant_to_another_key(kit)
    at_20 = kit.reload(delayed)
    kit.advance(seconds=5)

    assert ids(kit.claimed(limit=10)) == [lasting.id]
    assert [kit.reload(job) for job in (*expired, delayed)] == [*expired, at_20]


@spec("EX2", "CK4")
def test_an_expired_job_that_was_handed_back_gives_its_turn_to_the_next(kit: Kit) -> None:
    expired = kit.claimed_job(concurrency_key="42", expires_us=seconds(20))
    lasting = kit.enqueue(concurrency_key="42", priority=-1)
    kit.release(expired)
    _grant_to_another_key(kit)

    kit.advance(seconds=20)

    assert ids(kit.claimed(limit=10)) == [lasting.id]


def _grant_to_another_key(kit: Kit) -> None:
    """A claim that gives every key its turn, and whose one grant is not of the key 42."""
    other = kit.enqueue(concurrency_key="43", priority=9)
    [granted] = kit.claimed(limit=1)
    assert granted.id == other.id
    kit.complete(granted)


@spec("CK4")
def test_a_backlog_of_one_key_that_was_never_looked_at_holds_up_no_other_key(kit: Kit) -> None:
    kit.claimed_job(concurrency_key="42")
    kit.coordinator.submit_many([kit.new(concurrency_key="42") for _ in range(1100)]).result()
    free = kit.enqueue(concurrency_key="43")

    assert ids(kit.claimed(limit=10)) == [free.id]


@spec("CK3", "Z2", "Z3")
def test_pauses_and_limits_of_queues_hold_beside_keys(kit: Kit) -> None:
    kit.limit(2)
    jobs = [kit.enqueue(concurrency_key=key) for key in ("1", "1", "2", "3")]

    granted = kit.claimed(limit=10)
    kit.pause()
    kit.complete(granted[0])
    paused = kit.claimed(limit=10)
    kit.resume()

    assert ids(granted) == ids([jobs[0], jobs[2]])
    assert paused == []
    assert ids(kit.claimed(limit=10)) == [jobs[1].id]


@spec("CK3")
def test_many_keys_are_granted_as_far_as_they_have_room(kit: Kit) -> None:
    jobs = [kit.enqueue(concurrency_key=str(number % 7)) for number in range(50)]
    order: dict[str | None, list[str]] = {}

    while granted := kit.claimed(limit=3):
        assert len({job.concurrency_key for job in granted}) == len(granted)
        for job in granted:
            order.setdefault(job.concurrency_key, []).append(job.id)
            kit.complete(job)

    assert order == {str(key): ids(jobs[key::7]) for key in range(7)}


@spec("CK3", "Q1")
def test_a_repeated_claim_gets_the_same_job_of_a_key(kit: Kit) -> None:
    first = kit.enqueue(concurrency_key="42")
    kit.enqueue(concurrency_key="42")
    request = kit.claim_request(limit=1)

    answers = [kit.coordinator.claim(request) for _ in range(2)]

    assert [[grant.job_id for grant in answer.grants] for answer in answers] == [[first.id]] * 2


def _limit(kit: Kit, limit: int | None) -> KindSettings:
    change = KindChange(kind=KIND, concurrency_limit=limit)
    return kit.store.settings.put_kind(DEFAULT_NAMESPACE, change)


@spec("CK2", "CK3", "CK7")
def test_as_many_jobs_of_a_key_run_as_its_limit_says(kit: Kit) -> None:
    _limit(kit, 2)
    jobs = [kit.enqueue(concurrency_key="42") for _ in range(5)]

    first = kit.claimed(limit=10)
    kit.complete(first[0])
    second = kit.claimed(limit=10)

    assert ids(first) == ids(jobs[:2])
    assert ids(second) == [jobs[2].id]
    assert kit.claimed(limit=10) == []


@spec("CK7", "CK3")
def test_a_changed_limit_holds_from_the_next_claim_on(kit: Kit) -> None:
    jobs = [kit.enqueue(concurrency_key="42") for _ in range(6)]

    one = kit.claimed(limit=10)
    _limit(kit, 3)
    three = kit.claimed(limit=10)
    kit.advance(seconds=1)
    _limit(kit, 2)
    none = kit.claimed(limit=10)
    for job in [*one, *three]:
        kit.complete(job)
    two = kit.claimed(limit=10)
    _limit(kit, None)
    kit.complete(two[0])

    assert (len(one), len(three), len(none), len(two)) == (1, 2, 0, 2)
    assert kit.claimed(limit=10) == []
    kit.complete(two[1])
    assert ids(kit.claimed(limit=10)) == [jobs[5].id]


@spec("CK7")
def test_a_limit_keeps_its_instant_while_it_stays_the_same(kit: Kit) -> None:
    before = _limit(kit, 2)
    kit.advance(seconds=5)
    same = _limit(kit, 2)
    changed = _limit(kit, 3)
    kit.advance(seconds=5)
    removed = _limit(kit, None)

    assert before.concurrency_since == same.concurrency_since
    assert changed.concurrency_since == kit.now() - seconds(5)
    assert removed.concurrency_since == kit.now()
    assert kit.store.settings.kinds(DEFAULT_NAMESPACE) == [removed]


@spec("CK3", "RL1")
def test_rates_and_keys_hold_beside_each_other(kit: Kit) -> None:
    change = KindChange(kind=KIND, rate=parse_rate("rate", "1/s", 2), concurrency_limit=2)
    kit.store.settings.put_kind(DEFAULT_NAMESPACE, change)
    jobs = [kit.enqueue(concurrency_key=key) for key in ("1", "1", "1", "2")]

    first = kit.claimed(limit=10)
    kit.advance(seconds=1)
    second = kit.claimed(limit=10)

    assert ids(first) == ids(jobs[:2])
    assert ids(second) == [jobs[3].id]


@spec("CK10", "Z6")
def test_a_delayed_job_of_a_full_key_is_not_forgotten_when_the_clock_is_set_back(kit: Kit) -> None:
    kit.enqueue(concurrency_key="42")
    delayed = kit.enqueue(concurrency_key="42", delay_s=10)
    [running] = kit.claimed(limit=10)
    kit.advance(seconds=11)
    assert kit.claimed(limit=10) == []
    kit.step_back(seconds=5)
    kit.complete(running)
    assert kit.claimed(limit=10) == []
    kit.advance(seconds=6)

    assert ids(kit.claimed(limit=10)) == [delayed.id]


@spec("CK10", "Z6")
def test_nor_when_it_is_set_back_twice(kit: Kit) -> None:
    kit.enqueue(concurrency_key="42")
    delayed = [kit.enqueue(concurrency_key="42", delay_s=delay_s) for delay_s in (10, 20)]
    [running] = kit.claimed(limit=10)
    kit.advance(seconds=21)
    assert kit.claimed(limit=10) == []
    kit.step_back(seconds=6)
    assert kit.claimed(limit=10) == []
    kit.step_back(seconds=6)
    kit.complete(running)
    assert kit.claimed(limit=10) == []
    kit.advance(seconds=2)
    [first] = kit.claimed(limit=10)
    assert first.id == delayed[0].id
    kit.complete(first)
    assert kit.claimed(limit=10) == []
    kit.advance(seconds=10)

    assert ids(kit.claimed(limit=10)) == [delayed[1].id]


@spec("CK10", "Z6")
@pytest.mark.parametrize("key", [{"concurrency_key": "42"}, {"rate_key": "42"}])
def test_an_admitted_job_is_granted_though_the_clock_is_set_back(
    kit: Kit, key: dict[str, Any]
) -> None:
    if "rate_key" in key:
        kit.rate_of_kind(parse_rate("rate", "1000/s", 10))
    delayed = kit.enqueue(delay_s=10, **key)
    kit.advance(seconds=30)
    _grant_to_another_key(kit)
    kit.step_back(seconds=15)

    assert ids(kit.claimed(limit=10)) == [delayed.id]


@spec("Z6", "CK4", "CK10")
def test_an_admitted_job_that_is_not_due_any_longer_gives_its_place_until_it_is(kit: Kit) -> None:
    delayed = kit.enqueue(concurrency_key="42", delay_s=10, priority=1)
    kit.advance(seconds=11)
    _grant_to_another_key(kit)
    kit.step_back(seconds=5)
    ready = kit.enqueue(concurrency_key="42")

    first = kit.claimed(limit=10)
    kit.complete(first[0])
    early = kit.claimed(limit=10)
    kit.advance(seconds=4)

    assert ids(first) == [ready.id]
    assert early == []
    assert ids(kit.claimed(limit=10)) == [delayed.id]


@spec("CK10", "EX2")
def test_a_job_that_has_not_expired_any_longer_is_admitted_again(kit: Kit) -> None:
    job = kit.enqueue(concurrency_key="42", expires_us=seconds(20), delay_s=5)
    kit.advance(seconds=20)
    _grant_to_another_key(kit)
    kit.step_back(seconds=10)

    assert ids(kit.claimed(limit=10)) == [job.id]
