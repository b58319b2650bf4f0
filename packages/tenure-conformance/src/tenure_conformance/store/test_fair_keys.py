"""Fair concurrency keys: those of one group take turns."""

import threading
from functools import partial

from tenure.coordinator.retention import KEEP_FAIR_KEYS
from tenure.coordinator.service import Coordinator
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName, WorkerId
from tenure.core.instants import Duration
from tenure.core.job import Job
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.rates import parse_rate
from tenure_conformance.harness import KIND, QUEUE, Kit, ids, race
from tenure_conformance.spec import spec

OTHER_QUEUE = QueueName("other")
OTHER_KIND = Kind("other")


def fair(kit: Kit, group: str = KIND, *, limit: int = 5, is_fair: bool = True) -> KindSettings:
    change = KindChange(kind=Kind(group), concurrency_limit=limit, fair=is_fair)
    return kit.store.settings.put_kind(DEFAULT_NAMESPACE, change)


def keys(jobs: list[Job]) -> str:
    return "".join(str(job.concurrency_key) for job in jobs)


def in_turn(kit: Kit, claims: int) -> str:
    """The keys of the jobs that so many claims of one job receive."""
    return "".join(keys(kit.claimed()) for _ in range(claims))


@spec("CK8")
def test_fair_keys_take_turns(kit: Kit) -> None:
    fair(kit)
    for key in "aaaabbc":
        kit.enqueue(concurrency_key=key)

    assert in_turn(kit, 7) == "abcabaa"


@spec("CK8")
def test_without_fair_the_oldest_job_comes_first(kit: Kit) -> None:
    fair(kit, is_fair=False)
    for key in "aaaabbc":
        kit.enqueue(concurrency_key=key)

    assert in_turn(kit, 7) == "aaaabbc"


@spec("CK8")
def test_one_claim_grants_at_most_one_job_of_each_fair_key(kit: Kit) -> None:
    fair(kit)
    for key in "aaabb":
        kit.enqueue(concurrency_key=key)

    assert [keys(kit.claimed(limit=9)) for _ in range(4)] == ["ab", "ab", "a", ""]


@spec("CK8")
def test_a_key_that_comes_later_is_served_before_the_others_have_their_next_turn(kit: Kit) -> None:
    fair(kit)
    for key in "aaabbb":
        kit.enqueue(concurrency_key=key)
    assert in_turn(kit, 3) == "aba"
    kit.enqueue(concurrency_key="c")

    assert in_turn(kit, 4) == "cbab"


@spec("CK8", "Z1")
def test_priorities_count_within_a_fair_key(kit: Kit) -> None:
    fair(kit)
    kit.enqueue(concurrency_key="a")
    urgent = kit.enqueue(concurrency_key="a", priority=5)
    kit.enqueue(concurrency_key="a", priority=4)
    kit.enqueue(concurrency_key="b")

    first = kit.claimed()
    assert ids(first) == ids([urgent])
    assert in_turn(kit, 1) == "b"


@spec("CK8", "Z1")
def test_a_fair_group_and_other_jobs_are_in_claim_order(kit: Kit) -> None:
    fair(kit)
    kit.enqueue(concurrency_key="a")
    assert in_turn(kit, 1) == "a"
    kit.enqueue(concurrency_key="a")
    plain = kit.enqueue(priority=1)
    kit.enqueue(concurrency_key="b")
    last = kit.enqueue(priority=-1)

    jobs = [kit.claimed()[0] for _ in range(4)]

    assert ids([jobs[0]]) == ids([plain])
    assert keys(jobs[1:3]) == "ba"
    assert ids([jobs[3]]) == ids([last])


@spec("CK8", "CK3")
def test_a_fair_key_at_its_limit_is_passed_by_and_keeps_its_place(kit: Kit) -> None:
    fair(kit, limit=1)
    for key in "aabb":
        kit.enqueue(concurrency_key=key)
    [a] = kit.claimed()
    [b] = kit.claimed()
    assert kit.claimed() == []
    kit.complete(b)
    assert in_turn(kit, 1) == "b"
    kit.complete(a)

    assert in_turn(kit, 1) == "a"


