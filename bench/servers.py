"""The PostgreSQL of a benchmark: durable, on a disk, with ordinary settings for both sides."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench.harness import Unavailable
from tenure.coordinator.service import Coordinator
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tests.support.postgres import PostgresCluster, PostgresServer

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
"""Beyond the defaults only what keeps checkpoints out of a run of seconds; the same for both."""
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}


@contextmanager
def durable_postgres() -> Iterator[PostgresCluster]:
    """A server of our own with fsync and synchronous_commit on; stopped at the end."""
    refuse_memory(Path(tempfile.gettempdir()))
    with PostgresCluster.start(durable=True, settings=SETTINGS) as server:
        with psycopg.connect(server.dsn("postgres")) as connection:
            for name in ("fsync", "synchronous_commit", "full_page_writes"):
                (value,) = connection.execute(f"SHOW {name}").fetchone() or ("?",)
                assert value == "on", f"{name} is {value}: that would be a different measurement"
        yield server


def refuse_memory(directory: Path) -> None:
    """An fsync into memory costs nothing and proves nothing."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return
    best, kind = "", ""
    for line in mounts.read_text().splitlines():
        _, at, file_system, *_ = line.split()
        if directory.resolve().is_relative_to(at) and len(at) >= len(best):
            best, kind = at, file_system
    if kind in _MEMORY_FILE_SYSTEMS:
        raise Unavailable(f"the temporary directory is on {kind}: set TMPDIR to one on a disk")


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory on a disk, removed at the end."""
    refuse_memory(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix="tenure-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def fresh_store(server: PostgresServer) -> Iterator[tuple[Store, Callable[[], None]]]:
    """A migrated store in a database of its own, and what settles it before a timed part."""
    dsn = server.create_database()
    store = PostgresStore(dsn, migrate=True)
    try:
        yield store, lambda: settle(dsn)
    finally:
        store.close()
        server.drop_database(dsn)


def settle(dsn: str) -> None:
    """Fresh statistics, as autovacuum would bring them a minute later. No checkpoint: jobs usually
    pass through a queue between two of them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ANALYZE")


@contextmanager
def coordinator_of(store: Store) -> Iterator[Coordinator]:
    """A coordinator over `store`, closed at the end."""
    coordinator = Coordinator(store)
    try:
        yield coordinator
    finally:
        coordinator.close()
