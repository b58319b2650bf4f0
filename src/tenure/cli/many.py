"""Commands that act on many jobs: which jobs are meant, whether the user agrees, and what became of
each.

`--all` says how many jobs match the filters and asks first. Commands are sent in batches; each job
that was refused is named with the reason. Running such a command again is safe: it takes what is
left, and a request that is repeated under its id is done once.

Exit codes: 0 all done, 1 some jobs were refused or the user said no, 2 it could not be done,
130 the user pressed Ctrl-C.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from functools import wraps
from typing import Any

import click
import msgspec

from tenure.cli.errors import REFUSED, CouldNotRun, Interrupted, how_to_continue, refusal
from tenure.cli.invocation import Invocation, find_job_ids, new_request_id
from tenure.cli.options import Option, expected_rev_option, flag, request_id_option, together
from tenure.cli.output import ProgressLine, coloured, print_json, say
from tenure.core.commands import Command, Discard, Redrive
from tenure.core.ids import JobId, RequestId
from tenure.core.verdicts import Reply
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import Cause, JobStatus, counted
from tenure.errors import TenureError
from tenure.ports import Coordination
from tenure.protocol.records import ResolutionRecord, resolution_record

MAX_JOBS = 100_000
"""One command takes at most this many: their ids are kept in memory until the user agrees."""
PER_PAGE = 500
PER_BATCH = 100

_ABOUT = ("job_ids", "every", "yes", "request_id", "expected_rev")
_FIRST = "the first {} (there may be more; run it again for them)"


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one job. With a `cause` or a `held_by` it is as it was.

    `status` is that of the job now, if the command changed it; `pending` means that it was asked to
    stop and still runs. `resolution` says what had become of a refused dead letter before,
    `held_by` is the live job that holds the dedupe key.
    """

    job_id: str
    status: str | None = None
    pending: bool = False
    new_job_id: str | None = None
    cause: Cause | None = None
    resolution: ResolutionRecord | None = None
    held_by: str | None = None


