"""Rollups: the log added up for plots, each event once."""

from tenure.coordinator.retention import Folder
from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.instants import MICROSECONDS_PER_SECOND, seconds
from tenure.core.views.overview import OutcomeCounts, TimeRange
from tenure.core.views.rollups import KEPT_FOR, MAX_SERIES, SHORTEST, Fold, UnfoldedPage
from tenure.core.views.rollups import fold as plan_fold
from tenure.core.vocabulary import OnLost
from tenure.ports import PruneResult
from tenure_conformance.harness import QUEUE, Kit, policy
from tenure_conformance.spec import spec
from tenure_conformance.store.test_overview import overview, queue_of, totals

OTHER = Namespace("other")
SLOW = QueueName("slow")
MAIL, BILL = Kind("mail"), Kind("bill")
DAY_S = 24 * 3600
MAX_PAGES = 100


def fold(kit: Kit, *, page: int = 1000, catch_up: int = 1000) -> int:
    """Fold all that there is; how many pages that took."""
    folder = Folder(kit.store, page=page, catch_up=catch_up, monotonic=kit.monotonic)
    for pages in range(MAX_PAGES):
        if not folder.fold_once().was_saved:
            return pages
    raise AssertionError(f"after {MAX_PAGES} pages there is still something to fold")


def fold_of(page: UnfoldedPage) -> Fold:
    """What a process saves that has read this page."""
    planned = plan_fold(page)
    assert planned is not None
    return planned


def furnish(kit: Kit) -> None:
    """Jobs of two kinds, two queues and two namespaces that end in several ways."""
    kit.succeeded_job(kind=MAIL)
    kit.advance(seconds=20)
    kit.dead_letter_job(kind=BILL)
    kit.cancel(kit.enqueue(kind=MAIL, queue=SLOW))
    kit.advance(seconds=400)
    kit.fail(kit.running_job(kind=BILL))
    kit.enqueue(namespace=OTHER)


@spec("OB33", "OB34")
def test_an_overview_is_the_same_before_and_after_the_log_is_folded(kit: Kit) -> None:
    furnish(kit)
    before = {range_: overview(kit, range_) for range_ in TimeRange}

    assert fold(kit) == 1
    folded = {range_: overview(kit, range_) for range_ in TimeRange}

    assert folded == before
    assert totals(folded[TimeRange.DAY]).enqueued == 4


@spec("OB33", "OB36")
def test_a_fold_goes_on_where_the_last_one_ended(kit: Kit) -> None:
    furnish(kit)
    before = overview(kit, TimeRange.HOUR)

    pages = fold(kit, page=2)

    assert pages > 3
    assert overview(kit, TimeRange.HOUR) == before
    assert kit.store.views.unfolded(limit=10).end is None


@spec("OB33")
def test_of_two_processes_that_fold_the_same_events_one_saves_them(kit: Kit) -> None:
    furnish(kit)
    before = overview(kit)
    mine, theirs = kit.store.views.unfolded(limit=10), kit.store.views.unfolded(limit=100)

    assert kit.store.views.save_fold(fold_of(mine))
    assert not kit.store.views.save_fold(fold_of(theirs))
    assert not kit.store.views.save_fold(fold_of(mine))

    assert overview(kit) == before
    assert kit.store.views.unfolded(limit=1).progress.position == mine.end


@spec("OB33")
def test_a_rollup_has_the_counts_of_its_time_and_its_namespace_alone(kit: Kit) -> None:
    kit.succeeded_job(kind=MAIL)
    kit.enqueue(namespace=OTHER, kind=BILL)

    fold(kit)
    kit.enqueue(kind=MAIL)
    page = kit.store.views.unfolded(limit=10)

    assert {key.length_us for key in page.before} == set(KEPT_FOR)
    for key, rollup in page.before.items():
        assert key.at == kit.now() // key.length_us * key.length_us
        [series] = rollup.series
        assert (series.queue, series.kind) == (QUEUE, MAIL)
        assert series.counts == {"enqueued": 1, "claimed": 1, "succeeded": 1}
        assert sum(series.tally.waits.values()) == sum(series.tally.runs.values()) == 1
        assert series.tally == rollup.total


@spec("OB33")
def test_what_was_folded_stays_counted_when_its_jobs_are_purged(kit: Kit) -> None:
    kit.succeeded_job()
    fold(kit)
    kit.advance(seconds=2 * DAY_S)

    assert kit.store.upkeep.delete("jobs", older_than_us=seconds(DAY_S), limit=10).deleted == 1
    found = overview(kit, TimeRange.WEEK)

    assert totals(found) == OutcomeCounts(enqueued=1, claimed=1, succeeded=1)
    assert found.counted_since == found.since


@spec("OB33")
def test_what_is_purged_before_it_is_folded_is_missing_and_stops_nothing(kit: Kit) -> None:
    kit.succeeded_job()
    kit.advance(seconds=2 * DAY_S)
    kit.store.upkeep.delete("jobs", older_than_us=seconds(DAY_S), limit=10)
    kit.enqueue()

    fold(kit)

    assert totals(overview(kit, TimeRange.WEEK)) == OutcomeCounts(enqueued=1)


