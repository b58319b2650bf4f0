"""Short lives of jobs, led directly on a store: no coordinator between test and database."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tenure.core.claims import ClaimPlan, ClaimRequest, ClaimView, plan_claims
from tenure.core.commands import Command, Complete, Enqueue, Heartbeat, Start
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Actor,
    Epoch,
    JobId,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    new_job_id,
)
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job, Progress
from tenure.core.lifecycle import decide
from tenure.core.outcomes import Applied, Change, DecisionContext
from tenure.deadlines import deadline
from tenure.ports import NO_WAIT, Saved, Store
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.postgres.wire import Wire

QUEUE = QueueName("mail")
WORKER = Actor("worker:w")
EPOCH = Epoch(1)


@contextmanager
def taken(store: PostgresStore, *, listing: bool = False) -> Iterator[Wire]:
    """A connection of the store, which no other thread has meanwhile."""
    pool = store.database.listing_pool if listing else store.database.pool
    wire = pool.take(deadline(10))
    try:
        yield wire
    finally:
        pool.give_back(wire)


def change(job: Job | None, command: Command, now: Instant) -> Change:
    """The change a command makes; it must make one."""
    outcome = decide(
        command, DecisionContext(now=now, epoch=EPOCH, entropy=os.urandom(16), job=job)
    )
    assert isinstance(outcome, Applied), outcome
    return outcome.change


def enqueue_changes(
    store: Store,
    count: int,
    *,
    dedupe_key: str | None = None,
    unique_for_us: Duration | None = None,
    delay_us: Duration = NO_WAIT,
) -> list[Change]:
    """New jobs, decided but not saved."""
    now = store.now()
    return [
        change(
            None,
            Enqueue(
                job_id=new_job_id(now, os.urandom(16)),
                namespace=DEFAULT_NAMESPACE,
                queue=QUEUE,
                kind=Kind("send"),
                actor=Actor("client:c"),
                payload=b'{"to":"a"}',
                dedupe_key=dedupe_key,
                unique_for_us=unique_for_us,
                delay_us=delay_us,
            ),
            now,
        )
        for _ in range(count)
    ]


def save(store: Store, changes: Sequence[Change]) -> Saved:
    """Save changes, all of which must stick."""
    saved = store.jobs.save(changes, epoch=EPOCH)
    assert len(saved.applied) == len(changes)
    return saved


def enqueue(store: Store, count: int = 1) -> list[JobId]:
    """New jobs in the queue."""
    changes = enqueue_changes(store, count)
    save(store, changes)
    return [each.job.id for each in changes]


def claim_request(count: int, *, seq: int = 1, worker: str = "w") -> ClaimRequest:
    """A claim of one session."""
    return ClaimRequest(
        namespace=DEFAULT_NAMESPACE,
        worker=WorkerId(worker),
        actor=WORKER,
        queues=(QUEUE,),
        limit=count,
        claim_seq=seq,
        request_id=RequestId(f"claim-{worker}-{seq}"),
    )


def planner(request: ClaimRequest) -> Callable[[ClaimView], ClaimPlan]:
    """What decides a claim of one request."""
    return lambda view: plan_claims([request], view, [os.urandom(16) for _ in view.candidates])


def claim(store: Store, count: int, *, seq: int = 1, worker: str = "w") -> list[Job]:
    """Claimed jobs."""
    request = claim_request(count, seq=seq, worker=worker)
    plan = store.claims.claim(request.scope, [request.session], count, planner(request))
    return [grant.job for answer in plan.answers for grant in answer.grants]


def _led(store: Store, jobs: Sequence[Job], command: Callable[[Job], Command]) -> list[Job]:
    now = store.now()
    changes = [change(job, command(job), now) for job in jobs]
    save(store, changes)
    return [each.job for each in changes]


def start(store: Store, jobs: Sequence[Job]) -> list[Job]:
    """The jobs, running."""
    return _led(store, jobs, start_command)


def start_command(job: Job) -> Start:
    """The owner's start."""
    assert job.lease_id is not None
    return Start(
        job_id=job.id, lease_id=job.lease_id, actor=WORKER, request_id=RequestId(f"s-{job.id}")
    )


def heartbeat(store: Store, jobs: Sequence[Job]) -> list[Job]:
    """The jobs, their leases renewed."""

    def renew(job: Job) -> Heartbeat:
        assert job.lease_id is not None
        return Heartbeat(
            job_id=job.id,
            lease_id=job.lease_id,
            actor=WORKER,
            hb_seq=job.hb_seq + 1,
            progress=Progress(done=job.hb_seq),  # without news it would be early [L16]
        )

    return _led(store, jobs, renew)


def complete(store: Store, jobs: Sequence[Job]) -> list[Job]:
    """The jobs, succeeded."""

    def report(job: Job) -> Complete:
        assert job.lease_id is not None
        return Complete(
            job_id=job.id,
            lease_id=job.lease_id,
            actor=WORKER,
            request_id=RequestId(f"c-{job.id}"),
            result=b"42",
        )

    return _led(store, jobs, report)
