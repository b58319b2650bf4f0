"""A server's store over HTTP: reads, and writes that decide nothing about a job.

The calling thread waits for the answer. Lists never request bodies.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec import UNSET, UnsetType

from tenure.by_subject import BySubject
from tenure.core.artifacts import Artifact, ArtifactUpload, Staging, StoredArtifact
from tenure.core.attempt_logs import AttemptLog, AttemptOutput
from tenure.core.checks import check_job_id, check_name
from tenure.core.claims import QueueState
from tenure.core.dead_letter_groups import DeadLetterGroupFilter, DeadLetterGroups
from tenure.core.event_counts import EventCounts, EventSpan
from tenure.core.event_pages import EventFilter, EventPage, parse_event_key
from tenure.core.event_tail import EventPosition, TailDelay, TailedEvent, TailFilter, TailPage
from tenure.core.events import Event
from tenure.core.flow_rows import FlowSummary, FlowView, ParentPage
from tenure.core.ids import Actor, FlowId, JobId, Kind, Namespace, QueueName, ScheduleName, WorkerId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant
from tenure.core.job import Job
from tenure.core.job_search import FoundJobs, JobFilter, found_jobs
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.leases import HeldLease
from tenure.core.observations import Observation
from tenure.core.overview import Overview, OverviewFilter
from tenure.core.policy import Policy
from tenure.core.rates import Rate, RateStanding
from tenure.core.resolutions import Resolution
from tenure.core.schedules import Schedule
from tenure.core.vocabulary import Cause, JobStatus, LeaseNews
from tenure.core.workers import FIRST_WORKER, WorkerKey, WorkerProcess, WorkerSeen
from tenure.errors import InvalidInput, RequestRefused
from tenure.ports import NO_LIMIT, NO_WAIT, DeadLetter
from tenure.protocol import LEASE_HEADER
from tenure.protocol.fields import instant, moment, optional_moment
from tenure.protocol.overviews import (
    DeadLetterGroupsReply,
    OverviewReply,
    dead_letter_groups_of,
    overview_of,
)
from tenure.protocol.records import (
    KindRecord,
    QueueRecord,
    ResolutionRecord,
    artifact_of,
    event_of,
    job_of,
    kind_of,
    observation_of,
    queue_of,
    resolution_of,
    schedule_of,
    standing_of,
    worker_of,
)
from tenure.protocol.replies import (
    AliveReply,
    ArtifactsReply,
    DeadLetterPage,
    DrainReply,
    EventsReply,
    FlowReply,
    FlowsReply,
    JobPage,
    KeptReply,
    KindsReply,
    LogReply,
    LogsReply,
    ObservationsReply,
    ParentsReply,
    PeekLeasesReply,
    QueuesReply,
    RatesReply,
    SchedulesReply,
    StagingReply,
    StatsReply,
    TailReply,
    TimeReply,
    WorkersReply,
    flow_summary_of,
    flow_view_of,
    parent_page_of,
    staging_of,
    tail_delay_of,
)
from tenure.protocol.requests import (
    MAX_FOLLOW_WAIT_S,
    MAX_PAGE,
    BodiesQuery,
    DeadLetterGroupsQuery,
    DeadLettersQuery,
    EventsQuery,
    FlowsQuery,
    JobsQuery,
    KindMessage,
    LimitMessage,
    LogQuery,
    LookupMessage,
    NamespaceQuery,
    OverviewQuery,
    ParentsMessage,
    QueuesQuery,
    RatesQuery,
    SchedulesQuery,
    StatsQuery,
    TailQuery,
    WorkersQuery,
    alive_message,
    output_message,
    peek_leases_messages,
    policy_message,
)
from tenure.remote.caller import Call, Caller, NotFound
from tenure.remote.commands import load_jobs

_Name = TypeVar("_Name", bound=str)
_T = TypeVar("_T")


class RemoteStore(BySubject):
    """`tenure.ports.JobStore` of a server. Thread-safe."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def load_jobs(self, ids: Sequence[JobId]) -> dict[JobId, Job]:
        """The records of these jobs, without the ids of their leases. [H7]"""
        return load_jobs(self._caller, ids)

    def load_events(self, job_id: JobId) -> list[Event]:
        """A job's history in order of seq, asked for page by page."""
        found: list[Event] = []
        after_seq: int | None = 0
        try:
            while after_seq is not None:
                query = EventsQuery(after_seq=after_seq)
                call = Call(name="events", parts={"job_id": job_id}, query=query)
                page = self._caller.ask(call, EventsReply)
                found += [event_of(record) for record in page.events]
                after_seq = page.next_after_seq
        except NotFound:
            return []
        return found

    def load_observations(self, job_id: JobId) -> list[Observation]:
        """What is kept beside a job's log, with bodies if the caller may see them."""
        check_job_id("job_id", job_id)
        call = Call(name="observations", parts={"job_id": job_id}, query=BodiesQuery(bodies=True))
        try:
            found = self._caller.ask(call, ObservationsReply).observations
        except NotFound:
            return []
        except RequestRefused as refused:
            if refused.field != "bodies":
                raise
            call = Call(name="observations", parts={"job_id": job_id})
            found = self._caller.ask(call, ObservationsReply).observations
        return [observation_of(record) for record in found]

    def now(self) -> Instant:
        """The store's clock."""
        return instant(self._caller.ask(Call(name="time"), TimeReply).now)

    def list_artifacts(self, job_id: JobId) -> list[Artifact]:
        """The artifacts of the attempt that succeeded, by name."""
        check_job_id("job_id", job_id)
        call = Call(name="artifacts", parts={"job_id": job_id})
        try:
            found = self._caller.ask(call, ArtifactsReply).artifacts
        except NotFound:
            return []
        return [artifact_of(record) for record in found]

    def load_artifact(self, job_id: JobId, name: str) -> StoredArtifact | None:
        """One artifact with its body. Two requests: artifacts of an ended job do not change
        between."""
        check_name("name", name)
        for artifact in self.list_artifacts(job_id):
            if artifact.name == name:
                call = Call(name="artifact", parts={"job_id": job_id, "name": name})
                return StoredArtifact(artifact, self._caller.fetch(call))
        return None

    def load_attempt_logs(self, job_id: JobId) -> list[AttemptLog]:
        """The kept output of the latest attempts, in order."""
        check_job_id("job_id", job_id)
        call = Call(name="logs", parts={"job_id": job_id})
        try:
            return list(self._caller.ask(call, LogsReply).logs)
        except NotFound:
            return []

    def stage_artifact(self, upload: ArtifactUpload) -> Staging:
        """Store an artifact of the attempt; the same name again replaces it."""
        call = Call(
            name="upload-artifact",
            parts={"job_id": upload.job_id, "name": upload.name},
            body=upload.body,
            headers={LEASE_HEADER: upload.lease_id, "Content-Type": upload.media_type},
        )
        try:
            return staging_of(self._caller.ask(call, StagingReply))
        except NotFound:
            return Staging(cause=Cause.UNKNOWN_JOB)

    def list_flows(
        self,
        namespace: Namespace,
        *,
        before: FlowId | None,
        limit: int,
        id_prefix: str | None = None,
    ) -> list[FlowSummary]:
        """A page of flows, newest first."""
        query = FlowsQuery(
            namespace=namespace,
            before=None if before is None else JobId(before),
            id_prefix=id_prefix,
            limit=limit,
        )
        found = self._caller.ask(Call(name="flows", query=query), FlowsReply).flows
        return [flow_summary_of(each) for each in found]

    def load_flow(self, namespace: Namespace, flow_id: FlowId) -> FlowView | None:
        """A flow with its jobs, within the token's scope."""
        query = NamespaceQuery(namespace=namespace)
        call = Call(name="show-flow", parts={"flow_id": flow_id}, query=query)
        try:
            return flow_view_of(self._caller.ask(call, FlowReply))
        except NotFound:
            return None

    def load_parents(self, held: HeldLease, actor: Actor, *, after: int) -> ParentPage:
        """The next parents of a leased job, with their results. [FL7]"""
        call = Call(
            name="parents",
            parts={"job_id": held.job_id},
            message=ParentsMessage(lease_id=held.lease_id, after=after),
        )
        try:
            return parent_page_of(self._caller.ask(call, ParentsReply))
        except NotFound:
            return ParentPage(cause=Cause.UNKNOWN_JOB)

    def put_attempt_log(self, output: AttemptOutput) -> Cause | None:
        """Store the output of a handler. Returns None, or why it was not stored."""
        call = Call(name="output", message=output_message(output))
        try:
            return self._caller.ask(call, KeptReply).cause
        except NotFound:
            return Cause.UNKNOWN_JOB

    def peek_leases(self, leases: Sequence[HeldLease], actor: Actor) -> list[LeaseNews]:
        """For each of these leases, whether it needs a heartbeat now."""
        found: list[LeaseNews] = []
        for message in peek_leases_messages(leases):
            found += self._caller.ask(
                Call(name="peek-leases", message=message), PeekLeasesReply
            ).news
        return found

    def see_worker(self, process: WorkerProcess) -> bool:
        """Record that a worker is alive. Returns whether it should drain."""
        call = Call(name="alive", parts={"worker": process.worker}, message=alive_message(process))
        return self._caller.ask(call, AliveReply).drain

    def count_events(self, span: EventSpan) -> EventCounts:
        """The number of events in a span, within the token's scope; the server sets the limit."""
        query = StatsQuery(
            since=moment(span.since), until=moment(span.until), namespace=span.namespace
        )
        found = self._caller.ask(Call(name="stats", query=query), StatsReply)
        return EventCounts(until=instant(found.until), counts=found.counts)

    def overview(self, wanted: OverviewFilter) -> Overview:
        """What is going on within the token's scope, of all of it or of one queue or kind."""
        query = OverviewQuery(
            range=wanted.range,
            queue=_only("queues", wanted.queues),
            kind=_only("kinds", wanted.kinds),
            namespace=wanted.namespace,
        )
        return overview_of(self._caller.ask(Call(name="overview", query=query), OverviewReply))

    def list_events(self, wanted: EventFilter) -> EventPage:
        """A page of events within the token's scope; the server says how many are read for it."""
        if wanted.queues or wanted.kinds:
            raise InvalidInput(
                "queues", "a server lists the events of the token's queues and kinds"
            )
        query = LogQuery(
            type=tuple(each.word for each in wanted.types),
            job_id=wanted.job_id,
            correlation_id=wanted.correlation_id,
            since=optional_moment(wanted.since),
            until=optional_moment(wanted.until),
            oldest_first=not wanted.newest_first,
            after=None if wanted.after is None else wanted.after.text,
            limit=wanted.limit,
            namespace=wanted.namespace,
        )
        page = self._caller.ask(Call(name="log", query=query), LogReply)
        return EventPage(
            events=tuple(map(event_of, page.events)),
            next=None if page.next_after is None else parse_event_key(page.next_after),
        )

    def tail_delay(self) -> TailDelay | None:
        """As the server sees it, if the token may know. [E35]"""
        reply = self._caller.ask(Call(name="tail", query=TailQuery(newest=0, limit=1)), TailReply)
        return None if reply.delayed_by is None else tail_delay_of(reply.delayed_by)

    def follow_events(self, wanted: TailFilter, *, wait_us: Duration = NO_WAIT) -> TailPage:
        """The next events within the token's scope; the server holds the call for as long as it may
        and until there is an event. Sent once: the caller goes on from the same position."""
        if wanted.queues or wanted.kinds:
            raise InvalidInput(
                "queues", "a server shows the events of the token's queues and kinds"
            )
        wait_s = min(wait_us / MICROSECONDS_PER_SECOND, MAX_FOLLOW_WAIT_S)
        query = TailQuery(
            type=tuple(each.word for each in wanted.types),
            job_id=wanted.job_id,
            correlation_id=wanted.correlation_id,
            after=wanted.after,
            newest=wanted.newest,
            wait_s=wait_s,
            limit=wanted.limit,
            namespace=wanted.namespace,
        )
        page = self._caller.ask_and_wait(Call(name="tail", query=query), TailReply, wait_s=wait_s)
        return TailPage(
            events=tuple(
                TailedEvent(EventPosition(each.position), event_of(each.event))
                for each in page.events
            ),
            next=EventPosition(page.next_after),
            is_end=page.is_end,
        )

    def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """A page of jobs, newest first, without their bodies."""
        return self.find_jobs(wanted).jobs

    def find_jobs(self, wanted: JobFilter) -> FoundJobs:
        """The same, and where the next page begins; the server says how many are looked at."""
        if _is_about_dead_letters(wanted):
            letters = [letter.job for letter in self.list_dead_letters(wanted)]
            return found_jobs(letters, None, wanted)
        query = JobsQuery(
            status=wanted.statuses,
            queue=wanted.queue,
            kind=wanted.kind,
            correlation_id=wanted.correlation_id,
            schedule=wanted.schedule,
            flow_id=None if wanted.flow_id is None else JobId(wanted.flow_id),
            worker=wanted.worker,
            enqueued_since=optional_moment(wanted.enqueued_since),
            enqueued_until=optional_moment(wanted.enqueued_until),
            finished_since=optional_moment(wanted.finished_since),
            finished_until=optional_moment(wanted.finished_until),
            error=wanted.error,
            orphaned=wanted.orphaned,
            id_prefix=wanted.id_prefix,
            before=wanted.before,
            limit=wanted.limit,
            namespace=wanted.namespace,
        )
        page = self._caller.ask(Call(name="jobs", query=query), JobPage)
        return FoundJobs([job_of(record) for record in page.jobs], page.next_before)

    def list_dead_letters(self, wanted: JobFilter) -> list[DeadLetter]:
        """A page of dead letters, newest first, without their bodies."""
        others = (wanted.correlation_id, wanted.id_prefix, wanted.schedule, wanted.flow_id)
        is_more = wanted.is_search or others != (None,) * len(others)
        if wanted.statuses != (JobStatus.DEAD_LETTERED,) or is_more:
            raise InvalidInput("status", "a server takes these filters for dead letters only")
        query = DeadLettersQuery(
            queue=wanted.queue,
            kind=wanted.kind,
            reason_code=wanted.reason_code,
            stage=wanted.stage,
            resolved=bool(wanted.resolved),
            before=wanted.before,
            limit=wanted.limit,
            namespace=wanted.namespace,
        )
        page = self._caller.ask(Call(name="dead-letters", query=query), DeadLetterPage)
        return [
            DeadLetter(job_of(letter.job), resolution_of(letter.resolution))
            for letter in page.dead_letters
        ]

    def group_dead_letters(self, wanted: DeadLetterGroupFilter) -> DeadLetterGroups:
        """Dead letters within the token's scope by kind and error, of all or of one queue or
        kind."""
        query = DeadLetterGroupsQuery(
            range=wanted.range,
            queue=_only("queues", wanted.queues),
            kind=_only("kinds", wanted.kinds),
            key=wanted.key,
            namespace=wanted.namespace,
        )
        call = Call(name="dead-letter-groups", query=query)
        return dead_letter_groups_of(self._caller.ask(call, DeadLetterGroupsReply))

    def load_resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters."""
        found: list[ResolutionRecord] = []
        for start in range(0, len(ids), MAX_PAGE):
            message = LookupMessage(job_ids=tuple(ids[start : start + MAX_PAGE]))
            page = self._caller.ask(Call(name="lookup", message=message), JobPage)
            found += page.resolutions
        return {record.job_id: resolution_of(record) for record in found}

    def list_queues(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[QueueState]:
        """The queues within the token's scope, asked for page by page. [H86]"""

        def page(place: str | None, most: int) -> tuple[Iterable[QueueState], str | None]:
            start = None if place is None else QueueName(place)
            query = QueuesQuery(after=start, limit=most, namespace=namespace)
            reply = self._caller.ask(Call(name="queues", query=query), QueuesReply)
            return map(queue_of, reply.queues), reply.next_after

        return _all_pages(page, after or None, limit)

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
        query = NamespaceQuery(namespace=namespace)
        parts = {"queue": str(name)}
        calls = []
        if paused is not None:
            word = "pause" if paused else "resume"
            calls.append(Call(name=word, parts=parts, query=query))
        if limit is not None or rate is not UNSET:
            message = LimitMessage(
                limit=limit,
                rate=str(rate) if isinstance(rate, Rate) else rate,
                burst=rate.burst if isinstance(rate, Rate) else None,
            )
            calls.append(Call(name="limit", parts=parts, query=query, message=message))
        if not calls:
            raise InvalidInput("queue", "there is nothing to set")
        return queue_of([self._caller.ask(call, QueueRecord) for call in calls][-1])

    def list_kinds(self, namespace: Namespace) -> list[KindSettings]:
        """What is set for the kinds within the token's scope."""
        call = Call(name="kinds", query=NamespaceQuery(namespace=namespace))
        return [kind_of(record) for record in self._caller.ask(call, KindsReply).kinds]

    def list_rates(
        self, namespace: Namespace, queue: QueueName, kind: Kind, rate_key: str | None = None
    ) -> list[RateStanding]:
        """The rates that such jobs are under."""
        query = RatesQuery(queue=queue, kind=kind, rate_key=rate_key, namespace=namespace)
        found = self._caller.ask(Call(name="rates", query=query), RatesReply)
        return [standing_of(record) for record in found.rates]

    def put_kind(
        self, namespace: Namespace, change: KindChange, *, only_new: bool = False
    ) -> KindSettings:
        """Set what holds for a kind."""
        rate = change.rate
        call = Call(
            name="declare-kind" if only_new else "set-kind",
            parts={"kind": str(change.kind)},
            query=NamespaceQuery(namespace=namespace),
            message=KindMessage(
                rate=str(rate) if isinstance(rate, Rate) else rate,
                burst=rate.burst if isinstance(rate, Rate) else None,
                concurrency_limit=change.concurrency_limit,
                fair=change.fair,
                policy=policy_message(change.policy)
                if isinstance(change.policy, Policy)
                else change.policy,
            ),
        )
        return kind_of(self._caller.ask(call, KindRecord))

    def list_schedules(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[Schedule]:
        """The schedules within the token's scope, without their payloads, asked for page by page.
        [H86]"""

        def page(place: str | None, most: int) -> tuple[Iterable[Schedule], str | None]:
            start = None if place is None else ScheduleName(place)
            query = SchedulesQuery(after=start, limit=most, namespace=namespace)
            reply = self._caller.ask(Call(name="schedules", query=query), SchedulesReply)
            return map(schedule_of, reply.schedules), reply.next_after

        return _all_pages(page, after or None, limit)

    def list_workers(
        self, namespace: Namespace, *, after: WorkerKey = FIRST_WORKER, limit: int = NO_LIMIT
    ) -> list[WorkerSeen]:
        """The workers within the token's scope, asked for page by page. [H86]"""

        def page(place: str | None, most: int) -> tuple[Iterable[WorkerSeen], str | None]:
            query = WorkersQuery(after=place, limit=most, namespace=namespace)
            reply = self._caller.ask(Call(name="workers", query=query), WorkersReply)
            return map(worker_of, reply.workers), reply.next_after

        return _all_pages(page, None if after == FIRST_WORKER else after.text, limit)

    def request_drain(self, namespace: Namespace, worker: WorkerId) -> bool:
        """Ask a worker to finish and stop. Returns whether there is one."""
        query = NamespaceQuery(namespace=namespace)
        try:
            self._caller.ask(Call(name="drain", parts={"worker": worker}, query=query), DrainReply)
        except NotFound:
            return False
        return True


def _all_pages(
    page: Callable[[str | None, int], tuple[Iterable[_T], str | None]],
    place: str | None,
    limit: int,
) -> list[_T]:
    """Up to `limit` rows after a place; `page` asks for some of them and says where the next page
    begins."""
    found: list[_T] = []
    while True:
        rows, place = page(place, min(MAX_PAGE, limit - len(found)))
        found += rows
        if place is None or len(found) >= limit:
            return found


def _only(field: str, names: Sequence[_Name]) -> _Name | None:
    """The one name that is asked for, if any: a server's answer has all that the token may see."""
    if len(names) > 1:
        raise InvalidInput(field, "a server takes one of them, or none for all")
    return names[0] if names else None


def _is_about_dead_letters(wanted: JobFilter) -> bool:
    return (wanted.resolved, wanted.reason_code, wanted.stage) != (None, None, None)
