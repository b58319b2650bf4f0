"""Many callers that wait or are slow, and one that wants an answer now."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tenure_conformance.spec import spec
from tests.server.harness import JOB
from tests.server.processes import House, Process, body_and_headers
from tests.support.waiting import until

pytestmark = pytest.mark.process

MOST_GROWTH_KIB = 256 * 1024
"""A connection has buffers and a task: a few dozen KiB each, not what it could have sent."""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    house = House(f"sqlite:///{tmp_path / 'house.db'}", tmp_path)
    yield house
    house.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def memory_kib(server: Process) -> int:
    status = Path(f"/proc/{server.popen.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1])


def request_of(message: object, token: str) -> bytes:
    body, headers = body_and_headers(message, token)
    assert body is not None
    lines = [f"{name}: {text}\r\n" for name, text in headers.items()]
    head = f"POST /v1/claim HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return (head + "".join(lines) + "\r\n").encode() + body


def whole_answer(poll: socket.socket) -> bytes:
    received = b""
    while b'"repeated"' not in received:
        piece = poll.recv(65536)
        assert piece, received
        received += piece
    return received


@spec("H10", "H62")
@pytest.mark.parametrize(
    ("slow", "waiting"), [(50, 100), pytest.param(500, 1000, marks=pytest.mark.proof)]
)
def test_slow_and_waiting_callers_do_not_delay_others(
    house: House, slow: int, waiting: int
) -> None:
    client, worker = house.token("client"), house.token("worker", "w", "--max-polls", "2000")
    server = house.serve()
    server.ask("GET", "/v1/time", token=client)
    before_kib = memory_kib(server)

    with ExitStack() as crowd:
        for _ in range(slow):
            crowd.enter_context(server.socket()).sendall(b"POST /v1/jobs HTTP/1.1\r\nX-Slow: ")
        polls: list[socket.socket] = []
        for number in range(waiting):
            claim = {"worker": f"w{number}", "queues": ["q"], "claim_seq": 1, "wait_s": 60}
            polls.append(crowd.enter_context(server.socket()))
            polls[-1].sendall(request_of({**claim, "request_id": f"c{number}"}, worker))
        jobs = [{"job_id": JOB.format(n), "queue": "q", "kind": "k"} for n in range(waiting)]
        idle = [{**job, "queue": "elsewhere"} for job in jobs]
        answers = [server.ask("POST", "/v1/jobs", job, token=client) for job in idle[:20]]
        grown_kib = memory_kib(server) - before_kib
        named = {"job_ids": [job["job_id"] for job in jobs[:20]]}
        looked_up = server.ask("POST", "/v1/jobs/lookup", named, token=client)
        new = [{"queue": "q", "kind": "k"}] * waiting
        server.ask("POST", "/v1/jobs/batch", {"jobs": new}, token=client)
        granted = [whole_answer(poll) for poll in polls]

    assert [answer.status for answer in answers] == [201] * 20
    assert len(looked_up.json["jobs"]) == 20
    assert all(text.startswith(b"HTTP/1.1 200 ") for text in granted)
    assert sum(text.count(b'"lease_id"') for text in granted) == waiting
    assert grown_kib < MOST_GROWTH_KIB
    until(lambda: server.ask("GET", "/readyz").status == 200, "it is still ready")
