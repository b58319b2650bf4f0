"""The order of concurrency keys: a key gets its next place when one of its jobs has ended."""

import threading
from collections import Counter
from functools import partial

from tenure.coordinator.service import Coordinator
from tenure.core.concurrency import ADMISSION_LAPSES_US
from tenure.core.ids import DEFAULT_NAMESPACE, QueueName, WorkerId
from tenure.core.instants import seconds
from tenure.core.job import Job
from tenure.core.kind_settings import KindChange
from tenure.core.rates import parse_rate
from tenure.core.vocabulary import EventType, JobStatus
from tenure_conformance.harness import KIND, QUEUE, Kit, ids, race
from tenure_conformance.spec import spec

OTHER_QUEUE = QueueName("other")
RACERS = 3


def limit(kit: Kit, jobs: int) -> None:
    change = KindChange(kind=KIND, concurrency_limit=jobs)
    kit.store.settings.put_kind(DEFAULT_NAMESPACE, change)


def keys(jobs: list[Job]) -> str:
    return "".join(str(job.concurrency_key) for job in jobs)


def in_turn(kit: Kit, claims: int) -> str:
    """The keys of the jobs that N claims of one job receive; each job ends before the next
    claim."""
    found = ""
    for _ in range(claims):
        granted = kit.claimed()
        found += keys(granted)
        for job in granted:
            kit.complete(job)
        kit.advance(seconds=1)
    return found


@spec("CK13")
def test_keys_take_turns(kit: Kit) -> None:
    for key in "aaaabbc":
        kit.enqueue(concurrency_key=key)

    assert in_turn(kit, 7) == "abcabaa"


@spec("CK13")
def test_a_key_that_comes_later_is_served_before_the_others_have_two_more_turns(kit: Kit) -> None:
    for key in "aaaabbbb":
        kit.enqueue(concurrency_key=key)
    assert in_turn(kit, 3) == "aba"
    kit.enqueue(concurrency_key="c")

    assert "c" in in_turn(kit, 3)


@spec("CK13")
def test_a_key_has_no_more_jobs_in_line_than_its_limit(kit: Kit) -> None:
    limit(kit, 2)
    for key in "aaaaaab":
        kit.enqueue(concurrency_key=key)

    assert in_turn(kit, 7) == "aabaaaa"


@spec("CK13", "Z1")
def test_priorities_come_before_turns(kit: Kit) -> None:
    kit.enqueue(concurrency_key="a")
    urgent = kit.enqueue(concurrency_key="a", priority=5)
    also_urgent = kit.enqueue(concurrency_key="a", priority=4)
    other = kit.enqueue(concurrency_key="b")

    order = []
    for _ in range(3):
        [granted] = kit.claimed()
        order.append(granted.id)
        kit.complete(granted)
        kit.advance(seconds=1)

    assert order == ids([urgent, also_urgent, other])


@spec("CK13", "Z1")
def test_keys_and_other_jobs_are_in_the_order_in_which_they_could_be_granted(kit: Kit) -> None:
    kit.enqueue(concurrency_key="a")
    [first] = kit.claimed()
    kit.enqueue(concurrency_key="a")
    kit.advance(seconds=1)
    plain = kit.enqueue()
    kit.advance(seconds=1)
    kit.complete(first)

    assert ids(kit.claimed()) == ids([plain])
    assert keys(kit.claimed()) == "a"


@spec("CK13", "CK3")
def test_a_key_at_its_limit_is_skipped(kit: Kit) -> None:
    for key in "aabb":
        kit.enqueue(concurrency_key=key)
    [a] = kit.claimed()
    [b] = kit.claimed()
    assert kit.claimed() == []
    kit.complete(b)
    assert keys(kit.claimed()) == "b"
    kit.complete(a)

    assert keys(kit.claimed()) == "a"


@spec("CK13", "RL11")
def test_a_job_that_waits_for_its_rate_is_skipped(kit: Kit) -> None:
    kit.rate_of_kind(parse_rate("rate", "1/s", 1))
    for key, rate_key in (("a", "r"), ("a", "s"), ("b", "r"), ("c", "t")):
        kit.enqueue(concurrency_key=key, rate_key=rate_key)

    granted = kit.claimed(limit=9)
    for job in granted:
        kit.complete(job)
    later = kit.claimed(limit=9)
    kit.advance(seconds=1)

    assert (keys(granted), keys(later)) == ("ac", "a")
    assert keys(kit.claimed(limit=9)) == "b"


