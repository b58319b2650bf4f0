"""`tenure enqueue`: make a job, with the settings of its kind.

Its policy is the one that workers declared for the kind. [F9] The queue, the priority and the keys
of a kind are known only to the code that declares it: without --app the command uses its own
options, and says so.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Never

import click
import msgspec

from tenure.cli.common import (
    CouldNotRun,
    app_url_option,
    client,
    coordination,
    duration_value,
    instant_value,
    json_option,
    refuse,
    reported_errors,
)
from tenure.cli.job_end import show_end, wait_for_end
from tenure.cli.output import print_json, say
from tenure.cli.refusals import refusal
from tenure.core.commands import Enqueue
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    DEFAULT_QUEUE,
    JobId,
    Kind,
    Namespace,
    QueueName,
    new_job_id,
)
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant
from tenure.core.job import Job
from tenure.core.policy import policy_in_words
from tenure.core.verdicts import Reply
from tenure.errors import InvalidInput
from tenure.ports import Coordination
from tenure.protocol.records import JobRecord, job_record
from tenure.settings import project_settings
from tenure.telemetry.unclaimed import why_waiting

if TYPE_CHECKING:
    from tenure.client.app import Application


class EnqueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line; None means the kind's own setting, or the default."""

    kind: str
    payload: bytes
    namespace: str | None
    queue: str | None
    priority: int | None
    delay: Duration | None
    run_at: Instant | None
    expires: Duration | None
    key: str | None
    unique_for: Duration | None
    concurrency_key: str | None
    concurrency_group: str | None
    rate_key: str | None
    correlation_id: str | None
    job_id: str | None


@click.command()
@app_url_option
@json_option(JobRecord)
@click.option(
    "--app",
    metavar="MODULE:APP",
    help="The application that declares KIND: use the kind's settings, and check the payload"
    " against its function."
    " [default: `app` of [tool.tenure] in pyproject.toml]",
)
@click.option("--namespace", help="The namespace. [default: the one of --app, then default]")
@click.option("--queue", "-q", help="The queue. [default: the kind's with --app, then default]")
@click.option(
    "--key",
    help="Dedupe key: while a job of this kind and key has not finished, no second one is made.",
)
@click.option(
    "--unique-for",
    callback=duration_value,
    help="With --key: the key stays taken for this long after the job has ended, as in 1h.",
)
@click.option(
    "--concurrency-key",
    help="While a job of this kind and key runs, others wait. [default: the kind's with --app]",
)
@click.option(
    "--concurrency-group",
    help="With --concurrency-key: also wait for jobs of other kinds of this group.",
)
@click.option(
    "--rate-key",
    help="The kind's rate counts for jobs of this key alone. [default: the kind's with --app]",
)
@click.option(
    "--delay", callback=duration_value, help="Run it after this long at the earliest, as in 5m."
)
@click.option(
    "--run-at",
    metavar="TIME",
    callback=instant_value,
    help="Run it at this time at the earliest. Give the zone too, as in 2026-12-01T08:00+01:00 or"
    " 2026-12-01T07:00Z.",
)
@click.option(
    "--expires",
    callback=duration_value,
    help="Cancel it if it was not started after this long, as in 10m. [default: the kind's with"
    " --app, then never]",
)
@click.option(
    "--priority",
    type=int,
    help="Jobs with a higher number run first. [default: the kind's with --app, then 0]",
)
@click.option("--correlation-id", help="An id of yours, by which related jobs can be listed.")
@click.option(
    "--id",
    "job_id",
    help="The job's id, a UUID. If you repeat the command with it, there is still one job.",
)
@click.option("--wait", "waits", is_flag=True, help="Wait for the result and print it.")
@click.option(
    "--timeout", callback=duration_value, help="With --wait: give up after this long, as in 10m."
)
@click.argument("kind")
@click.argument("payload", default="null")
def enqueue(
    url: str | None,
    as_json: bool,
    app: str | None,
    waits: bool,
    timeout: Duration | None,
    payload: str,
    **given: Any,
) -> None:
    """Enqueue a job of KIND with a JSON PAYLOAD; prints its id.

    With --wait it prints the result instead; stderr has the id, how far the job is and failed
    attempts. It exits with 0 if the job succeeded, with 1 otherwise, and with 130 after Ctrl-C,
    which ends the wait and not the job.

    \b
    Examples:
      tenure enqueue mail '{"to": "ada"}'
      tenure enqueue mail '{"to": "ada"}' --app shop.jobs:app --wait
      tenure enqueue report --run-at 2026-12-01T08:00+01:00
    """
    options = EnqueueOptions(payload=payload.encode("utf-8", "surrogateescape"), **given)
    application = _application(app)
    if application is not None:  # checked before a store is opened, which may make one
        _check(options, application, named=app)
    chosen, token = _where(application, url)
    with coordination(chosen, create=True, token=token) as serving:
        with _naming_flags():
            command = _command(serving, options, application)
            reply = serving.execute(command)
        assert isinstance(reply, Reply)
        refused = refusal(command, reply)
        if refused is not None:
            refuse(refused)
        assert reply.job is not None
        if reply.undeclared:
            say(
                f"no worker has declared kind {options.kind}: the job has the default policy"
                f" ({policy_in_words(reply.job.policy)})"
            )
        if reply.deduplicated:
            say(f"job {reply.job.id}, which has not finished, has the key {options.key}")
        elif waits:
            say(f"waiting for job {reply.job.id}")  # known to whoever stops the wait
        if not as_json and sys.stderr.isatty():
            _say_why_waiting(serving, reply.job)
        if waits:
            job = wait_for_end(serving, reply.job, timeout)
            show_end(serving, job, as_json=as_json)
        elif as_json:
            print_json(job_record(reply.job, now=serving.store.now(), bodies=False))
        else:
            click.echo(reply.job.id)


