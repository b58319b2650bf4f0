"""`tenure dev MODULE:APP`: a worker that restarts when the application's files change.

The worker is a separate process and is drained, not killed: jobs that it cannot finish go back to
their queue and run again with the new code. It is drained, too, if this process is killed. This
process does not import the application.

The dashboard is a server on loopback that asks for no token, in a process of its own:
`python -m tenure.cli.dev MODULE:APP PORT PARENT [URL]`. It imports the application once, to learn
which store and namespace are its own.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue

import click

from tenure.cli.errors import DONE, CouldNotRun
from tenure.cli.invocation import Invocation, command
from tenure.cli.options import app_argument, app_url_option, flag, port_option, whole_number
from tenure.cli.output import say
from tenure.errors import TenureError, install_hint
from tenure.settings import is_in_memory, is_server, shown_url, url_from_environment
from tenure.stop_signals import STOPS

HOST = "127.0.0.1"
END_WITHIN_S = 10.0
POLL_S = 1.0
GRACE_S = 5
LONGEST_END_S = 2 * GRACE_S
MAX_FILES = 20_000


class Watch:
    """The Python files of an application, by their size and when they were last written."""

    def __init__(self, root: Path, *, pattern: str) -> None:
        self._root = root
        self._pattern = pattern
        self._seen = self._scan()

    def changed(self) -> list[Path]:
        """The files that were written, added or removed since the last call."""
        before, self._seen = self._seen, self._scan()
        return sorted({path for path, _ in before.items() ^ self._seen.items()})

    def _scan(self) -> dict[Path, tuple[int, int]]:
        found: dict[Path, tuple[int, int]] = {}
        for path in islice(self._root.glob(self._pattern), MAX_FILES):
            try:
                seen = path.stat()
                # Both: two writes within one tick of the file system's clock have the same time.
                found[path] = (seen.st_size, seen.st_mtime_ns)
            except FileNotFoundError:  # removed between glob and stat
                continue
        return found


def watch_of(app: str) -> Watch:
    """The files beside the application: its whole package, or its module's directory."""
    top = app.partition(":")[0].partition(".")[0]
    spec = find_spec(top) if top.isidentifier() else None
    if spec is not None and spec.submodule_search_locations:
        return Watch(Path(next(iter(spec.submodule_search_locations))), pattern="**/*.py")
    if spec is not None and spec.origin is not None:
        return Watch(Path(spec.origin).parent, pattern="*.py")
    raise CouldNotRun(f"there is no module {top[:60]!a}; run this where `import {top[:60]}` works")


class DevProcess:
    """A process in a session of its own: Ctrl-C reaches it only through us, and only once."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], *, pipe: int | None = None
    ) -> None:
        self._command = [sys.executable, "-m", *words]
        self._environment = dict(environment)
        self._pipes = () if pipe is None else (pipe,)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -1 before it was started."""
        return -1 if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it, or another one after it has ended."""
        self._process = subprocess.Popen(
            self._command, env=self._environment, start_new_session=True, pass_fds=self._pipes
        )

    def terminate(self) -> None:
        """Ask it to end, if it was started."""
        if self._process is not None:
            self._process.terminate()

    def wait(self, within_s: float) -> None:
        """Wait for its end, and kill it after this time."""
        if self._process is None:
            return
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Reloader:
    """One worker at a time, and the dashboard, until a signal stops it."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        watch: Watch,
        dashboard: DevProcess | None,
    ) -> None:
        # The worker has the one end and notices when the other is closed, with this process. [DB14]
        lifeline, self._held_open = os.pipe()
        words = [*words, "--stop-when-closed", str(lifeline)]
        self._worker = DevProcess(words, environment, pipe=lifeline)
        self._watch = watch
        self._dashboard = dashboard
        self._is_stopping = False
        # Not an Event: a signal handler that runs while its lock is held would deadlock.
        self._woken: SimpleQueue[None] = SimpleQueue()

    def run(self) -> int:
        """Run until SIGTERM, SIGINT or SIGHUP; a second signal makes the worker stop at once."""
        for signum in STOPS:
            signal.signal(signum, lambda *_: self._stop())
        self._start()
        is_reported = False
        while not self._is_woken():
            changed = self._watch.changed()
            if changed:
                say(f"{changed[0].name} changed, restarting")
                self._worker.terminate()
                self._worker.wait(LONGEST_END_S)
                if not self._is_stopping:
                    self._start()
                is_reported = False
            elif self._worker.exit_code is not None and not is_reported:
                is_reported = True
                say("the worker has stopped; waiting for a file to change")
        self._worker.wait(LONGEST_END_S)
        if self._dashboard is not None:
            self._dashboard.terminate()
            self._dashboard.wait(END_WITHIN_S)
        return DONE

    def _is_woken(self) -> bool:
        try:
            self._woken.get(timeout=POLL_S)
        except Empty:
            return False
        return True

    def _start(self) -> None:
        self._worker.start()
        # The dashboard has ended well where it has nothing to show, and badly if it could not
        # import the application, which the change of a file may help.
        if self._dashboard is not None and self._dashboard.exit_code not in (None, DONE):
            self._dashboard.start()

    def _stop(self) -> None:
        self._is_stopping = True
        self._woken.put(None)
        self._worker.terminate()


