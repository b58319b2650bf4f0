"""The HTTP server of the scripted coordinator: on loopback, one thread per connection.

It decodes requests by the table of routes, records when each arrived, and sends, delays, doubles or
drops the answer as the script says. It judges nothing.
"""

import re
import socket
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from tenure.core.ids import JobId, Kind
from tenure.core.instants import Instant
from tenure.core.vocabulary import LeaseNews, Role, VerdictKind
from tenure.errors import InvalidInput, MalformedBody
from tenure.protocol import LEASE_HEADER
from tenure.protocol.codec import decode, encode
from tenure.protocol.openapi import openapi
from tenure.protocol.records import ArtifactRecord, KindRecord
from tenure.protocol.replies import (
    AliveReply,
    HealthReply,
    KeptReply,
    KindsReply,
    PeekLeasesReply,
    Problem,
    ProblemCode,
    StagingReply,
    TimeReply,
)
from tenure.protocol.requests import (
    ClaimMessage,
    HeartbeatsMessage,
    PeekLeasesMessage,
    ReportsMessage,
)
from tenure.protocol.routes import ROUTES, Route
from tenure_conformance.worker.record import Record, WorkerRequest
from tenure_conformance.worker.scenarios import Scenario
from tenure_conformance.worker.script import Answer, Script

MAX_BODY_BYTES = 16 << 20
MAX_CHUNK_LINE_BYTES = 32
EFFECTS = "/effects"

_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,16} *(;[^\r\n]*)?\r?\n")


class Listener:
    """The server of one scenario. It serves from construction until `close`."""

    def __init__(self, scenario: Scenario, record: Record, *, token: str) -> None:
        self.record = record
        self.token = token
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler, self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.script = Script(
            scenario,
            record,
            effect_url=self.url + EFFECTS,
            born=Instant(time.time_ns() // 1000),
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        """Stop serving. Delayed answers are sent at once."""
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: Any, listener: Listener) -> None:
        self.listener = listener
        super().__init__(address, handler)


class _Refused(Exception):
    """The request is not legal. Becomes the answer that a real coordinator would give."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are written one after the other: with Nagle's algorithm the body waits 40 ms
    # for the acknowledgement of the headers.
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        """Serve one connection. The worker may reset it at any time."""
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        """Serve a GET."""
        self._serve()

    def do_POST(self) -> None:
        """Serve a POST."""
        self._serve()

    def do_PUT(self) -> None:
        """Serve a PUT."""
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the record has every request."""

    def _serve(self) -> None:
        at = time.monotonic()
        listener = self.server.listener
        try:
            body = self._read_body()
            if self.path == EFFECTS:
                listener.record.add_effect(at)
                self._write(Answer(status=204, body=b""))
                return
            requests, answer = self._answer(body, at)
        except _Refused as refused:
            what = f"{self.command} {self.path[:200]}: {refused}"
            listener.record.add_malformed(what)
            problem = Problem(code=refused.code, message=str(refused), verdict=VerdictKind.REJECTED)
            requests, answer = [], Answer(status=refused.status, body=encode(problem))
        except ConnectionError:  # the worker hung up while it sent its request
            self.close_connection = True
            return
        self._deliver(requests, answer)

    # --- reading -------------------------------------------------------------------------------

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            return self._read_chunks()
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal():
            self.close_connection = True
            raise _Refused(400, ProblemCode.MALFORMED, "Content-Length is not a number")
        if int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            raise _Refused(413, ProblemCode.TOO_LARGE, "the body is too large")
        return self.rfile.read(int(length))

    def _read_chunks(self) -> bytes:
        body = b""
        while len(body) <= MAX_BODY_BYTES:
            line = self.rfile.readline(MAX_CHUNK_LINE_BYTES)
            if not _CHUNK_SIZE.match(line):
                self.close_connection = True
                raise _Refused(400, ProblemCode.MALFORMED, "a chunk has no valid size")
            size = int(line.partition(b";")[0], 16)
            body += self.rfile.read(min(size, MAX_BODY_BYTES + 1))
            self.rfile.readline(2)
            if size == 0:
                return body
        self.close_connection = True
        raise _Refused(413, ProblemCode.TOO_LARGE, "the body is too large")

    def _answer(self, body: bytes, at: float) -> tuple[list[WorkerRequest], Answer]:
        route, parts = _route(self.command, self.path.partition("?")[0])
        listener = self.server.listener
        if not route.is_public and self.headers.get("Authorization") != f"Bearer {listener.token}":
            raise _Refused(
                401,
                ProblemCode.UNAUTHENTICATED,
                "the request does not carry the token of TENURE_TOKEN",
            )
        if listener.token in self.path:
            raise _Refused(400, ProblemCode.MALFORMED, "the URL contains the token")
        if not route.is_public and Role.WORKER not in route.roles:
            raise _Refused(403, ProblemCode.OUT_OF_SCOPE, "this route is not for workers")
        if route.request is None:
            return [], Answer(body=encode(_side_reply(route, parts, self.headers, body)))
        media_type = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise _Refused(
                415, ProblemCode.UNSUPPORTED_MEDIA_TYPE, "the body is not application/json"
            )
        try:
            message = decode(route.request, body)
        except InvalidInput as wrong:
            status = 400 if isinstance(wrong, MalformedBody) else 422
            raise _Refused(status, wrong.code, str(wrong)) from wrong
        with listener.lock:
            return self._ask_script(route, parts, message, at)

    def _ask_script(
        self, route: Route, parts: dict[str, str], message: Any, at: float
    ) -> tuple[list[WorkerRequest], Answer]:
        script = self.server.listener.script
        match message:
            case ClaimMessage():
                return script.claim(message, at)
            case HeartbeatsMessage():
                return script.report(message.leases, at, is_batch=True)
            case PeekLeasesMessage():  # an empty answer is legal: heartbeats bring the verdicts
                found = PeekLeasesReply(news=(LeaseNews.NONE,) * len(message.leases))
                return [], Answer(body=encode(found))
            case ReportsMessage():
                return script.report(message.reports, at, is_batch=True)
            case _ if route.name in ("start", "complete", "fail", "release"):
                return script.report([message], at, is_batch=False)
            case _:
                return [], Answer(body=encode(_side_reply(route, parts, self.headers, b"")))

    # --- writing -------------------------------------------------------------------------------

    def _deliver(self, requests: list[WorkerRequest], answer: Answer) -> None:
        if answer.is_lost:
            self.close_connection = True
            return
        if answer.delay_s:
            self.server.listener.closing.wait(answer.delay_s)
        if self._has_hung_up():
            self.close_connection = True
            return
        # Taken before the write: a worker may act on the answer before our write returns.
        answered_at = time.monotonic()
        try:
            self._write(answer)
            if answer.is_double:
                self._write(answer)
        except ConnectionError:
            self.close_connection = True
            return
        for each in requests:
            each.status = answer.status
            each.answered_at = answered_at

    def _write(self, answer: Answer) -> None:
        self.send_response(answer.status)
        if answer.status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer.body)))
        if answer.retry_after_s is not None:
            self.send_header("Retry-After", str(answer.retry_after_s))
        self.end_headers()
        self.wfile.write(answer.body)
        self.wfile.flush()

    def _has_hung_up(self) -> bool:
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True


