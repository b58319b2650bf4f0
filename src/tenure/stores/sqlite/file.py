"""The file of a SQLite store: where it may be, how it is opened, and which schema it has.

Refuses network filesystems, where locks do not work and WAL has no shared memory, and every schema
version but this code's own. A refused file is not changed.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tenure.clock import host_clock
from tenure.deadlines import Deadline
from tenure.errors import (
    OutcomeUnknown,
    SchemaTooNew,
    SchemaTooOld,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from tenure.ports import Clock
from tenure.stores.sql.migrations import (
    Migration,
    checked_version,
    migrations,
    newest_version,
    schema_digest,
)
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query, fill
from tenure.stores.sqlite.exposure import check_exposure

PACKAGE = "tenure.stores.sqlite"
"""Where the statements and migrations of this dialect are."""

IN_MEMORY = Path(":memory:")

OLDEST_SQLITE = (3, 37, 0)
"""The first with STRICT tables."""

MIGRATION_TIMEOUT_S = 60.0

STEPS_BETWEEN_CLOCK_CHECKS = 20_000
"""Steps of SQLite's virtual machine; they take about a millisecond."""

_NETWORK_FILESYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fuse", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"smb2", "smb3", "smbfs"}
)
_MOUNTS = Path("/proc/mounts")


# --- The file ----------------------------------------------------------------------------------


def prepare_file(path: Path, *, allow_network_filesystem: bool) -> Path:
    """The absolute path of a file that can hold a store; it is created empty if it is missing."""
    if str(path) in {":memory:", "", "."}:
        raise StoreError(
            f"{str(path)!r} is not a file", hint="use memory:// for a store that keeps nothing"
        )
    path = path.absolute()
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(
            f"SQLite {sqlite3.sqlite_version} is too old",
            hint=f"Tenure needs {'.'.join(map(str, OLDEST_SQLITE))} or newer",
        )
    if path.is_dir():
        raise StoreError(f"{path} is a directory", hint="name a file in it")
    if not path.parent.is_dir():
        raise StoreError(f"{path.parent} does not exist", hint="create the directory first")
    kind = filesystem_of(path.parent)
    if not allow_network_filesystem and is_network_filesystem(kind):
        raise StoreError(
            f"{path.parent} is on a network filesystem ({kind}), where SQLite's locks fail",
            hint="use a local disk or PostgreSQL, or pass allow_network_filesystem=True",
        )
    check_exposure(path)
    _create(path)
    return path


