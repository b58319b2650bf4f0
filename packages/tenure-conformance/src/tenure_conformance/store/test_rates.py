"""Rates of queues and kinds, and what is set for kinds."""

from functools import partial

from tenure.coordinator.service import Coordinator
from tenure.core.claims import QueueState
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.rates import Rate, kind_meter, parse_rate, queue_meter
from tenure_conformance.harness import KIND, QUEUE, Kit, ids, race
from tenure_conformance.spec import spec

OTHER_QUEUE = QueueName("other")
OTHER_KIND = Kind("other")


def rate(text: str, burst: int | None = None) -> Rate:
    return parse_rate("rate", text, burst)


@spec("RL1")
def test_a_rate_bounds_the_grants_of_a_queue(kit: Kit) -> None:
    for _ in range(9):
        kit.enqueue()
    kit.rate(rate("1/s", 3))

    assert len(kit.claimed(limit=9)) == 3
    assert kit.claimed(limit=9) == []
    kit.advance(seconds=0.999)
    assert kit.claimed(limit=9) == []
    kit.advance(seconds=0.001)
    assert len(kit.claimed(limit=9)) == 1
    kit.advance(seconds=2)
    assert len(kit.claimed(limit=9)) == 2


@spec("RL1")
def test_a_rate_bounds_the_grants_of_a_kind_in_all_queues(kit: Kit) -> None:
    for queue in (QUEUE, OTHER_QUEUE):
        for _ in range(4):
            kit.enqueue(queue=queue)
    kit.rate_of_kind(rate("1/s", 3))

    assert len(kit.claimed(limit=9, queues=(QUEUE, OTHER_QUEUE))) == 3
    assert kit.claimed(limit=9, queues=(OTHER_QUEUE,)) == []
    kit.advance(seconds=1)
    assert len(kit.claimed(limit=9, queues=(QUEUE, OTHER_QUEUE))) == 1


@spec("RL1")
def test_both_the_rate_of_the_queue_and_that_of_the_kind_hold(kit: Kit) -> None:
    for _ in range(5):
        kit.enqueue()
    kit.rate(rate("1/s", 2))
    kit.rate_of_kind(rate("1/m", 3))

    assert len(kit.claimed(limit=5)) == 2
    kit.advance(seconds=10)
    assert len(kit.claimed(limit=5)) == 1
    kit.advance(seconds=40)
    assert kit.claimed(limit=5) == []
    kit.advance(seconds=10)
    assert len(kit.claimed(limit=5)) == 1


@spec("RL1")
def test_a_rate_and_a_limit_of_one_queue_both_hold(kit: Kit) -> None:
    for _ in range(5):
        kit.enqueue()
    kit.rate(rate("1/s", 3))
    kit.limit(2)

    first = kit.claimed(limit=5)

    assert len(first) == 2
    kit.complete(first[0])
    kit.complete(first[1])
    assert len(kit.claimed(limit=5)) == 1
    assert kit.claimed(limit=5) == []


@spec("RL1")
def test_the_state_of_a_rate_outlives_every_process(kit: Kit) -> None:
    for _ in range(5):
        kit.enqueue()
    kit.rate_of_kind(rate("1/s", 2))
    kit.claimed(limit=5)

    others = kit.rival().claim(kit.claim_request(5, worker="w2"))

    assert others.grants == ()


@spec("RL2")
def test_a_grant_that_was_given_back_still_counts(kit: Kit) -> None:
    job = kit.enqueue()
    kit.rate_of_kind(rate("1/s", 1))
    kit.release(kit.claimed()[0])

    assert kit.claimed() == []
    kit.advance(seconds=1)

    assert ids(kit.claimed()) == [job.id]


@spec("RL3")
def test_a_rate_that_was_not_used_allows_one_burst_and_no_more(kit: Kit) -> None:
    for _ in range(9):
        kit.enqueue()
    kit.rate(rate("10/s", 4))
    kit.advance(seconds=3600)

    assert len(kit.claimed(limit=9)) == 4


