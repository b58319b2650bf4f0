"""The differential machine: random lives, led by several stores at once.

Rules draw small numbers that pick a job, a lease or an earlier request, so that a failing program
prints as a list of short calls and shrinks well. Old leases, repeated requests with the same or
another body and foreign principals come up by themselves.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from tenure.coordinator.schedules import Firer
from tenure.core.claims import ClaimAnswer, ClaimRequest
from tenure.core.commands import (
    Cancel,
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
    ParentAttempt,
    Redrive,
    RedriveFlow,
    Release,
    Requeue,
    Start,
    Sweep,
)
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    FlowId,
    JobId,
    Kind,
    QueueName,
    RequestId,
    ScheduleName,
    WorkerId,
    handler_flow_id,
    handler_member_id,
    new_job_id,
    worker_actor,
)
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import Job, JobError, Progress
from tenure.core.kind_settings import KindChange
from tenure.core.policy import Backoff, Compensation, DeadLetterJob, Policy
from tenure.core.rates import Rate, parse_rate
from tenure.core.schedules import (
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    ScheduleCommand,
    ScheduleSpec,
)
from tenure.core.verdicts import Grant
from tenure.core.vocabulary import (
    CancelMode,
    CatchUp,
    ErrorClass,
    EventCause,
    JobStatus,
    OnExhausted,
    OnLost,
    Overlap,
    ReasonCode,
    ReleaseKind,
    Stage,
)
from tenure.ports import DueJobs
from tenure_conformance.harness import CLIENT, OPERATOR, StoreFactory, policy
from tests.conformance.worlds import Worlds

DAY = seconds(24 * 3600)
QUEUES = (QueueName("default"), QueueName("other"))
KINDS = (Kind("task"), Kind("report"))
KINDS_AND_GROUP = (*KINDS, Kind("g"))
RATES = (None, None, None, "none", "none", "1/s", "2/s")
"""None leaves a rate as it is."""
KEY_LIMITS = (None, None, 0, 2, 3)
"""None leaves a limit as it is, 0 removes it."""
KEYS = (None, None, "k", "K", "ключ")
CONCURRENCY = (None, "1", None, "1", "2", "1")
"""The concurrency keys of the jobs of a program, in turns."""
RATE_KEYS = (None, "r", None, "s", "r")
"""The rate keys of the jobs of a program, in turns."""
PRINCIPALS = (worker_actor("a"), worker_actor("b"))
UNDO = Compensation(kind=Kind("undo"), queue=QUEUES[0], policy=policy(lease_s=30, max_attempts=2))
REPORT = DeadLetterJob(kind=Kind("report-dead"), queue=QUEUES[1], policy=policy(lease_s=30))
QUICK = Backoff(initial_us=seconds(1), cap_us=seconds(5))
POLICIES: dict[str, Policy] = {
    "default": Policy(),
    "short": policy(lease_s=30, max_attempts=2, backoff=QUICK),
    "hold": policy(lease_s=30, on_lost=OnLost.HOLD, backoff=QUICK),
    "reclaim": policy(lease_s=30, on_lost=OnLost.RECLAIM, backoff=QUICK),
    "fails": policy(lease_s=30, max_attempts=1, on_exhausted=OnExhausted.FAIL),
    "forgotten": policy(lease_s=30, max_attempts=2, backoff=QUICK, keep_us=seconds(60)),
    "undone": policy(lease_s=45, max_attempts=2, backoff=QUICK, compensation=UNDO),
    "timed": policy(lease_s=60, timeout_us=seconds(40), start_within_us=seconds(20)),
    "impatient": policy(lease_s=60, max_releases=1, max_attempts=2, grace_us=seconds(1)),
}
FAILS = tuple(each.value for each in ErrorClass)
RELEASES = tuple(each.value for each in ReleaseKind)

T = TypeVar("T")

picks = st.integers(0, 9)
few = st.integers(1, 4)
revs = st.sampled_from([None, None, None, 3])
bodies = st.sampled_from([b"null", b"1", b'"\\\\ {} NULL"', b'{"a":[1,2]}', '"ü"'.encode()])
steps_s = st.sampled_from([0.000001, 1.0, 1.0, 5.0, 5.0, 19.999999, 60.0, 3600.0])
delays_s = st.sampled_from([0.0, 0.0, 0.0, 3.0, 60.0])


SCHEDULE_REQUESTS = (PauseSchedule, ResumeSchedule, ResumeSchedule, RemoveSchedule)


def _schedule(pick: int) -> dict[str, Any]:
    name = ScheduleName(f"s{pick}")
    return {"namespace": DEFAULT_NAMESPACE, "name": name, "actor": OPERATOR}


def _rate(text: str | None) -> Rate | UnsetType | None:
    if text is None:
        return UNSET
    return None if text == "none" else parse_rate("rate", text, 3)


class Differential(RuleBasedStateMachine):
    """The same program in every world."""

    def __init__(self, factories: dict[str, Callable[[], StoreFactory]]) -> None:
        super().__init__()
        self.worlds = Worlds(factories)
        self.jobs: list[JobId] = []
        self.grants: list[Grant] = []
        self.sent: list[Command] = []
        self.claims: list[ClaimRequest] = []
        self.beats = 0

    def teardown(self) -> None:
        """A program that came this far ends in equal, lawful histories."""
        try:
            if sys.exc_info()[0] is None:  # else the difference that was found is the news
                self.worlds.compare_views()
                self.worlds.verify()
        finally:
            self.worlds.close()

    # --- helpers -------------------------------------------------------------------------------

    def request_id(self) -> RequestId:
        """A name for the next request."""
        return RequestId(f"r{len(self.sent) + len(self.claims)}")

    def send(self, *commands: Command) -> None:
        """Send a batch and remember it."""
        self.sent += commands
        self.worlds.execute(commands)
        self.find_new_jobs()

    def find_new_jobs(self) -> None:
        """Redrives, compensations and schedules make jobs too."""
        known = set(self.jobs)
        self.jobs += [each.job_id for each in self.worlds.records if each.job_id not in known]

    def job(self, pick: int, prefer: Callable[[Job], bool] = lambda _: True) -> JobId:
        """A job: those that are preferred come first, then the latest."""
        wanted = [each.job_id for each in self.worlds.records if each.job and prefer(each.job)]
        return _pick(self.jobs, wanted, pick)

    def grant(self, pick: int) -> Grant:
        """A grant: live ones come first, then the latest of the others."""
        leases = {each.job.lease_id for each in self.worlds.records if each.job}
        live = [grant for grant in self.grants if grant.lease_id in leases]
        return _pick(self.grants, live, pick)

    def new(
        self, *, queue: int, kind: int, priority: int, delay_s: float, key: str | None, how: str
    ) -> Enqueue:
        """The command that enqueues the next job."""
        number = len(self.sent)
        return Enqueue(
            job_id=new_job_id(Instant(seconds(number)), bytes([number % 256] * 16)),
            namespace=DEFAULT_NAMESPACE,
            queue=QUEUES[queue],
            kind=KINDS[kind],
            actor=CLIENT,
            payload=b'{"n":%d}' % number,
            priority=priority,
            delay_us=seconds(delay_s),
            on_dead_letter=REPORT if number % 3 == 2 else None,
            expires_us=seconds(20) if number % 5 == 4 else None,
            dedupe_key=key,
            unique_for_us=seconds(30) if number % 2 and key is not None else None,
            concurrency_key=CONCURRENCY[number % len(CONCURRENCY)],
            rate_key=RATE_KEYS[number % len(RATE_KEYS)],
            correlation_id=f"c{number % 3}" if number % 2 else None,
            policy=POLICIES[how],
        )

    # --- clients -------------------------------------------------------------------------------

    @initialize()
    def some_jobs(self) -> None:
        """A program about nothing shows nothing."""
        self.send(
            *(
                replace(
                    self.new(queue=0, kind=0, priority=0, delay_s=0, key=None, how=how),
                    job_id=new_job_id(Instant(0), bytes([number] * 16)),
                )
                for number, how in enumerate(("default", "short", "undone", "reclaim"))
            )
        )

    @rule(
        queue=st.integers(0, 1),
        kind=st.integers(0, 1),
        priority=st.sampled_from([0, 0, 5, -5]),
        delay_s=delays_s,
        key=st.sampled_from(KEYS),
        how=st.sampled_from(sorted(POLICIES)),
    )
    def enqueue(
        self, queue: int, kind: int, priority: int, delay_s: float, key: str | None, how: str
    ) -> None:
        self.send(
            self.new(queue=queue, kind=kind, priority=priority, delay_s=delay_s, key=key, how=how)
        )

    @rule(pick=picks, how=st.sampled_from(sorted(POLICIES)), ended=st.booleans(), out=st.booleans())
    def flow(self, pick: int, how: str, ended: bool, out: bool) -> None:
        """A join of two, one of which may wait for a job outside the flow."""
        number = len(self.sent)
        one, two, join = (
            replace(
                self.new(queue=0, kind=place % 2, priority=0, delay_s=0, key=None, how=how),
                job_id=new_job_id(Instant(seconds(number)), bytes([number % 256] * 9 + [place])),
            )
            for place in (201, 202, 203)
        )
        needs = None if ended else JobStatus.SUCCEEDED
        outside = (Parent(job_id=self.job(pick), step="outside"),) if out else ()
        both = tuple(
            Parent(job_id=each.job_id, step=f"{place}", needs=needs)
            for place, each in enumerate((one, two))
        )
        members = (
            FlowMember(job=one, step="0", after=outside),
            FlowMember(job=two, step="1"),
            FlowMember(job=join, step="join", after=both),
        )
        flow_id = FlowId(new_job_id(Instant(seconds(number)), bytes([number % 256] * 10)))
        self.send(EnqueueFlow(flow_id=flow_id, name="join", members=members))

    @rule(pick=picks, hard=st.booleans(), reason=st.sampled_from(["", "why"]), rev=revs)
    def cancel(self, pick: int, hard: bool, reason: str, rev: int | None) -> None:
        mode = CancelMode.HARD if hard else CancelMode.SOFT
        self.send(
            Cancel(
                job_id=self.job(pick, lambda job: job.status is JobStatus.RUNNING),
                actor=CLIENT,
                request_id=self.request_id(),
                mode=mode,
                reason=reason,
                expected_rev=rev,
            )
        )

    @rule(pick=picks)
    def requeue(self, pick: int) -> None:
        job_id = self.job(pick, lambda job: job.status is JobStatus.STALLED)
        self.send(Requeue(job_id=job_id, actor=OPERATOR, request_id=self.request_id()))

    @rule(pick=st.integers(3, 12), stage=st.none() | st.sampled_from(Stage))
    def dead_letter(self, pick: int, stage: Stage | None) -> None:
        self.send(
            DeadLetter(
                job_id=self.job(pick),
                actor=OPERATOR,
                request_id=self.request_id(),
                reason_code=ReasonCode.POLICY_VIOLATION,
                stage=stage,
                message="no",
            )
        )

    @rule(pick=picks, cause=st.sampled_from([EventCause.REDRIVE, EventCause.RERUN]))
    def redrive(self, pick: int, cause: EventCause) -> None:
        job_id = self.job(pick, lambda job: job.status.is_terminal)
        self.send(Redrive(job_id=job_id, actor=OPERATOR, request_id=self.request_id(), cause=cause))

    @rule(pick=picks)
    def redrive_flow(self, pick: int) -> None:
        """Redrive a flow, most often one whose jobs have ended."""
        ended = [each.job for each in self.worlds.records if each.job and each.job.flow_id]
        ended.sort(key=lambda job: job.status.is_terminal)
        if ended:
            job = ended[-1 - pick % len(ended)]
            assert job.flow_id is not None
            self.send(
                RedriveFlow(
                    flow_id=job.flow_id,
                    namespace=DEFAULT_NAMESPACE,
                    actor=OPERATOR,
                    request_id=self.request_id(),
                )
            )

    @precondition(lambda self: self.grants)
    @rule(pick=picks, step=st.sampled_from(["", "s"]), wide=st.booleans())
    def handler_flow(self, pick: int, step: str, wide: bool) -> None:
        """A handler makes a flow; another attempt may ask for other jobs."""
        grant = self.grant(pick)
        names = ("a", "b", "c") if wide else ("b", "c")
        jobs = [
            replace(
                self.new(queue=0, kind=0, priority=0, delay_s=0, key=None, how="short"),
                job_id=handler_member_id(grant.job_id, step=step, name=name),
                actor=grant.job.principal or PRINCIPALS[0],
                expires_us=None,
            )
            for name in names
        ]
        members = [
            FlowMember(
                job=job,
                step=name,
                after=tuple(Parent(job_id=each.job_id, step=each.job_id) for each in jobs[:place]),
            )
            for place, (name, job) in enumerate(zip(names, jobs, strict=True))
        ]
        handler = ParentAttempt(job_id=grant.job_id, lease_id=grant.lease_id, step=step)
        flow_id = handler_flow_id(grant.job_id, step=step)
        self.send(
            EnqueueFlow(flow_id=flow_id, name="made", members=tuple(members), handler=handler)
        )

    @rule(pick=picks, note=st.sampled_from(["", "seen"]))
    def discard(self, pick: int, note: str) -> None:
        job_id = self.job(pick, lambda job: job.status is JobStatus.DEAD_LETTERED)
        self.send(Discard(job_id=job_id, actor=OPERATOR, request_id=self.request_id(), note=note))

    # --- workers -------------------------------------------------------------------------------

    @rule(
        limit=few,
        who=st.integers(0, 1),
        queues=st.sampled_from([QUEUES[:1], QUEUES, QUEUES[::-1]]),
        kinds=st.sampled_from([None, KINDS[:1], KINDS]),
    )
    def claim(
        self,
        limit: int,
        who: int,
        queues: tuple[QueueName, ...],
        kinds: tuple[Kind, ...] | None,
    ) -> None:
        request = ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId(f"w{who}"),
            actor=PRINCIPALS[who],
            queues=queues,
            limit=limit,
            claim_seq=len(self.claims) + 1,
            request_id=self.request_id(),
            kinds=kinds,
        )
        self.claims.append(request)
        answer = self.worlds.claim(request)
        if isinstance(answer, ClaimAnswer):
            self.grants += answer.grants

    @rule(limit=few, who=st.integers(0, 1), start=st.sampled_from([True, True, False]))
    def take(self, limit: int, who: int, start: bool) -> None:
        """Claim whatever is there and, mostly, begin."""
        before = len(self.grants)
        self.claim(limit=limit, who=who, queues=QUEUES, kinds=None)
        taken = self.grants[before:]
        if start and taken:
            self.send(
                *(
                    Start(
                        job_id=grant.job_id,
                        lease_id=grant.lease_id,
                        actor=PRINCIPALS[who],
                        request_id=RequestId(f"{self.request_id()}.{number}"),
                    )
                    for number, grant in enumerate(taken)
                )
            )

    @precondition(lambda self: self.claims)
    @rule(pick=picks, other_body=st.booleans())
    def claim_again(self, pick: int, other_body: bool) -> None:
        request = self.claims[-1 - pick % len(self.claims)]
        self.worlds.claim(replace(request, limit=9) if other_body else request)

    def report(self, pick: int, how: str, body: bytes, *, stolen: bool, number: int) -> Command:
        """A report of some kind under some grant."""
        grant = self.grant(pick)
        actor = grant.job.principal or PRINCIPALS[0]
        if stolen:
            actor = worker_actor("thief")
        job_id, lease_id = grant.job_id, grant.lease_id
        request_id = RequestId(f"{self.request_id()}.{number}")
        if how == "start":
            return Start(job_id=job_id, lease_id=lease_id, actor=actor, request_id=request_id)
        if how in ("beat", "news"):
            self.beats += 1
            news = how == "news"
            return Heartbeat(
                job_id=job_id,
                lease_id=lease_id,
                actor=actor,
                hb_seq=self.beats,
                progress=Progress(done=self.beats, note="“”") if news else None,
                checkpoint=body if news else None,
            )
        if how == "complete":
            return Complete(
                job_id=job_id, lease_id=lease_id, actor=actor, request_id=request_id, result=body
            )
        if how in RELEASES:
            return Release(
                job_id=job_id,
                lease_id=lease_id,
                actor=actor,
                request_id=request_id,
                kind=ReleaseKind(how),
            )
        error = JobError(
            error_class=ErrorClass(how),
            type="T",
            message=body.decode(),
            stage=Stage.INPUT if body == b"null" else Stage.EXEC,
        )
        return Fail(
            job_id=job_id, lease_id=lease_id, actor=actor, request_id=request_id, error=error
        )

    @precondition(lambda self: self.grants)
    @rule(
        reports=st.lists(
            st.tuples(
                picks,
                st.sampled_from(["start", "start", "beat", "news", "complete", *FAILS, *RELEASES]),
                bodies,
            ),
            min_size=1,
            max_size=4,
        ),
        stolen=st.sampled_from([False, False, False, True]),
    )
    def reports(self, reports: list[tuple[int, str, bytes]], stolen: bool) -> None:
        self.send(
            *(
                self.report(pick, how, body, stolen=stolen, number=number)
                for number, (pick, how, body) in enumerate(reports)
            )
        )

    @precondition(lambda self: self.grants)
    @rule(pick=picks, how=st.sampled_from(["complete", "news", "beat", *FAILS, *RELEASES]))
    def report_one(self, pick: int, how: str) -> None:
        self.send(self.report(pick, how, b'"x"', stolen=False, number=0))

    @precondition(lambda self: self.sent)
    @rule(pick=st.integers(0, 30), other_body=st.booleans())
    def send_again(self, pick: int, other_body: bool) -> None:
        command = self.sent[-1 - pick % len(self.sent)]
        if other_body:
            command = _with_another_body(command)
        self.worlds.execute([command])

    # --- time and the system -------------------------------------------------------------------

    @rule(by_s=steps_s)
    def advance(self, by_s: float) -> None:
        self.worlds.advance(seconds(by_s))

    @rule(late_us=st.sampled_from([-1, 0, 1]))
    def advance_to_the_next_deadline(self, late_us: int) -> None:
        now = self.worlds.reference.now()
        ends = [each.job.due_at for each in self.worlds.records if each.job and each.job.due_at]
        ahead = [end - now for end in ends if end > now]
        if ahead:
            self.worlds.advance(Duration(max(0, min(ahead) + late_us)))

    @rule(limit=few, outage=st.booleans())
    def sweep(self, limit: int, outage: bool) -> None:
        if outage:
            now = self.worlds.reference.now()
            seen = Outage(Instant(now - seconds(20)), now)
            self.worlds.step("record_outage", lambda world: world.store.upkeep.record_outage(seen))
        due = self.worlds.same(
            "due", lambda world: list(world.store.jobs.load(DueJobs(limit)).jobs)
        )
        outages = tuple(self.worlds.reference.upkeep.outages(since=Instant(0)))
        if due:
            self.worlds.execute([Sweep(job_id=job_id, outages=outages) for job_id in due])

    @rule(outage=st.sampled_from([False, False, True]))
    def lose(self, outage: bool) -> None:
        """The next deadline passes, and is recorded."""
        self.advance_to_the_next_deadline(late_us=0)
        self.sweep(limit=4, outage=outage)

    @rule(
        queue=st.integers(0, 1),
        paused=st.sampled_from([None, False, False, True]),
        limit=st.sampled_from([None, 0, 0, 1, 2, 3]),
        rate=st.sampled_from(RATES),
    )
    def put_queue(
        self, queue: int, paused: bool | None, limit: int | None, rate: str | None
    ) -> None:
        self.worlds.step(
            "put_queue",
            lambda world: world.store.settings.put_queue(
                DEFAULT_NAMESPACE, QUEUES[queue], paused=paused, limit=limit, rate=_rate(rate)
            ),
        )

    @rule(
        pick=st.integers(0, 1),
        every_s=st.sampled_from([1.0, 60.0]),
        overlap=st.sampled_from(Overlap),
        catch_up=st.sampled_from([CatchUp.LATEST, CatchUp.NONE]),
    )
    def put_schedule(self, pick: int, every_s: float, overlap: Overlap, catch_up: CatchUp) -> None:
        spec = ScheduleSpec(
            kind=KINDS[pick],
            queue=QUEUES[pick],
            policy=POLICIES["short"],
            every_us=seconds(every_s),
            overlap=overlap,
            catch_up=catch_up,
        )
        self.ask_about_schedule(PutSchedule(**_schedule(pick), spec=spec))

    @rule(pick=st.integers(0, 1), what=st.sampled_from(SCHEDULE_REQUESTS))
    def change_schedule(self, pick: int, what: type[Any]) -> None:
        self.ask_about_schedule(what(**_schedule(pick)))

    def ask_about_schedule(self, command: ScheduleCommand) -> None:
        """Ask it of every world."""
        self.worlds.step(
            f"the answer to {command}", lambda world: world.coordinator.change_schedule(command)
        )

    @rule()
    def fire(self) -> None:
        """What a sweeper does for schedules that are due."""
        self.worlds.step("what was fired", lambda world: Firer(world.coordinator).fire_due())
        self.find_new_jobs()

    @rule(
        kind=st.integers(0, 2),
        rate=st.sampled_from(RATES),
        limit=st.sampled_from(KEY_LIMITS),
        only_new=st.booleans(),
    )
    def put_kind(
        self,
        kind: int,
        rate: str | None,
        limit: int | None,
        only_new: bool,
    ) -> None:
        change = KindChange(
            kind=KINDS_AND_GROUP[kind],
            rate=_rate(rate),
            concurrency_limit=UNSET if limit is None else limit or None,
        )
        self.worlds.step(
            "put_kind",
            lambda world: world.store.settings.put_kind(
                DEFAULT_NAMESPACE, change, only_new=only_new
            ),
        )

    @rule(
        what=st.sampled_from(
            [
                "look",
                "look",
                "unblock",
                "fold",
                "tick",
                "prune",
                "prune",
                "expire",
                "step back",
                "purge",
                "epoch",
            ]
        )
    )
    def keep_house(self, what: str) -> None:
        """What happens rarely, as one rule: each of these alone would come as often as a claim."""
        worlds = self.worlds
        match what:
            case "look":
                worlds.compare_views()
            case "unblock":
                worlds.step(what, lambda world: world.unblock())
            case "fold":
                worlds.step(what, lambda world: world.fold(), worlds=worlds.databases)
            case "tick":
                worlds.step(what, _tick)
            case "prune":
                worlds.step(
                    what,
                    lambda world: world.store.upkeep.delete(
                        "renewals", older_than_us=seconds(5), limit=1000
                    ),
                )
            case "expire":
                worlds.step(
                    what,
                    lambda world: (
                        world.store.upkeep.delete(
                            "observations", older_than_us=seconds(30), limit=1000
                        ).deleted
                    ),
                    worlds=worlds.databases,
                )
            case "step back":
                worlds.advance(Duration(-seconds(2)))
            case "purge":
                worlds.advance(Duration(DAY // 2))
                worlds.step(
                    what,
                    lambda world: (
                        world.store.upkeep.delete("jobs", older_than_us=DAY, limit=1000).deleted
                    ),
                )
            case _:
                worlds.step(what, lambda world: world.store.raise_epoch())


def _pick(everything: Sequence[T], preferred: Sequence[T], pick: int) -> T:
    ordered = [*reversed(preferred), *(each for each in reversed(everything))]
    return ordered[pick % len(ordered)]


def _with_another_body(command: Command) -> Command:
    """The same request id, another question."""
    match command:
        case Enqueue():
            return replace(command, payload=b'"another"')
        case Complete():
            return replace(command, result=b'"another"')
        case Fail():
            return replace(command, error=JobError(message="another"))
        case Release():
            return replace(command, delay_us=seconds(7))
        case Cancel() | Redrive() | Requeue() | DeadLetter() | Discard():
            return replace(command, expected_rev=77)
        case Heartbeat():
            return replace(command, checkpoint=b'"another"')
        case _:
            return command


def _tick(world: Any) -> object:
    """What every store knows of its tick."""
    tick = world.store.upkeep.tick()
    return tick.before, tick.now, tick.written
