"""Connections that are slow, too many or no HTTP at all, over real sockets."""

import asyncio
import os
import re
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from tenure.core.tokens import mint
from tenure.errors import TenureError
from tenure.server.connections import check_protocol
from tenure.server.limits import ServerSettings
from tenure_conformance.spec import spec
from tests.server.hurried import SETTINGS, TOKEN_ENTROPY
from tests.server.processes import CERTIFICATE, Process

pytestmark = pytest.mark.process

HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def hurried(directory: Path, *words: str) -> Process:
    command = [sys.executable, "-m", "tests.server.hurried", *words]
    return Process(command, dict(os.environ), directory)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    server = hurried(tmp_path)
    yield server
    server.close()


@pytest.fixture
def hasty_tls(tmp_path: Path) -> Iterator[Process]:
    """Gives a TLS handshake half a second."""
    server = hurried(tmp_path, "0.5")
    yield server
    server.close()


@pytest.fixture
def patient_tls(tmp_path: Path) -> Iterator[Process]:
    """Gives a TLS handshake longer than any test takes."""
    server = hurried(tmp_path, "600")
    yield server
    server.close()


def rest_of(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def send_for_ever(connection: socket.socket, chunk: bytes) -> None:
    """For longer than anybody reads."""
    for _ in range(100_000):
        connection.sendall(chunk)


def check_named(received: bytes) -> None:
    """The answer has a request id, and its body the same one. [H9]"""
    found = re.search(rb"\r\nx-request-id: ([0-9a-f]{16})\r\n", received)
    assert found is not None
    assert b'"request_id":"%s"' % found[1] in received


def test_an_incompatible_uvicorn_is_refused_at_startup() -> None:
    class Changed(asyncio.Protocol):
        def __init__(self) -> None: ...

    with pytest.raises(TenureError, match="has no conn, send_400_response in its protocol"):
        check_protocol(Changed)
    check_protocol(H11Protocol)


@spec("H62")
@pytest.mark.parametrize("sent", [b"", b"GET /hea", HEAD])
def test_a_connection_without_a_head_is_closed(server: Process, sent: bytes) -> None:
    with server.socket() as slow:
        slow.sendall(sent)

        received = rest_of(slow)

    assert received == b""
    assert server.ask("GET", "/healthz").status == 200


@spec("H62")
def test_a_connection_whose_head_comes_too_slowly_is_closed(server: Process) -> None:
    with server.socket() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        slow.settimeout(0.1)
        was_closed = False
        for number in range(600):
            try:
                slow.sendall(b"X-%d: 1\r\n" % number)
                was_closed = slow.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                was_closed = True
            break

    assert was_closed


@spec("H62")
def test_a_second_head_has_a_deadline_as_the_first(server: Process) -> None:
    with server.socket() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")

        received = rest_of(slow)

    assert received.count(b"HTTP/1.1") == 1


@spec("H62")
def test_a_body_that_does_not_come_is_answered_408_and_closed(server: Process) -> None:
    with server.socket() as slow:
        slow.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")

        received = rest_of(slow)

    assert received.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"too_slow"' in received


@spec("H43")
def test_a_body_over_its_limit_is_not_read_for_ever(server: Process) -> None:
    with server.socket() as bomb:
        bomb.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"[" * 65536 + b"\r\n"

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_for_ever(bomb, chunk)

    assert server.ask("GET", "/healthz").status == 200


@spec("H43")
def test_expect_continue_is_refused_for_a_body_over_the_limit(server: Process) -> None:
    with server.socket() as careful:
        careful.sendall(HEAD + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n")

        received = rest_of(careful)

    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in received.lower()


@spec("H8", "H9", "H43")
@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 8192,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 4 + b"\r\n\r\n",
    ],
)
def test_a_request_that_is_not_http_is_answered_with_a_problem(
    server: Process, sent: bytes
) -> None:
    with server.socket() as strange:
        strange.sendall(sent)

        received = rest_of(strange)

    assert received.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"malformed"' in received
    assert b'"verdict":"REJECTED"' in received
    check_named(received)


