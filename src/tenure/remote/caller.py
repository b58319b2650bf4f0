"""Calls by the table of routes: sends a message, reads the answer, retries after a failure.

Every route is safe to retry: a request has its own id, or changes nothing when it arrives twice. A
retry sends exactly the same request.
"""

import logging
import random
import threading
import time
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from tenure.core.policy import Retries
from tenure.core.vocabulary import VerdictKind
from tenure.deadlines import retry_for_s
from tenure.errors import (
    Closed,
    InvalidInput,
    MalformedBody,
    OutcomeUnknown,
    RequestRefused,
    StoreUnavailable,
    TenureError,
    UnreadableRow,
)
from tenure.protocol import PROTOCOL_VERSION, TOKEN_VARIABLE, VERSION_HEADER
from tenure.protocol.codec import decode, encode, encode_query
from tenure.protocol.replies import Problem
from tenure.protocol.routes import BY_NAME, Route, Shape
from tenure.remote.settings import Address, Patience, Trust, check_trust
from tenure.remote.transport import HttpRequest, NotTrusted, Response, Transport
from tenure.telemetry.tracing import RequestSpan, client_span, trace_headers

CONNECTIONS = 16
WAITING_CONNECTIONS = 2
LONGEST_RETRY_AFTER_S = 30.0

LOG_AFTER_S = 2.0
LOG_IF_LEFT_S = 10.0
"""A request that has had no answer for two seconds, and is repeated for ten more, is logged once:
otherwise its caller waits and does not know for what."""

_FIELD_REFUSED = frozenset({400, 413, 422})

_log = logging.getLogger("tenure.remote")
_random = random.SystemRandom().random


class NotFound(RequestRefused):
    """The server does not know what the path names."""


class RouteCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request, by its route's name."""

    name: str
    parts: dict[str, str] = {}
    message: msgspec.Struct | None = None
    query: msgspec.Struct | None = None
    body: bytes | None = None
    headers: dict[str, str] = {}


class Caller:
    """Sends requests to one server. Thread-safe."""

    def __init__(self, address: Address, trust: Trust, patience: Patience) -> None:
        check_trust(address, trust)
        self._trust = trust
        self._patience = patience
        self._reader = _Reader(address)
        self._closing = threading.Event()
        self._transport = Transport(address, trust, patience, connections=CONNECTIONS)
        # Separate connections: waiting calls can be ended, and do not delay other calls.
        self._waiting = Transport(address, trust, patience, connections=WAITING_CONNECTIONS)

    # --- asking --------------------------------------------------------------------------------

    def ask(self, call: RouteCall) -> Any:
        """Send a request and return the answer, of the type in the table of routes. Retries for as
        long as `Patience` has it, a minute by default, or `retrying_for`."""
        with _traced(call) as span:
            response = self._repeated(call, self._request(call, span))
            return self._message(call, span, response)

    def fetch(self, call: RouteCall) -> bytes:
        """The same, for an answer that is not a message: returns its body."""
        with _traced(call) as span:
            response = self._repeated(call, self._request(call, span))
            span.answered(response.status)
            return response.body

    def ask_once(self, call: RouteCall) -> Any:
        """Send a request once and return the answer: the caller retries by its own rules."""
        with _traced(call) as span:
            response = self._checked(call, self._request(call, span))
            return self._message(call, span, response)

    def ask_and_wait(self, call: RouteCall, *, wait_s: float, since: int | None = None) -> Any:
        """Send a call that the server may keep open, and return the answer. Sends it once, and not
        at all if `hang_up_waiting` was called since `since` was read from `hang_ups`."""
        if self._closing.is_set():
            raise Closed
        with _traced(call) as span:
            response = self._waiting.exchange(
                self._request(call, span),
                answer_within_s=wait_s + self._patience.after_wait_s,
                since=since,
            )
            return self._message(call, span, response)

    @property
    def hang_ups(self) -> int:
        """How often `hang_up_waiting` was called."""
        return self._waiting.hang_ups

    def hang_up_waiting(self) -> None:
        """End the waiting calls: they get no answer, and unsent ones are not sent."""
        self._waiting.hang_up()

    def close(self) -> None:
        """Close all connections; later calls fail with `Closed`."""
        self._closing.set()
        self._waiting.close()
        self._transport.close()

    # --- exchanges -----------------------------------------------------------------------------

    def _repeated(self, call: RouteCall, request: HttpRequest) -> Response:
        began_s = time.monotonic()
        within_s = retry_for_s(self._patience.retry_for_s)
        retries = Retries(
            self._patience.backoff,
            began_s=began_s,
            within_s=within_s,
            random=_random,
        )
        is_logged = False
        while True:
            try:
                return self._checked(call, request)
            except NotTrusted:
                raise
            except StoreUnavailable as failure:
                pause_s = retries.pause_s(time.monotonic(), at_least_s=failure.retry_after_s)
                if pause_s is None:
                    raise
                waited_s = time.monotonic() - began_s
                left_s = within_s - waited_s
                if not is_logged and waited_s >= LOG_AFTER_S and left_s >= LOG_IF_LEFT_S:
                    is_logged = True
                    _log.warning("%s; trying again for %.0f s", failure.message, left_s)
                if self._closing.wait(pause_s):
                    raise Closed from failure

    def _checked(self, call: RouteCall, request: HttpRequest) -> Response:
        if self._closing.is_set():
            raise Closed
        response = self._transport.exchange(request, answer_within_s=self._patience.answer_s)
        self._reader.check(BY_NAME[call.name], response)
        return response

    def _message(self, call: RouteCall, span: RequestSpan, response: Response) -> Any:
        span.answered(response.status)
        return self._reader.message(BY_NAME[call.name], response)

    def _request(self, call: RouteCall, span: RequestSpan) -> HttpRequest:
        route = BY_NAME[call.name]
        headers: dict[str, Any] = {VERSION_HEADER: str(PROTOCOL_VERSION), **call.headers}
        headers["User-Agent"] = "tenure"
        headers |= trace_headers(span.traced)
        if self._trust.token is not None:
            headers["Authorization"] = self._trust.token.header()
        body = call.body
        if route.request_shape is Shape.JSON:
            headers["Content-Type"] = "application/json"
            body = encode(call.message)
        query = () if call.query is None else tuple(encode_query(call.query))
        return HttpRequest(
            method=route.method,
            path=route.url(**call.parts),
            query=query,
            headers=headers,
            body=body,
        )


