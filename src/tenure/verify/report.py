"""The report of a verification: what holds, what is violated, what was not checked and why.

A long log can break a rule a million times: all violations are counted, only the first few of each
rule are kept.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from tenure.verify.invariants import INVARIANTS
from tenure.verify.violations import Violation

WITHOUT_ACKS = "needs the callers' acknowledgements"
NO_ACKS = "the --acks files contain no acknowledgement"
OF_MANY_JOBS = "is about several jobs: verify the whole store"
WITHOUT_METRICS = "needs the metrics of every process that wrote"


class State(StrEnum):
    """The result of checking one invariant."""

    HOLDS = "holds"
    VIOLATED = "violated"
    NOT_CHECKED = "not checked"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One invariant's result; `first` are its first violations, `violations` counts them all."""

    id: str
    title: str
    state: State
    violations: int = 0
    first: tuple[Violation, ...] = ()
    why: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was read and what was found. `purged` counts acknowledged jobs that are missing and old
    enough to have been purged: they are not checked. `empty` counts acknowledgement files without a
    line, `torn` those whose last line was never finished."""

    findings: tuple[Finding, ...]
    jobs: int
    events: int
    acks: int | None = None
    empty: int = 0
    torn: int = 0
    purged: int = 0

    @property
    def holds(self) -> bool:
        """Whether everything that was checked holds. [X2]"""
        return not self.violated

    @property
    def violated(self) -> list[str]:
        """The ids of the invariants that were found broken."""
        return [each.id for each in self.findings if each.state is State.VIOLATED]

    @property
    def not_checked(self) -> list[str]:
        """The ids of the invariants that were not checked. [X3]"""
        return [each.id for each in self.findings if each.state is State.NOT_CHECKED]


class ReportBuilder:
    """Counts violations by invariant, keeps the first few of each, and makes the report."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}
        self._first: dict[str, list[Violation]] = {}
        self.jobs = 0
        self.events = 0
        self.purged = 0
        self.empty = 0
        self.torn = 0

    def add(self, violation: Violation) -> None:
        """Count one more."""
        rule = violation.invariant
        self._counts[rule] = self._counts.get(rule, 0) + 1
        first = self._first.setdefault(rule, [])
        if len(first) < self._limit:
            first.append(violation)

    def add_all(self, violations: Iterable[Violation]) -> None:
        """Count these."""
        for violation in violations:
            self.add(violation)

    def build(self, *, acks: int | None, of_one_job: bool = False) -> Report:
        """The report; `acks` is None if no acknowledgements were given. Of one job, only what its
        own row and log can show was checked."""
        findings = []
        for rule in INVARIANTS:
            count = self._counts.get(rule.id, 0)
            state = State.VIOLATED if count else State.HOLDS
            why = ""
            if not acks and rule.needs_acks:
                state, why = State.NOT_CHECKED, WITHOUT_ACKS if acks is None else NO_ACKS
            if rule.needs_metrics:
                state, why = State.NOT_CHECKED, WITHOUT_METRICS
            elif of_one_job and rule.of_record is None and not rule.needs_acks:
                state, why = State.NOT_CHECKED, OF_MANY_JOBS
            findings.append(
                Finding(
                    id=rule.id,
                    title=rule.title,
                    state=state,
                    violations=count,
                    first=tuple(self._first.get(rule.id, ())),
                    why=why,
                )
            )
        return Report(
            findings=tuple(findings),
            jobs=self.jobs,
            events=self.events,
            acks=acks,
            empty=self.empty,
            torn=self.torn,
            purged=self.purged,
        )
