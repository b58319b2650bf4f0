"""A Redis server for the peers that need one: found, started on a free port, and stopped.

`redis-server` or `valkey-server` on PATH; else the system's packages are unpacked into the
benchmark's own directory (`apt-get download`), which changes nothing in the system. It appends
every command to its log and flushes that once a second (`everysec`, which Redis recommends: a crash
of the machine loses up to a second of jobs, other than with the databases beside it) or before it
answers (`always`, as durable as these).
"""

import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Unavailable, say
from bench.peers import ENVIRONMENTS
from bench.processes import Started

NAMES = ("redis-server", "valkey-server")
PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
SETTINGS = ("--appendonly", "yes", "--save", "")
START_WITHIN_S = 10.0
DOWNLOAD_WITHIN_S = 120.0


def find() -> tuple[Path, dict[str, str]]:
    """The program and the variables that it needs."""
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return Path(found), {}
    home = ENVIRONMENTS / "redis"
    program = home / "usr" / "bin" / "redis-check-rdb"  # the server: the package only links to it
    if not program.exists():
        _unpack(home)
    libraries = home / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    return home / "usr" / "bin" / NAMES[0], {"LD_LIBRARY_PATH": str(libraries)}


def _unpack(home: Path) -> None:
    why = f"there is no {' or '.join(NAMES)} on PATH"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable(f"{why} and no apt-get that could bring one")
    say("unpacking the system's packages of Redis into the benchmark's own directory")
    packages = home / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "-q", "download", *PACKAGES], packages, why)
    for package in sorted(packages.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(home)], packages, why)


def _run(command: list[str], directory: Path, why: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, check=False, timeout=DOWNLOAD_WITHIN_S
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise Unavailable(f"{why}, and {command[0]} failed: {failure}") from failure
    if done.returncode != 0:
        raise Unavailable(f"{why}, and {command[0]} ended with {done.returncode}")


@contextmanager
def redis(directory: Path, appendfsync: str) -> Iterator[tuple[str, int]]:
    """The URL of an empty server and its process id; `appendfsync` is `everysec` or `always`."""
    program, variables = find()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", *SETTINGS]
    command += ["--appendfsync", appendfsync]
    with Started(directory) as started:
        process = started.start([*command, "--dir", str(directory)], variables, cwd=directory)
        give_up_at_s = time.monotonic() + START_WITHIN_S
        while not _answers(port):
            started.check()
            if time.monotonic() > give_up_at_s:
                raise Unavailable(f"{program.name} does not answer: {started.output()}")
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0", process.pid
        started.stop()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
