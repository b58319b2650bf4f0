"""A copy of a store's file, made while the store is in use."""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from tenure.errors import StoreError
from tenure.stores.sqlite.file import translated
from tenure.stores.sqlite.path import is_missing_or_empty


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