@spec("CK8")
def test_kinds_and_queues_of_one_group_share_their_turns(kit: Kit) -> None:
    fair(kit, "g")
    both = (QUEUE, OTHER_QUEUE)
    for _ in range(2):
        kit.enqueue(concurrency_key="a", concurrency_group="g")
    kit.enqueue(concurrency_key="b", concurrency_group="g", kind=OTHER_KIND)
    kit.enqueue(concurrency_key="c", concurrency_group="g", queue=OTHER_QUEUE)

    found = [keys(kit.claimed(queues=both)) for _ in range(4)]

    assert found == ["a", "b", "c", "a"]


@spec("CK8", "RL11")
def test_a_job_that_waits_for_its_rate_has_no_turn(kit: Kit) -> None:
    fair(kit)
    kit.rate_of_kind(parse_rate("rate", "1/s", 1))
    for key, rate_key in (("a", "r"), ("a", "s"), ("b", "r"), ("c", "t")):
        kit.enqueue(concurrency_key=key, rate_key=rate_key)

    assert in_turn(kit, 4) == "aca"
    kit.advance(seconds=1)
    assert in_turn(kit, 2) == "b"


@spec("CK8", "CK7")
def test_fair_is_a_setting_of_its_own(kit: Kit) -> None:
    fair(kit, limit=3)
    kept = kit.store.settings.put_kind(
        DEFAULT_NAMESPACE, KindChange(kind=KIND, concurrency_limit=4)
    )
    assert (kept.fair, kept.concurrency_limit) == (True, 4)
    kept = kit.store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=KIND, fair=False))
    assert (kept.fair, kept.concurrency_limit) == (False, 4)
    assert kit.factory.reopen().settings.kinds(DEFAULT_NAMESPACE) == [kept]


@spec("CK8", "CK7")
def test_a_change_of_fair_holds_from_the_next_claim_on(kit: Kit) -> None:
    fair(kit, is_fair=False)
    for key in "aaaaaabb":
        kit.enqueue(concurrency_key=key)
    assert in_turn(kit, 2) == "aa"
    fair(kit)
    assert in_turn(kit, 3) == "aba"
    fair(kit, limit=9, is_fair=False)

    assert in_turn(kit, 3) == "aab"


@spec("CK9")
def test_what_is_kept_of_a_fair_key_is_removed_after_an_hour(kit: Kit) -> None:
    fair(kit)
    for key in "ab":
        kit.enqueue(concurrency_key=key)
    kit.claimed(limit=2)
    kit.advance(microseconds=KEEP_FAIR_KEYS)
    assert _forget(kit) == 0
    kit.advance(microseconds=1)

    assert [_forget(kit, limit=1) for _ in range(3)] == [1, 1, 0]


def _forget(kit: Kit, limit: int = 10) -> int:
    return kit.store.upkeep.delete(
        "keys", older_than_us=Duration(KEEP_FAIR_KEYS), limit=limit
    ).deleted


@spec("CK8")
def test_racing_claimers_give_every_fair_key_its_turn(kit: Kit) -> None:
    """Claims of one group wait for each other, so their commits have an order: the log's."""
    fair(kit, limit=100)
    for key in "aaaaaaaaaabbbbbbbbccccccdddd":
        kit.enqueue(concurrency_key=key)
    since = kit.store.now()
    kit.advance(seconds=1)
    left = threading.Semaphore(28)

    def work(coordinator: Coordinator, worker: WorkerId) -> None:
        while left.acquire(blocking=False):
            assert coordinator.claim(kit.claim_request(limit=1, worker=worker)).grants

    race(*(partial(work, kit.rival(), WorkerId(f"racer-{n}")) for n in range(6)))

    jobs = kit.store.jobs.read([grant.job_id for grant in kit.store.audit.grants(since=since)])
    granted = [grant.job_id for grant in kit.store.audit.grants(since=since)]
    order = keys([jobs[job_id] for job_id in granted])
    assert order == "abcd" * 4 + "abc" * 2 + "ab" * 2 + "aa"
