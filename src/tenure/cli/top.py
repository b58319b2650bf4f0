"""`tenure top`: what a namespace is doing, again and again on a terminal, or once elsewhere.

It shows and changes nothing. Every text of a job, a worker or a queue is escaped before it is
printed.
"""

import math
import sys
import time
from collections.abc import Sequence

import click
import msgspec
from msgspec.structs import replace

from tenure.cli.common import coordination, json_option, namespace_option, url_option
from tenure.cli.live_lines import bar
from tenure.cli.output import (
    DURATION_HEAD,
    GAP,
    SHORTEST_ID,
    ago,
    display_width,
    duration,
    duration_cells,
    in_words,
    print_json,
    printable,
    shortened,
    table_lines,
    terminal_columns,
    terminal_size,
)
from tenure.core.ids import Namespace
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.job import Job
from tenure.core.job_search import JobFilter, newness
from tenure.core.overview import (
    Attention,
    Matter,
    OutcomeBucket,
    Overview,
    OverviewFilter,
    TimeRange,
)
from tenure.core.vocabulary import JobStatus
from tenure.core.workers import WorkerSeen
from tenure.deadlines import retrying_for
from tenure.errors import InvalidInput, TenureError
from tenure.ports import JobStore
from tenure.protocol.fields import iso
from tenure.protocol.overviews import OverviewReply, overview_reply
from tenure.protocol.records import JobRecord, WorkerRecord, job_record, worker_record
from tenure.settings import shown_url, url_from_environment

STDOUT = 1
MAX_JOBS = 100
MAX_PARTS = 10
"""A token of several queues or kinds lists the jobs of each by itself: of up to this many."""

RATE_BUCKETS = 4
"""A rate is computed over this many finished buckets: a minute of the shortest range."""

PAUSE_PER_READ = 9
LONGEST_PAUSE_S = 30.0
"""After a slow read `top` waits nine times as long, so that it keeps a store busy for at most a
tenth of the time; never longer than this, or it would be far behind after an outage."""

RETRY_FOR_S = 5.0
"""A server that does not answer for this long is a line on the screen; the next read asks again."""

WIDEST = 200
MAX_ATTENTION = 4
RUNNING = (JobStatus.CLAIMED, JobStatus.RUNNING)
_STEPS = "▁▂▃▄▅▆▇█"
_HOME, _ERASE_LINE, _ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_MATTERS = {
    Matter.UNCLAIMED: "ready jobs that no live worker takes",
    Matter.SUSPECT: "running jobs whose worker is silent",
    Matter.STALLED: "stalled jobs that wait for `tenure jobs requeue`",
    Matter.DEAD_LETTERS: "dead letters without a resolution",
    Matter.SCHEDULE_FAILED: "schedules whose last job did not succeed",
    Matter.PAUSED: "paused queue, jobs in it",
}


class TopSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a namespace is doing, its running jobs, and its workers."""

    overview: OverviewReply
    running: list[JobRecord]
    workers: list[WorkerRecord]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What was read from the store."""

    overview: Overview
    jobs: Sequence[Job] = ()
    workers: Sequence[WorkerSeen] = ()


def _number(_: click.Context, __: click.Parameter, value: float) -> float:
    """The value. No comparison refuses NaN, so `FloatRange` accepts it."""
    if math.isnan(value):
        raise click.BadParameter("nan is not a number of seconds.")
    return value


@click.command()
@url_option
@json_option(TopSnapshot)
@namespace_option
@click.option("--once", is_flag=True, help="Print what there is now and exit.")
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
    """Show what a namespace is doing: queues, running jobs, workers, kinds, what needs attention.

    On a terminal the screen is refreshed until Ctrl-C. In a pipe, and with --once or --json, it is
    printed once. Over HTTP it needs a token of the role operator or viewer, and shows the token's
    queues and kinds. To act on what you see, use `tenure queues`, `workers` and `jobs`, or the
    dashboard.
    """
    is_live = not (once or as_json) and sys.stdout.isatty()
    where = shown_url(url or url_from_environment())
    title = f"tenure top  {where}  namespace {namespace}"
    with coordination(url) as serving:
        wanted = OverviewFilter(namespace=Namespace(namespace), range=TimeRange(range_))
        if is_live:
            refresh(serving.store, wanted, title=title, every_s=every_s)
            return
        snapshot = read(serving.store, wanted)
    if as_json:
        print_json(_document(snapshot))
        return
    for line in screen(snapshot, title=title, columns=terminal_columns()):
        click.echo(line)


