"""Worker processes: what they say of themselves, and what they are asked to do."""

from typing import Any

import pytest

from tenure.coordinator.retention import DAY, Retention
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Kind,
    Namespace,
    QueueName,
    ScheduleName,
    WorkerId,
    worker_actor,
)
from tenure.core.instants import Instant, seconds
from tenure.core.vocabulary import WorkerState
from tenure.core.workers import ListedWorker, WorkerProcess
from tenure.errors import InvalidInput
from tenure_conformance.harness import QUEUE, WORKER, WORKER_ID, Kit
from tenure_conformance.spec import spec


def _see(kit: Kit, *, uptime_s: float = 0, **fields: Any) -> bool:
    defaults: dict[str, Any] = {
        "namespace": DEFAULT_NAMESPACE,
        "worker": WORKER_ID,
        "actor": WORKER,
        "host": "host-1",
        "pid": 7,
        "queues": (QUEUE,),
        "concurrency": 4,
        "version": "0.1.0",
    }
    process = WorkerProcess(uptime_us=seconds(uptime_s), **(defaults | fields))
    return kit.coordinator.store.workers.see(process)


def _names(kit: Kit) -> list[str]:
    return [seen.worker for seen in kit.store.workers.page(DEFAULT_NAMESPACE)]


@spec("B43")
def test_workers_are_read_in_pages_by_name_and_principal(kit: Kit) -> None:
    keys = [("a", "z"), ("b", "x"), ("b", "y"), ("c", "a")]
    for worker, actor in reversed(keys):
        _see(kit, worker=WorkerId(worker), actor=worker_actor(WorkerId(actor)))

    first = kit.store.workers.page(DEFAULT_NAMESPACE, limit=2)
    rest = kit.store.workers.page(DEFAULT_NAMESPACE, after=first[-1].key, limit=5)

    assert [each.key for each in first + rest] == [(w, f"worker:{a}") for w, a in keys]
    assert len(first) == 2
    assert kit.store.workers.page(DEFAULT_NAMESPACE, after=rest[-1].key, limit=1) == []


@spec("B13")
def test_a_worker_is_listed_with_its_last_report(kit: Kit) -> None:
    began = kit.now()
    _see(kit)
    kit.advance(seconds=10)
    queues = (QueueName("a"), QueueName("b"))
    kinds, schedules = (Kind("mail"),), (ScheduleName("nightly"),)
    _see(kit, uptime_s=10, queues=queues, kinds=kinds, schedules=schedules, concurrency=8)

    assert kit.store.workers.page(DEFAULT_NAMESPACE) == [
        ListedWorker(
            namespace=DEFAULT_NAMESPACE,
            worker=WORKER_ID,
            actor=WORKER,
            host="host-1",
            pid=7,
            queues=queues,
            kinds=kinds,
            schedules=schedules,
            concurrency=8,
            version="0.1.0",
            started_at=began,
            seen_at=Instant(began + seconds(10)),
        )
    ]


@spec("B21")
def test_a_process_has_one_start_time_however_late_its_reports_are(kit: Kit) -> None:
    def start_after(uptime_s: float, instance: str) -> Instant:
        _see(kit, uptime_s=uptime_s, instance=instance)
        [seen] = kit.store.workers.page(DEFAULT_NAMESPACE)
        return seen.started_at

    began = kit.now()
    assert start_after(0, "one") == began
    kit.advance(seconds=10)
    assert start_after(9.5, "one") == began
    assert start_after(0.5, "two") == began + seconds(9.5)


@spec("B13")
def test_workers_are_listed_by_name_within_their_namespace(kit: Kit) -> None:
    for name in ("b", "a"):
        _see(kit, worker=WorkerId(name))
    _see(kit, worker=WorkerId("c"), namespace=Namespace("elsewhere"))
    _see(kit, worker=WorkerId("a"), actor=worker_actor("another"))

    assert _names(kit) == ["a", "a", "b"]


