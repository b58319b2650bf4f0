"""Ends a test process that hangs, and writes the stack of each of its threads to stderr.

pytest-timeout fails a test after ten minutes: it raises in the main thread. That does not help if
the test then waits again (a thread pool waits for its threads at the end of a `with` block), if it
waits where Python runs no signal handlers, or if the interpreter waits for a thread that a test
left. Under xdist the run goes on and says which test the process was running.
"""

import faulthandler
import os
from typing import TextIO

import pytest

TEST_LIMIT_S = 900
END_LIMIT_S = 300
"""From the end of the last test to the end of the process."""

_STDERR = pytest.StashKey[TextIO]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("hang_limit", "seconds after which a test's process is ended", default="")


def pytest_configure(config: pytest.Config) -> None:
    # pytest captures nothing yet: this is where the user looks. Never closed, because it is needed
    # until the process ends.
    config.stash[_STDERR] = os.fdopen(os.dup(2), "w", encoding="utf-8")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> object:
    _end_after(item.config, TEST_LIMIT_S)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    _end_after(session.config, END_LIMIT_S)


def _end_after(config: pytest.Config, limit_s: float) -> None:
    given = config.getini("hang_limit")
    faulthandler.dump_traceback_later(
        float(given or limit_s), exit=True, file=config.stash[_STDERR]
    )
