"""`tenure queues …`: list queues, pause them, limit them."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

import click
import msgspec
from msgspec import UNSET, UnsetType

from tenure.cli.common import coordination, json_option, namespace_option, refuse, url_option
from tenure.cli.output import in_words, print_json, print_table, printable
from tenure.cli.rates import given_rate, rate_in_words, rate_options
from tenure.coordinator.service import Coordinator
from tenure.core.checks import check_name
from tenure.core.claims import QueueState
from tenure.core.ids import Namespace, QueueName
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.overview import OverviewFilter, QueueOverview, TimeRange
from tenure.core.rates import Rate
from tenure.ports import Coordination, QueueMeasure

_F = TypeVar("_F", bound=Callable[..., Any])

MAX_QUEUES = 500
MAX_COUNTED = 100_000
"""Counting stops here: `100000` means that many or more."""


@click.group()
def queues() -> None:
    """List queues, pause them, limit them."""


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it is listed. `live` is the number of its leases. `ready` jobs can be claimed,
    `delayed` ones wait for their time, `waiting` ones for other jobs of their flow. Numbers that
    were not counted are null, and so is the age of the oldest ready job if there is none."""

    name: str
    paused: bool
    limit: int | None
    rate: str | None
    burst: int | None
    ready: int | None
    delayed: int | None
    waiting: int | None
    live: int
    oldest_ready_s: float | None


@queues.command(name="ls")
@url_option
@json_option(list[QueueLine])
@namespace_option
def list_queues(url: str | None, as_json: bool, namespace: str) -> None:
    """List queues with the number of waiting and running jobs."""
    with coordination(url) as serving:
        check_name("namespace", namespace)
        found = serving.store.settings.queues(Namespace(namespace))
        lines = _lines(serving, Namespace(namespace), found)
    if as_json:
        print_json(lines)
        return
    print_table(
        [
            "QUEUE",
            "STATE",
            "READY",
            "DELAYED",
            "WAITING",
            "RUNNING",
            "LIMIT",
            "RATE",
            "OLDEST READY",
        ],
        [
            (
                line.name,
                "paused" if line.paused else "open",
                _counted(line.ready),
                _counted(line.delayed),
                _counted(line.waiting),
                line.live,
                line.limit,
                line.rate,
                None if line.oldest_ready_s is None else in_words(line.oldest_ready_s),
            )
            for line in lines
        ],
    )


def _lines(serving: Coordination, namespace: Namespace, found: list[QueueState]) -> list[QueueLine]:
    wanted = OverviewFilter(namespace=namespace, range=TimeRange.QUARTER_HOUR)
    overview = serving.store.views.overview(wanted)
    shown: dict[QueueName, QueueMeasure | QueueOverview]
    shown = {each.queue: each for each in overview.queues}
    waiting = {each.queue: each.waiting for each in overview.queues}
    # An overview counts fewer queues and jobs, but over HTTP there is nothing else.
    if isinstance(serving, Coordinator):
        measured = serving.store.views.measure(
            queues=MAX_QUEUES, jobs=MAX_COUNTED, namespace=namespace
        )
        shown |= {each.queue: each for each in measured.queues}
    return [
        _line(queue, shown.get(queue.name), waiting.get(queue.name), overview.now)
        for queue in found
    ]


def _line(
    queue: QueueState,
    depth: QueueMeasure | QueueOverview | None,
    waiting: int | None,
    now: Instant,
) -> QueueLine:
    since = None if depth is None else depth.oldest_ready_at
    return QueueLine(
        name=queue.name,
        paused=queue.paused,
        limit=queue.limit,
        rate=None if queue.rate is None else str(queue.rate),
        burst=None if queue.rate is None else queue.rate.burst,
        ready=None if depth is None else depth.ready,
        delayed=None if depth is None else depth.delayed,
        waiting=waiting,
        live=queue.live,
        oldest_ready_s=None if since is None else max(0, now - since) / MICROSECONDS_PER_SECOND,
    )


def _counted(jobs: int | None) -> str | None:
    if jobs is None:
        return None
    return f"{jobs}+" if jobs >= MAX_COUNTED else str(jobs)


def create_option(function: _F) -> _F:
    """`--create`."""
    return click.option(
        "--create", is_flag=True, help="Create the queue if no job has used it yet."
    )(function)


def _put(
    url: str | None,
    namespace: str,
    name: str,
    *,
    create: bool,
    paused: bool | None = None,
    limit: int | None = None,
    rate: Rate | UnsetType | None = UNSET,
) -> QueueState:
    with coordination(url) as serving:
        check_name("namespace", namespace)
        check_name("QUEUE", name)
        known = [queue.name for queue in serving.store.settings.queues(Namespace(namespace))]
        if name not in known and not create:
            _refuse_unknown(name, known)
        return serving.store.settings.put_queue(
            Namespace(namespace), QueueName(name), paused=paused, limit=limit, rate=rate
        )


def _refuse_unknown(name: str, known: Sequence[str]) -> NoReturn:
    """A name that no job has used is more often mistyped than a queue that comes later."""
    close = get_close_matches(name, known, n=1)
    meant = f" Did you mean {close[0]}?" if close else ""
    refuse(f"no job has used queue {name} so far.{meant} --create creates it")


@queues.command(name="pause")
@url_option
@namespace_option
@create_option
@click.argument("queue")
def pause_queue(url: str | None, namespace: str, create: bool, queue: str) -> None:
    """Let no worker claim jobs of QUEUE; running jobs go on."""
    state = _put(url, namespace, queue, create=create, paused=True)
    click.echo(f"{printable(queue)}: paused, {state.live} still running")


@queues.command(name="resume")
@url_option
@namespace_option
@create_option
@click.argument("queue")
def resume_queue(url: str | None, namespace: str, create: bool, queue: str) -> None:
    """Let workers claim jobs of QUEUE again."""
    _put(url, namespace, queue, create=create, paused=False)
    click.echo(f"{printable(queue)}: open")


@queues.command(name="limit")
@url_option
@namespace_option
@create_option
@rate_options
@click.argument("queue")
@click.argument("limit", type=click.IntRange(0, 1_000_000), required=False)
def limit_queue(
    url: str | None,
    namespace: str,
    create: bool,
    rate: str | None,
    burst: int | None,
    queue: str,
    limit: int | None,
) -> None:
    """Limit how many jobs of QUEUE run at the same time, or how many begin per second.

    The LIMIT applies to all workers together; 0 means no limit. --rate 100/m lets at most 100 jobs
    begin per minute, --burst 20 up to 20 of them at once; --rate none removes the rate. What is not
    given stays as it is.
    """
    if limit is None and rate is None:
        raise click.UsageError("give LIMIT, or --rate, or both")
    state = _put(url, namespace, queue, create=create, limit=limit, rate=given_rate(rate, burst))
    said = [] if state.limit is None else [f"at most {state.limit} at a time"]
    said += [] if state.rate is None else [rate_in_words(state.rate)]
    click.echo(f"{printable(queue)}: {', '.join(said or ['no limit'])}, {state.live} running")
