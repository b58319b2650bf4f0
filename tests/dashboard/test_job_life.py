"""A job's life as lanes and as a picture: what each sort of life shows, and what holds of any."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.commands import Command
from tenure.core.instants import seconds
from tenure.core.job import Progress
from tenure.core.outcomes import Refused
from tenure.core.policy import Policy
from tenure.core.vocabulary import CancelMode, OnLost, ReleaseKind
from tenure.dashboard.job_life import MAX_LANES, JobPhase, Life, Sign, life_of
from tenure.dashboard.life_picture import (
    MARK_DISTANCE,
    MAX_MARK_LINES,
    RENEWAL_DISTANCE,
    Picture,
    picture_of,
)
from tenure.dashboard.time_axis import WIDTH
from tests.support.jobs import OPERATOR, OTHER_OWNER, OTHER_WORKER, PERMANENT, Driver

TOLERANCE = 1e-6


def life(driver: Driver) -> Life:
    return life_of(driver.job, driver.events, driver.observations, now=driver.now)


def observe(driver: Driver, command: Command) -> None:
    """Do it, and keep what a store would keep of a refusal."""
    outcome = driver.do(command)
    if isinstance(outcome, Refused) and outcome.observation is not None:
        driver.observations.append(outcome.observation)


def phases(of: Life) -> list[list[JobPhase]]:
    return [[span.phase for span in lane.spans] for lane in of.lanes]


def signs(of: Life) -> list[list[Sign]]:
    return [[mark.sign for mark in lane.marks] for lane in of.lanes]


def running(**policy: object) -> Driver:
    """A job that waited for a second, was claimed, and started half a second later."""
    driver = Driver(policy=Policy(**policy))  # type: ignore[arg-type]  # a test's own words
    driver.do(driver.enqueue())
    driver.advance(1)
    driver.do(driver.claim())
    driver.advance(0.5)
    driver.do(driver.start())
    return driver


def test_a_plain_success_is_one_lane_from_its_wait_to_its_end() -> None:
    driver = running()
    driver.advance(2)
    driver.do(driver.complete())

    found = life(driver)

    assert phases(found) == [[JobPhase.QUEUED, JobPhase.CLAIMED, JobPhase.RUNNING]]
    assert signs(found) == [[Sign.ENQUEUED, Sign.CLAIMED, Sign.STARTED, Sign.SUCCEEDED]]
    assert [span.end - span.start for span in found.lanes[0].spans] == [
        seconds(1),
        seconds(0.5),
        seconds(2),
    ]
    assert (found.now, found.left_out) == (None, 0)
    assert found.lanes[0].end is not None
    assert found.lanes[0].end.who == "worker:ada"


def test_a_retry_is_a_lane_of_its_own_that_begins_with_its_delay() -> None:
    driver = running()
    driver.advance(1)
    driver.do(driver.fail(retry_after_s=10))
    driver.advance(15)
    driver.do(driver.claim())
    driver.do(driver.start())
    driver.advance(1)
    driver.do(driver.complete())

    found = life(driver)

    assert phases(found)[1] == [JobPhase.DELAYED, JobPhase.QUEUED, JobPhase.RUNNING]
    first, second = found.lanes
    assert first.end is not None
    assert (first.end.sign, first.end.what) == (Sign.RETRIED, "Attempt failed")
    assert "Timeout: no answer" in first.end.why
    assert first.spans[-1].end == second.spans[0].start


def test_an_expired_lease_is_silent_until_it_is_recorded_and_its_late_result_is_refused() -> None:
    driver = running(lease_us=seconds(10))
    late_lease = driver.lease_id
    driver.advance(14.5)
    driver.do(driver.sweep())
    driver.advance(60)
    driver.do(driver.claim(actor=OTHER_WORKER, owner=OTHER_OWNER))
    driver.advance(3)
    observe(driver, driver.complete(lease_id=late_lease))

    found = life(driver)

    first, second = found.lanes
    assert [span.phase for span in first.spans] == [
        JobPhase.QUEUED,
        JobPhase.CLAIMED,
        JobPhase.RUNNING,
        JobPhase.SILENT,
        JobPhase.LATE,
    ]
    assert first.spans[3].start == first.spans[0].end + seconds(10.5)  # a start renews
    assert first.marks[-1].sign is Sign.REFUSED
    assert first.marks[-1].who == "worker:ada"
    assert second.owner == OTHER_OWNER
    assert Sign.REFUSED not in [mark.sign for mark in second.marks]


def test_renewals_checkpoints_and_progress_are_on_the_lease() -> None:
    driver = running()
    for number in range(3):
        driver.advance(10)
        driver.do(driver.heartbeat(progress=Progress(done=number, total=3)))
    driver.advance(10)
    driver.do(driver.heartbeat(checkpoint=b'{"at":7}'))

    found = life(driver)

    lane = found.lanes[0]
    assert (len(lane.renewals), lane.renewal_count) == (4, 4)
    assert [span.phase for span in lane.spans].count(JobPhase.RUNNING) == 1
    assert [mark.sign for mark in lane.marks][3:] == [Sign.PROGRESS] * 3 + [Sign.CHECKPOINT]
    assert "2 of 3" in lane.marks[5].why


def test_a_running_job_reaches_to_now_and_its_lease_ahead_of_it() -> None:
    driver = running()
    driver.advance(4)

    found = life(driver)

    *_, run, ahead = found.lanes[0].spans
    assert (run.phase, run.end) == (JobPhase.RUNNING, driver.now)
    assert (ahead.phase, ahead.start) == (JobPhase.AHEAD, driver.now)
    assert found.now == driver.now


def test_a_lease_that_is_over_by_now_is_silent_before_anybody_records_it() -> None:
    driver = running(timeout_us=seconds(5))
    driver.advance(9)

    found = life(driver)

    assert phases(found) == [[JobPhase.QUEUED, JobPhase.CLAIMED, JobPhase.RUNNING, JobPhase.SILENT]]
    assert found.lanes[0].spans[-1].end - found.lanes[0].spans[-1].start == seconds(4)


def test_a_soft_cancel_is_marked_and_the_rest_of_the_run_is_stopping() -> None:
    driver = running()
    driver.advance(2)
    driver.do(driver.cancel(reason="wrong order", actor=OPERATOR))
    driver.advance(1)
    driver.do(driver.fail())

    found = life(driver)

    assert phases(found)[0][-2:] == [JobPhase.RUNNING, JobPhase.STOPPING]
    asked, ended = found.lanes[0].marks[-2:]
    assert (asked.sign, asked.who) == (Sign.CANCEL_REQUESTED, "operator:olga")
    assert "wrong order" in asked.why
    assert ended.sign is Sign.CANCELLED


def test_a_hard_cancel_in_the_queue_ends_a_lane_without_an_attempt() -> None:
    driver = Driver()
    driver.do(driver.enqueue())
    driver.advance(3)
    driver.do(driver.cancel(CancelMode.HARD))

    found = life(driver)

    assert (found.lanes[0].attempt, found.lanes[0].owner) == (0, None)
    assert signs(found) == [[Sign.ENQUEUED, Sign.CANCELLED]]
    assert picture_of(found).rows[0].summary.startswith("Not claimed: ")


def test_a_released_job_says_so() -> None:
    driver = running()
    driver.do(driver.release(ReleaseKind.DEPLOY))

    first, second = life(driver).lanes

    assert first.end is not None
    assert first.end.what == "Released by its worker"
    assert (second.attempt, second.end) == (0, None)


def test_a_held_job_is_held_in_the_lane_of_its_attempt_until_an_operator_requeues_it() -> None:
    driver = running(on_lost=OnLost.HOLD, lease_us=seconds(10))
    driver.advance(12)
    driver.do(driver.sweep())
    driver.advance(100)
    driver.do(driver.requeue())
    driver.advance(1)

    first, second = life(driver).lanes

    assert [span.phase for span in first.spans][-2:] == [JobPhase.SILENT, JobPhase.HELD]
    assert [mark.sign for mark in first.marks][-1] is Sign.LOST
    assert (second.spans[0].phase, second.marks[0].who) == (JobPhase.QUEUED, "operator:olga")


def test_a_reclaimed_job_begins_a_lane_without_a_wait() -> None:
    driver = running(on_lost=OnLost.RECLAIM, lease_us=seconds(10))
    driver.advance(12)
    driver.do(driver.sweep())
    driver.advance(100)
    driver.do(driver.claim())

    assert [lane.attempt for lane in life(driver).lanes] == [1, 2]


def test_a_job_of_a_flow_waits_for_its_parents_first() -> None:
    driver = Driver()
    driver.do(driver.flow())
    driver.advance(5)
    driver.do(driver.unblock())
    driver.advance(1)

    found = life(driver)

    assert phases(found) == [[JobPhase.WAITING, JobPhase.QUEUED]]
    assert signs(found) == [[Sign.ENQUEUED, Sign.READY]]


def test_pruned_renewals_are_still_counted_and_leave_no_silence() -> None:
    driver = running()
    for _ in range(20):
        driver.advance(10)
        driver.do(driver.heartbeat())
    driver.do(driver.complete())
    driver.prune_renewals()

    lane = life(driver).lanes[0]

    assert (lane.renewals, lane.renewal_count) == ([], 20)
    assert JobPhase.SILENT not in [span.phase for span in lane.spans]


def tried(times: int) -> Driver:
    """A job that failed so often, at once each time."""
    driver = Driver(policy=Policy(max_attempts=times + 1))
    driver.do(driver.enqueue())
    for _ in range(times):
        driver.do(driver.claim(start=True))
        driver.advance(0.005)
        driver.do(driver.fail())
        driver.advance(3600)
    return driver


@pytest.mark.slow
def test_of_hundreds_of_attempts_the_newest_are_shown_and_the_rest_counted() -> None:
    driver = tried(300)

    found = life(driver)

    assert len(found.lanes) == MAX_LANES
    assert found.lanes[-1].attempt == 0
    assert found.lanes[-2].attempt == 300
    assert found.left_out == 300 - (MAX_LANES - 1)


def test_a_log_without_its_beginning_gives_the_lanes_that_it_tells_of() -> None:
    driver = tried(30)

    found = life_of(driver.job, driver.events[-6:], (), now=driver.now)

    assert [lane.attempt for lane in found.lanes if lane.attempt] == [29, 30]
    assert found.left_out == 28


def test_a_cut_right_of_now_is_the_rest_of_the_lease_and_no_idle_time() -> None:
    driver = running()
    driver.advance(0.001)

    picture = picture_of(life(driver))

    assert len(picture.cuts) == picture.cuts_ahead == 1


def test_the_text_of_many_marks_in_one_place_is_bounded() -> None:
    driver = running()
    for _ in range(100):
        driver.advance(0.0001)
        driver.do(driver.heartbeat(progress=Progress(done=1)))
    driver.advance(20)

    glyphs = picture_of(life(driver)).rows[0].glyphs

    assert max(glyph.count for glyph in glyphs) > 100
    most = max(glyphs, key=lambda glyph: glyph.count)
    assert most.title.startswith(f"{most.count} events\n")
    assert most.title.count("\n") == MAX_MARK_LINES + 1


Act = Callable[[Driver], object]
ACTS: dict[str, Act] = {
    "claim": lambda driver: driver.do(driver.claim()),
    "claim_started": lambda driver: driver.do(driver.claim(start=True)),
    "start": lambda driver: driver.do(driver.start()),
    "heartbeat": lambda driver: driver.do(driver.heartbeat()),
    "progress": lambda driver: driver.do(driver.heartbeat(progress=Progress(done=3))),
    "checkpoint": lambda driver: driver.do(driver.heartbeat(checkpoint=b"1")),
    "complete": lambda driver: observe(driver, driver.complete()),
    "fail": lambda driver: observe(driver, driver.fail()),
    "fail_permanently": lambda driver: driver.do(driver.fail(PERMANENT)),
    "release": lambda driver: driver.do(driver.release(delay_s=7)),
    "sweep": lambda driver: driver.do(driver.sweep()),
    "cancel": lambda driver: driver.do(driver.cancel()),
    "cancel_hard": lambda driver: driver.do(driver.cancel(CancelMode.HARD)),
    "requeue": lambda driver: driver.do(driver.requeue()),
    "dead_letter": lambda driver: driver.do(driver.dead_letter()),
    "prune": lambda driver: driver.prune_renewals(),
}
WAITS_S = (0.0, 0.000_001, 0.005, 0.7, 20.0, 3_600.0, 1_000_000.0)


@st.composite
def lives(draw: st.DrawFn) -> Life:
    """Whatever workers, clients, operators and time may do to a job, told whole or in part."""
    policy = Policy(
        max_attempts=draw(st.integers(1, 100)),
        on_lost=draw(st.sampled_from(list(OnLost))),
    )
    driver = Driver(policy=policy)
    driver.do(driver.enqueue(delay_s=draw(st.sampled_from(WAITS_S))))
    steps = st.tuples(st.sampled_from(sorted(ACTS)), st.sampled_from(WAITS_S))
    for act, wait_s in draw(st.lists(steps, max_size=60)):
        driver.advance(wait_s)
        ACTS[act](driver)
    driver.advance(draw(st.sampled_from(WAITS_S)))
    told = driver.events[draw(st.integers(0, len(driver.events))) :]
    return life_of(driver.job, told, driver.observations, now=driver.now)


@given(lives())
def test_any_life_has_lanes_in_order_whose_phases_do_not_overlap(of: Life) -> None:
    attempts = [lane.attempt for lane in of.lanes if lane.attempt]

    assert 1 <= len(of.lanes) <= MAX_LANES
    assert attempts == sorted(set(attempts))
    assert of.left_out >= 0
    for lane in of.lanes:
        assert all(span.start < span.end for span in lane.spans)
        assert all(one.end <= other.start for one, other in pairwise(lane.spans))
        assert all(one.phase is not other.phase for one, other in pairwise(lane.spans))
        assert all(of.start <= mark.at <= of.end for mark in lane.marks)
        assert all(of.start <= span.start and span.end <= of.end for span in lane.spans)


@given(lives())
def test_in_any_picture_nothing_overlaps_and_nothing_is_outside(of: Life) -> None:
    picture = picture_of(of)

    assert len(picture.rows) == len(of.lanes)
    assert picture.now is None or 0 <= picture.now <= WIDTH
    for lane, row in zip(of.lanes, picture.rows, strict=True):
        assert sum(glyph.count for glyph in row.glyphs) == len(lane.marks)
        _assert_apart([glyph.x for glyph in row.glyphs], MARK_DISTANCE)
        _assert_apart(list(row.renewals), RENEWAL_DISTANCE)
        assert len(row.bars) == len(lane.spans)
        assert all(bar.width >= 0 and bar.x >= 0 for bar in row.bars)
        assert all(bar.right <= WIDTH + TOLERANCE for bar in row.bars)
        assert all(one.right <= other.x + TOLERANCE for one, other in pairwise(row.bars))
        assert row.summary


def _assert_apart(positions: list[float], distance: float) -> None:
    assert all(0 <= x <= WIDTH for x in positions)
    assert all(other - one >= distance - TOLERANCE for one, other in pairwise(positions))


@given(lives())
def test_the_legend_explains_what_is_drawn_and_nothing_else(of: Life) -> None:
    picture: Picture = picture_of(of)

    assert set(picture.phases) == {bar.phase for row in picture.rows for bar in row.bars}
    assert set(picture.signs) == {glyph.sign for row in picture.rows for glyph in row.glyphs}


@pytest.mark.parametrize("length_s", [0.005, 3, 14 * 86_400])
def test_a_run_of_milliseconds_and_one_of_weeks_fill_the_picture_alike(length_s: float) -> None:
    driver = Driver(policy=Policy(lease_us=seconds(30 * 86_400), timeout_us=None))
    driver.do(driver.enqueue())
    driver.advance(3_600)
    driver.do(driver.claim(start=True))
    driver.advance(length_s)
    driver.do(driver.complete())

    row = picture_of(life(driver)).rows[0]

    assert next(bar for bar in row.bars if bar.phase is JobPhase.RUNNING).width > 90
