"""A thousand jobs with every kind of fate: the log has exactly the events their plan predicts.

The prediction is made from the plan and the transition table of docs/spec, by hand, below; the
code under test has no part in it.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tenure.coordinator.sweeper import Sweeper
from tenure.core.commands import Command
from tenure.core.ids import JobId
from tenure.core.instants import seconds
from tenure.core.job import Job, JobError, Progress
from tenure.core.policy import Backoff
from tenure.core.verdicts import Reply, Verdict
from tenure.core.vocabulary import CancelMode, ErrorClass, JobStatus, Stage, VerdictKind
from tenure_conformance.harness import CLIENT, WORKER_ID, Kit, StoreFactory, policy
from tenure_conformance.spec import spec

pytestmark = pytest.mark.slow

JOBS = 1000
PAGE = 250
MAX_ROUNDS = 60
QUICK = Backoff(initial_us=seconds(1), cap_us=seconds(2))

CLAIM, RETRY = ("claimed", "started"), ("claimed", "started", "stalled", "requeued")


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a job in each of its attempts, where it ends, and what that leaves behind."""

    share: int  # of a thousand
    attempts: tuple[str, ...]
    ends: JobStatus
    events: tuple[str, ...]


FATES: dict[str, Fate] = {
    "done": Fate(
        share=300,
        attempts=("start, complete",),
        ends=JobStatus.SUCCEEDED,
        events=("enqueued", *CLAIM, "succeeded"),
    ),
    "done without a start": Fate(
        share=100,
        attempts=("complete",),
        ends=JobStatus.SUCCEEDED,
        events=("enqueued", *CLAIM, "succeeded"),
    ),
    "done after two heartbeats": Fate(
        share=100,
        attempts=("start, beat, progress, complete",),
        ends=JobStatus.SUCCEEDED,
        events=("enqueued", *CLAIM, "lease_renewed", "heartbeat", "succeeded"),
    ),
    "done at the third attempt": Fate(
        share=100,
        attempts=("start, fail", "start, fail", "start, complete"),
        ends=JobStatus.SUCCEEDED,
        events=("enqueued", *RETRY, *RETRY, *CLAIM, "succeeded"),
    ),
    "released, then done": Fate(
        share=50,
        attempts=("start, release", "start, complete"),
        ends=JobStatus.SUCCEEDED,
        events=("enqueued", *RETRY, *CLAIM, "succeeded"),
    ),
    "lost, then done": Fate(
        share=50,
        attempts=("start", "start, complete"),
        ends=JobStatus.SUCCEEDED,
        events=("enqueued", *RETRY, *CLAIM, "succeeded"),
    ),
    "given up": Fate(
        share=50,
        attempts=("start, fail", "start, fail", "start, fail"),
        ends=JobStatus.DEAD_LETTERED,
        events=("enqueued", *RETRY, *RETRY, *CLAIM, "dead_lettered"),
    ),
    "failed for good": Fate(
        share=100,
        attempts=("start, fail for good",),
        ends=JobStatus.FAILED,
        events=("enqueued", *CLAIM, "failed"),
    ),
    "unreadable": Fate(
        share=50,
        attempts=("refuse",),
        ends=JobStatus.DEAD_LETTERED,
        events=("enqueued", *CLAIM, "dead_lettered"),
    ),
    "cancelled in the queue": Fate(
        share=50,
        attempts=(),
        ends=JobStatus.CANCELLED,
        events=("enqueued", "cancelled"),
    ),
    "cancelled at once": Fate(
        share=25,
        attempts=("start, cancel hard",),
        ends=JobStatus.CANCELLED,
        events=("enqueued", *CLAIM, "cancelled"),
    ),
    "cancelled when asked": Fate(
        share=25,
        attempts=("start, cancel, release",),
        ends=JobStatus.CANCELLED,
        events=("enqueued", *CLAIM, "cancel_requested", "cancelled"),
    ),
}


