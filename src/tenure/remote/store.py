"""A server's store over HTTP: reads, and writes that decide nothing about a job.

The calling thread waits for the answer. Lists never request bodies.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from tenure.core.artifacts import (
    Artifact,
    ArtifactUpload,
    AttemptLog,
    AttemptOutput,
    Staging,
    StoredArtifact,
)
from tenure.core.claims import QueueState
from tenure.core.events import Event
from tenure.core.flow_rows import FlowSummary, FlowView, ParentPage
from tenure.core.ids import Actor, FlowId, JobId, Namespace, QueueName, WorkerId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant
from tenure.core.job import Job
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.leases import LeaseRef
from tenure.core.policy import Policy
from tenure.core.rates import Rate
from tenure.core.schedules import Schedule
from tenure.core.verdicts import Observation, Resolution
from tenure.core.views.dead_letter_groups import DeadLetterGroupFilter, DeadLetterGroups
from tenure.core.views.event_counts import EventCounts, EventSpan
from tenure.core.views.events import (
    EventFilter,
    EventPage,
    EventPosition,
    TailDelay,
    TailedEvent,
    TailFilter,
    TailPage,
    parse_event_key,
)
from tenure.core.views.job_search import FoundJobs, JobFilter
from tenure.core.views.overview import Overview, OverviewFilter
from tenure.core.vocabulary import Cause, LeaseNews
from tenure.core.workers import FIRST_WORKER, ListedWorker, WorkerKey, WorkerProcess
from tenure.errors import InvalidInput, RequestRefused
from tenure.ports import NO_LIMIT, NO_WAIT
from tenure.protocol import LEASE_HEADER, records, replies, requests
from tenure.protocol.fields import instant, moment
from tenure.protocol.requests import MAX_FOLLOW_WAIT_S, MAX_PAGE, MAX_WITH_BODIES, BodiesQuery
from tenure.protocol.translation import to_core, to_wire
from tenure.remote.caller import Caller, NotFound, RouteCall

_T = TypeVar("_T")


class RemoteStore:
    """`tenure.ports.JobStore` of a server. Thread-safe."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.jobs = RemoteJobs(caller)
        self.events = _Events(caller)
        self.flows = _Flows(caller)
        self.schedules = _Schedules(caller)
        self.views = _Views(caller)
        self.settings = _Settings(caller)
        self.workers = _Workers(caller)
        self.artifacts = _Artifacts(caller)

    def now(self) -> Instant:
        """The store's clock."""
        return instant(self._caller.ask(RouteCall(name="time")).now)


class _Part:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def _read(
        self,
        name: str,
        *,
        of: Callable[[Any], _T],
        absent: Callable[[], _T] | None = None,
        query: msgspec.Struct | None = None,
        message: msgspec.Struct | None = None,
        **parts: str,
    ) -> _T:
        """Ask by the route of this name; `of` reads its reply. A 404 means `absent`."""
        try:
            return of(
                self._caller.ask(RouteCall(name=name, parts=parts, query=query, message=message))
            )
        except NotFound:
            if absent is None:
                raise
            return absent()

    def _read_with_bodies(self, name: str, **more: Any) -> Any:
        """The same with bodies, or without if this token may not see them."""
        try:
            return self._read(name, query=BodiesQuery(bodies=True), **more)
        except RequestRefused as refused:
            if refused.field != "bodies":
                raise
        return self._read(name, **more)

    def _all_pages(
        self,
        name: str,
        query: type[msgspec.Struct],
        namespace: Namespace,
        of: Callable[[Any], Iterable[_T]],
        *,
        after: str | None,
        limit: int,
    ) -> list[_T]:
        """Up to `limit` rows after a place, asked for page by page. [H86]"""
        found: list[_T] = []
        while True:
            some = min(MAX_PAGE, limit - len(found))
            wanted = query(after=after or None, limit=some, namespace=namespace)
            page = self._caller.ask(RouteCall(name=name, query=wanted))
            found += of(page)
            after = page.next_after
            if after is None or len(found) >= limit:
                return found


