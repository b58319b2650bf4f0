"""Rate keys: the rate of a kind, for each value of a key alone."""

import threading
from collections import Counter
from functools import partial

import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, QueueName, WorkerId
from tenure.core.instants import Duration, seconds
from tenure.core.job import Job
from tenure.core.kind_settings import KindChange
from tenure.core.rates import Rate, kind_meter, parse_rate
from tenure.core.vocabulary import EventCause
from tenure_conformance.harness import KIND, QUEUE, Kit, ids, race
from tenure_conformance.spec import spec

OTHER_QUEUE = QueueName("other")
OTHER_KIND = Kind("other")
ODD_KEYS = (" ", "/", "ключ", "a'b\"c\\", "%s", "NULL", "x" * 200, "\U0001f600", "{a,b}")


def rate(text: str, burst: int | None = None) -> Rate:
    return parse_rate("rate", text, burst)


def keys(jobs: list[Job]) -> list[str | None]:
    return [job.rate_key for job in jobs]


@spec("RL11", "RL1")
def test_the_rate_of_a_kind_counts_for_each_rate_key_alone(kit: Kit) -> None:
    jobs = [kit.enqueue(rate_key=key) for key in ("a", "a", "a", "b", "b", None, None, None)]
    kit.rate_of_kind(rate("1/s", 2))

    first = kit.claimed(limit=9)

    assert ids(first) == ids([jobs[n] for n in (0, 1, 3, 4, 5, 6)])
    assert kit.claimed(limit=9) == []
    kit.advance(seconds=0.999)
    assert kit.claimed(limit=9) == []
    kit.advance(seconds=0.001)
    assert ids(kit.claimed(limit=9)) == ids([jobs[7], jobs[2]])  # admitted just now [CK13]


@spec("RL11", "RL1")
def test_a_rate_key_counts_in_all_queues(kit: Kit) -> None:
    for queue in (QUEUE, OTHER_QUEUE):
        for _ in range(3):
            kit.enqueue(queue=queue, rate_key="a")
    kit.rate_of_kind(rate("1/s", 2))

    assert len(kit.claimed(limit=9, queues=(QUEUE, OTHER_QUEUE))) == 2
    assert kit.claimed(limit=9, queues=(OTHER_QUEUE,)) == []
    kit.advance(seconds=1)
    assert len(kit.claimed(limit=9, queues=(OTHER_QUEUE,))) == 1
    assert kit.claimed(limit=9) == []


