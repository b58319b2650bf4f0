"""Closing: a closed store says so, and what it had acknowledged is still there."""

from collections.abc import Callable
from typing import Any

import pytest

from tenure.conformance.harness import BEGINNING, KIND, QUEUE, WORKER, Kit
from tenure.conformance.spec import spec
from tenure.core.claims import ClaimScope, SessionKey
from tenure.core.commands import Outage
from tenure.core.events import Observation
from tenure.core.ids import DEFAULT_NAMESPACE, Epoch, JobId, WorkerId
from tenure.core.instants import Duration
from tenure.core.vocabulary import ObservationType
from tenure.errors import Closed
from tenure.ports import DedupeKey, EventFilter, JobFilter, Store

KEY = DedupeKey(DEFAULT_NAMESPACE, KIND, "k")
NOTE = Observation(
    job_id=JobId("01977420-dc00-7000-8000-000000000000"),
    type=ObservationType.FOREIGN_LEASE,
    ts=BEGINNING,
    actor=WORKER,
)
SCOPE = ClaimScope(namespace=DEFAULT_NAMESPACE, queues=(QUEUE,), kinds=None)
DAY = Duration(24 * 3600 * 1_000_000)
SESSION = SessionKey(namespace=DEFAULT_NAMESPACE, actor=WORKER, worker=WorkerId("kit-1"))
SOME_ID = NOTE.job_id

CALLS: dict[str, Callable[[Store], Any]] = {
    "load": lambda store: store.load([SOME_ID]),
    "load_holders": lambda store: store.load_holders([KEY]),
    "now": lambda store: store.now(),
    "load_leased": lambda store: store.load_leased(SESSION),
    "load_leases": lambda store: store.load_leases([SOME_ID]),
    "load_histories": lambda store: store.load_histories([SOME_ID]),
    "load_observations": lambda store: store.load_observations(SOME_ID),
    "observe": lambda store: store.observe([NOTE]),
    "claim": lambda store: store.claim(SCOPE, [], 1, lambda _: pytest.fail("was asked to plan")),
    "due": lambda store: store.due(limit=1),
    "put_queue": lambda store: store.put_queue(DEFAULT_NAMESPACE, QUEUE, paused=True, limit=None),
    "queues": lambda store: store.queues(DEFAULT_NAMESPACE),
    "tick": lambda store: store.tick(),
    "record_outage": lambda store: store.record_outage(Outage(BEGINNING, BEGINNING)),
    "outages": lambda store: store.outages(since=BEGINNING),
    "raise_epoch": lambda store: store.raise_epoch(),
    "prune_renewals": lambda store: store.prune_renewals(limit=1),
    "expire_observations": lambda store: store.expire_observations(older_than_us=DAY, limit=1),
    "purge": lambda store: store.purge(older_than_us=DAY, limit=1),
    "list_jobs": lambda store: store.list_jobs(JobFilter(namespace=DEFAULT_NAMESPACE)),
    "list_events": lambda store: store.list_events(EventFilter()),
    "records": lambda store: list(store.records(page_size=1)),
    "live_keys": lambda store: list(store.live_keys()),
    "lease_holders": lambda store: list(store.lease_holders()),
}


def test_every_call_after_close_says_closed(kit: Kit) -> None:
    birth = kit.change(kit.new())
    kit.store.close()

    calls = CALLS | {"save": lambda store: store.save([birth], epoch=Epoch(1))}
    for name, call in calls.items():
        try:
            call(kit.store)
        except Closed:
            continue
        pytest.fail(f"{name} did not raise Closed")


def test_closing_twice_is_no_error(kit: Kit) -> None:
    kit.store.close()
    kit.store.close()


@spec("I21")
def test_another_handle_sees_what_was_acknowledged(kit: Kit) -> None:
    queued, done = kit.enqueue(), kit.running_job(priority=1)
    kit.complete(done, result=b'{"a":1}')
    rows, logs = [kit.reload(job) for job in (queued, done)], [kit.events(queued), kit.events(done)]

    other = kit.factory.reopen()

    loaded = other.load([queued.id, done.id]).jobs
    assert [loaded[queued.id], loaded[done.id]] == rows
    histories = other.load_histories([queued.id, done.id])
    assert [histories[queued.id], histories[done.id]] == logs


@spec("I21")
def test_two_handles_work_on_one_queue(kit: Kit) -> None:
    jobs = [kit.enqueue() for _ in range(4)]
    rival = kit.rival()

    mine = kit.claimed(limit=2)
    yours = rival.claim(kit.claim_request(limit=5, worker=WorkerId("kit-2"))).grants

    assert [job.id for job in mine] + [grant.job_id for grant in yours] == sorted(
        job.id for job in jobs
    )
    for job in mine:
        rival.execute(kit.completion(job))
        assert kit.reload(job).status.is_terminal
