"""Closing: a closed store says so, and what it had acknowledged is still there."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from tenure.core.artifacts import ArtifactUpload, AttemptOutput
from tenure.core.claims import ClaimScope
from tenure.core.commands import Outage
from tenure.core.flow_rows import EdgeCheck
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Epoch,
    Fingerprint,
    FlowId,
    JobId,
    RequestId,
    ScheduleName,
    WorkerId,
    new_lease_id,
)
from tenure.core.instants import Duration
from tenure.core.kind_settings import KindChange
from tenure.core.leases import LeaseRef
from tenure.core.outcomes import SessionKey
from tenure.core.schedules import Schedule, ScheduleChange, ScheduleSpec
from tenure.core.tokens import TOKEN_ENTROPY_BYTES, NewToken, mint
from tenure.core.verdicts import Observation, Resolution
from tenure.core.views.dead_letter_groups import DeadLetterGroupFilter
from tenure.core.views.event_counts import EventSpan
from tenure.core.views.events import EventFilter, TailFilter
from tenure.core.views.job_search import JobFilter
from tenure.core.views.overview import OverviewFilter
from tenure.core.views.rollups import Fold, FoldProgress
from tenure.core.vocabulary import ObservationType, ResolutionKind, Role
from tenure.core.workers import WorkerProcess
from tenure.errors import Closed
from tenure.ports import DedupeKey, DueJobs, KeyHolders, LeasedJobs, Store
from tenure_conformance.harness import BEGINNING, CLIENT, KIND, QUEUE, WORKER, WORKER_ID, Kit
from tenure_conformance.spec import spec

JOB = JobId("01977420-dc00-7000-8000-000000000000")
LEASE = new_lease_id(Epoch(1), bytes(16))
KEY = DedupeKey(DEFAULT_NAMESPACE, KIND, "k")
NOTE = Observation(job_id=JOB, type=ObservationType.FOREIGN_LEASE, ts=BEGINNING, actor=WORKER)
SCOPE = ClaimScope(namespace=DEFAULT_NAMESPACE, queues=(QUEUE,), kinds=None)
DAY = Duration(24 * 3600 * 1_000_000)
SESSION = SessionKey(namespace=DEFAULT_NAMESPACE, actor=WORKER, worker=WORKER_ID)
DISCARDED = Resolution(
    job_id=JOB,
    kind=ResolutionKind.DISCARDED,
    ts=BEGINNING,
    actor=CLIENT,
    request_id=RequestId("r"),
    fingerprint=Fingerprint("f"),
)
UPLOAD = ArtifactUpload(job_id=JOB, lease_id=LEASE, actor=WORKER, name="a", body=b"")
OUTPUT = AttemptOutput(job_id=JOB, lease_id=LEASE, actor=WORKER, text="")
PROCESS = WorkerProcess(
    namespace=DEFAULT_NAMESPACE,
    worker=WORKER_ID,
    actor=WORKER,
    host="h",
    pid=1,
    queues=(QUEUE,),
    concurrency=1,
    version="1",
    uptime_us=Duration(0),
)
TOKEN, DIGEST, _ = mint(bytes(TOKEN_ENTROPY_BYTES))
NEW_TOKEN = NewToken(id=TOKEN, secret_sha256=DIGEST, name="w", role=Role.WORKER)

SCHEDULE = Schedule(
    namespace=DEFAULT_NAMESPACE,
    name=ScheduleName("s"),
    spec=ScheduleSpec(kind=KIND, queue=QUEUE, every_us=DAY),
    rev=1,
    created_at=BEGINNING,
    created_by=CLIENT,
    changed_at=BEGINNING,
    changed_by=CLIENT,
    updated_at=BEGINNING,
)

SPAN = EventSpan(namespace=DEFAULT_NAMESPACE, since=BEGINNING, until=BEGINNING)

CALLS: dict[str, Callable[[Store], Any]] = {
    "now": lambda store: store.now(),
    "jobs.load": lambda store: store.jobs.load([JOB]),
    "jobs.read": lambda store: store.jobs.read([JOB]),
    "jobs.body_sizes": lambda store: store.jobs.body_sizes([JOB]),
    "views.jobs previews": lambda store: store.views.jobs(
        JobFilter(namespace=DEFAULT_NAMESPACE, previews=True)
    ),
    "settings.kinds by name": lambda store: store.settings.kinds(DEFAULT_NAMESPACE, [KIND]),
    "jobs.load by key": lambda store: store.jobs.load(KeyHolders((KEY,))),
    "jobs.load by session": lambda store: store.jobs.load(LeasedJobs(SESSION), bodies=False),
    "jobs.read without bodies": lambda store: store.jobs.read([JOB], bodies=False),
    "jobs.peek_leases": lambda store: store.jobs.peek_leases([LeaseRef(JOB, LEASE)], WORKER),
    "events.load latest": lambda store: store.events.load([JOB], latest=2),
    "events.load": lambda store: store.events.load([JOB]),
    "jobs.save_locked": lambda store: store.jobs.save_locked(
        [JOB], [SESSION], lambda _: pytest.fail("was asked to decide")
    ),
    "jobs.resolve": lambda store: store.jobs.resolve([DISCARDED]),
    "jobs.resolutions": lambda store: store.jobs.resolutions([JOB]),
    "jobs.observe": lambda store: store.jobs.observe([NOTE]),
    "jobs.observations": lambda store: store.jobs.observations(JOB),
    "claims.claim": lambda store: store.claims.claim(
        SCOPE, [], 1, lambda _: pytest.fail("was asked to plan")
    ),
    "upkeep.delete sessions": lambda store: (
        store.upkeep.delete("sessions", older_than_us=DAY, limit=1).deleted
    ),
    "jobs.load what is due": lambda store: store.jobs.load(DueJobs(1)),
    "settings.put_queue": lambda store: store.settings.put_queue(
        DEFAULT_NAMESPACE, QUEUE, paused=True, limit=None
    ),
    "watch": lambda store: store.watch(lambda _: None),
    "claims.next_ready": lambda store: store.claims.next_ready(DEFAULT_NAMESPACE, [QUEUE]),
    "schedules.page": lambda store: store.schedules.page(DEFAULT_NAMESPACE),
    "schedules.load": lambda store: store.schedules.load(DEFAULT_NAMESPACE, SCHEDULE.name),
    "schedules.due": lambda store: store.schedules.due(limit=1),
    "schedules.save": lambda store: store.schedules.save(
        ScheduleChange(schedule=SCHEDULE, expected_rev=0), epoch=Epoch(1)
    ),
    "tokens.count_names": lambda store: store.tokens.count_names(DEFAULT_NAMESPACE),
    "settings.queues": lambda store: store.settings.queues(DEFAULT_NAMESPACE),
    "settings.kinds": lambda store: store.settings.kinds(DEFAULT_NAMESPACE),
    "settings.rates": lambda store: store.settings.rates(DEFAULT_NAMESPACE, QUEUE, KIND),
    "settings.put_kind": lambda store: store.settings.put_kind(
        DEFAULT_NAMESPACE, KindChange(kind=KIND)
    ),
    "upkeep.tick": lambda store: store.upkeep.tick(),
    "upkeep.last_tick": lambda store: store.upkeep.last_tick(),
    "upkeep.record_outage": lambda store: store.upkeep.record_outage(Outage(BEGINNING, BEGINNING)),
    "upkeep.outages": lambda store: store.upkeep.outages(since=BEGINNING),
    "upkeep.delete keys": lambda store: (
        store.upkeep.delete("keys", older_than_us=DAY, limit=1).deleted
    ),
    "upkeep.delete outages": lambda store: (
        store.upkeep.delete("outages", older_than_us=DAY, limit=1).deleted
    ),
    "raise_epoch": lambda store: store.raise_epoch(),
    "artifacts.stage": lambda store: store.artifacts.stage(UPLOAD),
    "artifacts.of_job": lambda store: store.artifacts.of_job(JOB),
    "artifacts.load": lambda store: store.artifacts.load(JOB, "a"),
    "upkeep.delete artifacts": lambda store: store.upkeep.delete("artifacts", limit=1),
    "artifacts.put_log": lambda store: store.artifacts.put_log(OUTPUT),
    "artifacts.logs": lambda store: store.artifacts.logs(JOB),
    "workers.see": lambda store: store.workers.see(PROCESS),
    "workers.page": lambda store: store.workers.page(DEFAULT_NAMESPACE),
    "workers.drain": lambda store: store.workers.drain(DEFAULT_NAMESPACE, WORKER_ID),
    "upkeep.delete workers": lambda store: (
        store.upkeep.delete("workers", older_than_us=DAY, limit=1).deleted
    ),
    "views.unfolded": lambda store: store.views.unfolded(limit=1),
    "views.save_fold": lambda store: store.views.save_fold(
        Fold(expected=None, progress=FoldProgress(), rollups=())
    ),
    "upkeep.delete rollups": lambda store: store.upkeep.delete("rollups", limit=1),
    "upkeep.delete renewals": lambda store: store.upkeep.delete(
        "renewals", older_than_us=Duration(0), limit=1
    ),
    "upkeep.delete observations": lambda store: (
        store.upkeep.delete("observations", older_than_us=DAY, limit=1).deleted
    ),
    "upkeep.delete jobs": lambda store: (
        store.upkeep.delete("jobs", older_than_us=DAY, limit=1).deleted
    ),
    "views.jobs": lambda store: store.views.jobs(JobFilter(namespace=DEFAULT_NAMESPACE)),
    "views.dead_letter_groups": lambda store: store.views.dead_letter_groups(
        DeadLetterGroupFilter(namespace=DEFAULT_NAMESPACE)
    ),
    "views.jobs resolved": lambda store: store.views.jobs(
        JobFilter(namespace=DEFAULT_NAMESPACE, resolved=True)
    ),
    "events.page": lambda store: store.events.page(EventFilter(namespace=DEFAULT_NAMESPACE)),
    "events.count": lambda store: store.events.count(SPAN),
    "events.follow": lambda store: store.events.follow(TailFilter(namespace=DEFAULT_NAMESPACE)),
    "events.delay": lambda store: store.events.delay(),
    "events.tail": lambda store: store.events.tail(after=None, limit=1),
    "audit.records": lambda store: list(store.audit.records(page_size=1)),
    "audit.records of a job": lambda store: list(store.audit.records(page_size=1, job_id=JOB)),
    "audit.rates_in_force": lambda store: store.audit.rates_in_force(),
    "audit.grants": lambda store: list(store.audit.grants(since=BEGINNING)),
    "audit.live_keys": lambda store: list(store.audit.live_keys()),
    "flows.unblocked": lambda store: store.flows.unblocked([JOB], limit=1),
    "flows.checks": lambda store: store.flows.checks(limit=1),
    "flows.delete_checks": lambda store: store.flows.delete_checks([EdgeCheck(JOB, BEGINNING)]),
    "flows.checks of jobs": lambda store: store.flows.checks(limit=1, of=[JOB]),
    "flows.edges": lambda store: list(store.flows.edges()),
    "flows.page": lambda store: store.flows.page(DEFAULT_NAMESPACE, before=None, limit=1),
    "flows.load": lambda store: store.flows.load(DEFAULT_NAMESPACE, FlowId(JOB)),
    "flows.existing": lambda store: store.flows.existing([FlowId(JOB)]),
    "flows.parents": lambda store: store.flows.parents(LeaseRef(JOB, LEASE), WORKER, after=-1),
    "flows.edges of jobs": lambda store: list(store.flows.edges([JOB])),
    "audit.lease_holders": lambda store: list(store.audit.lease_holders()),
    "health": lambda store: store.health(),
    "views.overview": lambda store: store.views.overview(
        OverviewFilter(namespace=DEFAULT_NAMESPACE)
    ),
    "views.measure": lambda store: store.views.measure(queues=1, jobs=1),
    "tokens.create": lambda store: store.tokens.create(NEW_TOKEN),
    "tokens.load": lambda store: store.tokens.load(TOKEN),
    "tokens.all": lambda store: store.tokens.all(),
    "tokens.revoke": lambda store: store.tokens.revoke(TOKEN),
    "tokens.use": lambda store: store.tokens.use(TOKEN),
    "tokens.count_leases": lambda store: store.tokens.count_leases(DEFAULT_NAMESPACE, WORKER),
}
"""Every call of a store but `save`, whose change is made by a test, and `close`."""


def test_every_call_after_close_says_closed(kit: Kit) -> None:
    birth = kit.change(kit.new())
    calls = CALLS | {"jobs.save": lambda store: store.jobs.save([birth], epoch=Epoch(1))}
    kit.store.close()

    silent = [name for name, call in calls.items() if not _says_closed(kit.store, call)]

    assert silent == []
    asked = {name.partition(" ")[0] for name in calls}
    assert asked | {"close"} == _methods_of_a_store(), "a call that no one asked"


def _says_closed(store: Store, call: Callable[[Store], Any]) -> bool:
    try:
        call(store)
    except Closed:
        return True
    return False


def _methods_of_a_store() -> set[str]:
    found = _methods_of(Store)
    for name, subject in inspect.getmembers(Store, lambda each: isinstance(each, property)):
        methods = _methods_of(get_type_hints(subject.fget)["return"])
        found |= {f"{name}.{method}" for method in methods}
    return found


def _methods_of(port: type) -> set[str]:
    named = inspect.getmembers(port, inspect.isfunction)
    return {name for name, _ in named if not name.startswith("_")}


def test_closing_twice_is_no_error(kit: Kit) -> None:
    kit.store.close()
    kit.store.close()


@spec("I21")
def test_another_handle_sees_what_was_acknowledged(kit: Kit) -> None:
    queued, done = kit.enqueue(), kit.running_job(priority=1)
    kit.complete(done, result=b'{"a":1}')
    rows, logs = [kit.reload(job) for job in (queued, done)], [kit.events(queued), kit.events(done)]

    other = kit.factory.reopen()

    loaded = other.jobs.load([queued.id, done.id]).jobs
    assert [loaded[queued.id], loaded[done.id]] == rows
    histories = other.events.load([queued.id, done.id])
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
