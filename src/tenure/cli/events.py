"""`tenure events` lists the events of all jobs, or follows the tail; `tenure stats` counts them."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import click
import msgspec

from tenure.cli.errors import DONE, refuse
from tenure.cli.following import POLL_S, Reconnecting, following, pause
from tenure.cli.invocation import Invocation, command, find_job
from tenure.cli.options import When, flag, when_option, whole_number
from tenure.cli.output import (
    COLOURS,
    GAP,
    SHORTEST_ID,
    ago,
    duration,
    print_json,
    print_json_line,
    print_table,
    printable,
    say,
    shortened,
    terminal_columns,
)
from tenure.core.events import Event
from tenure.core.ids import JobId, Kind
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant, seconds
from tenure.core.views.event_counts import EventSpan, Grouping, count_all
from tenure.core.views.events import (
    MAX_LISTED_EVENTS,
    MAX_NEWEST,
    EventFilter,
    EventPosition,
    TailDelay,
    TailedEvent,
    TailFilter,
    full_page,
    parse_event_key,
    parse_type_filter,
)
from tenure.core.views.overview import (
    KindOverview,
    Overview,
    OverviewFilter,
    TimeRange,
    range_since,
)
from tenure.core.vocabulary import RENEWALS, EventType, counted
from tenure.ports import JobStore
from tenure.protocol.fields import instant, iso, moment
from tenure.protocol.records import DerivedRecord, event_record
from tenure.protocol.replies import FollowedEvent, LogReply
from tenure.protocol.translation import derived, to_wire

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
"""Of the columns of a followed log: the words of the vocabulary are never cut."""

_CLOCK, _MICROSECOND_CLOCK = len("20:15:00.123"), len("20:15:00.123456Z")
_TERMINAL_WIDTHS = (_CLOCK, SHORTEST_ID, 14, *_WIDTHS[3:])

_ENDINGS = frozenset(
    (
        *(EventType.SUCCEEDED, EventType.FAILED, EventType.CANCELLED),
        *(EventType.DEAD_LETTERED, EventType.STALLED),
    )
)


@command(None, "events", json=LogReply, followed=FollowedEvent)
@flag(
    "--follow",
    "-f",
    "follows",
    help="Show new events as they are committed, until you press Ctrl-C.",
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
@when_option(
    "--since", "Only events from this time on: 24h means 24 hours ago; or 2026-12-01T08:00Z."
)
@when_option("--until", "Only events before this time, written as for --since.")
@click.option(
    "--correlation-id",
    help="Only events of jobs with this correlation id. A job that was given none has its own ID.",
)
@flag("--oldest-first", help="Start with the oldest event.")
@click.option(
    "--after",
    metavar="PLACE",
    help="Continue where a page ended, at its next_after; give the same filters and order. With"
    " --follow: continue after the event that has this `position` in --json.",
)
@whole_number(
    "--limit",
    "-n",
    least=0,
    most=MAX_LISTED_EVENTS,
    help=f"At most this many events. [default: {LISTED}] With --follow: start with this many of the"
    f" newest ones, at most {MAX_NEWEST}. [default: {SHOWN_FIRST}]",
)
def events(
    cli: Invocation,
    follows: bool,
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
    their transactions started to write. There, an event is shown when all transactions that started
    to write before its own have ended; after about 3 s it names the transaction that delays events.
    Heartbeats and renewals of leases are shown only if --type names them, and with --json. With
    --oldest-first it starts with the oldest event that the store has. It ends with Ctrl-C; after a
    lost connection it continues where it was.

    \b
    Examples:
      tenure events --since 1h --type failed --type dead_lettered
      tenure events --correlation-id order-7 --oldest-first
      tenure events --job 01a1e920-e889-7a9c --json
      tenure events -f --type dead_lettered
    """
    filters: dict[str, Any] = {
        "namespace": cli.namespace,
        "job_id": None if job is None else find_job(cli, job).id,
        "types": tuple(map(parse_type_filter, words)),
        "correlation_id": correlation_id,
    }
    if follows:
        wanted = TailFilter(**filters, **_begin(**paging))
        hides = not (words or cli.as_json)
        _follow(cli.store, wanted, as_json=cli.as_json, hides_renewals=hides)
    else:
        _list(cli, filters, **paging)


