"""`tenure top`: what a namespace is doing, live in a terminal or once elsewhere."""

import math
import os
import sys

import click
import msgspec

from tenure.cli.common import coordination, json_option, namespace_option, url_option
from tenure.cli.full_screen import FullScreen
from tenure.cli.output import print_json, printable, terminal_columns
from tenure.cli.top_feed import Feed, read
from tenure.cli.top_view import (
    Snapshot,
    View,
    attention_lines,
    job_list_lines,
    pressed,
    queue_lines,
    screen,
    summary,
    worker_lines,
)
from tenure.core.ids import Namespace
from tenure.core.overview import OverviewFilter, TimeRange
from tenure.ports import Coordination
from tenure.protocol.fields import iso
from tenure.protocol.overviews import OverviewReply, overview_reply
from tenure.protocol.records import JobRecord, WorkerRecord, job_record, worker_record
from tenure.settings import shown_url, url_from_environment

REDRAW_S = 1.0
"""The screen is drawn so often even if nothing is new."""

WIDEST = 200


class TopSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a namespace is doing, its running jobs, and its workers."""

    overview: OverviewReply
    running: list[JobRecord]
    workers: list[WorkerRecord]


def _number(_: click.Context, __: click.Parameter, value: float) -> float:
    """The value. No comparison refuses NaN, so `FloatRange` lets it pass."""
    if math.isnan(value):
        raise click.BadParameter("nan is not a number of seconds.")
    return value


@click.command()
@url_option
@json_option(TopSnapshot)
@namespace_option
@click.option("--once", is_flag=True, help="Print what there is now and end.")
@click.option(
    "--range",
    "range_",
    type=click.Choice([each.value for each in TimeRange]),
    default=TimeRange.QUARTER_HOUR.value,
    show_default=True,
    help="How far back rates, times and the plot go.",
)
@click.option(
    "--every",
    "every_s",
    metavar="SECONDS",
    type=click.FloatRange(0.5, 60),
    callback=_number,
    default=2.0,
    show_default=True,
    help="How often to refresh; less often if reading takes long.",
)
def top(
    url: str | None, as_json: bool, namespace: str, once: bool, range_: str, every_s: float
) -> None:
    """Show what a namespace is doing: queues, running jobs, workers, and what needs attention.

    On a terminal the screen is refreshed until you press q, and keys pause a queue, drain a worker,
    open a job or cancel it; ? explains them. In a pipe, and with --once or --json, it is printed
    once. Over HTTP it needs a token of the role operator or viewer, and shows the token's queues
    and kinds.
    """
    is_live = not (once or as_json) and sys.stdout.isatty() and sys.stdin.isatty()
    where = shown_url(url or url_from_environment())
    title = f"tenure top  {where}  namespace {namespace}"
    with coordination(url) as serving:
        wanted = OverviewFilter(namespace=Namespace(namespace), range=TimeRange(range_))
        if is_live:
            _watch(serving, wanted, title=title, every_s=every_s)
            return
        snapshot = read(serving.store, wanted)
    if as_json:
        print_json(_document(snapshot))
    else:
        _print(snapshot, title)


def _watch(serving: Coordination, wanted: OverviewFilter, *, title: str, every_s: float) -> None:
    view = View()
    with FullScreen() as terminal:
        feed = Feed(serving, wanted, every_s=every_s, wake=terminal.wake)
        feed.start()
        try:
            while True:
                if feed.failure is not None:
                    raise feed.failure
                if said := feed.take_said():
                    view = msgspec.structs.replace(view, message=said)
                size = _draw(terminal, feed.snapshot, view, title)
                for key in terminal.keys(REDRAW_S):
                    columns, rows = size  # of the screen to which the key is an answer
                    done = pressed(view, key, feed.snapshot, columns=columns, rows=rows)
                    if done.quits:
                        return
                    view, feed.opened = done.view, done.view.opened
                    if done.action is not None:
                        feed.do(done.action)
                    if done.refreshes:
                        feed.refresh()
        except (KeyboardInterrupt, EOFError):
            return
        finally:
            feed.close()


def _draw(terminal: FullScreen, snapshot: Snapshot, view: View, title: str) -> os.terminal_size:
    """Draw the screen, and return its size."""
    size = terminal.size
    is_open = view.opened is not None and snapshot.opened is not None
    read_at = snapshot.opened if is_open else snapshot.overview
    shown = title if read_at is None else f"{title}  {(iso(read_at.now) or '')[11:19]} UTC"
    terminal.draw(screen(snapshot, view, title=shown, columns=size.columns, rows=size.lines))
    return size


def _document(snapshot: Snapshot) -> TopSnapshot:
    assert snapshot.overview is not None
    now = snapshot.overview.now
    return TopSnapshot(
        overview=overview_reply(snapshot.overview),
        running=[job_record(job, now=now, bodies=False) for job in snapshot.jobs],
        workers=[worker_record(each, now=now) for each in snapshot.workers],
    )


def _print(snapshot: Snapshot, title: str) -> None:
    overview = snapshot.overview
    assert overview is not None
    columns = terminal_columns()
    now = overview.now
    click.echo(f"{printable(title)}  {iso(now)}")
    for line in summary(overview, columns or WIDEST):
        click.echo(line)
    for line in attention_lines(overview.attention):
        click.echo(f"! {printable(line)}")
    tables = (
        ("queues", queue_lines(overview, columns)),
        ("running jobs", job_list_lines(snapshot.jobs, now, columns)),
        ("workers", worker_lines(snapshot.workers, snapshot.jobs, now, columns)),
    )
    for name, lines in tables:
        click.echo()
        click.secho(f"{name} ({len(lines) - 1})", bold=True)
        for line in lines:
            click.echo(line)
