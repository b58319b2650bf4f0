"""`tenure queues …`, `tenure kinds …` and `tenure workers …`: what jobs wait in, what is set for
them, and which processes take them."""

from collections.abc import Collection, Sequence

import click
from msgspec import UNSET, UnsetType

from tenure.cli.invocation import Invocation, Listing, command, list_command
from tenure.cli.options import app_argument, app_url_option, flag, together
from tenure.cli.output import ago, in_words, printable, say
from tenure.core.claims import QueueState
from tenure.core.ids import Kind, Namespace
from tenure.core.instants import Duration, Instant
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.policy import policy_in_words
from tenure.core.views.overview import OverviewFilter, TimeRange, depth_limit
from tenure.core.vocabulary import WorkerState
from tenure.core.workers import ListedWorker
from tenure.errors import RequestRefused
from tenure.ports import JobStore
from tenure.protocol.fields import in_seconds
from tenure.protocol.records import (
    DerivedRecord,
    KindRecord,
    QueueRecord,
    WorkerRecord,
    kind_record,
    worker_record,
)
from tenure.protocol.translation import derived, to_wire


@click.group()
def queues() -> None:
    """List queues, pause them, limit them."""


@derived(QueueState, without=("rate_since",))
class QueueLine(DerivedRecord, frozen=True, kw_only=True):
    """A queue in a list. `live` is the number of its leases. `ready` jobs can be claimed,
    `delayed` ones wait for their time, `waiting` ones for other jobs of their flow. Numbers that
    were not counted are null, and so is the age of the oldest ready job if there is none."""

    rate: str | None = None
    burst: int | None = None
    ready: int | None = None
    delayed: int | None = None
    waiting: int | None = None
    oldest_ready_s: float | None = None


@list_command(queues, json=list[QueueLine])
def list_queues(cli: Invocation) -> Listing[QueueLine]:
    """List queues with the number of waiting and running jobs.

    Jobs are counted for a hundred queues at most, those with jobs first, and each number up to a
    limit: 2000+ means 2000 or more.
    """
    found = cli.store.settings.queues(cli.namespace)
    overview = cli.store.views.overview(
        OverviewFilter(namespace=cli.namespace, range=TimeRange.QUARTER_HOUR)
    )
    depths = {each.queue: each for each in overview.queues}
    most = depth_limit(len(overview.queues))

    def line(queue: QueueState) -> QueueLine:
        depth = depths.get(queue.name)
        since = None if depth is None else depth.oldest_ready_at
        age_us = None if since is None else Duration(max(0, overview.now - since))
        return to_wire(
            QueueLine,
            queue,
            rate=None if queue.rate is None else str(queue.rate),
            burst=None if queue.rate is None else queue.rate.burst,
            ready=None if depth is None else depth.ready,
            delayed=None if depth is None else depth.delayed,
            waiting=None if depth is None else depth.waiting,
            oldest_ready_s=None if age_us is None else in_seconds(age_us),
        )

    return Listing(
        [line(queue) for queue in found],
        {
            "QUEUE": lambda line: line.name,
            "STATE": lambda line: "paused" if line.paused else "open",
            "READY": lambda line: _counted(line.ready, most),
            "DELAYED": lambda line: _counted(line.delayed, most),
            "WAITING": lambda line: _counted(line.waiting, most),
            "RUNNING": lambda line: line.live,
            "LIMIT": lambda line: line.limit,
            "RATE": lambda line: line.rate,
            "OLDEST READY": lambda line: (
                None if line.oldest_ready_s is None else in_words(line.oldest_ready_s)
            ),
        },
        document=lambda line: line,
    )


def _counted(jobs: int | None, most: int) -> str | None:
    if jobs is None:
        return None
    return f"{jobs}+" if jobs >= most else str(jobs)


queue_argument = together(
    flag("--create", help="Create the queue if no job has used it yet."),
    click.argument("queue"),
)


@command(queues, "pause")
@queue_argument
def pause_queue(cli: Invocation, create: bool, queue: str) -> None:
    """Let no worker claim jobs of QUEUE; running jobs continue."""
    state = cli.api.queues.pause(queue, create=create)
    click.echo(f"{printable(queue)}: paused, {state.live} still running")


@command(queues, "resume")
@queue_argument
def resume_queue(cli: Invocation, create: bool, queue: str) -> None:
    """Let workers claim jobs of QUEUE again."""
    cli.api.queues.resume(queue, create=create)
    click.echo(f"{printable(queue)}: open")


# --- Limits --------------------------------------------------------------------------------------

rate_options = together(
    click.option(
        "--rate",
        metavar="RATE",
        help="At most this many jobs start per second, minute, hour or day: 10/s, 100/m, 5/h,"
        " 1000/d; or none.",
    ),
    click.option(
        "--burst",
        type=int,
        help="How many jobs may start at once after a pause; with --rate. Without it, what the rate"
        " gives in a tenth of a second, and 1 at least.",
    ),
)


