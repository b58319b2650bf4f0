"""The public record of a job: one document, from Python, from HTTP and from `--json`."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from pydantic import TypeAdapter

from tenure import InvalidInput, JobRecord, JobStatus, Retry
from tenure.client.app import Application
from tenure.client.records import BODIES
from tenure.coordinator.sweeper import Sweeper
from tenure.core.vocabulary import ErrorClass
from tenure.protocol import records as protocol
from tenure.protocol.fields import moment
from tenure_conformance.spec import spec
from tests.client.scene import Scene


@dataclass
class Line:
    sku: str
    count: int


def finished_job(scene: Scene, app: Application) -> JobRecord:
    """A job that ran for five seconds and succeeded."""

    @app.job(queue="work")
    def invoice(line: Line) -> Line:
        return line

    job = invoice.enqueue(Line("pen", 3))
    grant = scene.claim()
    scene.world.clock.advance(5)
    scene.complete(grant, b'{"sku":"pen","count":3}')
    return job.refresh()


def test_the_public_record_has_the_fields_of_the_protocols() -> None:
    ours = {field.name: field for field in msgspec.structs.fields(JobRecord)}
    theirs = {field.name: field for field in msgspec.structs.fields(protocol.JobRecord)}

    assert ours.keys() == theirs.keys()
    for name in ours.keys() - set(BODIES):
        assert ours[name].type == theirs[name].type, name
        assert ours[name].default == theirs[name].default, name


def test_a_record_has_datetimes_decoded_bodies_and_a_duration(
    scene: Scene, app: Application
) -> None:
    record = finished_job(scene, app)

    now = moment(scene.world.clock())
    assert record.status is JobStatus.SUCCEEDED
    assert record.payload == {"line": {"sku": "pen", "count": 3}}
    assert record.result == {"sku": "pen", "count": 3}
    assert record.started_at == now - timedelta(seconds=5)
    assert record.started_at.tzinfo is UTC
    assert record.finished_at == now
    assert record.duration_s == 5
    assert record.checkpoint is msgspec.UNSET


def test_a_record_of_a_job_that_waits_has_no_result(app: Application) -> None:
    record = app.enqueue("work", {"n": 1}).refresh()

    assert record.result is msgspec.UNSET
    assert (record.started_at, record.duration_s, record.suspect) == (None, None, False)
    assert "result" not in record.to_dict()


@spec("L18")
def test_a_worker_that_is_silent_for_two_heartbeats_is_suspect(
    scene: Scene, app: Application
) -> None:
    @app.job(queue="work", lease="60s", heartbeat="15s")
    def work() -> None: ...

    job = work.enqueue()
    scene.claim()

    assert not job.refresh().suspect
    assert [each.suspect for each in app.jobs.ls()] == [False]
    scene.world.clock.advance(40)
    assert job.refresh().suspect
    assert job.refresh().to_dict()["suspect"] is True
    assert [each.suspect for each in app.jobs.ls()] == [True]


@spec("W5")
def test_a_handle_sweeps_a_job_whose_lease_is_over(scene: Scene, app: Application) -> None:
    @app.job(queue="work", lease="60s", retry=Retry(max_attempts=1))
    def work() -> None: ...

    waited, refreshed, _ = work.enqueue(), work.enqueue(), work.enqueue()
    for _ in range(3):
        scene.claim()
    world = scene.world
    sweeper = Sweeper(world.coordinator, monotonic=world.clock, pause=world.clock.advance)
    world.coordinator.sweep_overdue = sweeper.sweep_overdue
    world.clock.advance(480)

    assert waited.wait(timeout="1s") is JobStatus.DEAD_LETTERED
    assert refreshed.refresh().status is JobStatus.DEAD_LETTERED
    assert [each.status for each in app.jobs.ls()] == [JobStatus.DEAD_LETTERED] * 3


def test_an_error_has_its_traceback_apart_from_its_message(scene: Scene, app: Application) -> None:
    @app.job(queue="work")
    def work() -> None: ...

    job = work.enqueue()
    scene.fail(traceback="Traceback …")

    error = job.refresh().error
    assert error is not None
    assert error == job.error
    assert (error.type, error.message, error.traceback) == ("Boom", "it broke", "Traceback …")
    assert error.error_class is ErrorClass.PERMANENT


def test_to_dict_is_the_document_of_http(scene: Scene, app: Application) -> None:
    record = finished_job(scene, app)

    stored = scene.world.store.jobs.load([record.id]).jobs[record.id]
    sent = msgspec.json.encode(protocol.job_record(stored, now=scene.world.clock(), bodies=True))
    assert record.to_dict() == json.loads(sent)
    assert json.loads(json.dumps(record.to_dict())) == record.to_dict()


def test_pydantic_and_fastapi_serialise_a_record_as_it_is(scene: Scene, app: Application) -> None:
    """FastAPI hands an annotated result to pydantic, and calls `dict()` on any other."""
    record = finished_job(scene, app)

    assert TypeAdapter(JobRecord).dump_python(record, mode="json") == record.to_dict()
    assert json.loads(TypeAdapter(list[JobRecord]).dump_json([record])) == [record.to_dict()]
    assert TypeAdapter(JobRecord).json_schema() == {"type": "object", "title": "JobRecord"}
    assert dict(record) == record.to_dict()


# --- lists ---------------------------------------------------------------------------------------


def test_jobs_are_listed_newest_first_and_by_filters(scene: Scene, app: Application) -> None:
    @app.job(queue="work")
    def work(n: int) -> None: ...

    old, new = work.enqueue(1), work.using(correlation_id="order-7").enqueue(2)
    other = app.enqueue("elsewhere", {}, queue="far")
    scene.finish()

    listed = app.jobs.ls()
    assert [record.id for record in listed] == [other.id, new.id, old.id]
    assert all(record.payload is msgspec.UNSET for record in listed)
    assert listed[2].enqueued_at == moment(scene.world.clock())

    def ids(**filters: Any) -> list[str]:
        return [record.id for record in app.jobs.ls(**filters)]

    assert ids(kind="work") == [new.id, old.id]
    assert ids(queue="far") == [other.id]
    assert ids(status="succeeded") == [old.id]
    assert ids(status=["succeeded", JobStatus.QUEUED]) == [other.id, new.id, old.id]
    assert ids(status="COMPLETED") == [old.id]  # [S12]
    assert ids(status=["assigned", "COMPLETED"]) == [old.id]
    assert ids(correlation_id="order-7") == [new.id]
    assert ids(limit=1) == [other.id]
    assert ids(before=new.id) == [old.id]
    assert [record.id for record in asyncio.run(app.jobs.als(limit=1))] == [other.id]


@pytest.mark.parametrize(
    ("filters", "match"),
    [
        ({"status": "done"}, "status: 'done' is not one of waiting"),
        ({"limit": 0}, "limit: '0' is not a number from 1 to 500"),
        ({"before": "x"}, "before"),
        ({"queue": "no spaces"}, "queue"),
    ],
)
def test_a_wrong_filter_is_named(app: Application, filters: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        app.jobs.ls(**filters)


def test_events_and_artifacts_have_datetimes(scene: Scene, app: Application) -> None:
    job = app.enqueue("work", {})

    [event] = job.events()
    assert (event.id, event.name, event.cause) == (f"{job.id}:1", "job_enqueued", "enqueue")

    assert event.ts == moment(scene.world.clock())
    assert isinstance(event.ts, datetime)
    assert event.to_dict()["type"] == "enqueued"
    assert job.artifacts() == []