def refresh(store: JobStore, wanted: OverviewFilter, *, title: str, every_s: float) -> None:
    """Draw the screen until Ctrl-C. It sets no mode of the terminal, so none has to be restored."""
    snapshot: Snapshot | None = None
    click.clear()
    try:
        while True:
            began_s = time.monotonic()
            snapshot, problem = _read_again(store, wanted, snapshot)
            took_s = time.monotonic() - began_s
            columns, rows = terminal_size(STDOUT)
            lines = screen(snapshot, title=title, columns=columns, rows=rows - 1, problem=problem)
            drawn = "".join(f"{line}{_ERASE_LINE}\n" for line in lines)
            click.echo(f"{_HOME}{drawn}{_ERASE_BELOW}", nl=False)
            time.sleep(max(every_s, min(PAUSE_PER_READ * took_s, LONGEST_PAUSE_S)))
    except KeyboardInterrupt:
        return


def _read_again(
    store: JobStore, wanted: OverviewFilter, before: Snapshot | None
) -> tuple[Snapshot | None, str | None]:
    """What there is now; while the store cannot be read, what was read last, and why. [LV10]"""
    try:
        with retrying_for(RETRY_FOR_S):
            return read(store, wanted), None
    except TenureError as problem:
        return before, str(problem)


def read(store: JobStore, wanted: OverviewFilter) -> Snapshot:
    """The overview, the running jobs and the workers."""
    overview = store.views.overview(wanted)
    jobs = JobFilter(namespace=wanted.namespace, statuses=RUNNING, limit=MAX_JOBS, bodies=False)
    return Snapshot(
        overview=overview,
        jobs=_listed(store, overview, jobs),
        workers=store.workers.page(wanted.namespace),
    )


def _listed(store: JobStore, overview: Overview, wanted: JobFilter) -> list[Job]:
    """Jobs, newest first. A server answers a token of several queues, or of several kinds, only if
    the request names one of them. [H41]"""
    try:
        return store.views.jobs(wanted).jobs
    except InvalidInput as narrow:
        if narrow.field == "queue" and wanted.queue is None:
            parts = [replace(wanted, queue=each.queue) for each in overview.queues if each.leased]
        elif narrow.field == "kind" and wanted.kind is None:
            parts = [replace(wanted, kind=each.kind) for each in overview.kinds if each.leased]
        else:
            raise
    found = [job for part in parts[:MAX_PARTS] for job in _listed(store, overview, part)]
    return sorted(found, key=newness, reverse=True)[: wanted.limit]


def _document(snapshot: Snapshot) -> TopSnapshot:
    now = snapshot.overview.now
    return TopSnapshot(
        overview=overview_reply(snapshot.overview),
        running=[job_record(job, now=now, bodies=False) for job in snapshot.jobs],
        workers=[worker_record(each, now=now) for each in snapshot.workers],
    )


def screen(
    snapshot: Snapshot | None,
    *,
    title: str,
    columns: int | None,
    rows: int | None = None,
    problem: str | None = None,
) -> list[str]:
    """The lines: at most `rows`, each at most `columns` wide. `None` is no limit."""
    width = columns or WIDEST
    lines = [_styled(title, width, bold=True)]
    if problem is not None:
        lines.append(_styled(f"! {problem}", width, fg="red"))
    if snapshot is not None:
        now = snapshot.overview.now
        lines[0] = _styled(f"{title}  {iso(now)}", width, bold=True)
        lines += summary(snapshot.overview, width)
        matters = attention_lines(snapshot.overview.attention)
        lines += [_styled(f"! {each}", width, fg="yellow") for each in matters[:MAX_ATTENTION]]
        if len(matters) > MAX_ATTENTION:
            lines.append(f"  and {len(matters) - MAX_ATTENTION} more")
        lines += _tables(
            {
                "queues": queue_lines(snapshot.overview, columns),
                "running jobs": job_list_lines(snapshot.jobs, now, columns),
                "workers": worker_lines(snapshot.workers, snapshot.jobs, now, columns),
                f"kinds, last {snapshot.overview.range}": kind_lines(snapshot.overview, columns),
            },
            None if rows is None else rows - len(lines),
        )
    return [_clipped(line, width) for line in lines[:rows]]


