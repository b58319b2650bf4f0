"""`tenure events`: lists the events of all jobs, or follows the tail."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import click
import msgspec

from tenure.cli.common import (
    DONE,
    When,
    coordination,
    find_job,
    json_option,
    namespace_option,
    refuse,
    url_option,
    when_value,
)
from tenure.cli.following import POLL_S, Reconnecting, following, pause
from tenure.cli.output import (
    COLOURS,
    GAP,
    SHORTEST_ID,
    ProgressLine,
    ago,
    print_json,
    print_json_line,
    print_table,
    printable,
    say,
    shortened,
    terminal_columns,
)
from tenure.core.event_pages import (
    MAX_LISTED_EVENTS,
    MAX_NEWEST,
    EventFilter,
    EventPage,
    full_page,
    parse_event_key,
    parse_type_filter,
)
from tenure.core.event_tail import EventPosition, TailDelay, TailedEvent, TailFilter
from tenure.core.events import Event
from tenure.core.ids import JobId, Kind, Namespace
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant, seconds
from tenure.core.vocabulary import RENEWALS, EventType
from tenure.ports import JobStore
from tenure.protocol.fields import iso
from tenure.protocol.records import event_record
from tenure.protocol.replies import FollowedEvent, LogReply

LISTED = 50
SHOWN_FIRST = 10
HELD = seconds(5)
"""How long a server may hold a question for new events."""

DELAY_S = 1.5
"""How often it is asked what delays the tail. Two equal answers are a delay. [E35]"""

MAX_KINDS_KEPT = 10_000
MAX_KINDS_READ = 50
"""Jobs whose kind is looked up at a time: of a followed page, the rest of them show none."""

_TITLES = ("TIME", "JOB", "KIND", "EVENT", "CHANGE", "ATTEMPT", "BY", "CAUSE")
_WIDTHS = (27, 36, 20, 16, 23, 7, 12, 1)
"""Of the columns of a followed log: a job's id and the words of the vocabulary are never cut."""

_WIDE = 160
_NARROW_KIND = 14
_CLOCK, _MICROSECOND_CLOCK = len("20:15:00.123"), len("20:15:00.123456Z")

_ENDINGS = frozenset(
    (
        *(EventType.SUCCEEDED, EventType.FAILED, EventType.CANCELLED),
        *(EventType.DEAD_LETTERED, EventType.STALLED),
    )
)


@click.command()
@url_option
@json_option(LogReply, followed_shape=FollowedEvent)
@namespace_option
@click.option(
    "--follow",
    "-f",
    "follows",
    is_flag=True,
    help="Show new events as they are committed, until you press Ctrl-C.",
)
@click.option(
    "--heartbeats",
    is_flag=True,
    help="With -f: show heartbeats and renewals of leases, too. They are also shown if --type names"
    " them, and with --json.",
)
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
    help="Go on where a page ended, at its next_after; give the same filters and order. With"
    " --follow: go on after the event that has this `position` in --json.",
)
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(0, MAX_LISTED_EVENTS),
    help=f"At most this many events. [default: {LISTED}] With --follow: begin with so many of the"
    f" newest ones, at most {MAX_NEWEST}. [default: {SHOWN_FIRST}]",
)
def events(
    url: str | None,
    as_json: bool,
    follows: bool,
    heartbeats: bool,
    namespace: str,
    job: str | None,
    words: tuple[str, ...],
    correlation_id: str | None,
    **paging: Any,
) -> None:
    """List the events of all jobs by time, newest first; or follow them with -f.

    An event that is committed late can come before events that were listed already. Renewals of
    leases are deleted when their attempt has ended, and finished jobs are deleted with their events
    after a time (see --keep-finished of `tenure worker`).

    With -f, none is missed and none comes twice. Events of one job come in their order. Those of
    different jobs come in the order of commits on SQLite, and on PostgreSQL in the order in which
    their transactions began to write. There, an event is shown when all transactions that began to
    write before its own have ended; after about 3 s it is said which transaction delays events.
    Heartbeats and renewals of leases are not shown unless you ask for them. With --oldest-first it
    begins with the oldest event that the store has. It ends with Ctrl-C; after a lost connection it
    goes on where it was.

    \b
    Examples:
      tenure events --since 1h --type failed --type dead_lettered
      tenure events --correlation-id order-7 --oldest-first
      tenure events --job 01a1e920-e889-7a9c --json
      tenure events -f --type dead_lettered
    """
    with coordination(url) as serving:
        filters: dict[str, Any] = {
            "namespace": Namespace(namespace),
            "job_id": None if job is None else find_job(serving, job, namespace).id,
            "types": tuple(map(parse_type_filter, words)),
            "correlation_id": correlation_id,
        }
        if follows:
            wanted = TailFilter(**filters, **_begin(**paging))
            hides = not (heartbeats or words or as_json)
            _follow(serving.store, wanted, as_json=as_json, hides_renewals=hides)
        else:
            _list(serving.store, filters, **paging, as_json=as_json)


