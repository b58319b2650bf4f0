"""Look-ups in the log: by job, type, correlation id and time, in pages, within one namespace."""

from itertools import product
from typing import Any

import pytest

from tenure.core.events import Event
from tenure.core.ids import DEFAULT_NAMESPACE, JobId, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.policy import Compensation, Policy
from tenure.core.views.events import (
    EventFilter,
    EventKey,
    TypeFilter,
    full_page,
    key_of,
    parse_type_filter,
)
from tenure.core.vocabulary import EventType
from tenure_conformance.harness import Kit, ids, policy
from tenure_conformance.spec import spec

OTHER = Namespace("other")
MAIL, BILL = Kind("mail"), Kind("bill")
SLOW = QueueName("slow")
UNDO = Compensation(kind=Kind("undo"), queue=QueueName("undo"), policy=Policy())


def wanted(**fields: Any) -> EventFilter:
    return EventFilter(**{"namespace": DEFAULT_NAMESPACE, **fields})


def found(kit: Kit, **fields: Any) -> list[Event]:
    """All events that a filter means, from pages of any size."""
    return list(full_page(kit.store.events.page, wanted(**fields)).events)


def by_time(events: list[Event]) -> list[Event]:
    return sorted(events, key=key_of)


def history(kit: Kit) -> list[Event]:
    """Jobs of two kinds in two queues, some at one instant, and a job of another namespace in
    between. Returns the events of the first namespace in the order of time."""
    jobs = [kit.enqueue(kind=MAIL) for _ in range(3)]
    kit.enqueue(namespace=OTHER)
    jobs.append(kit.running_job(kind=BILL, priority=5))
    kit.advance(seconds=1)
    kit.enqueue(namespace=OTHER)
    jobs.append(kit.succeeded_job(kind=BILL, queue=SLOW, priority=9))
    kit.advance(seconds=1)
    jobs.append(kit.enqueue(kind=MAIL, queue=SLOW))
    return by_time([event for job in jobs for event in kit.events(job)])


@spec("E4")
def test_events_are_found_by_job_and_time(kit: Kit) -> None:
    job, other = kit.claimed_job(), kit.claimed_job()
    kit.advance(seconds=1)
    since = kit.now()
    kit.start(job)
    kit.start(other)
    kit.advance(seconds=1)
    until = kit.now()
    kit.complete(job)

    def types(**fields: Any) -> list[EventType]:
        return [event.type for event in found(kit, job_id=job.id, **fields)]

    enqueued, claimed, started, succeeded = kit.types(job)
    assert types() == [enqueued, claimed, started, succeeded]
    assert types(since=since) == [started, succeeded]
    assert types(since=since, until=until) == [started]
    assert types(until=since) == [enqueued, claimed]
    assert types(limit=2) == [enqueued, claimed]
    assert types(newest_first=True, limit=2) == [succeeded, started]
    assert types(types=(TypeFilter(EventType.STARTED),)) == [started]
    assert found(kit, job_id=kit.new_id()) == []


@spec("E4")
def test_a_job_s_events_go_on_after_a_seq_whatever_its_time(kit: Kit) -> None:
    job = kit.succeeded_job()
    long_ago, later = Instant(0), Instant(kit.now() + 10**12)

    def seqs(seq: int, at: Instant, **fields: Any) -> list[int]:
        key = EventKey(at, job.id, seq)
        return [event.seq for event in found(kit, job_id=job.id, after=key, **fields)]

    assert seqs(0, later) == [1, 2, 3, 4]
    assert seqs(2, long_ago, limit=1) == seqs(2, later, limit=1) == [3]
    assert seqs(4, long_ago) == []
    assert seqs(3, long_ago, newest_first=True) == [2, 1]


@spec("E6", "E8")
def test_a_type_that_is_named_twice_is_listed_once_and_in_full(kit: Kit) -> None:
    jobs = [kit.succeeded_job() for _ in range(3)]
    words = ["succeeded", "job_succeeded", "job_compensated", "succeeded"]
    types = tuple(map(parse_type_filter, words))

    first = kit.store.events.page(wanted(types=types, limit=2))
    rest = kit.store.events.page(wanted(types=types, limit=2, after=first.next))

    assert len(first.events) == 2
    assert {event.job_id for event in first.events + rest.events} == {job.id for job in jobs}
    assert len(rest.events) == 1


@spec("E4")
def test_events_are_found_by_type_and_time(kit: Kit) -> None:
    first = kit.enqueue()
    kit.advance(seconds=1)
    second = kit.running_job(priority=1)
    kit.advance(seconds=1)
    third = kit.enqueue()
    enqueued, started = TypeFilter(EventType.ENQUEUED), TypeFilter(EventType.STARTED)

    def of(since: Instant | None = None, until: Instant | None = None) -> list[JobId]:
        return ids(found(kit, types=(enqueued,), since=since, until=until))

    assert of() == [first.id, second.id, third.id]
    assert of(since=second.enqueued_at) == [second.id, third.id]
    assert of(until=second.enqueued_at) == [first.id]
    assert found(kit, types=(started,)) == kit.events(second)[-1:]
    assert [event.type for event in found(kit, types=(started, enqueued))] == [
        EventType.ENQUEUED,
        EventType.ENQUEUED,
        EventType.STARTED,
        EventType.ENQUEUED,
    ]


@spec("E4", "E6", "M2")
def test_the_ends_of_compensations_are_found_by_the_name_of_what_they_did(kit: Kit) -> None:
    plain = kit.succeeded_job()
    kit.cancel_hard(kit.running_job(policy=policy(compensation=UNDO)))
    (job,) = kit.claimed(queues=(UNDO.queue,))
    kit.complete(job)

    compensated = found(kit, types=(parse_type_filter("job_compensated"),))
    succeeded = found(kit, types=(parse_type_filter("job_succeeded"),))

    assert [(event.job_id, event.name) for event in compensated] == [(job.id, "job_compensated")]
    assert set(ids(succeeded)) == {plain.id, job.id}


