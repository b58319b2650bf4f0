"""The harness of the store kit: a store under test, virtual time, and a real coordinator.

The author of a store writes a `StoreFactory` for it; everything else is here. A test gives the same
history in every run: time moves only by `advance`, and random bytes come from a counter. After each
test `tenure.verify` checks the history; a violation fails the test.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from msgspec.structs import replace

from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimAnswer, ClaimRequest, QueueState
from tenure.core.commands import (
    Cancel,
    Claim,
    Command,
    Complete,
    DeadLetter,
    Discard,
    Enqueue,
    EnqueueFlow,
    Fail,
    FlowMember,
    Heartbeat,
    Outage,
    Parent,
    Redrive,
    RedriveFlow,
    Release,
    Requeue,
    Stall,
    Start,
    Sweep,
    Unblock,
)
from tenure.core.events import Event
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    ENTROPY_BYTES,
    FlowId,
    JobId,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    operator_actor,
    worker_actor,
)
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import Job, JobError
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.lifecycle import decide
from tenure.core.outcomes import Applied, Change, DecisionContext, NeedsHistory
from tenure.core.policy import LeaseBounds, Policy
from tenure.core.rates import Rate
from tenure.core.validation import Limits
from tenure.core.verdicts import Answer, Grant, Observation, Reply, Verdict
from tenure.core.vocabulary import CancelMode, ErrorClass, EventType, JobStatus, ReasonCode
from tenure.errors import Closed
from tenure.ports import DedupeKey, Entropy, KeyHolders, Locked, Store, StoredJobs, dedupe_key_of
from tenure.verify import (
    Ack,
    AckWriter,
    answer_line,
    assert_holds,
    flow_lines,
    flow_redrive_lines,
    grant_lines,
    verify,
)
from tenure_conformance.factory import BEGINNING, MemoryFactory, StoreFactory, VirtualClock

__all__ = [
    "BEGINNING",
    "CLIENT",
    "ENDS",
    "KIND",
    "LIMITS",
    "OPERATOR",
    "QUEUE",
    "WORKER",
    "WORKER_ID",
    "Interposed",
    "Kit",
    "MemoryFactory",
    "StoreFactory",
    "VirtualClock",
    "counted_entropy",
    "ids",
    "kit",
    "policy",
    "race",
]

QUEUE = QueueName("default")
KIND = Kind("task")
CLIENT = client_actor("kit")
OPERATOR = operator_actor("kit")
WORKER = worker_actor("kit")
WORKER_ID = WorkerId("kit-1")

# Tests may use short and long leases: the coordinator enforces the bounds, not the store.
LIMITS = Limits(lease=LeaseBounds(shortest_us=seconds(1), longest_us=seconds(24 * 3600)))

_RACE_TIMEOUT_S = 30.0
_PAUSE_S = 0.001

T = TypeVar("T")


def counted_entropy(seed: str) -> Entropy:
    """Bytes that look random and are the same in every run."""
    lock = threading.Lock()
    drawn = 0

    def draw(size: int) -> bytes:
        nonlocal drawn
        with lock:
            first = drawn
            drawn += -(-size // 32)
        blocks = (
            hashlib.sha256(f"{seed}:{number}".encode()).digest()
            for number in range(first, first + -(-size // 32))
        )
        return b"".join(blocks)[:size]

    return draw


class Interposed:
    """A store that calls `before_save` before each save.

    Tests lose a race there: another caller writes, or time passes, after the decision.
    """

    def __init__(self, store: Store, before_save: Callable[[Sequence[Change]], None]) -> None:
        self._store = store
        self.jobs = _InterposedJobs(store.jobs, before_save)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _InterposedJobs:
    def __init__(self, jobs: StoredJobs, before_save: Callable[[Sequence[Change]], None]) -> None:
        self._jobs = jobs
        self._before_save = before_save

    def save(self, changes: Iterable[Change], **keywords: Any) -> Any:
        """Call `before_save`, then save."""
        whole = list(changes)
        self._before_save(whole)
        return self._jobs.save(whole, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)


def policy(*, lease_s: float = 60, **fields: Any) -> Policy:
    """A policy with a lease in seconds; other fields by name."""
    return Policy(lease_us=seconds(lease_s), **fields)


def race(*runners: Callable[[], T]) -> list[T]:
    """Run these at once, one thread each. Returns their results in order, or raises the first
    exception."""
    barrier = threading.Barrier(len(runners))
    results: dict[int, T] = {}
    failures: list[BaseException] = []

    def run(number: int, runner: Callable[[], T]) -> None:
        try:
            barrier.wait(_RACE_TIMEOUT_S)
            results[number] = runner()
        except BaseException as failure:  # re-raised in the thread that called
            failures.append(failure)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(runners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_RACE_TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads), "a thread of the race hangs"
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(runners))]


class Kit:
    """The store under test, a coordinator on it, and a short method for each command.

    Methods that take a job use the lease in it, so an old copy of a job has an old lease. A
    second call with the same `request_id` is a repeated request.
    """

    def __init__(self, factory: StoreFactory) -> None:
        self.factory = factory
        self.store = factory.open()
        self._elapsed_us = 0
        self._moving = threading.Lock()
        self._numbers = iter(range(1, 1_000_000))
        self._ids = counted_entropy("ids")
        self._seqs: dict[tuple[str, str], int] = {}
        self._acks: list[Ack] = []
        self.of_newer_version: set[JobId] = (
            set()
        )  # jobs with values that this version does not know
        self._coordinators: list[Coordinator] = []
        self.coordinator = self.coordinate(self.store)

    # --- time and coordinators ------------------------------------------------------------------

    def coordinate(self, store: Store, *, remembered: int = 20_000) -> Coordinator:
        """Start a coordinator on this store; the kit closes it."""
        entropy = counted_entropy(f"coordinator {len(self._coordinators)}")
        made = Coordinator(
            store, limits=LIMITS, entropy=entropy, monotonic=self.monotonic, remembered=remembered
        )
        self._coordinators.append(made)
        return made

    def rival(self) -> Coordinator:
        """A coordinator on another handle, as a second process would have."""
        return self.coordinate(self.factory.reopen())

    def interpose(self, before_save: Callable[[Sequence[Change]], None]) -> Coordinator:
        """A coordinator that calls `before_save` before each save."""
        return self.coordinate(cast(Store, Interposed(self.store, before_save)))

    def monotonic(self) -> int:
        """The host's monotonic clock, which is virtual too."""
        return self._elapsed_us

    def advance(self, *, seconds: float = 0, microseconds: int = 0) -> None:
        """Let time pass, for the store and for this process."""
        by = Duration(round(seconds * 1_000_000) + microseconds)
        assert by >= 0, "cannot advance by a negative time: use step_back"
        # Without the lock, of two threads that read the clock at once the later to write sets it
        # back, and the store admits keys in an order that no clock ever had.
        with self._moving:
            self._elapsed_us += by
            self.factory.advance(by)

    def advance_to(self, instant: Instant | None) -> None:
        """Let time pass until the store's clock shows `instant`."""
        assert instant is not None
        self.advance(microseconds=instant - self.now())

    def step_ahead(self, *, seconds: float) -> None:
        """Set the store's clock ahead; for this process no time passes."""
        self.factory.advance(Duration(round(seconds * 1_000_000)))

    def step_back(self, *, seconds: float) -> None:
        """Set the store's clock back; for this process no time passes."""
        self.factory.advance(Duration(-round(seconds * 1_000_000)))

    def now(self) -> Instant:
        """The store's clock."""
        return self.store.now()

    def verify(self, directory: Path) -> None:
        """Fail if `tenure.verify` finds a violation or misses an acknowledged change. Of the jobs
        `of_newer_version` it must report their unknown values, and nothing else. [Y4]"""
        acks = directory / "acks.jsonl"
        with AckWriter(acks) as writer:
            writer.write(*self._acks)
        if not self.of_newer_version:
            assert_holds(self.store, [acks])
            return
        found = [each for finding in verify(self.store, [acks]).findings for each in finding.first]
        assert {(each.invariant, each.job_id) for each in found} == {
            ("I24", job_id) for job_id in self.of_newer_version
        }

    def close(self) -> None:
        """Close the coordinators and the factory."""
        for coordinator in self._coordinators:
            coordinator.close()
        self.factory.close()

    def new_id(self) -> JobId:
        """A fresh job id."""
        return new_job_id(BEGINNING, next(self._numbers).to_bytes(6, "big") + self._ids(10))

    def request_id(self) -> RequestId:
        """A fresh request id."""
        return RequestId(f"request-{next(self._numbers)}")

    # --- reading -------------------------------------------------------------------------------

    def holders(self, *keys: DedupeKey) -> dict[DedupeKey, Job]:
        """The jobs that hold these keys."""
        found = self.store.jobs.load(KeyHolders(keys)).jobs.values()
        return {dedupe_key_of(job): job for job in found}

    def reload(self, job: Job) -> Job:
        """The job as it is stored now."""
        return self.store.jobs.load([job.id]).jobs[job.id]

    def exists(self, job_id: JobId) -> bool:
        """Whether there is such a job."""
        return job_id in self.store.jobs.load([job_id]).jobs

    def events(self, job: Job) -> list[Event]:
        """The job's log."""
        return self.store.events.load([job.id])[job.id]

    def types(self, job: Job) -> list[EventType]:
        """The types of the job's events, in order."""
        return [event.type for event in self.events(job)]

    def observations(self, job: Job) -> list[Observation]:
        """The observations of the job."""
        return self.store.jobs.observations(job.id)

    # --- clients and operators -----------------------------------------------------------------

    def ask(self, command: Command) -> Answer:
        """Execute a command and record the acknowledgement for `verify`."""
        answer = self.coordinator.execute(command)
        if isinstance(command, EnqueueFlow):
            assert isinstance(answer, Reply)
            self._acks += flow_lines(command, answer, at=self.store.now())
            return answer
        if isinstance(command, RedriveFlow):
            assert isinstance(answer, Reply)
            self._acks += flow_redrive_lines(answer, at=self.store.now())
            return answer
        if not isinstance(command, Sweep | Unblock | Claim | Discard) and not isinstance(
            answer, Grant
        ):
            self._acks.append(answer_line(command, answer, at=self.store.now()))
        return answer

    def reply(self, command: Command) -> Reply:
        """Execute a command whose answer is a reply."""
        answer = self.ask(command)
        assert isinstance(answer, Reply), answer
        return answer

    def new(self, **fields: Any) -> Enqueue:
        """The command that enqueues a job; `lease_s` is short for a policy with that lease."""
        if "lease_s" in fields:
            fields["policy"] = policy(lease_s=fields.pop("lease_s"))
        if "delay_s" in fields:
            fields["delay_us"] = seconds(fields.pop("delay_s"))
        defaults: dict[str, Any] = {
            "job_id": self.new_id(),
            "namespace": DEFAULT_NAMESPACE,
            "queue": QUEUE,
            "kind": KIND,
            "actor": CLIENT,
        }
        return Enqueue(**(defaults | fields))

    def enqueue(self, **fields: Any) -> Job:
        """Enqueue a new job."""
        reply = self.reply(self.new(**fields))
        assert reply.is_ok, reply
        assert reply.job is not None
        return reply.job

    def new_flow(
        self,
        steps: Mapping[str, Sequence[str | Job]],
        *,
        ended: Collection[str] = (),
        **fields: Any,
    ) -> EnqueueFlow:
        """The command that enqueues a flow: each step with the steps, or other jobs, that it waits
        for. Those in `ended` run whatever became of them. The other fields are the jobs'."""
        ids = {step: self.new_id() for step in steps}

        def parent(step: str, after: str | Job) -> Parent:
            needs = None if step in ended else JobStatus.SUCCEEDED
            if isinstance(after, str):
                return Parent(job_id=ids[after], step=after, needs=needs)
            return Parent(job_id=after.id, step=f"job {after.id}", needs=needs)

        members = tuple(
            FlowMember(
                job=self.new(**{"job_id": ids[step], **fields}),
                step=step,
                after=tuple(parent(step, each) for each in after),
            )
            for step, after in steps.items()
        )
        return EnqueueFlow(flow_id=FlowId(self.new_id()), name="kit", members=members)

    def flow(
        self,
        steps: Mapping[str, Sequence[str | Job]],
        *,
        ended: Collection[str] = (),
        **fields: Any,
    ) -> dict[str, Job]:
        """Enqueue a flow; its jobs by step."""
        command = self.new_flow(steps, ended=ended, **fields)
        reply = self.reply(command)
        assert reply.is_ok, reply
        self.settle()
        found = self.store.jobs.load([member.job.job_id for member in command.members]).jobs
        return {member.step: found[member.job.job_id] for member in command.members}

    def redrive_flow(self, flow_id: FlowId | None, *, request_id: str | None = None) -> Reply:
        """Redrive a flow."""
        assert flow_id is not None
        reply = self.reply(self.redriving_flow(flow_id, request_id=request_id))
        self.settle()
        return reply

    def redriving_flow(self, flow_id: FlowId, *, request_id: str | None = None) -> RedriveFlow:
        """The command of `redrive_flow`."""
        return RedriveFlow(
            flow_id=flow_id,
            namespace=DEFAULT_NAMESPACE,
            actor=OPERATOR,
            request_id=RequestId(request_id or self.request_id()),
        )

    def settle(self) -> None:
        """Wait for what the coordinator does on its own after it has answered."""
        until = time.monotonic() + _RACE_TIMEOUT_S
        while any(coordinator.is_busy for coordinator in self._coordinators):
            assert time.monotonic() < until, "the coordinator is still busy"
            time.sleep(_PAUSE_S)

    def cancel(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Reply:
        """Cancel a job: softly, unless `mode` is given."""
        return self.reply(self.cancellation(job, request_id=request_id, **fields))

    def cancellation(
        self,
        job: Job,
        *,
        mode: CancelMode = CancelMode.SOFT,
        request_id: str | None = None,
        **fields: Any,
    ) -> Cancel:
        """The command of `cancel`."""
        asked = RequestId(request_id or self.request_id())
        return Cancel(job_id=job.id, request_id=asked, mode=mode, **({"actor": CLIENT} | fields))

    def cancel_hard(self, job: Job) -> Reply:
        """Cancel a job with a hard cancel."""
        return self.cancel(job, mode=CancelMode.HARD)

    def stall(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Reply:
        """Take a job from its worker."""
        asked = RequestId(request_id or self.request_id())
        return self.reply(Stall(job_id=job.id, actor=OPERATOR, request_id=asked, **fields))

    def requeue(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Reply:
        """Requeue a held job."""
        asked = RequestId(request_id or self.request_id())
        return self.reply(Requeue(job_id=job.id, actor=OPERATOR, request_id=asked, **fields))

    def dead_letter(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Reply:
        """Dead-letter a live job."""
        fields = {"reason_code": ReasonCode.POLICY_VIOLATION} | fields
        asked = RequestId(request_id or self.request_id())
        return self.reply(DeadLetter(job_id=job.id, actor=OPERATOR, request_id=asked, **fields))

    def redrive(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Reply:
        """Redrive a finished job: make a new one from it."""
        return self.reply(self.redriving(job, request_id=request_id, **fields))

    def redriving(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Redrive:
        """The command of `redrive`."""
        asked = RequestId(request_id or self.request_id())
        return Redrive(job_id=job.id, actor=OPERATOR, request_id=asked, **fields)

    def discard(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Reply:
        """Discard a dead letter."""
        return self.reply(self.discarding(job, request_id=request_id, **fields))

    def discarding(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Discard:
        """The command of `discard`."""
        asked = RequestId(request_id or self.request_id())
        return Discard(job_id=job.id, request_id=asked, **({"actor": OPERATOR} | fields))

    def pause(self, queue: QueueName = QUEUE) -> QueueState:
        """Pause a queue."""
        return self.store.settings.put_queue(DEFAULT_NAMESPACE, queue, paused=True, limit=None)

    def resume(self, queue: QueueName = QUEUE) -> QueueState:
        """Resume a queue."""
        return self.store.settings.put_queue(DEFAULT_NAMESPACE, queue, paused=False, limit=None)

    def limit(self, limit: int, queue: QueueName = QUEUE) -> QueueState:
        """Limit a queue's live leases; 0 removes the limit."""
        return self.store.settings.put_queue(DEFAULT_NAMESPACE, queue, paused=None, limit=limit)

    def rate(self, rate: Rate | None, queue: QueueName = QUEUE) -> QueueState:
        """Set the rate of a queue, or remove it."""
        return self.store.settings.put_queue(
            DEFAULT_NAMESPACE, queue, paused=None, limit=None, rate=rate
        )

    def rate_of_kind(self, rate: Rate | None, kind: Kind = KIND) -> KindSettings:
        """Set the rate of a kind, or remove it."""
        return self.store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=kind, rate=rate))

    def sweep(self, job: Job, *outages: Outage) -> Reply:
        """Record the expiry of this job's lease and deadlines."""
        return self.reply(Sweep(job_id=job.id, outages=outages))

    # --- workers -------------------------------------------------------------------------------

    def claim_request(self, limit: int = 1, **fields: Any) -> ClaimRequest:
        """The request that `claim` sends; `claim_seq` rises per session unless it is given."""
        defaults: dict[str, Any] = {
            "namespace": DEFAULT_NAMESPACE,
            "worker": WORKER_ID,
            "actor": WORKER,
            "queues": (QUEUE,),
            "limit": limit,
            "request_id": self.request_id(),
        }
        merged = defaults | fields
        session = (merged["actor"], merged["worker"])
        self._seqs[session] = self._seqs.get(session, 0) + 1
        return ClaimRequest(**({"claim_seq": self._seqs[session]} | merged))

    def claim(self, limit: int = 1, **fields: Any) -> ClaimAnswer:
        """Claim as the kit's worker, or as the one in `fields`."""
        request = self.claim_request(limit, **fields)
        answer = self.coordinator.claim(request)
        self._acks += grant_lines(request, answer.grants, at=self.store.now())
        return answer

    def claimed(self, limit: int = 1, **fields: Any) -> list[Job]:
        """The jobs that a claim receives, in the order of the grants."""
        return [grant.job for grant in self.claim(limit, **fields).grants]

    def claimed_job(self, **fields: Any) -> Job:
        """A new job that the kit's worker has claimed but not started."""
        enqueued = self.enqueue(**fields)
        (job,) = self.claimed(queues=(enqueued.queue,), namespace=enqueued.namespace)
        assert job.id == enqueued.id, "another job was ready before this one"
        return job

    def running_job(self, **fields: Any) -> Job:
        """A new job that the kit's worker has started."""
        job = self.claimed_job(**fields)
        self.start(job)
        return self.reload(job)

    def stalled_job(self, **fields: Any) -> Job:
        """A new job whose lease expired and that is now `stalled`."""
        job = self.running_job(**fields)
        self.advance_to(job.due_at)
        self.sweep(job)
        return self.reload(job)

    def succeeded_job(self, **fields: Any) -> Job:
        """A new job that succeeded."""
        job = self.running_job(**fields)
        self.complete(job)
        return self.reload(job)

    def dead_letter_job(self, **fields: Any) -> Job:
        """A new job that was dead-lettered."""
        job = self.enqueue(**fields)
        self.dead_letter(job)
        return self.reload(job)

    def verdict(self, command: Command) -> Verdict:
        """Execute a command whose answer is a verdict."""
        answer = self.ask(command)
        assert isinstance(answer, Verdict), answer
        return answer

    def _under(self, job: Job, request_id: str | None, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of every report: job, lease, principal and request id."""
        lease: dict[str, Any] = {"job_id": job.id, "lease_id": job.lease_id, "actor": WORKER}
        lease["request_id"] = RequestId(request_id or self.request_id())
        return lease | fields

    def start(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Verdict:
        """Start the job as the owner of its lease."""
        return self.verdict(self.starting(job, request_id=request_id, **fields))

    def starting(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Start:
        """The command of `start`."""
        return Start(**self._under(job, request_id, fields))

    def heartbeat(self, job: Job, hb_seq: int = 1, **fields: Any) -> Verdict:
        """Renew the lease as its owner."""
        return self.verdict(self.beat(job, hb_seq, **fields))

    def beat(self, job: Job, hb_seq: int = 1, **fields: Any) -> Heartbeat:
        """The command of `heartbeat`."""
        lease: dict[str, Any] = {"job_id": job.id, "lease_id": job.lease_id, "actor": WORKER}
        return Heartbeat(hb_seq=hb_seq, **(lease | fields))

    def complete(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Verdict:
        """Report success as the owner of the lease."""
        return self.verdict(self.completion(job, request_id=request_id, **fields))

    def completion(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Complete:
        """The command of `complete`."""
        return Complete(**self._under(job, request_id, fields))

    def fail(
        self,
        job: Job,
        error_class: ErrorClass = ErrorClass.TRANSIENT,
        *,
        request_id: str | None = None,
        **fields: Any,
    ) -> Verdict:
        """Report a failure as the owner of the lease."""
        return self.verdict(self.failure(job, error_class, request_id=request_id, **fields))

    def failure(
        self,
        job: Job,
        error_class: ErrorClass,
        *,
        request_id: str | None = None,
        **fields: Any,
    ) -> Fail:
        """The command of `fail`."""
        fields = {"error": JobError(error_class=error_class, type="E", message="no")} | fields
        return Fail(**self._under(job, request_id, fields))

    def release(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Verdict:
        """Release the job as the owner of the lease."""
        return self.verdict(self.release_of(job, request_id=request_id, **fields))

    def release_of(self, job: Job, *, request_id: str | None = None, **fields: Any) -> Release:
        """The command of `release`."""
        return Release(**self._under(job, request_id, fields))

    # --- below the coordinator -----------------------------------------------------------------

    def change(self, command: Command, *, job: Job | None = None) -> Change:
        """Decide `command` on `job` (default: the stored one) without saving; the change."""
        loaded = self.store.jobs.load([command.job_id])
        subject = job or loaded.jobs.get(command.job_id)
        context = DecisionContext(
            now=loaded.now, epoch=loaded.epoch, entropy=self._ids(ENTROPY_BYTES), job=subject
        )
        outcome = decide(command, context)
        if isinstance(outcome, NeedsHistory):
            history = self.store.events.load([command.job_id])[command.job_id]
            outcome = decide(command, replace(context, history=history))
        assert isinstance(outcome, Applied), outcome
        return outcome.change

    def complete_with_a_late_commit(
        self, early: Job, late: Job, read: Callable[[], object]
    ) -> None:
        """Complete two running jobs so that the transaction of `early` begins first and commits
        last, where the store has several writers. `read` is called after each commit."""

        def finish_late() -> None:
            self.ask(self.completion(late))
            read()

        def decide_early(locked: Locked) -> list[Change]:
            if self.store.parallelism > 1:  # others commit while this transaction is open
                thread = threading.Thread(target=finish_late, daemon=True)
                thread.start()
                thread.join(_RACE_TIMEOUT_S)
                assert not thread.is_alive(), "the other transaction does not end"
            return [self.change(self.completion(early), job=locked.jobs[early.id])]

        assert self.store.jobs.save_locked([early.id], [], decide_early).applied == {early.id}
        if self.store.parallelism == 1:
            finish_late()
        read()

    def save(self, *changes: Change) -> frozenset[JobId]:
        """Save changes; the ids of the jobs whose change the store accepted."""
        epoch = self.store.jobs.load([]).epoch
        return self.store.jobs.save(changes, epoch=epoch).applied


ENDS: dict[str, Callable[[Kit, Job], object]] = {
    "succeeded": lambda kit, job: kit.complete(job),
    "failed": lambda kit, job: kit.fail(job, ErrorClass.PERMANENT),
    "cancelled": lambda kit, job: kit.cancel_hard(job),
    "dead_lettered": lambda kit, job: kit.dead_letter(job),
}
"""How a running job can end, by the status that it has then."""


def ids(found: Sequence[Job] | Sequence[Grant] | Sequence[Event]) -> list[JobId]:
    """The job ids of these, in order."""
    return [each.id if isinstance(each, Job) else each.job_id for each in found]


@pytest.fixture
def kit(tenure_store_factory: StoreFactory, tmp_path: Path) -> Iterator[Kit]:
    """A kit on a new store. Verifies the history after the test."""
    made = Kit(tenure_store_factory)
    try:
        yield made
        with suppress(Closed):  # the test closed the store itself
            made.verify(tmp_path)
    finally:
        made.close()
