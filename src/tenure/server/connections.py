"""Connections: uvicorn's HTTP/1.1 protocol, plus the deadlines and limits that it lacks.

These are for one server that is reached directly. On other networks than one's own a proxy belongs
in front of it, which ends TLS and has limits of its own.

The server closes a connection whose request head [H62] or TLS handshake [H44] is not complete in
time, even if bytes keep coming. It counts connections when it accepts them, and refuses new ones
over the limit for all connections or for one address [H43]. A request that cannot be parsed gets a
problem as its answer, like every other error [H8]. The server refuses a body of many tiny chunks,
because a tiny chunk costs the parser as much as a large one [H39], and a body with two lengths,
because a proxy in front may have used the other one [H40].
"""

import asyncio
import ssl
from collections import Counter
from math import inf
from typing import Any

import h11
import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tenure.core.vocabulary import VerdictKind
from tenure.errors import TenureError, install_hint
from tenure.protocol import REQUEST_ID_HEADER
from tenure.protocol.codec import encode
from tenure.protocol.replies import Problem, ProblemCode
from tenure.server.limits import ServerSettings
from tenure.server.problems import RETRY_AFTER_S, new_request_id

CLOSE_WITHIN_S = 5.0
FREE_CHUNKS = 1024
BYTES_PER_CHUNK = 256
"""A chunked body may have `FREE_CHUNKS` chunks of any size, and one more per `BYTES_PER_CHUNK`."""

KNOWN = "tenure.is_known"
"""In the scope of a request: its caller is known. The connection may then be idle for longer."""

Peer = tuple[str, int]
"""The address and port that a connection comes from: no two have the same at a time."""

_MALFORMED = Problem(
    code=ProblemCode.MALFORMED,
    message="the request is not HTTP/1.1, its head is too large, or its body has two lengths or "
    "too many small chunks",
    verdict=VerdictKind.REJECTED,
    nothing_changed=True,
)
_FULL = Problem(
    code=ProblemCode.TOO_MANY_CONNECTIONS,
    message="the server has too many connections, or too many from this address",
    nothing_changed=True,
)


class StrictConnection(h11.Connection):
    """h11's parser, which also refuses bodies with two lengths or too many small chunks."""

    def __init__(self, max_incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size)
        self._chunks = 0
        self._body_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event. Raises `RemoteProtocolError`, as h11 does."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._body_bytes = 0
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("a body with two lengths")
        elif isinstance(event, h11.Data):
            # Only whole chunks count. h11 also splits a chunk at the end of what the socket
            # returned, but many small pieces of that kind cost the caller as many packets.
            self._chunks += event.chunk_end
            self._body_bytes += len(event.data)
            if self._chunks > FREE_CHUNKS + self._body_bytes // BYTES_PER_CHUNK:
                raise h11.RemoteProtocolError("a body of too many small chunks")
        return event


