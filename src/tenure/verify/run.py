"""Verifies a whole store: one pass over its records, then what is between jobs; makes the report.

Reads only, in bounded memory however many jobs there are. Acknowledgements are read first: the pass
must find everything that was acknowledged before it began, whatever is written meanwhile. A long
log can break a rule a million times: all violations are counted, only the first few of each rule
are kept.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from enum import StrEnum
from pathlib import Path

import msgspec

from tenure.core.ids import JobId
from tenure.core.instants import Duration
from tenure.core.policy import SHORTEST_RETENTION
from tenure.ports import JobHistory, RecordSource
from tenure.verify.ack_rules import may_be_purged, must_exist
from tenure.verify.acks import AckIndex, is_torn
from tenure.verify.invariants import (
    INVARIANTS,
    Violation,
    check_acks,
    check_across,
    check_record,
    violations,
)

DEFAULT_LIMIT = 10
PAGE_SIZE = 200

WITHOUT_ACKS = "needs the callers' acknowledgements"
NO_ACKS = "the --acks files contain no acknowledgement"
OF_MANY_JOBS = "is about several jobs: verify the whole store"
WITHOUT_METRICS = "needs the metrics of every process that wrote"


class RuleState(StrEnum):
    """The result of checking one invariant."""

    HOLDS = "holds"
    VIOLATED = "violated"
    NOT_CHECKED = "not checked"


class RuleFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One invariant's result; `first` are its first violations, `violations` counts them all."""

    id: str
    title: str
    state: RuleState
    violations: int = 0
    first: tuple[Violation, ...] = ()
    why: str = ""


class ReadCounts(msgspec.Struct, kw_only=True):
    """What was read. `purged` counts acknowledged jobs that are missing and old enough to have been
    purged: they are not checked. `empty` counts acknowledgement files without a line, `torn` files
    whose last line was never finished. `acks` is None if no acknowledgements were given."""

    jobs: int = 0
    events: int = 0
    acks: int | None = None
    empty: int = 0
    torn: int = 0
    purged: int = 0


class VerifyReport(ReadCounts, kw_only=True):
    """What was read and what was found."""

    findings: tuple[RuleFinding, ...]

    @property
    def holds(self) -> bool:
        """Whether everything that was checked holds. [X2]"""
        return not self.violated

    @property
    def violated(self) -> list[str]:
        """The ids of the invariants that were found broken."""
        return [each.id for each in self.findings if each.state is RuleState.VIOLATED]

    @property
    def not_checked(self) -> list[str]:
        """The ids of the invariants that were not checked. [X3]"""
        return [each.id for each in self.findings if each.state is RuleState.NOT_CHECKED]


class ReportBuilder:
    """Counts violations by invariant, keeps the first few of each, and makes the report."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._violations: Counter[str] = Counter()
        self._first: dict[str, list[Violation]] = {}
        self.counts = ReadCounts()

    def add(self, violations: Iterable[Violation]) -> None:
        """Count these."""
        for violation in violations:
            rule = violation.invariant
            self._violations[rule] += 1
            first = self._first.setdefault(rule, [])
            if len(first) < self._limit:
                first.append(violation)

    def build(self, *, of_one_job: bool = False) -> VerifyReport:
        """The report. For one job, only what its own row and log can show was checked."""
        acks, findings = self.counts.acks, []
        for rule in INVARIANTS:
            count = self._violations[rule.id]
            state = RuleState.VIOLATED if count else RuleState.HOLDS
            why = ""
            if not acks and rule.needs_acks:
                state, why = RuleState.NOT_CHECKED, WITHOUT_ACKS if acks is None else NO_ACKS
            if rule.needs_metrics:
                state, why = RuleState.NOT_CHECKED, WITHOUT_METRICS
            elif of_one_job and rule.of_record is None and not rule.needs_acks:
                state, why = RuleState.NOT_CHECKED, OF_MANY_JOBS
            findings.append(
                RuleFinding(
                    id=rule.id,
                    title=rule.title,
                    state=state,
                    violations=count,
                    first=tuple(self._first.get(rule.id, ())),
                    why=why,
                )
            )
        return VerifyReport(findings=tuple(findings), **msgspec.structs.asdict(self.counts))


OnProgress = Callable[[int, int], None]
"""Called with the number of jobs and of events read so far."""


def verify(
    store: RecordSource,
    acks: Sequence[Path] | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    retention_us: Duration = SHORTEST_RETENTION,
    progress: OnProgress | None = None,
) -> VerifyReport:
    """Check every invariant on rows, log and the callers' acknowledgements, if there are any."""
    report = ReportBuilder(limit=limit)
    with ExitStack() as opened:
        index = opened.enter_context(closing(AckIndex()))
        collectors = [
            (rule.id, opened.enter_context(closing(rule.between())))
            for rule in INVARIANTS
            if rule.between
        ]
        counts = report.counts
        if acks is not None:
            by_file = index.load(acks)
            counts.acks = sum(by_file)
            counts.empty = by_file.count(0)
            counts.torn = sum(map(is_torn, acks))
        for record in store.audit.records(page_size=PAGE_SIZE):
            counts.jobs += 1
            counts.events += len(record.events)
            report.add(check_record(record, index.of(record.job_id) if counts.acks else ()))
            for _, collector in collectors:
                collector.add(record)
            if progress is not None:
                progress(counts.jobs, counts.events)
        now = store.now()
        for job_id, job_acks in index.without_record():
            if not must_exist(job_acks, job_id):
                continue
            if may_be_purged(job_acks, now, retention_us):
                counts.purged += 1
            else:
                missing = JobHistory(job_id=job_id, job=None, events=())
                report.add(check_acks(missing, job_acks))
        for rule, collector in collectors:
            report.add(violations(rule, collector.problems(store)))
    report.add(check_across(store))
    return report.build()


def verify_job(
    store: RecordSource, job_id: JobId, *, limit: int = DEFAULT_LIMIT
) -> VerifyReport | None:
    """Check one job's row and log; None if there is no such job. What is about several jobs is not
    checked, and the report names it. [X4]"""
    record = next(store.audit.records(page_size=1, job_id=job_id), None)
    if record is None:
        return None
    report = ReportBuilder(limit=limit)
    report.counts.jobs, report.counts.events = 1, len(record.events)
    report.add(check_record(record))
    return report.build(of_one_job=True)


def assert_holds(store: RecordSource, acks: Sequence[Path] | None = None) -> VerifyReport:
    """For tests: fail with the first violations unless everything that was checked holds."""
    report = verify(store, acks)
    if not report.holds:
        lines = [
            f"{violation.invariant} job {violation.job_id} seq {violation.seq}: {violation.message}"
            for finding in report.findings
            for violation in finding.first
        ]
        raise AssertionError("the history is broken:\n" + "\n".join(lines))
    return report
