"""The overview: how much is going on, and what needs attention."""

from starlette.responses import Response

from tenure.core.overview import TimeRange
from tenure.dashboard.page import Page
from tenure.dashboard.series import plots_of
from tenure.dashboard.visits import Visit
from tenure.protocol.overviews import OverviewReply

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
        overview=found,
        sums=sums,
        plots=plots_of(found),
        ranges=RANGES,
        attention=found.attention[:MAX_ATTENTION],
        left_out=max(0, len(found.attention) - MAX_ATTENTION),
    )


PAGES = (
    Page(
        name="overview",
        path="/",
        answer=overview,
        menu="Overview",
        icon="home",
        key="o",
        asks="overview",
    ),
)