class RemoteJobs(_Part):
    """`tenure.ports.ReadableJobs` of a server."""

    def read(self, ids: Sequence[JobId], *, bodies: bool = True) -> dict[JobId, Job]:
        """The records of these jobs, without the ids of their leases [H7]; with their bodies if the
        caller may see them."""
        found: dict[JobId, Job] = {}
        for start in range(0, len(ids), MAX_WITH_BODIES):
            message = requests.LookupMessage(job_ids=tuple(ids[start : start + MAX_WITH_BODIES]))
            read = self._read_with_bodies if bodies else self._read
            jobs = read("lookup", message=message, of=_listed)
            found |= {job.id: job for job in jobs}
        return found

    def resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters."""
        found: dict[JobId, Resolution] = {}
        for start in range(0, len(ids), MAX_PAGE):
            message = requests.LookupMessage(job_ids=tuple(ids[start : start + MAX_PAGE]))
            page = self._caller.ask(RouteCall(name="lookup", message=message))
            found |= {each.job_id: records.resolution_of(each) for each in page.resolutions}
        return found

    def observations(self, job_id: JobId) -> list[Observation]:
        """What is kept beside a job's log, with bodies if the caller may see them."""
        found: list[Observation] = self._read_with_bodies(
            "observations",
            job_id=job_id,
            of=lambda reply: list(map(records.observation_of, reply.observations)),
            absent=list,
        )
        return found

    def peek_leases(self, leases: Sequence[LeaseRef], actor: Actor) -> list[LeaseNews]:
        """For each of these leases, whether it needs a heartbeat now."""
        found: list[LeaseNews] = []
        messages = [to_wire(requests.LeaseMessage, each) for each in leases]
        for start in range(0, len(messages), requests.MAX_BATCH):
            some = requests.PeekLeasesMessage(
                leases=tuple(messages[start : start + requests.MAX_BATCH])
            )
            found += self._caller.ask(RouteCall(name="peek-leases", message=some)).news
        return found


def _listed(page: replies.JobPage) -> list[Job]:
    return list(map(records.job_of, page.jobs))


class _Events(_Part):
    def load(self, ids: Sequence[JobId]) -> dict[JobId, list[Event]]:
        """The histories of these jobs in order of seq, each asked for page by page."""
        return {job_id: self._history(job_id) for job_id in ids}

    def _history(self, job_id: JobId) -> list[Event]:
        found: list[Event] = []
        after_seq: int | None = 0
        try:
            while after_seq is not None:
                query = requests.EventsQuery(after_seq=after_seq)
                page = self._caller.ask(
                    RouteCall(name="events", parts={"job_id": job_id}, query=query)
                )
                found += map(records.event_of, page.events)
                after_seq = page.next_after_seq
        except NotFound:
            return []
        return found

    def page(self, wanted: EventFilter) -> EventPage:
        """A page of events within the token's scope; the server decides how many are read for
        it."""
        _check_no_scope(wanted)
        query = to_wire(
            requests.LogQuery,
            wanted,
            type=tuple(each.word for each in wanted.types),
            oldest_first=not wanted.newest_first,
            after=None if wanted.after is None else wanted.after.text,
        )
        page = self._caller.ask(RouteCall(name="log", query=query))
        return EventPage(
            events=tuple(map(records.event_of, page.events)),
            next=None if page.next_after is None else parse_event_key(page.next_after),
        )

    def count(self, span: EventSpan) -> EventCounts:
        """The number of events in a span, within the token's scope; the server sets the limit."""
        query = requests.StatsQuery(
            since=moment(span.since), until=moment(span.until), namespace=span.namespace
        )
        found = self._caller.ask(RouteCall(name="stats", query=query))
        return EventCounts(until=instant(found.until), counts=found.counts)

    def follow(self, wanted: TailFilter, *, wait_us: Duration = NO_WAIT) -> TailPage:
        """The next events within the token's scope; the server keeps the call for as long as it may
        and until there is an event. Sent once: the caller continues from the same position."""
        _check_no_scope(wanted)
        wait_s = min(wait_us / MICROSECONDS_PER_SECOND, MAX_FOLLOW_WAIT_S)
        types = tuple(each.word for each in wanted.types)
        query = to_wire(requests.TailQuery, wanted, type=types, wait_s=wait_s)
        page = self._caller.ask_and_wait(RouteCall(name="tail", query=query), wait_s=wait_s)
        return TailPage(
            events=tuple(
                TailedEvent(EventPosition(each.position), records.event_of(each.event))
                for each in page.events
            ),
            next=EventPosition(page.next_after),
            is_end=page.is_end,
        )

    def delay(self) -> TailDelay | None:
        """The server's own answer, if the token may know. [E35]"""
        reply = self._caller.ask(
            RouteCall(name="tail", query=requests.TailQuery(newest=0, limit=1))
        )
        return None if reply.delayed_by is None else to_core(TailDelay, reply.delayed_by)