@spec("OB33")
def test_renewals_are_passed_over(kit: Kit) -> None:
    job = kit.running_job(policy=policy(lease_s=30, on_lost=OnLost.REQUEUE))
    fold(kit)
    kit.heartbeat(job)

    assert kit.store.views.unfolded(limit=10).tallied == []
    assert fold(kit) == 1
    assert fold(kit) == 0


@spec("OB34", "OB36")
def test_of_a_long_log_that_was_never_folded_the_newest_part_is(kit: Kit) -> None:
    kit.enqueue()
    kit.enqueue()
    kit.advance(seconds=600)
    kit.enqueue()
    kit.enqueue()

    fold(kit, catch_up=2)
    found = overview(kit)

    assert totals(found).enqueued == 2
    assert found.since < found.counted_since <= kit.now()


@spec("OB36")
def test_events_that_are_too_old_for_a_length_are_not_folded_into_it(kit: Kit) -> None:
    kit.enqueue()
    kit.advance(seconds=KEPT_FOR[SHORTEST] // MICROSECONDS_PER_SECOND + 15)
    kit.enqueue()

    fold(kit)

    assert kit.store.upkeep.delete("rollups", limit=10).deleted == 0
    assert totals(overview(kit, TimeRange.WEEK)).enqueued == 2


@spec("OB36")
def test_old_rollups_are_deleted_a_page_at_a_time(kit: Kit) -> None:
    for _ in range(3):
        kit.enqueue()
        kit.enqueue(namespace=OTHER)
        kit.advance(seconds=60)
    fold(kit)
    kit.advance(seconds=KEPT_FOR[SHORTEST] // MICROSECONDS_PER_SECOND - 80)

    def delete(limit: int) -> PruneResult:
        return kit.store.upkeep.delete("rollups", limit=limit)

    assert [delete(3), delete(3), delete(3)] == [
        PruneResult(3, hit_limit=True),
        PruneResult(1, hit_limit=False),
        PruneResult(0, hit_limit=False),
    ]
    assert totals(overview(kit, TimeRange.WEEK)).enqueued == 3


@spec("OB34")
def test_waits_and_runs_of_folded_jobs_are_within_a_sixteenth(kit: Kit) -> None:
    for wait_s in (1, 2, 3):
        kit.enqueue()
        kit.advance(seconds=wait_s)
        [job] = kit.claimed()
        kit.start(job)
        kit.advance(seconds=10 * wait_s)
        kit.complete(job)

    fold(kit)
    found = overview(kit)

    assert found.wait.samples == found.run.samples == 3
    assert found.wait.p50_us is not None
    assert found.run.p95_us is not None
    assert abs(found.wait.p50_us - seconds(2)) <= seconds(2) / 16
    assert abs(found.run.p95_us - seconds(30)) <= seconds(30) / 16


@spec("OB35")
def test_events_of_too_many_queues_are_in_the_totals_alone(kit: Kit) -> None:
    names = [QueueName(f"q{number:03}") for number in range(MAX_SERIES + 2)]
    for name in names:
        kit.enqueue(queue=name)

    fold(kit, page=50)
    found = overview(kit)

    assert totals(found).enqueued == len(names)
    assert sum(each.events.enqueued for each in found.queues) <= MAX_SERIES
    assert totals(overview(kit, queues=(names[0],))).enqueued == 1


@spec("OB35")
def test_an_overview_of_one_queue_counts_nothing_of_others(kit: Kit) -> None:
    furnish(kit)
    fold(kit)

    found = overview(kit, queues=(SLOW,))

    assert totals(found) == OutcomeCounts(enqueued=1, cancelled=1)
    assert [each.queue for each in found.queues] == [SLOW]
    assert queue_of(found, SLOW).events == totals(found)


@spec("OB33")
def test_a_new_epoch_goes_on_where_the_last_one_ended(kit: Kit) -> None:
    kit.enqueue()
    fold(kit)
    kit.store.raise_epoch()
    kit.enqueue()

    assert fold(kit) == 1

    assert totals(overview(kit)).enqueued == 2


@spec("OB34", "OB36")
def test_a_short_log_of_two_epochs_is_folded_from_its_beginning(kit: Kit) -> None:
    kit.enqueue()
    kit.store.raise_epoch()
    kit.enqueue()

    fold(kit)
    found = overview(kit)

    assert totals(found).enqueued == 2
    assert found.counted_since == found.since


@spec("OB36")
def test_the_newest_part_of_a_long_log_may_be_of_two_epochs(kit: Kit) -> None:
    kit.enqueue()
    kit.advance(seconds=300)
    kit.enqueue()
    kit.store.raise_epoch()
    kit.enqueue()

    fold(kit, catch_up=2)
    found = overview(kit)

    assert totals(found).enqueued == 2
    assert found.since < found.counted_since < kit.now()
