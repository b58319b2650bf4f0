"""The model's figures at the end of a proof run, also when several processes ran it.

A pytest plugin: searches travel in the reports' user properties, because what a worker process
prints is seen by nobody.
"""

import pytest

from tests.model.checker import HEADER

PROPERTY = "model"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per configuration, and the rows of the table they exercised together."""
    found = [
        value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if not found:
        return
    terminalreporter.section("model checker")
    terminalreporter.write_line(HEADER)
    rows: set[str] = set()
    for line, of_line in found:
        terminalreporter.write_line(line)
        rows.update(of_line)
    terminalreporter.write_line("rows exercised: " + " ".join(sorted(rows, key=_order)))


def _order(rule: str) -> tuple[int, str]:
    return int(rule.strip("Tb")), rule
