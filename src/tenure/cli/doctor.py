"""`tenure doctor`: facts about the store, what is wrong with it, and what to do.

Exit codes: 0 nothing is bad, 1 something is, 2 the store could not be reached.
"""

import platform
from importlib.metadata import version

import click

from tenure.cli.common import (
    REFUSED,
    coordinator,
    json_option,
    namespace_option,
    store_url_option,
)
from tenure.cli.live_declarations import how_to_prune, live_workers, undeclared
from tenure.cli.output import print_json, print_table, printable, wrapped
from tenure.core.checks import check_name
from tenure.core.ids import Namespace
from tenure.core.vocabulary import HealthState
from tenure.ports import HealthFact, JobStore, fact

NAMED = 5
"""How many schedules a line of advice names."""

_COLOURS = {HealthState.OK: "green", HealthState.WARNING: "yellow", HealthState.BAD: "red"}


@click.command()
@store_url_option
@json_option(list[HealthFact])
@namespace_option
def doctor(url: str | None, as_json: bool, namespace: str) -> None:
    """Check the store: durability, versions, disk space, clocks, what slows it down; and which
    schedules of the namespace fire though no live worker declares them.

    Exits with 0 if nothing is bad, 1 if something is, 2 if the store could not be reached.
    """
    with coordinator(url, accept_restored=True) as serving:
        check_name("namespace", namespace)
        facts = [
            fact("tenure", version("tenure")),
            fact("python", platform.python_version()),
            *serving.store.health(),
            _undeclared(serving.store, Namespace(namespace)),
        ]
    if as_json:
        print_json(facts)
    else:
        _show(facts)
    if any(each.state is HealthState.BAD for each in facts):
        raise click.exceptions.Exit(REFUSED)


def _undeclared(store: JobStore, namespace: Namespace) -> HealthFact:
    """Schedules that fire though no live worker declares them, as after a move. [SC22]"""
    workers = live_workers(store, namespace, store.now())
    found = [
        each
        for each in store.schedules.page(namespace)
        if each.next_at is not None and undeclared(each, workers)
    ]
    names = ", ".join(each.name for each in found[:NAMED]) + (", …" if len(found) > NAMED else "")
    return fact(
        "undeclared_schedules",
        len(found),
        warning=bool(found),
        advice=f"no live worker declares {names}; if the application moved,"
        f" {how_to_prune(each.declared_by for each in found)} removes what it declares no more",
    )


def _show(facts: list[HealthFact]) -> None:
    print_table(["FACT", "VALUE", "STATE"], [(f.name, _shown(f), f.state) for f in facts])
    for each in facts:
        if each.advice:
            state = each.state.value
            text = wrapped(f"{state}  {each.name}: {printable(each.advice)}", indent="  ")
            styled = click.style(state, fg=_COLOURS.get(each.state), bold=True)
            click.echo(f"\n{styled}{text.removeprefix(state)}")


def _shown(each: HealthFact) -> str:
    """Sizes with a unit; JSON has the numbers."""
    if not each.name.endswith("_bytes") or not isinstance(each.value, int):
        return str(each.value)
    size, units = float(each.value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.4g} {units[0]}"
