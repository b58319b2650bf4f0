"""Sends one request to a server and reads the answer.

The only module that uses urllib3. It keeps connections alive and limits their number. It does not
retry, does not follow redirects (they would send the token elsewhere) and ignores the proxies of
the environment. `hang_up` ends waiting exchanges, from any thread.
"""

import socket
import ssl
import threading
import time
from contextlib import suppress
from http.client import HTTPException, IncompleteRead
from urllib.parse import urlencode
from weakref import WeakSet

import msgspec
import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import (
    ClosedPoolError,
    ConnectTimeoutError,
    EmptyPoolError,
    HTTPError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.remote.settings import CA_VARIABLE, Address, Patience, Trust, tls_context

MAX_ANSWER_BYTES = 512 << 20
"""More than the largest answer of the protocol: a hundred grants with all their bodies."""

PIECE_BYTES = 256 << 10
POOL_WITHIN_S = 15


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request. Never logged, because it may contain payloads."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: dict[str, str]
    body: bytes | None = None

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer."""

    status: int
    body: bytes
    media_type: str
    retry_after_s: float


class NotTrusted(StoreUnavailable):
    """The server's certificate is not trusted; sending the request again will not help."""


class Transport:
    """A pool of connections to one server."""

    def __init__(
        self, address: Address, trust: Trust, patience: Patience, *, connections: int
    ) -> None:
        self._address = address
        self._patience = patience
        self._opened: WeakSet[HTTPConnection] = WeakSet()
        self._lock = threading.Lock()
        self._hang_ups = 0
        self._under_way = threading.local()
        self._pool = self._make_pool(trust, connections)

    def _make_pool(self, trust: Trust, connections: int) -> urllib3.HTTPConnectionPool:
        pool: urllib3.HTTPConnectionPool
        if self._address.scheme == "https":
            pool = urllib3.HTTPSConnectionPool(
                self._address.host,
                self._address.port,
                maxsize=connections,
                block=True,
                ssl_context=tls_context(trust),
            )
        else:
            pool = urllib3.HTTPConnectionPool(
                self._address.host, self._address.port, maxsize=connections, block=True
            )
        pool.ConnectionCls = self._tracked(pool.ConnectionCls)  # type: ignore[arg-type]  # typed as a protocol of both
        return pool

    def _tracked(self, base: type[HTTPConnection]) -> type[HTTPConnection]:
        track = self._track

        class Tracked(base):  # type: ignore[valid-type,misc]  # one of two classes
            def connect(self) -> None:
                super().connect()
                track(self)

        return Tracked

    def _track(self, connection: HTTPConnection) -> None:
        """Remember a new connection. `hang_up` ends only connections that it knows, so check
        whether it was called while this one was being opened."""
        with self._lock:
            self._opened.add(connection)
        self._check_not_hung_up(self._under_way.since)

    def _check_not_hung_up(self, since: int) -> None:
        if self.hang_ups != since:
            raise StoreUnavailable(f"hung up on {self._address} before anything was sent")

    @property
    def hang_ups(self) -> int:
        """How often `hang_up` was called. A caller that starts later passes it to `exchange`."""
        with self._lock:
            return self._hang_ups

    def exchange(
        self, request: HttpRequest, *, answer_within_s: float, since: int | None = None
    ) -> Response:
        """Send a request once, unless `hang_up` was called since `since` (default: now). Raises
        `StoreUnavailable` if nothing was sent, `OutcomeUnknown` if it may have been carried out."""
        self._under_way.since = self.hang_ups if since is None else since
        self._check_not_hung_up(self._under_way.since)
        try:
            response = self._pool.urlopen(
                request.method,
                self._address.prefix + request.target,
                body=request.body,
                headers=request.headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                timeout=urllib3.Timeout(connect=self._patience.connect_s, read=answer_within_s),
                pool_timeout=POOL_WITHIN_S,
                preload_content=False,
                decode_content=False,
            )
            return self._whole(response)
        except (
            NewConnectionError,
            ConnectTimeoutError,
            EmptyPoolError,
            ClosedPoolError,
        ) as failure:
            problem = f"{self._address} cannot be reached: {in_words(failure)}"
            hint = "check the URL, and that a server runs there"
            raise StoreUnavailable(problem, hint=hint) from failure
        except (HTTPError, OSError) as failure:
            raise self._lost(request, failure) from failure

    def _lost(self, request: HttpRequest, failure: Exception) -> StoreUnavailable:
        inner = failure.args[0] if failure.args else None
        if isinstance(failure, SSLError) and isinstance(inner, ssl.SSLCertVerificationError):
            return NotTrusted(
                f"the certificate of {self._address} is not trusted: {inner.verify_message}",
                hint=f"name the file of its authority in {CA_VARIABLE}",
            )
        hint = "the request may have been carried out; send it again under the same request id"
        return OutcomeUnknown(
            f"{self._address} gave no answer: {in_words(failure)}",
            hint="try again" if request.method == "GET" else hint,
        )

    def _whole(self, response: urllib3.BaseHTTPResponse) -> Response:
        """Read the whole answer. Raises if it is too large or takes too long."""
        ends_at_s = time.monotonic() + self._patience.whole_answer_s
        body = bytearray()
        try:
            while piece := response.read1(PIECE_BYTES):
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise OutcomeUnknown(f"an answer of {self._address} is too large")
                if time.monotonic() > ends_at_s:
                    raise OutcomeUnknown(f"an answer of {self._address} took too long")
        except BaseException:
            response.close()
            raise
        response.release_conn()
        return Response(
            status=response.status,
            body=bytes(body),
            media_type=response.headers.get("content-type", ""),
            retry_after_s=_seconds(response.headers.get("retry-after", "")),
        )

    def hang_up(self) -> None:
        """End every exchange under way: its caller gets `OutcomeUnknown`, or `StoreUnavailable` if
        it was not sent. Idle connections are closed too, and opened again when needed."""
        with self._lock:
            self._hang_ups += 1
            opened = list(self._opened)
        for connection in opened:
            ours = getattr(connection, "sock", None)
            if ours is not None:
                with suppress(OSError):  # it is closed already
                    ours.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connections."""
        self.hang_up()
        self._pool.close()


def in_words(failure: BaseException) -> str:
    """What went wrong with a connection, for people: urllib3 wraps the operating system's errors,
    as a cause or as its last argument, and formats them as Python does."""
    inner = [failure, failure.__cause__, *failure.args[-1:]]
    for each in inner:
        match each:
            case ssl.SSLError():
                return f"TLS failed: {(each.reason or str(each)).replace('_', ' ').lower()}"
            case NewConnectionError():
                continue  # a subclass of the next one, whatever its cause
            case ConnectTimeoutError():
                return "it did not accept the connection in time"
            case EmptyPoolError():
                return "all connections to it are in use"
            case ClosedPoolError():
                return "this client is closed"
            case TimeoutError() | ReadTimeoutError():
                return "it sent nothing in time"
            case ConnectionResetError() | BrokenPipeError() | IncompleteRead():
                return "it closed the connection"
            case HTTPException():
                return "it does not speak HTTP"
            case OSError(strerror=str(message)):
                return message[:1].lower() + message[1:]
            case _:
                pass
    return str(failure)[:300]


def _seconds(text: str) -> float:
    """`Retry-After` in seconds; 0 for a date, which our server never sends."""
    return float(text) if text.isascii() and text.isdigit() else 0.0
