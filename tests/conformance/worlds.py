"""Several stores living the same life: equal commands, equal time, equal luck.

Whatever is asked is asked of every world, and every world must answer and look the same. The
first world is the reference; a difference names the other one and what differs. What the model does
not keep (lists, counts, observations, rollups) is asked of the databases only.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from tenure.coordinator.retention import Folder
from tenure.coordinator.service import Coordinator
from tenure.coordinator.unblocking import submit_unblocks
from tenure.core.claims import ClaimAnswer, ClaimRequest, RateLimited
from tenure.core.commands import Command
from tenure.core.ids import DEFAULT_NAMESPACE, JobId
from tenure.core.instants import Duration, Instant
from tenure.core.rates import GrantMade
from tenure.core.verdicts import Answer, Observation
from tenure.core.views.dead_letter_groups import DeadLetterGroupFilter
from tenure.core.views.events import EventFilter, full_page
from tenure.core.views.job_search import JobFilter
from tenure.core.views.overview import OverviewFilter, TimeRange
from tenure.core.vocabulary import EventType
from tenure.errors import TenureError
from tenure.ports import DueJobs, JobHistory, Store
from tenure.verify import assert_holds
from tenure_conformance.harness import LIMITS, StoreFactory, counted_entropy
from tests.conformance.factories import ModelFactory

PAGE_SIZE = 1000
MAX_FOLDS = 10
SETTLES_WITHIN_S = 30.0

T = TypeVar("T")


class Luck:
    """Entropy that starts anew with every step: a world that draws more in one step, because its
    store showed it more candidates, is as lucky as the others in the next."""

    def __init__(self) -> None:
        self._draw = counted_entropy("step 0")

    def begin(self, step: int) -> None:
        """The luck of this step."""
        self._draw = counted_entropy(f"step {step}")

    def __call__(self, size: int) -> bytes:
        return self._draw(size)


class World:
    """One store with a coordinator of its own."""

    def __init__(self, name: str, factory: StoreFactory, monotonic: Callable[[], int]) -> None:
        self.name = name
        self.factory = factory
        self.store = factory.open()
        self.is_database = not isinstance(factory, ModelFactory)
        self.luck = Luck()
        self.coordinator = Coordinator(
            self.store, limits=LIMITS, entropy=self.luck, monotonic=monotonic, threads=1
        )

    def records(self) -> list[JobHistory]:
        """All rows and logs by job id, and of a database the observations."""
        return [
            JobHistory(record.job_id, record.job, list(record.events), _settled_order(record))
            for record in self.store.audit.records(page_size=PAGE_SIZE)
        ]

    def run(self, commands: Sequence[Command]) -> list[Answer]:
        """The answers, once everything that follows from the commands is done."""
        try:
            return self.coordinator.submit_many(commands).result()
        finally:
            self.settle()

    def settle(self) -> None:
        """Wait for what the coordinator does on its own after it has answered."""
        until = time.monotonic() + SETTLES_WITHIN_S
        while self.coordinator.is_busy:
            assert time.monotonic() < until, f"{self.name} is still busy"
            time.sleep(0.0005)

    def unblock(self) -> list[JobId]:
        """What a sweeper does for jobs that wait; the jobs that it looked at."""
        checks = self.store.flows.checks(limit=PAGE_SIZE)
        found = self.store.flows.unblocked([check.job_id for check in checks], limit=PAGE_SIZE)
        for call in submit_unblocks(self.coordinator.submit_many, found.jobs):
            call.result()
        self.settle()
        self.store.flows.delete_checks(checks)
        return sorted({check.job_id for check in checks})

    def fold(self) -> None:
        """What a folder does, until there is nothing left to fold: stores may take the events of
        one transaction in any order."""
        folder = Folder(self.store)
        for _ in range(MAX_FOLDS):
            if not folder.fold_once().was_saved:
                return
        raise AssertionError(f"{self.name} folds the same events again and again")

    def close(self) -> None:
        """Stop, and remove what was stored."""
        self.coordinator.close()
        self.factory.close()


class Worlds:
    """All of them, moving together."""

    def __init__(self, factories: dict[str, Callable[[], StoreFactory]]) -> None:
        self._elapsed_us = 0
        self._steps = 0
        self._all: list[World] = []
        try:
            for name, make in factories.items():
                self._all.append(World(name, make(), self._monotonic))
        except BaseException:
            self.close()
            raise
        self.records: list[JobHistory] = []
        self.seen: set[EventType] = set()  # also what was pruned or purged since

    def _monotonic(self) -> int:
        return self._elapsed_us

    @property
    def reference(self) -> Store:
        """The store that says how it should be."""
        return self._all[0].store

    def close(self) -> None:
        """End all worlds."""
        for world in self._all:
            world.close()

    @property
    def databases(self) -> list[World]:
        """The worlds that keep everything."""
        return [world for world in self._all if world.is_database]

    def same(
        self, what: str, ask: Callable[[World], T], *, worlds: Sequence[World] | None = None
    ) -> T:
        """Ask these worlds, or all; each answer must be that of the first."""
        worlds = worlds or self._all
        answers = [ask(world) for world in worlds]
        for world, answer in zip(worlds[1:], answers[1:], strict=True):
            assert answer == answers[0], (
                f"{what} differs\n  {worlds[0].name}: {answers[0]}\n  {world.name}: {answer}"
            )
        return answers[0]

    def step(
        self, what: str, act: Callable[[World], T], *, worlds: Sequence[World] | None = None
    ) -> T:
        """Do the same in these worlds, or everywhere, then compare everything."""
        self._steps += 1
        for world in self._all:
            world.luck.begin(self._steps)
        answer = self.same(what, act, worlds=worlds)
        self.compare_records()
        return answer

    def compare_records(self) -> None:
        """Rows, events and, of the databases, observations of every job."""
        found = {world.name: world.records() for world in self._all}
        self.records = found[self._all[0].name]
        self.seen |= {event.type for record in self.records for event in record.events}
        self.same(
            "observations",
            lambda world: [(each.job_id, each.observations) for each in found[world.name]],
            worlds=self.databases,
        )
        for world in self._all[1:]:
            theirs = found[world.name]
            assert [each.job_id for each in theirs] == [each.job_id for each in self.records]
            for mine, other in zip(self.records, theirs, strict=True):
                assert other.job == mine.job, f"a row in {world.name} differs"
                assert other.events == mine.events, f"a log in {world.name} differs"

    # --- acting --------------------------------------------------------------------------------

    def advance(self, by: Duration) -> None:
        """Let time pass everywhere; stepping back is the store's clock alone."""
        self._elapsed_us += max(0, by)
        for world in self._all:
            world.factory.advance(by)
        self.same("the clock", lambda world: world.store.now())

    def execute(self, commands: Sequence[Command]) -> list[Answer | str]:
        """One batch of commands; an error is an answer too."""
        return self.step(
            f"the answer to {commands}",
            lambda world: _settled(lambda: world.run(commands)),
        )

    def claim(self, request: ClaimRequest) -> ClaimAnswer | str:
        """One claim. The order of a repeat is nobody's promise."""
        holds: list[RateLimited | None] = []

        def ask(world: World) -> ClaimAnswer | str:
            try:
                answer = world.coordinator.claim(request)
            except TenureError as refused:
                return str(refused)
            if not answer.is_repeat:
                holds.append(answer.rate_limited)
                return replace(answer, rate_limited=None)
            grants = tuple(sorted(answer.grants, key=lambda grant: grant.job_id))
            return ClaimAnswer(grants=grants, cause=answer.cause, is_repeat=True)

        answer = self.step(f"the answer to {request}", ask)
        for held in holds[1:]:
            assert _is_as_good(held, holds[0]), f"{request}: {held} instead of {holds[0]}"
        return answer

    # --- looking -------------------------------------------------------------------------------

    def compare_views(self) -> None:
        """Every listing and look-up a store offers."""
        jobs = [record.job_id for record in self.records]
        self.same("resolutions", lambda world: world.store.jobs.resolutions(jobs))
        self.same("edges", lambda world: list(world.store.flows.edges()))
        of_jobs = {record.job.flow_id for record in self.records if record.job is not None}
        flows = sorted(each for each in of_jobs if each is not None)
        self.same(
            "flows",
            lambda world: [world.store.flows.load(DEFAULT_NAMESPACE, each) for each in flows],
        )
        self.same("due_schedules", lambda world: world.store.schedules.due(limit=7))
        self.same("due", lambda world: list(world.store.jobs.load(DueJobs(7)).jobs.items()))
        self.same("outages", lambda world: _ordered(world.store.upkeep.outages(since=Instant(0))))
        self.same("what is listed", lambda world: _listed(world.store), worlds=self.databases)

    def verify(self) -> None:
        """Every history holds."""
        for world in self.databases:
            assert_holds(world.store)


