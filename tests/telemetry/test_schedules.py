"""What metrics say about schedules."""

from collections.abc import Iterator

import pytest

from tenure.coordinator.schedules import Firer
from tenure.coordinator.service import Coordinator
from tenure.core.ids import DEFAULT_NAMESPACE, ScheduleName, operator_actor
from tenure.core.instants import seconds
from tenure.core.schedules import PutSchedule, ScheduleSpec
from tenure.stores.sqlite.memory import MemoryStore
from tenure.telemetry.counts import Counts
from tenure.telemetry.metrics import Metrics
from tenure_conformance.spec import spec
from tests.support.coordinators import KIND, QUEUE, VirtualClock
from tests.telemetry.scrape import total


@pytest.fixture
def counted() -> Iterator[tuple[Coordinator, VirtualClock, Counts]]:
    clock, counts = VirtualClock(), Counts()
    coordinator = Coordinator(MemoryStore(clock=clock), monotonic=clock, observer=counts)
    yield coordinator, clock, counts
    coordinator.close()


@spec("SC14")
def test_fired_skipped_and_missed_occurrences_are_counted(
    counted: tuple[Coordinator, VirtualClock, Counts],
) -> None:
    coordinator, clock, counts = counted
    hourly = ScheduleSpec(kind=KIND, queue=QUEUE, every_us=seconds(3600))
    coordinator.change_schedule(
        PutSchedule(
            namespace=DEFAULT_NAMESPACE,
            name=ScheduleName("hourly"),
            actor=operator_actor("o"),
            spec=hourly,
        )
    )
    firer = Firer(coordinator)
    clock.advance(3 * 3600)
    firer.fire_due()
    clock.advance(3600)
    firer.fire_due()

    text = Metrics(counts).text(None)

    name = "tenure_schedule_occurrences_total"
    assert {
        outcome: total(text, name, outcome=outcome) for outcome in ("fired", "skipped", "missed")
    } == {"fired": 1, "skipped": 1, "missed": 2}
    assert total(text, "tenure_schedule_late_seconds_count") == 1
    assert 0 < total(text, "tenure_schedule_late_seconds_sum") < 3600