def _list(
    store: JobStore,
    filters: dict[str, Any],
    *,
    since: When | None,
    until: When | None,
    oldest_first: bool,
    after: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    now = store.now()
    begin = None if since is None else since.instant(now)
    end = None if until is None else until.instant(now)
    if begin is not None and begin >= (end or now):
        refuse("--since must be earlier than --until")
    wanted = EventFilter(
        **filters,
        since=begin,
        until=end,
        newest_first=not oldest_first,
        after=None if after is None else parse_event_key(after),
        limit=LISTED if limit is None else limit,
    )
    page = _find(store, wanted)
    next_after = None if page.next is None else page.next.text
    if as_json:
        shown = tuple(event_record(event) for event in page.events)
        print_json(LogReply(events=shown, next_after=next_after))
        return
    kinds = _Kinds(store)
    for start in range(0, len(page.events), MAX_KINDS_READ):
        kinds.learn(page.events[start : start + MAX_KINDS_READ])
    _print_events(page.events, kinds, now)
    if next_after is not None:
        say(f"there may be more; for the next page, add --after {next_after}")


def _find(store: JobStore, wanted: EventFilter) -> EventPage:
    """Read, and show how far that has come if it takes a while."""
    progress = ProgressLine()

    def list_events(part: EventFilter) -> EventPage:
        progress.show(f"reading from {iso(None if part.after is None else part.after.ts)}")
        return store.events.page(part)

    try:
        return full_page(list_events, wanted)
    finally:
        progress.done()


def _print_events(events: Sequence[Event], kinds: "_Kinds", now: Instant) -> None:
    print_table(
        _TITLES,
        [
            (
                ago(event.ts, now),
                event.job_id,
                kinds.of(event.job_id),
                event.type,
                f"{event.from_status or '-'} → {event.to_status}",
                event.attempt,
                event.actor,
                event.shown_cause,
            )
            for event in events
        ],
        optional=("KIND", "CHANGE", "BY", "ATTEMPT"),
    )


# --- Following -----------------------------------------------------------------------------------


def _begin(
    *,
    since: When | None,
    until: When | None,
    oldest_first: bool,
    after: str | None,
    limit: int | None,
) -> dict[str, Any]:
    """Where a follower begins, as fields of its filter."""
    if since is not None or until is not None:
        raise click.UsageError("--since and --until do not go with --follow; give -n or --after.")
    if after is not None or oldest_first:
        if limit is not None or (after is not None and oldest_first):
            raise click.UsageError("--follow takes one of -n, --after and --oldest-first.")
        return {"after": None if after is None else EventPosition(after)}
    newest = SHOWN_FIRST if limit is None else limit
    if newest > MAX_NEWEST:
        raise click.UsageError(f"--follow begins with at most {MAX_NEWEST} of the newest events.")
    return {"newest": newest}


def _follow(
    store: JobStore, wanted: TailFilter, *, as_json: bool, hides_renewals: bool = False
) -> None:
    """Show events as they come, until Ctrl-C. [E33]"""
    reading = Reconnecting()
    kinds = _Kinds(store)
    delays = _Delays(store)
    newest = wanted.newest
    if newest and hides_renewals:  # so that enough of them are left
        wanted = msgspec.structs.replace(wanted, newest=MAX_NEWEST)
    if not as_json:
        click.secho(_row(*_TITLES), bold=True)
    with following(interrupted=DONE):
        while True:
            asked_at = time.monotonic()
            page = reading.ask(partial(store.events.follow, wanted, wait_us=HELD))
            # Here and not in the question: that would leave out types of a newer version, too.
            shown = [
                each for each in page.events if not (hides_renewals and each.event.type in RENEWALS)
            ]
            if newest:
                shown, newest = shown[-newest:], None
            if not as_json:
                reading.ask(partial(kinds.learn, [each.event for each in shown]))
            for each in shown:
                _show(each, kinds, as_json=as_json)
            wanted = msgspec.structs.replace(wanted, after=page.next, newest=None)
            delays.tell(reading)
            if page.is_end:  # a server that held the call has waited already
                pause(max(0.0, POLL_S - (time.monotonic() - asked_at)))


class _Delays:
    """Says which transaction delays the tail, once for each. [E35]"""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._asked_at = time.monotonic()
        self._seen: int | None = None
        self._told: int | None = None

    def tell(self, reading: Reconnecting) -> None:
        """Ask every few seconds, and say it if the answer is the same transaction again."""
        if time.monotonic() - self._asked_at < DELAY_S:
            return
        found = reading.ask(self._store.events.delay)
        self._asked_at = time.monotonic()
        transaction = None if found is None else found.transaction
        if found is not None and transaction == self._seen != self._told:
            say(f"events are delayed by {_described(found)}; they come when it has ended")
            self._told = transaction
        self._seen = transaction


def _described(delay: TailDelay) -> str:
    """The transaction, for whoever wants to end it."""
    name = printable(delay.name) or "an application without a name"
    facts = [] if delay.state is None else [printable(delay.state)]
    if delay.open_us is not None:
        facts.append(f"open for {delay.open_us // MICROSECONDS_PER_SECOND} s")
    of = f"{name} (backend {delay.pid})" if delay.pid else f"the prepared transaction {name}"
    return ", ".join((f"an open transaction of {of}" if delay.pid else of, *facts))


class _Kinds:
    """Of which kind jobs are: an event tells that only if it is the job's first one. Others are
    looked up, once for each job and a bounded number at a time."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._known: dict[JobId, Kind | None] = {}

    def learn(self, events: Sequence[Event]) -> None:
        """Find out the kinds of the jobs of these events."""
        told: dict[JobId, Kind | None] = {
            each.job_id: each.payload.kind for each in events if each.payload.kind is not None
        }
        rest = {each.job_id for each in events} - told.keys() - self._known.keys()
        asked = sorted(rest)[:MAX_KINDS_READ]
        found = self._store.jobs.read(asked) if asked else {}
        told |= {each: found[each].kind if each in found else None for each in asked}
        if len(self._known) + len(told) > MAX_KINDS_KEPT:
            self._known.clear()
        self._known |= told

    def of(self, job_id: JobId) -> Kind | None:
        """The kind of a job; None if it is not known."""
        return self._known.get(job_id)


def _show(tailed: TailedEvent, kinds: _Kinds, *, as_json: bool) -> None:
    event = tailed.event
    if as_json:
        print_json_line(FollowedEvent(position=tailed.position, event=event_record(event)))
        return
    line = _row(
        iso(event.ts),
        event.job_id,
        kinds.of(event.job_id) or "-",
        event.type,
        f"{event.from_status or '-'} → {event.to_status}",
        event.attempt,
        event.actor,
        event.shown_cause,
    )
    click.secho(line, fg=COLOURS.get(event.to_status) if event.type in _ENDINGS else None)


def _row(*cells: object) -> str:
    """A line of the table: its columns have the same widths in every line, whatever comes. On a
    narrow terminal, times, ids and kinds are shorter."""
    columns = terminal_columns()
    at, job_id, kind, *rest = [printable(str(cell)) for cell in cells]
    widths = _WIDTHS
    if columns is not None and columns < _WIDE:
        at, job_id = at[-_MICROSECOND_CLOCK:][:_CLOCK], shortened(job_id, SHORTEST_ID)
        widths = (_CLOCK, SHORTEST_ID, _NARROW_KIND, *_WIDTHS[3:])
    if columns is not None:
        kind = shortened(kind, widths[2])
    cut = [text.ljust(width) for text, width in zip((at, job_id, kind, *rest), widths, strict=True)]
    line = GAP.join(cut).rstrip()
    return line if columns is None else shortened(line, columns)
