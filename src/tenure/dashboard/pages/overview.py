"""The overview: how much there is to do, what needs attention, and a plot
of how jobs ended.

The plot is a table first: pages show the table, and the plot is drawn from it.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from starlette.responses import Response

from tenure.core.views.overview import TimeRange
from tenure.dashboard.visits import Page, Visit
from tenure.protocol.records import OutcomeBucketRecord, OverviewReply

MAX_ATTENTION = 12
"""What needs attention, the most urgent first, as far as the first page shows it."""

RANGES = tuple(each.value for each in TimeRange)
DEPTHS = ("ready", "delayed", "leased", "waiting", "stalled", "dead_letters")


async def ask_overview(
    visit: Visit, *, queue: str | None = None, kind: str | None = None
) -> OverviewReply:
    """The overview of the range that the URL names, of one queue or kind if asked for."""
    query = {"range": visit.query("range"), "queue": queue, "kind": kind}
    return await visit.ask("overview", OverviewReply, query=query)


async def overview(visit: Visit) -> Response:
    """The first page."""
    found = await ask_overview(visit)
    sums = {name: sum(getattr(each, name) for each in found.queues) for name in DEPTHS}
    return await visit.show(
        "overview.html",
        **plotted(found),
        sums=sums,
        attention=found.attention[:MAX_ATTENTION],
        left_out=max(0, len(found.attention) - MAX_ATTENTION),
    )


# --- the plot

LEAST_OF_BUCKET = 0.25
"""The last bucket is not over; a rate of less than this part of it would jump."""


class Line(msgspec.Struct, frozen=True):
    """One line of a plot: its word, the name of its colour and dashes in the style sheet, and the
    field of a bucket that it draws."""

    label: str
    style: str
    field: str


class Row(msgspec.Struct, frozen=True):
    """The values of all lines at one instant."""

    at: datetime
    values: tuple[float, ...]


RATES = (
    Line("enqueued", "enqueued", "enqueued"),
    Line("succeeded", "succeeded", "succeeded"),
    Line("retried", "retried", "requeued"),
    Line("failed", "failed", "failed"),
    Line("dead-lettered", "dead", "dead_lettered"),
    Line("cancelled", "cancelled", "cancelled"),
)


def plotted(overview: OverviewReply) -> dict[str, Any]:
    """What the templates need for the plot of an overview and the choice of its range."""
    buckets = counted(overview.buckets, overview.counted_since)
    rows = rates(buckets, overview.bucket_s, overview.now)
    return {"overview": overview, "lines": RATES, "rows": rows, "ranges": RANGES}


def counted(
    buckets: Sequence[OutcomeBucketRecord], since: datetime
) -> tuple[OutcomeBucketRecord, ...]:
    """The buckets whose events were counted. If counting started within the first, that one starts
    then. Earlier ones are unknown, not empty."""
    whole = tuple(each for each in buckets if each.at >= since)
    return whole or tuple(msgspec.structs.replace(each, at=since) for each in buckets[-1:])


def rates(
    buckets: Sequence[OutcomeBucketRecord], bucket_s: float, now: datetime
) -> tuple[Row, ...]:
    """Jobs per second in each bucket, at its beginning."""
    rows = []
    for bucket in buckets:
        length_s = min(bucket_s, (now - bucket.at).total_seconds())
        if length_s < LEAST_OF_BUCKET * bucket_s:
            continue
        counts = (getattr(bucket, line.field) for line in RATES)
        rows.append(Row(bucket.at, tuple(count / length_s for count in counts)))
    return tuple(rows)


PAGES = (Page("overview", "/", overview, menu="Overview", icon="home", key="o", asks="overview"),)