def given_rate(rate: str | None) -> str | UnsetType | None:
    """What `--rate` asks for: UNSET leaves the rate unchanged, None removes it."""
    if rate is None:
        return UNSET
    return None if rate.strip().lower() == "none" else rate


def rate_in_words(found: QueueRecord | KindRecord) -> list[str]:
    """The rate of a queue or kind, if it has one, as a sentence has it."""
    return [] if found.rate is None else [f"at most {found.rate}, up to {found.burst} at once"]


@command(queues, "limit")
@rate_options
@queue_argument
@click.argument("limit", type=click.IntRange(0, 1_000_000), required=False)
def limit_queue(
    cli: Invocation,
    create: bool,
    rate: str | None,
    burst: int | None,
    queue: str,
    limit: int | None,
) -> None:
    """Limit how many jobs of QUEUE run at the same time, or how many begin per second.

    The LIMIT applies to all workers together; 0 means no limit. --rate 100/m lets at most 100 jobs
    start per minute, --burst 20 up to 20 of them at once; --rate none removes the rate. What is not
    given stays unchanged.
    """
    state = cli.api.queues.limit(
        queue,
        UNSET if limit is None else limit or None,
        rate=given_rate(rate),
        burst=burst,
        create=create,
    )
    words = [] if state.limit is None else [f"at most {state.limit} at a time"]
    words += rate_in_words(state)
    click.echo(f"{printable(queue)}: {', '.join(words or ['no limit'])}, {state.live} running")


# --- Kinds ---------------------------------------------------------------------------------------


@click.group()
def kinds() -> None:
    """List what is set for kinds, and set it."""


@list_command(kinds, json=list[KindRecord])
def list_kinds(cli: Invocation) -> Listing[KindSettings]:
    """List kinds with their rates and limits, and the policy of jobs that are enqueued without one.

    Workers declare it. A kind without a policy has not been declared by any worker: its jobs get
    the default policy, unless their enqueue brings one.
    """
    return Listing(
        cli.store.settings.kinds(cli.namespace),
        {
            "KIND": lambda each: each.kind,
            "RATE": lambda each: each.rate,
            "BURST": lambda each: None if each.rate is None else each.rate.burst,
            "PER KEY": lambda each: each.concurrency_limit,
            "POLICY": lambda each: None if each.policy is None else policy_in_words(each.policy),
        },
        document=kind_record,
    )


@command(kinds, "sync", url=app_url_option, namespace=None)
@flag("--prune", help="Also remove what is set for kinds of the application that declare nothing.")
@click.option(
    "--from",
    "former",
    metavar="KIND",
    multiple=True,
    help="A former kind of the application: --prune removes what is set for it. May be repeated.",
)
@app_argument
def sync_kinds(cli: Invocation, prune: bool, former: tuple[str, ...], app: str) -> None:
    """Write what the application declares for its kinds: a step of a deploy.

    A worker writes only what the store has never seen. Kinds that already have what is declared
    stay unchanged. Kinds that workers declared before, and that neither the application nor a
    live worker has, are named.
    """
    # Here: they take as long to import as all the rest.
    from tenure.cli.application import load_app, open_for
    from tenure.worker.supervisor.declarations import change_in_words, without_limits

    found = load_app(app)
    declared = {each.kind: each.settings for each in found.registry}
    open_for(cli, found)
    stored = {each.kind: each for each in cli.store.settings.kinds(found.namespace)}
    for kind, wanted in sorted(declared.items()):
        before = stored.get(kind)
        removes = prune and before is not None and before.has_limits and not wanted.has_limits
        if before is not None and before.is_declared_as(wanted) and not removes:
            click.echo(f"{kind}: {wanted}, as before")
            continue
        change = without_limits(wanted) if removes else wanted.as_change()
        kept = cli.store.settings.put_kind(found.namespace, change)
        click.echo(f"{kind}: {change_in_words(before, kept)}")
    others = [each for each in stored.values() if each.kind not in declared]
    for gone in _gone(cli, found.namespace, others, former):
        if prune and gone in former:
            nothing = KindChange(kind=gone, rate=None, concurrency_limit=None, policy=None)
            cli.store.settings.put_kind(found.namespace, nothing)
            click.echo(f"{gone}: removed")
        elif gone in former:
            click.echo(f"{gone}: kept, --prune removes it")
        else:
            click.echo(
                f"{gone}: kept: neither the application nor a live worker has this kind;"
                f" --prune --from {gone} removes it"
            )
    for name in sorted(set(former) - stored.keys()):
        say(f"nothing is set for kind {name}")
    if not declared:
        click.echo("the application has no kinds", err=True)