def _tables(tables: dict[str, list[str]], room: int | None) -> list[str]:
    """Tables with a title each, which share the room there is."""
    counts = [len(table) - 1 for table in tables.values()]
    # A blank line, a title and a head above each table.
    given = counts if room is None else shares(room - 3 * len(tables), counts)
    lines = []
    for (name, table), count, most in zip(tables.items(), counts, given, strict=True):
        number = f"{most} of {count}" if most < count else str(count)
        lines += ["", click.style(f"{name} ({number})", bold=True), *table[: most + 1]]
    return lines


def shares(room: int, wanted: Sequence[int]) -> list[int]:
    """How many lines each table gets: all that it wants, or a fair part of what there is."""
    given = [0] * len(wanted)
    for _ in range(max(0, room)):
        hungry = [at for at, most in enumerate(wanted) if given[at] < most]
        if not hungry:
            break
        given[min(hungry, key=lambda at: given[at])] += 1
    return given


def _clipped(line: str, columns: int) -> str:
    """The line, without its styles if it has to be cut: a table has a least width."""
    plain = click.unstyle(line)
    return line if display_width(plain) <= columns else shortened(plain, columns)


def summary(overview: Overview, columns: int) -> list[str]:
    """Rates of the last minute, the time that jobs wait and run, workers, and the last buckets."""
    lately, span_s = _lately(overview)
    rates = GAP.join(
        f"{name} {_rate(lately, field, span_s)}"
        for name, field in (
            ("enqueued", "enqueued"),
            ("succeeded", "succeeded"),
            ("retried", "requeued"),
            ("failed", "failed"),
            ("dead", "dead_lettered"),
            ("cancelled", "cancelled"),
        )
    )
    wait, run, workers = overview.wait, overview.run, overview.workers
    spans = (
        f"wait p50 {duration(wait.p50_us) or '-'} p95 {duration(wait.p95_us) or '-'}{GAP}"
        f"run p50 {duration(run.p50_us) or '-'} p95 {duration(run.p95_us) or '-'}{GAP}"
        f"workers {workers.alive} alive, {workers.draining} draining, {workers.silent} silent"
    )
    succeeded = [bucket.succeeded for bucket in overview.buckets]
    every = in_words(overview.bucket_us / MICROSECONDS_PER_SECOND)
    label, most = f"succeeded, last {overview.range}", f"most {max(succeeded)} in {every}"
    if overview.counted_since > overview.since:
        most += f", counted from {ago(overview.counted_since, overview.now)} on"
    room = columns - len(f"{label}{GAP}{GAP}{most}")
    plot = f"{label}{GAP}{sparkline(succeeded[-max(1, room) :])}{GAP}{most}"
    return [_styled(line, columns) for line in (rates, spans, plot)]


def _lately(overview: Overview) -> tuple[Sequence[OutcomeBucket], float]:
    """The buckets that say how fast jobs come and go, and their length in seconds: the last ones
    that are over, as far as they were counted, else what was counted of the present one."""
    ended = [each for each in overview.buckets[:-1] if each.at >= overview.counted_since]
    lately = ended[-RATE_BUCKETS:]
    if lately:
        return lately, len(lately) * overview.bucket_us / MICROSECONDS_PER_SECOND
    present = overview.buckets[-1:]
    counted_us = overview.now - max(overview.counted_since, *(each.at for each in present))
    return present, max(1, counted_us) / MICROSECONDS_PER_SECOND


