"""What a process without metrics has counted reaches one that has some, whole and once."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.msgpack import encode
from msgspec.structs import replace

from tenure import Tenure
from tenure.conformance.harness import LIMITS
from tenure.conformance.spec import spec
from tenure.coordinator.handing import HandingOver, TakingOver
from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Enqueue
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Kind,
    Namespace,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    worker_actor,
)
from tenure.core.instants import Instant
from tenure.core.outcomes import Change
from tenure.errors import OutcomeUnknown, StoreUnavailable, TenureError
from tenure.ports import Store
from tenure.stores.memory.store import MemoryStore
from tenure.telemetry.counts import MAX_NAMESPACES, OTHER, Counts, Tallies, unseen
from tenure.telemetry.metrics import Metrics
from tenure.wiring import open_store
from tenure.worker.attempts import completion
from tests.server.processes import ROOT
from tests.telemetry.logs import assert_agree
from tests.telemetry.scrape import samples, total

ACTOR = worker_actor("w")
COMMAND = Enqueue(
    job_id=new_job_id(Instant(0), bytes(16)),
    namespace=DEFAULT_NAMESPACE,
    queue=QueueName("q"),
    kind=Kind("k"),
    actor=client_actor("shop"),
)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'own.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url, migrate=True)
    yield store
    store.close()


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
    return psycopg.connect(url)


@spec("OB7", "I22")
def test_what_an_application_commits_is_counted_by_whoever_shows_metrics(
    url: str, store: Store
) -> None:
    app = Tenure(url)

    @app.job(queue="q")
    def work(number: int) -> int:
        return number

    counts = Counts()
    coordinator = Coordinator(store, limits=LIMITS, observer=counts)
    work.enqueue(1)
    with closing(connect(url)) as connection:
        work.enqueue(2, connection=connection)
        connection.rollback()
        kept = work.enqueue(3, connection=connection)
        connection.commit()
    claim = ClaimRequest(
        namespace=DEFAULT_NAMESPACE,
        worker=WorkerId("w"),
        actor=ACTOR,
        queues=(QueueName("q"),),
        limit=10,
        claim_seq=1,
        request_id=RequestId("w:1"),
    )
    grants = {grant.job_id: grant for grant in coordinator.claim(claim).grants}
    with closing(connect(url)) as connection, app.transaction_on(connection) as settle:
        settle(
            completion(job_id=kept.id, lease_id=grants[kept.id].lease_id, actor=ACTOR, result=b"3")
        )
    app.close()

    TakingOver(store, counts).take_over()
    TakingOver(store, counts).take_over()  # there is nothing left to take
    text = Metrics(counts).text()
    coordinator.close()

    assert_agree(text, store.records(page_size=100))
    assert total(text, "tenure_transitions_total", type="enqueued") == len(grants) == 2
    assert total(text, "tenure_transitions_total", type="succeeded") == 1
    assert total(text, "tenure_run_seconds_count") == 1


SCRIPT = """
import os, sys
from tenure import Tenure
app = Tenure(sys.argv[1])
job = app.job(queue="q", name="work")(lambda: None)
{body}
"""
ENDS = "job.enqueue()"
FORKS = """
job.enqueue()
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    job.enqueue()
"""


@spec("OB7")
@pytest.mark.parametrize(("body", "enqueued"), [(ENDS, 1), (FORKS, 2)], ids=["ends", "forks"])
def test_a_program_that_closes_nothing_hands_over_at_its_end(
    store: Store, url: str, body: str, enqueued: int
) -> None:
    script = SCRIPT.format(body=body)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, url],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )

    counts = Counts()
    TakingOver(store, counts).take_over()

    assert (ran.returncode, ran.stderr) == (0, "")
    assert_agree(Metrics(counts).text(), store.records(page_size=100))
    assert total(Metrics(counts).text(), "tenure_transitions_total") == enqueued


class Failing(MemoryStore):
    """Fails to take counts, as it is told to."""

    failure: TenureError | None = None

    def hand_over_counts(self, counts: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        super().hand_over_counts(counts)


def missed(counts: Counts) -> float:
    return total(Metrics(counts).text(), "tenure_claim_conflicts_total")


@pytest.mark.parametrize(
    ("failure", "left"), [(StoreUnavailable("gone"), 1), (OutcomeUnknown("perhaps"), 0)]
)
def test_counts_that_were_not_handed_over_are_kept_unless_they_may_have_been(
    failure: TenureError, left: int
) -> None:
    store, counts, shown = Failing(), Counts(), Counts()
    counts.missed([COMMAND])
    store.failure = failure
    with pytest.raises(type(failure)):
        HandingOver(store, counts).hand_over()
    store.failure = None

    HandingOver(store, counts).hand_over()
    TakingOver(store, shown).take_over()

    assert missed(shown) == left


class Slow(MemoryStore):
    """Takes its time with counts."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_go_on = threading.Event(), threading.Event()

    def hand_over_counts(self, counts: bytes) -> None:
        self.is_asked.set()
        self.may_go_on.wait(60)
        super().hand_over_counts(counts)


