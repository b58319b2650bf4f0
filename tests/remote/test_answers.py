"""What is made of an answer, and of none: only the protocol's own words refuse anything."""

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from urllib3.exceptions import ConnectTimeoutError, EmptyPoolError, ProtocolError

from tenure.core.claims import ClaimAnswer
from tenure.core.commands import Start
from tenure.core.ids import JobId, LeaseId, RequestId, worker_actor
from tenure.core.instants import seconds
from tenure.core.policy import Backoff, Retries
from tenure.deadlines import retrying_for
from tenure.errors import (
    Closed,
    Contended,
    InvalidInput,
    OutcomeUnknown,
    RequestRefused,
    SchemaTooNew,
    SchemaTooOld,
    StoreUnavailable,
    UnknownStoreUrl,
)
from tenure.protocol.replies import ProblemCode
from tenure.remote import caller
from tenure.remote.caller import Caller, RouteCall
from tenure.remote.coordinator import CLAIM_THREADS, RemoteCoordinator
from tenure.remote.settings import (
    Patience,
    Secret,
    check_trust,
    parse_address,
    trust_from_environment,
)
from tenure.remote.transport import in_words
from tenure.server.problems import response, shutting_down, too_many
from tenure.wiring import open_remote
from tenure_conformance.spec import spec
from tests.remote.proxy import read_message
from tests.remote.script import claim_of
from tests.remote.serving import connect
from tests.support.waiting import joined, until

TOKEN = f"tenure_{'a' * 16}_{'b' * 64}"
QUICK = Patience(
    backoff=Backoff(initial_us=seconds(0.001), floor=0.0, factor=1.0),
    answer_s=5.0,
    retry_for_s=0.5,
)
START = Start(
    job_id=JobId("01900000-0000-7000-8000-000000000001"),
    lease_id=LeaseId(f"1-{'0' * 32}"),
    actor=worker_actor("w"),
    request_id=RequestId("r"),
)
CERTIFICATE = Path(__file__).parents[1] / "server" / "certificates" / "localhost.crt"


def answer(
    status: int, body: bytes, *, media_type: str = "application/json", headers: str = ""
) -> bytes:
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: {media_type}\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def problem(status: int, code: str, *, verdict: str | None, **more: str) -> bytes:
    body = {"code": code, "message": "said", "verdict": verdict, **more}
    return answer(status, json.dumps(body).encode())


class Puppet:
    """A server that says what it is told, the last thing again and again."""

    def __init__(self, *says: bytes) -> None:
        self._says = list(says)
        self.heard: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                caller, _ = self._listening.accept()
            except OSError:
                return
            with caller, suppress(OSError):
                while request := read_message(caller):
                    self.heard.append(request)
                    says = self._says.pop(0) if len(self._says) > 1 else self._says[0]
                    if not says:
                        break
                    caller.sendall(says)

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@contextmanager
def asking(*says: bytes) -> Iterator[tuple[RemoteCoordinator, Puppet]]:
    puppet = Puppet(*says)
    remote = connect(puppet.url, TOKEN, QUICK)
    try:
        yield remote, puppet
    finally:
        remote.close()
        puppet.close()


NOW = answer(200, b'{"now": "2025-01-01T00:00:00Z", "a_field_of_tomorrow": 1}')


@spec("H8")
@pytest.mark.parametrize(
    "says",
    [
        problem(500, "internal_error", verdict=None),
        problem(503, "shutting_down", verdict=None),
        problem(429, "too_many_leases", verdict=None),
        problem(408, "too_slow", verdict=None),
        answer(502, b"<html>Bad gateway</html>", media_type="text/html"),
        answer(403, b"<html>Blocked</html>", media_type="text/html"),
        answer(200, b"<html>Welcome</html>", media_type="text/html"),
        answer(200, b'{"verdicts": []}'),
        answer(307, b"", headers="Location: http://127.0.0.1:1/\r\n"),
        b"",
    ],
)
def test_a_broken_answer_is_no_verdict_and_a_report_is_sent_once(says: bytes) -> None:
    with asking(says) as (remote, puppet):
        with pytest.raises(StoreUnavailable):
            remote.submit_many([START]).result()

        assert len(puppet.heard) == 1


@pytest.mark.parametrize("says", [problem(500, "internal_error", verdict=None), b""])
def test_a_lost_answer_raises_outcome_unknown(says: bytes) -> None:
    with asking(says) as (remote, _), pytest.raises(OutcomeUnknown):
        remote.submit_many([START]).result()


