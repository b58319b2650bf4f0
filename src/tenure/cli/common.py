"""What the commands share: options, the store, the user who acts, errors, jobs by id.

Exit codes: 0 done, 1 refused or not successful, 2 could not run (usage, store, schema), 130 Ctrl-C
while jobs were changed or watched, 141 nobody reads the output of a command that waits for jobs.
"""

import getpass
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, Literal, NoReturn, TypeVar, cast

import click
import msgspec
from click.core import ParameterSource

from tenure.cli.output import ago, printable, say
from tenure.coordinator.service import Coordinator
from tenure.core.checks import MAX_NAME, NAME_PATTERN, shown
from tenure.core.ids import (
    SHORTEST_PREFIX,
    Actor,
    FlowId,
    JobId,
    Namespace,
    RequestId,
    client_actor,
    is_job_id_prefix,
    operator_actor,
    typed_prefix,
)
from tenure.core.instants import Duration, Instant, parse_duration
from tenure.core.job import Job
from tenure.core.job_search import JobFilter
from tenure.errors import InvalidInput, RequestRefused, TenureError, UnknownJob
from tenure.ports import Coordination
from tenure.protocol.problem_codes import ProblemCode
from tenure.settings import is_new, parse_size, shown_url, url_from_environment
from tenure.wiring import open_coordination, open_coordinator

DONE, REFUSED, COULD_NOT_RUN = 0, 1, 2
INTERRUPTED = 128 + signal.SIGINT
OUTPUT_CLOSED = 128 + signal.SIGPIPE

LONGEST_PREFIX = 36
MAX_CANDIDATES = 10

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_F = TypeVar("_F", bound=Callable[..., Any])


def url_option(function: _F) -> _F:
    """`--url`."""
    return click.option(
        "--url",
        help="URL of the store or server. [default: $TENURE_URL, then `url` of [tool.tenure] in"
        " pyproject.toml, then sqlite:///tenure.db]",
    )(function)


def store_url_option(function: _F) -> _F:
    """`--url` of a command that opens the store itself and cannot work through a server."""
    return click.option(
        "--url",
        help="URL of the store, not of a server. [default: $TENURE_URL, then `url` of [tool.tenure]"
        " in pyproject.toml, then sqlite:///tenure.db]",
    )(function)


def app_url_option(function: _F) -> _F:
    """`--url` of a command that has an application."""
    return click.option(
        "--url",
        help="URL of the store or server. [default: the application's, then $TENURE_URL, then `url`"
        " of [tool.tenure] in pyproject.toml, then sqlite:///tenure.db]",
    )(function)


class JsonOption(click.Option):
    """`--json`, which knows the type of the document that it prints: the reference page shows it,
    and a test compares the output with it."""

    def __init__(self, *words: Any, shape: Any, followed_shape: Any = None, **more: Any) -> None:
        super().__init__(*words, **more)
        self.shape = shape
        self.followed_shape = followed_shape


def json_option(shape: Any, *, followed_shape: Any = None) -> Callable[[_F], _F]:
    """`--json`, printing a document of this type; with `--follow`, one of `followed_shape` on each
    line."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        cls=JsonOption,
        shape=shape,
        followed_shape=followed_shape,
        help="Print JSON, for programs.",
    )


def namespace_option(function: _F) -> _F:
    """`--namespace`."""
    return click.option("--namespace", default="default", show_default=True, help="The namespace.")(
        function
    )


def log_format_option(function: _F) -> _F:
    """`--log-format`."""
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Log lines for people, or JSON objects for programs.",
    )(function)


def keep_options(function: _F) -> _F:
    """`--keep-finished`, `--keep-refused` and `--keep-renewals`, which a command passes to
    `retention_of`."""
    # In reverse: the option that is added last is listed first.
    for name, help_text, default in (
        (
            "renewals",
            "Keep the renewals of the leases of ended attempts in the histories of jobs for this"
            " long.",
            "0s",
        ),
        ("refused", "Keep the bodies of results that were refused for this long.", "7d"),
        (
            "finished",
            "Delete finished jobs and their histories after this long, at least 1d. If the"
            " processes of a store differ, the shortest time applies.",
            "30d",
        ),
    ):
        function = click.option(
            f"--keep-{name}",
            metavar="DURATION",
            help=f"{help_text} [default: `keep_{name}` of [tool.tenure] in pyproject.toml, then"
            f" {default}]",
        )(function)
    return function


def request_id_option(function: _F) -> _F:
    """`--request-id`."""
    return click.option(
        "--request-id",
        help="An id for this request: if you repeat the command with the same id, it is done only"
        " once. [default: a new id]",
    )(function)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Under which id a command asks, and for which revision of its job."""

    given_id: str | None
    expected_rev: int | None

    def fields(self, default_id: RequestId | None = None) -> dict[str, Any]:
        """The fields of the requests; all of one command have one id."""
        asked_as = default_id if self.given_id is None else None
        return {
            "request_id": asked_as or new_request_id(self.given_id),
            "expected_rev": self.expected_rev,
        }