def _create(path: Path) -> None:
    """Create the file so that only its owner can read it: payloads may hold secrets. SQLite gives
    the files that it creates beside it the same mode.

    It is created under another name and then linked. An existing file must never be opened here:
    closing it again would drop the locks of every other connection of this process (POSIX), and two
    writers would then damage it. 64 claimers did so within a second.
    """
    if path.exists():
        if not os.access(path, os.R_OK | os.W_OK):
            raise _not_writable(path, "permission denied")
        return
    draft = path.with_name(f"{path.name}.new-{os.getpid()}-{threading.get_ident()}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        try:
            with suppress(FileExistsError):  # another process created it first
                path.hardlink_to(draft)
        finally:
            draft.unlink()
    except OSError as problem:
        raise _not_writable(path, problem.strerror or "unknown") from problem


def _not_writable(path: Path, why: str) -> StoreError:
    return StoreError(
        f"{path} cannot be opened for writing: {why}",
        hint="check the permissions of the file and its directory",
    )


def filesystem_of(directory: Path, mounts: Path = _MOUNTS) -> str:
    """The type of the filesystem that `directory` is on; empty where that is not known."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    here = directory.resolve()
    best, kind = -1, ""
    for line in lines:
        _, mount_point, found, *_ = line.split(" ")
        # The kernel writes blanks and backslashes in octal.
        where = Path(mount_point.encode("latin-1", "replace").decode("unicode_escape"))
        if here.is_relative_to(where) and len(where.parts) >= best:
            best, kind = len(where.parts), found
    return kind


def is_network_filesystem(kind: str) -> bool:
    """Whether files of this type of filesystem may be changed by another machine."""
    return kind in _NETWORK_FILESYSTEMS or kind.startswith("fuse.")


def connect(
    path: Path, clock: Clock, busy_timeout_s: float, *, reader: bool = False
) -> sqlite3.Connection:
    """A connection with our settings; `tenure_clock()` is the store's clock in SQL. Creates no
    file: an empty one in the place of a store that was deleted would hide that."""
    connection = sqlite3.connect(
        path if path == IN_MEMORY else f"{path.absolute().as_uri()}?mode=rw",
        uri=path != IN_MEMORY,
        timeout=busy_timeout_s,
        isolation_level=None,  # Python must not open transactions of its own
        check_same_thread=False,  # a reader serves many threads, one at a time
        cached_statements=256,
    )
    # FULL: in WAL mode NORMAL loses acknowledged work when the power fails. No memory map: it
    # turns an I/O error into a signal. Only the writer checkpoints, and when it chooses; the
    # first write after a checkpoint truncates the log.
    pragmas = [
        "PRAGMA synchronous = FULL",
        "PRAGMA mmap_size = 0",
        "PRAGMA wal_autocheckpoint = 0",
        "PRAGMA journal_size_limit = 0",
        "PRAGMA trusted_schema = OFF",
        "PRAGMA temp_store = MEMORY",
    ]
    if reader:
        pragmas.append("PRAGMA query_only = ON")
    try:
        connection.create_function("tenure_clock", 0, clock)
        for pragma in pragmas:
            connection.execute(pragma)
    except BaseException:
        connection.close()  # such as the connection to a file that is no database
        raise
    return connection


def limit_statements(connection: sqlite3.Connection, until: Deadline) -> None:
    """End statements at a deadline: SQLite itself has no time-out for them. [K16]

    The check has no line of Python: signal handlers would run in it, and SQLite loses what they
    raise, such as `KeyboardInterrupt`.
    """
    has_passed = map(until.until_s.__le__, iter(time.monotonic, None)).__next__
    connection.set_progress_handler(has_passed, STEPS_BETWEEN_CLOCK_CHECKS)


# --- Errors ------------------------------------------------------------------------------------


def error_code(problem: sqlite3.Error) -> int:
    """SQLite's primary code; 0 for an error that Python's module raised by itself."""
    return int(getattr(problem, "sqlite_errorcode", 0)) & 0xFF


@contextmanager
def translated(path: Path, *, committing: bool = False) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.IntegrityError as refusal:
        raise StoreRefused(
            f"the schema refused a write to {path}: {refusal}",
            hint="run `tenure verify`; if it finds nothing, this is a bug of Tenure",
        ) from refusal
    except sqlite3.Error as problem:
        code = error_code(problem)
        if code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
            raise StoreError(
                f"{path} is not a SQLite database, or is damaged: {problem}",
                hint="name another file, or restore a backup",
            ) from problem
        if code == sqlite3.SQLITE_READONLY:
            raise StoreUnavailable(
                f"{path} is read-only", hint="check the permissions of file and directory"
            ) from problem
        if code == sqlite3.SQLITE_INTERRUPT:
            raise StoreUnavailable(
                f"{path} did not answer in time",
                hint="ask for less, or send the same request again",
            ) from problem
        if committing and code != sqlite3.SQLITE_BUSY:
            raise OutcomeUnknown(
                f"{path} failed while committing: {problem}", hint="send the same request again"
            ) from problem
        raise StoreUnavailable(
            f"{path} did not take the request: {problem}", hint="send the same request again"
        ) from problem


# --- The schema --------------------------------------------------------------------------------


def is_empty_database(path: Path) -> bool:
    """Whether the file holds no table at all, so that a store may be created in it."""
    if path.stat().st_size == 0:
        return True
    with closing(_connect_read_only(path)) as connection:
        return not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()


def schema_version(path: Path) -> int:
    """The schema version of a file; 0 if it has none. Raises `SchemaDiffers` for a schema of other
    migrations than these. [Y7]"""
    with closing(_connect_read_only(path)) as connection:
        return _version(connection)


def _connect_read_only(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=MIGRATION_TIMEOUT_S, isolation_level=None)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _version(connection: sqlite3.Connection) -> int:
    tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'tenure_meta'")
    if not tables.fetchall():
        return 0
    # Every column: a store from before the first release may not have `schema_digest`.
    cursor = connection.execute("SELECT * FROM tenure_meta")
    columns = [each[0] for each in cursor.description]
    found = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    if len(found) != 1 or type(found[0].get("schema_version")) is not int:
        raise StoreError(
            "the table tenure_meta has no schema version",
            hint="name another file, or restore a backup",
        )
    version, digest = found[0]["schema_version"], found[0].get("schema_digest")
    return checked_version(PACKAGE, version=version, digest=digest)


def check_schema(path: Path) -> None:
    """Raise unless the file's schema is the one this code was written for. [Y3]"""
    found, needed = schema_version(path), newest_version(PACKAGE)
    if found < needed:
        raise SchemaTooOld(found=found, needed=needed)
    if found > needed:
        raise SchemaTooNew(found=found, needed=needed)


def migrate(path: Path) -> int:
    """Bring a file's schema up to date, under the write lock; the version it then has.

    A file of a newer Tenure is left unchanged.
    """
    with closing(connect(path, host_clock, MIGRATION_TIMEOUT_S)) as connection:
        if _version(connection) >= newest_version(PACKAGE):
            return _version(connection)
        # A commit writes whole pages. A job's are the last ones of ten tables and indexes: 27 kB,
        # and 45 with SQLite's usual 4,096 bytes (docs/performance.md).
        connection.execute("PRAGMA page_size = 2048")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        return apply_migrations(connection)


def apply_migrations(connection: sqlite3.Connection) -> int:
    """Run the migrations that a database does not have yet; the version it then has."""
    connection.execute("BEGIN IMMEDIATE")
    found = _version(connection)
    for migration in migrations(PACKAGE):
        if migration.version > found:
            _run_script(connection, script(migration))
    connection.execute("COMMIT")
    return _version(connection)


def script(migration: Migration) -> str:
    """A migration as plain SQL, without its transaction."""
    end = "\nUPDATE tenure_meta SET schema_version = {version}, schema_digest = '{digest}';\n"
    version = migration.version
    values = {"version": str(version), "digest": schema_digest(PACKAGE, version)}
    return migration.text + fill(end, values)


def _run_script(connection: sqlite3.Connection, script: str) -> None:
    """Run a script statement by statement: `executescript` would commit our transaction first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


class SqliteTransaction:
    """Statements on one connection, one after the other: there is no round trip to save."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def fetch(self, *queries: Query, last: bool = False) -> list[list[Row]]:
        """The rows of each statement."""
        execute = self.connection.execute
        return [execute(each.text, each.parameters).fetchall() for each in queries]
