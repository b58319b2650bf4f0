"""One server per SQLite file: a second one is refused, with a message that says so. [H27]

The lock is on a file beside the database, never on the database itself: closing any handle of that
would drop SQLite's own locks. It ends with the process, however that ends.
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
    """Be the only server of this file. Raises `StoreError` if another one is."""
    real = database.resolve()
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
