"""Kinds: what holds for all jobs of one kind, whatever their queue."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from tenure.dashboard.actions import Action, Field, whole_number
from tenure.dashboard.page import Page
from tenure.dashboard.pages.overview import RANGES, ask_overview
from tenure.dashboard.pages.queues import BURST, NO_RATE, RATE
from tenure.dashboard.series import plots_of
from tenure.dashboard.visits import Visit
from tenure.errors import InvalidInput
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
    found = await visit.ask("kinds", KindsReply)
    overview = await ask_overview(visit, kind=name)
    here = [each for each in found.kinds if each.kind == name]
    depth = [each for each in overview.kinds if each.kind == name]
    return await visit.show(
        "kind.html",
        name=name,
        kind=here[0] if here else None,
        depth=depth[0] if depth else None,
        overview=overview,
        plots=plots_of(overview),
        ranges=RANGES,
    )


def settings(form: Mapping[str, str]) -> dict[str, Any]:
    """What a form sets for a kind; what is left empty stays as it is."""
    body: dict[str, Any] = {}
    at_once, rate, burst = (
        form.get(name, "").strip() for name in ("concurrency_limit", "rate", "burst")
    )
    if at_once:
        body["concurrency_limit"] = whole_number("concurrency_limit", at_once)
    if rate:
        body["rate"] = None if rate == NO_RATE else rate
    if burst:
        body["burst"] = whole_number("burst", burst)
    if not body:
        raise InvalidInput("rate", "nothing is filled in", hint="fill in a rate or a limit")
    return body


ACTIONS = (
    Action(
        name="set-kind",
        target="kind",
        noun="kind",
        verb="Set limits",
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
        message=settings,
    ),
)

PAGES = (
    Page(
        name="kinds", path="/kinds", answer=kinds, menu="Kinds", icon="kind", key="k", asks="kinds"
    ),
    Page(name="kind", path="/kinds/{kind}", answer=kind),
)