@spec("OB7")
def test_an_end_while_counts_are_on_their_way_waits_for_them_and_sends_the_rest() -> None:
    store, counts, shown = Slow(), Counts(), Counts()
    counts.missed([COMMAND])
    handing = HandingOver(store, counts, last_words_within_s=60)
    handing.start()
    assert store.is_asked.wait(60)
    counts.missed([COMMAND])

    threading.Timer(0.1, store.may_go_on.set).start()
    handing.stop()
    TakingOver(store, shown).take_over()

    assert missed(shown) == 2


def test_an_end_does_not_wait_for_a_store_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    store, counts = Slow(), Counts()
    counts.missed([COMMAND])
    handing = HandingOver(store, counts, last_words_within_s=0.01)
    handing.start()

    handing.stop()

    assert "no answer in time" in caplog.text
    assert not store.may_go_on.is_set()
    store.may_go_on.set()


DEEP = b"\x83\xa7tallies\x80\xa6misses\x80\xa1x" + b"\x91" * 200_000 + b"\xc0"
NO_TEXT = b"\x82\xa7tallies\x80\xa6misses\x81\xa1\xff\x01"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"not counts", id="no document"),
        pytest.param(NO_TEXT, id="no text"),
        pytest.param(DEEP, id="too deep"),
        pytest.param(encode({"tallies": {}, "misses": {"enqueue": -1}}), id="less than none"),
    ],
)
def test_counts_that_cannot_be_read_are_said_and_left_out(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store, counts, sent = MemoryStore(), Counts(), Counts()
    sent.missed([COMMAND])
    handed = sent.take()
    assert handed is not None
    for each in (body, handed):
        store.hand_over_counts(each)

    TakingOver(store, counts).take_over()

    assert missed(counts) == 1
    assert "cannot be read" in caplog.text
    assert sent.take() is None


def test_operations_that_there_are_not_are_not_shown() -> None:
    counts = Counts()
    counts.add(encode({"tallies": {}, "misses": {f"made up {n}": 1 for n in range(1000)}}))

    assert "made up" not in Metrics(counts).text().decode()


@spec("OB10")
def test_a_label_is_not_lost_among_many_of_one_second() -> None:
    store, counts, shown = MemoryStore(), unseen(), Counts()
    coordinator = Coordinator(store, limits=LIMITS, observer=counts)
    names = [Namespace(f"n{number}") for number in range(MAX_NAMESPACES + 1)]
    ids = [new_job_id(Instant(number * 1000), bytes(16)) for number in range(len(names))]
    for job_id, name in zip(ids, names, strict=True):
        coordinator.execute(replace(COMMAND, job_id=job_id, namespace=name))
    coordinator.close()
    last = store.load(ids).jobs[ids[-1]]
    shown.saved([Change(job=last, expected_rev=0, events=())], {})

    HandingOver(store, counts).hand_over()
    TakingOver(store, shown).take_over()

    text = Metrics(shown).text()
    assert total(text, "tenure_transitions_total", namespace=last.namespace) == 1
    assert total(text, "tenure_transitions_total", namespace=OTHER) == 1


@spec("OB10")
def test_labels_of_others_are_bounded_like_ones_own() -> None:
    sender, store = Counts(tallies=Tallies(kinds=1, namespaces=1)), MemoryStore()
    coordinator = Coordinator(store, limits=LIMITS, observer=sender)
    for number, (namespace, kind) in enumerate([("a", "k"), ("a", "l"), ("b", "k")]):
        named = {"namespace": Namespace(namespace), "kind": Kind(kind)}
        job_id = new_job_id(Instant(number * 1000), bytes(16))
        coordinator.execute(replace(COMMAND, job_id=job_id, **named))
    coordinator.close()
    shown = Counts(tallies=Tallies(kinds=10, namespaces=1))

    HandingOver(store, sender).hand_over()
    TakingOver(store, shown).take_over()
    exposed = samples(Metrics(shown).text())["tenure_transitions_total"]

    labels = {(dict(each)["namespace"], dict(each)["kind"]) for each in exposed}
    assert labels == {("a", "k"), ("a", OTHER), (OTHER, OTHER)}
