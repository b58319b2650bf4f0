"""Connections: uvicorn's HTTP/1.1 protocol with the deadlines and limits that it leaves out.

A head that is not complete in time ends its connection, however slowly it drips [H13]; so does a
TLS handshake [H44]. Connections are counted when they are accepted; past the limit, of all or of
its address, a newcomer is refused at once [H43]. What cannot be parsed gets the same kind of answer
as everything else [H8]. A body that is cut into many tiny chunks is refused, because each chunk
costs the parser as much as a large one [H39]; and so is one with two lengths, because a proxy in
front may have believed the other one [H40].
"""

import asyncio
import ssl
from collections import Counter
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from tenure.core.vocabulary import VerdictKind
from tenure.errors import TenureError
from tenure.protocol import REQUEST_ID_HEADER
from tenure.protocol.codec import encode
from tenure.protocol.problem_codes import ProblemCode
from tenure.protocol.replies import Problem
from tenure.server.problems import RETRY_AFTER_S, new_request_id
from tenure.server.settings import ServerSettings

LAST_WORDS_S = 5.0
FREE_CHUNKS = 1024
BYTES_PER_CHUNK = 256
"""A chunked body may have so many chunks of any size, and one more for each so many bytes."""

_BUILT_ON = (
    *("connection_made", "data_received", "connection_lost"),
    *("send_400_response", "timeout_keep_alive_handler", "timeout_keep_alive_task"),
    *("connections", "client", "conn", "cycle", "loop", "transport"),
)

_MALFORMED = Problem(
    code=ProblemCode.MALFORMED,
    message="this is not HTTP/1.1, its head is too large, or its body has two lengths or too many "
    "small chunks",
    verdict=VerdictKind.REJECTED,
    nothing_changed=True,
)
_FULL = Problem(
    code=ProblemCode.TOO_MANY_CONNECTIONS,
    message="the server has too many connections, or too many from this address",
    nothing_changed=True,
)


class StrictConnection(h11.Connection):
    """h11's parser, which refuses two kinds of requests that h11 itself accepts."""

    def __init__(self, max_incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size)
        self._chunks = 0
        self._body_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """What came next. Raises `RemoteProtocolError`, as h11 does."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._body_bytes = 0
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("a body with two lengths")
        elif isinstance(event, h11.Data):
            # A piece without a chunk's end is as large as what the socket gave: the caller cannot
            # make many small ones of those without as many packets.
            self._chunks += event.chunk_end
            self._body_bytes += len(event.data)
            if self._chunks > FREE_CHUNKS + self._body_bytes // BYTES_PER_CHUNK:
                raise h11.RemoteProtocolError("a body of too many small chunks")
        return event


class Connections:
    """How many connections there are, of all and of each address. [H43]"""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._total = 0
        self._of_address: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Count one, and say whether there was room for it."""
        self._total += 1
        self._of_address[address] += 1
        is_full = self._total > self._settings.max_connections
        return not is_full and (
            self._of_address[address] <= self._settings.max_connections_per_address
        )

    def leave(self, address: str) -> None:
        """One that was counted is closed."""
        self._total -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]


class GuardedProtocol(H11Protocol):
    """One connection. `settings`, and the count of all connections, are `guarded`'s."""

    settings: ServerSettings
    counted: Connections

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.conn = StrictConnection(self.settings.max_header_bytes)
        self._head_timer: asyncio.TimerHandle | None = None
        self._address: str | None = None

    def admit(self, transport: asyncio.BaseTransport) -> bool:
        """Count the connection, and say whether there is room for it."""
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else ""
        return self.counted.enter(self._address)

    def release(self) -> None:
        """The connection is closed: count it no longer."""
        if self._address is not None:
            self.counted.leave(self._address)
            self._address = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Let it in, if there is room; what came through TLS was admitted before."""
        super().connection_made(transport)
        if self._address is None and not self.admit(transport):
            self._refuse(503, _FULL, [(b"retry-after", str(RETRY_AFTER_S).encode())])
            return
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Take what came; the next head has its own deadline."""
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_serving():
            self._forget_timer()
        elif self.timeout_keep_alive_task is None:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._forget_timer()
        self.release()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP, in the shape of every other problem."""
        self._refuse(400, _MALFORMED, [])

    def timeout_keep_alive_handler(self) -> None:
        """It has been idle for long enough."""
        self._end()

    def _end(self) -> None:
        """Close, and do not wait for a client that does not read what is left."""
        self.transport.close()
        self.loop.call_later(LAST_WORDS_S, self.transport.abort)

    def _is_serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.settings.head_within_s, self._give_up)

    def _forget_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self._is_serving():
            self._end()

    def _refuse(self, status: int, problem: Problem, headers: list[tuple[bytes, bytes]]) -> None:
        """Answer and close. While an earlier answer is on its way there is only closing."""
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
    """Raise unless uvicorn's protocol has all that ours is built on: none of it is promised, and
    without it a deadline would silently not be there."""
    there = {*dir(base), *base.__init__.__code__.co_names}
    missing = [name for name in _BUILT_ON if name not in there]
    if missing:
        raise TenureError(
            f"this uvicorn has no {', '.join(missing)} in its protocol",
            hint="install the versions that were tested: `pip install 'tenure[server]'`",
        )


class TlsHandshake(asyncio.Protocol):
    """A connection from its acceptance to the end of its TLS handshake; then it is `http`'s.

    asyncio tells a protocol of a TLS connection only after the handshake, for which it gives a
    minute, so silent connections would be neither counted nor closed. [H44]
    """

    http: type[GuardedProtocol]
    context: ssl.SSLContext

    def __init__(self, **keywords: Any) -> None:
        self._http = self.http(**keywords)
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it, and begin the handshake if there is room."""
        assert isinstance(transport, asyncio.Transport)
        if not self._http.admit(transport):
            self._give_up(transport)
            return
        transport.pause_reading()  # what has come is the handshake's to read
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        settings = self.http.settings
        received = _Received()
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                received,
                self.context,
                server_side=True,
                ssl_handshake_timeout=settings.handshake_within_s,
                ssl_shutdown_timeout=LAST_WORDS_S,
            )
        except OSError:  # no TLS, no valid certificate, too late, or gone
            self._give_up(transport)
            return
        except BaseException:
            self._give_up(transport)
            raise
        if secured is None or received.is_lost:
            self._give_up(transport)
            return
        secured.set_protocol(self._http)
        self._http.connection_made(secured)
        if received.data:
            self._http.data_received(bytes(received.data))

    def _give_up(self, transport: asyncio.Transport) -> None:
        transport.abort()
        self._http.release()


class _Received(asyncio.Protocol):
    """Keeps what comes between the end of the handshake and the moment its task goes on."""

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
    """The protocol with these settings, within TLS if there is a context."""
    check_protocol(H11Protocol)
    shared = {"settings": settings, "counted": Connections(settings)}
    http = type("GuardedProtocol", (GuardedProtocol,), shared)
    if context is None:
        return http
    return type("TlsHandshake", (TlsHandshake,), {"http": http, "context": context})