class Load:
    """Leads a thousand jobs to their fates, a page of them at a time."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.fates: dict[JobId, Fate] = {}
        self.sweeper = Sweeper(
            kit.coordinator, monotonic=kit.monotonic, jump_threshold_us=seconds(3600)
        )

    def send(self, commands: Sequence[Command]) -> None:
        """Everything asked here must be granted."""
        for start in range(0, len(commands), PAGE):
            answers = self.kit.coordinator.submit_many(commands[start : start + PAGE]).result()
            for answer in answers:
                if isinstance(answer, Verdict):
                    assert answer.kind in (VerdictKind.OK, VerdictKind.COMMITTED), answer
                else:
                    assert isinstance(answer, Reply)
                    assert answer.is_ok, answer

    def enqueue(self) -> None:
        """All jobs, mixed, and the cancels that come before any claim."""
        chosen = policy(lease_s=30, max_attempts=3, backoff=QUICK)
        shares = [fate for fate in FATES.values() for _ in range(fate.share)]
        assert len(shares) == JOBS
        mixed = [shares[(number * 7) % JOBS] for number in range(JOBS)]
        commands = [self.kit.new(policy=chosen, actor=CLIENT) for _ in mixed]
        self.fates = {command.job_id: fate for command, fate in zip(commands, mixed, strict=True)}
        self.send(commands)
        jobs = self.kit.store.jobs.load(
            [job_id for job_id, fate in self.fates.items() if not fate.attempts]
        )
        self.send([self.kit.cancellation(job) for job in jobs.jobs.values()])

    def work(self) -> int:
        """One page of claims, each attempt to its end; how many there were."""
        jobs = self.kit.claimed(limit=PAGE, worker=WORKER_ID)
        scripts = [(job, self.fates[job.id].attempts[job.attempt - 1].split(", ")) for job in jobs]
        for step in range(max((len(script) for _, script in scripts), default=0)):
            self.send(
                [self.act(job, script[step], step) for job, script in scripts if step < len(script)]
            )
        return len(jobs)

    def act(self, job: Job, what: str, step: int) -> Command:
        """One word of a script as a command."""
        kit = self.kit
        unreadable = JobError(error_class=ErrorClass.VALIDATION, stage=Stage.INPUT)
        match what:
            case "start":
                return kit.starting(job)
            case "beat":
                return kit.beat(job, hb_seq=step)
            case "progress":
                return kit.beat(job, hb_seq=step, progress=Progress(done=step))
            case "complete":
                return kit.completion(job, result=b'"ok"')
            case "fail":
                return kit.failure(job, ErrorClass.TRANSIENT)
            case "fail for good":
                return kit.failure(job, ErrorClass.PERMANENT)
            case "refuse":
                return kit.failure(job, ErrorClass.VALIDATION, error=unreadable)
            case "release":
                return kit.release_of(job)
            case "cancel":
                return kit.cancellation(job)
            case "cancel hard":
                return kit.cancellation(job, mode=CancelMode.HARD)
            case _:
                raise AssertionError(what)

    def drain(self) -> None:
        """Work and sweep until nothing is left to do."""
        idle = 0
        for _ in range(MAX_ROUNDS):
            idle = 0 if self.work() else idle + 1
            if idle > 2:
                return
            self.kit.advance(seconds=31 if idle else 3)
            self.sweeper.sweep_once()
        raise AssertionError(f"not drained after {MAX_ROUNDS} rounds")


@spec("A2", "E1", "A1")
def test_a_thousand_jobs_leave_exactly_the_events_of_their_plan(
    tenure_store_factory: StoreFactory, tmp_path: Path
) -> None:
    kit = Kit(tenure_store_factory)
    try:
        load = Load(kit)
        load.enqueue()
        load.drain()

        counted: Counter[str] = Counter()
        ended: Counter[JobStatus] = Counter()
        for record in kit.store.audit.records(page_size=PAGE):
            assert record.job is not None
            fate = load.fates[record.job_id]
            assert [event.type.value for event in record.events] == list(fate.events)
            assert record.job.rev == len(fate.events)
            assert record.job.attempt == len(fate.attempts)
            counted.update(event.type.value for event in record.events)
            ended[record.job.status] += 1

        predicted: Counter[str] = Counter()
        for fate in FATES.values():
            for event in fate.events:
                predicted[event] += fate.share
        assert counted == predicted
        assert ended == _ends()
        kit.verify(tmp_path)
    finally:
        kit.close()


def _ends() -> Counter[JobStatus]:
    ends: Counter[JobStatus] = Counter()
    for fate in FATES.values():
        ends[fate.ends] += fate.share
    return ends