@spec("RL11")
def test_rate_keys_of_other_kinds_and_namespaces_are_other_keys(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/d", 1))
    kit.rate_of_kind(rate("1/d", 1), OTHER_KIND)
    kit.store.settings.put_kind(Namespace("else"), KindChange(kind=KIND, rate=rate("1/d", 1)))
    kit.enqueue(rate_key="a")
    assert len(kit.claimed()) == 1
    kit.enqueue(rate_key="a")
    other = kit.enqueue(rate_key="a", kind=OTHER_KIND)
    elsewhere = kit.enqueue(rate_key="a", namespace=Namespace("else"))

    assert ids(kit.claimed(limit=9)) == ids([other])
    assert ids(kit.claimed(limit=9, namespace=Namespace("else"))) == ids([elsewhere])


@spec("RL11")
def test_without_a_rate_a_rate_key_holds_nothing_back(kit: Kit) -> None:
    jobs = [kit.enqueue(rate_key=key) for key in ("a", "a", "b", "a")]

    assert ids(kit.claimed(limit=3)) == ids(jobs[:3])
    assert ids(kit.claimed(limit=3)) == ids(jobs[3:])
    kit.rate_of_kind(rate("1/d", 1))
    kit.enqueue(rate_key="a")
    kit.enqueue(rate_key="a")
    assert len(kit.claimed(limit=3)) == 1
    kit.rate_of_kind(None)
    assert len(kit.claimed(limit=3)) == 1


@spec("RL11", "RL5")
def test_a_change_of_the_rate_is_true_of_every_key(kit: Kit) -> None:
    for key in ("a", "a", "a", "b", "b", "b"):
        kit.enqueue(rate_key=key)
    kit.rate_of_kind(rate("1/d", 1))
    assert sorted(map(str, keys(kit.claimed(limit=9)))) == ["a", "b"]

    kit.rate_of_kind(rate("1/s", 1))

    assert kit.claimed(limit=9) == []
    kit.advance(seconds=1)
    assert sorted(map(str, keys(kit.claimed(limit=9)))) == ["a", "b"]


@spec("RL11", "RL2")
def test_a_grant_of_a_rate_key_that_was_given_back_still_counts(kit: Kit) -> None:
    job = kit.enqueue(rate_key="a")
    kit.rate_of_kind(rate("1/s", 1))
    kit.release(kit.claimed()[0])

    assert kit.claimed() == []
    kit.advance(seconds=1)
    assert ids(kit.claimed()) == [job.id]


@spec("RL11", "RL3")
def test_a_rate_key_that_was_not_used_allows_one_burst(kit: Kit) -> None:
    kit.rate_of_kind(rate("10/s", 4))
    for _ in range(9):
        kit.enqueue(rate_key="a")
    kit.advance(seconds=3600)

    assert len(kit.claimed(limit=9)) == 4


@spec("RL11", "RL1")
def test_room_that_grew_without_claims_is_used(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/s", 3))
    for _ in range(9):
        kit.enqueue(rate_key="a")
    assert len(kit.claimed(limit=9)) == 3
    kit.advance(seconds=1)
    assert len(kit.claimed(limit=1)) == 1
    kit.advance(seconds=2)

    assert len(kit.claimed(limit=9)) == 2


@spec("RL11", "RL3")
def test_after_the_clock_was_set_back_a_rate_key_waits_for_one_interval_at_most(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/s", 2))
    jobs = [kit.enqueue(rate_key="a", concurrency_key=key) for key in (None, None, None, "x", "y")]
    assert ids(kit.claimed(limit=9)) == ids(jobs[:2])
    assert kit.claimed(limit=9) == []
    kit.step_back(seconds=86400)

    assert kit.claimed(limit=9) == []
    kit.advance(seconds=1)
    assert ids(kit.claimed(limit=9)) == ids(jobs[2:3])
    kit.step_back(seconds=86400)
    kit.claimed(limit=9)
    kit.advance(seconds=1)
    assert ids(kit.claimed(limit=9)) == ids(jobs[3:4])


@spec("RL11", "RL8")
def test_jobs_that_wait_for_their_rate_key_delay_no_others(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/d", 1))
    for _ in range(30):
        kit.enqueue(rate_key="a", priority=9)
    assert keys(kit.claimed()) == ["a"]
    free = [kit.enqueue(rate_key="b"), kit.enqueue(), kit.enqueue(kind=OTHER_KIND)]

    assert sorted(ids(kit.claimed(limit=3))) == sorted(ids(free))


@spec("RL11", "RL8")
def test_jobs_without_a_rate_key_that_wait_do_not_hold_up_those_with_one(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/d", 1))
    for key in ("x", "y", "z"):
        kit.enqueue(priority=9, concurrency_key=key)
    assert len(kit.claimed()) == 1
    keyed = kit.enqueue(rate_key="a")
    both = kit.enqueue(rate_key="b", concurrency_key="w")

    assert ids(kit.claimed(limit=1)) == ids([keyed])
    assert ids(kit.claimed(limit=1)) == ids([both])


@spec("RL11", "Z1")
def test_jobs_of_a_rate_key_are_granted_in_claim_order(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/s", 1))
    kit.enqueue(rate_key="a")
    kit.claimed()
    later = kit.enqueue(rate_key="a")
    urgent = kit.enqueue(rate_key="a", priority=5)
    delayed = kit.enqueue(rate_key="a", priority=9, delay_s=2)
    order = []
    for _ in range(3):
        kit.advance(seconds=1)
        order += ids(kit.claimed(limit=5))

    assert order == ids([urgent, delayed, later])


@spec("RL11", "RL9")
def test_an_empty_claim_is_told_when_the_first_rate_key_has_room(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/s", 1))
    for key in ("a", "b", "a", "b"):
        kit.enqueue(rate_key=key)
    kit.claimed(limit=1)
    kit.advance(seconds=0.25)
    kit.claimed(limit=1)

    held = kit.claim(limit=5).rate_limited

    assert held is not None
    assert held.wait_us == seconds(0.75)
    assert not held.is_all  # a job with another key may come


@spec("RL11", "RL9")
def test_a_kind_whose_other_jobs_wait_is_still_asked_for_jobs_with_rate_keys(kit: Kit) -> None:
    kit.enqueue(rate_key="a")
    kit.rate_of_kind(rate("1/s", 1))
    kit.enqueue()
    kit.enqueue()
    assert len(kit.claimed(limit=5, kinds=(KIND,))) == 2

    held = kit.claim(limit=5, kinds=(KIND,)).rate_limited

    assert held is not None
    assert not held.is_all


@spec("RL14", "CK3")
def test_both_the_rate_key_and_the_concurrency_key_hold(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/s", 1))
    one = kit.enqueue(rate_key="a", concurrency_key="x")
    two = kit.enqueue(rate_key="a", concurrency_key="y")
    three = kit.enqueue(rate_key="b", concurrency_key="x")

    assert ids(kit.claimed(limit=9)) == ids([one])
    kit.advance(seconds=1)
    assert ids(kit.claimed(limit=9)) == ids([two])
    kit.complete(kit.reload(one))
    assert ids(kit.claimed(limit=9)) == ids([three])


@spec("RL14", "CK6")
def test_a_job_that_waits_for_its_rate_holds_up_those_behind_it_in_its_concurrency_key(
    kit: Kit,
) -> None:
    kit.rate_of_kind(rate("1/s", 1))
    kit.complete(kit.claimed_job(rate_key="a", concurrency_key="x"))
    held = kit.enqueue(rate_key="a", concurrency_key="x")
    behind = kit.enqueue(rate_key="b", concurrency_key="x")

    assert kit.claimed(limit=9) == []
    kit.advance(seconds=1)
    assert ids(kit.claimed(limit=9)) == ids([held])
    kit.complete(kit.reload(held))
    assert ids(kit.claimed(limit=9)) == ids([behind])


@spec("RL14")
def test_many_concurrency_keys_of_one_rate_key_are_granted_in_claim_order(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/s", 2))
    jobs = [kit.enqueue(rate_key="a", concurrency_key=str(number)) for number in range(6)]
    urgent = kit.enqueue(rate_key="a", concurrency_key="urgent", priority=1)
    order = ids(kit.claimed(limit=9))
    for _ in range(5):
        kit.advance(seconds=1)
        order += ids(kit.claimed(limit=9))

    assert order == ids([urgent, *jobs])


@spec("RL14")
def test_a_turn_that_a_full_concurrency_key_gives_up_goes_to_the_next_job(kit: Kit) -> None:
    """The key has a turn in each of two queues, and room for one job."""
    kit.rate_of_kind(rate("1/s", 5))
    first = kit.enqueue(rate_key="a", concurrency_key="x", priority=2)
    kit.enqueue(rate_key="b", concurrency_key="x", priority=1, queue=OTHER_QUEUE)
    other = kit.enqueue(rate_key="b", concurrency_key="y", queue=OTHER_QUEUE)
    both = (QUEUE, OTHER_QUEUE)

    granted = ids(kit.claimed(limit=9, queues=both)) + ids(kit.claimed(limit=9, queues=both))

    assert granted == ids([first, other])


@spec("RL11")
def test_a_cancelled_job_gives_its_turn_to_the_next_one_of_its_rate_key(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/s", 1))
    kit.enqueue(rate_key="a")
    kit.claimed()
    first, second = kit.enqueue(rate_key="a"), kit.enqueue(rate_key="a")
    assert kit.claimed(limit=9) == []
    kit.advance(seconds=1)
    kit.cancel(first)

    assert ids(kit.claimed(limit=9)) == ids([second])


@spec("RL11", "EX2")
def test_an_expired_job_holds_up_no_other_job_of_its_rate_key(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/s", 1))
    kit.enqueue(rate_key="a")
    kit.claimed()
    kit.enqueue(rate_key="a", priority=1, expires_us=seconds(0.5))
    lasting = kit.enqueue(rate_key="a")
    assert kit.claimed(limit=9) == []
    kit.advance(seconds=1)

    assert ids(kit.claimed(limit=9)) == ids([lasting])


@spec("RL11")
@pytest.mark.parametrize("cause", [EventCause.REDRIVE, EventCause.RERUN])
def test_a_job_that_is_made_from_another_one_has_its_rate_key(kit: Kit, cause: EventCause) -> None:
    kit.rate_of_kind(rate("1/s", 1))
    done = kit.running_job(rate_key="a")
    kit.complete(done)

    made = kit.redrive(done, cause=cause).job

    assert made is not None
    assert made.rate_key == "a"
    assert kit.claimed() == []


@spec("RL11")
@pytest.mark.parametrize("key", ODD_KEYS)
def test_a_rate_key_may_have_any_characters(kit: Kit, key: str) -> None:
    kit.rate_of_kind(rate("1/s", 1))
    jobs = [kit.enqueue(rate_key=key, concurrency_key=each) for each in (None, key)]
    other = kit.enqueue(rate_key=key[:-1] + "z")

    assert ids(kit.claimed(limit=9)) == ids([jobs[0], other])
    kit.advance(seconds=1)
    assert ids(kit.claimed(limit=9)) == ids([jobs[1]])
    assert kit.reload(jobs[0]).rate_key == key


@spec("RL13")
def test_what_is_kept_of_a_rate_key_is_removed_once_it_has_a_whole_burst(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/s", 2))
    for key in ("a", "a", "b"):
        kit.enqueue(rate_key=key)
    assert len(kit.claimed(limit=9)) == 3
    kit.advance(seconds=1.5)

    assert _forget(kit) == 1  # of b; a has used one of two
    kit.enqueue(rate_key="a")
    kit.enqueue(rate_key="a")
    assert len(kit.claimed(limit=9)) == 1
    kit.advance(seconds=10)
    assert [_forget(kit, limit=1) for _ in range(2)] == [1, 0]


@spec("RL11", "RL2", "T26")
def test_a_purge_of_jobs_with_a_rate_key_gives_their_grants_not_back(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/d", 2))
    jobs = [kit.enqueue(rate_key="a", concurrency_key=key) for key in (None, "c", None, None)]
    for job in kit.claimed(limit=2):
        kit.start(job)
        kit.complete(job)
    kit.cancel(jobs[2])
    kit.advance(seconds=24 * 3600 - 1)

    assert (
        kit.store.upkeep.delete("jobs", older_than_us=Duration(seconds(3600)), limit=100).deleted
        == 3
    )

    assert kit.claimed(limit=9) == []
    kit.advance(seconds=1)
    assert ids(kit.claimed(limit=9)) == ids(jobs[3:])


def _forget(kit: Kit, limit: int = 10) -> int:
    return kit.store.upkeep.delete("keys", limit=limit).deleted


@spec("RL11", "RL10")
def test_where_a_rate_key_stands_can_be_read(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/s", 1))
    kit.enqueue(rate_key="a")
    kit.claimed()

    [of_a] = kit.store.settings.rates(DEFAULT_NAMESPACE, QUEUE, KIND, "a")
    [of_b] = kit.store.settings.rates(DEFAULT_NAMESPACE, QUEUE, KIND, "b")
    [of_others] = kit.store.settings.rates(DEFAULT_NAMESPACE, QUEUE, KIND)

    assert (of_a.meter, of_b.meter) == (kind_meter(KIND, "a"), kind_meter(KIND, "b"))
    assert of_a.wait_us == seconds(1)
    assert (of_b.wait_us, of_others.wait_us) == (0, 0)


@spec("RL11", "I30")
def test_the_grants_of_the_log_have_their_rate_keys(kit: Kit) -> None:
    since = kit.store.now()
    kit.advance(seconds=1)
    kit.enqueue(rate_key="a")
    kit.enqueue()
    kit.claimed(limit=2)

    assert [each.rate_key for each in kit.store.audit.grants(since=since)] == ["a", None]


@spec("RL11", "RL1")
def test_racing_claimers_never_exceed_the_rate_of_a_key(kit: Kit) -> None:
    """The clock of the kit does not advance: each key has exactly its burst."""
    kit.rate_of_kind(rate("1/d", 7))
    jobs = [kit.enqueue(rate_key=str(number % 4)) for number in range(60)]
    granted: Counter[str | None] = Counter()
    lock = threading.Lock()

    def work(coordinator: Coordinator, worker: WorkerId) -> None:
        for _ in range(20):
            answer = coordinator.claim(kit.claim_request(limit=3, worker=worker))
            with lock:
                granted.update(grant.job.rate_key for grant in answer.grants)

    race(*(partial(work, kit.rival(), WorkerId(f"racer-{n}")) for n in range(6)))

    assert granted == dict.fromkeys("0123", 7)
    assert sum(kit.reload(job).lease_id is not None for job in jobs) == 28


@spec("CK10", "Z6")
def test_a_delayed_job_of_a_rate_key_is_not_forgotten_when_the_clock_is_set_back(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/s", 9))
    delayed = kit.enqueue(rate_key="a", delay_s=10)
    kit.advance(seconds=11)
    urgent = kit.enqueue(rate_key="b", priority=5)
    assert ids(kit.claimed(limit=1)) == [urgent.id]
    kit.step_back(seconds=5)
    ready = kit.enqueue(rate_key="a")
    assert ids(kit.claimed(limit=10)) == [ready.id]
    assert kit.claimed(limit=10) == []
    kit.advance(seconds=6)

    assert ids(kit.claimed(limit=10)) == [delayed.id]