def _list(
    cli: Invocation,
    filters: dict[str, Any],
    *,
    since: When | None,
    until: When | None,
    oldest_first: bool,
    after: str | None,
    limit: int | None,
) -> None:
    now = cli.now
    begin, end = _span(since, until, now)
    wanted = EventFilter(
        **filters,
        since=begin,
        until=end,
        newest_first=not oldest_first,
        after=None if after is None else parse_event_key(after),
        limit=LISTED if limit is None else limit,
    )
    page = full_page(cli.store.events.page, wanted)
    next_after = None if page.next is None else page.next.text
    if cli.as_json:
        shown = tuple(event_record(event) for event in page.events)
        print_json(LogReply(events=shown, next_after=next_after))
        return
    kinds: dict[JobId, Kind | None] = {}
    for start in range(0, len(page.events), MAX_KINDS_READ):
        _learn_kinds(cli.store, kinds, page.events[start : start + MAX_KINDS_READ])
    rows = [_cells(each, ago(each.ts, now), kinds.get(each.job_id)) for each in page.events]
    print_table(_TITLES, rows, optional=("KIND", "CHANGE", "BY", "ATTEMPT"))
    if next_after is not None:
        say(f"there may be more; for the next page, add --after {next_after}")


def _span(
    since: When | None, until: When | None, now: Instant
) -> tuple[Instant | None, Instant | None]:
    """From when until when; ends the command if that is no span."""
    begin = None if since is None else since.instant(now)
    end = None if until is None else until.instant(now)
    if begin is not None and begin >= (now if end is None else end):
        refuse("--since must be earlier than --until")
    return begin, end


def _cells(event: Event, at: str | None, kind: str | None) -> tuple[object, ...]:
    """What is shown of an event under `_TITLES`."""
    change = f"{event.from_status or '-'} → {event.to_status}"
    about = (event.attempt, event.actor, event.cause_or_operation)
    return (at, event.job_id, kind, event.type, change, *about)


# --- Following -----------------------------------------------------------------------------------


def _begin(
    *,
    since: When | None,
    until: When | None,
    oldest_first: bool,
    after: str | None,
    limit: int | None,
) -> dict[str, Any]:
    """Where a follower starts, as fields of its filter."""
    if since is not None or until is not None:
        raise click.UsageError("--since and --until do not go with --follow; give -n or --after.")
    if after is not None or oldest_first:
        if limit is not None or (after is not None and oldest_first):
            raise click.UsageError("--follow takes one of -n, --after and --oldest-first.")
        return {"after": None if after is None else EventPosition(after)}
    newest = SHOWN_FIRST if limit is None else limit
    if newest > MAX_NEWEST:
        raise click.UsageError(f"--follow starts with at most {MAX_NEWEST} of the newest events.")
    return {"newest": newest}


def _follow(
    store: JobStore, wanted: TailFilter, *, as_json: bool, hides_renewals: bool = False
) -> None:
    """Show events as they come, until Ctrl-C. [E33]"""
    reading = Reconnecting()
    kinds: dict[JobId, Kind | None] = {}
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
                reading.ask(partial(_learn_kinds, store, kinds, [each.event for each in shown]))
            for each in shown:
                _show(each, kinds, as_json=as_json)
            wanted = msgspec.structs.replace(wanted, after=page.next, newest=None)
            delays.report(reading)
            if page.is_end:  # a server that held the call has waited already
                pause(max(0.0, POLL_S - (time.monotonic() - asked_at)))