@command(None, "dev", url=app_url_option, namespace=None)
@click.option(
    "--queue",
    "-q",
    "queues",
    multiple=True,
    help="Run jobs of this queue only, as for `tenure worker`; may be repeated. [default: `queues`"
    " of [tool.tenure] in pyproject.toml, default, and every queue that the application declares]",
)
@whole_number("--concurrency", "-c", least=1, most=10_000, help="As for `tenure worker`.")
@click.option("--only-env", "only", metavar="NAME", multiple=True, help="As for `tenure worker`.")
@port_option(default=7717, help="The port of the dashboard; another one if it is taken.")
@flag("--no-dashboard", help="Serve no dashboard.")
@app_argument
def dev(
    cli: Invocation,
    queues: tuple[str, ...],
    concurrency: int | None,
    only: tuple[str, ...],
    port: int,
    no_dashboard: bool,
    app: str,
) -> None:
    """Run a worker for MODULE:APP that restarts when its files change, and a dashboard.

    Its files are the .py files of the package that contains MODULE, with all its subpackages; for a
    module outside a package, the .py files beside it, imported or not.

    It prints the output of handlers, logs every attempt, and writes the rates, limits and schedules
    of the code to the store; it removes none. It prints the address of the dashboard, which listens
    on this machine only and asks for no token. Without MODULE:APP it runs the `app` of
    [tool.tenure] in pyproject.toml.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    words = ["worker", app, "--grace", f"{GRACE_S}s", "--verbose", "--show-output"]
    words.append("--overwrite-declared")
    if cli.url is not None:
        words += ["--url", cli.url]  # it is as readable to other users as our own command line
    if not queues:
        words.append("--declared-queues")
    for queue in queues:
        words += ["--queue", queue]
    for name in only:
        words += ["--only-env", name]
    if concurrency is not None:
        words += ["--concurrency", str(concurrency)]
    # Compiled files record the source's time in whole seconds: two quick saves would look the same.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    about = [app, str(port), str(os.getpid()), *([] if cli.url is None else [cli.url])]
    dashboard = None if no_dashboard else DevProcess(["tenure.cli.dev", *about], environment)
    raise SystemExit(Reloader(["tenure", *words], environment, watch_of(app), dashboard).run())


def main(words: list[str]) -> int:
    """Serve the dashboard until SIGTERM. Exit code 1: the next change of a file may help."""
    from tenure.cli.application import import_app, namespace_of, url_for
    from tenure.wiring import run_server
    from tenure.worker.child.confinement import die_with_parent

    app, port, parent, *url = words
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        application = import_app(app)
    except CouldNotRun:
        return 1  # the worker beside it says why
    chosen = url_for(application, url[0] if url else None, warn=lambda _: None)
    chosen = chosen or url_from_environment()
    if is_server(chosen):
        say(f"the dashboard is the server's: {shown_url(chosen)}")
        return 0
    if is_in_memory(chosen):
        say("no dashboard: a store in memory belongs to one process")
        return 0
    try:
        from tenure.cli.serve import pages_of
        from tenure.server.lifetime import ServeOptions

        options = ServeOptions(host=HOST, port=_free(int(port)), authenticated=False)
        pages = pages_of(chosen, authenticated=False, namespace=namespace_of(application))
    except ModuleNotFoundError:
        say(f"no dashboard, which needs the extra server; {install_hint('server')}")
        return 0
    try:
        run_server(
            chosen,
            options,
            lambda address: say(f"dashboard at {address}/"),
            pages=pages,
            name=f"`tenure dev`, process {parent}",
        )
    except TenureError as problem:
        say(f"no dashboard: {problem}")
    return 0


def _free(port: int) -> int:
    """The port, or 0 for any if something already listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return 0
    return port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
