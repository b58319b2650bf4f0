"""`sqlite:///file.db`: a store in one file, and a copy of it made while the store is in use."""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from tenure.errors import StoreError
from tenure.stores.sql.migrations import migrations, newest_version, transaction
from tenure.stores.sqlite.file import (
    PACKAGE,
    migrate,
    prepare_file,
    schema_version,
    script,
    translated,
)
from tenure.stores.sqlite.path import is_missing_or_empty, sqlite_path
from tenure.stores.sqlite.store import SqliteStore
from tenure.stores.urls import StoreOptions, StoreSchema


def open_store(url: str, options: StoreOptions) -> SqliteStore:
    """The store in the file. Without `create` a missing file is an error: a mistyped path must not
    look like an empty store."""
    path = sqlite_path(url)
    if not options.create and is_missing_or_empty(path):
        raise StoreError(f"there is no store in {path}", hint="give --url or set TENURE_URL")
    return SqliteStore(path, migrate=options.migrate, timeout_s=options.timeout_s)


def schema_of(url: str, _name: str) -> StoreSchema:
    """The schema of the file, which has no name of its own."""
    path = sqlite_path(url)

    def run() -> int:
        prepared = prepare_file(path, allow_network_filesystem=False)
        with translated(path):
            return migrate(prepared)

    def version() -> int:
        if not path.exists():
            return 0
        with translated(path):
            return schema_version(path)

    return StoreSchema(
        needed=newest_version(PACKAGE),
        version=version,
        migrate=run,
        script=lambda: transaction([script(each) for each in migrations(PACKAGE)]),
        backup=lambda target: backup(path, target),
    )


def backup(path: Path, target: Path) -> None:
    """Write a consistent copy to a new file that only its owner can read. `VACUUM INTO` reads in
    one transaction, and in WAL mode nothing waits for it. [B40]"""
    if is_missing_or_empty(path):
        raise StoreError(f"there is no store in {path}", hint="give --url or set TENURE_URL")
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with translated(path), closing(_reading(path)) as connection:
            connection.execute("VACUUM INTO ?", (str(target),))
        os.fsync(file)
        _sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            target.unlink()  # half a copy must not be taken for a backup
        raise
    finally:
        os.close(file)


def _reading(path: Path) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(address, uri=True, isolation_level=None)


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
