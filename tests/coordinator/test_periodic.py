"""The thread behind sweeper and retention: nothing but a stop or a close ends it."""

import logging
import threading

import pytest

from tenure.coordinator.periodic import Periodic
from tenure.core.instants import seconds
from tenure.errors import Closed, StoreUnavailable
from tests.support.waiting import threads_named, until

LIMIT_S = 60


@pytest.mark.parametrize(
    "failure", [StoreUnavailable("away"), AssertionError("a bug")], ids=["store", "bug"]
)
def test_a_run_that_fails_is_logged_and_followed_by_the_next(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    failures, went_on = [failure], threading.Event()

    def work() -> bool:
        if failures:
            raise failures.pop()
        went_on.set()
        return False

    periodic = Periodic("test", work, interval_us=seconds(0.001))
    with caplog.at_level(logging.WARNING, logger="tenure.periodic"):
        periodic.start()
        is_alive = went_on.wait(LIMIT_S)
        periodic.stop()

    assert is_alive
    [record] = caplog.records
    assert "test failed" in record.getMessage()
    assert "will try again" in record.getMessage()
    assert (record.exc_info is not None) == isinstance(failure, AssertionError)


def test_a_lasting_failure_is_logged_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures, went_on = [StoreUnavailable("away")] * 20, threading.Event()

    def work() -> bool:
        if failures:
            raise failures.pop()
        went_on.set()
        return False

    periodic = Periodic("test", work, interval_us=seconds(0.001))
    with caplog.at_level(logging.INFO, logger="tenure.periodic"):
        periodic.start()
        assert went_on.wait(LIMIT_S)
        assert periodic.stop(within_s=LIMIT_S)

    first, last = [record.getMessage() for record in caplog.records]
    assert "test failed, will try again" in first
    assert "test works again, after" in last


def test_a_periodic_task_ends_when_its_store_is_closed() -> None:
    runs = []

    def work() -> bool:
        runs.append(1)
        raise Closed

    periodic = Periodic("ends", work, interval_us=seconds(0.001))
    periodic.start()
    until(lambda: not threads_named("tenure-ends"), "its thread has ended")

    assert len(runs) == 1


def test_a_run_that_leaves_more_to_do_is_followed_soon() -> None:
    left, caught_up = [1, 2, 3], threading.Event()

    def work() -> bool:
        left.pop()
        if not left:
            caught_up.set()
        return bool(left)

    periodic = Periodic("test", work, interval_us=seconds(1_000_000))
    periodic.start()
    is_done = caught_up.wait(LIMIT_S)
    periodic.stop()

    assert is_done
    assert left == []


def test_a_run_that_hangs_does_not_hold_up_the_end() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        go_on.wait(LIMIT_S)
        return False

    periodic = Periodic("test", work, interval_us=seconds(1))
    periodic.start()
    assert begun.wait(LIMIT_S)

    assert not periodic.stop(within_s=0.01)
    go_on.set()
    assert periodic.stop(within_s=LIMIT_S)
