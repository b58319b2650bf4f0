"""Real servers on real stores: the main paths, their ends, and where they refuse to begin."""

import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.tokens import TOKEN_ENTROPY_BYTES, NewToken, mint
from tenure.core.vocabulary import Role
from tenure.errors import InvalidInput
from tenure.server.lifetime import ServeOptions, check_exposure, listen, warn_without_tls
from tenure.stores.sqlite.memory import MemoryStore
from tenure_conformance.spec import spec
from tests.server.harness import JOB, Answer
from tests.server.processes import CERTIFICATE, KEY, House, Process, body_and_headers, read
from tests.support.waiting import joined

pytestmark = pytest.mark.process

EVERYWHERE = "0.0.0.0"  # noqa: S104 - what is refused is the subject of these tests


@pytest.fixture(params=["sqlite", "postgres"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'house.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    house = House(url, tmp_path)
    yield house
    house.close()


@pytest.fixture
def sqlite_house(tmp_path: Path) -> Iterator[House]:
    house = House(f"sqlite:///{tmp_path / 'house.db'}", tmp_path)
    yield house
    house.close()


@pytest.fixture
def postgres_house(postgres_url: str, tmp_path: Path) -> Iterator[House]:
    house = House(postgres_url, tmp_path)
    yield house
    house.close()


def claim(**fields: Any) -> dict[str, Any]:
    return {"worker": "w", "queues": ["q"], "claim_seq": 1, "request_id": "c1", **fields}


class Waiting:
    """A claim that waits on a thread of its own."""

    def __init__(self, server: Process, token: str, **fields: Any) -> None:
        self.answer: Answer | None = None

        def run() -> None:
            self.answer = server.ask("POST", "/v1/claim", claim(wait_s=60, **fields), token=token)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def end(self) -> Answer:
        joined(self._thread, "the claim is answered")
        assert self.answer is not None
        return self.answer


def seen(server: Process, job_id: str, token: str) -> Any:
    return server.ask("GET", f"/v1/jobs/{job_id}", token=token).json["job"]


@spec("H4", "H10")
def test_a_job_runs_over_http_from_enqueue_to_result(house: House) -> None:
    client, worker = house.token("client"), house.token("worker")
    server = house.serve()
    new = {"job_id": JOB.format(1), "queue": "q", "kind": "k", "payload": {"n": 1}}

    waiting = Waiting(server, worker)
    made = server.ask("POST", "/v1/jobs", new, token=client)
    [grant] = waiting.end().json["grants"]
    lease = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}
    started = server.ask("POST", "/v1/start", {**lease, "request_id": "s"}, token=worker)
    beat = {"leases": [{**lease, "hb_seq": 1, "checkpoint": [1], "progress": {"done": 1}}]}
    beaten = server.ask("POST", "/v1/heartbeat", beat, token=worker)
    reports = [{"op": "complete", **lease, "request_id": "c", "result": {"sum": 2}}]
    done = server.ask("POST", "/v1/report", {"reports": reports}, token=worker)

    assert made.status == 201
    assert (grant["payload"], grant["attempt"]) == ({"n": 1}, 1)
    assert started.json["verdict"] == beaten.json["verdicts"][0]["verdict"] == "OK"
    assert done.json["verdicts"][0]["verdict"] == "COMMITTED"
    shown = server.ask("GET", f"/v1/jobs/{JOB.format(1)}?bodies=true", token=client).json["job"]
    assert (shown["status"], shown["result"]) == ("succeeded", {"sum": 2})
    history = server.ask("GET", f"/v1/jobs/{JOB.format(1)}/events", token=client).json["events"]
    printed = json.loads(house.tenure("jobs", "show", JOB.format(1), "--json", "--bodies").stdout)
    assert printed == {
        "job": shown,
        "waiting": None,
        "events": history,
        "observations": [],
        "resolution": None,
    }
    assert server.stop() == 0
    verified = house.tenure("verify")
    assert verified.returncode == 0, verified
    assert "Traceback" not in server.log


@spec("B28", "J9")
def test_an_artifact_over_the_namespaces_quota_is_refused_with_what_is_used(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'house.db'}"
    with closing(House(url, tmp_path, TENURE_ARTIFACT_QUOTA_PER_NAMESPACE="1K")) as house:
        client, worker = house.token("client"), house.token("worker")
        server = house.serve()
        new = {"job_id": JOB.format(1), "queue": "q", "kind": "k"}
        server.ask("POST", "/v1/jobs", new, token=client)
        [grant] = server.ask("POST", "/v1/claim", claim(), token=worker).json["grants"]
        headers = {"Authorization": f"Bearer {worker}", "Tenure-Lease": grant["lease_id"]}

        def put(name: str, size: int) -> Any:
            with closing(server.connect()) as connection:
                path = f"/v1/jobs/{JOB.format(1)}/artifacts/{name}"
                connection.request("PUT", path, bytes(size), headers)
                return read(connection)

        taken, refused, replacing = put("a", 1000), put("b", 25), put("a", 1024)

    assert (taken.json["verdict"], replacing.json["verdict"]) == ("OK", "OK")
    assert refused.status == 200
    told = refused.json
    assert (told["verdict"], told["cause"]) == ("REJECTED", "namespace_artifact_quota")
    assert (told["used_bytes"], told["quota_bytes"]) == (1000, 1024)
    assert "TENURE_ARTIFACT_QUOTA_PER_NAMESPACE" in told["message"]


@spec("H35")
def test_a_server_that_stops_answers_waiting_claims(house: House) -> None:
    client, worker = house.token("client"), house.token("worker")
    server = house.serve()
    waiting = Waiting(server, worker)
    server.ask("GET", "/v1/time", token=client)

    code = server.stop()

    answer = waiting.end()
    assert code == 0
    assert answer.status in (200, 503)
    assert answer.status == 503 or answer.json["grants"] == []


@spec("H35")
def test_the_job_of_a_caller_that_disconnects_is_released(house: House) -> None:
    client, worker = house.token("client"), house.token("worker")
    server = house.serve()
    gone = server.connect()
    gone.request("POST", "/v1/claim", *body_and_headers(claim(wait_s=60), worker))
    gone.close()
    new = {"job_id": JOB.format(1), "queue": "q", "kind": "k"}
    server.ask("POST", "/v1/jobs", new, token=client)

    next_one = server.ask(
        "POST", "/v1/claim", claim(worker="x", request_id="x1", wait_s=60), token=worker
    )

    # Whether the first claim was granted before it was noticed, or never: it costs nothing.
    assert [grant["job_id"] for grant in next_one.json["grants"]] == [JOB.format(1)]
    job = seen(server, JOB.format(1), client)
    assert (job["failures"], job["releases"]) == (0, 0)


@spec("H25")
def test_a_token_revoked_by_the_command_ends_its_waiting_claim(sqlite_house: House) -> None:
    worker = sqlite_house.token("worker")
    server = sqlite_house.serve()
    waiting = Waiting(server, worker)
    server.ask("GET", "/v1/time", token=worker)

    revoked = sqlite_house.tenure("tokens", "revoke", worker.split("_")[1])

    assert revoked.returncode == 0
    assert waiting.end().status == 401
    assert server.ask("GET", "/v1/time", token=worker).status == 401


@spec("H80", "SC22")
def test_commands_with_a_limited_token_call_no_schedule_undeclared(sqlite_house: House) -> None:
    server, worker = sqlite_house.serve(), sqlite_house.token("worker")
    whole = sqlite_house.token("operator", "whole")
    limited = sqlite_house.token("operator", "limited", "--queue", "q")
    declared = {"queue": "q", "kind": "k", "every_s": 3600, "declared_by": "shop:app"}
    server.ask("PUT", "/v1/schedules/nightly/spec", declared, token=whole)
    about = {"host": "h", "pid": 1, "queues": ["q"], "concurrency": 1, "version": "1"}
    alive = {**about, "uptime_s": 1.0, "schedules": ["nightly"]}
    server.ask("POST", "/v1/workers/w/alive", alive, token=worker)

    ls, of_all, sync = (
        sqlite_house.tenure("schedules", *words, "--url", server.address, TENURE_TOKEN=token)
        for words, token in (
            (["ls"], limited),
            (["ls"], whole),
            (["sync", "tests.e2e.lanes:app"], limited),
        )
    )

    assert "nightly" in ls.stdout
    for each in (ls, of_all, sync):
        assert each.returncode == 0, each.stderr
        assert "undeclared" not in each.stdout + each.stderr
        assert "--prune" not in each.stdout + each.stderr


@spec("H8", "H43")
@pytest.mark.parametrize("size_bytes", [2_000_000, 20_000_000])
def test_a_caller_that_writes_its_whole_body_first_gets_the_413(
    sqlite_house: House, size_bytes: int
) -> None:
    token = sqlite_house.token("client")
    server = sqlite_house.serve()
    message = {"queue": "q", "kind": "k", "payload": "x" * size_bytes}

    answers = [server.ask("POST", "/v1/jobs", message, token=token) for _ in range(5)]

    assert [(each.status, each.code) for each in answers] == [(413, "too_large")] * 5


@spec("H27")
def test_a_second_server_on_one_sqlite_file_is_refused(sqlite_house: House) -> None:
    first = sqlite_house.serve()

    second = sqlite_house.tenure("serve", "--port", "0")

    assert second.returncode == 2
    assert f"house.db: `tenure serve`, process {first.popen.pid}; stop it first" in second.stderr
    assert first.ask("GET", "/readyz").status == 200
    first.stop(signal.SIGKILL)
    assert sqlite_house.serve().ask("GET", "/readyz").status == 200


@spec("H27")
def test_a_sqlite_file_with_two_hard_links_is_not_served(
    sqlite_house: House, tmp_path: Path
) -> None:
    (tmp_path / "other.db").hardlink_to(tmp_path / "house.db")

    refused = sqlite_house.tenure("serve", "--port", "0")

    assert refused.returncode == 2
    assert "has other hard links" in refused.stderr


@spec("H27")
def test_two_servers_share_a_postgresql_database(postgres_house: House) -> None:
    client, worker = postgres_house.token("client"), postgres_house.token("worker")
    one, two = postgres_house.serve(), postgres_house.serve()
    waiting = Waiting(two, worker)

    new = {"job_id": JOB.format(1), "queue": "q", "kind": "k"}
    one.ask("POST", "/v1/jobs", new, token=client)
    [grant] = waiting.end().json["grants"]
    lease = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}
    done = one.ask("POST", "/v1/complete", {**lease, "request_id": "c"}, token=worker)
    replayed = two.ask("POST", "/v1/complete", {**lease, "request_id": "c"}, token=worker)

    assert done.json["verdict"] == replayed.json["verdict"] == "COMMITTED"
    assert replayed.json["replayed"] is True


