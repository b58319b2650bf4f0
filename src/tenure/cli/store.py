"""`tenure migrate`, `backup`, `raise-epoch` and `doctor`: what is done to a store as a whole, and
what is known of its health.

Exit codes: 0 done, 1 `migrate --check` found it out of date, the question of `raise-epoch` was not
answered with yes, or `doctor` found something bad, 2 it could not be done; then `backup` leaves no
file.
"""

import platform
from importlib.metadata import version
from pathlib import Path

import click

from tenure.cli.errors import REFUSED
from tenure.cli.invocation import Invocation, command
from tenure.cli.options import flag, store_url_option
from tenure.cli.output import print_json, print_table, printable
from tenure.cli.queues import live_workers
from tenure.cli.schedules import how_to_prune, undeclared
from tenure.core.ids import Namespace
from tenure.core.vocabulary import HealthState, counted
from tenure.errors import SchemaTooNew
from tenure.ports import HealthFact, JobStore, fact
from tenure.settings import is_server, url_from_environment
from tenure.stores.urls import StoreSchema, schema_at
from tenure.wiring import not_through_a_server

QUESTION = "This ends every lease: running jobs stop and run again. Raise the epoch?"

schema_option = click.option(
    "--schema", default="tenure", show_default=True, help="The name of the schema in PostgreSQL."
)


def _schema(url: str | None, name: str) -> StoreSchema:
    chosen = url or url_from_environment()
    if is_server(chosen):
        raise not_through_a_server()
    return schema_at(chosen, name)


@command(None, "migrate", url=store_url_option, namespace=None)
@schema_option
@flag("--print", "print_sql", help="Print the SQL and change nothing.")
@flag("--check", help="Only check whether it is up to date; exits with 1 if not.")
def migrate(cli: Invocation, schema: str, print_sql: bool, check: bool) -> None:
    """Create the database schema or upgrade it.

    It is safe to run again, and from several machines at the same time.
    """
    target = _schema(cli.url, schema)
    if print_sql:
        click.echo(target.script(), nl=False)
        return
    found, needed = target.version(), target.needed
    if found > needed:
        raise SchemaTooNew(found=found, needed=needed)
    if found == needed:
        click.echo(f"schema version {found}, up to date", err=True)
    elif check:
        click.echo(f"schema version {found}, needed {needed}; run `tenure migrate`", err=True)
        raise click.exceptions.Exit(REFUSED)
    else:
        click.echo(f"schema version {target.migrate()}, was {found}", err=True)


def _in_utf_8(_: click.Context, __: click.Parameter, target: Path) -> Path:
    try:
        str(target).encode()
    except UnicodeEncodeError as wrong:
        raise click.BadParameter("SQLite takes only names in UTF-8.") from wrong
    return target


@command(None, "backup", url=store_url_option, namespace=None)
@schema_option
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path), callback=_in_utf_8)
def backup(cli: Invocation, schema: str, target: Path) -> None:
    """Copy a SQLite store to FILE while workers use it.

    FILE must not exist; only its owner can read it. For a store in PostgreSQL, prints the command
    to run instead. After a restore, run `tenure raise-epoch` before anything else.
    """
    _schema(cli.url, schema).backup(target)
    size = counted(target.stat().st_size, "byte")
    click.echo(f"{printable(str(target))}: {size}", err=True)


@command(None, "raise-epoch", url=store_url_option, namespace=None)
@flag("--yes", "-y", help="Do not ask.")
def raise_epoch(cli: Invocation, yes: bool) -> None:
    """End all leases after a restore from a backup; prints the new epoch.

    Run it after a restore that lost commits, before workers and servers start. Workers that
    have an earlier lease can then report nothing, and new fencing tokens are higher than theirs.
    Tenure refuses to use a PostgreSQL database that was restored to another cluster until you have
    run this. After a failover to a standby, Tenure notices lost commits and does this itself.
    """
    store = cli.open_store(accept_restored=True)
    if not yes:
        click.confirm(QUESTION, abort=True, err=True)
    click.echo(store.raise_epoch())


# --- Health --------------------------------------------------------------------------------------

NAMED = 5
"""How many schedules a line of advice names."""

_COLOURS = {HealthState.OK: "green", HealthState.WARNING: "yellow", HealthState.BAD: "red"}


@command(None, "doctor", json=list[HealthFact], url=store_url_option)
def doctor(cli: Invocation) -> None:
    """Check the store: durability, versions, disk space, clocks, what slows it down; and which
    schedules of the namespace fire though no live worker declares them.

    Exits with 0 if nothing is bad, 1 if something is, 2 if the store could not be reached.
    """
    store = cli.open_store(accept_restored=True)
    facts = [
        fact("tenure", version("tenure")),
        fact("python", platform.python_version()),
        *store.health(),
        _undeclared(store, cli.namespace),
    ]
    if cli.as_json:
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
            state = click.style(each.state.value, fg=_COLOURS.get(each.state), bold=True)
            click.echo(f"\n{state}  {each.name}: {printable(each.advice)}")


def _shown(each: HealthFact) -> str:
    """Sizes with a unit; JSON has the numbers."""
    if not each.name.endswith("_bytes") or not isinstance(each.value, int):
        return str(each.value)
    size, units = float(each.value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.4g} {units[0]}"
