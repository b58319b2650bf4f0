"""Calls by the table of routes: a message out, a message back, asked again where that is safe.

Safe is everything that carries an id of its own or changes nothing when it comes twice, and that
is all there is in the table. What is asked again is the very same request.
"""

import random
import threading
import time
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import msgspec

from tenure.core.retry import Retries
from tenure.errors import Closed, StoreUnavailable
from tenure.protocol import PROTOCOL_VERSION, VERSION_HEADER
from tenure.protocol.codec import encode, encode_query
from tenure.protocol.replies import ClaimReply
from tenure.protocol.routes import BY_NAME, Shape
from tenure.remote.answers import Reader
from tenure.remote.settings import Address, Patience, Trust, check_trust
from tenure.remote.transport import NotTrusted, Request, Response, Transport
from tenure.telemetry.tracing import RequestSpan, client_span, trace_headers

_M = TypeVar("_M")

CONNECTIONS = 16
WAITING_CONNECTIONS = 2

_random = random.SystemRandom().random


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to ask, by its route's name."""

    name: str
    parts: dict[str, str] = {}
    message: msgspec.Struct | None = None
    query: msgspec.Struct | None = None
    body: bytes | None = None
    headers: dict[str, str] = {}


class Caller:
    """Asks one server. Any thread."""

    def __init__(self, address: Address, trust: Trust, patience: Patience) -> None:
        check_trust(address, trust)
        self._trust = trust
        self._patience = patience
        self._reader = Reader(address)
        self._closing = threading.Event()
        self._transport = Transport(address, trust, patience, connections=CONNECTIONS)
        # Their own connections: what waits can be hung up on, and holds up nothing else.
        self._waiting = Transport(address, trust, patience, connections=WAITING_CONNECTIONS)

    # --- asking --------------------------------------------------------------------------------

    def ask(self, call: Call, kind: type[_M]) -> _M:
        """The answer, asked for a few times within a minute."""
        with _traced(call) as asked:
            response = self._repeated(call, self._request(call, asked))
            return self._message(call, asked, response, kind)

    def fetch(self, call: Call) -> bytes:
        """The body of an answer that is no message, likewise."""
        with _traced(call) as asked:
            response = self._repeated(call, self._request(call, asked))
            asked.answered(response.status)
            return response.body

    def ask_once(self, call: Call, kind: type[_M]) -> _M:
        """The answer, asked for once: the caller asks again by its own rules."""
        with _traced(call) as asked:
            response = self._checked(call, self._request(call, asked))
            return self._message(call, asked, response, kind)

    def ask_and_wait(
        self, call: Call, kind: type[_M], *, wait_s: float, since: int | None = None
    ) -> _M:
        """The answer to a call that the server may hold open for so long; asked once, and not at
        all if waiting calls were hung up on `since` then."""
        if self._closing.is_set():
            raise Closed
        with _traced(call) as asked:
            response = self._waiting.exchange(
                self._request(call, asked),
                answer_within_s=wait_s + self._patience.after_wait_s,
                since=since,
            )
            return self._message(call, asked, response, kind)

    @property
    def hang_ups(self) -> int:
        """How often the calls that wait were hung up on."""
        return self._waiting.hang_ups

    def hang_up_waiting(self) -> None:
        """End the calls that wait: they get no answer, and those not sent yet are not sent."""
        self._waiting.hang_up()

    def close(self) -> None:
        """End everything; calls after it fail with `Closed`."""
        self._closing.set()
        self._waiting.close()
        self._transport.close()

    # --- exchanges -----------------------------------------------------------------------------

    def _repeated(self, call: Call, request: Request) -> Response:
        retries = Retries(
            self._patience.backoff,
            tries=self._patience.tries,
            began_s=time.monotonic(),
            within_s=self._patience.within_s,
            random=_random,
        )
        while True:
            try:
                return self._checked(call, request)
            except NotTrusted:
                raise
            except StoreUnavailable as failure:
                pause_s = retries.pause_s(time.monotonic(), at_least_s=failure.retry_after_s)
                if pause_s is None:
                    raise
                if self._closing.wait(pause_s):
                    raise Closed from failure

    def _checked(self, call: Call, request: Request) -> Response:
        if self._closing.is_set():
            raise Closed
        response = self._transport.exchange(request, answer_within_s=self._patience.answer_s)
        self._reader.check(BY_NAME[call.name], response)
        return response

    def _message(self, call: Call, asked: RequestSpan, response: Response, kind: type[_M]) -> _M:
        asked.answered(response.status)
        message = self._reader.message(BY_NAME[call.name], response, kind)
        if isinstance(message, ClaimReply):
            asked.about(message.grants)
        return message

    def _request(self, call: Call, asked: RequestSpan) -> Request:
        route = BY_NAME[call.name]
        headers: dict[str, Any] = {VERSION_HEADER: str(PROTOCOL_VERSION), **call.headers}
        headers["User-Agent"] = "tenure"
        headers |= trace_headers(asked.traced)
        if self._trust.token is not None:
            headers["Authorization"] = self._trust.token.header()
        body = call.body
        if route.request_shape is Shape.JSON:
            headers["Content-Type"] = "application/json"
            body = encode(call.message)
        query = () if call.query is None else tuple(encode_query(call.query))
        return Request(
            method=route.method,
            path=route.url(**call.parts),
            query=query,
            headers=headers,
            body=body,
        )


def _traced(call: Call) -> AbstractContextManager[RequestSpan]:
    route = BY_NAME[call.name]
    return client_span(route.method, route.path)