class Many(msgspec.Struct, kw_only=True):
    """The jobs that the user means, by ids or by `--all` and filters, and how to ask about them."""

    cli: Invocation
    job_ids: tuple[str, ...]
    every: bool
    yes: bool
    filters: dict[str, Any]
    request_id: str | None
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

    def request(self, default_id: RequestId | None = None) -> dict[str, Any]:
        """The id and the revision under which the jobs are asked about: all under one id."""
        asked_as = new_request_id(self.request_id or default_id)
        return {"request_id": asked_as, "expected_rev": self.expected_rev}

    @property
    def ids(self) -> list[JobId]:
        """The jobs whose ids were typed."""
        return find_job_ids(self.cli, self.job_ids)

    def filter(
        self, among: Sequence[JobStatus] = (), *, problem: str = "", **fixed: Any
    ) -> JobFilter:
        """The jobs that match the filters and have one of the statuses `among`."""
        wanted = JobFilter(namespace=self.cli.namespace, bodies=False, **(self.filters | fixed))
        if among and any(status not in among for status in wanted.statuses):
            raise click.BadParameter(problem, param_hint="--status")
        return msgspec.structs.replace(wanted, statuses=wanted.statuses or tuple(among))

    def select(
        self,
        wanted: JobFilter,
        *,
        verb: str,
        noun: str = "job",
        without: Callable[[Sequence[JobId]], Container[JobId]] = lambda _: (),
    ) -> list[JobId]:
        """The ids of the jobs that are meant. With `--all` the user is told how many, and asked;
        `without` says which of a page of jobs to leave out."""
        if not self.every:
            return self.ids
        found, is_all = self._matching(wanted, without)
        if not found:
            say(f"nothing to do: no {noun} matches")
            return found
        many = counted(len(found), noun)
        if not self.yes:
            asked = f"{verb} {many if is_all else _FIRST.format(many)}?"
            click.confirm(asked, abort=True, err=True)
        elif not is_all:
            say(_FIRST.format(many))
        return found

    def _matching(
        self, wanted: JobFilter, without: Callable[[Sequence[JobId]], Container[JobId]]
    ) -> tuple[list[JobId], bool]:
        """The ids that a filter leaves, and whether these are all."""
        wanted = msgspec.structs.replace(wanted, limit=PER_PAGE)
        found: list[JobId] = []
        for _ in range(MAX_JOBS // PER_PAGE):
            page = [job.id for job in self.cli.serving.list_jobs(wanted).jobs]
            left_out = without(page)
            found += [job_id for job_id in page if job_id not in left_out]
            if len(page) < PER_PAGE:
                return found, True
            wanted = msgspec.structs.replace(wanted, before=page[-1])
        return found, False


def about_jobs(*filters: Option) -> Option:
    """`--request-id`, `--expected-rev` and the ids of jobs; with `filters` these, and `--all`. The
    function gets them as a `Many` after the `Invocation`. The filters are named like the fields of
    a `JobFilter`."""
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
            function(cli, Many(cli=cli, filters=filtered, **about), **given)

        return together(request_id_option, expected_rev_option, *filters, *ids)(run)

    return decorate


# --- Sending -------------------------------------------------------------------------------------


def status_line(command: Command, reply: Reply) -> str:
    """The job, and its status now."""
    assert reply.job is not None
    word = "cancel requested, still " if reply.pending else ""
    return f"{command.job_id}: {word}{coloured(reply.job.status)}"


def id_that_runs(_: Command, reply: Reply) -> str:
    """The new job's id, or that of the job that continues."""
    assert reply.job is not None
    return reply.job.id


def execute_all(
    cli: Invocation,
    commands: Sequence[Command],
    *,
    line: Callable[[Command, Reply], str] = status_line,
) -> None:
    """Send the commands and report each: what was done on stdout, what was refused on stderr.

    If the store fails on the way or the user presses Ctrl-C, what was done so far is reported
    before the error. Ctrl-C during the report ends it.
    """
    answered: list[tuple[Command, Reply]] = []
    problem: TenureError | KeyboardInterrupt | None = None
    try:
        for pair in _answers(cli.serving, commands):
            answered.append(pair)
    except TenureError as failure:
        if len(commands) == 1:
            raise
        problem = failure
    except KeyboardInterrupt as interrupt:
        problem = interrupt
    try:
        refused = _report(answered, as_json=cli.as_json, line=line)
    except KeyboardInterrupt as interrupt:
        raise _stopped(interrupt, commands, len(answered)) from interrupt
    if problem is not None:
        raise _stopped(problem, commands, len(answered)) from problem
    if refused and len(answered) > 1:
        say(f"refused: {refused:,} of {counted(len(answered), 'job')}")
    if refused:
        raise click.exceptions.Exit(REFUSED)


def _report(
    answered: Sequence[tuple[Command, Reply]],
    *,
    as_json: bool,
    line: Callable[[Command, Reply], str],
) -> int:
    """Print what became of each job; returns how many were refused."""
    if as_json:
        print_json([outcome(*pair) for pair in answered])
    refused = 0
    for command, reply in answered:
        why = refusal(command, reply)
        refused += why is not None
        if why is not None and not as_json:
            say(why)
        elif not as_json:
            click.echo(line(command, reply))
    return refused


def _answers(serving: Coordination, commands: Sequence[Command]) -> Iterator[tuple[Command, Reply]]:
    progress = ProgressLine()
    for start in range(0, len(commands), PER_BATCH):
        batch = commands[start : start + PER_BATCH]
        for command, reply in zip(batch, serving.execute_many(batch), strict=True):
            assert isinstance(reply, Reply)
            yield command, reply
        progress.show(f"{start + len(batch):,} of {counted(len(commands), 'job')}")
    progress.erase()


def _stopped(
    problem: TenureError | KeyboardInterrupt, commands: Sequence[Command], answered: int
) -> click.ClickException:
    is_interrupt = isinstance(problem, KeyboardInterrupt)
    message = how_to_continue(
        "interrupted" if is_interrupt else str(problem),
        answered=answered,
        jobs=len(commands),
        request_id=getattr(commands[0], "request_id", ""),
    )
    return Interrupted(message) if is_interrupt else CouldNotRun(message)


def outcome(command: Command, reply: Reply) -> JobOutcome:
    """What became of a job, for programs."""
    if reply.cause is not None:
        resolution = resolution_record(reply.resolution)
        return JobOutcome(job_id=command.job_id, cause=reply.cause, resolution=resolution)
    assert reply.job is not None
    if isinstance(command, Redrive):
        new_id = reply.job.id
        if reply.deduplicated:
            return JobOutcome(job_id=command.job_id, held_by=new_id)
        return JobOutcome(job_id=command.job_id, new_job_id=new_id)
    if isinstance(command, Discard):
        return JobOutcome(job_id=command.job_id)
    return JobOutcome(job_id=command.job_id, status=reply.job.status, pending=reply.pending)
