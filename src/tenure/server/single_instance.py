"""One server per SQLite file: a second one is refused, with a message that says so. [H27]

A file with several names is refused, because each name would have its own lock, and in SQLite its
own journal. The lock is on a file next to the database: closing any handle of the database itself
would drop SQLite's own locks. The lock ends with the process, even if that is killed. The locked
file says who serves; it is read only by somebody who finds it locked.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenure.errors import StoreError

SUFFIX = ".serve-lock"
MAX_NAME_BYTES = 100


@contextmanager
def sole_server(database: Path, *, name: str) -> Iterator[None]:
    """Lock this file for the server of this name. Raises `StoreError`, which names the other
    server, if another one has locked it."""
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
        _lock(handle, real, name)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, database: Path, name: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as taken:
        other = os.pread(handle, MAX_NAME_BYTES, 0).decode(errors="replace")
        # Empty for an instant, while the other one starts.
        who = f": {other}" if other.isprintable() and other else ""
        raise StoreError(
            f"another server already serves {database}{who}",
            hint="stop it first, or use PostgreSQL, which any number of servers can share",
        ) from taken
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, name.encode()[:MAX_NAME_BYTES], 0)
    except OSError as failure:
        raise StoreError(f"cannot lock {database}: {failure.strerror}") from failure
