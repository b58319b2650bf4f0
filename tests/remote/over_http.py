"""The conformance kit with HTTP in between: what its coordinator is asked goes through a socket.

Every principal of the kit gets a token of its own. An answer is compared with the row it speaks of
before the kit sees it: nothing may be lost or changed on the way but the id of a lease.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

from msgspec.structs import replace

from tenure.coordinator.service import Coordinator
from tenure.core.artifacts import ArtifactUpload, AttemptOutput
from tenure.core.claims import ClaimAnswer, ClaimRequest, QueueState
from tenure.core.commands import Claim, Command, Enqueue, Release, Sweep
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    SYSTEM,
    Actor,
    JobId,
    Namespace,
    QueueName,
)
from tenure.core.job import HIDDEN, Job
from tenure.core.verdicts import Answer, Grant, Reply
from tenure.core.vocabulary import ReleaseKind, Role
from tenure.core.workers import WorkerProcess
from tenure.ports import Store
from tenure.remote.coordinator import RemoteCoordinator
from tenure_conformance.harness import QUEUE, Kit, StoreFactory
from tests.remote.serving import ThreadedServer, connect, new_token
from tests.support.doubles import Intercepted

OPERATOR = Actor("operator:kit")
_NOT_IN_REPLIES = ("checkpoint", "result", "lease_id", "claimed_run_at")
_CARRIED = ("id", "queue", "kind", "payload", "status", "attempt", "rev", "failures", "hb_seq")


class OverHttp:
    """A coordinator's callers, each with a token, at the other end of a socket."""

    def __init__(self, near: Coordinator, url: str) -> None:
        self._near = near
        self.store = StoreOverHttp(self, near.store)
        self._url = url
        self._callers: dict[tuple[Actor, Namespace], RemoteCoordinator] = {}

    @property
    def _store(self) -> Store:
        return self._near.store

    def of(self, actor: Actor, namespace: Namespace = DEFAULT_NAMESPACE) -> RemoteCoordinator:
        """What a principal of a namespace talks to."""
        if (actor, namespace) not in self._callers:
            role, _, name = actor.partition(":")
            text = new_token(self._store, Role(role), name, namespace)
            self._callers[actor, namespace] = connect(self._url, text)
        return self._callers[actor, namespace]

    def close(self) -> None:
        for caller in self._callers.values():
            caller.close()
        self._near.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._near, name)

    # --- commands

    def execute(self, command: Command) -> Answer:
        return self.execute_many([command])[0]

    def execute_many(self, commands: Sequence[Command]) -> list[Answer]:
        return self.submit_many(commands).result()

    def submit(self, command: Command) -> "Future[list[Answer]]":
        return self.submit_many([command])

    def submit_many(self, commands: Sequence[Command]) -> "Future[list[Answer]]":
        first = commands[0]
        if _is_coordinators_own(first):
            return self._near.submit_many(commands)
        namespace = self._namespace(first)
        answers = self.of(first.actor, namespace).submit_many(commands).result()
        done: Future[list[Answer]] = Future()
        done.set_result([self._seen(answer) for answer in answers])
        return done

    def _namespace(self, command: Command) -> Namespace:
        if isinstance(command, Enqueue):
            return command.namespace
        job = self._store.jobs.load([command.job_id]).jobs.get(command.job_id)
        return DEFAULT_NAMESPACE if job is None else job.namespace

    def _seen(self, answer: Answer) -> Answer:
        if not isinstance(answer, Reply) or answer.job is None:
            return answer
        job = answer.job
        if answer.resolution is not None:
            job_id = answer.resolution.job_id
            kept = self._store.jobs.resolutions([job_id])[job_id]
            assert replace(answer.resolution, fingerprint=kept.fingerprint) == kept
            answer = replace(answer, resolution=kept)
        return self._with_row(answer, job)

    def _with_row(self, answer: Reply, job: Job) -> Reply:
        row = self._store.jobs.load([job.id]).jobs.get(job.id)
        if row is None or row.rev != job.rev:
            return answer
        hidden = {"payload": HIDDEN, **dict.fromkeys(_NOT_IN_REPLIES)}
        assert job == replace(row, **hidden)
        return replace(answer, job=row)

    # --- claims

    def claim(self, request: ClaimRequest) -> ClaimAnswer:
        return self.submit_claim(request).result()

    def submit_claim(self, request: ClaimRequest) -> "Future[ClaimAnswer]":
        answer = self.of(request.actor, request.namespace).submit_claim(request).result()
        done: Future[ClaimAnswer] = Future()
        done.set_result(replace(answer, grants=tuple(map(self._granted, answer.grants))))
        return done

    def _granted(self, grant: Grant) -> Grant:
        row = self._store.jobs.load([grant.job_id]).jobs[grant.job_id]
        if row.rev == grant.job.rev:
            assert _carried(grant.job) == _carried(row)
            assert grant.lease_id == row.lease_id
        return replace(grant, job=row)


