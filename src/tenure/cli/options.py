"""The options that several commands have, and how their values are read."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import wraps
from typing import Any

import click
import msgspec

from tenure.cli.errors import reported_errors
from tenure.core.checks import meta_entry
from tenure.core.instants import Duration, Instant, parse_duration
from tenure.core.validation import Limits, check_body
from tenure.settings import parse_size, project_settings

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Option = Callable[[Any], Any]
"""A decorator that adds options, or an argument, to a command."""


def together(*options: Option) -> Option:
    """Several options as one decorator; `--help` lists them in this order."""

    def decorate(function: Any) -> Any:
        for each in reversed(options):
            function = each(function)
        return function

    return decorate


def flag(*words: str, help: str) -> Option:
    """An option without a value."""
    return click.option(*words, is_flag=True, help=help)


def whole_number(
    *words: str, least: int, most: int | None = None, help: str, **more: Any
) -> Option:
    """An option that is a whole number."""
    return click.option(
        *words, type=click.IntRange(least, most), show_default=True, help=help, **more
    )


def choice(*words: str, words_of: type[StrEnum], help: str, **more: Any) -> Option:
    """An option that is a word of an enumeration."""

    def value(_: click.Context, __: click.Parameter, word: str | None) -> StrEnum | None:
        return None if word is None else words_of(word)

    known = click.Choice([word.value for word in words_of])
    return click.option(*words, type=known, callback=value, show_default=True, help=help, **more)


# --- Values --------------------------------------------------------------------------------------


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


def meta_value(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str] | None:
    """The entries of every `--meta` of the command line."""
    with reported_errors():
        return dict(meta_entry("--meta", text) for text in texts) or None


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


def payload_value(_: click.Context, __: click.Parameter, text: str) -> msgspec.Raw:
    """The arguments of a job: the JSON that was typed, which nothing re-encodes. [J1]"""
    body = text.encode("utf-8", "surrogateescape")
    with reported_errors():
        check_body("payload", body, Limits())
    return msgspec.Raw(body)


def size_value(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """A size in bytes, as in `512M` or `2GiB`: units are powers of 1024."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong)) from wrong


def app_value(_: click.Context, __: click.Parameter, given: str | None) -> str:
    """MODULE:APP of the command line, else of pyproject.toml."""
    with reported_errors():
        chosen = given or project_settings().app
    if chosen is None:
        raise click.UsageError(
            "Missing argument 'MODULE:APP'. Name the Tenure object of your application, as in"
            " myapp.jobs:app, or set `app` in [tool.tenure] of pyproject.toml."
        )
    return chosen


# --- Which store, and how to print ---------------------------------------------------------------

_THEN = "then $TENURE_URL, then `url` of [tool.tenure] in pyproject.toml, then sqlite:///tenure.db]"
_DEFAULT_URL = f"[default: {_THEN.removeprefix('then ')}"

url_option = click.option("--url", help=f"URL of the store or server. {_DEFAULT_URL}")
store_url_option = click.option("--url", help=f"URL of the store, not of a server. {_DEFAULT_URL}")
app_url_option = click.option(
    "--url", help=f"URL of the store or server. [default: the application's, {_THEN}"
)
namespace_option = click.option(
    "--namespace", default="default", show_default=True, help="The namespace."
)
job_namespace_option = click.option(
    "--namespace",
    default="default",
    show_default=True,
    help="The namespace of the job. A whole ID needs none; if you give both, the job must be in"
    " this namespace.",
)


class JsonOption(click.Option):
    """`--json`, which knows the type of the document that it prints: the reference page shows it,
    and a test compares the output with it."""

    def __init__(self, *words: Any, shape: Any, followed_shape: Any = None, **more: Any) -> None:
        super().__init__(*words, **more)
        self.shape = shape
        self.followed_shape = followed_shape


def json_option(shape: Any, *, followed_shape: Any = None) -> Option:
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


# --- Which jobs ----------------------------------------------------------------------------------

queue_option = click.option("--queue", "-q", help="Only jobs of this queue.")
kind_option = click.option("--kind", "-k", help="Only jobs of this kind.")
before_option = click.option(
    "--before",
    metavar="ID",
    help="Only jobs older than this one. For the next page, give the last ID of this page.",
)
timeout_option = click.option(
    "--timeout", callback=duration_value, help="Give up after this long, as in 10m."
)


def limit_option(most: int, default: int | None = 50) -> Option:
    """`--limit` of a list."""
    return click.option(
        "--limit",
        "-n",
        type=click.IntRange(1, most),
        default=default,
        show_default=True,
        help="At most this many lines.",
    )


def when_option(name: str, meaning: str, *, field: str | None = None, **more: Any) -> Option:
    """A `--since` or `--until`; `field` is the name of its parameter."""
    words = [name] if field is None else [name, field]
    return click.option(*words, metavar="WHEN", callback=when_value, help=meaning, **more)


# --- Changes -------------------------------------------------------------------------------------

request_id_option = click.option(
    "--request-id",
    help="An id for this request: if you repeat the command with the same id, it is done only once."
    " [default: a new id]",
)


expected_rev_option = click.option(
    "--expected-rev",
    type=click.IntRange(1),
    help="Refuse if the job has changed: its rev, as `tenure jobs show --json` printed it, must"
    " still be this one; for one ID.",
)


# --- Processes -----------------------------------------------------------------------------------

app_argument = click.argument("app", metavar="[MODULE:APP]", required=False, callback=app_value)
log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Log lines for people, or JSON objects for programs.",
)


def _keep_option(name: str, meaning: str, default: str) -> Option:
    return click.option(
        f"--keep-{name}",
        metavar="DURATION",
        help=f"{meaning} [default: `keep_{name}` of [tool.tenure] in pyproject.toml, then"
        f" {default}]",
    )


_keeping = together(
    _keep_option(
        "finished",
        "Delete finished jobs and their histories after this long, at least 1d. If the processes"
        " of a store differ, the shortest time applies.",
        "30d",
    ),
    _keep_option("refused", "Keep the bodies of results that were refused for this long.", "7d"),
    _keep_option(
        "renewals",
        "Keep the renewals of the leases of ended attempts in the histories of jobs for this long.",
        "0s",
    ),
)


def keep_options(function: Callable[..., None]) -> Any:
    """`--keep-finished`, `--keep-refused` and `--keep-renewals`, together the parameter `keep`,
    which a command passes to `retention_of`."""

    @wraps(function)
    def run(*words: Any, **others: Any) -> None:
        keep = {name: others.pop(name) for name in list(others) if name.startswith("keep_")}
        function(*words, keep=keep, **others)

    return _keeping(run)


def port_option(*, default: int | None, help: str, name: str = "--port") -> Option:
    """The number of a port to listen on."""
    return whole_number(name, least=0, most=65535, default=default, help=help)
