"""Copies of a claim at real servers: a worker that received a grant keeps its lease.

Two servers share a PostgreSQL database, one serves a SQLite file; callers have their own sockets.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure_conformance.spec import spec
from tests.remote.sites import RemoteSite
from tests.server.harness import JOB
from tests.server.processes import Process, body_and_headers

pytestmark = pytest.mark.process

ROUNDS = 12
LATEST_REPEAT_S = 0.008
TURNS = 5
"""Requests that a server answers between a caller's hanging up and the next report: by then it has
noticed and decided. Before the fix a lease was revoked in each of twenty rounds."""


class Pair:
    """The server that a claim is sent to, and the one that its copy is sent to."""

    def __init__(self, site: RemoteSite, servers: list[Process]) -> None:
        self.first, self.second = servers[0], servers[-1]
        self._worker = site.worker_token
        self._client = site.token("client", "shop")
        self._jobs = 0

    def enqueue(self) -> None:
        self._jobs += 1
        new = {"job_id": JOB.format(self._jobs), "queue": "q", "kind": "k"}
        assert self.first.ask("POST", "/v1/jobs", new, token=self._client).status == 201

    @property
    def claim(self) -> dict[str, Any]:
        """The same until there is another job."""
        number = self._jobs
        return {"worker": "w", "queues": ["q"], "claim_seq": number, "request_id": f"c{number}"}

    def send(self, server: Process) -> list[Any]:
        """Claim, and read the answer."""
        grants: list[Any] = server.ask("POST", "/v1/claim", self.claim, token=self._worker).json[
            "grants"
        ]
        return grants

    def send_and_hang_up(self, server: Process) -> None:
        gone = server.connect()
        gone.request("POST", "/v1/claim", *body_and_headers(self.claim, self._worker))
        gone.close()

    def let_it_notice(self, server: Process) -> None:
        for _ in range(TURNS):
            server.ask("GET", "/v1/time", token=self._worker)

    def finish(self, grant: Any) -> tuple[str, str]:
        """What a heartbeat and a completion hear, without a start."""
        lease = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}
        beat = {"leases": [{**lease, "hb_seq": 1}]}
        beaten = self.first.ask("POST", "/v1/heartbeat", beat, token=self._worker).json
        done = {**lease, "request_id": "done"}
        completed = self.first.ask("POST", "/v1/complete", done, token=self._worker).json
        return beaten["verdicts"][0]["verdict"], completed["verdict"]


@pytest.fixture(params=["sqlite", "postgres"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    if request.param == "sqlite":
        url, servers = f"sqlite:///{tmp_path / 'site.db'}", 1
    else:
        url, servers = request.getfixturevalue("postgres_url"), 2
    site = RemoteSite(url, tmp_path)
    try:
        yield Pair(site, [site.serve() for _ in range(servers)])
    finally:
        site.close()


@spec("H35", "Q8")
def test_late_copies_of_a_claim_do_not_end_the_lease_it_received(pair: Pair) -> None:
    late = []
    for _ in range(ROUNDS):
        pair.enqueue()
        [grant] = pair.send(pair.first)
        pair.send_and_hang_up(pair.second)
        pair.let_it_notice(pair.second)
        late.append(pair.finish(grant))

    quick = []
    for number in range(ROUNDS):
        pair.enqueue()
        pair.send_and_hang_up(pair.first)
        time.sleep(LATEST_REPEAT_S * number / ROUNDS)  # the pause is what is tested
        received = pair.send(pair.second)
        pair.let_it_notice(pair.first)
        quick += [pair.finish(grant) for grant in received]

    assert late == [("OK", "COMMITTED")] * ROUNDS
    assert quick  # at least one repeat came before its grant was taken back
    assert quick == [("OK", "COMMITTED")] * len(quick)
