"""`tenure migrate`: create a database schema, upgrade it, check it, or print its SQL.

Exit codes: 0 up to date, 1 `--check` found it out of date, 2 it could not be done.
"""

import click

from tenure.cli.common import REFUSED, reported_errors, store_url_option
from tenure.errors import SchemaTooNew
from tenure.settings import is_server, url_from_environment
from tenure.stores.urls import schema_at
from tenure.wiring import not_through_a_server


@click.command()
@store_url_option
@click.option(
    "--schema", default="tenure", show_default=True, help="The name of the schema in PostgreSQL."
)
@click.option("--print", "print_sql", is_flag=True, help="Print the SQL and change nothing.")
@click.option(
    "--check", is_flag=True, help="Only check whether it is up to date; exits with 1 if not."
)
def migrate(url: str | None, schema: str, print_sql: bool, check: bool) -> None:
    """Create the database schema or upgrade it.

    It is safe to run again, and from several machines at the same time.
    """
    with reported_errors():
        chosen = url or url_from_environment()
        if is_server(chosen):
            raise not_through_a_server()
        target = schema_at(chosen, schema)
        if print_sql:
            click.echo(target.script(), nl=False)
            return
        found, needed = target.version(), target.needed
        if found > needed:
            raise SchemaTooNew(found=found, needed=needed)
        if check:
            _say_whether_current(found, needed)
            return
        if found < needed:
            click.echo(f"schema version {target.migrate()}, was {found}", err=True)
        else:
            click.echo(f"schema version {found}, up to date", err=True)


def _say_whether_current(found: int, needed: int) -> None:
    if found == needed:
        click.echo(f"schema version {found}, up to date", err=True)
        return
    click.echo(f"schema version {found}, needed {needed}; run `tenure migrate`", err=True)
    raise click.exceptions.Exit(REFUSED)