@spec("H8")
@pytest.mark.parametrize(
    ("error", "nothing_changed"),
    [
        (StoreUnavailable("no"), True),
        (OutcomeUnknown("no"), False),
        (Contended(job_id="j", tries=1), True),
        (Closed(), True),
        (SchemaTooOld(found=1, needed=2), True),
        (SchemaTooNew(found=2, needed=1), True),
        (shutting_down(), True),
        (too_many(ProblemCode.TOO_MANY_LEASES, "no", hint=""), True),
        (RuntimeError("a bug"), False),
    ],
)
def test_a_server_says_whether_anything_may_have_been_carried_out(
    error: Exception, nothing_changed: bool
) -> None:
    said = response(error, "x-1")
    body = answer(said.status_code, bytes(said.body))

    with asking(body) as (remote, _), pytest.raises(StoreUnavailable) as caught:
        remote.submit_many([START]).result()

    assert isinstance(caught.value, OutcomeUnknown) is not nothing_changed
    assert caught.value.nothing_changed is nothing_changed


def test_a_refused_connection_is_not_an_unknown_outcome() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    remote = connect(url, TOKEN, QUICK)

    with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
        remote.submit_many([START]).result()

    assert not isinstance(caught.value, OutcomeUnknown)
    assert str(caught.value) == (
        f"{url} cannot be reached: connection refused; check the URL, and that a server runs there"
    )
    remote.close()


