"""Spec evidence: every sentence of docs/spec has a test that ran and passed.

A sentence is defined where its id stands in bold brackets, as in `**[L4]** At the instant of …`,
outside code blocks; a plain `[L4]` is a reference. With `--spec-evidence` a run fails when

- a sentence is cited by no test that was executed and passed,
- a test cites an id that no sentence has,
- a test cites more than `MAX_IDS_PER_TEST` ids, or
- an id is defined twice, or none is found at all.

Citations travel in the reports' user properties, so that the process which judges needs nothing but
reports: under xdist that is the controller. Without the option nothing is judged, because a part of
the suite cannot be evidence for the whole spec.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tenure_conformance.spec import MAX_IDS_PER_TEST

_PROPERTY = "spec"
_DEFINITION = re.compile(r"\*\*\[([A-Z][A-Za-z0-9.]*)\]\*\*")
_FENCE = re.compile(r"^\s*(```|~~~)")


def defined_ids(text: str) -> Iterator[str]:
    """The ids of the sentences that a page of the spec defines, in order."""
    in_code = False
    for line in text.splitlines():
        if _FENCE.match(line):
            in_code = not in_code
        elif not in_code:
            yield from _DEFINITION.findall(line)


def _reading_order(spec_id: str) -> tuple[object, ...]:
    """T9 before T9b before T10."""
    letters, *rest = re.split(r"([0-9]+)", spec_id)
    return letters, *(int(part) if part.isdigit() else part for part in rest)


class Evidence:
    """Collects what the tests of one run cite, and says what is missing."""

    def __init__(self, defined: Iterable[str]) -> None:
        self._defined = Counter(defined)
        self._cited: dict[str, set[str]] = {}
        self._proven: set[str] = set()

    def add(self, report: pytest.TestReport) -> None:
        ids = {str(value) for name, value in report.user_properties if name == _PROPERTY}
        if not ids:
            return
        self._cited[report.nodeid] = ids
        was_expected_to_fail = hasattr(report, "wasxfail")
        if report.when == "call" and report.passed and not was_expected_to_fail:
            self._proven |= ids

    def complaints(self) -> list[str]:
        """One line per fault; empty when the spec has its evidence."""
        if not self._defined:
            return ["no sentence with an id was found: is the spec directory right?"]
        return [*self._faults_of_the_spec(), *self._faults_of_the_tests(), *self._unproven()]

    def _faults_of_the_spec(self) -> Iterator[str]:
        for spec_id, times in sorted(self._defined.items()):
            if times > 1:
                yield f"[{spec_id}] is defined {times} times: give each sentence an id of its own"

    def _faults_of_the_tests(self) -> Iterator[str]:
        for nodeid, ids in sorted(self._cited.items()):
            for spec_id in sorted(ids - self._defined.keys()):
                yield f"[{spec_id}] is cited by {nodeid} but no sentence has this id"
            if len(ids) > MAX_IDS_PER_TEST:
                yield f"{nodeid} cites {len(ids)} ids, at most {MAX_IDS_PER_TEST} are allowed"

    def _unproven(self) -> Iterator[str]:
        cited = set().union(*self._cited.values())
        for spec_id in sorted(self._defined.keys() - self._proven, key=_reading_order):
            if spec_id in cited:
                yield f"[{spec_id}] is cited, but by no test that was executed and passed"
            else:
                yield f"[{spec_id}] is cited by no test"


class Judge:
    """The part of the plugin that lives where all reports arrive."""

    def __init__(self, spec_dir: Path) -> None:
        pages = sorted(spec_dir.rglob("*.md"))
        self._spec_dir = spec_dir
        self._evidence = Evidence(
            spec_id for page in pages for spec_id in defined_ids(page.read_text(encoding="utf-8"))
        )
        self._complaints: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._evidence.add(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._complaints = self._evidence.complaints()
        if self._complaints and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._complaints:
            terminalreporter.write_line("spec evidence: complete", green=True)
            return
        terminalreporter.section("spec evidence is missing", red=True, bold=True)
        for complaint in self._complaints:
            terminalreporter.write_line(complaint)
        terminalreporter.write_line(f"{len(self._complaints)} faults, spec: {self._spec_dir}")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tenure", "Tenure's own test suite")
    group.addoption(
        "--spec-evidence",
        action="store_true",
        help="fail unless every sentence of the spec has a test that ran and passed",
    )
    group.addoption(
        "--spec-dir", default="docs/spec", help="where the spec lives, from the root directory"
    )


def pytest_configure(config: pytest.Config) -> None:
    is_xdist_worker = hasattr(config, "workerinput")
    if config.getoption("--spec-evidence") and not is_xdist_worker:
        judge = Judge(config.rootpath / config.getoption("--spec-dir"))
        config.pluginmanager.register(judge, "tenure-spec-evidence")


def pytest_itemcollected(item: pytest.Item) -> None:
    for marker in item.iter_markers("spec"):
        item.user_properties.extend((_PROPERTY, spec_id) for spec_id in marker.args)
