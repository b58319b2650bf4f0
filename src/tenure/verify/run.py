"""Verifies a whole store: one pass over its records, one over what jobs must not share.

Reads only, in bounded memory however many jobs there are. Acknowledgements are read first: the pass
must find everything that was acknowledged before it began, whatever is written meanwhile.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from tenure.core.concurrency import concurrency_limit_of
from tenure.core.ids import JobId, Kind, Namespace
from tenure.core.instants import Duration, Instant
from tenure.core.kind_settings import KindSettings
from tenure.core.policy import SHORTEST_RETENTION
from tenure.ports import RecordSource
from tenure.verify.ack_index import AckIndex
from tenure.verify.ack_rules import may_be_purged, missing_job_violations, must_exist
from tenure.verify.acks import is_torn
from tenure.verify.flows import Replacements
from tenure.verify.held_keys import HeldKeys
from tenure.verify.invariants import (
    check_across,
    check_attempts,
    check_keys,
    check_record,
    check_replacements,
)
from tenure.verify.keyed_attempts import ConcurrencyLimit, KeyedAttempts
from tenure.verify.report import Report, ReportBuilder

DEFAULT_LIMIT = 10
PAGE_SIZE = 200

Progress = Callable[[int, int], None]
"""Called with the number of jobs and of events read so far."""


def verify(
    store: RecordSource,
    acks: Sequence[Path] | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    retention_us: Duration = SHORTEST_RETENTION,
    progress: Progress | None = None,
) -> Report:
    """Check every invariant on rows, log and the callers' acknowledgements, if there are any."""
    report = ReportBuilder(limit=limit)
    replacements = Replacements()
    with AckIndex() as index, KeyedAttempts() as attempts, HeldKeys() as keys:
        lines = None
        if acks is not None:
            by_file = index.load(acks)
            lines = sum(by_file)
            report.empty = by_file.count(0)
            report.torn = sum(map(is_torn, acks))
        for record in store.records(page_size=PAGE_SIZE):
            report.jobs += 1
            report.events += len(record.events)
            job_acks = index.of(record.job_id) if lines else ()
            report.add_all(check_record(record, job_acks))
            attempts.add(record)
            keys.add(record)
            replacements.add(record)
            if replacements.is_full:
                report.add_all(check_replacements(replacements, store))
            if progress is not None:
                progress(report.jobs, report.events)
        _check_missing(store, index, report, retention_us)
        report.add_all(check_attempts(attempts, store, _Limits(store)))
        report.add_all(check_keys(keys, store))
    report.add_all(check_replacements(replacements, store))
    report.add_all(check_across(store))
    return report.build(acks=lines)


def verify_job(store: RecordSource, job_id: JobId, *, limit: int = DEFAULT_LIMIT) -> Report | None:
    """Check one job's row and log; None if there is no such job. What is about several jobs is not
    checked, and the report says so. [X4]"""
    record = store.load_record(job_id)
    if record is None:
        return None
    report = ReportBuilder(limit=limit)
    report.jobs, report.events = 1, len(record.events)
    report.add_all(check_record(record))
    return report.build(acks=None, of_one_job=True)


class _Limits:
    """The limits of concurrency keys, read once for each namespace."""

    def __init__(self, store: RecordSource) -> None:
        self._store = store
        self._known: dict[Namespace, dict[Kind, KindSettings]] = {}

    def __call__(self, namespace: Namespace, group: str) -> ConcurrencyLimit:
        if namespace not in self._known:
            found = self._store.list_kinds(namespace)
            self._known[namespace] = {each.kind: each for each in found}
        settings = self._known[namespace].get(Kind(group))
        since = None if settings is None else settings.concurrency_since
        return ConcurrencyLimit(concurrency_limit_of(settings), since or Instant(0))


def _check_missing(
    store: RecordSource, index: AckIndex, report: ReportBuilder, retention_us: Duration
) -> None:
    now = store.now()
    for job_id, job_acks in index.without_record():
        if not must_exist(job_acks, job_id):
            continue
        if may_be_purged(job_acks, now, retention_us):
            report.purged += 1
            continue
        for violation in missing_job_violations(job_id, job_acks):
            report.add(violation)


def assert_holds(store: RecordSource, acks: Sequence[Path] | None = None) -> Report:
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