@spec("H28")
@pytest.mark.parametrize("words", [("--no-auth",), ()])
def test_a_server_without_tokens_does_not_listen_beyond_this_machine(
    sqlite_house: House, words: tuple[str, ...]
) -> None:
    refused = sqlite_house.tenure("serve", "--host", EVERYWHERE, "--port", "0", *words)

    assert refused.returncode == 2
    assert "can be reached from other machines" in refused.stderr
    assert refused.stdout == ""


@spec("H28")
def test_a_server_with_a_valid_token_may_listen_beyond_this_machine() -> None:
    store = MemoryStore()
    coordinator = Coordinator(store)
    options = ServeOptions(host=EVERYWHERE)
    with pytest.raises(InvalidInput):
        check_exposure(options, coordinator)
    token_id, digest, _ = mint(bytes(TOKEN_ENTROPY_BYTES))
    new = NewToken(id=token_id, secret_sha256=digest, name="n", role=Role.CLIENT)
    store.tokens.create(new)

    check_exposure(options, coordinator)

    store.tokens.revoke(token_id)
    with pytest.raises(InvalidInput):
        check_exposure(options, coordinator)
    coordinator.close()


@spec("H47")
def test_listening_beyond_this_machine_without_tls_is_warned_about() -> None:
    said: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]  # the shortest one
    logging.getLogger("tenure.server").addHandler(listener)

    warn_without_tls(ServeOptions())
    warn_without_tls(ServeOptions(host=EVERYWHERE, tls_certificate=CERTIFICATE))
    before = list(said)
    warn_without_tls(ServeOptions(host=EVERYWHERE))
    logging.getLogger("tenure.server").removeHandler(listener)

    assert before == []
    assert [("without TLS" in each, "--tls-cert" in each) for each in said] == [(True, True)]


