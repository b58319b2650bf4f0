"""What is shown of jobs and events, and what is not."""

import msgspec

from tenure.core.commands import Fail, Heartbeat
from tenure.core.ids import RequestId, worker_actor
from tenure.core.job import JobError
from tenure.protocol.records import event_record
from tenure_conformance.spec import spec
from tests.support.coordinators import World


@spec("E1", "Q6")
def test_no_event_shows_a_lease_id_that_could_be_used() -> None:
    world = World()
    grant = world.running()
    world.coordinator.execute(
        Heartbeat(job_id=grant.job_id, lease_id=grant.lease_id, actor=worker_actor("w1"), hb_seq=7)
    )

    world.coordinator.execute(
        Fail(
            job_id=grant.job_id,
            lease_id=grant.lease_id,
            actor=worker_actor("w1"),
            request_id=RequestId(f"{grant.lease_id}:fail"),
            error=JobError(type="Boom", message="half-way"),
        )
    )

    shown = [
        event_record(event)
        for event in world.coordinator.store.events.load([grant.job_id])[grant.job_id]
    ]

    assert [(event.type, event.request_id[11:]) for event in shown[-3:]] == [
        ("lease_renewed", ":7"),
        ("stalled", ":fail"),
        ("requeued", ":fail"),
    ]
    assert grant.lease_id not in msgspec.json.encode(shown).decode()
    world.coordinator.close()
