"""`tenure enqueue`: make a job, with the settings of its kind where the application is known.

A kind's queue, retries and time-out stand in the code that declares it, and a job takes them along
when it is made. Without that code only what the command line says is used, and so it is told.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Never

import click
import msgspec

from tenure.cli.application import load_app, token_for, url_for
from tenure.cli.common import (
    CouldNotRun,
    administration,
    app_url_option,
    client,
    duration_value,
    instant_value,
    json_option,
    refuse,
)
from tenure.cli.job_end import show_end, wait_for_end
from tenure.cli.output import print_json, printable
from tenure.cli.payloads import check_payload
from tenure.cli.refusals import refusal
from tenure.client.app import Application
from tenure.core.commands import Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE, JobId, Kind, Namespace, QueueName, new_job_id
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant
from tenure.core.job import Job
from tenure.core.verdicts import Reply
from tenure.errors import InvalidInput, TenureError
from tenure.handlers.options import as_option
from tenure.handlers.registry import DEFAULT_QUEUE
from tenure.ports import Administration
from tenure.protocol.records import JobRecord, job_record
from tenure.settings import project_settings
from tenure.telemetry.unclaimed import why_waiting


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; None is left to the kind's own settings, or the defaults."""

    kind: str
    payload: bytes
    namespace: str | None
    queue: str | None
    priority: int | None
    delay: Duration | None
    run_at: Instant | None
    key: str | None
    correlation_id: str | None
    job_id: str | None


@click.command()
@app_url_option
@json_option(JobRecord)
@click.option(
    "--app",
    metavar="MODULE:APP",
    help="Use the kind's own settings, and check the payload against its function; a kind that"
    " it does not have is refused."
    " [default: `app` of [tool.tenure] in pyproject.toml]",
)
@click.option("--namespace", help="[default: that of --app, then default]")
@click.option("--queue", "-q", help="[default: the kind's with --app, then default]")
@click.option("--key", help="Dedupe key: one live job per kind and key.")
@click.option("--delay", callback=duration_value, help="Not before this long from now, as in 5m.")
@click.option(
    "--run-at",
    metavar="TIME",
    callback=instant_value,
    help="Not before this time, with its zone, as in 2026-12-01T08:00+01:00 or 2026-12-01T07:00Z.",
)
@click.option("--priority", type=int, help="[default: the kind's with --app, then 0]")
@click.option("--correlation-id")
@click.option("--id", "job_id", help="The job's id (a UUID): sent twice, it is one job.")
@click.option("--wait", "waits", is_flag=True, help="Wait for the result and print it.")
@click.option("--timeout", callback=duration_value, help="With --wait: give up after this long.")
@click.argument("kind")
@click.argument("payload", default="null")
def enqueue(
    url: str | None,
    as_json: bool,
    app: str | None,
    waits: bool,
    timeout: Duration | None,
    payload: str,
    **said: Any,
) -> None:
    """Enqueue a job of KIND with a JSON PAYLOAD; prints its id.

    With --wait it prints the result instead, tells on stderr of attempts that fail meanwhile, and
    exits with 0 if the job succeeded, 1 otherwise.
    """
    asked = Asked(payload=payload.encode("utf-8", "surrogateescape"), **said)
    application = _application(app)
    if application is not None:  # checked before a store is opened, which may make one
        _check(asked, application, named=app)
    chosen = url if application is None else url_for(application, url, tell=_say)
    with administration(chosen, create=True, token=token_for(application, url)) as serving:
        with _naming_flags():
            command = _command(serving, asked, application)
            reply = serving.execute(command)
        assert isinstance(reply, Reply)
        refused = refusal(command, reply)
        if refused is not None:
            refuse(refused)
        assert reply.job is not None
        if reply.deduplicated:
            click.echo(f"tenure: key {printable(asked.key or '')} is held by this job", err=True)
        if not as_json and sys.stderr.isatty():
            _say_why_waiting(serving, reply.job)
        if waits:
            job = wait_for_end(serving, reply.job, timeout)
            show_end(serving, job, as_json=as_json)
        elif as_json:
            print_json(job_record(reply.job, now=serving.now(), bodies=False))
        else:
            click.echo(reply.job.id)


