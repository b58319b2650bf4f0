"""What is logged about something that keeps failing."""

from tenure.clock import Boot
from tenure.core.instants import seconds
from tenure.telemetry.log_lines import FailureLine, FailureLog


def at(instant_s: float) -> Boot:
    return Boot(seconds(instant_s))


def test_a_failure_is_logged_when_it_begins_every_half_minute_and_when_it_ends() -> None:
    log = FailureLog()

    lines = [log.failed(at(second)) for second in range(40)]

    assert lines[0] == FailureLine(is_reminder=False, lasts_us=seconds(0))
    assert lines[30] == FailureLine(is_reminder=True, lasts_us=seconds(30))
    assert [line for line in lines if line is not None] == [lines[0], lines[30]]
    assert log.is_reported
    assert log.succeeded(at(40)) == seconds(40)


def test_what_works_is_not_logged() -> None:
    log = FailureLog()

    assert log.succeeded(at(0)) is None
    assert not log.is_reported


def test_a_failure_soon_after_another_is_logged_only_if_it_lasts() -> None:
    log = FailureLog()
    log.failed(at(0))
    log.succeeded(at(1))

    assert log.failed(at(2)) is None
    assert log.succeeded(at(3)) is None, "its beginning was not logged"
    assert log.failed(at(4)) is None
    assert log.failed(at(30)) == FailureLine(is_reminder=False, lasts_us=seconds(26))
