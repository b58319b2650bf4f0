"""What the commands share: where the store is, who acts, and how errors end.

Exit codes: 0 done, 1 refused or not successful, 2 could not run (usage, store, schema).
"""

import getpass
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn, TypeVar

import click

from tenure.cli.output import printable
from tenure.coordinator.service import Coordinator
from tenure.core.ids import Actor, JobId, RequestId, client_actor, operator_actor
from tenure.core.instants import Duration, parse_duration
from tenure.core.job import Job
from tenure.core.sizes import parse_size
from tenure.core.validation import MAX_NAME, NAME_PATTERN, check_job_id
from tenure.core.verdicts import Answer, Reply
from tenure.core.vocabulary import Cause
from tenure.errors import TenureError, UnknownJob
from tenure.ports import Administration
from tenure.protocol.records import ResolutionRecord, resolution_record
from tenure.settings import is_new, shown_url, url_from_environment
from tenure.wiring import open_administration, open_coordinator

KEY_IS_HELD = "its dedupe key is held by a job out of this token's scope"  # [D6]

DONE, REFUSED, COULD_NOT_RUN = 0, 1, 2

_F = TypeVar("_F", bound=Callable[..., Any])


def url_option(function: _F) -> _F:
    """`--url`."""
    return click.option(
        "--url",
        help="The store or server. [default: $TENURE_URL, then `url` of [tool.tenure] in"
        " pyproject.toml, then sqlite:///tenure.db]",
    )(function)


def app_url_option(function: _F) -> _F:
    """`--url` of a command that has an application."""
    return click.option(
        "--url",
        help="The store or server. [default: the application's own, then $TENURE_URL, then `url`"
        " of [tool.tenure] in pyproject.toml, then sqlite:///tenure.db]",
    )(function)


class JsonOption(click.Option):
    """`--json`, which knows the type of the document it prints: the reference page shows it, and
    a test holds the output against it."""

    def __init__(self, *words: Any, shape: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.shape = shape


def json_option(shape: Any) -> Callable[[_F], _F]:
    """`--json`, printing a document of this type."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        cls=JsonOption,
        shape=shape,
        help="Print JSON for programs.",
    )


def namespace_option(function: _F) -> _F:
    """`--namespace`."""
    return click.option("--namespace", default="default", show_default=True)(function)


def log_format_option(function: _F) -> _F:
    """`--log-format`."""
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Lines for people, or JSON objects for programs.",
    )(function)


def keep_finished_option(function: _F) -> _F:
    """`--keep-finished`."""
    return click.option(
        "--keep-finished",
        metavar="DURATION",
        help="Purge finished jobs, with their histories, after this long: 1d or longer. Of all"
        " processes with the store, the shortest counts. [default: `keep_finished` of"
        " [tool.tenure] in pyproject.toml, then 30d]",
    )(function)


def request_id_option(function: _F) -> _F:
    """`--request-id`."""
    return click.option(
        "--request-id",
        help="Repeat a request under its id: it is then done once. [default: a new one]",
    )(function)


def duration_value(_: click.Context, __: click.Parameter, text: str | None) -> Duration | None:
    """A `--delay`, `--timeout` … of the command line."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong)) from wrong


def size_value(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """A size in bytes, as in `512M` or `2GiB`: units are powers of 1024."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong)) from wrong


class Refusal(click.ClickException):
    """The request was understood and refused: one line, exit code 1."""

    exit_code = REFUSED

    def show(self, file: Any = None) -> None:
        """`tenure: what happened; what to do`, on stderr."""
        click.echo(f"tenure: {printable(self.message)}", err=True, file=file)


class CouldNotRun(Refusal):
    """The command could not do its work: one line, exit code 2."""

    exit_code = COULD_NOT_RUN


@contextmanager
def coordinator(
    url: str | None, *, create: bool = False, accept_restored: bool = False
) -> Iterator[Coordinator]:
    """A coordinator over the chosen store; errors of Tenure end the command in one line."""
    try:
        chosen = url or url_from_environment()
        with ExitStack() as stack:
            with _told_if_created(chosen, create):
                opened = open_coordinator(chosen, create=create, accept_restored=accept_restored)
                serving = stack.enter_context(opened)
            yield serving
    except TenureError as problem:
        raise CouldNotRun(str(problem)) from problem


@contextmanager
def administration(
    url: str | None, *, create: bool = False, token: str | None = None
) -> Iterator[Administration]:
    """The coordinator of the chosen store or server; errors of Tenure end the command likewise."""
    try:
        chosen = url or url_from_environment()
        with ExitStack() as stack:
            with _told_if_created(chosen, create):
                opened = open_administration(chosen, create=create, token=token)
                serving = stack.enter_context(opened)
            yield serving
    except TenureError as problem:
        raise CouldNotRun(str(problem)) from problem


@contextmanager
def _told_if_created(url: str, create: bool) -> Iterator[None]:
    """Say that a store was made: a mistyped path must not look like the store one knows."""
    is_made = create and is_new(url)
    yield
    if is_made:
        click.echo(f"tenure: created {printable(shown_url(url))}", err=True)


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return name if NAME_PATTERN.fullmatch(name) and len(name) <= MAX_NAME else "cli"


def client() -> Actor:
    """The principal a client command acts as: the user of this machine."""
    return client_actor(_user())


def operator() -> Actor:
    """The principal an operator command acts as: the user of this machine."""
    return operator_actor(_user())


def new_request_id(given: str | None) -> RequestId:
    """The id given, or one never used before."""
    return RequestId(given or f"cli:{os.urandom(12).hex()}")


def accepted(
    answer: Answer, job_id: JobId, *, hint: Callable[[Job], str | None] = lambda _: None
) -> Reply:
    """The reply, if the request was accepted; else the command ends with what stood against it,
    and with what the hint says of the job as it is."""
    assert isinstance(answer, Reply)
    if answer.cause is Cause.UNKNOWN_JOB:
        refuse(str(UnknownJob(job_id)))
    if answer.cause is Cause.DEDUPE_KEY_HELD:
        refuse(f"job {job_id}: {KEY_IS_HELD}")
    if answer.cause is not None:
        state = "" if answer.job is None else f"; it is {answer.job.status}, rev {answer.job.rev}"
        if answer.resolution is not None:
            state = f"; {resolved_how(resolution_record(answer.resolution))}"
        said = None if answer.job is None else hint(answer.job)
        refuse(f"job {job_id}: {answer.cause.value}{state}" + (f"; {said}" if said else ""))
    return answer


def resolved_how(resolution: ResolutionRecord) -> str:
    """What became of a dead letter, and the new job if there is one."""
    new = "" if resolution.new_job_id is None else f" as job {resolution.new_job_id}"
    when = resolution.ts.isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"it was {resolution.kind}{new} by {resolution.actor} at {when}"


def find_job(serving: Administration, job_id: str) -> Job:
    """The job, or the end of the command."""
    check_job_id("ID", job_id)
    job = serving.load_jobs([JobId(job_id)]).get(JobId(job_id))
    if job is None:
        refuse(str(UnknownJob(job_id)))
    return job


def refuse(message: str) -> NoReturn:
    """End with exit code 1."""
    raise Refusal(message)