def test_a_token_appears_nowhere_but_where_it_was_shown(
    sqlite_house: House, tmp_path: Path
) -> None:
    client = sqlite_house.token("client", "app", "--queue", "q", "--expires", "1d")
    secret = client.rpartition("_")[2]
    server = sqlite_house.serve()
    server.ask("POST", "/v1/jobs", {"queue": "q", "kind": "k"}, token=client)
    server.ask("POST", "/v1/jobs", {"queue": "z", "kind": "k"}, token=client)
    listed = sqlite_house.tenure("tokens", "ls", "--json")
    refused = sqlite_house.tenure("tokens", "revoke", client)
    server.stop()

    assert refused.returncode == 1
    said = [server.log, listed.stdout, listed.stderr, refused.stdout, refused.stderr]
    assert not any(secret in text for text in said)
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes(), file
    assert '"state":"valid"' in listed.stdout.replace(" ", "")


def test_a_server_with_a_certificate_uses_tls(sqlite_house: House) -> None:
    server = sqlite_house.serve("--tls-cert", str(CERTIFICATE), "--tls-key", str(KEY))

    answer = server.ask("GET", "/healthz")
    with server.socket() as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        heard = plain.recv(100)

    assert server.scheme == "https"
    assert answer.status == 200
    assert b"200" not in heard


