"""A client reads all pages of queues, workers and schedules."""

import pytest

from tenure.core.ids import DEFAULT_NAMESPACE, QueueName, ScheduleName, WorkerId, worker_actor
from tenure.core.instants import seconds
from tenure.core.schedules import PutSchedule, ScheduleSpec
from tenure.core.workers import WorkerProcess
from tenure.remote import store as remote_store
from tenure_conformance.harness import KIND, OPERATOR, QUEUE
from tenure_conformance.spec import spec
from tests.remote.over_http import RemoteKit


@spec("H86")
def test_a_client_reads_all_pages(kit: RemoteKit, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n-{number}" for number in range(5)]
    for name in names:
        kit.enqueue(queue=QueueName(name))
        kit.coordinator.change_schedule(
            PutSchedule(
                namespace=DEFAULT_NAMESPACE,
                name=ScheduleName(name),
                actor=OPERATOR,
                spec=ScheduleSpec(kind=KIND, queue=QUEUE, every_us=seconds(3600)),
            )
        )
        kit.coordinator.store.workers.see(
            WorkerProcess(
                namespace=DEFAULT_NAMESPACE,
                worker=WorkerId(name),
                actor=worker_actor(WorkerId("some one")),
                host="h",
                pid=1,
                queues=(QUEUE,),
                concurrency=1,
                version="1",
                uptime_us=seconds(0),
            )
        )
    monkeypatch.setattr(remote_store, "MAX_PAGE", 2)
    store, here = kit.store, DEFAULT_NAMESPACE

    assert [each.name for each in store.settings.queues(here)] == names
    assert [each.name for each in store.schedules.page(here)] == names
    assert [each.worker for each in store.workers.page(here)] == names
    assert [each.name for each in store.settings.queues(here, after=names[0], limit=3)] == names[
        1:4
    ]
