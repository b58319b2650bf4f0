"""Retention at the coordinator: bounds, and one page at a time."""

import pytest

from tenure.coordinator.retention import DAY, Retention, RetentionPolicy
from tenure.core.artifacts import ArtifactUpload
from tenure.core.commands import Heartbeat
from tenure.core.ids import DEFAULT_NAMESPACE, worker_actor
from tenure.core.instants import Duration, seconds
from tenure.core.verdicts import Grant
from tenure.core.views.job_search import JobFilter
from tenure.errors import InvalidInput
from tenure.ports import Deletable
from tenure_conformance.spec import spec
from tests.support.coordinators import World

W1 = worker_actor("w1")


@spec("G6")
@pytest.mark.parametrize("too_short", [Duration(0), seconds(60), Duration(DAY - 1)])
def test_a_retention_under_a_day_is_refused(too_short: Duration) -> None:
    with pytest.raises(InvalidInput, match=r"^retention\.finished_us: .*1d or longer"):
        Retention(World().store, RetentionPolicy(finished_us=too_short))


@spec("G1", "G6", "T26")
def test_a_run_deletes_renewals_then_bodies_then_jobs_each_in_its_time() -> None:
    world = World()
    grant = world.running()
    world.coordinator.execute(
        Heartbeat(job_id=grant.job_id, lease_id=grant.lease_id, actor=W1, hb_seq=1)
    )
    live = world.running()
    world.complete(grant, actor=W1)
    world.complete(grant, actor=W1)  # a duplicate: refused and observed
    retention = Retention(world.store, RetentionPolicy(finished_us=Duration(2 * DAY)))

    at_once = retention.run_once()
    world.clock.advance(8 * 86400)
    later = retention.run_once()
    finally_ = retention.run_once()

    reads: list[Deletable] = ["renewals", "observations", "jobs"]
    assert [at_once.deleted[what] for what in reads] == [1, 0, 0]
    assert [later.deleted[what] for what in reads] == [0, 1, 1]
    assert [finally_.deleted[what] for what in reads] == [0, 0, 0]
    assert list(world.store.jobs.load([grant.job_id, live.job_id]).jobs) == [live.job_id]
    assert world.store.events.load([grant.job_id])[grant.job_id] == []
    world.coordinator.close()


@spec("G4")
def test_a_run_says_whether_there_is_more_to_delete() -> None:
    world = World()
    for _ in range(5):
        world.complete(world.running(), actor=W1)
    world.clock.advance(31 * 86400)
    retention = Retention(world.store, page=2)

    is_behind = [retention.run_once().is_behind for _ in range(3)]

    assert is_behind == [True, True, False]
    assert world.store.views.jobs(JobFilter(namespace=DEFAULT_NAMESPACE)).jobs == []
    world.coordinator.close()


def _five_running(world: World) -> list[Grant]:
    grants = []
    for _ in range(5):
        grants.append(world.running())
        world.clock.advance(1)  # so that their ids are in this order
    return grants


@spec("G4", "B10")
def test_a_full_page_is_followed_by_the_next_whatever_was_in_it() -> None:
    world = World()
    grants = _five_running(world)
    for grant in grants:
        world.coordinator.store.artifacts.stage(
            ArtifactUpload(
                job_id=grant.job_id, lease_id=grant.lease_id, actor=W1, name="a", body=b""
            )
        )
    world.fail(grants[-1], actor=W1)
    retention = Retention(world.store, page=2)

    runs = [retention.run_once() for _ in range(4)]

    assert [run.is_behind for run in runs] == [True, True, False, True]
    assert [run.deleted["artifacts"] for run in runs] == [0, 0, 1, 0]
    world.coordinator.close()


@spec("G4", "G1")
def test_live_renewals_are_passed_a_page_at_a_time() -> None:
    world = World()
    grants = _five_running(world)
    for grant in grants:
        world.coordinator.execute(
            Heartbeat(job_id=grant.job_id, lease_id=grant.lease_id, actor=W1, hb_seq=1)
        )
    world.complete(grants[-1], actor=W1)
    retention = Retention(world.store, page=2)

    runs = [retention.run_once() for _ in range(3)]

    assert [run.is_behind for run in runs] == [True, True, False]
    assert [run.deleted["renewals"] for run in runs] == [0, 0, 1]
    world.coordinator.close()


@spec("E31", "G4")
def test_kept_renewals_are_searched_a_hundred_times_in_their_time() -> None:
    world = World()
    grant = world.running()
    world.coordinator.execute(
        Heartbeat(job_id=grant.job_id, lease_id=grant.lease_id, actor=W1, hb_seq=1)
    )
    world.complete(grant, actor=W1)
    passed = [0]
    policy = RetentionPolicy(renewals_us=seconds(6000))
    retention = Retention(world.store, policy, monotonic=lambda: passed[0])

    def pruned(after_s: int) -> int:
        world.clock.advance(after_s)
        passed[0] += seconds(after_s)
        return retention.run_once().deleted.get("renewals", 0)

    assert [pruned(5990), pruned(30), pruned(30)] == [0, 0, 1]
    world.coordinator.close()


@spec("G4", "E31")
def test_a_search_that_did_not_reach_the_end_continues_in_the_next_run() -> None:
    world = World()
    for _ in range(2):
        grant = world.running()
        world.coordinator.execute(
            Heartbeat(job_id=grant.job_id, lease_id=grant.lease_id, actor=W1, hb_seq=1)
        )
        world.complete(grant, actor=W1)
    world.clock.advance(6001)
    policy = RetentionPolicy(renewals_us=seconds(6000))
    retention = Retention(world.store, policy, page=1, monotonic=lambda: 0)

    assert [retention.run_once().deleted["renewals"] for _ in range(3)] == [1, 1, 0]
    world.coordinator.close()


@spec("G5")
def test_nothing_is_deleted_after_a_jump_of_the_clock() -> None:
    world = World()
    world.complete(world.running(), actor=W1)
    passed = [0]
    retention = Retention(world.store, monotonic=lambda: passed[0])

    def look(*, clock_s: int, after_s: int = 30) -> int:
        world.clock.advance(clock_s)
        passed[0] += seconds(after_s)
        retention.run_if_steady()
        return len(list(world.store.audit.records(page_size=10)))

    assert look(clock_s=40 * 86400) == 1  # the first look
    assert look(clock_s=-40 * 86400) == 1  # it was wrong, and set right
    assert look(clock_s=40 * 86400) == 1  # a jump
    assert look(clock_s=30) == 0  # confirmed
    world.coordinator.close()
