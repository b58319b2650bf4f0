"""`tenure serve`: the coordinator over HTTP, until told to stop."""

from pathlib import Path

import click

from tenure.cli.common import CouldNotRun, keep_finished_option, log_format_option, url_option
from tenure.errors import TenureError
from tenure.settings import retention_of, url_from_environment
from tenure.telemetry.logs import LogFormat, log_to_stderr
from tenure.wiring import run_server

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@url_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7717,
    show_default=True,
    help="The port; 0 takes a free one.",
)
@click.option(
    "--no-auth",
    is_flag=True,
    help="Ask for no tokens. Whoever reaches this machine's own address may do everything.",
)
@click.option("--tls-cert", type=_FILE, help="Serve TLS with this certificate chain.")
@click.option("--tls-key", type=_FILE, help="Its key, if it is not in the same file.")
@click.option("--tls-client-ca", type=_FILE, help="Only for clients with a certificate of this CA.")
@click.option(
    "--security-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append security events to this file; without it they go to stderr, as JSON lines.",
)
@keep_finished_option
@log_format_option
def serve(
    url: str | None,
    host: str,
    port: int,
    no_auth: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    security_log: Path | None,
    keep_finished: str | None,
    log_format: str,
) -> None:
    """Serve the store over HTTP until SIGTERM: claims that wait are answered, then it ends.

    Callers show a token, which `tenure tokens create` makes. Without a valid one the server
    listens on this machine only. The address is printed once it can be reached.
    """
    try:
        from tenure.server.lifetime import ServeOptions
    except ImportError as missing:
        raise CouldNotRun("serving needs more; run `pip install 'tenure[server]'`") from missing
    try:
        options = ServeOptions(
            host=host,
            port=port,
            authenticated=not no_auth,
            tls_certificate=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            security_log=security_log,
        )
        log_to_stderr(LogFormat(log_format))
        keeping = retention_of(keep_finished)
        run_server(url or url_from_environment(), options, _announce, keeping=keeping)
    except TenureError as problem:
        raise CouldNotRun(str(problem)) from problem


def _announce(address: str) -> None:
    """Data for whoever started it; flushed, because a pipe would keep it."""
    click.echo(address)
