"""`postgresql://user@host/database`: a store in a schema of a PostgreSQL database."""

import shlex
from pathlib import Path

from tenure.errors import StoreError
from tenure.stores.postgres.schema import PACKAGE, migrate, schema_version, script
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.migrations import migrations, newest_version, transaction
from tenure.stores.urls import StoreOptions, StoreSchema
from tenure.telemetry.logs import without_secrets


def open_store(url: str, options: StoreOptions) -> PostgresStore:
    """The store in the database. It must exist, so `create` does not apply."""
    return PostgresStore(
        url,
        migrate=options.migrate,
        accept_restored=options.accept_restored,
        timeout_s=options.timeout_s,
    )


def schema_of(url: str, name: str) -> StoreSchema:
    """The schema of this name in the database."""
    return StoreSchema(
        needed=newest_version(PACKAGE),
        version=lambda: schema_version(url, schema=name),
        migrate=lambda: migrate(url, schema=name),
        script=lambda: transaction([script(each, schema=name) for each in migrations(PACKAGE)]),
        backup=lambda target: _refuse_backup(url, schema=name, target=target),
    )


def _refuse_backup(url: str, *, schema: str, target: Path) -> None:
    address = shlex.quote(without_secrets(url))
    command = f"pg_dump --format=custom --schema={schema} --file={shlex.quote(str(target))}"
    raise StoreError(
        "PostgreSQL makes its own backups",
        hint=f"run `{command} {address}`, or what you use for the other tables of this database",
    )
