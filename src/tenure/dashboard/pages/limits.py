"""What the pages of queues and of kinds share: one of them now and over time, and its limits."""

from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import Response

from tenure.dashboard.actions import Field, whole_number
from tenure.dashboard.pages.overview import RANGES, ask_overview
from tenure.dashboard.series import plots_of
from tenure.dashboard.visits import Visit
from tenure.errors import InvalidInput

NO_RATE = "none"

RATE = Field(
    name="rate", label="Rate", hint="Such as 100/m or 5/s; none removes it. Empty: as it is."
)
BURST = Field(
    name="burst", label="Burst", kind="number", hint="How many jobs of the rate may begin at once."
)


def limits_in(number: str) -> Callable[[Mapping[str, str]], dict[str, Any]]:
    """Reads a form with a rate, a burst and this number of jobs at a time. What is left empty stays
    as it is."""

    def read(form: Mapping[str, str]) -> dict[str, Any]:
        given = {name: form.get(name, "").strip() for name in (number, "burst")}
        body: dict[str, Any] = {
            name: whole_number(name, text) for name, text in given.items() if text
        }
        rate = form.get("rate", "").strip()
        if rate:
            body["rate"] = None if rate == NO_RATE else rate
        if rate == NO_RATE:
            body.pop("burst", None)  # the form opened with that of the rate that is removed
        if not body:
            raise InvalidInput("rate", "nothing is filled in", hint="fill in a limit or a rate")
        return body

    return read


def limits_of(settings: object | None, *names: str) -> dict[str, str]:
    """What is set, as the fields of these names show it."""
    found = {name: getattr(settings, name, None) for name in names}
    return {name: str(value) for name, value in found.items() if value is not None}


async def show_one(visit: Visit, sort: str, name: str, settings: object | None) -> Response:
    """The page of a queue or kind, by `sort`; `settings` is what is set for it."""
    overview = await ask_overview(visit, **{sort: name})
    depths = overview.queues if sort == "queue" else overview.kinds
    depth = next((each for each in depths if getattr(each, sort) == name), None)
    return await visit.show(
        f"{sort}.html",
        name=name,
        settings=settings,
        depth=depth,
        overview=overview,
        plots=plots_of(overview),
        ranges=RANGES,
    )