class _Delays:
    """Reports the transaction that delays the tail, once for each. [E35]"""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._asked_at = time.monotonic()
        self._seen: int | None = None
        self._reported: int | None = None

    def report(self, reading: Reconnecting) -> None:
        """Ask every few seconds, and report it if the answer is the same transaction again."""
        if time.monotonic() - self._asked_at < DELAY_S:
            return
        found = reading.ask(self._store.events.delay)
        self._asked_at = time.monotonic()
        transaction = None if found is None else found.transaction
        if found is not None and transaction == self._seen != self._reported:
            say(f"events are delayed by {_described(found)}; they come when it has ended")
            self._reported = transaction
        self._seen = transaction


def _described(delay: TailDelay) -> str:
    """The transaction, for the user who wants to end it."""
    name = delay.name or "an application without a name"
    of = f"an open transaction of {name} (backend {delay.pid})"
    facts = [of if delay.pid else f"the prepared transaction {name}"]
    facts += [] if delay.state is None else [delay.state]
    if delay.open_us is not None:
        facts.append(f"open for {delay.open_us // MICROSECONDS_PER_SECOND} s")
    return ", ".join(facts)


def _learn_kinds(store: JobStore, known: dict[JobId, Kind | None], events: Sequence[Event]) -> None:
    """Add the kinds of the jobs of these events. Only the first event of a job says its kind; other
    jobs are read, a bounded number at a time."""
    if len(known) > MAX_KINDS_KEPT:
        known.clear()
    known |= {each.job_id: each.payload.kind for each in events if each.payload.kind is not None}
    rest = sorted({each.job_id for each in events} - known.keys())[:MAX_KINDS_READ]
    found = store.jobs.read(rest) if rest else {}
    known |= {each: found[each].kind if each in found else None for each in rest}


def _show(tailed: TailedEvent, kinds: Mapping[JobId, Kind | None], *, as_json: bool) -> None:
    event = tailed.event
    if as_json:
        print_json_line(FollowedEvent(position=tailed.position, event=event_record(event)))
        return
    line = _row(*_cells(event, iso(event.ts), kinds.get(event.job_id) or "-"))
    click.secho(line, fg=COLOURS.get(event.to_status) if event.type in _ENDINGS else None)


def _row(*cells: object) -> str:
    """A line of the table: its columns have the same widths in every line, whatever comes. On a
    terminal, times, ids and kinds are shorter."""
    columns, texts = terminal_columns(), [printable(str(cell)) for cell in cells]
    if columns is None:
        return GAP.join(map(str.ljust, texts, _WIDTHS)).rstrip()
    at, *rest = texts
    texts = [
        at[-_MICROSECOND_CLOCK:][:_CLOCK],
        *map(shortened, rest[:2], _TERMINAL_WIDTHS[1:]),
        *rest[2:],
    ]
    return shortened(GAP.join(map(str.ljust, texts, _TERMINAL_WIDTHS)).rstrip(), columns)


# --- Counting ------------------------------------------------------------------------------------

_LIFE = {event_type.value: place for place, event_type in enumerate(EventType)}


class StatsLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The number of events of one group. Fields that `--by` does not name are left out."""

    events: int
    type: str | None = None
    kind: str | None = None
    queue: str | None = None


@derived(KindOverview, only="kind wait run")
class KindDurations(DerivedRecord, frozen=True, kw_only=True):
    """How long jobs of a kind waited, from ready to claimed, and how long those that succeeded
    ran."""


class StatsDurations(msgspec.Struct, frozen=True, kw_only=True):
    """Waits and runs of the kinds that had any since `since`, which is where `range` started, or
    later if older events were not counted."""

    range: TimeRange
    since: datetime
    kinds: list[KindDurations]


class StatsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The events from `since` until before `until`. If it is not `complete`, the log has more than
    are counted for one answer, and `until` is where counting stopped. `durations` are there with
    `--by kind` and without `--until`. [OB52]"""

    since: datetime
    until: datetime
    complete: bool
    counts: list[StatsLine]
    durations: StatsDurations | None


