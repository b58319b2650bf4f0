"""Connections: uvicorn's HTTP/1.1 protocol, plus the deadlines and limits that it lacks.

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
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from tenure.core.vocabulary import VerdictKind
from tenure.errors import TenureError, install_hint
from tenure.protocol import REQUEST_ID_HEADER
from tenure.protocol.codec import encode
from tenure.protocol.replies import Problem, ProblemCode
from tenure.server.problems import RETRY_AFTER_S, new_request_id
from tenure.server.settings import ServerSettings

CLOSE_WITHIN_S = 5.0
FREE_CHUNKS = 1024
BYTES_PER_CHUNK = 256
"""A chunked body may have `FREE_CHUNKS` chunks of any size, and one more per `BYTES_PER_CHUNK`."""

KNOWN = "tenure.is_known"
"""In the scope of a request: its caller is known. The connection may then be idle for longer."""

_USED_ATTRIBUTES = (
    *("connection_made", "data_received", "connection_lost"),
    *("send_400_response", "timeout_keep_alive_handler", "timeout_keep_alive_task"),
    *("on_response_complete", "timeout_keep_alive", "scope"),
    *("connections", "client", "conn", "cycle", "loop", "transport"),
)

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
    """Counts the connections, in all and per address. [H43]"""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._total = 0
        self._per_address: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Count a new connection. Returns whether it is within the limits."""
        self._total += 1
        self._per_address[address] += 1
        is_full = self._total > self._settings.max_connections
        return not is_full and (
            self._per_address[address] <= self._settings.max_connections_per_address
        )

    def leave(self, address: str) -> None:
        """Stop counting a connection that is closed."""
        self._total -= 1
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]


class GuardedProtocol(H11Protocol):
    """One connection. `guarded` makes a subclass with `settings` and the shared `counted`."""

    settings: ServerSettings
    counted: Connections

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.conn = StrictConnection(self.settings.max_header_bytes)
        self._head_timer: asyncio.TimerHandle | None = None
        self._address: str | None = None
        self._is_known = False

    def admit(self, transport: asyncio.BaseTransport) -> bool:
        """Count the connection. Returns whether it is within the limits."""
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else ""
        return self.counted.enter(self._address)

    def release(self) -> None:
        """Stop counting the connection, which is closed."""
        if self._address is not None:
            self.counted.leave(self._address)
            self._address = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's signature
        """Admit the connection or refuse it. `TlsHandshake` has admitted TLS connections before."""
        super().connection_made(transport)
        if self._address is None and not self.admit(transport):
            self._refuse(503, _FULL, [(b"retry-after", str(RETRY_AFTER_S).encode())])
            return
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """Parse the data; start the deadline of the next head unless a request is being served."""
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_serving():
            self._cancel_head_timer()
        elif self.timeout_keep_alive_task is None:
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer and the counting."""
        self._cancel_head_timer()
        self.release()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed with a problem."""
        self._refuse(400, _MALFORMED, [])

    def on_response_complete(self) -> None:
        """Wait for the next request: a short time unless a caller on this connection is known.
        [H75]"""
        self._is_known = self._is_known or KNOWN in self.scope
        settings = self.settings
        self.timeout_keep_alive = settings.idle_s if self._is_known else settings.unknown_idle_s
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        self._end()

    def _end(self) -> None:
        """Close; abort after `CLOSE_WITHIN_S` if the client does not read the rest of the
        answer."""
        self.transport.close()
        self.loop.call_later(CLOSE_WITHIN_S, self.transport.abort)

    def _is_serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.settings.head_within_s, self._head_is_late)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self._is_serving():
            self._end()

    def _refuse(self, status: int, problem: Problem, headers: list[tuple[bytes, bytes]]) -> None:
        """Answer and close; only close if an earlier answer is still being sent."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._end()
            return
        request_id = new_request_id()
        body = encode(msgspec.structs.replace(problem, request_id=request_id))
        head = h11.Response(
            status_code=status,
            headers=[
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
                (REQUEST_ID_HEADER.lower().encode(), request_id.encode()),
                *headers,
            ],
        )
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self._end()


def check_protocol(base: type[asyncio.Protocol]) -> None:
    """Raise if uvicorn's protocol lacks an attribute that ours uses. None of them is a public API,
    and without the check a deadline could silently stop working."""
    known = {*dir(base), *base.__init__.__code__.co_names}
    missing = [name for name in _USED_ATTRIBUTES if name not in known]
    if missing:
        raise TenureError(
            f"this uvicorn has no {', '.join(missing)} in its protocol: it is not a version that"
            " the extra server allows",
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
        """Count the connection, and begin the handshake if it is within the limits."""
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
    settings: ServerSettings, context: ssl.SSLContext | None = None
) -> type[asyncio.Protocol]:
    """The protocol class with these settings; with a `context` it speaks TLS."""
    check_protocol(H11Protocol)
    shared = {"settings": settings, "counted": Connections(settings)}
    http = type("GuardedProtocol", (GuardedProtocol,), shared)
    if context is None:
        return http
    return type("TlsHandshake", (TlsHandshake,), {"http": http, "context": context})