def _gone(
    cli: Invocation,
    namespace: Namespace,
    others: Sequence[KindSettings],
    former: Collection[str],
) -> list[Kind]:
    """Former kinds of the application, and kinds that were declared and that neither it nor a live
    worker has, unless a worker runs all kinds. `others` are the stored kinds that it does not have;
    one without a policy, which only a declaration sets, was set by hand."""
    workers = live_workers(cli.store, namespace, cli.now)
    runs_all = workers is None or any(not each.kinds for each in workers)
    live = {kind for each in workers or () for kind in each.kinds}
    return [
        each.kind
        for each in others
        if each.kind in former or not (runs_all or each.policy is None or each.kind in live)
    ]


@command(kinds, "limit")
@rate_options
@click.option(
    "--concurrency-limit",
    metavar="JOBS",
    help="At most this many jobs of each concurrency key run at a time; none means 1.",
)
@flag("--create", help="Set it even if no worker or job has KIND yet.")
@click.argument("kind")
def limit_kind(
    cli: Invocation,
    rate: str | None,
    burst: int | None,
    concurrency_limit: str | None,
    create: bool,
    kind: str,
) -> None:
    """Limit how many jobs of KIND start per second, in all queues and on all workers together, and
    how many of each concurrency key run at a time.

    --rate 10/s lets at most 10 jobs start per second, --burst 5 up to 5 of them at once; --rate
    none removes the rate. If jobs have a rate key, the rate counts for each key alone.
    --concurrency-limit 2 lets two jobs of each concurrency key run. What is not given stays
    unchanged.
    """
    kept = cli.api.kinds.limit(
        kind,
        rate=given_rate(rate),
        burst=burst,
        concurrency_limit=_given_limit(concurrency_limit),
        create=create,
    )
    words = ", ".join(rate_in_words(kept) or ["no rate"])
    if kept.concurrency_limit is not None:
        words += f", at most {kept.concurrency_limit} at a time for each key"
    click.echo(f"{printable(kind)}: {words}")


def _given_limit(text: str | None) -> int | UnsetType | None:
    if text is None:
        return UNSET
    if text.strip().lower() == "none":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter("give a number of jobs, or none", param_hint="--concurrency-limit")
    return int(text)


# --- Workers -------------------------------------------------------------------------------------

SHOWN_NAMES = 4


@click.group()
def workers() -> None:
    """List workers, ask them to stop."""


@list_command(workers, json=list[WorkerRecord])
def list_workers(cli: Invocation) -> Listing[ListedWorker]:
    """List the workers that run, and workers that vanished within the last day.

    A worker sends a sign of life every 10 seconds and takes itself off the list when it stops.
    STATE is:

    \b
    alive     its last sign of life is at most 60 seconds old
    draining  the same, and it was asked to stop, by a signal or an operator
    silent    no sign of life for more than 60 seconds: it was killed, hangs,
              or cannot reach the store or server

    So a worker that was killed is listed as alive for up to a minute, which LAST SEEN shows.
    Its jobs do not wait for that: each is taken from it when its own lease ends.
    """
    now = cli.now
    return Listing(
        cli.store.workers.page(cli.namespace),
        {
            "WORKER": lambda seen: seen.worker,
            "STATE": lambda seen: seen.state(now),
            "HOST": lambda seen: seen.host,
            "PID": lambda seen: seen.pid,
            "QUEUES": lambda seen: _few(seen.queues),
            "KINDS": lambda seen: _few(seen.kinds),
            "SLOTS": lambda seen: seen.concurrency,
            "STARTED": lambda seen: ago(seen.started_at, now),
            "LAST SEEN": lambda seen: ago(seen.seen_at, now),
        },
        document=lambda seen: worker_record(seen, now=now),
        optional=("HOST", "PID", "SLOTS", "STARTED", "KINDS"),
    )


def _few(names: Sequence[str]) -> str | None:
    """The first names; `--json` has them all."""
    more = len(names) - SHOWN_NAMES
    return ",".join(names[:SHOWN_NAMES]) + (f" +{more}" if more > 0 else "") or None


@command(workers, "drain")
@click.argument("worker")
def drain_worker(cli: Invocation, worker: str) -> None:
    """Ask WORKER to claim no more jobs, finish those it runs, and stop.

    It notices within seconds. A process that starts under the same name later is not affected.
    """
    cli.api.workers.drain(worker)
    click.echo(f"{printable(worker)}: draining")


def live_workers(
    store: JobStore, namespace: Namespace, now: Instant
) -> tuple[ListedWorker, ...] | None:
    """Workers that are not silent; None if this caller may not list workers, or sees not all of
    what they declare. [H80]"""
    try:
        found = store.workers.page(namespace)
    except RequestRefused:
        return None
    if any(each.schedules is None for each in found):
        return None
    return tuple(each for each in found if each.state(now) is not WorkerState.SILENT)
