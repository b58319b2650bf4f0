"""A store's methods by subject: `store.jobs.load` for a class that has all of them itself."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, cast

from msgspec.structs import replace

from tenure.core.events import Event
from tenure.core.flow_rows import Edge, EdgeCheck
from tenure.core.ids import JobId
from tenure.core.instants import Duration
from tenure.core.job import Job
from tenure.ports import (
    NO_AGE,
    Audit,
    Claiming,
    Deletable,
    DueJobs,
    JobsWanted,
    KeyHolders,
    LeasedJobs,
    Loaded,
    PruneResult,
    Record,
    StoredArtifacts,
    StoredEvents,
    StoredFlows,
    StoredJobs,
    StoredSchedules,
    StoredSettings,
    StoredTokens,
    StoredWorkers,
    Upkeep,
    Views,
)

_NAMES = {
    "jobs": {
        "save": "save",
        "save_locked": "save_locked",
        "resolve": "resolve",
        "resolutions": "load_resolutions",
        "observe": "observe",
        "observations": "load_observations",
        "peek_leases": "peek_leases",
    },
    "claims": {"claim": "claim", "next_ready": "next_ready"},
    "events": {
        "page": "list_events",
        "count": "count_events",
        "follow": "follow_events",
        "tail": "tail_events",
    },
    "flows": {
        "load": "load_flow",
        "page": "list_flows",
        "parents": "load_parents",
        "existing": "existing_flows",
        "unblocked": "unblocked",
        "delete_checks": "delete_edge_checks",
    },
    "schedules": {
        "load": "load_schedule",
        "due": "due_schedules",
        "save": "save_schedule",
        "page": "list_schedules",
    },
    "views": {
        "jobs": "find_jobs",
        "dead_letters": "list_dead_letters",
        "dead_letter_groups": "group_dead_letters",
        "overview": "overview",
        "measure": "measure",
        "previews": "load_previews",
        "fold_progress": "fold_progress",
        "unfolded": "load_unfolded",
        "save_fold": "save_fold",
    },
    "settings": {
        "queues": "list_queues",
        "put_queue": "put_queue",
        "kinds": "list_kinds",
        "put_kind": "put_kind",
        "rates": "list_rates",
    },
    "workers": {"page": "list_workers", "drain": "request_drain", "see": "see_worker"},
    "artifacts": {
        "stage": "stage_artifact",
        "of_job": "list_artifacts",
        "load": "load_artifact",
        "put_log": "put_attempt_log",
        "logs": "load_attempt_logs",
    },
    "tokens": {
        "create": "create_token",
        "load": "load_token",
        "all": "list_tokens",
        "revoke": "revoke_token",
        "use": "use_token",
        "count_leases": "count_leases",
        "count_names": "count_names",
    },
    "upkeep": {
        "tick": "tick",
        "record_outage": "record_outage",
        "outages": "outages",
    },
    "audit": {
        "live_keys": "live_keys",
        "lease_holders": "lease_holders",
        "rates_in_force": "rates_in_force",
        "grants": "grants",
    },
}

_DELETING = {
    "observations": "expire_observations",
    "jobs": "purge",
    "sessions": "delete_sessions",
    "outages": "delete_outages",
    "workers": "delete_workers",
}


class _Subject:
    def __init__(self, store: Any, subject: str) -> None:
        self._store = store
        self._names = _NAMES[subject]

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(name)
        return getattr(self._store, self._names[name])


class _Jobs(_Subject):
    def load(self, wanted: JobsWanted, *, bodies: bool = True) -> Loaded:
        loaded = self._found(wanted)
        if bodies:
            return loaded
        jobs = {job_id: job.without_bodies for job_id, job in loaded.jobs.items()}
        return replace(loaded, jobs=jobs)

    def _found(self, wanted: JobsWanted) -> Loaded:
        if isinstance(wanted, DueJobs):
            return cast(Loaded, self._store.due(limit=wanted.limit))
        if isinstance(wanted, LeasedJobs):
            return cast(Loaded, self._store.load_leased(wanted.session))
        if isinstance(wanted, KeyHolders):
            held = self._store.load_holders(wanted.keys).values()
            return replace(cast(Loaded, self._store.load([])), jobs={job.id: job for job in held})
        return cast(Loaded, self._store.load(wanted))

    def read(self, ids: Sequence[JobId], *, bodies: bool = True) -> dict[JobId, Job]:
        return self.load(ids, bodies=bodies).jobs


class _Events(_Subject):
    def load(self, ids: Sequence[JobId], *, latest: int | None = None) -> dict[JobId, list[Event]]:
        if latest is not None:
            found = self._store.load_decision_histories(ids, events=latest)
        else:
            found = self._store.load_histories(ids)
        return cast(dict[JobId, list[Event]], found)


class _Flows(_Subject):
    def checks(self, *, limit: int, of: Sequence[JobId] | None = None) -> list[EdgeCheck]:
        if of is None:
            return cast(list[EdgeCheck], self._store.edge_checks(limit=limit))
        return cast(list[EdgeCheck], self._store.noted_checks(of)[:limit])

    def edges(self, children: Sequence[JobId] | None = None) -> Iterator[Edge]:
        found = self._store.edges() if children is None else self._store.load_edges(children)
        return iter(found)


class _Audit(_Subject):
    def records(self, *, page_size: int, job_id: JobId | None = None) -> Iterator[Record]:
        if job_id is None:
            yield from self._store.records(page_size=page_size)
        elif (record := self._store.load_record(job_id)) is not None:
            yield record


class _Upkeep(_Subject):
    def delete(
        self, what: Deletable, *, older_than_us: Duration = NO_AGE, limit: int
    ) -> PruneResult:
        if what == "artifacts":
            return cast(PruneResult, self._store.collect_artifacts(limit=limit))
        if what == "renewals":
            return cast(
                PruneResult, self._store.prune_renewals(older_than_us=older_than_us, limit=limit)
            )
        if what == "rollups":
            return cast(PruneResult, self._store.delete_rollups(limit=limit))
        if what == "keys":
            deleted = self._store.delete_idle_keys(limit=limit)
            return PruneResult(deleted, deleted >= limit)
        delete = getattr(self._store, _DELETING[what])
        deleted = delete(older_than_us=older_than_us, limit=limit)
        return PruneResult(deleted, deleted >= limit)


class BySubject:
    """Gives a class with all methods of a store the objects of the port."""

    @cached_property
    def jobs(self) -> StoredJobs:
        return cast(StoredJobs, _Jobs(self, "jobs"))

    @cached_property
    def claims(self) -> Claiming:
        return cast(Claiming, _Subject(self, "claims"))

    @cached_property
    def events(self) -> StoredEvents:
        return cast(StoredEvents, _Events(self, "events"))

    @cached_property
    def flows(self) -> StoredFlows:
        return cast(StoredFlows, _Flows(self, "flows"))

    @cached_property
    def schedules(self) -> StoredSchedules:
        return cast(StoredSchedules, _Subject(self, "schedules"))

    @cached_property
    def views(self) -> Views:
        return cast(Views, _Subject(self, "views"))

    @cached_property
    def settings(self) -> StoredSettings:
        return cast(StoredSettings, _Subject(self, "settings"))

    @cached_property
    def workers(self) -> StoredWorkers:
        return cast(StoredWorkers, _Subject(self, "workers"))

    @cached_property
    def artifacts(self) -> StoredArtifacts:
        return cast(StoredArtifacts, _Subject(self, "artifacts"))

    @cached_property
    def tokens(self) -> StoredTokens:
        return cast(StoredTokens, _Subject(self, "tokens"))

    @cached_property
    def upkeep(self) -> Upkeep:
        return cast(Upkeep, _Upkeep(self, "upkeep"))

    @cached_property
    def audit(self) -> Audit:
        return cast(Audit, _Audit(self, "audit"))
