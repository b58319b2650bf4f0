"""Lawful histories out of a seed: random commands, decided by the core, in virtual time.

A `World` is the plainest world around `decide`: rows and logs in dictionaries, a clock that the
world moves, answers that may get lost. It refuses nothing and repairs nothing, so whatever its
histories break, the core broke. Equal seeds give equal worlds.
"""

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from tenure.core.claims import ClaimRequest
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
    ParentEnd,
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
from tenure.core.flow_rows import Edge, EdgeCheck
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    SYSTEM,
    Actor,
    Epoch,
    Fingerprint,
    FlowId,
    JobId,
    Kind,
    LeaseId,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    operator_actor,
    worker_actor,
)
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import Job, JobError, Progress
from tenure.core.kind_settings import KindSettings
from tenure.core.lifecycle import decide
from tenure.core.outcomes import Applied, Change, DecisionContext, NeedsHistory, Outcome, Refused
from tenure.core.policy import Backoff, Compensation, DeadLetterJob, Policy
from tenure.core.rates import GrantMade, RateInForce
from tenure.core.verdicts import Answer, Grant, Observation, Reply, Verdict
from tenure.core.views.events import EventPosition, TailedEvent
from tenure.core.vocabulary import (
    RENEWALS,
    CancelMode,
    ErrorClass,
    EventCause,
    JobStatus,
    OnExhausted,
    OnLost,
    ReasonCode,
    ReleaseKind,
    Stage,
)
from tenure.ports import Audit, JobHistory, Loaded
from tenure.verify import Ack, answer_line, flow_lines, grant_lines, request_line
from tools.driver import last_session

BEGINNING = Instant(1_700_000_000_000_000)
QUEUE = QueueName("work")
KIND = Kind("index")
PRODUCER = client_actor("producer")
OPERATOR = operator_actor("operator")
WORKERS = tuple(worker_actor(name) for name in ("one", "two"))

REPORT = DeadLetterJob(kind=Kind("report"), queue=QUEUE, policy=Policy(max_attempts=1))


