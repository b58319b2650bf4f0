"""The tail: the events of all jobs in one order, read on from where a reader was."""

from typing import Any

import pytest

from tenure.core.events import Event
from tenure.core.instants import seconds
from tenure.core.views.events import MAX_TAILED, EventPosition
from tenure.errors import InvalidInput
from tenure_conformance.harness import Kit
from tenure_conformance.spec import spec

PAGE = 3
DAY_S = 86_400


class _Reader:
    """Reads the tail page by page and remembers how far it got."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._after: EventPosition | None = None
        self.events: list[Event] = []

    def read(self) -> list[Event]:
        """What is new."""
        found: list[Event] = []
        while page := self._kit.store.events.tail(after=self._after, limit=PAGE):
            assert len(page) <= PAGE
            found += [each.event for each in page]
            self._after = page[-1].position
        self.events += found
        return found


@spec("E32")
def test_the_tail_has_every_event_once_and_each_jobs_in_order(kit: Kit) -> None:
    first, second = kit.running_job(), kit.running_job()
    kit.heartbeat(first)
    kit.ask(kit.completion(second))
    kit.ask(kit.completion(first))
    reader = _Reader(kit)

    reader.read()

    for job in (first, second):
        assert [event for event in reader.events if event.job_id == job.id] == kit.events(job)
    assert len(reader.events) == len(kit.events(first)) + len(kit.events(second))
    assert not reader.read()


@spec("E32")
def test_a_reader_goes_on_from_where_it_was(kit: Kit) -> None:
    reader = _Reader(kit)
    job = kit.running_job()
    reader.read()

    other = kit.enqueue()
    kit.ask(kit.completion(job))

    assert reader.read() == [*kit.events(other), kit.events(job)[-1]]


@spec("E32")
def test_an_event_that_is_committed_late_is_not_skipped(kit: Kit) -> None:
    early, late = kit.running_job(), kit.running_job()
    reader = _Reader(kit)
    reader.read()

    kit.complete_with_a_late_commit(early, late, reader.read)

    for job in (early, late):
        assert [event for event in reader.events if event.job_id == job.id] == kit.events(job)


@spec("E32")
def test_positions_of_purged_events_are_not_used_again(kit: Kit) -> None:
    reader = _Reader(kit)
    job = kit.running_job()
    kit.ask(kit.completion(job))
    reader.read()

    kit.advance(seconds=2 * DAY_S)
    assert kit.store.upkeep.delete("jobs", older_than_us=seconds(DAY_S), limit=10).deleted == 1
    assert not reader.read()
    new = kit.enqueue()

    assert reader.read() == kit.events(new)


@spec("E32")
@pytest.mark.parametrize("limit", [-1, 0, MAX_TAILED + 1, 10**30, 1.5, None])
def test_a_page_of_the_tail_has_a_limit(kit: Kit, limit: Any) -> None:
    kit.enqueue()

    with pytest.raises(InvalidInput, match=r"^limit: "):
        kit.store.events.tail(after=None, limit=limit)


@spec("E32")
@pytest.mark.parametrize("text", ["", "x", "-1", "1;2", "9" * 40 + ":"])
def test_an_invalid_position_is_refused(kit: Kit, text: str) -> None:
    with pytest.raises(InvalidInput, match="position"):
        kit.store.events.tail(after=EventPosition(text), limit=1)