@spec("H8", "H40")
@pytest.mark.parametrize("swapped", [False, True])
def test_a_body_with_two_lengths_is_refused_and_its_connection_closed(
    server: Process, swapped: bool
) -> None:
    lengths = [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"]
    smuggled = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with server.socket() as doubtful:
        head = HEAD + b"".join(reversed(lengths) if swapped else lengths)
        doubtful.sendall(head + b"\r\n0\r\n\r\n" + smuggled)

        received = rest_of(doubtful)

    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nconnection: close\r\n" in received
    assert received.count(b"\r\nx-request-id: ") == 1, "what came after it is not answered"
    check_named(received)


@spec("H8", "H43")
def test_a_head_over_its_limit_is_refused_also_when_it_comes_at_once(server: Process) -> None:
    with server.socket() as large:
        large.sendall(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 8192 + b"\r\n\r\n"
        )

        received = rest_of(large)

    assert received.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"head_too_large"' in received


@spec("H9", "H43")
def test_a_connection_over_the_limit_is_answered_503(server: Process) -> None:
    with ExitStack() as many:
        for number in range(SETTINGS.max_connections):
            many.enter_context(server.socket(source=f"127.0.0.{1 + number % 2}"))
        newcomer = many.enter_context(server.socket(source="127.0.0.3"))

        received = rest_of(newcomer)

    assert received.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in received.lower()
    assert b'"code":"too_many_connections"' in received
    check_named(received)


@spec("H43")
def test_one_address_cannot_take_all_connections(server: Process) -> None:
    with ExitStack() as many:
        for _ in range(SETTINGS.max_connections_per_address):
            many.enter_context(server.socket(source="127.0.0.2"))
        one_more = many.enter_context(server.socket(source="127.0.0.2"))
        somebody = many.enter_context(server.socket())
        somebody.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")

        refused, served = rest_of(one_more), rest_of(somebody)

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"too_many_connections"' in refused
    assert served.startswith(b"HTTP/1.1 200 ")
    with server.socket(source="127.0.0.2") as later:
        later.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert rest_of(later).startswith(b"HTTP/1.1 200 "), "those that left are not counted"


@spec("H44")
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_a_tls_handshake_that_does_not_come_ends_its_connection(
    hasty_tls: Process, sent: bytes
) -> None:
    with hasty_tls.socket() as silent:
        silent.sendall(sent)
        silent.settimeout(20)  # asyncio itself would wait for a minute

        received = rest_of(silent)

    assert received == b""
    assert hasty_tls.ask("GET", "/healthz").status == 200


@spec("H43")
def test_connections_are_counted_before_their_tls_handshake(patient_tls: Process) -> None:
    with ExitStack() as many:
        for _ in range(SETTINGS.max_connections_per_address):
            many.enter_context(patient_tls.socket(source="127.0.0.2"))
        one_more = many.enter_context(patient_tls.socket(source="127.0.0.2"))

        refused = _until_reset(one_more)
        served = patient_tls.ask("GET", "/healthz")

    assert refused == b""
    assert served.status == 200
    assert "Traceback" not in patient_tls.log


@spec("H43")
def test_connections_that_left_during_their_handshake_or_after_are_not_counted(
    patient_tls: Process,
) -> None:
    for _ in range(SETTINGS.max_connections_per_address + 5):
        with patient_tls.socket() as silent:
            silent.sendall(b"\x16\x03\x01")
        assert patient_tls.ask("GET", "/healthz").status == 200


def _until_reset(connection: socket.socket) -> bytes:
    """Everything until the server closes, however it does that."""
    try:
        return rest_of(connection)
    except ConnectionResetError:
        return b""


@spec("H43")
def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(
    patient_tls: Process,
) -> None:
    trusted = ssl.create_default_context(cafile=str(CERTIFICATE))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusted.wrap_bio(incoming, outgoing, server_hostname=patient_tls.host)
    with patient_tls.socket() as bare:
        while not _is_through(client):
            bare.sendall(outgoing.read())
            incoming.write(bare.recv(65536))
        client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        bare.sendall(outgoing.read())  # the handshake's last message and the request at once

        while not (answer := _readable(client)):
            incoming.write(bare.recv(65536))

    assert answer.startswith(b"HTTP/1.1 200 ")


def _is_through(client: ssl.SSLObject) -> bool:
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _readable(client: ssl.SSLObject) -> bytes:
    try:
        return client.read(65536)
    except ssl.SSLWantReadError:
        return b""


@spec("H62")
def test_a_large_response_to_a_slow_reader_is_freed_soon() -> None:
    settings = ServerSettings()

    longest_s = settings.send_within_s + (50 << 20) / settings.slowest_bytes_per_s

    assert longest_s <= 180


@spec("H62")
def test_an_idle_connection_is_closed(server: Process) -> None:
    with server.socket() as idle:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

        received = rest_of(idle)

    assert received.startswith(b"HTTP/1.1 200 ")


def _answer(connection: socket.socket) -> bytes:
    """One answer, whose body ends with a brace, in however many pieces it comes."""
    received = b""
    while not received.endswith(b"}"):
        received += connection.recv(65536)
    return received


@spec("H75")
def test_an_idle_connection_without_a_token_is_closed_sooner(tmp_path: Path) -> None:
    server = hurried(tmp_path, "tokens")
    ask = b"GET /v1/time HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n"
    ask %= mint(TOKEN_ENTROPY)[2].encode()
    with server.socket() as known, server.socket() as unknown:
        known.sendall(ask)
        assert _answer(known).startswith(b"HTTP/1.1 200 ")
        unknown.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

        received = rest_of(unknown)
        known.sendall(ask)
        again = _answer(known)

    assert received.startswith(b"HTTP/1.1 200 ")
    assert again.startswith(b"HTTP/1.1 200 ")
    server.close()


def test_a_head_that_was_complete_has_no_deadline_left(server: Process) -> None:
    body = b'{"worker":"w","queues":["q"],"claim_seq":1,"request_id":"c","wait_s":1.5}'
    head = HEAD.replace(b"/v1/jobs", b"/v1/claim") + b"Content-Length: %d\r\n\r\n" % len(body)
    with server.socket() as waiting:
        waiting.sendall(head + body)

        received = rest_of(waiting)

    assert received.startswith(b"HTTP/1.1 200 ")