@pytest.mark.parametrize(
    "words", [("--tls-key", str(KEY)), ("--tls-cert", str(KEY)), ("--host", "192.0.2.1")]
)
def test_a_server_that_cannot_start_says_why_in_one_line(
    sqlite_house: House, words: tuple[str, ...]
) -> None:
    sqlite_house.token("client")

    refused = sqlite_house.tenure("serve", "--port", "0", *words)

    assert refused.returncode == 2
    assert refused.stderr.startswith("tenure: ")
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_answers_are_sent_without_waiting_for_tcp_acknowledgements(host: str) -> None:
    with listen(ServeOptions(host=host, port=0)) as listening:
        listening.listen()
        with socket.create_connection(listening.getsockname()[:2]):
            accepted, _ = listening.accept()
            with accepted:
                # What asyncio looks at before it turns Nagle's algorithm off.
                assert accepted.proto == socket.IPPROTO_TCP


def test_a_port_that_is_taken_is_named(sqlite_house: House) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        refused = sqlite_house.tenure("serve", "--port", port)

    assert refused.returncode == 2
    assert f"port {port}" in refused.stderr


def test_a_store_that_cannot_be_opened_is_reported_in_one_line(sqlite_house: House) -> None:
    refused = sqlite_house.tenure("serve", "--url", "sqlite:////nowhere/at/all.db")

    assert refused.returncode == 2
    assert refused.stderr.startswith("tenure: ")
    assert len(refused.stderr.splitlines()) == 1


def test_only_serve_imports_the_server() -> None:
    names = "tenure tenure.wiring tenure.cli.main tenure.cli.tokens tenure.cli.serve"
    script = f"import sys, {names.replace(' ', ', ')}; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()

    assert "tenure.wiring" in loaded
    assert not {"starlette", "uvicorn", "h11"} & set(loaded)
