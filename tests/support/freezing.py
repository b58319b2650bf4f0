"""Freezing a process with SIGSTOP, for certain.

The signal is taken by one thread of the process, and until that thread is scheduled the others go
on. On a busy machine that takes long enough for one of them to take a lock and keep it.
"""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from tenure.stores.sqlite.path import sqlite_path
from tests.support.waiting import until


def freeze(pid: int) -> None:
    """Returns when every thread of the process is stopped."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_frozen(pid), f"process {pid} is stopped")


def is_frozen(pid: int) -> bool:
    """Whether every thread of the process is stopped."""
    return _states(pid) <= {"T", "Z"}


def freeze_without_lock(pid: int, url: str) -> None:
    """Freeze a process at a moment in which it does not hold SQLite's only write lock: a machine
    that freezes takes no lock with it, a process beside us would."""

    def is_frozen() -> bool:
        freeze(pid)
        if _is_writable(url):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    until(is_frozen, f"process {pid} could be frozen")


def _states(pid: int) -> set[str]:
    stats = [task / "stat" for task in Path(f"/proc/{pid}/task").iterdir()]
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats if stat.exists()}


def _is_writable(url: str) -> bool:
    if not url.startswith("sqlite:"):
        return True
    with closing(sqlite3.connect(sqlite_path(url), timeout=1, isolation_level=None)) as probe:
        try:
            probe.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        probe.execute("ROLLBACK")
        return True
