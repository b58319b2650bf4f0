"""Following the tail: one namespace's events in the order of the tail, by filter, from anywhere."""

from typing import Any

import pytest

from tenure.core.events import Event
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, QueueName
from tenure.core.views.events import (
    MAX_EVENTS_READ,
    MAX_LISTED_EVENTS,
    MAX_NEWEST,
    EventPosition,
    TailFilter,
    TailPage,
    parse_type_filter,
)
from tenure.errors import InvalidInput
from tenure_conformance.harness import Kit
from tenure_conformance.spec import spec

OTHER = Namespace("other")
MAIL, BILL = Kind("mail"), Kind("bill")
SLOW = QueueName("slow")
MANY_PAGES = 1000


def follow(kit: Kit, **fields: Any) -> TailPage:
    return kit.store.events.follow(TailFilter(**{"namespace": DEFAULT_NAMESPACE, **fields}))


class _Follower:
    """Reads page by page until the end, and remembers how far it got."""

    def __init__(self, kit: Kit, **fields: Any) -> None:
        self._kit = kit
        self._fields = fields
        self._after: EventPosition | None = None
        self.events: list[Event] = []

    def read(self) -> list[Event]:
        """What is new."""
        found: list[Event] = []
        for _ in range(MANY_PAGES):
            page = follow(self._kit, after=self._after, **self._fields)
            found += [each.event for each in page.events]
            self._after = page.next
            if page.is_end:
                break
        else:
            raise AssertionError("the reader does not get to the end")
        self.events += found
        return found


def history(kit: Kit) -> list[Event]:
    """Events of two kinds and queues, with those of another namespace in between, as the tail has
    them. Returns those of the first namespace."""
    kit.enqueue(namespace=OTHER)
    kit.enqueue(kind=MAIL, correlation_id="order-7")
    kit.succeeded_job(kind=BILL, queue=SLOW, priority=9)
    for _ in range(4):
        kit.enqueue(namespace=OTHER)
    kit.running_job(kind=MAIL, priority=5)
    kit.enqueue(namespace=OTHER)
    tail = [each.event for each in kit.store.events.tail(after=None, limit=100)]
    ours = kit.store.jobs.load([event.job_id for event in tail]).jobs
    return [event for event in tail if ours[event.job_id].namespace == DEFAULT_NAMESPACE]


@spec("E10", "E32")
def test_pages_of_any_size_have_every_event_of_the_namespace_once(kit: Kit) -> None:
    expected = history(kit)
    followers = [
        _Follower(kit, limit=limit, reads=reads)
        for limit in (1, 2, 3, MAX_LISTED_EVENTS)
        for reads in (1, 2, 3, MAX_EVENTS_READ)
    ]

    for follower in followers:
        follower.read()

        assert follower.events == expected
        assert follower.read() == []
    new = kit.enqueue()
    for follower in followers:
        assert follower.read() == kit.events(new)


@spec("E10")
@pytest.mark.parametrize("reads", [1, 3, MAX_EVENTS_READ])
def test_a_transaction_with_more_events_than_a_page_reads_is_shown_whole(
    kit: Kit, reads: int
) -> None:
    kit.save(*[kit.change(kit.new(namespace=OTHER)) for _ in range(5)])
    ours = kit.save(*[kit.change(kit.new()) for _ in range(5)])
    follower = _Follower(kit, limit=2, reads=reads)

    follower.read()

    assert sorted(event.job_id for event in follower.events) == sorted(ours)


@spec("E10")
def test_a_full_page_goes_on_after_its_last_event(kit: Kit) -> None:
    events = history(kit)

    first = follow(kit, limit=2)
    second = follow(kit, limit=2, after=first.next)

    assert [each.event for each in first.events + second.events] == events[:4]
    assert not first.is_end


@spec("E10")
def test_events_are_followed_by_job_type_correlation_id_queue_and_kind(kit: Kit) -> None:
    events = history(kit)
    job = kit.enqueue()

    def found(**fields: Any) -> list[Event]:
        return _Follower(kit, **fields).read()

    started = parse_type_filter("started")
    assert found(job_id=job.id) == found(correlation_id=job.id) == kit.events(job)
    assert found(types=(started,)) == [each for each in events if started.accepts(each)]
    assert [each.correlation_id for each in found(correlation_id="order-7")] == ["order-7"]
    assert len(found(kinds=(BILL,))) == len(found(queues=(SLOW,))) == 4
    assert found(queues=(SLOW,), kinds=(MAIL,)) == []
    compensated = parse_type_filter("job_compensated")
    assert found(types=(compensated,)) == []


@spec("E10")
def test_a_follower_can_begin_at_the_end(kit: Kit) -> None:
    events = history(kit)

    page = follow(kit, newest=2)
    nothing_shown = follow(kit, newest=0)
    job = kit.enqueue()

    assert [each.event for each in page.events] == events[-2:]
    assert page.is_end
    assert nothing_shown.events == ()
    for before in (page, nothing_shown):
        now = follow(kit, after=before.next)
        assert [each.event for each in now.events] == kit.events(job)
    one = follow(kit, newest=5, job_id=job.id)
    assert [each.event for each in one.events] == kit.events(job)


@spec("E10")
def test_an_empty_log_has_a_place_to_go_on_from(kit: Kit) -> None:
    pages = [follow(kit), follow(kit, newest=3)]
    job = kit.enqueue()

    for page in pages:
        assert page.events == ()
        now = follow(kit, after=page.next)
        assert [each.event for each in now.events] == kit.events(job)


@spec("E10")
@pytest.mark.parametrize("reads", [2, 3, MAX_EVENTS_READ])
def test_a_position_names_no_job_of_another_namespace(kit: Kit, reads: int) -> None:
    hidden = [kit.enqueue(namespace=OTHER) for _ in range(4)]
    kit.enqueue()
    hidden.append(kit.enqueue(namespace=OTHER))
    after = None
    positions = []

    for _ in range(MANY_PAGES):
        page = follow(kit, after=after, reads=reads)
        after = page.next
        positions.append(after)
        if page.is_end:
            break

    assert not any(job.id in position for job in hidden for position in positions)


@spec("E10", "E32")
def test_a_follower_waits_for_a_transaction_that_commits_late(kit: Kit) -> None:
    early, late = kit.running_job(), kit.running_job()
    follower = _Follower(kit)
    follower.read()

    kit.complete_with_a_late_commit(early, late, follower.read)

    for job in (early, late):
        assert [event for event in follower.events if event.job_id == job.id] == kit.events(job)


@spec("E10")
@pytest.mark.parametrize(
    "fields",
    [
        {"limit": 0},
        {"limit": MAX_LISTED_EVENTS + 1},
        {"reads": MAX_EVENTS_READ + 1},
        {"newest": MAX_NEWEST + 1},
        {"newest": -1},
        {"newest": 1, "after": EventPosition("1")},
        {"after": EventPosition("x")},
        {"after": EventPosition("")},
        {"namespace": "no spaces"},
        {"job_id": "x"},
    ],
)
def test_a_question_beyond_the_limits_is_refused(kit: Kit, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        follow(kit, **fields)
