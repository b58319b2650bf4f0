"""Large bodies share the server's memory: who has no room is told so, and small messages pass."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.types import Message

from tenure.core.ids import JobId
from tenure.core.job import Job
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import Role
from tenure.errors import StoreUnavailable
from tenure.stores.sqlite.memory import MemoryStore
from tenure_conformance.spec import spec
from tests.server.harness import JOB, SETTINGS, Answer, Caller, Stage
from tests.support.coordinators import VirtualClock
from tests.support.doubles import instead

C, W = Role.CLIENT, Role.WORKER
ROOM = replace(SETTINGS, max_memory_bytes=2 * 300_000)  # one token has half


class Slow(Caller):
    """Keeps the second half of its body to itself until it is told to go on."""

    def __init__(self, caller: Caller, body: bytes) -> None:
        super().__init__(caller.scope, [body[: len(body) // 2], body[len(body) // 2 :]])
        self.is_halfway = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def receive(self) -> Message:
        if len(self.pieces) == 1:
            self.is_halfway.set()
            await self.goes_on.wait()
        return await super().receive()


def job(number: int, size_bytes: int) -> dict[str, object]:
    payload = "x" * size_bytes
    return {"job_id": JOB.format(number), "queue": "q", "kind": "k", "payload": payload}


@spec("H45")
def test_a_large_body_without_room_is_refused_and_a_heartbeat_is_not() -> None:
    stage = Stage(settings=ROOM)
    lease = stage.leased(9)
    client, worker = stage.of(C), stage.of(W)
    message = job(1, 250_000)

    async def scenario() -> tuple[Answer, Answer, Answer]:
        one = stage.caller("POST", "/v1/jobs", message, token=client)
        slow = Slow(one, json.dumps(message).encode())
        waiting = asyncio.create_task(slow.run(stage.app))
        await slow.is_halfway.wait()
        refused = await stage.aask("POST", "/v1/jobs", job(2, 250_000), token=client)
        beat = {"leases": [{**lease, "hb_seq": 1}]}
        passed = await stage.aask("POST", "/v1/heartbeat", beat, token=worker)
        slow.goes_on.set()
        return refused, passed, await waiting

    refused, passed, served = stage.run(scenario())
    again = stage.ask("POST", "/v1/jobs", job(2, 250_000), token=client)
    stage.close()

    assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "busy", "1")
    assert refused.json["nothing_changed"] is True
    assert (passed.status, served.status, again.status) == (200, 201, 201)


@spec("H45", "H60")
def test_large_bodies_of_one_namespace_leave_room_for_others() -> None:
    stage = Stage(settings=replace(SETTINGS, max_memory_bytes=400_000))
    greedy = [stage.token(C, f"greedy-{each}", namespace="acme") for each in range(3)]
    other = stage.token(C, "other", namespace="globex")

    async def scenario() -> tuple[list[int], Answer]:
        slow = [_slow(stage, job(number, 95_000), token) for number, token in enumerate(greedy)]
        slow += [
            _slow(stage, job(10 + number, 95_000), token) for number, token in enumerate(greedy)
        ]
        reading = []
        for each in slow:
            each.goes_on.clear()
            reading.append(asyncio.create_task(each.run(stage.app)))
            halfway = asyncio.create_task(each.is_halfway.wait())
            await asyncio.wait([halfway, reading[-1]], return_when=asyncio.FIRST_COMPLETED)
            halfway.cancel()
        served = await stage.aask("POST", "/v1/jobs", job(20, 90_000), token=other)
        for each in slow:
            each.goes_on.set()
        return [(await each).status for each in reading], served

    heard, served = stage.run(scenario())
    stage.close()

    assert served.status == 201
    assert set(heard) == {201, 503}
    assert stage.services.memory.used_bytes == 0


def _slow(stage: Stage, message: dict[str, object], token: str) -> Slow:
    """A request of which half has come."""
    body = json.dumps(message).encode()
    return Slow(stage.caller("POST", "/v1/jobs", message, token=token), body + b" " * len(body))


@spec("H45")
def test_a_large_answer_that_only_shows_something_needs_room_and_others_are_sent() -> None:
    stage = Stage(settings=replace(ROOM, max_memory_bytes=2 * 200_000))
    client, worker = stage.of(C), stage.of(W)
    for number in (1, 2):
        stage.ask("POST", "/v1/jobs", job(number, 110_000), token=client)

    one = stage.ask("GET", f"/v1/jobs/{JOB.format(1)}?bodies=true", token=client)
    both = stage.ask("GET", "/v1/jobs?bodies=true", token=client)
    claimed = stage.ask("POST", "/v1/claim", stage.claim_message(limit=2), token=worker)
    stage.close()

    assert (one.status, both.status, both.code) == (200, 503, "busy")
    assert (claimed.status, len(claimed.json["grants"])) == (200, 2)


@spec("H45")
def test_a_lookup_with_bodies_counts_towards_the_memory_limit() -> None:
    stage = Stage(settings=replace(ROOM, max_memory_bytes=2 * 200_000))
    client = stage.of(C)
    for number in (1, 2):
        stage.ask("POST", "/v1/jobs", job(number, 110_000), token=client)
    both = {"job_ids": [JOB.format(1), JOB.format(2)]}

    refused = stage.ask("POST", "/v1/jobs/lookup?bodies=true", both, token=client)
    shown = stage.ask("POST", "/v1/jobs/lookup", both, token=client)
    stage.close()

    assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "busy", "1")
    assert (shown.status, len(shown.json["jobs"])) == (200, 2)


class Counting(MemoryStore):
    """Notes how many bytes of bodies each call brought into memory."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.most_at_once = 0
        self.altogether = 0
        self.fails_for: JobId | None = None
        self._own_load = instead(self, "jobs.load", self._load)
        instead(self, "jobs.read", self._read_jobs)
        self._own_list = instead(self, "views.jobs", self._list)

    def _note(self, jobs: Iterable[Job]) -> None:
        size = sum(len(each.payload) for each in jobs)
        self.most_at_once = max(self.most_at_once, size)
        self.altogether += size

    def _load(self, ids: Sequence[JobId]) -> Any:
        if self.fails_for in ids:
            raise StoreUnavailable("down", hint="wait")
        loaded = self._own_load(ids)
        self._note(loaded.jobs.values())
        return loaded

    def _read_jobs(self, ids: Sequence[JobId], *, bodies: bool = True) -> dict[JobId, Job]:
        if bodies:
            return dict(self._load(ids).jobs)
        found = self._own_load(ids).jobs
        return {each: job.without_bodies for each, job in found.items()}

    def _list(self, wanted: JobFilter) -> Any:
        found = self._own_list(wanted)
        self._note(found.jobs)
        return found