class Connections:
    """The open connections, counted in all and per address. [H43]"""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._open: dict[Peer, GuardedProtocol] = {}
        self._per_address: Counter[str] = Counter()

    def enter(self, peer: Peer, connection: "GuardedProtocol") -> bool:
        """Count a new connection. Returns whether it is within the limits."""
        self._open[peer] = connection
        self._per_address[peer[0]] += 1
        is_full = len(self._open) > self._settings.max_connections
        return not is_full and (
            self._per_address[peer[0]] <= self._settings.max_connections_per_address
        )

    def leave(self, peer: Peer) -> None:
        """Stop counting a connection that is closed."""
        del self._open[peer]
        self._per_address[peer[0]] -= 1
        if not self._per_address[peer[0]]:
            del self._per_address[peer[0]]

    def watched(self, app: ASGIApp) -> ASGIApp:
        """The application, telling each connection when its requests start and finish."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            connection = self._open.get(tuple(scope["client"] or ()))
            if connection is None:  # it was lost before its request was served
                await app(scope, receive, send)
                return
            connection.request_began()
            try:
                await app(scope, receive, send)
            finally:
                connection.request_ended(is_known=KNOWN in scope)

        return serve


class GuardedProtocol(H11Protocol):
    """One connection. `guarded` makes a subclass with `settings` and the shared `counted`.

    Of uvicorn's class it uses two names that are not public: `conn`, because only h11's parser sees
    the chunks and the lengths of a body, and `send_400_response`, because uvicorn itself answers
    what cannot be parsed. `check_protocol` refuses a uvicorn without them. Everything else is
    asyncio's protocol, and what `watched` tells it of the requests.
    """

    settings: ServerSettings
    counted: Connections

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.conn = StrictConnection(self.settings.max_header_bytes)
        self._channel: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ends_at = inf
        self._is_idle = False
        self._peer: Peer | None = None
        self._requests = 0
        self._is_known = False

    def admit(self, transport: asyncio.BaseTransport) -> bool:
        """Count the connection. Returns whether it is within the limits."""
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self._peer = (str(host), int(port))
        return self.counted.enter(self._peer, self)

    def release(self) -> None:
        """Stop counting the connection, which is closed."""
        if self._peer is not None:
            self.counted.leave(self._peer)
            self._peer = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's signature
        """Admit the connection or refuse it. `TlsHandshake` has admitted TLS connections before."""
        self._channel = transport
        super().connection_made(transport)
        if self._peer is None and not self.admit(transport):
            self._refuse("503 Service Unavailable", _FULL, f"retry-after: {RETRY_AFTER_S}\r\n")
            return
        self._close_after(self.settings.head_within_s)

    def data_received(self, data: bytes) -> None:
        """Parse the data; the first of a head starts its deadline."""
        if self._is_idle:
            self._close_after(self.settings.head_within_s)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer and the counting."""
        self._stop_timer()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.release()
        super().connection_lost(exc)

    def request_began(self) -> None:
        """A head is complete."""
        self._requests += 1
        self._stop_timer()

    def request_ended(self, *, is_known: bool) -> None:
        """Wait for the next request: a short time unless a caller on this connection is known.
        [H75]"""
        self._requests -= 1
        self._is_known = self._is_known or is_known
        if self._requests or self._peer is None:
            return
        settings = self.settings
        if self.conn.trailing_data[0]:  # the next head has started
            self._close_after(settings.head_within_s)
        else:
            self._close_after(settings.idle_s if self._is_known else settings.unknown_idle_s)
            self._is_idle = True

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed with a problem; only close if an earlier answer is
        still being sent."""
        if self._requests:
            self._end()
        else:
            self._refuse("400 Bad Request", _MALFORMED)

    def _close_after(self, within_s: float) -> None:
        """Leaves a timer that fires before: it checks the time, and is set again. So a request
        needs none, where it would make and cancel two."""
        loop = asyncio.get_running_loop()
        self._is_idle = False
        self._ends_at = loop.time() + within_s
        if self._timer is not None:
            if self._timer.when() <= self._ends_at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(self._ends_at, self._end_if_late)

    def _end_if_late(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._ends_at <= loop.time():
            self._end()
        elif self._ends_at < inf:
            self._timer = loop.call_at(self._ends_at, self._end_if_late)

    def _stop_timer(self) -> None:
        self._is_idle = False
        self._ends_at = inf

    def _end(self) -> None:
        """Close; abort after `CLOSE_WITHIN_S` if the client does not read the rest of the
        answer."""
        assert self._channel is not None
        self._channel.close()
        asyncio.get_running_loop().call_later(CLOSE_WITHIN_S, self._channel.abort)

    def _refuse(self, status: str, problem: Problem, headers: str = "") -> None:
        request_id = new_request_id()
        body = encode(msgspec.structs.replace(problem, request_id=request_id))
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n{REQUEST_ID_HEADER.lower()}: {request_id}\r\n{headers}"
        )
        assert self._channel is not None
        self._channel.write(head.encode() + b"\r\n" + body)
        self._end()


def check_protocol(base: type[asyncio.Protocol]) -> None:
    """Raise if uvicorn's protocol lacks what ours uses that is not public: without this check a
    limit could silently stop working."""
    known = {*dir(base), *base.__init__.__code__.co_names}
    missing = [name for name in ("conn", "send_400_response") if name not in known]
    if missing:
        raise TenureError(
            f"this uvicorn has no {', '.join(missing)} in its protocol, which Tenure's limits need",
            hint=install_hint("server"),
        )


class TlsHandshake(asyncio.Protocol):
    """Handles a connection until its TLS handshake is done, then passes it to `http`.

    asyncio calls a protocol only after the handshake, which may take a minute, so silent
    connections would be neither counted nor closed. [H44]
    """

    http: type[GuardedProtocol]
    context: ssl.SSLContext

    def __init__(self, **keywords: Any) -> None:
        self._http = self.http(**keywords)
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and start the handshake if it is within the limits."""
        assert isinstance(transport, asyncio.Transport)
        if not self._http.admit(transport):
            self._abort(transport)
            return
        transport.pause_reading()  # `start_tls` reads the data
        self._task = asyncio.get_running_loop().create_task(self._handshake(transport))

    async def _handshake(self, transport: asyncio.Transport) -> None:
        settings = self.http.settings
        received = _Received()
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                received,
                self.context,
                server_side=True,
                ssl_handshake_timeout=settings.handshake_within_s,
                ssl_shutdown_timeout=CLOSE_WITHIN_S,
            )
        except OSError:  # not TLS, no valid certificate, too slow, or closed
            self._abort(transport)
            return
        except BaseException:
            self._abort(transport)
            raise
        if secured is None or received.is_lost:
            self._abort(transport)
            return
        secured.set_protocol(self._http)
        self._http.connection_made(secured)
        if received.data:
            self._http.data_received(bytes(received.data))

    def _abort(self, transport: asyncio.Transport) -> None:
        transport.abort()
        self._http.release()


class _Received(asyncio.Protocol):
    """Buffers data that arrives after the handshake, before its task resumes."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


def guarded(
    app: ASGIApp, settings: ServerSettings, context: ssl.SSLContext | None = None
) -> tuple[ASGIApp, type[asyncio.Protocol]]:
    """The application and the protocol class with these settings; with a `context` it speaks
    TLS."""
    check_protocol(H11Protocol)
    counted = Connections(settings)
    shared = {"settings": settings, "counted": counted}
    http: type[asyncio.Protocol] = type("GuardedProtocol", (GuardedProtocol,), shared)
    if context is not None:
        http = type("TlsHandshake", (TlsHandshake,), {"http": http, "context": context})
    return counted.watched(app), http
