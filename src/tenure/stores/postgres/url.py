"""`postgresql://user@host/database`: a store in a schema of a PostgreSQL database."""

from tenure.stores.postgres.schema import PACKAGE, migrate, schema_version, script
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.migrations import migrations, newest_version, transaction
from tenure.stores.urls import StoreOptions, StoreSchema


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
    )
