"""What a worker's child counted is added to its supervisor's counts, whole and within bounds."""

import msgspec
import pytest
from msgspec.structs import replace

from tenure.coordinator.service import Coordinator
from tenure.core.commands import Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, QueueName, client_actor, new_job_id
from tenure.core.instants import Instant
from tenure.stores.sqlite.memory import MemoryStore
from tenure.telemetry.counts import OTHER, Counts, CountsTaken, Tally
from tenure.telemetry.metrics import Metrics
from tenure.worker.frames import EventsCounted, decode_to_supervisor, encode_frame
from tenure_conformance.harness import LIMITS
from tenure_conformance.spec import spec
from tests.telemetry.logs import assert_agree
from tests.telemetry.scrape import samples, total

COMMAND = Enqueue(
    job_id=new_job_id(Instant(0), bytes(16)),
    namespace=DEFAULT_NAMESPACE,
    queue=QueueName("q"),
    kind=Kind("k"),
    actor=client_actor("shop"),
)
LENGTH_BYTES = 4


def send(child: Counts, supervisor: Counts) -> None:
    """Over the wire, as a child does at the end of an attempt."""
    taken = child.take()
    assert taken is not None
    frame = encode_frame(EventsCounted(taken))
    heard = decode_to_supervisor(frame[LENGTH_BYTES:])
    assert isinstance(heard, EventsCounted)
    supervisor.add(heard.counts)


@spec("OB24", "I23")
def test_the_supervisor_has_all_that_its_child_counted_once() -> None:
    store, child, supervisor = MemoryStore(), Counts(), Counts()
    coordinator = Coordinator(store, limits=LIMITS, observer=child)
    for number in range(3):
        job_id = new_job_id(Instant(number * 1000), bytes(16))
        coordinator.execute(replace(COMMAND, job_id=job_id))
        send(child, supervisor)
    coordinator.close()

    assert child.take() is None
    assert_agree(Metrics(supervisor).text(), store.audit.records(page_size=100))


def test_lost_races_of_a_child_are_counted() -> None:
    child, supervisor = Counts(), Counts()
    child.missed([COMMAND])

    send(child, supervisor)

    assert total(Metrics(supervisor).text(), "tenure_lost_races_total") == 1


def test_operations_that_do_not_exist_are_not_shown() -> None:
    counts = Counts()
    counts.add(CountsTaken({}, {f"made up {n}": 1 for n in range(1000)}))

    assert "made up" not in Metrics(counts).text().decode()


def test_negative_counts_are_refused() -> None:
    frame = encode_frame(EventsCounted(CountsTaken({}, {"enqueue": -1})))

    with pytest.raises(msgspec.ValidationError, match=">= 0"):
        decode_to_supervisor(frame[LENGTH_BYTES:])


@pytest.mark.parametrize("label", ["k" * 129, "k\n", "", "(others)"])
def test_a_label_that_is_no_name_is_refused(label: str) -> None:
    counted = EventsCounted(CountsTaken({(DEFAULT_NAMESPACE, Kind(label)): Tally()}, {}))

    with pytest.raises(msgspec.ValidationError):
        decode_to_supervisor(encode_frame(counted)[LENGTH_BYTES:])


@spec("OB10")
def test_labels_of_a_child_are_bounded_like_the_supervisors_own() -> None:
    child, store = Counts(kinds=1, namespaces=1), MemoryStore()
    coordinator = Coordinator(store, limits=LIMITS, observer=child)
    for number, (namespace, kind) in enumerate([("a", "k"), ("a", "l"), ("b", "k")]):
        named = {"namespace": Namespace(namespace), "kind": Kind(kind)}
        job_id = new_job_id(Instant(number * 1000), bytes(16))
        coordinator.execute(replace(COMMAND, job_id=job_id, **named))
    coordinator.close()
    supervisor = Counts(kinds=10, namespaces=1)

    send(child, supervisor)

    exposed = samples(Metrics(supervisor).text())["tenure_transitions_total"]
    labels = {(dict(each)["namespace"], dict(each)["kind"]) for each in exposed}
    assert labels == {("a", "k"), ("a", OTHER), (OTHER, OTHER)}
