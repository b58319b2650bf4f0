"""Handlers that post to a ledger in the database of their jobs, in a transaction of their own.

Served beside the others of `tests.e2e.app`, which imports this module.
"""

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tenure import Context, LeaseConflictError, PermanentError, Retry, Tenure
from tests.support.freezing import freeze

TABLE = "CREATE TABLE ledger (entry TEXT, attempt INTEGER)"
NO_BOOKS = "CREATE TABLE book (name TEXT PRIMARY KEY)"
DEBTS = "CREATE TABLE debt (book TEXT REFERENCES book DEFERRABLE INITIALLY DEFERRED)"
INSERT = "INSERT INTO ledger VALUES ('{entry}', {attempt})"


def connect(url: str) -> Any:
    """A connection as an application makes one: no business of Tenure's."""
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
    return psycopg.connect(url)


def attempts_that_posted(url: str, entry: str) -> list[int]:
    """The attempts that put this entry into the ledger."""
    statement = f"SELECT attempt FROM ledger WHERE entry = '{entry}' ORDER BY 1"
    with closing(connect(url)) as connection:
        return [attempt for [attempt] in connection.execute(statement).fetchall()]


def _wait_for(file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.02)


def _freeze_supervisor() -> None:
    """Nobody renews, and without its keeper nobody kills."""
    supervisor = os.getppid()
    freeze(supervisor)
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    for pid in map(int, children):
        if b"keeper.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def _post(
    ctx: Context, connection: Any, insert: Callable[[], object], *, entry: str, how: str, note: str
) -> str:
    """Post once; `how` says what goes wrong in the first attempt."""
    goes_wrong = how if ctx.attempt == 1 else "well"
    if goes_wrong == "cannot be committed" and isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA foreign_keys = ON")
    try:
        with ctx.transaction(connection) as tx:
            insert()
            if goes_wrong == "raises":
                raise PermanentError("the books do not balance")
            if goes_wrong == "frozen":
                _freeze_supervisor()
                Path(note + ".ready").touch()
                _wait_for(note)
            if goes_wrong == "cannot be committed":
                connection.execute("INSERT INTO debt VALUES ('lost')")  # looked at by the commit
            tx.complete(object() if goes_wrong == "has no result" else f"posted {entry}")
        if goes_wrong == "raises later":
            raise RuntimeError("too late to matter")
        if goes_wrong == "dies later":
            os._exit(3)
    except LeaseConflictError as conflict:
        Path(note + ".conflict").write_text(str(conflict))
        raise
    return "not the result"


def add_to(app: Tenure, *, lease: str, retry: Retry) -> None:
    """Register the handlers."""

    @app.job(lease=lease, retry=retry)
    def post(entry: str, how: str, ctx: Context, note: str = "") -> str:
        """With the driver itself."""
        statement = INSERT.format(entry=entry, attempt=ctx.attempt)
        with closing(connect(os.environ["LEDGER_URL"])) as connection:
            return _post(
                ctx,
                connection,
                lambda: connection.execute(statement),
                entry=entry,
                how=how,
                note=note,
            )

    @app.job(lease=lease, retry=retry)
    def post_by_django(entry: str, how: str, ctx: Context, note: str = "") -> str:
        """With a model and the connection of Django."""
        from tests.e2e import django_ledger  # sets Django up, which only these children pay for

        return _post(
            ctx,
            django_ledger.connection,
            lambda: django_ledger.Entry.objects.create(entry=entry, attempt=ctx.attempt),
            entry=entry,
            how=how,
            note=note,
        )

    @app.job(lease=lease, retry=retry)
    async def apost(entry: str, how: str, ctx: Context) -> str:
        """The same in an async handler."""
        url = os.environ["LEDGER_URL"]
        async with (
            await psycopg.AsyncConnection.connect(url) as connection,
            ctx.transaction(connection) as tx,
        ):
            statement = INSERT.format(entry=entry, attempt=ctx.attempt)
            await connection.execute(statement.encode())
            if how == "raises":
                raise PermanentError("the books do not balance")
            return tx.complete(f"posted {entry}")
