"""What deciding about flows asks of a store: a question for a batch, a page at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, cast

import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.flows import MAX_FLOW_PAYLOAD_BYTES
from tenure.core.ids import FlowId
from tenure.core.validation import Limits, check_command
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause, JobStatus
from tenure.errors import InvalidInput
from tenure.ports import Store
from tenure_conformance.harness import Kit, MemoryFactory
from tenure_conformance.spec import spec
from tenure_conformance.store.test_handler_flows import made_by
from tests.support.doubles import Intercepted

WATCHED = ("jobs.load", "flows.load", "flows.existing")


class AskedStore(Intercepted):
    """Notes how many ids each call asks for."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, self._note)
        self.asked: list[tuple[str, int]] = []

    def _note(self, place: str, method: Callable[..., Any], *asked: Any, **named: Any) -> Any:
        if place in WATCHED:
            ids = (
                asked[0] if isinstance(asked[0], Sequence) and place != "flows.load" else asked[:1]
            )
            self.asked.append((place, len(ids)))
        return method(*asked, **named)


@pytest.fixture
def kit() -> Iterator[Kit]:
    with closing(Kit(MemoryFactory())) as kit:
        yield kit


def watching(kit: Kit) -> tuple[AskedStore, Coordinator]:
    store = AskedStore(kit.store)
    return store, kit.coordinate(cast(Store, store))


@spec("FL13")
def test_whether_flows_of_handlers_exist_is_asked_once_for_a_batch(kit: Kit) -> None:
    commands = [made_by(kit, kit.running_job(), {"a": [], "b": ["a"]}) for _ in range(3)]
    store, coordinator = watching(kit)

    first = coordinator.submit_many(commands).result()
    again = coordinator.submit_many(commands).result()

    assert [each.replayed for each in first if isinstance(each, Reply)] == [False] * 3
    assert [each.replayed for each in again if isinstance(each, Reply)] == [True] * 3
    asked = [each for each in store.asked if each[0] != "jobs.load"]
    assert asked == [("flows.existing", 3)] * 2


@spec("FL10")
def test_a_redrive_reads_the_jobs_that_it_replaces_a_page_at_a_time(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.coordinator.batches.REPLACED_PER_READ", 2)
    flow = kit.flow({str(number): [] for number in range(5)}, payload=b'"p"')
    for job in flow.values():
        kit.dead_letter(job)
    store, coordinator = watching(kit)
    flow_id = flow["0"].flow_id
    assert flow_id is not None

    reply = coordinator.execute(kit.redriving_flow(flow_id))

    assert isinstance(reply, Reply)
    assert reply.redrive is not None
    assert reply.redrive.jobs == 5
    assert max(number for name, number in store.asked if name == "jobs.load") == 2
    made = [job for job in kit.claimed(5) if job.flow_id == flow_id]
    assert [job.payload for job in made] == [b'"p"'] * 5


@spec("FL10")
def test_a_redrive_of_a_flow_that_does_not_exist_is_refused(kit: Kit) -> None:
    reply = kit.coordinator.execute(kit.redriving_flow(FlowId(kit.new_id())))

    assert reply == Reply(job=None, cause=Cause.UNKNOWN_JOB)


@spec("FL5")
def test_a_coordinator_that_closes_ends_what_follows_from_the_end_of_a_job(kit: Kit) -> None:
    names = [str(number) for number in range(20)]
    parents = dict(zip(names[1:], names, strict=False))
    flow = kit.flow({name: [parents[name]] if name in parents else [] for name in names})
    coordinator = kit.coordinate(kit.store)

    coordinator.execute(kit.cancellation(flow["0"]))
    coordinator.close()

    found = kit.store.jobs.load([job.id for job in flow.values()]).jobs
    assert {job.status for job in found.values()} == {JobStatus.CANCELLED}


@spec("FL3")
@pytest.mark.slow
def test_a_flow_whose_payloads_are_too_large_together_is_refused(kit: Kit) -> None:
    payload = b'"' + b"x" * ((1 << 20) - 2) + b'"'
    number = MAX_FLOW_PAYLOAD_BYTES // len(payload)
    limits = Limits()
    fits = kit.new_flow({str(n): [] for n in range(number)}, payload=payload)
    too_many = kit.new_flow({str(n): [] for n in range(number + 1)}, payload=payload)

    check_command(fits, limits)
    with pytest.raises(InvalidInput, match="over the limit of 67108864 for a flow"):
        check_command(too_many, limits)
