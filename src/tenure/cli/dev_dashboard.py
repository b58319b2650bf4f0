"""The dashboard of `tenure dev`: a server on loopback that asks for no token, in its own process.

Run by `tenure dev` as `python -m tenure.cli.dev_dashboard MODULE:APP PORT PARENT [URL]`. It imports
the application once, to learn which store and namespace are its own.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

import click

from tenure.cli.application import import_app, namespace_of, url_for
from tenure.cli.common import CouldNotRun
from tenure.errors import TenureError, install_hint
from tenure.settings import is_in_memory, is_server, shown_url, url_from_environment
from tenure.wiring import run_server
from tenure.worker.child.confinement import die_with_parent

HOST = "127.0.0.1"
END_WITHIN_S = 10.0


class DevDashboard:
    """Starts the process, and again after a file has changed if it could not start before."""

    def __init__(
        self, app: str, url: str | None, port: int, environment: Mapping[str, str]
    ) -> None:
        words = [app, str(port), str(os.getpid()), *([] if url is None else [url])]
        self._command = [sys.executable, "-m", "tenure.cli.dev_dashboard", *words]
        self._environment = environment
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it unless it runs."""
        if self._child is None or self._child.poll() not in (None, 0):
            # In a session of its own, so that Ctrl-C reaches it only through us.
            self._child = subprocess.Popen(
                self._command, env=dict(self._environment), start_new_session=True
            )

    def stop(self) -> None:
        """Stop it, if it runs."""
        if self._child is None:
            return
        self._child.terminate()
        try:
            self._child.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def main(words: list[str]) -> int:
    """Serve until SIGTERM. Exit code 1 means that the next change of a file may help."""
    app, port, parent, *url = words
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        application = import_app(app)
    except CouldNotRun:
        return 1  # the worker beside it says why
    chosen = url_for(application, url[0] if url else None, tell=lambda _: None)
    chosen = chosen or url_from_environment()
    if is_server(chosen):
        _say(f"the dashboard is the server's: {shown_url(chosen)}")
        return 0
    if is_in_memory(chosen):
        _say("no dashboard: a store in memory belongs to one process")
        return 0
    try:
        from tenure.cli.dashboard import pages_of
        from tenure.server.lifetime import ServeOptions
    except ModuleNotFoundError:
        _say(f"no dashboard, which needs the extra server; {install_hint('server')}")
        return 0
    options = ServeOptions(host=HOST, port=_free(int(port)), authenticated=False)
    pages = pages_of(chosen, authenticated=False, namespace=namespace_of(application))
    try:
        run_server(
            chosen,
            options,
            lambda address: _say(f"dashboard at {address}/"),
            pages=pages,
            name=f"`tenure dev`, process {parent}",
        )
    except TenureError as problem:
        _say(f"no dashboard: {problem}")
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


def _say(text: str) -> None:
    click.echo(f"tenure: {text}", err=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
