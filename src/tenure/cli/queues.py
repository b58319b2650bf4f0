"""`tenure queues …`: list queues, pause them, limit them; and the options for rates."""

import click
import msgspec
from msgspec import UNSET, UnsetType

from tenure.cli.invocation import Invocation, Listing, command, list_command
from tenure.cli.options import flag, together
from tenure.cli.output import in_words, printable
from tenure.core.claims import QueueState
from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.core.views.overview import OverviewFilter, TimeRange, depth_limit
from tenure.protocol.records import KindRecord, QueueRecord


@click.group()
def queues() -> None:
    """List queues, pause them, limit them."""


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    """A queue in a list. `live` is the number of its leases. `ready` jobs can be claimed,
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
        age_us = None if since is None else max(0, overview.now - since)
        return QueueLine(
            name=queue.name,
            paused=queue.paused,
            limit=queue.limit,
            rate=None if queue.rate is None else str(queue.rate),
            burst=None if queue.rate is None else queue.rate.burst,
            ready=None if depth is None else depth.ready,
            delayed=None if depth is None else depth.delayed,
            waiting=None if depth is None else depth.waiting,
            live=queue.live,
            oldest_ready_s=None if age_us is None else age_us / MICROSECONDS_PER_SECOND,
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
        help="At most this many jobs begin per second, minute, hour or day: 10/s, 100/m, 5/h,"
        " 1000/d; or none.",
    ),
    click.option(
        "--burst",
        type=int,
        help="How many jobs may begin at once after a pause; with --rate. Without it, what the rate"
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
    begin per minute, --burst 20 up to 20 of them at once; --rate none removes the rate. What is not
    given stays unchanged.
    """
    state = cli.api.queues.limit(
        queue,
        UNSET if limit is None else limit or None,
        rate=given_rate(rate),
        burst=burst,
        create=create,
    )
    said = [] if state.limit is None else [f"at most {state.limit} at a time"]
    said += rate_in_words(state)
    click.echo(f"{printable(queue)}: {', '.join(said or ['no limit'])}, {state.live} running")