_ALL_JOBS = JobFilter(namespace=DEFAULT_NAMESPACE, limit=PAGE_SIZE)
_GROUPS = DeadLetterGroupFilter(namespace=DEFAULT_NAMESPACE)
_OVERVIEW = OverviewFilter(namespace=DEFAULT_NAMESPACE, range=TimeRange.WEEK)
_ALL_EVENTS = EventFilter(namespace=DEFAULT_NAMESPACE)


def _settled_order(record: JobHistory) -> list[Observation]:
    """Observations of one instant have no order among leases; give them one."""
    return sorted(record.observations, key=lambda seen: (seen.ts, seen.lease_id or ""))


def _listed(store: Store) -> list[object]:
    """What a database lists and the model does not keep."""
    return [
        store.views.jobs(_ALL_JOBS).jobs,
        full_page(store.events.page, _ALL_EVENTS),
        list(store.audit.live_keys()),
        list(store.audit.lease_holders()),
        sorted(store.audit.grants(since=Instant(0)), key=_when),
        store.settings.kinds(DEFAULT_NAMESPACE),
        store.settings.queues(DEFAULT_NAMESPACE),
        store.schedules.page(DEFAULT_NAMESPACE),
        store.views.dead_letter_groups(_GROUPS),
        store.views.overview(_OVERVIEW),
    ]


def _ordered(outages: Sequence[object]) -> list[str]:
    return sorted(set(map(repr, outages)))


def _settled(run: Callable[[], list[Answer]]) -> list[Answer | str]:
    try:
        return list(run())
    except TenureError as refused:
        return [str(refused)]


def _is_as_good(held: RateLimited | None, exact: RateLimited | None) -> bool:
    """Whether a worker that is told this does not come too late. A store need not know that nobody
    waits for a rate key any more. [RL9]"""
    if exact is None:
        return held is None or not held.is_all
    return held is not None and held.wait_us <= exact.wait_us and held.is_all == exact.is_all


def _when(grant: GrantMade) -> tuple[int, str, int]:
    """Grants of one transaction have no order."""
    return grant.ts, grant.job_id, grant.seq
