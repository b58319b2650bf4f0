"""Running an application's jobs in this process: one store in memory, one clock, no worker.

Each attempt is claimed, started and reported as a worker does it, under a real lease. While a test
waits for a job, ready jobs are run, and the clock jumps to the next instant at which one is ready.
Schedules of the application fire whenever the clock passes one of their times.
"""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import count

from tenure.client.app import Application
from tenure.client.channel import Link
from tenure.client.jobs import Job
from tenure.client.records import JobRecord, record_of
from tenure.clock import NEVER, Boot
from tenure.coordinator.schedules import Firer
from tenure.coordinator.service import Coordinator
from tenure.coordinator.unblocking import unblock_recorded
from tenure.core.claims import MAX_CLAIM_QUEUES, ClaimRequest, RateLimited
from tenure.core.commands import Heartbeat, Start, Sweep, WorkerCommand
from tenure.core.ids import Kind, RequestId, WorkerId, worker_actor
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.job import Job as StoredJob
from tenure.core.schedules import PutSchedule
from tenure.core.validation import Limits
from tenure.core.verdicts import Grant, Verdict
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import VerdictKind
from tenure.errors import TenureError
from tenure.handlers.options import Span, duration
from tenure.own_transaction.jobs import InMemoryTransactions
from tenure.ports import DueJobs
from tenure.stores.sqlite.memory import MemoryStore
from tenure.worker.child.execution import Execution
from tenure.worker.frames import (
    Ask,
    AskToStop,
    CheckpointSaved,
    FromChild,
    LeaseLost,
    ProgressMade,
    Run,
    SelfCompleted,
    ToSupervisor,
)
from tenure.worker.session.attempts import LeasedAttempt, report_of
from tenure.worker.supervisor.declarations import declare_kinds
from tenure.worker.supervisor.requests import HandlerRequest, HandlerRequests

BEGINNING = Instant(1_767_225_600_000_000)  # the first instant of 2026
MAX_ATTEMPTS = 2000
MAX_SHOWN = 100_000
SETTLE_PAUSE_S = 0.0005
WORKER = WorkerId("inline")
ACTOR = worker_actor(WORKER)


class FakeClock:
    """A clock that moves only by `advance` and `advance_to`."""

    def __init__(self, beginning: Instant = BEGINNING) -> None:
        self._now = beginning

    def __call__(self) -> Instant:
        return self._now

    def advance(self, span: Span) -> None:
        """Move the clock forward by this much."""
        self._now = Instant(self._now + duration("span", span))

    def advance_to(self, instant: Instant) -> None:
        """Move the clock to this instant, never backwards."""
        self._now = max(self._now, instant)


@contextmanager
def inline(app: Application, *, max_attempts: int = MAX_ATTEMPTS) -> Iterator["Inline"]:
    """Send everything the application enqueues to a store in memory, and run it on request.

    `max_attempts` is how many attempts one call may run before it gives up.
    """
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    coordinator = Coordinator(store, limits=Limits(), entropy=_RepeatableEntropy(), monotonic=clock)
    try:
        jobs = Inline(app, store, coordinator, clock, max_attempts=max_attempts)
        with app.channel.diverted(jobs.link):
            yield jobs
    finally:
        coordinator.close()
        store.close()


class _RepeatableEntropy:
    """The same random bytes in every run, so that a failing test fails again."""

    def __init__(self) -> None:
        self._numbers = count()

    def __call__(self, size: int) -> bytes:
        pieces = (sha256(b"%d" % next(self._numbers)).digest() for _ in range(0, size, 32))
        return b"".join(pieces)[:size]


