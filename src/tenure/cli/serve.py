"""`tenure serve`: the coordinator over HTTP and its dashboard, until a signal stops it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tenure.cli.errors import CouldNotRun
from tenure.cli.invocation import Invocation, command
from tenure.cli.options import flag, keep_options, log_format_option, port_option, store_url_option
from tenure.core.ids import DEFAULT_NAMESPACE, Namespace
from tenure.errors import install_hint
from tenure.settings import retention_of, url_from_environment
from tenure.telemetry.logs import LogFormat, log_to_stderr
from tenure.wiring import run_server

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from tenure.server.lifetime import MakePages
    from tenure.server.services import Services

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@command(None, "serve", url=store_url_option, namespace=None)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@port_option(default=7717, help="The port to listen on; 0 picks a free one.")
@flag(
    "--no-auth",
    help="Do not check tokens. Every process on this machine may then do everything; the server"
    " listens on this machine only.",
)
@click.option(
    "--tls-cert", "tls_certificate", type=_FILE, help="Serve TLS with this certificate chain."
)
@click.option(
    "--tls-key", type=_FILE, help="The private key, if it is not in the file of --tls-cert."
)
@click.option(
    "--tls-client-ca", type=_FILE, help="Accept only clients with a certificate of this CA."
)
@click.option(
    "--security-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append security events to this file, as JSON lines. [default: stderr]",
)
@flag("--no-dashboard", help="Serve no pages at /, only what is below /v1.")
@click.option(
    "--public-origin",
    metavar="URL",
    help="What browsers call this server if a proxy is in front, such as"
    " https://jobs.example.com. Headers of proxies are ignored.",
)
@click.option(
    "--session-key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file with the key that signs the sessions of browsers; it is made if it does not"
    " exist. [default: beside a SQLite file; otherwise a new key at each start]",
)
@keep_options
@log_format_option
def serve(
    cli: Invocation,
    keep: dict[str, str | None],
    log_format: str,
    no_auth: bool,
    no_dashboard: bool,
    public_origin: str | None,
    session_key: Path | None,
    **listen: Any,
) -> None:
    """Run the HTTP server, for remote clients and workers.

    Callers need a token, which `tenure tokens create` makes. While the store has no valid token,
    the server listens on this machine only. It prints its address once it accepts connections;
    a browser shows the dashboard there. After SIGTERM it answers the requests that it has
    received, and stops.

    \b
    Examples:
      tenure serve
      tenure serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    log_to_stderr(LogFormat(log_format))
    retention = retention_of(keep)
    store_url = cli.url or url_from_environment()
    try:
        from tenure.server.lifetime import ServeOptions

        options = ServeOptions(authenticated=not no_auth, **listen)
        pages = None
        if not no_dashboard:
            pages = pages_of(
                store_url,
                authenticated=options.authenticated,
                public_origin=public_origin,
                session_key=session_key,
            )
    except ImportError as missing:
        raise CouldNotRun(f"serve needs the extra server; {install_hint('server')}") from missing
    name = f"`tenure serve`, process {os.getpid()}"
    run_server(store_url, options, _announce, retention=retention, pages=pages, name=name)


def _announce(address: str) -> None:
    """Print the address; click flushes it, so that a pipe has it at once."""
    click.echo(address)


# --- The dashboard -------------------------------------------------------------------------------


def pages_of(
    url: str,
    *,
    authenticated: bool,
    public_origin: str | None = None,
    session_key: Path | None = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
) -> "MakePages":
    """What makes the pages of a server on this store. Without sign-in, no session outlives
    the server, so its key is not kept."""
    from tenure.dashboard.app import make_pages
    from tenure.dashboard.sessions import KEY_BYTES
    from tenure.dashboard.settings import SUFFIX, DashboardSettings, check_origin, read_or_make_key
    from tenure.stores.sqlite.path import sqlite_path

    is_file = authenticated and url.partition(":")[0].lower() == "sqlite"
    if session_key is None and is_file:
        session_key = Path(f"{sqlite_path(url).resolve()}{SUFFIX}")
    origin = None if public_origin is None else check_origin(public_origin)

    def make(services: "Services") -> "ASGIApp":
        # Not before the store is open: a wrong URL must not leave a key behind.
        key = os.urandom(KEY_BYTES) if session_key is None else read_or_make_key(session_key)
        settings = DashboardSettings(
            key=key, authenticated=authenticated, public_origin=origin, namespace=namespace
        )
        return make_pages(services, settings)

    return make
