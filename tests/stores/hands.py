"""Foreign hands: somebody who opens the database and types SQL."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.rows import TupleRow

from tenure.ports import Store


class Refused(Exception):
    """The database said no."""


class ForeignHand(Protocol):
    """A store, and raw SQL on what is under it. `{t}` stands before each table's name."""

    @property
    def store(self) -> Store:
        """The store."""

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Type a statement; `Refused` if the database refuses it."""


class SqliteHand:
    """The sqlite3 shell."""

    def __init__(self, store: Store, path: Path) -> None:
        self.store = store
        self._path = path

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """On a connection of its own, without any setting of ours."""
        with closing(sqlite3.connect(self._path, isolation_level=None)) as raw:
            try:
                return raw.execute(statement.replace("{t}", "tenure_")).fetchall()
            except sqlite3.IntegrityError as refusal:
                raise Refused(str(refusal)) from refusal


class PostgresHand:
    """psql."""

    def __init__(self, store: Store, raw: psycopg.Connection[TupleRow]) -> None:
        self.store = store
        self._raw = raw

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """As the owner of the tables."""
        try:
            cursor = self._raw.execute(statement.replace("{t}", "tenure.").encode())
        except psycopg.IntegrityError as refusal:
            raise Refused(str(refusal)) from refusal
        return cursor.fetchall() if cursor.description else []

    def waiting(self) -> list[int]:
        """Whoever waits for a lock in this database: the process ids of their connections."""
        rows = self.run(
            "SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE NOT granted AND datname = current_database()"
        )
        return [pid for (pid,) in rows]