def _check_no_scope(wanted: EventFilter | TailFilter) -> None:
    if wanted.queues or wanted.kinds:
        raise InvalidInput("queues", "a server lists the events of the token's queues and kinds")


class _Flows(_Part):
    def page(
        self,
        namespace: Namespace,
        *,
        before: FlowId | None,
        limit: int,
        id_prefix: str | None = None,
    ) -> list[FlowSummary]:
        """A page of flows, newest first."""
        query = requests.FlowsQuery(
            namespace=namespace,
            before=None if before is None else JobId(before),
            id_prefix=id_prefix,
            limit=limit,
        )
        return self._read(
            "flows",
            query=query,
            of=lambda reply: [to_core(FlowSummary, each) for each in reply.flows],
        )

    def load(self, namespace: Namespace, flow_id: FlowId) -> FlowView | None:
        """A flow with its jobs, within the token's scope."""
        query = requests.NamespaceQuery(namespace=namespace)
        return self._read(
            "show-flow", flow_id=flow_id, query=query, of=replies.flow_view_of, absent=_none
        )

    def parents(self, held: LeaseRef, actor: Actor, *, after: int) -> ParentPage:
        """The next parents of a leased job, with their results. [FL7]"""
        return self._read(
            "parents",
            job_id=held.job_id,
            message=requests.ParentsMessage(lease_id=held.lease_id, after=after),
            of=partial(to_core, ParentPage),
            absent=lambda: ParentPage(cause=Cause.UNKNOWN_JOB),
        )


def _none() -> None:
    return None


