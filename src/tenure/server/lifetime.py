"""Starts a server if its address is safe, and stops it without losing a grant.

Only one server at a time serves a SQLite file. [H27]
"""

import asyncio
import fcntl
import logging
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import msgspec
import uvicorn
from starlette.types import ASGIApp

from tenure.coordinator.service import Coordinator
from tenure.core.ids import Namespace
from tenure.errors import InvalidInput, StoreError, TenureError
from tenure.ports import Hint
from tenure.protocol import is_loopback
from tenure.server.app import make_app
from tenure.server.connections import guarded
from tenure.server.limits import ServerSettings
from tenure.server.services import Services, no_metrics
from tenure.server.waiting import WaitingClaims
from tenure.telemetry.security import SecurityLog

_log = logging.getLogger("tenure.server")

MakePages = Callable[[Services], ASGIApp]
"""Makes the pages of a dashboard, which answer the paths that are no route. [DB1]"""

DEFAULT_PORT = 7717
SPARE_FILES = 256


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens, and to whom."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    authenticated: bool = True
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    security_log: Path | None = None
    """Where security events are written; to stderr if there is no path. [OB11]"""
    settings: ServerSettings = ServerSettings()


def check_exposure(options: ServeOptions, coordinator: Coordinator) -> None:
    """Raise if other machines can reach this address and no token protects it. [H28]"""
    if is_loopback(options.host):
        return
    if not options.authenticated:
        raise InvalidInput(
            "--no-auth",
            f"{options.host} can be reached from other machines",
            hint="omit --no-auth, or listen on 127.0.0.1",
        )
    now = coordinator.store.now()
    if not any(token.is_valid(now) for token in coordinator.store.tokens.all()):
        raise InvalidInput(
            "--host",
            f"{options.host} can be reached from other machines, and there is no valid token",
            hint="make one with `tenure tokens create`, or listen on 127.0.0.1",
        )


def warn_without_tls(options: ServeOptions) -> None:
    """Warn if other machines can reach the server and there is no TLS. [H47]"""
    if options.tls_certificate is None and not is_loopback(options.host):
        _log.warning(
            "listening on %s without TLS: others on the network can read tokens and payloads; give"
            " --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy that speaks TLS",
            options.host,
        )


def serve(
    coordinator: Coordinator,
    options: ServeOptions,
    *,
    announce: Callable[[str], None],
    metrics: Callable[[Namespace | None], bytes] = no_metrics,
    security: SecurityLog | None = None,
    pages: MakePages | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Calls `announce` with the address once it can be reached."""
    check_exposure(options, coordinator)
    _allow_files(options.settings.max_connections + SPARE_FILES)
    listening = listen(options)
    warn_without_tls(options)
    security = security or SecurityLog()
    try:
        asyncio.run(_serve(coordinator, options, listening, announce, metrics, security, pages))
    finally:
        listening.close()
        security.close()


async def _serve(
    coordinator: Coordinator,
    options: ServeOptions,
    listening: socket.socket,
    announce: Callable[[str], None],
    metrics: Callable[[Namespace | None], bytes],
    security: SecurityLog,
    make_pages: MakePages | None,
) -> None:
    settings = options.settings
    # Any client can cause uvicorn's warnings, for example with a request that is not HTTP.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    services = Services(coordinator, settings, metrics=metrics, security=security)
    pages = None if make_pages is None else make_pages(services)
    app, http = guarded(
        make_app(services, authenticated=options.authenticated, pages=pages),
        settings,
        _tls(options),
    )
    config = uvicorn.Config(
        app,
        http=http,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.idle_s,
        timeout_graceful_shutdown=settings.shutdown_within_s,
        h11_max_incomplete_event_size=settings.max_header_bytes,
    )
    scheme = "http" if options.tls_certificate is None else "https"
    address = f"{scheme}://{_address_of(listening)}"
    server = _Server(config, services, started=lambda: announce(address))
    loop = asyncio.get_running_loop()
    unwatch = coordinator.store.watch(lambda hint: _pass_on(loop, services.waiting_claims, hint))
    try:
        await server.serve(sockets=[listening])
    finally:
        unwatch()
        services.close()


def _pass_on(loop: asyncio.AbstractEventLoop, claims: WaitingClaims, hint: Hint | None) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(claims.hinted, hint)


class _Server(uvicorn.Server):
    """uvicorn's server; on shutdown it first answers the claims that wait. [H35]"""

    def __init__(
        self, config: uvicorn.Config, services: Services, *, started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._services = services
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and announce the address."""
        await super().startup(sockets)
        self._started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop the server on a signal. Unlike uvicorn's, does not raise the signal again
        afterwards: there is more to close. A second signal ends the waiting."""
        kinds = (signal.SIGTERM, signal.SIGINT)
        before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to shut down."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        asyncio.get_running_loop().call_soon_threadsafe(self._services.stop)


def listen(options: ServeOptions) -> socket.socket:
    """Open the listening socket. Raises if the address is not available."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # asyncio turns off Nagle's algorithm only for sockets that name IPPROTO_TCP. Otherwise every
    # answer of two writes waits forty milliseconds for an acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((options.host.strip("[]"), options.port))
    except OSError as failure:
        listening.close()
        raise TenureError(
            f"cannot listen on {options.host} port {options.port}: {failure.strerror}",
            hint="choose another --port, or stop the process that uses this one",
        ) from failure
    listening.set_inheritable(False)
    return listening


def _address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tls(options: ServeOptions) -> ssl.SSLContext | None:
    """The TLS context: 1.2 and up; with a client CA, clients need a certificate of it."""
    if options.tls_certificate is None:
        if options.tls_key is not None or options.tls_client_ca is not None:
            raise InvalidInput("--tls-cert", "is missing", hint="TLS needs a certificate")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.tls_certificate, options.tls_key)
        if options.tls_client_ca is not None:
            context.load_verify_locations(options.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as failure:
        raise InvalidInput("--tls-cert", f"cannot be used: {failure}") from failure
    return context


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files, because every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        _log.warning("this process may open %d files, too few for %d connections", allowed, wanted)


# --- One server per SQLite file ------------------------------------------------------------------


SUFFIX = ".serve-lock"
MAX_NAME_BYTES = 100


@contextmanager
def sole_server(database: Path, *, name: str) -> Iterator[None]:
    """Lock this file for the server of this name. Raises `StoreError`, which names the other
    server, if another one has locked it."""
    real = database.resolve()
    if real.exists() and real.stat().st_nlink > 1:
        raise StoreError(
            f"{real} has other hard links, under which another server could serve it",
            hint="remove its other hard links; SQLite would keep a journal for each of them",
        )
    try:
        handle = os.open(f"{real}{SUFFIX}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as failure:
        raise StoreError(f"cannot lock {real}: {failure.strerror}") from failure
    try:
        _lock(handle, real, name)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, database: Path, name: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as taken:
        other = os.pread(handle, MAX_NAME_BYTES, 0).decode(errors="replace")
        # Empty for an instant, while the other one starts.
        who = f": {other}" if other.isprintable() and other else ""
        raise StoreError(
            f"another server already serves {database}{who}",
            hint="stop it first, or use PostgreSQL, which any number of servers can share",
        ) from taken
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, name.encode()[:MAX_NAME_BYTES], 0)
    except OSError as failure:
        raise StoreError(f"cannot lock {database}: {failure.strerror}") from failure
