"""Large bodies share the server's memory: who has no room is told so, and small messages pass."""

import asyncio
import json

from msgspec.structs import replace
from starlette.types import Message

from tenure.conformance.spec import spec
from tenure.core.vocabulary import Role
from tests.server.harness import JOB, SETTINGS, Answer, Caller, Stage

C, W = Role.CLIENT, Role.WORKER
ROOM = replace(SETTINGS, max_memory_bytes=300_000)


class Slow(Caller):
    """Keeps the second half of its body to itself until it is told to go on."""

    def __init__(self, caller: Caller, body: bytes) -> None:
        super().__init__(caller.scope, [body[: len(body) // 2], body[len(body) // 2 :]])
        self.is_halfway = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def receive(self) -> Message:
        if len(self._pieces) == 1:
            self.is_halfway.set()
            await self.goes_on.wait()
        return await super().receive()


def job(number: int, size_bytes: int) -> dict[str, object]:
    payload = "x" * size_bytes
    return {"job_id": JOB.format(number), "queue": "q", "kind": "k", "payload": payload}


@spec("H14")
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


@spec("H14")
def test_a_large_answer_that_only_shows_something_needs_room_and_others_are_sent() -> None:
    stage = Stage(settings=replace(ROOM, max_memory_bytes=200_000))
    client, worker = stage.of(C), stage.of(W)
    for number in (1, 2):
        stage.ask("POST", "/v1/jobs", job(number, 110_000), token=client)

    one = stage.ask("GET", f"/v1/jobs/{JOB.format(1)}?bodies=true", token=client)
    both = stage.ask("GET", "/v1/jobs?bodies=true", token=client)
    claimed = stage.ask("POST", "/v1/claim", stage.claim_message(limit=2), token=worker)
    stage.close()

    assert (one.status, both.status, both.code) == (200, 503, "busy")
    assert (claimed.status, len(claimed.json["grants"])) == (200, 2)
