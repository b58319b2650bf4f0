"""`--rate` and `--burst`: how commands take and show rates."""

from collections.abc import Callable
from typing import Any, TypeVar

import click
from msgspec import UNSET, UnsetType

from tenure.core.rates import Rate, parse_rate
from tenure.errors import InvalidInput

_F = TypeVar("_F", bound=Callable[..., Any])


def rate_options(function: _F) -> _F:
    """`--rate` and `--burst`."""
    burst = click.option(
        "--burst",
        type=int,
        help="How many jobs may begin at once after a pause; with --rate. Without it, what the rate"
        " gives in a tenth of a second, and 1 at least.",
    )
    rate = click.option(
        "--rate",
        metavar="RATE",
        help="At most so many jobs begin per second, minute, hour or day: 10/s, 100/m, 5/h, 1000/d;"
        " or none.",
    )
    return rate(burst(function))


def given_rate(rate: str | None, burst: int | None) -> Rate | UnsetType | None:
    """What the options ask for: UNSET leaves the rate as it is, None removes it."""
    if rate is not None and rate.strip().lower() != "none":
        try:
            return parse_rate("--rate", rate, burst)
        except InvalidInput as wrong:
            raise click.UsageError(str(wrong)) from wrong
    if burst is not None:
        raise click.UsageError("--burst belongs to a rate: give --rate too")
    return UNSET if rate is None else None


def rate_in_words(rate: Rate) -> str:
    """A rate as a sentence has it."""
    return f"at most {rate}, up to {rate.burst} at once"
