"""What every command is made of: its store, its namespace and its user; the one list command; and
jobs and flows by the id that was typed.
"""

import getpass
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property, wraps
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import click
import msgspec
from click.core import ParameterSource

from tenure.cli.errors import DONE, refuse, reported_errors
from tenure.cli.options import Option, flag, json_option, namespace_option, together, url_option
from tenure.cli.output import (
    ago,
    clipped,
    print_json,
    print_table,
    printable,
    redraw,
    say,
    table_lines,
    terminal_columns,
)
from tenure.core.checks import MAX_NAME, NAME_PATTERN, check_name, quoted
from tenure.core.flow_rows import FlowSummary
from tenure.core.ids import (
    SHORTEST_PREFIX,
    Actor,
    FlowId,
    JobId,
    Namespace,
    client_actor,
    is_job_id_prefix,
    operator_actor,
    typed_prefix,
)
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.views.job_search import JobFilter
from tenure.deadlines import retrying_for
from tenure.errors import InvalidInput, TenureError, UnknownJob
from tenure.ports import Coordination, JobStore, Store
from tenure.settings import is_new, shown_url, url_from_environment
from tenure.wiring import open_coordination, open_coordinator

if TYPE_CHECKING:
    from tenure.client.app import Application

LONGEST_PREFIX = 36
MAX_CANDIDATES = 10

WATCH_EVERY_S = 1.0
PAUSE_PER_READ = 9
LONGEST_PAUSE_S = 30.0
"""After a slow read `--watch` waits nine times as long, so that it keeps a store busy for at most a
tenth of the time; never longer than this, or it would be far behind after an outage."""

RETRY_FOR_S = 5.0
"""A store that does not answer for this long is a line on the screen; the next read asks again."""

_T = TypeVar("_T")


class Invocation:
    """One use of a command. The store is opened when it is first needed, so that wrong options are
    refused before, and it is closed when the command ends."""

    def __init__(
        self, stack: ExitStack, *, url: str | None, as_json: bool, namespace: str | None
    ) -> None:
        self.url = url
        self.as_json = as_json
        self._stack = stack
        self._namespace = namespace

    @cached_property
    def serving(self) -> Coordination:
        """The coordinator of the chosen store or server."""
        return self.open(self.url)

    @cached_property
    def own_store(self) -> Store:
        """The chosen store itself, for what no server does."""
        return self.open_store()

    @property
    def store(self) -> JobStore:
        """What can be read of the chosen store or server."""
        return self.serving.store

    def open(
        self, url: str | None, *, create: bool = False, token: str | None = None
    ) -> Coordination:
        """Open a store or server; from now on it is the one of this command."""
        self.serving = self._opened(
            url, create, lambda chosen: open_coordination(chosen, create=create, token=token)
        )
        return self.serving

    def open_store(self, *, create: bool = False, accept_restored: bool = False) -> Store:
        """Open the chosen store, not through a server."""
        return self._opened(
            self.url,
            create,
            lambda chosen: open_coordinator(chosen, create=create, accept_restored=accept_restored),
        ).store

    def _opened(
        self, url: str | None, create: bool, opening: Callable[[str], AbstractContextManager[_T]]
    ) -> _T:
        chosen = url or url_from_environment()
        is_made = create and is_new(chosen)
        opened = self._stack.enter_context(opening(chosen))
        if is_made:  # reported, because a mistyped path would look like an empty store
            say(f"created {shown_url(chosen)}")
        return opened

    @cached_property
    def namespace(self) -> Namespace:
        """The namespace that was given, which is a legal name."""
        check_name("namespace", self._namespace)
        return Namespace(cast(str, self._namespace))

    @property
    def now(self) -> Instant:
        """The time by the store's clock."""
        return self.store.now()

    @cached_property
    def api(self) -> "Application":
        """The Python client of the chosen store or server, for what commands and Python both do."""
        from tenure.client.app import Application  # here: lists need neither this nor asyncio
        from tenure.client.channel import Link

        link = Link(coordination=self.serving, close=lambda: None, retry_for_s=0)
        return Application(lambda: link, namespace=self.namespace, name=_user())

    @property
    def client(self) -> Actor:
        """The principal of a client command: the user of this machine."""
        return client_actor(_user())

    @property
    def operator(self) -> Actor:
        """The principal of an operator command: the user of this machine."""
        return operator_actor(_user())


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return name if NAME_PATTERN.fullmatch(name) and len(name) <= MAX_NAME else "cli"