@spec("CK13")
def test_racing_claimers_give_every_key_its_turn(kit: Kit) -> None:
    """While a key waits, each of the other three has two grants, and each racer may be at one that
    it began before."""
    for key in "aaaaaaaaaabbbbbbbbccccccdddd":
        kit.enqueue(concurrency_key=key)
    kit.advance(seconds=1)
    left = threading.Semaphore(28)

    def work(coordinator: Coordinator, worker: WorkerId) -> None:
        while left.acquire(blocking=False):
            granted: list[Job] = []
            while not granted:
                answer = coordinator.claim(kit.claim_request(limit=1, worker=worker))
                granted = [grant.job for grant in answer.grants]
            kit.advance(seconds=1)
            kit.complete(granted[0])

    race(*(partial(work, kit.rival(), WorkerId(f"racer-{n}")) for n in range(RACERS)))

    tail = [tailed.event for tailed in kit.store.events.tail(after=None, limit=200)]
    jobs = kit.store.jobs.read([event.job_id for event in tail])
    granted: Counter[str] = Counter()
    at_release: dict[str, Counter[str]] = {}
    for event in tail:
        key = str(jobs[event.job_id].concurrency_key)
        if event.type is EventType.SUCCEEDED:
            at_release[key] = granted.copy()
        elif event.type is EventType.CLAIMED:
            waited = granted - at_release.get(key, Counter())
            assert waited.total() <= 3 * 2 + RACERS, (key, waited)
            granted[key] += 1
    assert granted == {"a": 10, "b": 8, "c": 6, "d": 4}


# --- Several queues ------------------------------------------------------------------------------


@spec("CK12")
def test_a_claim_admits_jobs_of_the_queues_that_it_asks_for_first(kit: Kit) -> None:
    kit.enqueue(concurrency_key="a", queue=OTHER_QUEUE, priority=9)
    mine = kit.enqueue(concurrency_key="a")

    assert ids(kit.claimed(queues=(QUEUE,))) == [mine.id]


@spec("CK12")
def test_a_job_that_no_worker_claims_loses_its_place_to_another_queue(kit: Kit) -> None:
    elsewhere = kit.enqueue(concurrency_key="a", queue=OTHER_QUEUE)
    assert kit.claimed(queues=(QUEUE,)) == []  # it has the place of the key now
    mine = kit.enqueue(concurrency_key="a")
    assert kit.claimed(queues=(QUEUE,)) == []
    kit.advance(microseconds=ADMISSION_LAPSES_US)

    [granted] = kit.claimed(queues=(QUEUE,))
    assert granted.id == mine.id
    assert kit.claimed(queues=(OTHER_QUEUE,)) == []
    kit.complete(granted)
    assert ids(kit.claimed(queues=(OTHER_QUEUE,))) == [elsewhere.id]


@spec("CK12", "CK10")
def test_a_job_gives_its_place_to_another_queue_if_its_workers_leave(kit: Kit) -> None:
    ahead = kit.enqueue(queue=OTHER_QUEUE, priority=9)
    kit.enqueue(concurrency_key="a", queue=OTHER_QUEUE)
    kit.advance(seconds=1)
    mine = kit.enqueue(concurrency_key="a")
    assert ids(kit.claimed(limit=1, queues=(OTHER_QUEUE,))) == [ahead.id]
    kit.advance(microseconds=ADMISSION_LAPSES_US + seconds(1))

    assert ids(kit.claimed(queues=(QUEUE,))) == [mine.id]


@spec("CK12", "Z2")
def test_a_job_gives_its_place_to_another_queue_if_its_own_is_paused_later(kit: Kit) -> None:
    both = (QUEUE, OTHER_QUEUE)
    ahead = kit.enqueue(queue=OTHER_QUEUE, priority=9)
    kit.enqueue(concurrency_key="a", queue=OTHER_QUEUE)
    kit.advance(seconds=1)
    mine = kit.enqueue(concurrency_key="a")
    assert ids(kit.claimed(limit=1, queues=both)) == [ahead.id]
    kit.store.settings.put_queue(DEFAULT_NAMESPACE, OTHER_QUEUE, paused=True, limit=None)
    kit.advance(microseconds=ADMISSION_LAPSES_US + seconds(1))

    assert ids(kit.claimed(queues=both)) == [mine.id]


@spec("CK13")
def test_setting_the_same_limit_again_changes_no_turn(kit: Kit) -> None:
    limit(kit, 1)
    ahead = kit.enqueue(priority=9)
    admitted = kit.enqueue(concurrency_key="a")
    assert ids(kit.claimed(limit=1)) == [ahead.id]
    kit.advance(seconds=1)
    later = kit.enqueue()
    kit.advance(seconds=1)
    limit(kit, 1)

    assert ids(kit.claimed(limit=2)) == [admitted.id, later.id]


@spec("CK12", "Z2")
def test_a_job_of_a_paused_queue_holds_its_key_for_a_while_only(kit: Kit) -> None:
    both = (QUEUE, OTHER_QUEUE)
    running = kit.enqueue(concurrency_key="b")
    paused = kit.enqueue(concurrency_key="a", queue=OTHER_QUEUE, priority=-1)
    assert ids(kit.claimed(limit=1, queues=both)) == [running.id]
    kit.store.settings.put_queue(DEFAULT_NAMESPACE, OTHER_QUEUE, paused=True, limit=None)
    mine = kit.enqueue(concurrency_key="a", priority=-2)
    kit.claimed(queues=both)
    kit.advance(microseconds=ADMISSION_LAPSES_US + seconds(1))

    [granted] = kit.claimed(queues=both)
    assert granted.id == mine.id
    kit.complete(granted)
    kit.store.settings.put_queue(DEFAULT_NAMESPACE, OTHER_QUEUE, paused=False, limit=None)
    assert ids(kit.claimed(queues=both)) == [paused.id]
    assert kit.reload(paused).status is JobStatus.CLAIMED