@spec("RL3")
def test_after_a_change_of_the_rate_the_next_grant_is_an_interval_of_the_new_one_away(
    kit: Kit,
) -> None:
    for _ in range(3):
        kit.enqueue()
    kit.rate(rate("1/d", 1))
    kit.claimed()
    kit.rate(rate("1/s", 1))

    assert kit.claimed() == []
    kit.advance(seconds=1)

    assert len(kit.claimed(limit=3)) == 1


@spec("RL5")
def test_a_rate_can_be_removed(kit: Kit) -> None:
    for _ in range(6):
        kit.enqueue()
    kit.rate(rate("1/d", 1))
    kit.rate_of_kind(rate("1/d", 1))
    kit.claimed(limit=6)

    assert kit.rate(None).rate is None
    assert kit.claimed(limit=6) == []
    assert kit.rate_of_kind(None).rate is None

    assert len(kit.claimed(limit=6)) == 5


@spec("RL5")
def test_a_rate_that_is_set_elsewhere_is_seen_by_the_next_claim(kit: Kit) -> None:
    for _ in range(9):
        kit.enqueue()
    kit.claimed()
    other = kit.factory.reopen()

    other.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=KIND, rate=rate("1/s", 2)))
    assert len(kit.claimed(limit=9)) == 2
    kit.advance(seconds=5)
    other.settings.put_queue(DEFAULT_NAMESPACE, QUEUE, paused=None, limit=None, rate=rate("1/s", 1))

    assert len(kit.claimed(limit=9)) == 1


@spec("RL5")
def test_the_store_keeps_when_a_rate_was_set_last(kit: Kit) -> None:
    set_at = kit.store.now()
    kit.rate(rate("1/s", 2))
    kit.rate_of_kind(rate("1/s", 2))
    kit.advance(seconds=10)

    again = kit.rate(rate("1/s", 2)), kit.rate_of_kind(rate("1/s", 2))
    changed = kit.rate(rate("1/s", 3)), kit.rate_of_kind(rate("1/m", 2))

    since = [each.rate_since for each in (*again, *changed)]
    assert all(at is not None for at in since)
    assert [at is not None and at - set_at >= 10_000_000 for at in since] == [
        False,
        False,
        True,
        True,
    ]


@spec("RL5")
def test_the_settings_of_a_queue_are_changed_one_by_one(kit: Kit) -> None:
    kit.limit(4)
    kit.rate(rate("5/m"))

    state = kit.pause()

    assert (state.paused, state.limit, state.rate) == (True, 4, rate("5/m"))
    assert kit.store.settings.queues(DEFAULT_NAMESPACE) == [state]
    assert kit.factory.reopen().settings.queues(DEFAULT_NAMESPACE) == [state]
    assert kit.rate(None) == QueueState(name=QUEUE, paused=True, limit=4)


@spec("RL5", "CK7")
def test_the_settings_of_a_kind_are_changed_one_by_one(kit: Kit) -> None:
    """Two operators may set one of them each at the same time."""
    kit.rate_of_kind(rate("5/m"))
    kit.advance(seconds=1)
    limited_at = kit.now()
    kit.store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=KIND, concurrency_limit=2))
    kit.advance(seconds=1)

    kept = kit.store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=KIND, rate=None))

    assert kept == KindSettings(kind=KIND, concurrency_limit=2, concurrency_since=limited_at)
    assert kit.store.settings.kinds(DEFAULT_NAMESPACE) == [kept]
    kit.rate_of_kind(rate("7/m"))
    change = KindChange(kind=KIND, concurrency_limit=None)
    unlimited = kit.store.settings.put_kind(DEFAULT_NAMESPACE, change)
    assert (unlimited.rate, unlimited.concurrency_limit) == (rate("7/m"), None)


@spec("RL6")
def test_only_new_settings_of_a_kind_are_written_by_a_worker(kit: Kit) -> None:
    store = kit.store
    first = store.settings.put_kind(
        DEFAULT_NAMESPACE, KindChange(kind=KIND, rate=rate("1/s")), only_new=True
    )

    second = store.settings.put_kind(
        DEFAULT_NAMESPACE, KindChange(kind=KIND, rate=rate("9/s")), only_new=True
    )

    assert first.rate == rate("1/s")
    assert second == first
    assert store.settings.kinds(DEFAULT_NAMESPACE) == [first]


