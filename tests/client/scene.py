"""An application over a memory store in virtual time, and short words for what its tests do."""

from collections.abc import Callable

from tenure.client.app import Application
from tenure.client.channel import Link
from tenure.core.commands import Complete, Fail, Heartbeat, Start
from tenure.core.ids import DEFAULT_NAMESPACE, WorkerId, worker_actor
from tenure.core.instants import Duration
from tenure.core.job import JobError, Progress
from tenure.core.verdicts import Grant
from tenure.core.vocabulary import ErrorClass, Stage
from tenure.core.workers import WorkerProcess
from tests.support.coordinators import QUEUE, World

WORKER = "w1"
ACTOR = worker_actor(WORKER)
OWNER = WorkerId(WORKER)


class Scene:
    """Pausing moves the virtual clock; `then` is what happens at the first pause, if anything."""

    def __init__(self) -> None:
        self.world = World()
        self.opened = 0
        self.closed = 0
        self.pauses: list[float] = []
        self.then: Callable[[], object] | None = None

    def app(self, *, namespace: str = "default") -> Application:
        """A fresh application without functions."""
        return Application(self.connect, namespace=namespace, name="tests")

    def connect(self) -> Link:
        self.opened += 1
        return Link(
            coordination=self.world.coordinator,
            close=self._close,
            monotonic=lambda: self.world.clock() / 1_000_000,
            pause=self.pause,
            apause=self.apause,
        )

    def _close(self) -> None:
        self.closed += 1

    def pause(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.world.clock.advance(pause_s)
        then, self.then = self.then, None
        if then is not None:
            then()

    async def apause(self, pause_s: float) -> None:
        self.pause(pause_s)

    # --- a worker's part -----------------------------------------------------------------------

    def claim(self) -> Grant:
        """The next job of the queue `work`, claimed and started."""
        [grant] = self.world.claim(WORKER)
        self.world.coordinator.execute(
            Start(
                job_id=grant.job_id,
                lease_id=grant.lease_id,
                actor=ACTOR,
                request_id=self.world.request_id(),
            )
        )
        return grant

    def finish(self, result: bytes = b"null") -> Grant:
        """Claim a job and report success."""
        grant = self.claim()
        self.complete(grant, result)
        return grant

    def complete(self, grant: Grant, result: bytes = b"null") -> None:
        """Report success."""
        self.world.coordinator.execute(
            Complete(
                job_id=grant.job_id,
                lease_id=grant.lease_id,
                actor=ACTOR,
                request_id=self.world.request_id(),
                result=result,
            )
        )

    def fail(
        self,
        error_class: ErrorClass = ErrorClass.PERMANENT,
        *,
        stage: Stage = Stage.EXEC,
        traceback: str = "",
    ) -> Grant:
        """Claim a job and report a failure."""
        grant = self.claim()
        self.world.coordinator.execute(
            Fail(
                job_id=grant.job_id,
                lease_id=grant.lease_id,
                actor=ACTOR,
                request_id=self.world.request_id(),
                error=JobError(
                    error_class=error_class,
                    type="Boom",
                    message="it broke",
                    traceback=traceback,
                    stage=stage,
                ),
            )
        )
        return grant

    def see_worker(self, name: str) -> None:
        """A worker's sign of life."""
        self.world.coordinator.store.workers.see(
            WorkerProcess(
                namespace=DEFAULT_NAMESPACE,
                worker=WorkerId(name),
                actor=worker_actor(name),
                host="host-1",
                pid=7,
                queues=(QUEUE,),
                concurrency=4,
                version="0.1.0",
                uptime_us=Duration(1_000_000),
            )
        )

    def beat(self, grant: Grant, progress: Progress) -> None:
        """A heartbeat that says how far the job is."""
        self.world.coordinator.execute(
            Heartbeat(
                job_id=grant.job_id,
                lease_id=grant.lease_id,
                actor=ACTOR,
                hb_seq=1,
                progress=progress,
            )
        )


__all__ = ["ACTOR", "OWNER", "QUEUE", "WORKER", "Scene"]
