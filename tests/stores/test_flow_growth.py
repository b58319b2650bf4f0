"""What a flow costs: the end of a parent costs the same in a join of fifty and of five thousand."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from tenure.coordinator import batches as batches_module
from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Complete, DeadLetter, Enqueue, EnqueueFlow, FlowMember, Parent
from tenure.core.ids import (
    Actor,
    FlowId,
    JobId,
    Kind,
    Namespace,
    RequestId,
    WorkerId,
    new_job_id,
)
from tenure.core.instants import seconds
from tenure.core.vocabulary import EventType, JobStatus, ReasonCode
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.statements import Query
from tenure.stores.sqlite.store import SqliteStore
from tenure.verify import assert_holds
from tenure_conformance.spec import spec
from tests.stores.lives import QUEUE, WORKER, change, save
from tests.support.counted_work import pages_read, steps_taken
from tests.support.doubles import Intercepted

SIZES = (50, 5_000)
HERE = Namespace("default")

AnyStore = PostgresStore | SqliteStore


def fan_in(store: Store, parents: int) -> EnqueueFlow:
    """So many jobs, and one that waits for all of them."""
    now = store.now()

    def job() -> Enqueue:
        return Enqueue(
            job_id=new_job_id(now, os.urandom(16)),
            namespace=HERE,
            queue=QUEUE,
            kind=Kind("part"),
            actor=Actor("client:c"),
        )

    parts = [FlowMember(job=job(), step=f"{number}") for number in range(parents)]
    after = tuple(Parent(job_id=each.job.job_id, step=each.step) for each in parts)
    join = FlowMember(job=job(), step="join", after=after)
    flow_id = FlowId(new_job_id(now, os.urandom(16)))
    return EnqueueFlow(flow_id=flow_id, name="fan", members=(*parts, join))


def filled(store: AnyStore, parents: int) -> list[JobId]:
    """A join, half of whose parents have ended. Returns one that has and one that has not."""
    flow = fan_in(store, parents)
    made = change(None, flow, store.now())
    save(store, [made])
    jobs = [made.job, *(each.job for each in made.spawned)][:parents]
    ended = jobs[: parents // 2]
    for start in range(0, len(ended), 500):
        save(
            store,
            [
                change(
                    job,
                    DeadLetter(
                        job_id=job.id,
                        actor=Actor("operator:o"),
                        request_id=RequestId("r"),
                        reason_code=ReasonCode.POLICY_VIOLATION,
                    ),
                    store.now(),
                )
                for job in ended[start : start + 500]
            ],
        )
    return [ended[0].id, jobs[-1].id]


def at_the_end_of_a_parent(store: AnyStore, ids: Sequence[JobId]) -> list[Query]:
    """What is asked and written when a parent ends, and by the process that looks afterwards."""
    packed = store.database.pack(ids)
    names = ("unblocked_by_one", "unblocked_by_all")
    return [
        *store.flows.edge_marks(ids),
        *[store.database.query(name, ids=packed, limit=10_000) for name in names],
    ]


@spec("FL4")
def test_postgres_reads_as_few_pages_for_a_parent_of_a_large_join(postgres_url: str) -> None:
    pages = []
    with closing(PostgresStore(postgres_url, migrate=True)) as store:
        for size in SIZES:
            ids = filled(store, size)
            with psycopg.connect(postgres_url, autocommit=True) as raw:
                raw.execute("VACUUM ANALYZE tenure.job_edge")
                raw.execute("VACUUM ANALYZE tenure.job")
            queries = at_the_end_of_a_parent(store, ids[1:])
            pages.append(pages_read(store, postgres_url, queries))

    small, large = pages
    assert 0 < large <= 2 * small + 4, f"{small} pages, then {large}"


@spec("FL4")
@pytest.mark.slow
def test_sqlite_takes_as_few_steps_for_a_parent_of_a_large_join(tmp_path: Path) -> None:
    steps = []
    for size in SIZES:
        path = tmp_path / f"{size}.db"
        with closing(SqliteStore(path)) as store:
            ids = filled(store, size)
            steps.append(steps_taken(store, path, at_the_end_of_a_parent(store, ids[1:])))

    small, large = steps
    assert 0 < large <= 2 * small, f"{small} steps, then {large}"


@spec("FL5")
def test_a_sweeper_that_has_nothing_to_do_reads_nothing_of_what_waits(tmp_path: Path) -> None:
    steps = []
    for size in SIZES:
        path = tmp_path / f"{size}.db"
        with closing(SqliteStore(path)) as store:
            save(store, [change(None, fan_in(store, size), store.now())])
            names = ("ended_outside", "load_edge_checks")
            queries = [store.database.query(name, limit=500) for name in names]
            steps.append(steps_taken(store, path, queries))

    assert steps[0] == steps[1]


class Counting(Intercepted):
    """A store that counts calls by name."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, self._count)
        self.calls: dict[str, int] = {}

    def _count(self, place: str, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.calls[place] = self.calls.get(place, 0) + 1
        return method(*given, **named)


@spec("FL3", "FL4", "FL5", "I32", "I33")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.slow
def test_a_fan_out_of_five_thousand_goes_through_its_join_in_batches(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a write may wait for longer: then it is decided again, which is one more.
    monkeypatch.setattr(batches_module, "ESTIMATE_ERROR", seconds(600))
    made: Store
    if kind == "sqlite":
        made = SqliteStore(tmp_path / "fan.db")
    else:
        made = PostgresStore(request.getfixturevalue("postgres_url"), migrate=True)
    parents = SIZES[1]
    batch = 500
    store = Counting(made)
    coordinator = Coordinator(cast(Store, store))
    flow = fan_in(made, parents)
    join = flow.members[-1].job.job_id

    coordinator.execute(flow)
    for seq in range(1, -(-parents // batch) + 1):
        answer = coordinator.claim(_claim_request(seq, batch))
        coordinator.execute_many(
            [
                Complete(
                    job_id=grant.job_id,
                    lease_id=grant.lease_id,
                    actor=WORKER,
                    request_id=RequestId("done"),
                )
                for grant in answer.grants
            ]
        )
    coordinator.close()

    batches = -(-parents // batch)
    assert made.jobs.load([join]).jobs[join].status is JobStatus.QUEUED
    types = [event.type for event in made.events.load([join])[join]]
    assert types == [EventType.ENQUEUED, EventType.READY]
    # The flow, a save for each batch of completions, and one for the child.
    assert store.calls["jobs.save"] <= batches + 2
    assert store.calls["flows.unblocked"] <= batches + 1
    assert_holds(made)
    made.close()


def _claim_request(seq: int, limit: int) -> ClaimRequest:
    return ClaimRequest(
        namespace=HERE,
        worker=WorkerId("w"),
        actor=WORKER,
        queues=(QUEUE,),
        limit=limit,
        claim_seq=seq,
        request_id=RequestId(f"claim-{seq}"),
        start=True,
    )