_FLAGS = {
    "queue": "--queue",
    "priority": "--priority",
    "key": "--key",
    "delay": "--delay",
    "run_at": "--run-at",
    "correlation_id": "--correlation-id",
    "job_id": "--id",
    "kind": "KIND",
    "namespace": "--namespace",
}


@contextmanager
def _naming_flags() -> Iterator[None]:
    """Errors name what was typed, or the option in the code that declares the kind."""
    try:
        yield
    except InvalidInput as wrong:
        named = as_option(wrong)
        flag = _FLAGS.get(named.field)
        if flag is None:
            raise named from wrong
        raise InvalidInput(flag, wrong.problem, hint=wrong.hint) from wrong


def _say_why_waiting(serving: Administration, job: Job) -> None:
    """To a person who may have mistyped a kind or a queue, or started no worker."""
    why = why_waiting(serving, job)
    if why is not None:
        _say(f"it waits: {why}")


def _application(named: str | None) -> Application | None:
    try:
        chosen = named or project_settings().app
    except TenureError as problem:
        raise CouldNotRun(str(problem)) from problem
    return None if chosen is None else load_app(chosen)


def _check(asked: Asked, app: Application, *, named: str | None) -> None:
    handler = app.registry.get(Kind(asked.kind))
    if handler is not None:
        check_payload(handler, asked.payload)
    elif named:
        _refuse_kind(asked.kind, named, app)


def _refuse_kind(kind: str, named: str, app: Application) -> Never:
    """Whoever names the application means one of its kinds: a job of another would wait for a
    worker that never comes."""
    kinds = app.registry.kinds()
    alike = get_close_matches(kind, kinds, n=1)
    guess = f"Did you mean {alike[0]}? " if alike else ""
    has = f"It has {', '.join(kinds)}" if kinds else "It has none"
    raise CouldNotRun(
        f"{named} has no kind {kind}. {guess}{has}; to enqueue a job that another application"
        " runs, leave --app away"
    )


def _command(serving: Administration, asked: Asked, app: Application | None) -> Enqueue:
    if app is not None and Kind(asked.kind) in app.registry.kinds():
        return _of_application(asked, app)
    if app is not None:
        _say(f"kind {asked.kind} is not one of the application's: its payload is not checked")
    elif sys.stderr.isatty():
        # Only to people: a script that says everything it means would only be disturbed.
        _say("only these options are used; --app MODULE:APP adds the kind's own settings")
    namespace = DEFAULT_NAMESPACE if app is None else app.namespace
    return Enqueue(
        job_id=JobId(asked.job_id) if asked.job_id else new_job_id(serving.now(), os.urandom(16)),
        namespace=Namespace(asked.namespace or namespace),
        queue=QueueName(asked.queue or DEFAULT_QUEUE),
        kind=Kind(asked.kind),
        actor=client(),
        payload=asked.payload,
        priority=asked.priority or 0,
        delay_us=asked.delay or Duration(0),
        run_at=asked.run_at,
        dedupe_key=asked.key,
        correlation_id=asked.correlation_id,
    )


def _of_application(asked: Asked, app: Application) -> Enqueue:
    """The command that the application itself would send."""
    options: dict[str, Any] = {
        "queue": asked.queue,
        "priority": asked.priority,
        "key": asked.key,
        "correlation_id": asked.correlation_id,
        "job_id": asked.job_id,
        "run_at": asked.run_at,
        "delay": None if asked.delay is None else asked.delay / MICROSECONDS_PER_SECOND,
    }
    given: Any = {name: value for name, value in options.items() if value is not None}
    payload = msgspec.json.decode(asked.payload)
    command = app.command(app.call(asked.kind, payload, **given))
    return msgspec.structs.replace(
        command, actor=client(), namespace=Namespace(asked.namespace or app.namespace)
    )


def _say(words: str) -> None:
    click.echo(f"tenure: {printable(words)}", err=True)
