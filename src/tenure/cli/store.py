"""`tenure migrate`, `tenure backup` and `tenure raise-epoch`: what is done to a store as a whole.

Exit codes: 0 done, 1 `migrate --check` found it out of date or the question of `raise-epoch` was
not answered with yes, 2 it could not be done; then `backup` leaves no file.
"""

from pathlib import Path

import click

from tenure.cli.common import REFUSED, coordinator, reported_errors, store_url_option
from tenure.cli.output import printable
from tenure.core.counting import counted
from tenure.errors import SchemaTooNew
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


@click.command()
@store_url_option
@schema_option
@click.option("--print", "print_sql", is_flag=True, help="Print the SQL and change nothing.")
@click.option(
    "--check", is_flag=True, help="Only check whether it is up to date; exits with 1 if not."
)
def migrate(url: str | None, schema: str, print_sql: bool, check: bool) -> None:
    """Create the database schema or upgrade it.

    It is safe to run again, and from several machines at the same time.
    """
    with reported_errors():
        target = _schema(url, schema)
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


@click.command()
@store_url_option
@schema_option
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path), callback=_in_utf_8)
def backup(url: str | None, schema: str, target: Path) -> None:
    """Copy a SQLite store to FILE while workers use it.

    FILE must not exist; only its owner can read it. For a store in PostgreSQL, prints the command
    to run instead. After a restore, run `tenure raise-epoch` before anything else.
    """
    with reported_errors():
        _schema(url, schema).backup(target)
    size = counted(target.stat().st_size, "byte")
    click.echo(f"{printable(str(target))}: {size}", err=True)


@click.command("raise-epoch")
@store_url_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def raise_epoch(url: str | None, yes: bool) -> None:
    """End all leases after a restore from a backup; prints the new epoch.

    Run it after a restore that lost commits, before workers and servers start. Workers that
    have an earlier lease can then report nothing, and new fencing tokens are higher than theirs.
    Tenure refuses to use a PostgreSQL database that was restored to another cluster until you have
    run this. After a failover to a standby, Tenure notices lost commits and does this itself.
    """
    with coordinator(url, accept_restored=True) as serving:
        if not yes:
            click.confirm(QUESTION, abort=True, err=True)
        click.echo(serving.store.raise_epoch())
