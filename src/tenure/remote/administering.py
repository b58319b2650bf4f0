"""Lists, queues and workers of a server, for operators. Bodies are never asked for here."""

from collections.abc import Sequence

from tenure.core.claims import QueueState
from tenure.core.ids import JobId, Namespace, QueueName, WorkerId
from tenure.core.job import Job
from tenure.core.resolutions import Resolution
from tenure.core.vocabulary import JobStatus
from tenure.core.workers import WorkerSeen
from tenure.errors import InvalidInput
from tenure.ports import DeadLetter, JobFilter
from tenure.protocol.records import (
    ResolutionRecord,
    job_of,
    resolution_of,
    worker_of,
)
from tenure.protocol.replies import (
    DeadLetterPage,
    DrainReply,
    JobPage,
    QueuesReply,
    WorkersReply,
)
from tenure.protocol.requests import (
    MAX_PAGE,
    DeadLettersQuery,
    JobsQuery,
    LimitMessage,
    LookupMessage,
    NamespaceQuery,
)
from tenure.remote.answers import NotFound
from tenure.remote.caller import Call, Caller


class RemoteAdministered:
    """The part of `tenure.ports.Administration` that is not `Coordination`."""

    _caller: Caller

    def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """A page of jobs, newest first, without their bodies."""
        if _is_about_dead_letters(wanted):
            return [letter.job for letter in self.list_dead_letters(wanted)]
        query = JobsQuery(
            status=wanted.statuses,
            queue=wanted.queue,
            kind=wanted.kind,
            correlation_id=wanted.correlation_id,
            id_prefix=wanted.id_prefix,
            before=wanted.before,
            limit=wanted.limit,
            namespace=wanted.namespace,
        )
        page = self._caller.ask(Call(name="jobs", query=query), JobPage)
        return [job_of(record) for record in page.jobs]

    def list_dead_letters(self, wanted: JobFilter) -> list[DeadLetter]:
        """A page of dead letters, newest first, without their bodies."""
        is_more = wanted.correlation_id is not None or wanted.id_prefix is not None
        if wanted.statuses != (JobStatus.DEAD_LETTERED,) or is_more:
            raise InvalidInput("status", "a server lists these filters for dead letters only")
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

    def load_resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters."""
        found: list[ResolutionRecord] = []
        for start in range(0, len(ids), MAX_PAGE):
            message = LookupMessage(job_ids=tuple(ids[start : start + MAX_PAGE]))
            page = self._caller.ask(Call(name="lookup", message=message), JobPage)
            found += page.resolutions
        return {record.job_id: resolution_of(record) for record in found}

    def list_queues(self, namespace: Namespace) -> list[QueueState]:
        """Every queue within the token's scope."""
        call = Call(name="queues", query=NamespaceQuery(namespace=namespace))
        return list(self._caller.ask(call, QueuesReply).queues)

    def put_queue(
        self, namespace: Namespace, name: QueueName, *, paused: bool | None, limit: int | None
    ) -> QueueState:
        """Pause, resume or limit a queue: one request for each of the two that is given."""
        query = NamespaceQuery(namespace=namespace)
        parts = {"queue": str(name)}
        calls = []
        if paused is not None:
            word = "pause" if paused else "resume"
            calls.append(Call(name=word, parts=parts, query=query))
        if limit is not None:
            message = LimitMessage(limit=limit)
            calls.append(Call(name="limit", parts=parts, query=query, message=message))
        if not calls:
            raise InvalidInput("queue", "nothing is to be set")
        return [self._caller.ask(call, QueueState) for call in calls][-1]

    def list_workers(self, namespace: Namespace) -> list[WorkerSeen]:
        """The workers within the token's scope."""
        call = Call(name="workers", query=NamespaceQuery(namespace=namespace))
        return [worker_of(record) for record in self._caller.ask(call, WorkersReply).workers]

    def request_drain(self, namespace: Namespace, worker: WorkerId) -> bool:
        """Ask a worker to finish and stop; whether there is one."""
        query = NamespaceQuery(namespace=namespace)
        try:
            self._caller.ask(Call(name="drain", parts={"worker": worker}, query=query), DrainReply)
        except NotFound:
            return False
        return True


def _is_about_dead_letters(wanted: JobFilter) -> bool:
    return (wanted.resolved, wanted.reason_code, wanted.stage) != (None, None, None)