@pytest.mark.parametrize(
    ("says", "happened"),
    [
        (b"", "it closed the connection"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it does not speak HTTP"),
    ],
)
def test_a_lost_answer_is_told_in_a_sentence(says: bytes, happened: str) -> None:
    with asking(says) as (remote, puppet):
        with pytest.raises(OutcomeUnknown) as unknown:
            remote.submit_many([START]).result()
        with pytest.raises(OutcomeUnknown) as read:
            remote.store.now()

    what = f"{puppet.url} gave no answer: {happened}"
    again = "the request may have been carried out; send it again under the same request id"
    assert str(unknown.value) == f"{what}; {again}"
    assert str(read.value) == f"{what}; try again"


@pytest.mark.parametrize(
    ("failure", "happened"),
    [
        (ProtocolError("broken", http.client.IncompleteRead(b"", 1)), "it closed the connection"),
        (ConnectionResetError(104, "Connection reset by peer"), "it closed the connection"),
        (socket.gaierror(-2, "Name or service not known"), "name or service not known"),
        (ConnectTimeoutError("late"), "it did not accept the connection in time"),
        (EmptyPoolError(None, "full"), "all connections to it are in use"),  # type: ignore[arg-type]  # no pool is needed
    ],
)
def test_what_the_http_library_raises_is_told_in_plain_words(
    failure: Exception, happened: str
) -> None:
    assert in_words(failure) == happened


def test_a_server_without_tls_is_told_as_that() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        remote = connect(url, TOKEN, msgspec.structs.replace(QUICK, retry_for_s=0))

        def refuse() -> None:
            with listening.accept()[0] as caller:
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                caller.recv(1 << 16)

        server = threading.Thread(target=refuse, daemon=True)
        server.start()
        with pytest.raises(StoreUnavailable, match="TLS failed: ") as caught:
            remote.store.now()
        joined(server, "it has answered")
        remote.close()

    assert "_ssl.c" not in str(caught.value)


def test_a_server_that_stays_silent_is_told_with_the_time() -> None:
    patience = msgspec.structs.replace(QUICK, answer_s=0.05, retry_for_s=0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        remote = connect(url, TOKEN, patience)

        with pytest.raises(OutcomeUnknown) as caught:
            remote.store.now()

        remote.close()
    assert str(caught.value) == f"{url} gave no answer: it sent nothing in time; try again"


@spec("H2")
def test_a_request_is_repeated_unchanged_until_it_is_answered() -> None:
    with asking(b"", problem(503, "closed", verdict=None), NOW) as (remote, puppet):
        assert remote.store.now() == 1_735_689_600_000_000

        assert len(puppet.heard) == 3
        assert len(set(puppet.heard)) == 1


@spec("H54")
def test_connections_that_fail_at_once_do_not_use_up_the_patience() -> None:
    failures = [b""] * 12

    with asking(*failures, NOW) as (remote, puppet):
        assert remote.store.now() == 1_735_689_600_000_000

        assert len(puppet.heard) == 13
    assert Patience().retry_for_s == 60


@spec("H54")
def test_a_long_wait_for_a_server_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller, "LOG_AFTER_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    remote = connect(url, TOKEN, msgspec.structs.replace(QUICK, retry_for_s=60))

    def close_when_logged() -> None:
        until(lambda: caplog.messages, "it is logged")
        remote.close()

    closing = threading.Thread(target=close_when_logged)
    closing.start()
    with pytest.raises(Closed):
        remote.store.now()

    joined(closing, "it has closed the client")
    [line] = caplog.messages
    assert line.startswith(f"{url} cannot be reached: connection refused; trying again for ")


def test_who_says_it_that_there_is_no_answer_can_retry_for_less() -> None:
    with asking(problem(503, "not_ready", verdict=None)) as (remote, puppet):
        with retrying_for(0), pytest.raises(StoreUnavailable, match="503"):
            remote.store.now()

        assert len(puppet.heard) == 1


def test_a_request_is_not_repeated_for_ever() -> None:
    with asking(problem(503, "not_ready", verdict=None)) as (remote, puppet):
        with pytest.raises(StoreUnavailable, match="503"):
            remote.store.now()

        assert len(puppet.heard) > 1


@pytest.mark.parametrize(
    ("says", "error"),
    [
        (problem(401, "unauthenticated", verdict="REJECTED"), RequestRefused),
        (problem(403, "out_of_scope", verdict="REJECTED"), RequestRefused),
        (problem(422, "invalid_input", verdict="REJECTED", field="x"), InvalidInput),
        (problem(413, "too_large", verdict="REJECTED"), InvalidInput),
    ],
)
def test_a_refusal_is_final(says: bytes, error: type[Exception]) -> None:
    with asking(says) as (remote, puppet):
        with pytest.raises(error) as caught:
            remote.store.now()

        assert len(puppet.heard) == 1
        assert "bbbb" not in str(caught.value)


def test_retry_after_is_respected() -> None:
    busy = answer(
        429, b'{"code": "too_many_leases", "message": "no"}', headers="Retry-After: 7\r\n"
    )

    with asking(busy) as (remote, _), pytest.raises(StoreUnavailable) as caught:
        remote.submit_claim(claim_of(1)).result()

    assert caught.value.retry_after_s == 7


def test_pauses_grow_at_random_and_are_never_shorter_than_asked() -> None:
    def retries(random: float) -> Retries:
        backoff = Backoff(initial_us=seconds(1), cap_us=seconds(3), floor=0.0)
        return Retries(backoff, began_s=0, within_s=60, random=lambda: random)

    longest, shortest = retries(1.0), retries(0.0)

    assert [longest.pause_s(0) for _ in range(4)] == [1, 2, 3, 3]
    assert [shortest.pause_s(0, at_least_s=5) for _ in range(4)] == [5, 5, 5, 5]
    assert retries(0.5).pause_s(59, at_least_s=2) is None


def test_claims_that_wait_are_hung_up_on_and_those_behind_them_are_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = connect(f"http://127.0.0.1:{silent.getsockname()[1]}", TOKEN, QUICK)
        waiting = [_claim_and_wait(remote, number) for number in range(1, CLAIM_THREADS + 1)]
        callers = [silent.accept()[0] for _ in waiting]
        assert all(caller.recv(4) for caller in callers)
        behind = _claim_and_wait(remote, CLAIM_THREADS + 1)

        remote.end_waits()

        for claim in waiting:
            with pytest.raises(OutcomeUnknown):
                claim.result(timeout=30)
        with pytest.raises(StoreUnavailable, match="before anything was sent"):
            behind.result(timeout=30)
        remote.close()
        for caller in callers:
            caller.close()


@spec("J6")
def test_a_refused_claim_that_starts_is_an_error() -> None:
    wrong = problem(422, "invalid_input", verdict="REJECTED", field="limit")

    with asking(wrong) as (remote, _), pytest.raises(InvalidInput, match="limit"):
        remote.submit_claim(claim_of(1, start=True)).result(timeout=30)


def _claim_and_wait(remote: RemoteCoordinator, number: int) -> "Future[ClaimAnswer]":
    return remote.submit_claim(claim_of(number), wait_us=seconds(60))


def test_a_claim_that_still_connects_is_not_sent_after_a_hang_up() -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE, CERTIFICATE.with_suffix(".key"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        environment = {"TENURE_CA_FILE": str(CERTIFICATE)}
        remote = open_remote(url, environment=environment, token=TOKEN)
        claim = _claim_and_wait(remote, 1)
        plain, _ = listening.accept()

        remote.end_waits()
        with tls.wrap_socket(plain, server_side=True) as caller:
            with pytest.raises(StoreUnavailable, match="before anything was sent"):
                claim.result(timeout=30)
            # The client closes without TLS's own goodbye; Python 3.13 may report a reset.
            with suppress(ssl.SSLEOFError, ConnectionResetError):
                assert caller.recv(1) == b""
        remote.close()


def test_a_hang_up_does_not_concern_what_is_asked_later() -> None:
    nothing = answer(200, b'{"verdict": "OK"}')

    with asking(nothing) as (remote, _):
        for number in (1, 2):
            assert remote.submit_claim(claim_of(number)).result(timeout=30).grants == ()
            remote.end_waits()


def test_a_closed_caller_raises_closed() -> None:
    with asking(NOW) as (remote, _):
        remote.close()

        with pytest.raises(Closed):
            remote.submit_many([START])
        with pytest.raises(Closed):
            remote.store.now()


def test_a_call_after_the_end_is_not_an_unknown_outcome_however_it_would_wait() -> None:
    caller = Caller(parse_address("http://127.0.0.1:1"), trust_from_environment({}), QUICK)
    call = RouteCall(name="time")
    caller.close()

    with pytest.raises(Closed):
        caller.ask(call)
    with pytest.raises(Closed):
        caller.ask_once(call)
    with pytest.raises(Closed):
        caller.ask_and_wait(call, wait_s=1)


# --- tokens and TLS ----------------------------------------------------------------------------


def test_a_token_is_not_shown_by_repr() -> None:
    trust = trust_from_environment({"TENURE_TOKEN": TOKEN})

    assert "bbbb" not in f"{trust!r} {trust.token} {Secret(TOKEN)!r}"
    for wrong in (f"{TOKEN}\n{TOKEN}", "hunter2"):
        with pytest.raises(InvalidInput, match="TENURE_TOKEN") as caught:
            trust_from_environment({"TENURE_TOKEN": wrong})
        assert wrong not in str(caught.value)


def test_a_token_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "worker.token"
    file.write_text(f"{TOKEN}\n")

    trust = trust_from_environment({"TENURE_TOKEN_FILE": str(file)})

    assert trust.token is not None
    assert trust.token.header() == f"Bearer {TOKEN}"
    for content in ("", "hunter2"):
        file.write_text(content)
        with pytest.raises(InvalidInput, match="TENURE_TOKEN_FILE: is not a Tenure token"):
            trust_from_environment({"TENURE_TOKEN_FILE": str(file)})
    file.unlink()
    with pytest.raises(InvalidInput, match="TENURE_TOKEN_FILE: cannot be read"):
        trust_from_environment({"TENURE_TOKEN_FILE": str(file)})


@pytest.mark.parametrize(
    ("url", "is_private"),
    [
        ("http://127.0.0.1:1", True),
        ("http://localhost", True),
        ("http://[::1]:1", True),
        ("https://example.org", True),
        ("http://example.org", False),
        ("http://10.0.0.1:7717", False),
    ],
)
def test_a_token_does_not_go_to_another_machine_in_the_clear(url: str, is_private: bool) -> None:
    address = parse_address(url)

    check_trust(address, trust_from_environment({}))
    check_trust(address, trust_from_environment({"TENURE_INSECURE": "1"}, TOKEN))
    if is_private:
        check_trust(address, trust_from_environment({}, TOKEN))
    else:
        with pytest.raises(InvalidInput, match="without TLS"):
            check_trust(address, trust_from_environment({}, TOKEN))


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://user:hunter2@host",
        "http://host:port",
        "http://host?token=hunter2",
        "http://host/a b",
        "http://[::1",
    ],
)
def test_a_url_that_names_no_server_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UnknownStoreUrl) as caught:
        open_remote(url, environment={})

    assert "hunter2" not in str(caught.value)


def test_an_untrusted_certificate_is_refused_at_once() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, CERTIFICATE.with_suffix(".key"))
    plain = socket.create_server(("127.0.0.1", 0))
    listening = context.wrap_socket(plain, server_side=True)
    asked: list[bytes] = []
    server = threading.Thread(target=_serve_tls, args=(listening, asked))
    server.start()
    url = f"https://127.0.0.1:{listening.getsockname()[1]}"

    stranger = open_remote(url, environment={}, token=TOKEN)
    with pytest.raises(StoreUnavailable, match="TENURE_CA_FILE"):
        stranger.store.now()
    friend = open_remote(url, environment={"TENURE_CA_FILE": str(CERTIFICATE)}, token=TOKEN)

    assert friend.store.now() > 0
    assert len(asked) == 1
    server.join(30)
    stranger.close()
    friend.close()


def _serve_tls(listening: ssl.SSLSocket, asked: list[bytes]) -> None:
    """Two callers; the first one hangs up before it says anything."""
    with listening:
        with suppress(ssl.SSLError, ConnectionError):
            listening.accept()
        caller, _ = listening.accept()
        with caller:
            asked.append(caller.recv(1 << 20))
            caller.sendall(NOW)