@spec("RL6")
def test_a_kind_without_a_rate_stays_known(kit: Kit) -> None:
    kit.rate_of_kind(None)

    kept = kit.store.settings.put_kind(
        DEFAULT_NAMESPACE, KindChange(kind=KIND, rate=rate("9/s")), only_new=True
    )

    assert kept == KindSettings(kind=KIND)


@spec("RL6")
def test_kinds_with_settings_are_listed_by_name(kit: Kit) -> None:
    kit.rate_of_kind(rate("1/s"), Kind("b"))
    kit.rate_of_kind(rate("2/s"), Kind("a"))
    elsewhere = Namespace("elsewhere")
    kit.store.settings.put_kind(elsewhere, KindChange(kind=Kind("z"), rate=rate("3/s")))

    found = kit.factory.reopen().settings.kinds(DEFAULT_NAMESPACE)

    assert [(each.kind, each.rate) for each in found] == [("a", rate("2/s")), ("b", rate("1/s"))]


@spec("RL1")
def test_a_rate_of_another_namespace_does_not_count(kit: Kit) -> None:
    elsewhere = Namespace("elsewhere")
    kit.store.settings.put_kind(elsewhere, KindChange(kind=KIND, rate=rate("1/d")))
    for _ in range(3):
        kit.enqueue()
        kit.enqueue(namespace=elsewhere)

    assert len(kit.claimed(limit=3)) == 3
    assert len(kit.claimed(limit=3, namespace=elsewhere)) == 1


@spec("RL8")
def test_jobs_that_wait_for_a_rate_lie_in_the_way_of_no_others(kit: Kit) -> None:
    for _ in range(20):
        kit.enqueue(priority=9)
        kit.enqueue(priority=9, delay_us=1)
    other = [kit.enqueue(kind=OTHER_KIND) for _ in range(3)]
    later = kit.enqueue(kind=OTHER_KIND, delay_us=1)
    kit.advance(seconds=1)
    kit.rate_of_kind(rate("1/m", 2))

    granted = kit.claimed(limit=5)

    assert [job.kind for job in granted] == [KIND, KIND, OTHER_KIND, OTHER_KIND, OTHER_KIND]
    assert ids(granted[2:]) == ids(other)
    assert ids(kit.claimed(limit=5)) == [later.id]


@spec("RL8")
def test_a_queue_that_waits_for_its_rate_does_not_hide_the_jobs_of_another(kit: Kit) -> None:
    for _ in range(5):
        kit.enqueue(priority=9)
    kit.rate(rate("1/m", 1))
    other = [kit.enqueue(queue=OTHER_QUEUE) for _ in range(2)]

    granted = kit.claimed(limit=3, queues=(QUEUE, OTHER_QUEUE))

    assert len(granted) == 3
    assert ids(granted[1:]) == ids(other)


@spec("RL9")
def test_a_claim_that_rates_hold_back_is_told_when_there_is_room(kit: Kit) -> None:
    for _ in range(3):
        kit.enqueue()
    kit.rate_of_kind(rate("1/m", 1))
    granted = kit.claim(limit=3)

    of_kind = kit.claim(limit=3, kinds=(KIND,))
    of_any = kit.claim(limit=3)
    of_both = kit.claim(limit=3, kinds=(KIND, OTHER_KIND))
    of_other = kit.claim(limit=3, kinds=(OTHER_KIND,))

    assert granted.rate_limited is None
    assert of_kind.rate_limited is not None
    assert 0 < of_kind.rate_limited.wait_us <= 60_000_000
    limits = [each.rate_limited for each in (of_kind, of_any, of_both)]
    assert [limit is not None and limit.is_all for limit in limits] == [True, False, False]
    assert of_any.rate_limited is not None
    assert of_both.rate_limited is not None
    assert of_other.rate_limited is None