def sparkline(counts: Sequence[int]) -> str:
    """Numbers as bars of eight heights; the highest is full, and nothing is a blank."""
    most = max(counts, default=0)
    return "".join(
        " " if not count else _STEPS[min(7, count * 8 // (most + 1))] for count in counts
    )


def _rate(buckets: Sequence[OutcomeBucket], field: str, span_s: float) -> str:
    rate = sum(int(getattr(bucket, field)) for bucket in buckets) / span_s
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def attention_lines(matters: Sequence[Attention]) -> list[str]:
    """What needs attention, a line each."""
    lines = []
    for each in matters:
        where = [f"kind {each.kind}"] if each.kind is not None else []
        where += [f"queue {each.queue}"] if each.queue is not None else []
        where += [f"schedule {each.schedule}"] if each.schedule is not None else []
        where += [f"job {each.job_id}"] if each.job_id is not None else []
        lines.append(f"{_MATTERS[each.matter]}: {each.jobs}, {', '.join(where)}")
    return lines


def queue_lines(overview: Overview, columns: int | None) -> list[str]:
    """The queues as a table."""
    head = ["QUEUE", "STATE", "READY", "RUNNING", "DELAYED", "WAITING"]
    head += ["OLDEST", "WORKERS", "LIMIT"]
    rows = [
        (
            each.queue,
            "paused" if each.paused else "open",
            each.ready,
            each.leased,
            each.delayed,
            each.waiting,
            ago(each.oldest_ready_at, overview.now),
            each.workers,
            each.limit,
        )
        for each in overview.queues
    ]
    return table_lines(head, rows, columns, optional=("OLDEST", "WAITING", "DELAYED", "LIMIT"))


def kind_lines(overview: Overview, columns: int | None) -> list[str]:
    """The kinds as a table, with how long their jobs waited and ran. [OB50]"""
    rows = [
        (each.kind, each.ready, each.leased, *duration_cells(each.wait, each.run))
        for each in overview.kinds
    ]
    return table_lines(["KIND", "READY", "RUNNING", *DURATION_HEAD], rows, columns)


def job_list_lines(jobs: Sequence[Job], now: Instant, columns: int | None) -> list[str]:
    """The running jobs as a table."""
    head = ["JOB", "KIND", "QUEUE", "STATUS", "FOR", "PROGRESS", "ATTEMPT", "WORKER"]
    rows = [
        (
            job.id if columns is None else shortened(job.id, SHORTEST_ID),
            job.kind,
            job.queue,
            job.status,
            _since(job, now),
            _progress(job),
            job.attempt,
            job.owner,
        )
        for job in jobs
    ]
    return table_lines(head, rows, columns, optional=("QUEUE", "ATTEMPT", "WORKER"))


def _since(job: Job, now: Instant) -> str | None:
    begin = job.started_at or job.claimed_at
    return None if begin is None else in_words(max(0, now - begin) / MICROSECONDS_PER_SECOND)


def _progress(job: Job) -> str | None:
    said = job.progress
    if said is None:
        return None
    drawn = f"{bar(said.done, said.total, 10)} " if said.total else ""
    return f"{drawn}{said.done}/{said.total or '?'} {said.note}".rstrip()


def worker_lines(
    workers: Sequence[WorkerSeen], jobs: Sequence[Job], now: Instant, columns: int | None
) -> list[str]:
    """The workers as a table."""
    head = ["WORKER", "STATE", "RUNS", "SLOTS", "QUEUES", "HOST", "LAST SEEN"]
    rows = [
        (
            each.worker,
            each.state(now),
            sum(job.owner == each.worker for job in jobs),
            each.concurrency,
            ",".join(each.queues),
            each.host,
            ago(each.seen_at, now),
        )
        for each in workers
    ]
    return table_lines(head, rows, columns, optional=("HOST", "LAST SEEN", "QUEUES"))


def _styled(text: str, columns: int, **styles: object) -> str:
    """A text from anywhere: escaped, cut, then styled."""
    cut = shortened(printable(text), columns)
    return click.style(cut, **styles) if styles else cut  # type: ignore[arg-type]  # styles of click
