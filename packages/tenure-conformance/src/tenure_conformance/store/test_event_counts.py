"""Counts of the log: what a store counts in a span of time is what its log has."""

from collections import Counter

from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.views.event_counts import EventSpan, Grouping, count_all
from tenure.core.vocabulary import EventType
from tenure_conformance.harness import Kit
from tenure_conformance.spec import spec

EVERYTHING = tuple(Grouping)
OTHER = Namespace("other")
MAIL, BILL = Kind("mail"), Kind("bill")


def history(kit: Kit) -> None:
    """Jobs of two kinds and two namespaces in two queues, at several instants."""
    kit.succeeded_job(kind=MAIL)
    kit.advance(seconds=1)
    kit.dead_letter_job(kind=BILL)
    kit.advance(seconds=1)
    kit.stalled_job(kind=BILL)
    kit.enqueue(kind=MAIL, queue=QueueName("slow"))
    kit.enqueue(kind=MAIL, namespace=OTHER)
    kit.advance(seconds=1)


def counted(
    kit: Kit, since: int, until: int, *, namespace: Namespace = DEFAULT_NAMESPACE, limit: int = 1000
) -> dict[tuple[str, ...], int]:
    """What the store counts, by type, kind and queue, page by page."""
    span = EventSpan(namespace=namespace, since=Instant(since), until=Instant(until), limit=limit)
    totals = count_all(kit.store.events.count, span, EVERYTHING)
    assert totals.until == until
    return totals.events


def folded(
    kit: Kit, since: int, until: int, *, namespace: Namespace = DEFAULT_NAMESPACE
) -> dict[tuple[str, ...], int]:
    """The same from the whole log, event by event."""
    found: Counter[tuple[str, ...]] = Counter()
    for record in kit.store.audit.records(page_size=100):
        assert record.job is not None
        if record.job.namespace == namespace:
            for event in record.events:
                if since <= event.ts < until:
                    found[event.type, record.job.kind, record.job.queue] += 1
    return dict(found)


@spec("B31")
def test_counts_are_those_of_the_whole_log(kit: Kit) -> None:
    began = kit.now()
    history(kit)
    ended = kit.now()

    assert counted(kit, began, ended) == folded(kit, began, ended)
    assert counted(kit, began, ended)[EventType.SUCCEEDED, MAIL, kit.new().queue] == 1
    assert counted(kit, began, ended, namespace=OTHER) == folded(kit, began, ended, namespace=OTHER)


@spec("B31")
def test_a_span_begins_with_its_first_instant_and_ends_before_its_last(kit: Kit) -> None:
    before = kit.now()
    kit.advance(seconds=1)
    job = kit.enqueue(kind=MAIL)
    at = job.enqueued_at
    key = (EventType.ENQUEUED, MAIL, job.queue)

    assert counted(kit, at, at + 1) == {key: 1}
    assert counted(kit, before, at) == {}
    assert counted(kit, at + 1, at + 1000) == {}


@spec("B31")
def test_pages_add_up_whatever_their_size(kit: Kit) -> None:
    began = kit.now()
    history(kit)
    ended = kit.now()

    whole = counted(kit, began, ended)

    assert sum(whole.values()) > 8
    for limit in (1, 2, 3, 5, 8):
        assert counted(kit, began, ended, limit=limit) == whole


@spec("B31")
def test_a_page_counts_no_more_than_its_limit_and_says_where_it_stopped(kit: Kit) -> None:
    first = kit.enqueue(kind=MAIL)
    kit.advance(seconds=1)
    second = kit.enqueue(kind=MAIL)
    kit.advance(seconds=1)
    span = EventSpan(namespace=DEFAULT_NAMESPACE, since=first.enqueued_at, until=kit.now(), limit=1)

    page = kit.store.events.count(span)

    assert sum(each.events for each in page.counts) == 1
    assert page.until == second.enqueued_at
