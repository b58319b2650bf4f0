"""How many queues, schedules, live workers and kinds a namespace may have on a server. [H77]

Lists, metrics and sweeps read these, so none of them may grow without end at the wish of one
tenant. A server refuses what would be one too many before anything is decided; what exists already,
and a request that was carried out before, passes. Several servers, and requests at the same moment,
exceed a limit at most by what they let through together. Names are remembered, so that the store is
asked once for each.
"""

from collections.abc import Iterable, Sequence

from tenure.core.commands import Enqueue
from tenure.core.ids import Kind, Namespace, QueueName, WorkerId
from tenure.core.workers import WorkerKey, WorkerProcess, WorkerSeen
from tenure.ports import Store
from tenure.protocol.problem_codes import ProblemCode
from tenure.server.problems import Refused
from tenure.server.settings import ServerSettings
from tenure.server.threads import Blocking

MAX_REMEMBERED = 100_000
"""Names that a server remembers; then it begins anew."""

NAMESAKES_AT_ONCE = 10


class NamespaceLimits:
    """Counts per namespace. Only the event loop's thread uses it."""

    def __init__(self, store: Store, settings: ServerSettings, blocking: Blocking) -> None:
        self._store = store
        self._settings = settings
        self._blocking = blocking
        self._known: set[tuple[object, ...]] = set()

    async def check_jobs(self, namespace: Namespace, jobs: Sequence[Enqueue]) -> None:
        """Raise if these jobs, or those that their ends make, need a queue too many."""
        if await self._have_room(namespace, {queue for job in jobs for queue in _queues_of(job)}):
            return
        made = await self._blocking(
            lambda: self._store.jobs.read([job.job_id for job in jobs], bodies=False)
        )
        new = [job for job in jobs if job.job_id not in made]  # the others are repeated
        await self.check_queues(namespace, {queue for job in new for queue in _queues_of(job)})

    async def check_queues(self, namespace: Namespace, queues: Iterable[QueueName]) -> None:
        """Raise if one of these queues does not exist and is one too many."""
        if not await self._have_room(namespace, set(queues)):
            most = self._settings.max_queues
            raise _too_many(ProblemCode.TOO_MANY_QUEUES, f"{most} queues", "queue")

    async def _have_room(self, namespace: Namespace, queues: set[QueueName]) -> bool:
        unknown = {queue for queue in queues if (namespace, queue) not in self._known}
        if not unknown:
            return True
        most = self._settings.max_queues
        counts = await self._blocking(lambda: self._store.tokens.count_names(namespace))
        if counts.queues + len(unknown) > most:
            found = await self._blocking(lambda: self._store.settings.queues(namespace))
            new = unknown - {each.name for each in found}
            if new and len(found) + len(new) > most:
                return False
        self._remember((namespace, queue) for queue in unknown)
        return True

    async def check_new_schedule(self, namespace: Namespace) -> None:
        """Raise if one more schedule is too many."""
        most = self._settings.max_schedules
        counts = await self._blocking(lambda: self._store.tokens.count_names(namespace))
        if counts.schedules >= most:
            raise _too_many(ProblemCode.TOO_MANY_SCHEDULES, f"{most} schedules", "schedule")

    async def check_kind(self, namespace: Namespace, kind: Kind) -> None:
        """Raise if nothing was ever set for this kind and one more is too many."""
        key = ("kind", namespace, kind)
        if key in self._known:
            return
        most = self._settings.max_kinds
        counts = await self._blocking(lambda: self._store.tokens.count_names(namespace))
        if counts.kinds >= most:
            found = await self._blocking(lambda: self._store.settings.kinds(namespace))
            if kind not in {each.kind for each in found}:
                raise _too_many(ProblemCode.TOO_MANY_KINDS, f"{most} kinds with settings", "kind")
        self._remember([key])

    async def check_worker(self, process: WorkerProcess) -> None:
        """Raise if this worker is not known and one more is too many."""
        key = (process.namespace, process.worker, process.actor)
        if process.is_ending:
            self._known.discard(key)
            return
        if key in self._known:
            return
        most = self._settings.max_live_workers
        counts = await self._blocking(lambda: self._store.tokens.count_names(process.namespace))
        if counts.live_workers >= most:
            known = await self._blocking(
                lambda: workers_named(self._store, process.namespace, process.worker)
            )
            if process.actor not in {each.actor for each in known}:
                raise _too_many(ProblemCode.TOO_MANY_WORKERS, f"{most} live workers", "worker")
        self._remember([key])

    def _remember(self, keys: Iterable[tuple[object, ...]]) -> None:
        if len(self._known) > MAX_REMEMBERED:
            self._known.clear()
        self._known.update(keys)


def workers_named(store: Store, namespace: Namespace, worker: WorkerId) -> list[WorkerSeen]:
    """The worker processes of this name. Does not read all of the namespace: a row may be large."""
    found: list[WorkerSeen] = []
    after = WorkerKey(worker, "")
    while True:
        rows = store.workers.page(namespace, after=after, limit=NAMESAKES_AT_ONCE)
        found += [row for row in rows if row.worker == worker]
        if len(rows) < NAMESAKES_AT_ONCE or rows[-1].worker != worker:
            return found
        after = rows[-1].key


def _queues_of(job: Enqueue) -> list[QueueName]:
    undo = None if job.policy is None else job.policy.compensation
    ends = (undo, job.on_dead_letter)
    return [job.queue, *(each.queue for each in ends if each is not None)]


def _too_many(code: ProblemCode, what: str, field: str) -> Refused:
    return Refused(
        422,
        code,
        f"this namespace has {what}, which is the limit",
        field=field,
        hint="use fewer, or other namespaces",
    )