class World:
    """Rows, logs, a clock and luck; and what its callers heard."""

    def __init__(self, seed: int, *, lost_answers: float = 0.1, clock_steps: bool = True) -> None:
        self.luck = random.Random(seed)
        self.now = BEGINNING
        self.epoch = Epoch(1)
        self.rows: dict[JobId, Job] = {}
        self.logs: dict[JobId, list[Event]] = {}
        self.observations: dict[JobId, list[Observation]] = {}
        self.acks: list[Ack] = []
        self.edges: dict[JobId, list[Edge]] = {}
        self.leases: list[tuple[JobId, LeaseId, Actor]] = []
        self._lost_answers = lost_answers
        self._clock_steps = clock_steps
        self._numbers = 0

    # --- deciding ------------------------------------------------------------------------------

    def context(self, command: Command) -> DecisionContext:
        """Now, with fresh luck, and the rows that the command needs."""
        return DecisionContext(
            now=self.now,
            epoch=self.epoch,
            entropy=self.luck.randbytes(16),
            job=self.rows.get(command.job_id),
            others=self.rows,
            session=last_session(self.logs.get(command.job_id, [])),
        )

    def submit(self, command: Command) -> Answer:
        """Decide a command and write what follows from it."""
        if isinstance(command, Claim | Sweep | Unblock | Discard) or command.actor == SYSTEM:
            return self._decide(command)
        if isinstance(command, EnqueueFlow):
            made = self._decide(command)
            assert isinstance(made, Reply)
            self.acks += flow_lines(command, made, at=self.now)
            return made
        assert not isinstance(command, RedriveFlow), "a list of commands has no flow to read"
        self.acks.append(request_line(command, at=self.now))
        answer = self._decide(command)
        assert isinstance(answer, Verdict | Reply)
        if self.luck.random() >= self._lost_answers:
            self.acks.append(answer_line(command, answer, at=self.now))
        return answer

    def _decide(self, command: Command) -> Answer:
        outcome = self._outcome(command)
        assert not isinstance(outcome, NeedsHistory)
        if isinstance(outcome, Applied):
            self._write(outcome.change)
        elif isinstance(outcome, Refused) and outcome.observation is not None:
            self.observations.setdefault(command.job_id, []).append(outcome.observation)
        return outcome.answer

    def _outcome(self, command: Command) -> Outcome:
        at = self.context(command)
        outcome = self._decided(command, at)
        if isinstance(outcome, Applied) and outcome.change.expected_rev == 0:
            made = outcome.change.job
            holder = self._holder(made.kind, made.dedupe_key)
            if holder is not None:
                return self._decided(command, replace(at, key_holder=holder))
        return outcome

    def _decided(self, command: Command, at: DecisionContext) -> Outcome:
        outcome = decide(command, at)
        if isinstance(outcome, NeedsHistory):
            log = tuple(self.logs[outcome.job_id])
            is_own = outcome.job_id == command.job_id
            read = {"history": log} if is_own else {"histories": {outcome.job_id: log}}
            outcome = decide(command, replace(at, **read))
        return outcome

    def _holder(self, kind: Kind, key: str | None) -> Job | None:
        live = (job for job in self.rows.values() if not job.status.is_terminal)
        held = (job for job in live if (job.kind, job.dedupe_key) == (kind, key))
        return None if key is None else next(held, None)

    def _write(self, change: Change) -> None:
        self.rows[change.job.id] = change.job
        self.logs.setdefault(change.job.id, []).extend(change.events)
        for observation in change.observations:
            self.observations.setdefault(observation.job_id, []).append(observation)
        for spawned in change.spawned:
            self._write(spawned)
        for edge in change.edges:
            self.edges.setdefault(edge.child_id, []).append(edge)
        if change.ends_member:
            for edges in self.edges.values():
                edges[:] = [_marked(edge, change.job) for edge in edges]

    def request_id(self) -> RequestId:
        """A fresh one."""
        self._numbers += 1
        return RequestId(f"r{self._numbers}")

    # --- single steps --------------------------------------------------------------------------

    def advance(self, *, seconds_: float) -> None:
        """Let time pass; a negative number is a clock that was set back."""
        self.now = Instant(self.now + seconds(seconds_))

    def enqueue(self, policy: Policy | None = None, *, dedupe_key: str | None = None) -> JobId:
        """A new job, or the one that holds the key."""
        job_id = new_job_id(self.now, self.luck.randbytes(16))
        answer = self.submit(
            Enqueue(
                job_id=job_id,
                namespace=DEFAULT_NAMESPACE,
                queue=QUEUE,
                kind=KIND,
                actor=PRODUCER,
                payload=b'{"n":%d}' % self.luck.randrange(100),
                delay_us=seconds(self.luck.choice((0, 0, 0, 5))),
                on_dead_letter=self.luck.choice((None, None, REPORT)),
                expires_us=self.luck.choice((None, None, None, seconds(20))),
                dedupe_key=dedupe_key,
                correlation_id=self.luck.choice((None, "c1")),
                policy=policy or self.policy(),
            )
        )
        assert isinstance(answer, Reply)
        assert answer.job is not None
        return answer.job.id

    def flow(self) -> None:
        """Two jobs, one that waits for both, and one that runs whatever becomes of that."""
        jobs = {step: self._new_job() for step in ("one", "two", "join", "last")}
        needs = {"join": ("one", "two"), "last": ("join",)}
        members = tuple(
            FlowMember(
                job=job,
                step=step,
                after=tuple(
                    Parent(
                        job_id=jobs[parent].job_id,
                        step=parent,
                        needs=None if step == "last" else JobStatus.SUCCEEDED,
                    )
                    for parent in needs.get(step, ())
                ),
            )
            for step, job in jobs.items()
        )
        flow_id = FlowId(new_job_id(self.now, self.luck.randbytes(16)))
        self.submit(EnqueueFlow(flow_id=flow_id, name="flow", members=members))

    def _new_job(self) -> Enqueue:
        return Enqueue(
            job_id=new_job_id(self.now, self.luck.randbytes(16)),
            namespace=DEFAULT_NAMESPACE,
            queue=QUEUE,
            kind=KIND,
            actor=PRODUCER,
            policy=self.policy(),
        )

    def unblock(self) -> None:
        """Let those go on whose parents have ended."""
        waiting = 0
        while waiting != (waiting := self._number_waiting()):
            for child, edges in sorted(self.edges.items()):
                broken = next((edge for edge in edges if edge.is_broken), None)
                if broken is not None and broken.outcome is not None:
                    ended = ParentEnd(job_id=broken.parent_id, status=broken.outcome)
                    self.submit(Unblock(job_id=child, ended_otherwise=ended))
                elif all(edge.is_met for edge in edges):
                    self.submit(Unblock(job_id=child))

    def _number_waiting(self) -> int:
        return sum(job.status is JobStatus.WAITING for job in self.rows.values())

    def policy(self) -> Policy:
        """A policy of small numbers, so that every limit is met."""
        luck = self.luck
        policy = Policy(
            lease_us=seconds(30),
            max_attempts=luck.choice((1, 2, 3)),
            max_releases=luck.choice((0, 1, 20)),
            backoff=Backoff(initial_us=seconds(1), cap_us=seconds(8)),
            timeout_us=luck.choice((None, seconds(50), seconds(3600))),
            start_within_us=seconds(luck.choice((20, 600))),
            grace_us=seconds(luck.choice((5, 30))),
            on_exhausted=luck.choice(tuple(OnExhausted)),
            on_lost=luck.choice(tuple(OnLost)),
        )
        if luck.random() < 0.3:
            undo = Compensation(kind=Kind("undo"), queue=QUEUE, policy=policy)
            policy = replace(policy, compensation=undo)
        return policy

    def claim(self, job_id: JobId) -> LeaseId | None:
        """Grant a job to some worker, if it is ready."""
        actor = self.luck.choice(WORKERS)
        worker = WorkerId(actor.partition(":")[2])
        request_id = self.request_id()
        answer = self.submit(
            Claim(
                job_id=job_id,
                actor=actor,
                owner=worker,
                request_id=request_id,
                fingerprint=Fingerprint(request_id),
            )
        )
        if not isinstance(answer, Grant):
            return None
        request = ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=worker,
            actor=actor,
            queues=(QUEUE,),
            limit=1,
            claim_seq=1,
            request_id=request_id,
        )
        if self.luck.random() >= self._lost_answers:
            self.acks.extend(grant_lines(request, [answer], at=self.now))
        self.leases.append((job_id, answer.lease_id, actor))
        return answer.lease_id

    def prune(self) -> None:
        """Delete some renewals of ended attempts. [G1]"""
        for job_id, log in self.logs.items():
            live = self.rows[job_id].lease_id
            self.logs[job_id] = [
                event
                for event in log
                if event.type not in RENEWALS or event.lease_id == live or self.luck.random() < 0.5
            ]

    # --- random steps --------------------------------------------------------------------------

    def run(self, steps: int) -> "World":
        """Do random things; returns itself."""
        for _ in range(steps):
            self.step()
        return self

    def step(self) -> None:
        """One random thing."""
        kind = self.luck.choices(
            ("enqueue", "flow", "claim", "work", "time", "sweep", "unblock", "people", "rare"),
            (2, 0.1, 6, 14, 4, 3, 1, 2, 1),
        )[0]
        match kind:
            case "enqueue":
                self.enqueue(dedupe_key=self.luck.choice((None, "a", "b")))
            case "flow":
                self.flow()
            case "unblock":
                self.unblock()
            case "claim" if self.rows:
                self.claim(self._some_job())
            case "work" if self.leases:
                self._work()
            case "time":
                self.advance(seconds_=self.luck.choice((0.001, 1, 9, 29.5, 31, 70)))
            case "sweep":
                self.sweep()
            case "people" if self.rows:
                self._people()
            case "rare":
                self._rarely()
            case _:
                pass

    def _some_job(self) -> JobId:
        return self.luck.choice(sorted(self.rows))

    def _work(self) -> None:
        """A worker speaks: mostly about its latest lease, sometimes about one it lost."""
        recent = self.leases[-4:]
        job_id, lease_id, actor = self.luck.choice(
            recent if self.luck.random() < 0.9 else self.leases
        )
        if self.luck.random() < 0.03:
            actor = self.luck.choice(WORKERS)
        command = self._report(job_id, lease_id, actor)
        self.submit(command)
        if self.luck.random() < 0.1:
            self.submit(command)

    def _report(self, job_id: JobId, lease_id: LeaseId, actor: Actor) -> Command:
        luck, request_id = self.luck, self.request_id()
        kind = luck.choices(("start", "heartbeat", "complete", "fail", "release"), (6, 8, 2, 4, 2))[
            0
        ]
        match kind:
            case "start":
                return Start(job_id=job_id, lease_id=lease_id, actor=actor, request_id=request_id)
            case "heartbeat":
                return Heartbeat(
                    job_id=job_id,
                    lease_id=lease_id,
                    actor=actor,
                    hb_seq=self._numbers if luck.random() < 0.9 else 1,
                    progress=Progress(done=self._numbers) if luck.random() < 0.3 else None,
                    checkpoint=b"[%d]" % self._numbers if luck.random() < 0.3 else None,
                )
            case "complete":
                return Complete(
                    job_id=job_id, lease_id=lease_id, actor=actor, request_id=request_id
                )
            case "fail":
                return Fail(
                    job_id=job_id,
                    lease_id=lease_id,
                    actor=actor,
                    request_id=request_id,
                    error=self._error(),
                )
            case _:
                kinds = (ReleaseKind.DEPLOY, ReleaseKind.SNOOZE, ReleaseKind.UNDELIVERED)
                chosen = luck.choice(kinds)
                return Release(
                    job_id=job_id,
                    lease_id=lease_id,
                    actor=SYSTEM if chosen is ReleaseKind.UNDELIVERED else actor,
                    request_id=request_id,
                    kind=chosen,
                    delay_us=Duration(luck.randrange(3)),
                )

    def _error(self) -> JobError:
        luck = self.luck
        return JobError(
            error_class=luck.choice((*ErrorClass, ErrorClass.TRANSIENT, ErrorClass.TRANSIENT)),
            type="Oops",
            message="it broke",
            stage=luck.choice((None, *Stage)),
            reason_code=luck.choice(
                (
                    None,
                    ReasonCode.PARSE_ERROR,
                    ReasonCode.DEPENDENCY_UNAVAILABLE,
                    ReasonCode.POLICY_VIOLATION,
                )
            ),
        )

    def sweep(self) -> None:
        outages: tuple[Outage, ...] = ()
        if self.luck.random() < 0.4:
            outages = (Outage(Instant(self.now - seconds(60)), self.now),)
        for job_id in sorted(self.rows):
            self.submit(Sweep(job_id=job_id, outages=outages))

    def _people(self) -> None:
        luck, job_id, request_id = self.luck, self._some_job(), self.request_id()
        command: Command
        asked = ("cancel", "cancel", "stall", "requeue", "requeue", "dead-letter", "redrive")
        match luck.choice(asked):
            case "cancel":
                mode = luck.choice((CancelMode.SOFT, CancelMode.SOFT, CancelMode.HARD))
                command = Cancel(
                    job_id=job_id, actor=PRODUCER, request_id=request_id, mode=mode, reason="enough"
                )
            case "stall":
                command = Stall(job_id=job_id, actor=OPERATOR, request_id=request_id)
            case "requeue":
                command = Requeue(job_id=job_id, actor=OPERATOR, request_id=request_id)
            case "dead-letter":
                command = DeadLetter(
                    job_id=job_id,
                    actor=OPERATOR,
                    request_id=request_id,
                    reason_code=ReasonCode.POLICY_VIOLATION,
                    stage=luck.choice((None, Stage.FETCH)),
                )
            case _:
                command = Redrive(
                    job_id=job_id,
                    actor=OPERATOR,
                    request_id=request_id,
                    cause=luck.choice((EventCause.REDRIVE, EventCause.RERUN)),
                )
        self.submit(command)
        if luck.random() < 0.2:
            self.submit(command)

    def _rarely(self) -> None:
        match self.luck.choice(("prune", "epoch", "step back")):
            case "prune":
                self.prune()
            case "epoch":
                self.epoch = Epoch(self.epoch + 1)
            case _ if self._clock_steps:
                self.advance(seconds_=-self.luck.choice((0.5, 20, 45)))
            case _:
                pass

    # --- reading -------------------------------------------------------------------------------

    def records(self) -> list[JobHistory]:
        """Every job with its log."""
        return [self.record(job_id) for job_id in sorted(self.rows)]

    def record(self, job_id: JobId) -> JobHistory:
        """One job with its log."""
        return JobHistory(
            job_id,
            self.rows.get(job_id),
            tuple(self.logs.get(job_id, ())),
            tuple(self.observations.get(job_id, ())),
        )

    def acks_of(self, job_id: JobId) -> list[Ack]:
        """What callers heard about a job."""
        return [ack for ack in self.acks if job_id in (ack.job_id, ack.target)]


