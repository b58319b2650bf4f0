"""`tenure backup`: copy the store while it is in use.

Exit codes: 0 the copy is complete and on disk, 2 it could not be made, and there is no file.
"""

from pathlib import Path

import click

from tenure.cli.common import reported_errors, store_url_option
from tenure.cli.output import printable
from tenure.core.counting import counted
from tenure.settings import is_server, url_from_environment
from tenure.stores.urls import schema_at
from tenure.wiring import not_through_a_server


def _in_utf_8(_: click.Context, __: click.Parameter, target: Path) -> Path:
    try:
        str(target).encode()
    except UnicodeEncodeError as wrong:
        raise click.BadParameter("SQLite takes only names in UTF-8.") from wrong
    return target


@click.command()
@store_url_option
@click.option(
    "--schema", default="tenure", show_default=True, help="The name of the schema in PostgreSQL."
)
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path), callback=_in_utf_8)
def backup(url: str | None, schema: str, target: Path) -> None:
    """Copy a SQLite store to FILE while workers use it.

    FILE must not exist; only its owner can read it. For a store in PostgreSQL, prints the command
    to run instead. After a restore, run `tenure raise-epoch` before anything else.
    """
    with reported_errors():
        chosen = url or url_from_environment()
        if is_server(chosen):
            raise not_through_a_server()
        schema_at(chosen, schema).backup(target)
    size = counted(target.stat().st_size, "byte")
    click.echo(f"{printable(str(target))}: {size}", err=True)