def _route(method: str, path: str) -> tuple[Route, dict[str, str]]:
    segments = path.split("/")
    is_known = False
    for route in ROUTES:
        pattern = route.path.split("/")
        if len(pattern) != len(segments):
            continue
        pairs = list(zip(pattern, segments, strict=True))
        if not all(there == here or there.startswith("{") for there, here in pairs):
            continue
        if route.method == method:
            return route, {there[1:-1]: here for there, here in pairs if there.startswith("{")}
        is_known = True
    if is_known:
        raise _Refused(405, ProblemCode.METHOD_NOT_ALLOWED, "the route does not take this method")
    raise _Refused(404, ProblemCode.UNKNOWN_ROUTE, "unknown route")


def _side_reply(
    route: Route, parts: dict[str, str], headers: Any, body: bytes
) -> msgspec.Struct | dict[str, Any]:
    """Answer a route that plays no part in the scenarios: no faults, nothing to judge."""
    now = datetime.now(UTC)
    match route.name:
        case "time":
            return TimeReply(now=now)
        case "alive":
            return AliveReply(drain=False)
        case "output":
            return KeptReply(verdict=VerdictKind.OK)
        case "healthz" | "readyz":
            return HealthReply(status="ok")
        case "upload-artifact":
            if LEASE_HEADER not in headers:
                raise _Refused(422, InvalidInput.code, f"the header {LEASE_HEADER} is missing")
            artifact = ArtifactRecord(
                job_id=JobId(parts["job_id"]),
                attempt=1,
                name=parts["name"],
                media_type=headers.get("Content-Type", ""),
                size=len(body),
                sha256="",
                ts=now,
            )
            return StagingReply(verdict=VerdictKind.OK, artifact=artifact)
        case "kinds":
            return KindsReply(kinds=())
        case "declare-kind":
            return KindRecord(kind=Kind(parts["kind"]))
        case "openapi":
            return openapi()
        case _:
            raise AssertionError(f"the worker kit does not answer the route {route.name}")
