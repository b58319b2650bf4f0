"""`tenure worker MODULE:APP`: run jobs until a signal stops it."""

import logging
from contextlib import suppress
from typing import Any

import click

from tenure.cli.application import check_has_jobs, import_app, namespace_of, url_for
from tenure.cli.errors import CouldNotRun, reported_errors
from tenure.cli.invocation import Invocation, command
from tenure.cli.options import (
    app_argument,
    app_url_option,
    duration_value,
    flag,
    keep_options,
    log_format_option,
    port_option,
    size_value,
    whole_number,
)
from tenure.cli.output import printable
from tenure.core.checks import check_name
from tenure.core.ids import DEFAULT_QUEUE, Namespace, QueueName, WorkerId
from tenure.errors import InvalidInput
from tenure.handlers.registry import Registry
from tenure.settings import is_server, project_settings, retention_of, url_from_environment
from tenure.stop_signals import stop_when_closed
from tenure.telemetry.logs import LogFormat, log_to_stderr
from tenure.telemetry.metrics import MetricsAddress
from tenure.wiring import run_worker
from tenure.worker.application import load_registry
from tenure.worker.supervisor.options import OutputLine, WorkerOptions

_log = logging.getLogger("tenure.worker")
_output_log = logging.getLogger("tenure.output")


def _queues(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> dict[QueueName, int]:
    """Queues and weights of the command line, else of pyproject.toml, else the default queue."""
    found: dict[QueueName, int] = {}
    for word in words or _queues_of_the_project() or (DEFAULT_QUEUE,):
        name, _sign, weight = word.partition("=")
        try:
            check_name("queue", name)
            found[QueueName(name)] = int(weight or "1")
        except (InvalidInput, ValueError) as wrong:
            raise click.BadParameter(f"{word!a} is not NAME or NAME=WEIGHT") from wrong
    return found


def _queues_of_the_project() -> tuple[str, ...]:
    with reported_errors():
        return project_settings().queues


def _with_declared(queues: dict[QueueName, int], registry: Registry) -> dict[QueueName, int]:
    """These queues, `default`, and those into which the application itself puts jobs. [Z9]"""
    of_kinds = {handler.queue for handler in registry}
    of_schedules = {spec.queue for spec in registry.schedules().values()}
    others = {DEFAULT_QUEUE, *of_kinds, *of_schedules} - queues.keys()
    return queues | dict.fromkeys(sorted(others), 1)


def _print_line(line: OutputLine) -> None:
    """Print a line with its control characters escaped."""
    with suppress(OSError):  # the reader of stderr is gone; that must not fail a job
        click.echo(printable(line.text.expandtabs()), err=True)


def _log_line(line: OutputLine) -> None:
    """Log it, so that stderr stays JSON. [OB23]"""
    _output_log.info("%s", line.text, extra=dict(line.about))


_ECHO = {LogFormat.TEXT: _print_line, LogFormat.JSON: _log_line}


@command(None, "worker", url=app_url_option, namespace=None)
@click.option("--namespace", help="Run jobs of this namespace. [default: the application's]")
@click.option(
    "--queue",
    "-q",
    "queues",
    multiple=True,
    callback=_queues,
    help="Run jobs of this queue, as NAME or NAME=WEIGHT; may be repeated. A queue of weight 2"
    " gets twice the jobs of one of weight 1."
    " [default: `queues` of [tool.tenure] in pyproject.toml, then default]",
)
@whole_number(
    "--concurrency",
    "-c",
    least=1,
    most=10_000,
    default=4,
    help="Run at most this many jobs at the same time.",
)
@click.option(
    "--grace",
    "grace_us",
    default="30s",
    show_default=True,
    callback=duration_value,
    help="After SIGTERM, running jobs have this long to finish; the others go back to their queue.",
)
@click.option(
    "--only-env",
    "only_environment",
    metavar="NAME",
    multiple=True,
    help="Give handlers only this environment variable, or those of a pattern such as AWS_*, and"
    " a few such as PATH; may be repeated. [default: all but TENURE_TOKEN and a TENURE_URL with a"
    " password]",
)
@click.option(
    "--memory-limit",
    "child_memory_bytes",
    metavar="SIZE",
    callback=size_value,
    help="Memory limit of a child process, as in 512M. An allocation above it fails, and the job"
    " with it.",
)
@click.option(
    "--recycle-above",
    "child_rss_bytes",
    metavar="SIZE",
    callback=size_value,
    help="Replace a child process that uses more memory than this after a job.",
)
@whole_number(
    "--recycle-after",
    "jobs_per_child",
    least=1,
    default=WorkerOptions().jobs_per_child,
    metavar="JOBS",
    help="Replace a child process of the process lane after this many jobs.",
)
@port_option(
    name="--metrics-port",
    default=None,
    help="Serve this worker's Prometheus metrics on this port; 0 picks a free one.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="The address for the metrics. Any host that can reach it sees the names of queues and"
    " kinds, without a token.",
)
@keep_options
@log_format_option
@flag(
    "--verbose",
    "-v",
    "tells_every_end",
    help="Log every attempt that ends, not only failed ones, and the tracebacks of failed ones.",
)
@flag("--show-output", help="Print the output of handlers as they write it.")
@click.option(
    "--name",
    help="The worker's name, which must be unique. [default: host name, process id and a random"
    " part]",
)
@click.option("--overwrite-declared", "overwrites_declared", is_flag=True, hidden=True)
@click.option("--declared-queues", "adds_declared", is_flag=True, hidden=True)
@click.option(
    "--stop-when-closed",
    type=int,
    hidden=True,
    expose_value=False,
    callback=lambda _, __, pipe: None if pipe is None else stop_when_closed(pipe),
)
@app_argument
def worker(
    cli: Invocation,
    app: str,
    namespace: str | None,
    queues: dict[QueueName, int],
    adds_declared: bool,
    metrics_port: int | None,
    metrics_host: str,
    keep: dict[str, str | None],
    log_format: str,
    show_output: bool,
    name: str | None,
    **treatment: Any,
) -> None:
    """Run the jobs of the application MODULE:APP.

    SIGTERM or Ctrl-C lets running jobs finish, a second one stops them at once. Without MODULE:APP
    the worker runs the `app` of [tool.tenure] in pyproject.toml.

    \b
    Examples:
      tenure worker shop.jobs:app
      tenure worker shop.jobs:app -q mail=3 -q reports -c 8
    """
    if name is not None:
        check_name("--name", name)
    retention = retention_of(keep)
    log_to_stderr(LogFormat(log_format))
    application = import_app(app)  # before the store is opened, which may create one
    check_has_jobs(application, app)
    options = WorkerOptions(
        queues=_with_declared(queues, load_registry(app)) if adds_declared else queues,
        namespace=Namespace(namespace) if namespace else namespace_of(application),
        worker_id=None if name is None else WorkerId(name),
        echo=_ECHO[LogFormat(log_format)] if show_output else None,
        **treatment,
    )
    chosen = url_for(application, cli.url, warn=_log.warning) or url_from_environment()
    given = [name for name, value in keep.items() if value]
    if given and is_server(chosen):
        option, hint = f"--{given[0].replace('_', '-')}", "give it to `tenure serve`"
        raise InvalidInput(option, "the server decides what is kept", hint=hint)
    expose = None if metrics_port is None else MetricsAddress(metrics_host, metrics_port)
    with reported_errors(out_of_scope=CouldNotRun):  # a worker whose token lacks a right cannot run
        code = run_worker(chosen, app, options, retention=retention, expose=expose)
    raise SystemExit(code)
