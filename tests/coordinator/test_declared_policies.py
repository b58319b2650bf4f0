"""What a coordinator does with the policies that workers declare."""

from collections.abc import Sequence

from tenure.core.commands import Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, new_job_id
from tenure.core.instants import seconds
from tenure.core.job import Job
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.policy import Policy
from tenure.core.verdicts import Reply
from tenure.ports import Clock
from tenure.stores.sqlite.memory import MemoryStore
from tenure_conformance.spec import spec
from tests.support.coordinators import CLIENT, KIND, QUEUE, VirtualClock, World
from tests.support.doubles import instead


class CountingStore(MemoryStore):
    """Counts how often policies are read."""

    reads = 0

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._own_kinds = instead(self, "settings.kinds", self._kinds)

    def _kinds(
        self, namespace: Namespace, only: Sequence[Kind] | None = None
    ) -> list[KindSettings]:
        self.reads += only is not None
        found: list[KindSettings] = self._own_kinds(namespace, only)
        return found


def enqueue(world: World, policy: Policy | None = None) -> Job:
    command = Enqueue(
        job_id=new_job_id(world.clock(), world.entropy(16)),
        namespace=DEFAULT_NAMESPACE,
        queue=QUEUE,
        kind=KIND,
        actor=CLIENT,
        policy=policy,
    )
    reply = world.coordinator.execute(command)
    assert isinstance(reply, Reply)
    assert reply.job is not None
    return reply.job


@spec("F9")
def test_a_declared_lease_outside_the_bounds_becomes_the_nearest_one() -> None:
    world = World()
    declared = Policy(lease_us=seconds(3600), max_attempts=1)
    world.store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=KIND, policy=declared))

    job = enqueue(world)

    assert (job.policy.lease_us, job.policy.max_attempts) == (seconds(120), 1)


@spec("F9")
def test_a_policy_is_read_once_per_second_and_only_for_enqueues_that_bring_none() -> None:
    clock = VirtualClock()
    store = CountingStore(clock=clock)
    world = World(store, clock)
    store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=KIND, policy=Policy(max_attempts=1)))

    for _ in range(10):
        enqueue(world, Policy())
    assert store.reads == 0

    for _ in range(10):
        enqueue(world)
    assert store.reads == 1

    store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=KIND, policy=Policy(max_attempts=2)))
    clock.advance(1)
    assert enqueue(world).policy.max_attempts == 2
    assert store.reads == 2