def request_options(function: _F) -> _F:
    """`--request-id` and `--expected-rev`, together the parameter `request`, of a command about
    `job_ids`."""

    @wraps(function)
    def checked(*, request_id: str | None, expected_rev: int | None, **others: Any) -> Any:
        if expected_rev is not None and len(others["job_ids"]) != 1:
            raise click.UsageError("--expected-rev goes with exactly one ID.")
        return function(request=Request(given_id=request_id, expected_rev=expected_rev), **others)

    with_rev = click.option(
        "--expected-rev",
        type=click.IntRange(1),
        help="Refuse if the job has changed: its rev, as `tenure jobs show --json` printed it, must"
        " still be this one; for one ID.",
    )(checked)
    return cast(_F, request_id_option(with_rev))


def duration_value(_: click.Context, __: click.Parameter, text: str | None) -> Duration | None:
    """A `--delay`, `--timeout` … of the command line."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong)) from wrong


def instant_value(_: click.Context, __: click.Parameter, text: str | None) -> Instant | None:
    """A time of the command line, in ISO 8601 with a zone."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError as wrong:
        raise click.BadParameter(
            f"{text[:40]!a} is not a time; write 2026-12-01T08:00+01:00"
        ) from wrong
    if time.tzinfo is None:
        raise click.BadParameter(
            f"{text[:40]!a} has no time zone; add Z for UTC, or an offset such as +01:00"
        )
    return Instant((time - _EPOCH) // timedelta(microseconds=1))


class When(msgspec.Struct, frozen=True):
    """A time of the command line: an instant, or how long ago."""

    at: Instant | None = None
    ago_us: Duration = Duration(0)

    def instant(self, now: Instant) -> Instant:
        """The time that is meant, if it is `now`."""
        return Instant(now - self.ago_us) if self.at is None else self.at


def when_value(ctx: click.Context, parameter: click.Parameter, text: str | None) -> When | None:
    """A `--since` or `--until` of the command line."""
    if text is None:
        return None
    try:
        return When(ago_us=parse_duration(text))
    except ValueError:
        pass
    try:
        return When(at=instant_value(ctx, parameter, text))
    except click.BadParameter as wrong:
        raise click.BadParameter(f"{wrong.message}, or how long ago, as in 24h") from wrong


def size_value(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """A size in bytes, as in `512M` or `2GiB`: units are powers of 1024."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong)) from wrong


class Refusal(click.ClickException):
    """The request was understood and refused: exit code 1."""

    exit_code = REFUSED

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self._details = details

    def show(self, file: Any = None) -> None:
        """`tenure: what happened; what to do` on stderr, and the details below it."""
        say(self.message)
        for line in self._details:
            click.echo(printable(line), err=True)


class CouldNotRun(Refusal):
    """The command could not do its work: exit code 2."""

    exit_code = COULD_NOT_RUN


class Interrupted(Refusal):
    """The user pressed Ctrl-C: exit code 130, as shells report it."""

    exit_code = INTERRUPTED


@contextmanager
def reported_errors() -> Iterator[None]:
    """Errors of Tenure end the command in one line, with exit code 2."""
    try:
        yield
    except TenureError as problem:
        raise CouldNotRun(str(problem)) from problem


@contextmanager
def coordinator(
    url: str | None, *, create: bool = False, accept_restored: bool = False
) -> Iterator[Coordinator]:
    """A coordinator over the chosen store."""
    with reported_errors(), ExitStack() as stack:
        chosen = url or url_from_environment()
        with _told_if_created(chosen, create):
            opened = open_coordinator(chosen, create=create, accept_restored=accept_restored)
            serving = stack.enter_context(opened)
        yield serving


@contextmanager
def coordination(
    url: str | None, *, create: bool = False, token: str | None = None
) -> Iterator[Coordination]:
    """The coordinator of the chosen store or server."""
    with reported_errors(), _refused_tokens(), ExitStack() as stack:
        chosen = url or url_from_environment()
        with _told_if_created(chosen, create):
            opened = open_coordination(chosen, create=create, token=token)
            serving = stack.enter_context(opened)
        yield serving


@contextmanager
def _refused_tokens() -> Iterator[None]:
    """What the token does not allow is refused, like what a job's status does not: exit code 1."""
    try:
        yield
    except RequestRefused as refused:
        if refused.reason != ProblemCode.OUT_OF_SCOPE:
            raise
        raise Refusal(str(refused)) from refused


@contextmanager
def _told_if_created(url: str, create: bool) -> Iterator[None]:
    """Say that a store was created: otherwise a mistyped path would look like an empty store."""
    is_made = create and is_new(url)
    yield
    if is_made:
        say(f"created {shown_url(url)}")


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


def refuse(message: str, details: Sequence[str] = ()) -> NoReturn:
    """End with exit code 1."""
    raise Refusal(message, details)


# --- Jobs by id ----------------------------------------------------------------------------------


def job_argument(function: _F) -> _F:
    """`ID`, and `--namespace`."""
    function = click.argument("job_id", metavar="ID")(function)
    return click.option(
        "--namespace",
        default="default",
        show_default=True,
        help="The namespace of the job. A whole ID needs none; if you give both, the job must be in"
        " this namespace.",
    )(function)


def typed_id(field: str, text: str, *, of: Literal["job", "flow"]) -> str:
    """What the user typed as an id, whole or shortened, in lower case; `InvalidInput` if no id can
    begin with it, or if it is too short to look for."""
    typed = typed_prefix(text)
    if not is_job_id_prefix(typed):
        hint = f"give an id as `tenure {of}s ls` shows it, or its first {SHORTEST_PREFIX} or more"
        raise InvalidInput(field, f"{shown(text)} is not a {of} id", hint=f"{hint} characters")
    if len(typed) < SHORTEST_PREFIX:
        hint = f"ids begin with the time: give at least {SHORTEST_PREFIX} characters"
        raise InvalidInput(field, f"{text!a} is too short", hint=hint)
    return typed


def find_job_id(
    serving: Coordination, text: str, namespace: str, *, is_before: bool = False
) -> JobId:
    """The id that was typed, whole or shortened; ends the command unless it means one job.

    A whole id is looked up only if the user named a namespace too; that of `--before` never, since
    the last job of a page may have been deleted by now. A shortened one is looked up in one
    namespace, by a key range.
    """
    field = "--before" if is_before else "ID"
    typed = typed_id(field, text, of="job")
    is_whole = len(typed) >= LONGEST_PREFIX
    if is_whole and (is_before or not _is_namespace_given()):
        return JobId(typed)
    found = serving.store.views.jobs(
        JobFilter(
            namespace=Namespace(namespace), id_prefix=typed, limit=MAX_CANDIDATES + 1, bodies=False
        )
    ).jobs
    if not found and is_whole:
        refuse(f"there is no job {typed} in namespace {namespace}")
    if not found:
        refuse(f"no job in namespace {namespace} has an id that begins with {typed}")
    if len(found) > 1:
        now = serving.store.now()
        lines = [
            f"  {job.id}  {job.kind}, {job.status}, enqueued {ago(job.enqueued_at, now)}"
            for job in found
        ]
        _refuse_ambiguous("jobs", typed, lines)
    return found[0].id


def find_job_ids(serving: Coordination, texts: Sequence[str], namespace: str) -> list[JobId]:
    """The ids that were typed, each once; see `find_job_id`."""
    return list(dict.fromkeys(find_job_id(serving, text, namespace) for text in texts))


def _is_namespace_given() -> bool:
    """Whether the user named a namespace: without that, a whole id may be of any."""
    source = click.get_current_context().get_parameter_source("namespace")
    return source is not ParameterSource.DEFAULT


def _refuse_ambiguous(what: str, typed: str, lines: Sequence[str]) -> NoReturn:
    many = f"more than {MAX_CANDIDATES}" if len(lines) > MAX_CANDIDATES else str(len(lines))
    shown_lines = lines[:MAX_CANDIDATES]
    refuse(f"{many} {what} have an id that begins with {typed}; give more of it:", shown_lines)


def find_job(serving: Coordination, text: str, namespace: str = "default") -> Job:
    """The job of this id, whole or shortened; ends the command if there is none."""
    job_id = find_job_id(serving, text, namespace)
    job = serving.store.jobs.read([job_id]).get(job_id)
    if job is None:
        refuse(str(UnknownJob(job_id)))
    return job


# --- Flows by id ---------------------------------------------------------------------------------


def find_flow_id(serving: Coordination, text: str, namespace: str) -> FlowId:
    """The id that was typed, whole or shortened; ends the command unless it means one flow. A
    shortened one is looked up by a key range."""
    typed = typed_id("FLOW_ID", text, of="flow")
    if len(typed) >= LONGEST_PREFIX:
        return FlowId(typed)
    listed = serving.store.flows.page(
        Namespace(namespace), before=None, id_prefix=typed, limit=MAX_CANDIDATES + 1
    )
    found = [each.flow for each in listed]
    if not found:
        refuse(f"no flow in namespace {namespace} has an id that begins with {typed}")
    if len(found) > 1:
        now = serving.store.now()
        lines = [f"  {flow.id}  {flow.name}, made {ago(flow.made_at, now)}" for flow in found]
        _refuse_ambiguous("flows", typed, lines)
    return found[0].id
