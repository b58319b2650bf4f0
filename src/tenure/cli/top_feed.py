"""Reads what `tenure top` shows, and does what its keys ask for, on a thread of its own.

So keys answer at once, however slow the store or the server is. Reading pauses for nine times as
long as it took, at most 30 s: one view keeps a store busy for a tenth of the time.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from tenure.cli.common import new_request_id, operator
from tenure.cli.refusals import refusal
from tenure.cli.top_view import Action, Deed, OpenJob, Snapshot
from tenure.core.commands import Cancel
from tenure.core.ids import JobId, Namespace, QueueName, WorkerId
from tenure.core.job import Job
from tenure.core.job_search import JobFilter
from tenure.core.overview import Overview, OverviewFilter
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import JobStatus
from tenure.deadlines import retrying_for
from tenure.errors import InvalidInput, TenureError
from tenure.ports import Coordination, JobStore

MAX_JOBS = 100
MAX_PARTS = 10
"""A token of several queues or kinds lists the jobs of each by itself: of so many at most."""

PAUSE_PER_READ = 9
LONGEST_PAUSE_S = 30.0
"""After an outage, in which a read may take a minute to fail, the screen is not left behind."""

RETRY_FOR_S = 5.0
"""Then the screen says that there is no answer; the next reading asks again."""

MAX_PENDING = 10
CLOSE_WITHIN_S = 2.0

RUNNING = (JobStatus.CLAIMED, JobStatus.RUNNING)


def read(store: JobStore, wanted: OverviewFilter) -> Snapshot:
    """The overview, the running jobs and the workers."""
    overview = store.overview(wanted)
    jobs = JobFilter(namespace=wanted.namespace, statuses=RUNNING, limit=MAX_JOBS, bodies=False)
    return Snapshot(
        overview=overview,
        jobs=_listed(store, overview, jobs),
        workers=store.list_workers(wanted.namespace),
    )


def _listed(store: JobStore, overview: Overview, wanted: JobFilter) -> list[Job]:
    """Jobs, newest first. A server answers a token of several queues, or of several kinds, only if
    the request names one of them. [H41]"""
    try:
        return store.list_jobs(wanted)
    except InvalidInput as narrow:
        if narrow.field == "queue" and wanted.queue is None:
            parts = [replace(wanted, queue=each.queue) for each in overview.queues if each.leased]
        elif narrow.field == "kind" and wanted.kind is None:
            parts = [replace(wanted, kind=each.kind) for each in overview.kinds if each.leased]
        else:
            raise
    found = [job for part in parts[:MAX_PARTS] for job in _listed(store, overview, part)]
    return sorted(found, key=lambda job: job.id, reverse=True)[: wanted.limit]


def read_job(store: JobStore, job_id: JobId) -> OpenJob | None:
    """One job with its history."""
    job = store.load_jobs([job_id]).get(job_id)
    if job is None:
        return None
    return OpenJob(
        now=store.now(),
        job=job,
        events=store.load_events(job_id),
        observations=store.load_observations(job_id),
    )


def perform(serving: Coordination, namespace: Namespace, action: Action) -> str:
    """Do what was asked for. Returns what to say about it."""
    store = serving.store
    match action.deed:
        case Deed.PAUSE | Deed.RESUME:
            pauses = action.deed is Deed.PAUSE
            store.put_queue(namespace, QueueName(action.target), paused=pauses, limit=None)
            return f"queue {action.target} is {'paused' if pauses else 'open'}"
        case Deed.DRAIN:
            known = store.request_drain(namespace, WorkerId(action.target))
            return f"worker {action.target} " + ("is draining" if known else "is not there")
        case Deed.CANCEL:
            command = Cancel(
                job_id=JobId(action.target), actor=operator(), request_id=new_request_id(None)
            )
            reply = serving.execute(command)
            assert isinstance(reply, Reply)
            refused = refusal(command, reply)
            if refused is not None:
                return refused
            asked = "was asked to stop" if reply.pending else "is cancelled"
            return f"job {action.target} {asked}"


class Feed:
    """The thread. Its owner reads `snapshot`, takes what is to be said, and is woken when either is
    new."""

    def __init__(
        self,
        serving: Coordination,
        wanted: OverviewFilter,
        *,
        every_s: float,
        wake: Callable[[], None],
    ) -> None:
        self._serving = serving
        self._wanted = wanted
        self._every_s = every_s
        self._wake = wake
        self._asked = threading.Event()
        self._is_closed = False
        self._pending: deque[Action] = deque()
        self._said: deque[str] = deque()
        self._thread = threading.Thread(target=self._run, name="tenure-top", daemon=True)
        self.snapshot = Snapshot()
        self.failure: BaseException | None = None
        self.opened: str | None = None

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def refresh(self) -> None:
        """Read again soon."""
        self._asked.set()

    def do(self, action: Action) -> None:
        """Do this after what was asked for before, or say that too much waits already."""
        if len(self._pending) >= MAX_PENDING:
            self._said.append(f"{action.words} is not done: {MAX_PENDING} others wait")
            return
        self._pending.append(action)
        self._asked.set()

    def take_said(self) -> str:
        """What became of actions since the last call; empty if nothing did."""
        said = []
        while self._said:
            said.append(self._said.popleft())
        return "; ".join(said)

    def close(self) -> None:
        """End; a call that hangs is left behind."""
        self._is_closed = True
        self._asked.set()
        self._thread.join(CLOSE_WITHIN_S)

    def _run(self) -> None:
        try:
            while not self._is_closed:
                began_s = time.monotonic()
                self._step()
                took_s = time.monotonic() - began_s
                self._wake()
                pause_s = min(PAUSE_PER_READ * took_s, LONGEST_PAUSE_S)
                self._asked.wait(max(self._every_s, pause_s))
                self._asked.clear()
        except BaseException as failure:  # a bug of ours: the owner raises it
            self.failure = failure
            self._wake()

    def _step(self) -> None:
        with retrying_for(RETRY_FOR_S):  # the screen says it if there is no answer
            self._ask()

    def _ask(self) -> None:
        try:
            while self._pending:
                action = self._pending.popleft()
                self._said.append(perform(self._serving, self._wanted.namespace, action))
        except TenureError as problem:
            self._said.append(str(problem))
        try:
            self.snapshot = self._read()
        except TenureError as problem:  # what was read last stays on the screen
            self.snapshot = replace(self.snapshot, problem=str(problem))

    def _read(self) -> Snapshot:
        store, opened = self._serving.store, self.opened
        if opened is None:
            return read(store, self._wanted)
        job = read_job(store, JobId(opened))
        problem = None if job is not None else f"there is no job {opened} any more"
        return replace(self.snapshot, opened=job, problem=problem)