class StoreOverHttp(Intercepted):
    """The store of a server: what workers leave there travels, tests read it directly."""

    def __init__(self, far: OverHttp, near: Store) -> None:
        super().__init__(near, self._send)
        self._far = far

    def _send(self, place: str, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        match given:
            case (ArtifactUpload() as upload,):
                return self._far.of(upload.actor).store.artifacts.stage(upload)
            case (AttemptOutput() as output,):
                return self._far.of(output.actor).store.artifacts.put_log(output)
            case (WorkerProcess() as process,):
                return self._far.of(process.actor, process.namespace).store.workers.see(process)
            case _:
                return method(*given, **named)


def _is_coordinators_own(command: Command) -> bool:
    """Whether it never travels."""
    if isinstance(command, Release) and command.kind is ReleaseKind.UNDELIVERED:
        return True
    return isinstance(command, Sweep | Claim) or command.actor == SYSTEM


def _carried(job: Job) -> list[object]:
    """What a grant carries of its job."""
    limits = (job.policy.lease_us, job.policy.timeout_us, job.policy.grace_us)
    bodies = (job.checkpoint, job.progress, job.correlation_id, job.enqueued_at)
    return [*(getattr(job, name) for name in _CARRIED), *limits, *bodies]


class RemoteKit(Kit):
    """A kit whose coordinator is far away; rivals stay near, as another process on the store."""

    def __init__(self, factory: StoreFactory, server: ThreadedServer) -> None:
        super().__init__(factory)
        near = self.coordinator
        self._mounted = server.mount(near, self.monotonic)
        self.far = OverHttp(near, server.url)
        self.coordinator = cast(Coordinator, self.far)

    def pause(self, queue: QueueName = QUEUE) -> QueueState:
        return self._put(queue, paused=True, limit=None)

    def resume(self, queue: QueueName = QUEUE) -> QueueState:
        return self._put(queue, paused=False, limit=None)

    def limit(self, limit: int, queue: QueueName = QUEUE) -> QueueState:
        return self._put(queue, paused=None, limit=limit)

    def _put(self, queue: QueueName, *, paused: bool | None, limit: int | None) -> QueueState:
        operator = self.far.of(OPERATOR)
        return operator.store.settings.put_queue(
            DEFAULT_NAMESPACE, queue, paused=paused, limit=limit
        )

    def reload(self, job: Job) -> Job:
        """The row; what a client is shown of it is the same, but for the lease's id and the place
        it was claimed from."""
        row = super().reload(job)
        [shown] = self.far.of(OPERATOR, row.namespace).store.jobs.read([row.id]).values()
        assert replace(shown, lease_id=row.lease_id, claimed_run_at=row.claimed_run_at) == row
        return row

    def close(self) -> None:
        self.far.close()
        self._mounted.close()
        super().close()

    def exists(self, job_id: JobId) -> bool:
        found = super().exists(job_id)
        assert bool(self.far.of(OPERATOR).store.jobs.read([job_id])) == found
        return found