class Inline:
    """Runs the jobs of one application when a test asks for it."""

    def __init__(
        self,
        app: Application,
        store: MemoryStore,
        coordinator: Coordinator,
        clock: FakeClock,
        *,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        self.clock = clock
        self.store = store
        self._transactions = InMemoryTransactions(coordinator)
        self.link = Link(
            coordination=coordinator,
            close=lambda: None,
            transactions=self._transactions,
            monotonic=lambda: clock() / MICROSECONDS_PER_SECOND,
            pause=self._pause,
            apause=self._apause,
        )
        self._app = app
        self._coordinator = coordinator
        self._requests = HandlerRequests(coordinator, actor=ACTOR, namespace=app.namespace)
        self._max_attempts = max_attempts
        self._claims = count(1)
        self._declared: set[Kind] = set()
        self._held_until: Instant | None = None
        self._firer = Firer(coordinator)
        self._declare_schedules()  # so that a test can pause or run one before time passes

    @property
    def enqueued(self) -> list[JobRecord]:
        """The records of all jobs so far, in the order they were enqueued."""
        now = self.clock()
        return [record_of(job, now=now, bodies=True) for job in self._stored()]

    def _stored(self) -> list[StoredJob]:
        found = self.store.views.jobs(
            JobFilter(namespace=self._app.namespace, limit=MAX_SHOWN)
        ).jobs
        return found[::-1]

    def run_ready(self) -> list[Job[object]]:
        """Run the jobs that are ready now, and those that they make ready, without moving the
        clock."""
        ran: list[Job[object]] = []
        while (grant := self._next_grant()) is not None:
            self._attempt(grant)
            ran.append(self._app.get(grant.job_id))
            self._limit(len(ran))
        return ran

    def drain(self) -> list[Job[object]]:
        """Run all jobs. Moves the clock past delays, retries and leases; schedules whose time comes
        on the way fire."""
        ran = self.run_ready()
        while (instant := self._next_instant()) is not None:
            ran += self._pass_schedules(instant, len(ran))
            self.clock.advance_to(instant)
            self._sweep()
            ran += self.run_ready()
            self._limit(len(ran))
        return ran

    def _limit(self, attempts: int) -> None:
        if attempts > self._max_attempts:
            raise TenureError(
                f"{attempts} attempts have run and jobs are still waiting",
                hint="run a job that enqueues or snoozes itself for ever step by step, with"
                " run_ready or short advances; pause a schedule that fires often with"
                " app.schedules.pause(name); or allow more with inline(app, max_attempts=…)",
            )

    async def adrain(self) -> list[Job[object]]:
        """Run all jobs in a thread, without blocking the event loop."""
        return await asyncio.to_thread(self.drain)

    def advance(self, span: Span) -> list[Job[object]]:
        """Move the clock, then run the jobs that are ready. Schedules fire at each of their times
        on the way, and the jobs that are ready then run before the clock moves on."""
        until = Instant(self.clock() + duration("span", span))
        ran = self._pass_schedules(until, 0)
        self.clock.advance_to(until)
        self._sweep()
        return ran + self.run_ready()

    # --- one attempt ---------------------------------------------------------------------------

    def _next_grant(self) -> Grant | None:
        """The next job that is ready, also one that waited for others until now."""
        while True:
            self._settle()
            grant = self._claim()
            if grant is not None or not self._unblock():
                return grant

    def _unblock(self) -> bool:
        """Queue jobs whose parents have ended, as a sweeper does. Returns whether there were."""
        submit = self._coordinator.submit_many
        return unblock_recorded(self.store, submit, limit=MAX_SHOWN).jobs > 0

    def _settle(self) -> None:
        """Wait until the coordinator has queued the jobs of flows whose parents have ended."""
        while self._coordinator.is_busy:
            time.sleep(SETTLE_PAUSE_S)

    def _claim(self) -> Grant | None:
        kinds = self._app.registry.kinds()
        queues = [state.name for state in self.store.settings.queues(self._app.namespace)]
        self._held_until = None
        if not kinds or not queues:
            return None
        self._declare(kinds)
        for start in range(0, len(queues), MAX_CLAIM_QUEUES):
            number = next(self._claims)
            answer = self._coordinator.claim(
                ClaimRequest(
                    namespace=self._app.namespace,
                    worker=WORKER,
                    actor=ACTOR,
                    queues=tuple(queues[start : start + MAX_CLAIM_QUEUES]),
                    kinds=kinds,
                    limit=1,
                    claim_seq=number,
                    request_id=RequestId(f"claim-{number}"),
                )
            )
            if answer.grants:
                return answer.grants[0]
            self._remember(answer.rate_limited)
        return None

    def _declare(self, kinds: Sequence[Kind]) -> None:
        """As a worker does when it starts; here, also for functions that are decorated later."""
        if not self._declared.issuperset(kinds):
            self._declared.update(kinds)
            list(declare_kinds(self.store, self._app.namespace, self._app.registry))

    def _remember(self, held: RateLimited | None) -> None:
        """When a rate that blocks jobs has room again."""
        if held is not None:
            until = Instant(self.clock() + held.wait_us)
            self._held_until = min(until, self._held_until or until)

    def _attempt(self, grant: Grant) -> None:
        attempt = LeasedAttempt(0, grant, actor=ACTOR, sent_at=Boot(0), began_at=Boot(0))
        beats = count(grant.job.hb_seq + 1)
        self._send(
            Start(
                job_id=grant.job_id,
                lease_id=grant.lease_id,
                actor=ACTOR,
                request_id=RequestId(f"{grant.lease_id}:start"),
            )
        )
        execution = Execution(
            self._app.registry,
            # Leases end by the fake clock, not by the host's.
            Run.of(0, grant, until=NEVER),
            send=lambda frame: self._handle(frame, attempt, execution, next(beats)),
            limits=self._coordinator.limits,
            transactions=self._transactions,
        )
        report = report_of(attempt, _perform(execution))
        if report is not None:
            self._send(report)

    def _handle(
        self,
        frame: ToSupervisor,
        attempt: LeasedAttempt,
        execution: Execution,
        hb_seq: int,
    ) -> None:
        """Handle a frame of the handler as a supervisor does. A checkpoint or progress is sent with
        a heartbeat at once, and the answer may ask the handler to stop."""
        if isinstance(frame, Ask):
            request = HandlerRequest(frame, attempt.grant.job_id, attempt.grant.lease_id)
            execution.context.receive(self._requests.carry_out(request))
        elif isinstance(frame, SelfCompleted):
            attempt.settled = frame.result
        if not isinstance(frame, CheckpointSaved | ProgressMade):
            return
        beat = Heartbeat(
            job_id=attempt.grant.job_id,
            lease_id=attempt.grant.lease_id,
            actor=ACTOR,
            hb_seq=hb_seq,
            progress=frame.progress if isinstance(frame, ProgressMade) else None,
            checkpoint=frame.checkpoint if isinstance(frame, CheckpointSaved) else None,
        )
        verdict = self._send(beat)
        if verdict.kind is not VerdictKind.OK:
            execution.context.receive(LeaseLost(0))
        elif verdict.cancel is not None:
            attempt.asked_at = Boot(0)
            execution.context.receive(AskToStop(0, verdict.cancel.reason))

    def _send(self, command: WorkerCommand) -> Verdict:
        verdict = self._coordinator.execute(command)
        assert isinstance(verdict, Verdict)
        return verdict

    # --- time ----------------------------------------------------------------------------------

    def _next_instant(self) -> Instant | None:
        """When something happens next: a job becomes ready, a lease ends without a report, or a job
        that cannot run here expires."""
        kinds = self._app.registry.kinds()
        paused = {
            each.name for each in self.store.settings.queues(self._app.namespace) if each.paused
        }
        jobs = [(job, job.kind in kinds and job.queue not in paused) for job in self._stored()]
        instants = [
            job.run_at if job.due_at is None else job.due_at for job, can_run in jobs if can_run
        ]
        instants += [
            job.start_by
            for job, can_run in jobs
            if not can_run and job.not_before is not None and job.start_by is not None
        ]
        # A job that is due and waits for a rate needs the clock to move on to where that has room.
        waiting = [each for each in instants if each is not None]
        if self._held_until is not None and waiting:
            now = self.clock()
            waiting = [each for each in waiting if each > now] + [self._held_until]
        return min(waiting, default=None)

    def _pass_schedules(self, until: Instant, ran: int) -> list[Job[object]]:
        """Move the clock from one schedule's time to the next, as far as `until`."""
        self._declare_schedules()
        made: list[Job[object]] = []
        while (next_in := self._firer.fire_due().next_in_us) is not None:
            made += self.run_ready()
            self._limit(ran + len(made))
            if self.clock() + next_in > until:
                break
            self.clock.advance_to(Instant(self.clock() + next_in))
            self._sweep()
        return made

    def _declare_schedules(self) -> None:
        """Write the schedules that the application declares by now, as a starting worker does."""
        for name, spec in self._app.registry.schedules().items():
            command = PutSchedule(
                namespace=self._app.namespace,
                name=name,
                actor=ACTOR,
                spec=spec,
                declared_by="inline",
                only_new=True,
            )
            self._coordinator.change_schedule(command)

    def _sweep(self) -> None:
        self._settle()
        overdue = self.store.jobs.load(DueJobs(MAX_SHOWN)).jobs
        self._coordinator.execute_many([Sweep(job_id=job_id) for job_id in overdue])

    def _pause(self, pause_s: float) -> None:
        """The test waits for a job: run what is ready, else move the clock to what comes next."""
        if self.run_ready():
            return
        instant = self._next_instant()
        if instant is None:
            raise TenureError(
                "the job that the test waits for can never end here",
                hint="its kind is unknown to this application, its queue is paused, or it stalled",
            )
        self._pass_schedules(instant, 0)
        self.clock.advance_to(instant)
        self._sweep()

    async def _apause(self, pause_s: float) -> None:
        await asyncio.to_thread(self._pause, pause_s)


def _perform(execution: Execution) -> FromChild:
    """Run the handler; on a thread if an event loop runs here, because a coroutine needs its
    own."""
    if not _is_in_loop():
        return execution.perform()
    outcomes: list[FromChild] = []
    thread = threading.Thread(target=lambda: outcomes.append(execution.perform()))
    thread.start()
    thread.join()
    return outcomes[0]


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