@spec("H45")
@pytest.mark.parametrize("path", ["/v1/jobs?limit=30&", "/v1/jobs/lookup?", "/v1/dead-letters?"])
def test_a_read_stops_at_the_memory_limit_and_reads_no_hidden_bodies(
    path: str,
) -> None:
    stage = Stage(settings=replace(ROOM, max_memory_bytes=2 * 100_000), store=Counting)
    client, operator = stage.of(C), stage.of(Role.OPERATOR)
    ids = [stage.enqueue(number, payload="x" * 20_000) for number in range(1, 31)]
    kill = {"request_id": "d", "reason_code": "policy_violation"}
    for job_id in ids:
        stage.ask("POST", f"/v1/jobs/{job_id}/dead-letter", kill, token=operator)
    method, message = ("POST", {"job_ids": ids}) if "lookup" in path else ("GET", None)
    store = stage.store
    assert isinstance(store, Counting)
    store.most_at_once = store.altogether = 0

    shown = stage.ask(method, f"{path}bodies=false", message, token=client)
    for_nothing = store.altogether
    refused = stage.ask(method, f"{path}bodies=true", message, token=client)
    stage.close()

    assert (shown.status, refused.status) == (200, 503)
    assert for_nothing <= 30 * len(b"null")
    assert store.most_at_once <= 5 * 20_002
    assert store.altogether <= 100_000 + 5 * 20_002