class _Schedules(_Part):
    def page(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[Schedule]:
        """The schedules within the token's scope, without their payloads."""
        return self._all_pages(
            "schedules",
            requests.SchedulesQuery,
            namespace,
            lambda page: [to_core(Schedule, each) for each in page.schedules],
            after=after,
            limit=limit,
        )


class _Views(_Part):
    def jobs(self, wanted: JobFilter) -> FoundJobs:
        """A page of jobs, newest first, without their bodies, and where the next page starts; the
        server decides how many are read."""
        query = to_wire(requests.JobsQuery, wanted, bodies=False)
        page = self._caller.ask(RouteCall(name="jobs", query=query))
        resolutions = {each.job_id: records.resolution_of(each) for each in page.resolutions}
        return FoundJobs(_listed(page), page.next_before, resolutions, page.previews)

    def dead_letter_groups(self, wanted: DeadLetterGroupFilter) -> DeadLetterGroups:
        """Dead letters within the token's scope by kind and error."""
        query = to_wire(requests.DeadLetterGroupsQuery, wanted)
        return self._read("dead-letter-groups", query=query, of=partial(to_core, DeadLetterGroups))

    def overview(self, wanted: OverviewFilter) -> Overview:
        """What the jobs within the token's scope are doing."""
        query = to_wire(requests.OverviewQuery, wanted)
        return self._read("overview", query=query, of=partial(to_core, Overview))


class _Settings(_Part):
    def queues(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[QueueState]:
        """The queues within the token's scope."""
        return self._all_pages(
            "queues",
            requests.QueuesQuery,
            namespace,
            lambda page: map(records.queue_of, page.queues),
            after=after,
            limit=limit,
        )

    def put_queue(
        self,
        namespace: Namespace,
        name: QueueName,
        *,
        paused: bool | None,
        limit: int | None,
        rate: Rate | UnsetType | None = UNSET,
    ) -> QueueState:
        """Pause or resume a queue, or limit it; with both, sends two requests."""
        sent: list[tuple[str, msgspec.Struct | None]] = []
        if paused is not None:
            sent.append(("pause" if paused else "resume", None))
        if limit is not None or rate is not UNSET:
            sent.append(("limit", requests.LimitMessage(limit=limit, **records.rate_fields(rate))))
        if not sent:
            raise InvalidInput("queue", "there is nothing to set")
        query = requests.NamespaceQuery(namespace=namespace)
        states = [
            self._read(route, queue=name, query=query, message=message, of=records.queue_of)
            for route, message in sent
        ]
        return states[-1]

    def kinds(self, namespace: Namespace) -> list[KindSettings]:
        """What is set for the kinds within the token's scope."""
        query = requests.NamespaceQuery(namespace=namespace)
        return self._read(
            "kinds", query=query, of=lambda reply: list(map(records.kind_of, reply.kinds))
        )

    def put_kind(
        self, namespace: Namespace, change: KindChange, *, only_new: bool = False
    ) -> KindSettings:
        """Set what holds for a kind."""
        policy = change.policy
        message = requests.KindMessage(
            **records.rate_fields(change.rate),
            concurrency_limit=change.concurrency_limit,
            policy=to_wire(requests.PolicyMessage, policy)
            if isinstance(policy, Policy)
            else policy,
        )
        return self._read(
            "declare-kind" if only_new else "set-kind",
            kind=change.kind,
            query=requests.NamespaceQuery(namespace=namespace),
            message=message,
            of=records.kind_of,
        )


class _Workers(_Part):
    def page(
        self, namespace: Namespace, *, after: WorkerKey = FIRST_WORKER, limit: int = NO_LIMIT
    ) -> list[ListedWorker]:
        """The workers within the token's scope."""
        return self._all_pages(
            "workers",
            requests.WorkersQuery,
            namespace,
            lambda page: [to_core(ListedWorker, each) for each in page.workers],
            after=None if after == FIRST_WORKER else after.text,
            limit=limit,
        )

    def drain(self, namespace: Namespace, worker: WorkerId) -> bool:
        """Ask a worker to finish and stop. Returns whether there is one."""
        query = requests.NamespaceQuery(namespace=namespace)
        return self._read("drain", worker=worker, query=query, of=lambda _: True, absent=bool)

    def see(self, process: WorkerProcess) -> bool:
        """Record that a worker is alive. Returns whether it should drain."""
        message = to_wire(requests.AliveMessage, process)
        call = RouteCall(name="alive", parts={"worker": process.worker}, message=message)
        return bool(self._caller.ask(call).drain)


class _Artifacts(_Part):
    def stage(self, upload: ArtifactUpload) -> Staging:
        """Store an artifact of the attempt; the same name again replaces it."""
        call = RouteCall(
            name="upload-artifact",
            parts={"job_id": upload.job_id, "name": upload.name},
            body=upload.body,
            headers={LEASE_HEADER: upload.lease_id, "Content-Type": upload.media_type},
        )
        try:
            return to_core(Staging, self._caller.ask(call))
        except NotFound:
            return Staging(cause=Cause.UNKNOWN_JOB)

    def of_job(self, job_id: JobId) -> list[Artifact]:
        """The artifacts of the attempt that succeeded, by name."""
        return self._read(
            "artifacts",
            job_id=job_id,
            of=lambda reply: [to_core(Artifact, each) for each in reply.artifacts],
            absent=list,
        )

    def load(self, job_id: JobId, name: str) -> StoredArtifact | None:
        """One artifact with its body. Two requests: artifacts of an ended job do not change
        between."""
        for artifact in self.of_job(job_id):
            if artifact.name == name:
                call = RouteCall(name="artifact", parts={"job_id": job_id, "name": name})
                return StoredArtifact(artifact, self._caller.fetch(call))
        return None

    def put_log(self, output: AttemptOutput) -> Cause | None:
        """Store the output of a handler. Returns None, or why it was not stored."""
        return self._read(
            "output",
            message=to_wire(requests.OutputMessage, output),
            of=lambda reply: cast(Cause | None, reply.cause),
            absent=lambda: Cause.UNKNOWN_JOB,
        )

    def logs(self, job_id: JobId) -> list[AttemptLog]:
        """The kept output of the latest attempts, in order."""
        return self._read("logs", job_id=job_id, of=lambda reply: list(reply.logs), absent=list)
