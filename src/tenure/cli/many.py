"""Commands that act on many jobs: which jobs are meant, whether the user agrees, and what became of
each.

`--all` says how many jobs match the filters and asks first. Jobs are decided in batches; each job
that was refused is named with the reason. Running such a command again is safe: it takes what is
left, and a request that is repeated under its id is done once.

Exit codes: 0 all done, 1 some jobs were refused or the user said no, 2 it could not be done,
130 the user pressed Ctrl-C.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import click
import msgspec

from tenure.cli.errors import REFUSED, CouldNotRun, Interrupted
from tenure.cli.invocation import Invocation, find_job_ids
from tenure.cli.options import Option, expected_rev_option, flag, request_id_option, together
from tenure.cli.output import ProgressLine, coloured, print_json, say
from tenure.core.ids import JobId
from tenure.core.vocabulary import Cause, JobStatus, counted
from tenure.errors import TenureError, UnknownJob
from tenure.protocol.records import JobOutcome

PER_BATCH = 100
"""After this many jobs progress is shown, and what was done so far is known."""

MAKES_JOBS = {Cause.ALREADY_RESOLVED: "--again makes another job of it"}
"""What refused requests for new jobs hint at."""

_ABOUT = ("job_ids", "every", "yes", "request_id", "expected_rev")
_FIRST = "the first {} (there may be more; run it again for them)"


class Many(msgspec.Struct, kw_only=True):
    """The jobs that the user means, by ids or by `--all` and filters, and how to ask about them."""

    cli: Invocation
    job_ids: tuple[str, ...]
    every: bool
    yes: bool
    filters: dict[str, Any]
    request_id: str
    expected_rev: int | None

    def __post_init__(self) -> None:
        """Refuse what could mean two things, or means nothing."""
        if self.expected_rev is not None and len(self.job_ids) != 1:
            raise click.UsageError("--expected-rev goes with exactly one ID.")
        if self.job_ids and any(self.filters.values()):
            raise click.UsageError("Filters go with --all.")
        if self.every and self.job_ids:
            raise click.UsageError("Give IDs or --all, not both.")
        if not self.every and not self.job_ids:
            raise click.UsageError("Say which jobs: give IDs, or --all with or without filters.")

    def only(self, statuses: Sequence[JobStatus], *, problem: str) -> None:
        """Refuse other statuses; without any, the filters are about all of these."""
        if any(status not in statuses for status in self.filters["status"]):
            raise click.BadParameter(problem, param_hint="--status")
        self.filters["status"] = self.filters["status"] or tuple(statuses)

    @property
    def ids(self) -> list[JobId]:
        """The jobs whose ids were typed."""
        return find_job_ids(self.cli, self.job_ids)

    def chosen(
        self,
        matching: Callable[..., list[JobId]],
        *,
        verb: str,
        noun: str = "job",
        among: Callable[[list[JobId]], list[JobId]] = list,
    ) -> list[JobId]:
        """The ids of the jobs that are meant: with `--all` those `among` what is `matching` the
        filters; then the user is told how many, and asked."""
        if not self.every:
            return self.ids
        from tenure.client.administration import MAX_IDS  # here: lists do not need the client

        every = matching(**self.filters)
        found = among(every)
        if not found:
            say(f"nothing to do: no {noun} matches")
            return found
        many = counted(len(found), noun)
        is_all = len(every) < MAX_IDS
        if not self.yes:
            asked = f"{verb} {many if is_all else _FIRST.format(many)}?"
            click.confirm(asked, abort=True, err=True)
        elif not is_all:
            say(_FIRST.format(many))
        return found

    def decide(
        self,
        method: Callable[..., list[JobOutcome]],
        ids: Sequence[JobId],
        *,
        hints: Mapping[Cause, str] | None = None,
        **fields: Any,
    ) -> None:
        """Call this method of the Python client for these jobs, and report each: what was done on
        stdout, what was refused on stderr.

        If the store fails on the way or the user presses Ctrl-C, what was done so far is reported
        before the error. Ctrl-C during the report ends it.
        """
        asked = {"request_id": self.request_id, "expected_rev": self.expected_rev} | fields
        outcomes: list[JobOutcome] = []
        problem: TenureError | KeyboardInterrupt | None = None
        progress = ProgressLine()
        try:
            for start in range(0, len(ids), PER_BATCH):
                outcomes += method(ids[start : start + PER_BATCH], **asked)
                progress.show(f"{len(outcomes):,} of {counted(len(ids), 'job')}")
            progress.erase()
        except TenureError as failure:
            if len(ids) == 1:
                raise
            problem = failure
        except KeyboardInterrupt as interrupt:
            problem = interrupt
        try:
            refused = self._report(outcomes, hints or {})
        except KeyboardInterrupt as interrupt:
            problem, refused = interrupt, 0
        if problem is not None:
            is_interrupt = isinstance(problem, KeyboardInterrupt)
            what = "interrupted" if is_interrupt else str(problem)
            message = (
                f"{what}; answered: {len(outcomes):,} of {counted(len(ids), 'job')}. Run the same"
                f" command again with --request-id {self.request_id}: what is done is not done"
                " twice"
            )
            raise (Interrupted if is_interrupt else CouldNotRun)(message) from problem
        if refused and len(outcomes) > 1:
            say(f"refused: {refused:,} of {counted(len(outcomes), 'job')}")
        if refused:
            raise click.exceptions.Exit(REFUSED)

    def _report(self, outcomes: Sequence[JobOutcome], hints: Mapping[Cause, str]) -> int:
        """Print what became of each job; returns how many were refused."""
        if self.cli.as_json:
            print_json(outcomes)
        else:
            for each in outcomes:
                if each.problem is None:
                    click.echo(_line(each))
                else:
                    say(_refusal(each, hints))
        return sum(each.problem is not None for each in outcomes)


def _line(done: JobOutcome) -> str:
    """The job and its status now, or the id of the new job, or of the job alone."""
    if done.status is None:
        return done.new_job_id or done.job_id
    word = "cancel requested, still " if done.pending else ""
    return f"{done.job_id}: {word}{coloured(done.status)}"


def _refusal(refused: JobOutcome, hints: Mapping[Cause, str]) -> str:
    """Which job was refused and why, with the code of the cause in brackets."""
    if refused.cause is Cause.UNKNOWN_JOB:
        return str(UnknownJob(refused.job_id))
    why = f"job {refused.job_id}: {refused.problem}"
    if refused.cause is None:
        return why if refused.held_by else str(refused.problem)
    hint = hints.get(refused.cause)
    return f"{why}{f'; {hint}' if hint else ''} ({refused.cause.value})"


def about_jobs(*filters: Option, all_as: str | None = None) -> Option:
    """`--request-id`, `--expected-rev` and the ids of jobs; with `filters` these and `--all`, whose
    request id is `all_as`, if not None. The function gets them as a `Many` after the `Invocation`.
    The filters are named like the arguments of the client's `ids`."""
    names = [each.name or "" for each in click.command()(together(*filters)(lambda: None)).params]
    ids = [click.argument("job_ids", metavar="ID...", nargs=-1, required=True)]
    if filters:
        ids = [
            flag("--all", "every", help="All jobs that match the filters; asks first."),
            flag("--yes", "-y", help="With --all: do not ask."),
            click.argument("job_ids", metavar="[ID]...", nargs=-1),
        ]

    def decorate(function: Callable[..., None]) -> Any:
        @wraps(function)
        def run(cli: Invocation, **given: Any) -> None:
            filtered = {name: given.pop(name) for name in names}
            about: dict[str, Any] = {"every": False, "yes": False}
            about |= {name: given.pop(name) for name in _ABOUT if name in given}
            asked_as = about["request_id"] or (all_as if about["every"] else None)
            about["request_id"] = asked_as or f"cli:{os.urandom(12).hex()}"
            function(cli, Many(cli=cli, filters=filtered, **about), **given)

        return together(request_id_option, expected_rev_option, *filters, *ids)(run)

    return decorate