@spec("H90")
def test_jobs_with_large_payloads_are_cancelled_a_few_at_a_time() -> None:
    stage = Stage(store=Counting)
    ids = [stage.enqueue(number, payload="x" * 1_000_000) for number in range(1, 21)]
    store = stage.store
    assert isinstance(store, Counting)
    store.most_at_once = 0
    message = {"job_ids": [*ids, JOB.format(99)], "request_id": "r"}

    cancelled = stage.ask("POST", "/v1/jobs/cancel", message, token=stage.of(Role.OPERATOR))
    statuses = [stage.job(each).status for each in ids]
    payloads = {len(stage.job(each).payload) for each in ids}
    stage.close()

    assert [each["cause"] for each in cancelled.json["replies"]] == [None] * 20 + ["unknown_job"]
    assert [each["job"]["id"] for each in cancelled.json["replies"][:-1]] == ids
    assert statuses == ["cancelled"] * 20
    assert payloads == {1_000_002}
    assert store.most_at_once == 8 * 1_000_002


@spec("H90")
def test_a_failure_between_two_groups_does_not_say_that_nothing_changed() -> None:
    stage = Stage(store=Counting)
    ids = [stage.enqueue(number, payload="x" * 1_000_000) for number in range(1, 11)]
    store = stage.store
    assert isinstance(store, Counting)
    store.fails_for = JobId(ids[-1])
    message = {"job_ids": ids, "request_id": "r"}

    failed = stage.ask("POST", "/v1/jobs/cancel", message, token=stage.of(Role.OPERATOR))
    store.fails_for = None
    statuses = [stage.job(each).status for each in ids]
    again = stage.ask("POST", "/v1/jobs/cancel", message, token=stage.of(Role.OPERATOR))
    stage.close()

    assert (failed.status, failed.code) == (503, "outcome_unknown")
    assert failed.json["nothing_changed"] is False
    assert statuses == ["cancelled"] * 8 + ["queued"] * 2
    assert [each["replayed"] for each in again.json["replies"]] == [True] * 8 + [False] * 2


@spec("Z10")
def test_the_answer_to_a_claim_has_a_limit_of_bytes(stage: Stage) -> None:
    for number in range(1, 13):
        stage.enqueue(number, payload="x" * 1_000_000)

    granted = [len(stage.claim(limit=12)) for _ in range(3)]

    assert granted == [8, 4, 0]


@spec("H45")
def test_memory_for_a_read_is_free_again_after_the_answer(stage: Stage) -> None:
    ids = [stage.enqueue(number, payload="x" * 20_000) for number in range(1, 11)]
    worker = stage.of(W)

    for _ in range(3):
        stage.call("lookup", {"job_ids": ids}, role=C)
        stage.call("events", role=C, job_id=ids[0])
        stage.ask("GET", "/v1/jobs?bodies=true", token=stage.of(C))
        stage.ask("GET", "/v1/jobs", token=worker)

    assert stage.services.memory.used_bytes == 0


@spec("H45")
def test_lists_of_workers_and_queues_count_towards_the_memory_limit() -> None:
    stage = Stage(settings=replace(SETTINGS, max_memory_bytes=2 * 70_000))
    about = {"host": "h", "pid": 1, "concurrency": 1, "version": "1", "uptime_s": 1}
    names = [f"{number:0100}" for number in range(500)]
    sign = {**about, "queues": ["q"], "schedules": names}
    stage.call("alive", sign, role=W, worker="w")
    for number in range(200):
        stage.enqueue(number, queue=f"q{number}")

    workers = stage.call("workers", role=Role.OPERATOR)
    queues = stage.ask("GET", "/v1/queues?limit=500", token=stage.of(Role.OPERATOR))
    page = stage.call("queues", role=Role.OPERATOR)
    stage.close()

    assert (page.status, len(page.json["queues"])) == (200, 50)

    assert (workers.status, workers.code) == (503, "busy")
    assert (queues.status, queues.code) == (503, "busy")
