"""Kinds: what holds for all jobs of one kind, whatever their queue."""

from starlette.responses import Response

from tenure.dashboard.actions import Action, Field
from tenure.dashboard.page import Page
from tenure.dashboard.pages.limits import BURST, RATE, limits_in, limits_of, show_one
from tenure.dashboard.pages.overview import RANGES, ask_overview
from tenure.dashboard.visits import Visit
from tenure.protocol.records import KindRecord
from tenure.protocol.replies import KindsReply


async def kinds(visit: Visit) -> Response:
    """The kinds that have jobs now or had events in the range, and those that something is set
    for."""
    found = await visit.ask("kinds", KindsReply)
    overview = await ask_overview(visit)
    depths = {each.kind: each for each in overview.kinds}
    settings = {each.kind: each for each in found.kinds}
    return await visit.show(
        "kinds.html",
        names=sorted({*depths, *settings}),
        depths=depths,
        settings=settings,
        overview=overview,
        ranges=RANGES,
    )


async def kind(visit: Visit) -> Response:
    """One kind. It has a page even if nothing is set for it."""
    name = visit.part("kind")
    return await show_one(visit, "kind", name, await _settings(visit, name))


async def _settings(visit: Visit, name: str) -> KindRecord | None:
    found = await visit.ask("kinds", KindsReply)
    return next((each for each in found.kinds if each.kind == name), None)


async def _limits(visit: Visit, name: str) -> dict[str, str]:
    return limits_of(await _settings(visit, name), "rate", "burst", "concurrency_limit")


ACTIONS = (
    Action(
        name="set-kind",
        target="kind",
        noun="kind",
        verb="Set limits",
        phrase="Set limits of {}",
        explains="What is set here holds for all jobs of this kind, for all workers together.",
        done="limits set",
        icon="gauge",
        back="/kinds",
        fields=(
            RATE,
            BURST,
            Field(
                name="concurrency_limit",
                label="Jobs at a time for each concurrency key",
                kind="number",
                hint="Empty: as it is.",
            ),
        ),
        message=limits_in("concurrency_limit"),
        current=_limits,
    ),
)

PAGES = (
    Page(
        name="kinds", path="/kinds", answer=kinds, menu="Kinds", icon="kind", key="k", asks="kinds"
    ),
    Page(name="kind", path="/kinds/{kind}", answer=kind),
)