def _marked(edge: Edge, parent: Job) -> Edge:
    is_its_own = edge.parent_id == parent.id and edge.outcome is None
    return replace(edge, outcome=parent.status) if is_its_own else edge


class RecordedStore:
    """Records as a store that can be verified, also where no real store would hold them."""

    parallelism: int = 1

    def __init__(
        self,
        records: Sequence[JobHistory],
        *,
        now: Instant = BEGINNING,
        edges: Sequence[Edge] = (),
        noted: Sequence[JobId] = (),
        in_order: bool = False,
    ) -> None:
        self._records = records
        self._in_order = in_order
        self._now = now
        self._edges = sorted(edges, key=lambda edge: (edge.child_id, edge.position))
        self._noted = noted
        self.kinds: list[KindSettings] = []
        self.jobs: Any = SimpleNamespace(load=self._load)
        self.flows: Any = SimpleNamespace(edges=self.edges_of, checks=self._checks)
        self.events: Any = SimpleNamespace(tail=self._tail)
        self.settings: Any = SimpleNamespace(kinds=lambda namespace: self.kinds)
        self.audit = RecordedAudit(records)

    def now(self) -> Instant:
        return self._now

    def _load(self, ids: Sequence[JobId]) -> Loaded:
        wanted = {record.job_id: record.job for record in self._records if record.job_id in ids}
        return Loaded(self._now, Epoch(1), {k: job for k, job in wanted.items() if job is not None})

    def edges_of(self, children: Sequence[JobId] | None = None) -> Iterator[Edge]:
        return (edge for edge in self._edges if children is None or edge.child_id in children)

    def _checks(self, *, limit: int, of: Sequence[JobId]) -> list[EdgeCheck]:
        return [EdgeCheck(job_id, self._now) for job_id in of if job_id in self._noted]

    def _tail(self, *, after: EventPosition | None, limit: int) -> list[TailedEvent]:
        """In the order of their times, or as they were written: record by record."""
        events = [event for record in self._records for event in record.events]
        if not self._in_order:
            events.sort(key=lambda event: (event.ts, event.job_id, event.seq))
        found = [TailedEvent(EventPosition(str(at)), event) for at, event in enumerate(events, 1)]
        return [each for each in found if int(each.position) > int(after or 0)][:limit]


class RecordedAudit(Audit):
    """The records; keys and leases are found in them."""

    def __init__(self, records: Sequence[JobHistory]) -> None:
        self._records = records

    def records(self, *, page_size: int, job_id: JobId | None = None) -> Iterator[JobHistory]:
        return (each for each in self._records if job_id in (None, each.job_id))

    def rates_in_force(self) -> list[RateInForce]:
        return []

    def grants(self, *, since: Instant) -> Iterator[GrantMade]:
        return iter(())
