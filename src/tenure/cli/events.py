"""`tenure events`: lists the events of all jobs."""

from collections.abc import Sequence

import click

from tenure.cli.common import (
    When,
    coordination,
    find_job,
    json_option,
    namespace_option,
    refuse,
    reported_errors,
    url_option,
    when_value,
)
from tenure.cli.output import ProgressLine, ago, print_json, print_table, say
from tenure.core.event_pages import (
    MAX_LISTED_EVENTS,
    EventFilter,
    EventPage,
    full_page,
    parse_event_key,
    parse_type_filter,
)
from tenure.core.events import Event
from tenure.core.ids import Namespace
from tenure.core.instants import Instant
from tenure.core.vocabulary import EventType
from tenure.ports import JobStore
from tenure.protocol.fields import iso
from tenure.protocol.records import event_record
from tenure.protocol.replies import LogReply


@click.command()
@url_option
@json_option(LogReply)
@namespace_option
@click.option("--job", "job", metavar="ID", help="Only events of this job.")
@click.option(
    "--type",
    "-t",
    "words",
    metavar="TYPE",
    multiple=True,
    help=f"Only events of this type; may be repeated. One of {', '.join(EventType)}; or a name, as"
    " in job_claimed or job_compensated.",
)
@click.option(
    "--since",
    metavar="WHEN",
    callback=when_value,
    help="Only events from this time on: 24h means 24 hours ago; or 2026-12-01T08:00Z.",
)
@click.option(
    "--until",
    metavar="WHEN",
    callback=when_value,
    help="Only events before this time, written as for --since.",
)
@click.option(
    "--correlation-id",
    help="Only events of jobs with this correlation id. A job that was given none has its own ID.",
)
@click.option("--oldest-first", is_flag=True, help="Begin with the oldest event.")
@click.option(
    "--after",
    metavar="PLACE",
    help="Go on where a page ended, at its next_after; give the same filters and order.",
)
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, MAX_LISTED_EVENTS),
    default=50,
    show_default=True,
    help="At most this many events.",
)
def events(
    url: str | None,
    as_json: bool,
    namespace: str,
    job: str | None,
    words: tuple[str, ...],
    since: When | None,
    until: When | None,
    correlation_id: str | None,
    oldest_first: bool,
    after: str | None,
    limit: int,
) -> None:
    """List the events of all jobs by time, newest first.

    An event that is committed late can come before events that were listed already. Renewals of
    leases are deleted when their attempt has ended, and finished jobs are deleted with their events
    after a time (see --keep-finished of `tenure worker`).

    \b
    Examples:
      tenure events --since 1h --type failed --type dead_lettered
      tenure events --correlation-id order-7 --oldest-first
      tenure events --job 01a1e920-e889-7a9c --json
    """
    with coordination(url) as serving, reported_errors():
        now = serving.store.now()
        begin = None if since is None else since.instant(now)
        end = None if until is None else until.instant(now)
        if begin is not None and begin >= (end or now):
            refuse("--since must be earlier than --until")
        wanted = EventFilter(
            namespace=Namespace(namespace),
            job_id=None if job is None else find_job(serving, job, namespace).id,
            types=tuple(map(parse_type_filter, words)),
            correlation_id=correlation_id,
            since=begin,
            until=end,
            newest_first=not oldest_first,
            after=None if after is None else parse_event_key(after),
            limit=limit,
        )
        page = _find(serving.store, wanted)
    next_after = None if page.next is None else page.next.text
    if as_json:
        shown = tuple(event_record(event) for event in page.events)
        print_json(LogReply(events=shown, next_after=next_after))
        return
    _print_events(page.events, now)
    if next_after is not None:
        say(f"there may be more; for the next page, add --after {next_after}")


def _find(store: JobStore, wanted: EventFilter) -> EventPage:
    """Read, and show how far that has come if it takes a while."""
    progress = ProgressLine()

    def list_events(part: EventFilter) -> EventPage:
        progress.show(f"reading from {iso(None if part.after is None else part.after.ts)}")
        return store.list_events(part)

    try:
        return full_page(list_events, wanted)
    finally:
        progress.done()


def _print_events(events: Sequence[Event], now: Instant) -> None:
    print_table(
        ["TIME", "JOB", "EVENT", "CHANGE", "ATTEMPT", "BY", "CAUSE"],
        [
            (
                ago(event.ts, now),
                event.job_id,
                event.type,
                f"{event.from_status or '-'} → {event.to_status}",
                event.attempt,
                event.actor,
                event.shown_cause,
            )
            for event in events
        ],
        optional=("CHANGE", "BY", "ATTEMPT"),
    )