_FLAGS = {
    "queue": "--queue",
    "priority": "--priority",
    "key": "--key",
    "unique_for": "--unique-for",
    "concurrency_key": "--concurrency-key",
    "concurrency_group": "--concurrency-group",
    "rate_key": "--rate-key",
    "delay": "--delay",
    "run_at": "--run-at",
    "expires": "--expires",
    "correlation_id": "--correlation-id",
    "job_id": "--id",
    "kind": "KIND",
    "namespace": "--namespace",
}


@contextmanager
def _naming_flags() -> Iterator[None]:
    """Make errors name the option that was typed, or the one in the code that declares the kind."""
    try:
        yield
    except InvalidInput as wrong:
        from tenure.handlers.options import as_option

        named = as_option(wrong)
        flag = _FLAGS.get(named.field)
        if flag is None:
            raise named from wrong
        raise InvalidInput(flag, wrong.problem, hint=wrong.hint) from wrong


def _say_why_waiting(serving: Coordination, job: Job) -> None:
    """Tell a person who may have mistyped a kind or a queue, or not started a worker."""
    why = why_waiting(serving.store, job)
    if why is not None:
        say(f"it waits: {why}")


def _where(app: "Application | None", url: str | None) -> tuple[str | None, str | None]:
    """The URL, and the application's token for it."""
    if app is None:
        return url, None
    from tenure.cli.application import token_for, url_for

    return url_for(app, url, tell=say), token_for(app, url)


def _application(named: str | None) -> "Application | None":
    with reported_errors():
        chosen = named or project_settings().app
    if chosen is None:
        return None
    from tenure.cli.application import load_app  # here: it takes as long as all the rest

    return load_app(chosen)


def _check(options: EnqueueOptions, app: "Application", *, named: str | None) -> None:
    handler = app.registry.get(Kind(options.kind))
    if handler is not None:
        from tenure.cli.payloads import check_payload

        check_payload(handler, options.payload)
    elif named:
        _refuse_kind(options.kind, named, app)


def _refuse_kind(kind: str, named: str, app: "Application") -> Never:
    """Who names the application means one of its kinds: no worker of it would run another."""
    kinds = app.registry.kinds()
    alike = get_close_matches(kind, kinds, n=1)
    guess = f"Did you mean {alike[0]}? " if alike else ""
    has = f"It has {', '.join(kinds)}" if kinds else "It has none"
    raise CouldNotRun(
        f"{named} has no kind {kind}. {guess}{has}; to enqueue a job that another application"
        " runs, omit --app"
    )


def _command(serving: Coordination, options: EnqueueOptions, app: "Application | None") -> Enqueue:
    if app is not None and Kind(options.kind) in app.registry.kinds():
        return _of_application(options, app)
    if app is not None:
        say(f"the application has no kind {options.kind}: the payload is not checked")
    elif sys.stderr.isatty():
        # Only on a terminal: a script gives every option that it needs.
        say("--app MODULE:APP would add the kind's own queue, priority and keys")
    namespace = DEFAULT_NAMESPACE if app is None else app.namespace
    return Enqueue(
        job_id=JobId(options.job_id)
        if options.job_id
        else new_job_id(serving.store.now(), os.urandom(16)),
        namespace=Namespace(options.namespace or namespace),
        queue=QueueName(options.queue or DEFAULT_QUEUE),
        kind=Kind(options.kind),
        actor=client(),
        payload=options.payload,
        priority=options.priority or 0,
        delay_us=options.delay or Duration(0),
        run_at=options.run_at,
        expires_us=options.expires,
        dedupe_key=options.key,
        unique_for_us=options.unique_for,
        concurrency_key=options.concurrency_key,
        concurrency_group=options.concurrency_group,
        rate_key=options.rate_key,
        correlation_id=options.correlation_id,
    )


def _of_application(options: EnqueueOptions, app: "Application") -> Enqueue:
    """The command that the application itself would send."""
    settings: dict[str, Any] = {
        "queue": options.queue,
        "priority": options.priority,
        "key": options.key,
        "unique_for": _in_seconds(options.unique_for),
        "concurrency_key": options.concurrency_key,
        "concurrency_group": options.concurrency_group,
        "rate_key": options.rate_key,
        "correlation_id": options.correlation_id,
        "job_id": options.job_id,
        "run_at": options.run_at,
        "delay": _in_seconds(options.delay),
        "expires": _in_seconds(options.expires),
    }
    given: Any = {name: value for name, value in settings.items() if value is not None}
    payload = msgspec.json.decode(options.payload)
    command = app.command(app.call(options.kind, payload, **given))
    return msgspec.structs.replace(
        command, actor=client(), namespace=Namespace(options.namespace or app.namespace)
    )


def _in_seconds(duration: Duration | None) -> float | None:
    return None if duration is None else duration / MICROSECONDS_PER_SECOND