@command(None, "stats", json=StatsDocument)
@when_option(
    "--since",
    "Count events from this time on: 24h means 24 hours ago; or 2026-12-01T08:00Z.",
    default="24h",
    show_default=True,
)
@when_option("--until", "Count events before this time, written as for --since. [default: now]")
@click.option(
    "--by",
    type=click.Choice([str(each) for each in Grouping]),
    multiple=True,
    default=("type",),
    show_default=True,
    help="Count events for each of these; may be repeated, as in --by kind --by type.",
)
def stats(cli: Invocation, since: When, until: When | None, by: tuple[str, ...]) -> None:
    """Count the events in the histories of jobs, by default those of the last 24 hours.

    Every event is counted, whichever process or transaction committed it. Events that Tenure has
    deleted are not counted: renewals of leases, which it deletes when their attempt has ended, and
    finished jobs, which it deletes with their histories after a time (see --keep-finished of
    `tenure worker`).

    With --by kind, and without --until, it also shows how long the jobs of each kind waited and
    ran, median and 95th percentile, in the last 15m, 1h, 6h, 24h or 7d: the shortest of these that
    is as long as the time since --since, else 7d.

    \b
    Examples:
      tenure stats --since 7d --by kind --by type
      tenure stats --since 2026-12-01T00:00Z --until 2026-12-02T00:00Z --json
    """
    groups = tuple(dict.fromkeys(Grouping(each) for each in by))
    now = cli.now
    begin, end = _span(since, until, now)
    span = EventSpan(namespace=cli.namespace, since=begin or now, until=now if end is None else end)
    totals = count_all(cli.store.events.count, span, groups)
    overview: Overview | None = None
    if Grouping.KIND in groups and until is None:
        overview = cli.store.views.overview(
            OverviewFilter(namespace=span.namespace, range=range_since(span.since, now))
        )
    in_order = sorted(totals.events, key=lambda values: _place(totals.by, values))
    is_complete = totals.until >= span.until
    if cli.as_json:
        print_json(
            StatsDocument(
                since=moment(totals.since),
                until=moment(totals.until),
                complete=is_complete,
                counts=[
                    StatsLine(
                        events=totals.events[values], **dict(zip(totals.by, values, strict=True))
                    )
                    for values in in_order
                ],
                durations=None if overview is None else _durations(overview),
            )
        )
    else:
        rows = [(*values, totals.events[values]) for values in in_order]
        print_table([*(group.upper() for group in groups), "EVENTS"], rows)
        counts = counted(sum(totals.events.values()), "event")
        say(f"{counts} from {iso(totals.since)} to {iso(totals.until)}")
        if overview is not None:
            _print_durations(_durations(overview))
    if not is_complete:
        say("the log has more events than are counted at once; ask for shorter spans")


def _durations(overview: Overview) -> StatsDurations:
    return StatsDurations(
        range=overview.range,
        since=moment(overview.counted_since),
        kinds=[
            to_wire(KindDurations, each)
            for each in overview.kinds
            if each.wait.samples or each.run.samples
        ],
    )


def _print_durations(found: StatsDurations) -> None:
    if not found.kinds:
        return
    click.echo()
    print_table(
        ["KIND", "WAIT P50", "WAIT P95", "RUN P50", "RUN P95"],
        [
            (
                each.kind,
                *(duration(s) for of in (each.wait, each.run) for s in (of.p50_s, of.p95_s)),
            )
            for each in found.kinds
        ],
    )
    say(f"waits and runs of the last {found.range}, from {iso(instant(found.since))} on")


def _place(by: Sequence[Grouping], values: Sequence[str]) -> list[tuple[int, str]]:
    """Where a line comes: types in the order of a job's life, names by the alphabet. Types that
    only a newer version knows come last."""
    return [
        (_LIFE.get(value, len(_LIFE)) if group is Grouping.TYPE else 0, value)
        for group, value in zip(by, values, strict=True)
    ]
