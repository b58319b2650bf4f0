"""Closing: a closed store says so, and what it had acknowledged is still there."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tenure.core.artifacts import ArtifactUpload
from tenure.core.attempt_logs import AttemptOutput
from tenure.core.claims import ClaimScope, SessionKey
from tenure.core.commands import Outage
from tenure.core.dead_letter_groups import DeadLetterGroupFilter
from tenure.core.event_counts import EventSpan
from tenure.core.event_pages import EventFilter
from tenure.core.event_tail import TailFilter
from tenure.core.flow_rows import EdgeCheck
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Epoch,
    Fingerprint,
    FlowId,
    JobId,
    Kind,
    RequestId,
    ScheduleName,
    WorkerId,
    new_lease_id,
)
from tenure.core.instants import Duration
from tenure.core.job_search import JobFilter
from tenure.core.kind_settings import KindChange
from tenure.core.leases import HeldLease
from tenure.core.observations import Observation
from tenure.core.overview import OverviewFilter
from tenure.core.resolutions import Resolution
from tenure.core.rollups import Fold, FoldProgress
from tenure.core.schedules import Schedule, ScheduleChange, ScheduleSpec
from tenure.core.tokens import TOKEN_ENTROPY_BYTES, NewToken, mint
from tenure.core.vocabulary import ObservationType, ResolutionKind, Role
from tenure.core.workers import WorkerProcess
from tenure.errors import Closed
from tenure.ports import DedupeKey, Store
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
    "load": lambda store: store.load([JOB]),
    "load_without_bodies": lambda store: store.load_without_bodies([JOB]),
    "load_body_sizes": lambda store: store.load_body_sizes([JOB]),
    "load_previews": lambda store: store.load_previews([JOB]),
    "declared_policies": lambda store: store.declared_policies(DEFAULT_NAMESPACE, [Kind("demo")]),
    "load_holders": lambda store: store.load_holders([KEY]),
    "load_leased": lambda store: store.load_leased(SESSION),
    "load_jobs": lambda store: store.load_jobs([JOB]),
    "load_events": lambda store: store.load_events(JOB),
    "peek_leases": lambda store: store.peek_leases([HeldLease(JOB, LEASE)], WORKER),
    "load_decision_histories": lambda store: store.load_decision_histories([JOB]),
    "load_histories": lambda store: store.load_histories([JOB]),
    "save_locked": lambda store: store.save_locked(
        [JOB], [SESSION], lambda _: pytest.fail("was asked to decide")
    ),
    "resolve": lambda store: store.resolve([DISCARDED]),
    "load_resolutions": lambda store: store.load_resolutions([JOB]),
    "observe": lambda store: store.observe([NOTE]),
    "load_observations": lambda store: store.load_observations(JOB),
    "claim": lambda store: store.claim(SCOPE, [], 1, lambda _: pytest.fail("was asked to plan")),
    "delete_sessions": lambda store: store.delete_sessions(older_than_us=DAY, limit=1),
    "due": lambda store: store.due(limit=1),
    "put_queue": lambda store: store.put_queue(DEFAULT_NAMESPACE, QUEUE, paused=True, limit=None),
    "watch": lambda store: store.watch(lambda _: None),
    "next_ready": lambda store: store.next_ready(DEFAULT_NAMESPACE, [QUEUE]),
    "list_schedules": lambda store: store.list_schedules(DEFAULT_NAMESPACE),
    "load_schedule": lambda store: store.load_schedule(DEFAULT_NAMESPACE, SCHEDULE.name),
    "due_schedules": lambda store: store.due_schedules(limit=1),
    "save_schedule": lambda store: store.save_schedule(
        ScheduleChange(schedule=SCHEDULE, expected_rev=0), epoch=Epoch(1)
    ),
    "count_names": lambda store: store.count_names(DEFAULT_NAMESPACE),
    "list_queues": lambda store: store.list_queues(DEFAULT_NAMESPACE),
    "list_kinds": lambda store: store.list_kinds(DEFAULT_NAMESPACE),
    "list_rates": lambda store: store.list_rates(DEFAULT_NAMESPACE, QUEUE, KIND),
    "put_kind": lambda store: store.put_kind(DEFAULT_NAMESPACE, KindChange(kind=KIND)),
    "tick": lambda store: store.tick(),
    "record_outage": lambda store: store.record_outage(Outage(BEGINNING, BEGINNING)),
    "outages": lambda store: store.outages(since=BEGINNING),
    "delete_idle_keys": lambda store: store.delete_idle_keys(older_than_us=DAY, limit=1),
    "delete_outages": lambda store: store.delete_outages(older_than_us=DAY, limit=1),
    "raise_epoch": lambda store: store.raise_epoch(),
    "stage_artifact": lambda store: store.stage_artifact(UPLOAD),
    "list_artifacts": lambda store: store.list_artifacts(JOB),
    "load_artifact": lambda store: store.load_artifact(JOB, "a"),
    "collect_artifacts": lambda store: store.collect_artifacts(limit=1),
    "put_attempt_log": lambda store: store.put_attempt_log(OUTPUT),
    "load_attempt_logs": lambda store: store.load_attempt_logs(JOB),
    "see_worker": lambda store: store.see_worker(PROCESS),
    "list_workers": lambda store: store.list_workers(DEFAULT_NAMESPACE),
    "request_drain": lambda store: store.request_drain(DEFAULT_NAMESPACE, WORKER_ID),
    "delete_workers": lambda store: store.delete_workers(older_than_us=DAY, limit=1),
    "fold_progress": lambda store: store.fold_progress(),
    "load_unfolded": lambda store: store.load_unfolded(limit=1),
    "save_fold": lambda store: store.save_fold(
        Fold(expected=None, progress=FoldProgress(), rollups=())
    ),
    "delete_rollups": lambda store: store.delete_rollups(length_us=DAY, older_than_us=DAY, limit=1),
    "prune_renewals": lambda store: store.prune_renewals(older_than_us=Duration(0), limit=1),
    "expire_observations": lambda store: store.expire_observations(older_than_us=DAY, limit=1),
    "purge": lambda store: store.purge(older_than_us=DAY, limit=1),
    "list_jobs": lambda store: store.list_jobs(JobFilter(namespace=DEFAULT_NAMESPACE)),
    "find_jobs": lambda store: store.find_jobs(JobFilter(namespace=DEFAULT_NAMESPACE)),
    "group_dead_letters": lambda store: store.group_dead_letters(
        DeadLetterGroupFilter(namespace=DEFAULT_NAMESPACE)
    ),
    "list_dead_letters": lambda store: store.list_dead_letters(
        JobFilter(namespace=DEFAULT_NAMESPACE)
    ),
    "list_events": lambda store: store.list_events(EventFilter(namespace=DEFAULT_NAMESPACE)),
    "count_events": lambda store: store.count_events(SPAN),
    "tail_delay": lambda store: store.tail_delay(),
    "follow_events": lambda store: store.follow_events(TailFilter(namespace=DEFAULT_NAMESPACE)),
    "tail_events": lambda store: store.tail_events(after=None, limit=1),
    "records": lambda store: list(store.records(page_size=1)),
    "load_record": lambda store: store.load_record(JOB),
    "rates_in_force": lambda store: store.rates_in_force(),
    "grants": lambda store: list(store.grants(since=BEGINNING)),
    "live_keys": lambda store: list(store.live_keys()),
    "unblocked": lambda store: store.unblocked([JOB], limit=1),
    "edge_checks": lambda store: store.edge_checks(limit=1),
    "delete_edge_checks": lambda store: store.delete_edge_checks([EdgeCheck(JOB, BEGINNING)]),
    "has_edge_check": lambda store: store.has_edge_check([JOB]),
    "edges": lambda store: list(store.edges()),
    "list_flows": lambda store: store.list_flows(DEFAULT_NAMESPACE, before=None, limit=1),
    "load_flow": lambda store: store.load_flow(DEFAULT_NAMESPACE, FlowId(JOB)),
    "existing_flows": lambda store: store.existing_flows([FlowId(JOB)]),
    "load_parents": lambda store: store.load_parents(HeldLease(JOB, LEASE), WORKER, after=-1),
    "load_edges": lambda store: store.load_edges([JOB]),
    "lease_holders": lambda store: list(store.lease_holders()),
    "health": lambda store: store.health(),
    "overview": lambda store: store.overview(OverviewFilter(namespace=DEFAULT_NAMESPACE)),
    "measure": lambda store: store.measure(queues=1, jobs=1),
    "create_token": lambda store: store.create_token(NEW_TOKEN),
    "load_token": lambda store: store.load_token(TOKEN),
    "list_tokens": lambda store: store.list_tokens(),
    "revoke_token": lambda store: store.revoke_token(TOKEN),
    "use_token": lambda store: store.use_token(TOKEN),
    "count_leases": lambda store: store.count_leases(DEFAULT_NAMESPACE, WORKER),
}
"""Every call of a store but `save`, whose change is made by a test, and `close`."""


def test_every_call_after_close_says_closed(kit: Kit) -> None:
    birth = kit.change(kit.new())
    calls = CALLS | {"save": lambda store: store.save([birth], epoch=Epoch(1))}
    kit.store.close()

    silent = [name for name, call in calls.items() if not _says_closed(kit.store, call)]

    assert silent == []
    assert calls.keys() | {"close"} == _methods_of_a_store(), "a call that nobody asked"


def _says_closed(store: Store, call: Callable[[Store], Any]) -> bool:
    try:
        call(store)
    except Closed:
        return True
    return False


def _methods_of_a_store() -> set[str]:
    named = inspect.getmembers(Store, inspect.isfunction)
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
