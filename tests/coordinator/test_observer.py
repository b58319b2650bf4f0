"""What a coordinator tells its observer: committed changes with the rows before, and misses."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import Sweeper
from tenure.core.claims import ClaimConflict, ClaimPlan, ClaimScope, ClaimView
from tenure.core.commands import Command, Complete, Start
from tenure.core.ids import JobId, worker_actor
from tenure.core.instants import Duration, seconds
from tenure.core.job import Job
from tenure.core.outcomes import Change, SessionKey
from tenure.core.schedules import Firing, Schedule
from tenure.core.verdicts import Observation
from tenure.core.vocabulary import EventType, JobStatus, ObservationType
from tenure.ports import Clock
from tenure.stores.sqlite.memory import MemoryStore
from tenure_conformance.spec import spec
from tests.support.coordinators import World
from tests.support.doubles import instead


class Told:
    """Remembers everything."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.before: dict[tuple[JobId, int], Job | None] = {}
        self.misses: list[Command] = []
        self.conflicts: Counter[ClaimConflict] = Counter()
        self.seen: list[tuple[ObservationType, JobId]] = []
        self.overdue: list[Duration] = []

    def saved(self, changes: Sequence[Change], before: Mapping[JobId, Job | None]) -> None:
        self.changes += changes
        for change in changes:
            self.before[change.job.id, change.expected_rev] = before.get(change.job.id)

    def observed(self, observations: Sequence[Observation], jobs: Mapping[JobId, Job]) -> None:
        self.seen += [(each.type, jobs[each.job_id].id) for each in observations]

    def missed(self, commands: Sequence[Command]) -> None:
        self.misses += commands

    def contended(self, conflict: ClaimConflict, number: int) -> None:
        self.conflicts[conflict] += number

    def scheduled(self, before: Schedule, firing: Firing) -> None:
        assert firing.change.expected_rev == before.rev

    def swept(self, overdue_us: Duration) -> None:
        self.overdue.append(overdue_us)


def observed() -> tuple[World, Told]:
    """A world whose coordinator is watched."""
    world, told = World(), Told()
    world.coordinator.close()
    world.coordinator = Coordinator(
        world.store, entropy=world.entropy, monotonic=world.clock, observer=told
    )
    return world, told


def test_observers_get_each_commit_with_the_row_it_was_decided_on() -> None:
    world, told = observed()
    grant = world.running()
    world.complete(grant, actor=worker_actor("w1"))
    world.coordinator.close()

    types = [event.type for change in told.changes for event in change.events]
    befores = [told.before[change.job.id, change.expected_rev] for change in told.changes]

    assert types == [
        EventType.ENQUEUED,
        EventType.CLAIMED,
        EventType.STARTED,
        EventType.SUCCEEDED,
    ]
    assert [job and (job.status, job.rev) for job in befores] == [
        None,
        (JobStatus.QUEUED, 1),
        (JobStatus.CLAIMED, 2),
        (JobStatus.RUNNING, 3),
    ]


def test_observers_get_a_lost_race_with_its_command_and_no_replay() -> None:
    world, told = observed()
    rival = Coordinator(world.store, entropy=world.entropy, monotonic=world.clock)
    world.enqueue()
    (grant,) = world.claim()
    start = Start(
        job_id=grant.job_id,
        lease_id=grant.lease_id,
        actor=worker_actor("w1"),
        request_id=world.request_id(),
    )
    rival.execute(start)
    report = Complete(
        job_id=grant.job_id,
        lease_id=grant.lease_id,
        actor=worker_actor("w1"),
        request_id=world.request_id(),
    )

    world.coordinator.execute(report)
    world.coordinator.execute(report)
    rival.close()
    world.coordinator.close()

    assert told.misses == [report]
    types = [event.type for change in told.changes for event in change.events]
    assert types == [EventType.ENQUEUED, EventType.CLAIMED, EventType.SUCCEEDED]


class BusyStore(MemoryStore):
    """Begins each claim again: twice because of its queues, once because of another transaction."""

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._own_claim = instead(self, "claims.claim", self._claim)

    def _claim(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        def plan_twice(view: ClaimView) -> ClaimPlan:
            plan(view)
            return plan(view)

        planned: ClaimPlan = self._own_claim(scope, sessions, wanted, plan_twice)
        return replace(planned, restarts=2, skipped_locked=True)


@spec("OB53")
def test_observers_learn_of_claims_that_began_again() -> None:
    world, told = observed()
    world.coordinator.close()
    world.store = BusyStore(clock=world.clock)
    world.coordinator = Coordinator(
        world.store, entropy=world.entropy, monotonic=world.clock, observer=told
    )
    world.enqueue()

    assert len(world.claim()) == 1
    assert len(world.claim()) == 0

    world.coordinator.close()
    assert told.conflicts == {
        ClaimConflict.RESTARTED: 4,
        ClaimConflict.LOST: 2,
        ClaimConflict.LOCKED: 1,  # the first claim received what it asked for
    }


@spec("U4")
def test_observers_get_each_refused_report_that_was_kept() -> None:
    world, told = observed()
    grant = world.running()
    world.complete(grant, actor=worker_actor("thief"))
    world.complete(grant, actor=worker_actor("w1"))
    for _ in range(10):  # nine more are kept of this lease
        world.complete(grant, actor=worker_actor("w1"))
    world.coordinator.close()

    assert told.seen == [
        (ObservationType.FOREIGN_LEASE, grant.job_id),
        *[(ObservationType.RESULT_DISCARDED, grant.job_id)] * 9,
    ]


def test_observers_learn_how_late_a_sweep_was() -> None:
    world, told = observed()
    grant = world.running()
    sweeper = Sweeper(world.coordinator, monotonic=world.clock)
    sweeper.sweep_once()
    world.clock.advance(grant.job.policy.lease_us / 1_000_000 + 3)
    sweeper.sweep_once()
    world.clock.advance(2)
    sweeper.sweep_once()
    world.coordinator.close()

    assert told.overdue == [0, seconds(3), 0]
