"""Commands about many jobs: which jobs are meant, whether the user agrees, and what became of each.

`--all` says how many jobs match the filters and asks first. Commands are sent in batches; each job
that was refused is named with the reason. Running such a command again is safe: it takes what is
left, and a request that is repeated under its id is done once.

Exit codes: 0 all done, 1 some jobs were refused or the user said no, 2 it could not be done,
130 the user pressed Ctrl-C.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, TypeVar

import click
import msgspec

from tenure.cli.common import REFUSED, CouldNotRun, Interrupted, find_job_ids
from tenure.cli.output import ProgressLine, print_json, say
from tenure.cli.refusals import refusal
from tenure.core.commands import Command, Discard, Redrive
from tenure.core.counting import counted
from tenure.core.ids import JobId
from tenure.core.job_search import JobFilter
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause
from tenure.errors import TenureError
from tenure.ports import Coordination
from tenure.protocol.records import ResolutionRecord, resolution_record

MAX_JOBS = 100_000
"""One command takes at most this many: their ids are kept in memory until the user agrees."""
PER_PAGE = 500
PER_BATCH = 100

_FIRST = "the first {} (there may be more; run it again for them)"

_F = TypeVar("_F", bound=Callable[..., Any])


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


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs the user means: these ids, or all that match the filter."""

    job_ids: tuple[str, ...]
    every: bool
    yes: bool
    wanted: JobFilter

    def __post_init__(self) -> None:
        """Refuse what could mean two things, or means nothing."""
        if self.every and self.job_ids:
            raise click.UsageError("Give IDs or --all, not both.")
        if not self.every and not self.job_ids:
            raise click.UsageError("Say which jobs: give IDs, or --all with or without filters.")


def many_options(function: _F) -> _F:
    """`--all`, `--yes`, and the ids otherwise."""
    function = click.argument("job_ids", metavar="[ID]...", nargs=-1)(function)
    function = click.option("--yes", "-y", is_flag=True, help="With --all: do not ask.")(function)
    return click.option(
        "--all", "every", is_flag=True, help="All jobs that match the filters; asks first."
    )(function)


def select(
    serving: Coordination,
    selection: Selection,
    *,
    verb: str,
    noun: str = "job",
    without: Callable[[Sequence[JobId]], Container[JobId]] = lambda _: (),
) -> list[JobId]:
    """The ids of the jobs that are meant. With `--all` the user is told how many, and asked;
    `without` says which of a page of jobs to leave out."""
    if not selection.every:
        return find_job_ids(serving, selection.job_ids, selection.wanted.namespace)
    found, is_all = _all_ids(serving, selection.wanted, without)
    if not found:
        say(f"nothing to do: no {noun} matches")
        return found
    many = counted(len(found), noun)
    if not selection.yes:
        click.confirm(f"{verb} {many if is_all else _FIRST.format(many)}?", abort=True, err=True)
    elif not is_all:
        say(_FIRST.format(many))
    return found


def _all_ids(
    serving: Coordination,
    wanted: JobFilter,
    without: Callable[[Sequence[JobId]], Container[JobId]],
) -> tuple[list[JobId], bool]:
    """The ids that a filter leaves, and whether these are all."""
    wanted = msgspec.structs.replace(wanted, limit=PER_PAGE, bodies=False)
    found: list[JobId] = []
    for _ in range(MAX_JOBS // PER_PAGE):
        page = [job.id for job in serving.store.views.jobs(wanted).jobs]
        left_out = without(page)
        found += [job_id for job_id in page if job_id not in left_out]
        if len(page) < PER_PAGE:
            return found, True
        wanted = msgspec.structs.replace(wanted, before=page[-1])
    return found, False


def execute_all(
    serving: Coordination,
    commands: Sequence[Command],
    *,
    as_json: bool,
    line: Callable[[Command, Reply], str],
    hint: Callable[[Reply], str | None] = lambda _: None,
) -> None:
    """Send the commands and report each: what was done on stdout, what was refused on stderr.

    If the store fails on the way or the user presses Ctrl-C, what was done so far is reported
    before the error. Ctrl-C during the report ends it.
    """
    answered: list[tuple[Command, Reply]] = []
    problem: TenureError | KeyboardInterrupt | None = None
    try:
        for pair in _answers(serving, commands):
            answered.append(pair)
    except TenureError as failure:
        if len(commands) == 1:
            raise
        problem = failure
    except KeyboardInterrupt as interrupt:
        problem = interrupt
    try:
        refused = _report(answered, as_json=as_json, line=line, hint=hint)
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
    hint: Callable[[Reply], str | None],
) -> int:
    """Print what became of each job; returns how many were refused."""
    if as_json:
        print_json([outcome(*pair) for pair in answered])
    refused = 0
    for command, reply in answered:
        why = refusal(command, reply)
        refused += why is not None
        if why is not None and not as_json:
            more = hint(reply)
            say(f"{why}; {more}" if more else why)
        elif not as_json:
            click.echo(line(command, reply))
    return refused


def _answers(serving: Coordination, commands: Sequence[Command]) -> Iterator[tuple[Command, Reply]]:
    progress = ProgressLine()
    try:
        for start in range(0, len(commands), PER_BATCH):
            batch = commands[start : start + PER_BATCH]
            for command, reply in zip(batch, serving.execute_many(batch), strict=True):
                assert isinstance(reply, Reply)
                yield command, reply
            progress.show(f"{start + len(batch):,} of {counted(len(commands), 'job')}")
    finally:
        progress.done()


def _stopped(
    problem: TenureError | KeyboardInterrupt, commands: Sequence[Command], answered: int
) -> click.ClickException:
    is_interrupt = isinstance(problem, KeyboardInterrupt)
    what = "interrupted" if is_interrupt else str(problem)
    request_id = getattr(commands[0], "request_id", "")
    message = how_to_go_on(what, answered=answered, jobs=len(commands), request_id=request_id)
    return Interrupted(message) if is_interrupt else CouldNotRun(message)


def how_to_go_on(what: str, *, answered: int, jobs: int, request_id: str) -> str:
    """What the user of a command hears that stopped on the way."""
    return (
        f"{what}; answered: {answered:,} of {counted(jobs, 'job')}. Run the same command"
        f" again with --request-id {request_id}: what is done is not done twice"
    )


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
