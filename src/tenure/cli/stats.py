"""`tenure stats`: counts the events of a span of time."""

from collections.abc import Sequence
from datetime import datetime

import click
import msgspec

from tenure.cli.common import (
    When,
    coordination,
    json_option,
    namespace_option,
    refuse,
    url_option,
    when_value,
)
from tenure.cli.output import (
    DURATION_HEAD,
    ProgressLine,
    duration_cells,
    print_json,
    print_table,
    say,
)
from tenure.core.checks import check_name
from tenure.core.counting import counted
from tenure.core.event_counts import (
    EventCounts,
    EventSpan,
    Grouping,
    Totals,
    count_all,
)
from tenure.core.ids import Namespace
from tenure.core.overview import KindOverview, Overview, OverviewFilter, TimeRange, range_since
from tenure.core.vocabulary import EventType
from tenure.ports import JobStore
from tenure.protocol.fields import iso, moment
from tenure.protocol.overviews import DurationsRecord, durations_record

_LIFE = {event_type.value: place for place, event_type in enumerate(EventType)}


class StatsLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The number of events of one group. Fields that `--by` does not name are left out."""

    events: int
    type: str | None = None
    kind: str | None = None
    queue: str | None = None


class KindDurations(msgspec.Struct, frozen=True, kw_only=True):
    """How long jobs of a kind waited, from ready to claimed, and how long those that succeeded
    ran."""

    kind: str
    wait: DurationsRecord
    run: DurationsRecord


class StatsDurations(msgspec.Struct, frozen=True, kw_only=True):
    """Waits and runs of the kinds that had any since `since`, which is where `range` began, or
    later if older events were not counted."""

    range: TimeRange
    since: datetime
    kinds: list[KindDurations]


class StatsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The events from `since` until before `until`. If it is not `complete`, the log has more than
    are counted for one answer, and `until` is where counting stopped. `durations` are there with
    `--by kind` and without `--until`. [OB51]"""

    since: datetime
    until: datetime
    complete: bool
    counts: list[StatsLine]
    durations: StatsDurations | None


@click.command()
@url_option
@json_option(StatsDocument)
@namespace_option
@click.option(
    "--since",
    metavar="WHEN",
    default="24h",
    show_default=True,
    callback=when_value,
    help="Count events from this time on: 24h means 24 hours ago; or 2026-12-01T08:00Z.",
)
@click.option(
    "--until",
    metavar="WHEN",
    callback=when_value,
    help="Count events before this time, written as for --since. [default: now]",
)
@click.option(
    "--by",
    type=click.Choice([str(each) for each in Grouping]),
    multiple=True,
    default=("type",),
    show_default=True,
    help="Count events for each of these; may be repeated, as in --by kind --by type.",
)
def stats(
    url: str | None,
    as_json: bool,
    namespace: str,
    since: When,
    until: When | None,
    by: tuple[str, ...],
) -> None:
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
    with coordination(url) as serving:
        check_name("namespace", namespace)
        now = serving.store.now()
        span = EventSpan(
            namespace=Namespace(namespace),
            since=since.instant(now),
            until=now if until is None else until.instant(now),
        )
        if span.since >= span.until:
            refuse("--since must be earlier than --until")
        totals = _count(serving.store, span, groups)
        overview: Overview | None = None
        if Grouping.KIND in groups and until is None:
            overview = serving.store.views.overview(
                OverviewFilter(namespace=span.namespace, range=range_since(span.since, now))
            )
    in_order = sorted(totals.events, key=lambda values: _place(totals.by, values))
    is_complete = totals.until >= span.until
    if as_json:
        print_json(
            StatsDocument(
                since=moment(totals.since),
                until=moment(totals.until),
                complete=is_complete,
                counts=[_line(totals, values) for values in in_order],
                durations=None if overview is None else _durations(overview),
            )
        )
    else:
        rows = [(*values, totals.events[values]) for values in in_order]
        print_table([*(group.upper() for group in groups), "EVENTS"], rows)
        counts = counted(sum(totals.events.values()), "event")
        say(f"{counts} from {iso(totals.since)} to {iso(totals.until)}")
        if overview is not None:
            _print_durations(overview)
    if not is_complete:
        say("the log has more events than are counted at once; ask for shorter spans")


def _print_durations(overview: Overview) -> None:
    rows = [
        (each.kind, *duration_cells(each.wait, each.run))
        for each in _kinds_with_durations(overview)
    ]
    if rows:
        click.echo()
        print_table(["KIND", *DURATION_HEAD], rows)
        say(f"waits and runs of the last {overview.range}, from {iso(overview.counted_since)} on")


def _durations(overview: Overview) -> StatsDurations:
    return StatsDurations(
        range=overview.range,
        since=moment(overview.counted_since),
        kinds=[
            KindDurations(
                kind=each.kind, wait=durations_record(each.wait), run=durations_record(each.run)
            )
            for each in _kinds_with_durations(overview)
        ],
    )


def _kinds_with_durations(overview: Overview) -> list[KindOverview]:
    return [each for each in overview.kinds if each.wait.samples or each.run.samples]


def _count(store: JobStore, span: EventSpan, by: tuple[Grouping, ...]) -> Totals:
    """Count, and show how far that has come if it takes a while."""
    progress = ProgressLine()

    def count(part: EventSpan) -> EventCounts:
        progress.show(f"counting from {iso(part.since)}")
        return store.events.count(part)

    try:
        return count_all(count, span, by)
    finally:
        progress.done()


def _place(by: Sequence[Grouping], values: Sequence[str]) -> list[tuple[int, str]]:
    """Where a line comes: types in the order of a job's life, names by the alphabet. Types that
    only a newer version knows come last."""
    return [
        (_LIFE.get(value, len(_LIFE)) if group is Grouping.TYPE else 0, value)
        for group, value in zip(by, values, strict=True)
    ]


def _line(totals: Totals, values: tuple[str, ...]) -> StatsLine:
    named = dict(zip(map(str, totals.by), values, strict=True))
    return StatsLine(events=totals.events[values], **named)