@spec("RL10")
def test_the_rates_of_a_queue_and_a_kind_are_listed_with_their_waits(kit: Kit) -> None:
    kit.enqueue()
    assert kit.store.settings.rates(DEFAULT_NAMESPACE, QUEUE, KIND) == []
    kit.rate(rate("1/m", 2))
    kit.rate_of_kind(rate("1/m", 1))
    kit.claimed()

    of_queue, of_kind = kit.store.settings.rates(DEFAULT_NAMESPACE, QUEUE, KIND)

    assert (of_queue.meter.name, of_queue.rate, of_queue.wait_us) == (QUEUE, rate("1/m", 2), 0)
    assert (of_kind.meter.name, of_kind.rate) == (KIND, rate("1/m", 1))
    assert 0 < of_kind.wait_us <= 60_000_000


@spec("I30")
def test_the_log_has_the_grants_in_the_order_of_their_commits(kit: Kit) -> None:
    before = [kit.running_job() for _ in range(2)]
    kit.advance(seconds=1)
    since = kit.store.now()
    kit.advance(seconds=1)
    after = [kit.running_job(queue=OTHER_QUEUE, kind=OTHER_KIND), kit.running_job()]
    kit.release(kit.claimed_job())

    found = list(kit.store.audit.grants(since=since))
    everything = list(kit.store.audit.grants(since=Instant(0)))

    assert [(each.job_id, each.queue, each.kind) for each in found[:2]] == [
        (job.id, job.queue, job.kind) for job in after
    ]
    assert len(found) == 3
    assert [each.job_id for each in everything[:2]] == ids(before)
    assert all(each.namespace == DEFAULT_NAMESPACE and each.seq == 2 for each in everything)


@spec("I30", "RL5")
def test_every_rate_that_is_set_is_known_with_its_instant(kit: Kit) -> None:
    elsewhere = Namespace("elsewhere")
    kit.rate(rate("1/s", 2))
    kit.limit(3, OTHER_QUEUE)
    kit.rate_of_kind(None)
    kit.store.settings.put_kind(elsewhere, KindChange(kind=OTHER_KIND, rate=rate("5/m")))

    found = {(each.namespace, each.meter): each for each in kit.store.audit.rates_in_force()}

    assert {key: each.rate for key, each in found.items()} == {
        (DEFAULT_NAMESPACE, queue_meter(QUEUE)): rate("1/s", 2),
        (elsewhere, kind_meter(OTHER_KIND)): rate("5/m"),
    }
    assert all(each.since <= kit.store.now() for each in found.values())


@spec("RL1")
def test_racing_claimers_share_a_rate(kit: Kit) -> None:
    for number in range(40):
        kit.enqueue(queue=(QUEUE, OTHER_QUEUE)[number % 2])
    kit.rate(rate("1/s", 7))
    kit.rate_of_kind(rate("1/s", 11))
    claimers = [(kit.rival(), f"racer-{number}") for number in range(6)]

    def claim_all() -> int:
        """Each claims from both queues until it receives nothing twice."""

        def work(coordinator: Coordinator, worker: str) -> int:
            answers = [
                coordinator.claim(kit.claim_request(2, worker=worker, queues=(QUEUE, OTHER_QUEUE)))
                for _ in range(4)
            ]
            return sum(len(answer.grants) for answer in answers)

        return sum(race(*(partial(work, *each) for each in claimers)))

    first = claim_all()
    kit.advance(seconds=3)
    second = claim_all()

    assert (first, second) == (11, 3)
    leased = kit.store.settings.queues(DEFAULT_NAMESPACE)
    assert next(state.live for state in leased if state.name == QUEUE) <= 10


@spec("RL3")
def test_after_the_clock_was_set_back_the_next_grant_is_one_interval_away(kit: Kit) -> None:
    for _ in range(9):
        kit.enqueue()
    kit.rate(rate("1/m", 2))
    kit.advance(seconds=600)
    kit.claimed(limit=9)

    kit.step_back(seconds=600)

    assert kit.claimed(limit=9) == []
    kit.advance(seconds=59)
    assert kit.claimed(limit=9) == []
    kit.advance(seconds=1)
    assert len(kit.claimed(limit=9)) == 1