def command(
    group: click.Group | None,
    name: str,
    *,
    json: Any = None,
    followed: Any = None,
    url: Option = url_option,
    namespace: Option | None = namespace_option,
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function, whose first parameter is the `Invocation`: with `--url`, with
    `--json` if it prints documents of the type `json`, and with `--namespace`, unless that is None.
    """
    options = [url]
    options += [] if json is None else [json_option(json, followed_shape=followed)]
    options += [] if namespace is None else [namespace]
    add = click.command(name) if group is None else group.command(name)

    def decorate(function: Callable[..., None]) -> click.Command:
        @wraps(function)
        def run(*, url: str | None, as_json: bool = False, **others: Any) -> None:
            given = None if namespace is None else others.pop("namespace")
            with reported_errors(), ExitStack() as stack:
                function(Invocation(stack, url=url, as_json=as_json, namespace=given), **others)

        made: click.Command = add(together(*options)(run))
        return made

    return decorate


# --- Lists ---------------------------------------------------------------------------------------


class Listing(msgspec.Struct, Generic[_T]):
    """What a list command has read: rows, how each is shown in columns and as a document, and
    notes below. On a terminal a row is one line: `optional` columns are left out, the last one
    first, until the rest can fit; then the widest cells are cut, those of `whole` columns last."""

    rows: Sequence[_T]
    columns: Mapping[str, Callable[[_T], object]]
    document: Callable[[_T], object]
    optional: Sequence[str] = ()
    whole: Sequence[str] = ()
    notes: Sequence[str] = ()

    def print(self, *, as_json: bool) -> None:
        """The documents on stdout, or the table; then the notes on stderr."""
        if as_json:
            print_json([self.document(row) for row in self.rows])
        else:
            print_table(
                tuple(self.columns), self._cells(), optional=self.optional, whole=self.whole
            )
        for note in self.notes:
            say(note)

    def screen(self, columns: int, rows: int, problem: str | None = None) -> list[str]:
        """The same as lines for a terminal of this size, below what went wrong at the last read."""
        head, *lines = table_lines(
            tuple(self.columns), self._cells(), columns, optional=self.optional, whole=self.whole
        )
        above = [] if problem is None else [click.style(f"! {printable(problem)}", fg="red")]
        below = [printable(note) for note in self.notes]
        room = max(0, rows - len(above) - len(below) - 1)
        if len(lines) > room:
            below = [f"{len(lines) - max(0, room - 1):,} more", *below]
            lines = lines[: max(0, room - 1)]
        every = [*above, click.style(head, bold=True), *lines, *below]
        return [clipped(line, columns) for line in every[:rows]]

    def _cells(self) -> list[tuple[object, ...]]:
        return [tuple(cell(row) for cell in self.columns.values()) for row in self.rows]


def list_command(
    group: click.Group,
    *,
    json: Any,
    url: Option = url_option,
    namespace: Option | None = namespace_option,
) -> Callable[[Callable[..., Listing[Any]]], click.Command]:
    """`ls` of a group: the function reads and returns a `Listing`, which is printed once, or again
    and again with `--watch`."""

    def decorate(function: Callable[..., Listing[Any]]) -> click.Command:
        @command(group, "ls", json=json, url=url, namespace=namespace)
        @flag("--watch", help="Show it again every second, until Ctrl-C.")
        @wraps(function)
        def run(cli: Invocation, *, watch: bool, **others: Any) -> None:
            if watch and (cli.as_json or terminal_columns() is None):
                raise click.UsageError("--watch needs a terminal, and does not go with --json.")
            if watch:
                watch_list(lambda: function(cli, **others))
            else:
                function(cli, **others).print(as_json=cli.as_json)

        return run

    return decorate


def watch_list(read: Callable[[], Listing[Any]]) -> None:
    """Draw a list until Ctrl-C, which ends the command with exit code 0. While the store cannot be
    read, show what was read last, and why. It sets no mode of the terminal, so none has to be
    restored. [LV11]"""
    quoted, problem, took_s = read(), None, 0.0
    click.clear()
    try:
        while True:
            columns, rows = get_terminal_size()
            redraw(quoted.screen(columns, rows - 1, problem))
            time.sleep(max(WATCH_EVERY_S, min(PAUSE_PER_READ * took_s, LONGEST_PAUSE_S)))
            began_s = time.monotonic()
            try:
                with retrying_for(RETRY_FOR_S):
                    quoted, problem = read(), None
            except TenureError as failure:
                problem = str(failure)
            took_s = time.monotonic() - began_s
    except KeyboardInterrupt:
        click.echo(err=True)  # the terminal shows ^C in a line of its own
        sys.exit(DONE)


# --- Jobs and flows by id ------------------------------------------------------------------------


def typed_id(field: str, text: str, *, of: Literal["job", "flow"]) -> str:
    """What the user typed as an id, whole or shortened, in lower case; `InvalidInput` if no id can
    begin with it, or if it is too short to look for."""
    typed = typed_prefix(text)
    if not is_job_id_prefix(typed):
        hint = f"give an id as `tenure {of}s ls` shows it, or its first {SHORTEST_PREFIX} or more"
        raise InvalidInput(field, f"{quoted(text)} is not a {of} id", hint=f"{hint} characters")
    if len(typed) < SHORTEST_PREFIX:
        hint = f"ids begin with the time: give at least {SHORTEST_PREFIX} characters"
        raise InvalidInput(field, f"{text!a} is too short", hint=hint)
    return typed


def find_job_id(cli: Invocation, text: str, *, is_before: bool = False) -> JobId:
    """The id that was typed, whole or shortened; ends the command unless it means one job.

    A whole id is looked up only if the user named a namespace too; that of `--before` never, since
    the last job of a page may have been deleted by now. A shortened one is looked up in one
    namespace, by a key range.
    """
    typed = typed_id("--before" if is_before else "ID", text, of="job")
    is_whole = len(typed) >= LONGEST_PREFIX
    if is_whole and (is_before or not _is_namespace_given()):
        return JobId(typed)
    wanted = JobFilter(
        namespace=cli.namespace, id_prefix=typed, limit=MAX_CANDIDATES + 1, bodies=False
    )
    found = cli.serving.list_jobs(wanted).jobs
    if not found and is_whole:
        refuse(f"there is no job {typed} in namespace {cli.namespace}")

    def described(job: Job) -> str:
        return f"{job.id}  {job.kind}, {job.status}, enqueued {ago(job.enqueued_at, cli.now)}"

    return _only_one(cli, "job", typed, found, described).id


def find_job_ids(cli: Invocation, texts: Sequence[str]) -> list[JobId]:
    """The ids that were typed, each once; see `find_job_id`."""
    return list(dict.fromkeys(find_job_id(cli, text) for text in texts))


def find_job(cli: Invocation, text: str) -> Job:
    """The job of this id, whole or shortened; ends the command if there is none."""
    return load_job(cli.serving, find_job_id(cli, text))


def load_job(serving: Coordination, job_id: JobId) -> Job:
    """The job of this id; ends the command if there is none."""
    job = serving.read_jobs([job_id]).get(job_id)
    if job is None:
        refuse(str(UnknownJob(job_id)))
    return job


def find_flow_id(cli: Invocation, text: str) -> FlowId:
    """The id that was typed, whole or shortened; ends the command unless it means one flow. A
    shortened one is looked up by a key range."""
    typed = typed_id("FLOW_ID", text, of="flow")
    if len(typed) >= LONGEST_PREFIX:
        return FlowId(typed)
    found = cli.store.flows.page(
        cli.namespace, before=None, id_prefix=typed, limit=MAX_CANDIDATES + 1
    )

    def described(each: FlowSummary) -> str:
        return f"{each.flow.id}  {each.flow.name}, made {ago(each.flow.made_at, cli.now)}"

    return _only_one(cli, "flow", typed, found, described).flow.id


def _is_namespace_given() -> bool:
    """Whether the user named a namespace: without that, a whole id may be of any."""
    source = click.get_current_context().get_parameter_source("namespace")
    return source is not ParameterSource.DEFAULT


def _only_one(
    cli: Invocation, noun: str, typed: str, found: Sequence[_T], described: Callable[[_T], str]
) -> _T:
    """The one thing that was found; ends the command if there is none, or more than one."""
    if not found:
        refuse(f"no {noun} in namespace {cli.namespace} has an id that begins with {typed}")
    if len(found) > 1:
        many = f"more than {MAX_CANDIDATES}" if len(found) > MAX_CANDIDATES else str(len(found))
        lines = [f"  {described(each)}" for each in found[:MAX_CANDIDATES]]
        refuse(f"{many} {noun}s have an id that begins with {typed}; give more of it:", lines)
    return found[0]
