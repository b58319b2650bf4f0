"""`tenure migrate`: create a database schema, upgrade it, check it, or print its SQL.

Exit codes: 0 up to date, 1 `--check` found it out of date, 2 it could not be done.
"""

from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from tenure.cli.common import REFUSED, reported_errors, url_option
from tenure.errors import SchemaTooNew, UnknownStoreUrl
from tenure.settings import sqlite_path, url_from_environment
from tenure.stores.sql.migrations import migrations, newest_version
from tenure.wiring import not_through_a_server


class _Target(msgspec.Struct, frozen=True):
    """A database with a schema, of any dialect."""

    package: str
    version: Callable[[], int]
    migrate: Callable[[], int]
    script: Callable[[], str]


@click.command()
@url_option
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
        target = _target(url or url_from_environment(), schema)
        if print_sql:
            click.echo(target.script(), nl=False)
            return
        found, needed = target.version(), newest_version(target.package)
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


def _target(url: str, schema: str) -> _Target:
    match url.partition(":")[0].lower():
        case "sqlite":
            return _sqlite(Path(sqlite_path(url)))
        case "postgresql" | "postgres":
            return _postgres(url, schema)
        case "memory":
            raise UnknownStoreUrl("a store in memory has no schema")
        case "http" | "https":
            raise not_through_a_server()
        case scheme:
            raise UnknownStoreUrl(f"no store understands a URL that begins with {scheme[:20]!a}")


def _sqlite(path: Path) -> _Target:
    from tenure.stores.sqlite import file as sqlite_file

    def run() -> int:
        prepared = sqlite_file.prepare_file(path, allow_network_filesystem=False)
        with sqlite_file.translated(path):
            return sqlite_file.migrate(prepared)

    def version() -> int:
        if not path.exists():
            return 0
        with sqlite_file.translated(path):
            return sqlite_file.schema_version(path)

    return _Target(
        sqlite_file.PACKAGE,
        version,
        run,
        lambda: _transaction(
            [sqlite_file.script(each) for each in migrations(sqlite_file.PACKAGE)]
        ),
    )


def _postgres(url: str, schema: str) -> _Target:
    from tenure.stores.postgres import schema as postgres_schema

    return _Target(
        postgres_schema.PACKAGE,
        lambda: postgres_schema.schema_version(url, schema=schema),
        lambda: postgres_schema.migrate(url, schema=schema),
        lambda: _transaction(
            [
                postgres_schema.script(each, schema=schema)
                for each in migrations(postgres_schema.PACKAGE)
            ]
        ),
    )


def _transaction(scripts: list[str]) -> str:
    return "".join(f"BEGIN;\n\n{script}\nCOMMIT;\n" for script in scripts)
