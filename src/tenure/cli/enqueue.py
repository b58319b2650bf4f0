"""`tenure enqueue`: make a job, with the settings of its kind.

Its policy is the one that workers declared for the kind. [F9] The queue, the priority and the keys
of a kind are known only to the code that declares it: without --app the command uses its own
options.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from tenure.cli.errors import CouldNotRun, refuse
from tenure.cli.following import show_end, wait_for_end
from tenure.cli.invocation import Invocation, command
from tenure.cli.options import (
    app_url_option,
    duration_value,
    flag,
    instant_value,
    meta_value,
    payload_value,
)
from tenure.cli.output import print_json, say
from tenure.core.commands import Enqueue
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    DEFAULT_QUEUE,
    ENTROPY_BYTES,
    JobId,
    Kind,
    Namespace,
    QueueName,
    new_job_id,
)
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration
from tenure.core.policy import policy_in_words
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import did_you_mean
from tenure.errors import InvalidInput
from tenure.protocol.records import JobRecord, job_record
from tenure.settings import project_settings

if TYPE_CHECKING:
    from tenure.client.app import Application


DURATIONS = ("unique_for", "delay", "expires")


@command(None, "enqueue", json=JobRecord, url=app_url_option, namespace=None)
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
    "--meta",
    metavar="KEY=VALUE",
    multiple=True,
    callback=meta_value,
    help="A label of yours, such as tenant=acme, shown with the job: never a secret; may be"
    " repeated.",
)
@click.option(
    "--id",
    "job_id",
    help="The job's id, a UUID. If you repeat the command with it, there is still one job.",
)
@flag("--wait", "waits", help="Wait for the result and print it.")
@click.option(
    "--timeout", callback=duration_value, help="With --wait: give up after this long, as in 10m."
)
@click.argument("kind")
@click.argument("payload", default="null", callback=payload_value)
def enqueue(
    cli: Invocation,
    app: str | None,
    waits: bool,
    timeout: Duration | None,
    kind: str,
    payload: msgspec.Raw,
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
    chosen = app or project_settings().app
    application: Application | None = None
    if chosen is not None:
        from tenure.cli.application import load_app  # here: it takes as long as the rest

        application = load_app(chosen)
        _check_known(kind, application, named=app)
    space = given.pop("namespace") or getattr(application, "namespace", DEFAULT_NAMESPACE)
    with _naming_flags(given):
        if application is None:
            cli.open(cli.url, create=True)
            wanted = _command(cli, kind, payload, given)
        else:
            wanted = _of_application(cli, kind, payload, given, application)
        wanted = msgspec.structs.replace(wanted, actor=cli.client, namespace=Namespace(space))
        reply = cast(Reply, cli.serving.execute(wanted))
    if reply.cause is not None:
        from tenure.client.jobs import why_refused  # here: slow to import

        refuse(f"job {wanted.job_id}: {why_refused(reply)} ({reply.cause.value})")
    assert reply.job is not None
    if reply.undeclared:
        say(
            f"no worker has declared kind {kind}: the job has the default policy"
            f" ({policy_in_words(reply.job.policy)})"
        )
    if reply.deduplicated:
        say(f"job {reply.job.id}, which has not finished, has the key {given['key']}")
    elif waits:
        say(f"waiting for job {reply.job.id}")  # known to the user who stops the wait
    if not cli.as_json and sys.stderr.isatty():
        # For a person who may have mistyped a kind or a queue, or not started a worker.
        why = cli.serving.why_waiting(reply.job)
        if why is not None:
            say(f"it waits: {why}")
    if waits:
        show_end(cli, wait_for_end(cli.serving, reply.job.id, timeout))
    elif cli.as_json:
        print_json(job_record(reply.job, now=cli.now, bodies=False))
    else:
        click.echo(reply.job.id)


@contextmanager
def _naming_flags(given: dict[str, Any]) -> Iterator[None]:
    """Make errors name the option that was typed, or the one in the code that declares the kind."""
    try:
        yield
    except InvalidInput as wrong:
        from tenure.handlers.options import as_option

        named = as_option(wrong)
        flags = {name: f"--{name.replace('_', '-')}" for name in given}
        flag = (flags | {"job_id": "--id", "kind": "KIND"}).get(named.field)
        if flag is None:
            raise named from wrong
        raise InvalidInput(flag, wrong.problem, hint=wrong.hint) from wrong


def _check_known(kind: str, app: "Application", *, named: str | None) -> None:
    """End the command if the application was named and has no such kind: no worker of it would run
    the job."""
    kinds = app.registry.kinds()
    if Kind(kind) in kinds:
        return
    if named is None:
        say(f"the application has no kind {kind}: the payload is not checked")
        return
    has = did_you_mean(kind, kinds, f"it has {', '.join(kinds) or 'none'}")
    raise CouldNotRun(
        f"{named} has no kind {kind}; {has}. To enqueue a job that another application runs, omit"
        " --app"
    )


def _command(cli: Invocation, kind: str, payload: msgspec.Raw, given: dict[str, Any]) -> Enqueue:
    """Without the client, whose import would take as long as the rest."""
    job_id = given["job_id"]
    return Enqueue(
        job_id=JobId(job_id) if job_id else new_job_id(cli.now, os.urandom(ENTROPY_BYTES)),
        namespace=DEFAULT_NAMESPACE,
        queue=QueueName(given["queue"] or DEFAULT_QUEUE),
        kind=Kind(kind),
        actor=cli.client,
        payload=bytes(payload),
        priority=given["priority"] or 0,
        delay_us=given["delay"] or Duration(0),
        run_at=given["run_at"],
        expires_us=given["expires"],
        dedupe_key=given["key"],
        unique_for_us=given["unique_for"],
        concurrency_key=given["concurrency_key"],
        rate_key=given["rate_key"],
        correlation_id=given["correlation_id"],
        meta=given["meta"],
    )


def _of_application(
    cli: Invocation, kind: str, payload: msgspec.Raw, given: dict[str, Any], app: "Application"
) -> Enqueue:
    """The command that the application itself would send; opens its store if that is correct."""
    from tenure.cli.application import checked_call, open_for

    options = {
        name: value / MICROSECONDS_PER_SECOND if name in DURATIONS else value
        for name, value in given.items()
        if value is not None
    }
    call = checked_call(app, kind, payload, options)
    open_for(cli, app)
    return app.command(call)
