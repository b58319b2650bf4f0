"""`tenure kinds …`: list what is set for kinds, and set it."""

from collections.abc import Callable
from typing import Any, TypeVar

import click
from msgspec import UNSET, UnsetType

from tenure.cli.common import coordination, json_option, namespace_option, url_option
from tenure.cli.output import print_json, print_table, printable
from tenure.core.checks import check_name
from tenure.core.ids import Kind, Namespace
from tenure.core.kind_settings import KindSettings
from tenure.core.rates import Rate, parse_rate
from tenure.errors import InvalidInput
from tenure.protocol.records import KindRecord, kind_record

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


@click.group()
def kinds() -> None:
    """List what is set for kinds, and set it."""


@kinds.command(name="ls")
@url_option
@json_option(list[KindRecord])
@namespace_option
def list_kinds(url: str | None, as_json: bool, namespace: str) -> None:
    """List kinds with their rates."""
    with coordination(url) as serving:
        check_name("namespace", namespace)
        found = serving.store.list_kinds(Namespace(namespace))
    if as_json:
        print_json([kind_record(each) for each in found])
        return
    print_table(
        ["KIND", "RATE", "BURST"],
        [(each.kind, each.rate, None if each.rate is None else each.rate.burst) for each in found],
    )


@kinds.command(name="limit")
@url_option
@namespace_option
@rate_options
@click.argument("kind")
def limit_kind(
    url: str | None, namespace: str, rate: str | None, burst: int | None, kind: str
) -> None:
    """Limit how many jobs of KIND begin per second, in all queues and on all workers together.

    --rate 10/s lets at most 10 jobs begin per second, --burst 5 up to 5 of them at once; --rate
    none removes the rate.
    """
    if rate is None:
        raise click.UsageError("give --rate")
    wanted = given_rate(rate, burst)
    assert not isinstance(wanted, UnsetType)
    with coordination(url) as serving:
        check_name("namespace", namespace)
        check_name("KIND", kind)
        settings = KindSettings(kind=Kind(kind), rate=wanted)
        kept = serving.store.put_kind(Namespace(namespace), settings)
    said = "no rate" if kept.rate is None else rate_in_words(kept.rate)
    click.echo(f"{printable(kind)}: {said}")