@spec("B12")
def test_a_request_to_drain_reaches_a_worker_with_its_next_report(kit: Kit) -> None:
    other = WorkerId("other")
    before = (_see(kit), _see(kit, worker=other))
    kit.advance(seconds=5)

    assert kit.store.workers.drain(DEFAULT_NAMESPACE, WORKER_ID)
    kit.advance(seconds=5)

    assert before == (False, False)
    assert _see(kit, uptime_s=10)
    assert not _see(kit, worker=other, uptime_s=10)
    assert [seen.draining for seen in kit.store.workers.page(DEFAULT_NAMESPACE)] == [True, False]


@spec("B33")
def test_a_worker_that_reports_that_it_drains_is_listed_so_and_not_asked_to(kit: Kit) -> None:
    is_asked = _see(kit, is_draining=True)
    [draining] = kit.store.workers.page(DEFAULT_NAMESPACE)
    _see(kit, pid=8)
    [successor] = kit.store.workers.page(DEFAULT_NAMESPACE)

    assert not is_asked  # by an operator
    assert (draining.draining, draining.drain_requested_at) == (True, None)
    assert draining.state(kit.now()) is WorkerState.DRAINING
    assert successor.state(kit.now()) is WorkerState.ALIVE


@spec("B12")
def test_a_process_that_started_after_the_request_goes_on(kit: Kit) -> None:
    _see(kit)
    kit.store.workers.drain(DEFAULT_NAMESPACE, WORKER_ID)
    kit.advance(seconds=5)

    assert not _see(kit, uptime_s=1)
    assert [seen.draining for seen in kit.store.workers.page(DEFAULT_NAMESPACE)] == [False]


@spec("B12")
def test_a_drain_of_an_unknown_name_reaches_no_worker(kit: Kit) -> None:
    _see(kit)

    assert not kit.store.workers.drain(DEFAULT_NAMESPACE, WorkerId("nobody"))
    assert not kit.store.workers.drain(Namespace("elsewhere"), WORKER_ID)
    assert not _see(kit)


@spec("B13")
def test_a_worker_that_ends_is_not_listed_any_more_but_its_successor_is(kit: Kit) -> None:
    _see(kit, worker=WorkerId("ended"))
    _see(kit, worker=WorkerId("restarted"), pid=7)
    _see(kit, worker=WorkerId("restarted"), pid=8)

    for name in ("ended", "restarted", "never-seen"):
        assert not _see(kit, worker=WorkerId(name), pid=7, is_ending=True)

    assert _names(kit) == ["restarted"]


@spec("B13")
def test_a_worker_that_has_not_reported_for_a_day_is_deleted(kit: Kit) -> None:
    _see(kit, worker=WorkerId("gone"))
    kit.advance(microseconds=1)
    _see(kit, worker=WorkerId("just-there"))
    kit.advance(microseconds=DAY)

    report = Retention(kit.store).run_once()

    assert report.deleted["workers"] == 1
    assert _names(kit) == ["just-there"]


@spec("B13")
def test_workers_are_forgotten_page_by_page_the_longest_silent_first(kit: Kit) -> None:
    for name in ("c", "b", "a"):
        _see(kit, worker=WorkerId(name))
        kit.advance(seconds=1)
    kit.advance(seconds=60)

    assert kit.store.upkeep.delete("workers", older_than_us=seconds(60), limit=2).deleted == 2
    assert _names(kit) == ["a"]
    assert kit.store.upkeep.delete("workers", older_than_us=seconds(60), limit=2).deleted == 1


@spec("J6")
@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("worker", {"worker": "no spaces"}),
        ("host", {"host": "a\nb"}),
        ("pid", {"pid": -1}),
        ("queues", {"queues": ()}),
        ("version", {"version": ""}),
    ],
)
def test_a_description_over_a_limit_is_refused_by_name(
    kit: Kit, field: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        _see(kit, **fields)
