"""Databases for tests: new SQLite files, and a URL in the words of other libraries."""

import tempfile
from functools import cache
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tenure.stores.sqlite.store import SqliteStore


@cache
def empty_sqlite_file() -> bytes:
    """An empty SQLite store as a file: copying it is cheaper than migrating one for every test."""
    with tempfile.TemporaryDirectory(prefix="tenure-empty-") as directory:
        path = Path(directory) / "tenure.db"
        SqliteStore(path).close()
        return path.read_bytes()


def write_empty_store(path: Path) -> None:
    """Make a migrated file here that only its owner can read."""
    path.touch(mode=0o600)
    path.write_bytes(empty_sqlite_file())


def django_database(url: str) -> dict[str, object]:
    """An entry of Django's DATABASES."""
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    given = conninfo_to_dict(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": given["dbname"],
        "USER": given.get("user", ""),
        "PASSWORD": given.get("password", ""),
        "HOST": given.get("host", ""),
        "PORT": given.get("port", ""),
    }
