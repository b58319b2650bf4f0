"""One server per SQLite file: a second one is refused, with a message that says so. [H27]

A file with several names is refused, because each name would have its own lock, and in SQLite its
own journal. The lock is on a file next to the database: closing any handle of the database itself
would drop SQLite's own locks. The lock ends with the process, even if that is killed.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenure.errors import StoreError

SUFFIX = ".serve-lock"


@contextmanager
def sole_server(database: Path) -> Iterator[None]:
    """Lock this file for one server. Raises `StoreError` if another server has locked it."""
    real = database.resolve()
    if real.exists() and real.stat().st_nlink > 1:
        raise StoreError(
            f"{real} has other hard links, under which another server could serve it",
            hint="remove its other hard links; SQLite would keep a journal for each of them",
        )
    try:
        handle = os.open(f"{real}{SUFFIX}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as failure:
        raise StoreError(f"cannot lock {real}: {failure.strerror}") from failure
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            raise StoreError(
                f"another server already serves {real}",
                hint="stop it first, or use PostgreSQL, which any number of servers can share",
            ) from taken
        yield
    finally:
        os.close(handle)