def _traced(call: RouteCall) -> AbstractContextManager[RequestSpan]:
    route = BY_NAME[call.name]
    return client_span(route.method, route.path)


class _Reader:
    """Reads the answers of one server.

    Only a body that follows the protocol can refuse a request. A 5xx, a proxy's page or an
    unreadable body becomes `StoreUnavailable`, never a verdict. [H8]
    """

    def __init__(self, address: Address) -> None:
        self._address = address

    def message(self, route: Route, response: Response) -> Any:
        """The message of a success or of a conflict; raises for everything else."""
        self.check(route, response)
        assert route.reply is not None
        try:
            return decode(route.reply, response.body)
        except InvalidInput as wrong:
            raise self._unreadable(response) from wrong

    def check(self, route: Route, response: Response) -> None:
        """Raise unless the answer has a status that the route promises."""
        if 200 <= response.status < 300 or (response.status == 409 and route.conflict):
            return
        problem = self._problem(response)
        if problem is None:
            raise self._unreadable(response)
        raise self._error(response, problem)

    def _problem(self, response: Response) -> Problem | None:
        if not response.media_type.startswith("application/json"):
            return None
        try:
            return decode(Problem, response.body)
        except InvalidInput:
            return None

    def _error(self, response: Response, problem: Problem) -> TenureError:
        if problem.verdict is not VerdictKind.REJECTED:
            return self._no_verdict(response, problem)
        if response.status in _FIELD_REFUSED and problem.code == MalformedBody.code:
            return MalformedBody(problem.message.removeprefix("body: "))
        if response.status in _FIELD_REFUSED:
            field = problem.field or "body"
            problem_text = problem.message.removeprefix(f"{field}: ")
            return InvalidInput(field, problem_text, hint=problem.hint)
        kind = NotFound if response.status == 404 else RequestRefused
        hint = problem.hint
        if response.status == 401:
            hint = f"set {TOKEN_VARIABLE}, or give the application a token; handlers get none"
        return kind(problem.message, reason=problem.code, field=problem.field, hint=hint)

    def _no_verdict(self, response: Response, problem: Problem) -> TenureError:
        if problem.code == UnreadableRow.code and problem.job_id is not None:
            # Not sent again: waiting makes no server newer. [Y5]
            prefix = f"job {problem.job_id} cannot be read: "
            return UnreadableRow(problem.job_id, problem.message.removeprefix(prefix))
        exchange = f" (request {problem.request_id})" if problem.request_id else ""
        message = f"{self._address} answered {response.status}{exchange}: {problem.message}"
        pause_s = _bounded(response.retry_after_s)
        kind = StoreUnavailable if problem.nothing_changed else OutcomeUnknown
        return kind(message, hint=problem.hint, retry_after_s=pause_s)

    def _unreadable(self, response: Response) -> StoreUnavailable:
        return OutcomeUnknown(
            f"{self._address} answered {response.status}, but the response is not one of Tenure's",
            hint="check that this is the address of `tenure serve`, not of a proxy",
            retry_after_s=_bounded(response.retry_after_s),
        )


def _bounded(retry_after_s: float) -> float:
    return min(retry_after_s, LONGEST_RETRY_AFTER_S)