@spec("E4")
def test_events_are_found_by_correlation_id(kit: Kit) -> None:
    one = kit.running_job(correlation_id="c")
    kit.advance(seconds=1)
    two = kit.enqueue(correlation_id="c")
    kit.enqueue(correlation_id="d")
    kit.enqueue()

    assert found(kit, correlation_id="c") == [*kit.events(one), *kit.events(two)]
    assert found(kit, correlation_id="c", newest_first=True, limit=1) == kit.events(two)
    assert found(kit, correlation_id="c", job_id=two.id) == kit.events(two)
    assert found(kit, correlation_id="c", until=two.enqueued_at) == kit.events(one)
    assert found(kit, correlation_id="C") == []


@spec("E4")
def test_a_job_without_a_correlation_id_is_found_by_its_own_id(kit: Kit) -> None:
    plain = kit.running_job()
    kit.advance(seconds=1)
    child = kit.enqueue(correlation_id=plain.id)
    named = kit.enqueue(correlation_id="c")

    assert found(kit, correlation_id=plain.id) == [*kit.events(plain), *kit.events(child)]
    assert found(kit, correlation_id=plain.id, job_id=plain.id) == kit.events(plain)
    assert found(kit, correlation_id=named.id) == []
    started = TypeFilter(EventType.STARTED)
    assert found(kit, correlation_id=plain.id, types=(started,)) == kit.events(plain)[-1:]


@spec("E4", "E8")
def test_events_of_every_type_are_found_by_time(kit: Kit) -> None:
    expected = history(kit)
    middle = expected[-2].ts

    assert found(kit) == expected
    assert found(kit, newest_first=True) == expected[::-1]
    assert found(kit, since=middle) == [event for event in expected if event.ts >= middle]
    assert found(kit, until=middle) == [event for event in expected if event.ts < middle]


@spec("E8")
def test_pages_show_every_event_once_whatever_their_size(kit: Kit) -> None:
    expected = history(kit)

    for limit, reads in product((1, 2, 500), (1, 2, 3, 100)):
        oldest_first = _all_pages(kit, newest_first=False, limit=limit, reads=reads)
        newest_first = _all_pages(kit, newest_first=True, limit=limit, reads=reads)
        assert oldest_first == expected, f"{limit=} {reads=}"
        assert newest_first == expected[::-1], f"{limit=} {reads=}"


def _all_pages(kit: Kit, *, newest_first: bool, limit: int, reads: int) -> list[Event]:
    shown: list[Event] = []
    after: EventKey | None = None
    for _ in range(200):
        page = kit.store.events.page(
            wanted(newest_first=newest_first, after=after, limit=limit, reads=reads)
        )
        assert len(page.events) <= min(limit, reads)
        shown += page.events
        after = page.next
        if after is None:
            break
    assert after is None
    return shown


@spec("E8")
def test_a_page_reads_no_more_than_its_limit_and_says_where_it_stopped(kit: Kit) -> None:
    others = []
    for _ in range(3):
        others.append(kit.enqueue(namespace=OTHER))
        kit.advance(seconds=1)
    mine = kit.enqueue()

    page = kit.store.events.page(wanted(reads=2))
    rest = kit.store.events.page(wanted(reads=3, after=page.next))

    assert page.events == ()
    assert page.next is not None
    assert page.next.ts == others[1].enqueued_at
    assert rest.events == tuple(kit.events(mine))


@spec("E9")
@pytest.mark.parametrize("newest_first", [False, True])
def test_a_page_does_not_name_a_job_that_is_not_listed(kit: Kit, newest_first: bool) -> None:
    kit.advance(seconds=1)
    hidden = [kit.enqueue(namespace=OTHER) for _ in range(2)]

    page = kit.store.events.page(wanted(reads=2, newest_first=newest_first))

    assert page.next is not None
    assert page.next.ts == hidden[0].enqueued_at
    assert page.next.job_id not in ids(hidden)


@spec("E9")
def test_only_events_of_the_namespace_the_queues_and_the_kinds_are_found(kit: Kit) -> None:
    expected = history(kit)
    jobs = kit.store.jobs.read(list({event.job_id for event in expected}))

    def of(**fields: Any) -> list[Event]:
        return [
            event
            for event in expected
            if all(getattr(jobs[event.job_id], name) in value for name, value in fields.items())
        ]

    assert len(found(kit, namespace=OTHER)) == 2
    assert found(kit, namespace=Namespace("nobody")) == []
    assert found(kit, queues=(SLOW,)) == of(queue=(SLOW,))
    assert found(kit, kinds=(MAIL,)) == of(kind=(MAIL,))
    assert found(kit, queues=(SLOW,), kinds=(BILL,)) == of(queue=(SLOW,), kind=(BILL,))
    assert found(kit, kinds=(MAIL, BILL)) == expected
    job = expected[0].job_id
    assert found(kit, namespace=OTHER, job_id=job) == []
    assert found(kit, namespace=OTHER, correlation_id=job) == []


@spec("E4")
def test_found_events_are_the_stored_ones(kit: Kit) -> None:
    jobs = [kit.running_job(correlation_id="c") for _ in range(3)]
    kit.advance(seconds=1)
    for job in reversed(jobs):
        kit.complete(job, result=b'"x"')
        kit.advance(seconds=1)

    for fields in ({"correlation_id": "c"}, {}):
        events = found(kit, **fields)

        assert [event.ts for event in events] == sorted(event.ts for event in events)
        for job in jobs:
            assert [event for event in events if event.job_id == job.id] == kit.events(job)
