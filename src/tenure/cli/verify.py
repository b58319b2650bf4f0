"""`tenure verify`: prints what the checkers found. Data on stdout, messages on stderr.

Exit codes: 0 everything checked holds, 1 a violation was found, 2 it could not be checked. [X2]
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click
import msgspec

from tenure.cli.errors import DONE, REFUSED, CouldNotRun
from tenure.cli.options import duration_value, json_option, store_url_option, whole_number
from tenure.cli.output import ProgressLine, print_json, printable
from tenure.core.checks import check_job_id
from tenure.core.ids import JobId
from tenure.core.instants import Duration
from tenure.core.policy import SHORTEST_KEEP, SHORTEST_RETENTION
from tenure.core.vocabulary import counted
from tenure.errors import TenureError, UnknownJob
from tenure.settings import url_from_environment
from tenure.verify import RuleFinding, RuleState, VerifyReport, Violation, verify, verify_job
from tenure.verify.run import DEFAULT_LIMIT, WITHOUT_ACKS, WITHOUT_METRICS
from tenure.wiring import open_store

PAGE_WITHIN_S = 600.0
"""For one page of jobs with their histories. Only the user of this command waits for it. [K16]"""

_COLOURS = {
    RuleState.HOLDS: "green",
    RuleState.VIOLATED: "red",
    RuleState.NOT_CHECKED: "bright_black",
}
_HINTS = {
    WITHOUT_ACKS: ": --acks FILE (docs/reference/acks.md)",
    WITHOUT_METRICS: ", which no store has",
}


def _retention(context: click.Context, option: click.Parameter, text: str | None) -> Duration:
    retention_us = duration_value(context, option, text)
    if retention_us is None:
        return SHORTEST_RETENTION
    if retention_us < SHORTEST_KEEP:
        raise click.BadParameter("it is at least a minute")
    return retention_us


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of `--json`; docs/reference/verify.md describes it."""

    holds: bool
    jobs: int
    events: int
    acks: int | None
    empty: int
    torn: int
    purged: int
    invariants: tuple[RuleFinding, ...]


@click.command(name="verify")
@store_url_option
@json_option(Document)
@click.option(
    "--acks",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    help="A file in which callers recorded the answers they got; may be repeated."
    " docs/reference/acks.md says how to write one.",
)
@whole_number(
    "--limit",
    least=0,
    default=DEFAULT_LIMIT,
    help="Show at most this many violations of each invariant.",
)
@click.option(
    "--retention",
    callback=_retention,
    help="With --acks: a finished job that is older than this may be missing, because Tenure may"
    " have deleted it. Give your --keep-finished, or the shortest `keep` of your kinds if that is"
    " less. [default: 1d]",
)
@click.option(
    "--job",
    metavar="ID",
    help="Check this job only, by its row and its history; give the whole ID.",
)
def verify_command(
    url: str | None,
    acks: tuple[Path, ...],
    as_json: bool,
    limit: int,
    retention: Duration,
    job: str | None,
) -> None:
    """Check every stored job and its history against the invariants, or one job.

    Exits with 0 when everything that was checked holds, 1 when a violation was found, 2 when it
    could not be checked.
    """
    if job is not None and acks:
        raise click.UsageError("--acks goes with the whole store, not with --job.")
    try:
        report = _verify(url or url_from_environment(), acks, limit, retention, job)
    except TenureError as error:
        raise CouldNotRun(str(error)) from error
    except KeyboardInterrupt as error:
        raise CouldNotRun("interrupted, not everything was checked") from error
    except Exception as error:  # An unforeseen failure must not exit with 1, "violated".
        raise CouldNotRun(f"cannot verify: {type(error).__name__}: {error}") from error
    try:
        if as_json:
            names = [name for name in Document.__struct_fields__ if name != "invariants"]
            fields = {name: getattr(report, name) for name in names}
            print_json(Document(**fields, invariants=report.findings))
        else:
            _print(report)
    except OSError as error:  # a full disk, a reader that left: neither is a violation
        if report.holds:
            raise CouldNotRun(f"the report cannot be written: {error.strerror}") from error
    sys.exit(DONE if report.holds else REFUSED)


def _verify(
    url: str, acks: tuple[Path, ...], limit: int, retention: Duration, job: str | None
) -> VerifyReport:
    progress = ProgressLine()
    with closing(open_store(url, create=False, timeout_s=PAGE_WITHIN_S)) as store:

        def show(jobs: int, events: int) -> None:
            progress.show(f"verify: {counted(jobs, 'job')}, {counted(events, 'event')} read")

        if job is None:
            found = verify(store, acks or None, limit=limit, retention_us=retention, progress=show)
            progress.erase()
            return found
        check_job_id("job", job.lower())
        report = verify_job(store, JobId(job.lower()), limit=limit)
        if report is None:
            raise UnknownJob(job)
        return report


def _print(report: VerifyReport) -> None:
    width = max(len(finding.title) for finding in report.findings)
    notes = list(dict.fromkeys(finding.why for finding in report.findings if finding.why))
    for finding in report.findings:
        result = click.style(_result(finding, notes), fg=_COLOURS[finding.state])
        click.echo(f"{finding.id:<4} {finding.title:<{width}}  {result}")
        for violation in finding.first:
            click.echo(_line(violation))
        hidden = finding.violations - len(finding.first)
        if hidden:
            click.echo(f"       … and {hidden:,} more")
    click.echo()
    for number, why in enumerate(notes, 1):
        click.echo(f"[{number}] {why}{_HINTS.get(why, '')}")
    click.echo(_summary(report))


def _result(finding: RuleFinding, notes: Sequence[str]) -> str:
    """What was found; the number is that of the note that says why something was not checked."""
    match finding.state:
        case RuleState.HOLDS:
            return "holds"
        case RuleState.VIOLATED:
            return f"VIOLATED, {finding.violations:,} found"
        case RuleState.NOT_CHECKED:
            return f"not checked [{notes.index(finding.why) + 1}]"


def _line(violation: Violation) -> str:
    where = f"job {violation.job_id} seq {violation.seq}"
    return f"       {printable(where)}: {printable(violation.message)}"


def _summary(report: VerifyReport) -> str:
    read = [counted(report.jobs, "job"), counted(report.events, "event")]
    if report.acks is not None:
        read.append(counted(report.acks, "ack"))
    found = "no violation" if report.holds else f"{len(report.violated)} violated"
    every = len(report.findings)
    checked = f"{every - len(report.not_checked)} of {every} invariants were checked"
    lines = [f"{', '.join(read)}: {found}; {checked}"]
    if report.empty:
        files = counted(report.empty, "--acks file contains", "--acks files contain")
        lines.append(f"{files} no acknowledgement")
    if report.torn:
        files = counted(report.torn, "--acks file ends", "--acks files end")
        lines.append(f"{files} in a line that was never finished: that line was ignored")
    if report.purged:
        jobs = counted(report.purged, "acknowledged job is", "acknowledged jobs are")
        lines.append(
            f"{jobs} gone and old enough to have been purged: nothing was checked about that"
        )
    return "\n".join(lines)
