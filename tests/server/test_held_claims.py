"""Claims that wait: answered when there is work, and never at the price of a grant."""

import asyncio
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.types import Message

from tenure.core.claims import ClaimAnswer
from tenure.core.commands import Sweep
from tenure.core.ids import JobId
from tenure.core.vocabulary import EventCause, EventType, JobStatus, Role
from tenure.ports import Hint
from tenure.protocol import replies
from tenure.server.app import make_app
from tenure.server.services import Services
from tenure_conformance.spec import spec
from tests.server.harness import SETTINGS, Answer, Stage
from tests.support.waiting import PATIENCE_S, auntil

C, W, O = Role.CLIENT, Role.WORKER, Role.OPERATOR  # noqa: E741 - as in the table


def _waiting(stage: Stage) -> int:
    return sum(len(line) for line in stage.services.waiting_claims._lines.values())


@spec("H10")
def test_a_claim_waits_until_there_is_a_job(stage: Stage) -> None:
    async def scenario() -> Answer:
        message = stage.claim_message(wait_s=60)
        claim = asyncio.create_task(stage.aask("POST", "/v1/claim", message, token=stage.of(W)))
        await auntil(lambda: _waiting(stage) == 1)
        new = {"queue": "q", "kind": "k"}
        await stage.aask("POST", "/v1/jobs", new, token=stage.of(C))
        return await claim

    answer = stage.run(scenario())

    assert len(answer.json["grants"]) == 1


@spec("H10")
def test_a_claim_finds_a_job_that_was_enqueued_elsewhere(stage: Stage) -> None:
    async def scenario() -> Answer:
        message = stage.claim_message(wait_s=60)
        claim = asyncio.create_task(stage.aask("POST", "/v1/claim", message, token=stage.of(W)))
        await auntil(lambda: _waiting(stage) == 1)
        # Not ready when it is enqueued: nobody says when its time has come.
        new = {"queue": "q", "kind": "k", "delay_s": 5}
        await stage.aask("POST", "/v1/jobs", new, token=stage.of(C))
        await asyncio.sleep(0.05)
        assert not claim.done()
        stage.clock.advance(5)
        return await claim

    assert len(stage.run(scenario()).json["grants"]) == 1


@spec("H10")
def test_a_claim_that_waits_in_vain_is_answered_without_grants(stage: Stage) -> None:
    answer = stage.ask("POST", "/v1/claim", stage.claim_message(wait_s=0.05), token=stage.of(W))

    assert (answer.status, answer.json["grants"], answer.json["cause"]) == (200, [], None)


@spec("H10")
def test_nobody_waits_longer_than_a_minute(stage: Stage) -> None:
    answer = stage.ask("POST", "/v1/claim", stage.claim_message(wait_s=61), token=stage.of(W))

    assert (answer.status, answer.json["field"]) == (422, "wait_s")


@spec("H10")
def test_a_refused_claim_does_not_wait(stage: Stage) -> None:
    stage.enqueue()
    stage.claim(claim_seq=900)

    stale = stage.claim_message(claim_seq=899, wait_s=60)
    answer = stage.ask("POST", "/v1/claim", stale, token=stage.of(W))

    assert (answer.status, answer.json["verdict"]) == (200, "REJECTED")
    assert answer.json["cause"] == "stale_claim"


@spec("RL9")
def test_a_line_that_a_rate_holds_back_asks_when_there_is_room(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        stage.enqueue(number)
    stage.call("limit", {"rate": "5/s"}, role=O, queue="q")
    assert len(stage.claim()) == 1
    asked: list[float] = []
    submit = stage.coordinator.submit_claim

    def count(request: Any) -> Any:
        asked.append(asyncio.get_running_loop().time())
        return submit(request)

    monkeypatch.setattr(stage.coordinator, "submit_claim", count)
    hints: list[Hint | None] = []
    unwatch = stage.store.watch(hints.append)

    def soon() -> list[float]:
        return [later for before, later in pairwise(asked) if later - before <= 0.15]

    async def scenario() -> Answer:
        message = stage.claim_message(wait_s=60)
        claim = asyncio.create_task(stage.aask("POST", "/v1/claim", message, token=stage.of(W)))
        await auntil(lambda: len(asked) - 1 - len(soon()) >= 4)
        unwatch()
        stage.clock.advance(1)
        return await claim

    answer = stage.run(scenario())

    assert len(answer.json["grants"]) == 1
    # The store's clock stands still, so the rate has room "in 0.2 s" each time it is asked. Sooner
    # ask only the claim when it joins the line, and the line after a commit: that of an enqueue
    # before may be announced late, and the use of a token is written meanwhile.
    assert len(soon()) <= 1 + 1 + len(hints)


@spec("RL9")
def test_a_claim_is_told_that_a_rate_holds_back_what_it_asked_for(stage: Stage) -> None:
    for number in (1, 2):
        stage.enqueue(number)
    stage.call("set-kind", {"rate": "1/m"}, role=O, kind="k")
    stage.claim()

    some = stage.ask("POST", "/v1/claim", stage.claim_message(), token=stage.of(W))
    of_kind = stage.claim_message(kinds=["k"])
    everything = stage.ask("POST", "/v1/claim", of_kind, token=stage.of(W))

    assert (some.json["held_s"], some.json["all_held"]) == (60.0, False)
    assert (everything.json["held_s"], everything.json["all_held"]) == (60.0, True)


def test_only_one_of_many_waiting_claims_asks_the_store(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    submit = stage.coordinator.submit_claim

    def count(request: Any) -> Any:
        asked.append(request.worker)
        return submit(request)

    monkeypatch.setattr(stage.coordinator, "submit_claim", count)

    async def scenario() -> list[Answer]:
        claims = [
            asyncio.create_task(
                stage.aask(
                    "POST",
                    "/v1/claim",
                    stage.claim_message(worker=f"w{n}", wait_s=60),
                    token=stage.of(W),
                )
            )
            for n in range(20)
        ]
        await auntil(lambda: _waiting(stage) == 20)
        asked.clear()
        await auntil(lambda: len(asked) >= 10)
        assert len(set(asked)) == 1
        jobs = [{"queue": "q", "kind": "k"}] * 20
        await stage.aask("POST", "/v1/jobs/batch", {"jobs": jobs}, token=stage.of(C))
        return list(await asyncio.gather(*claims))

    answers = stage.run(scenario())

    granted = [grant["job_id"] for answer in answers for grant in answer.json["grants"]]
    assert len(set(granted)) == 20


@spec("H35")
def test_a_server_that_shuts_down_answers_waiting_claims_and_grants_nothing_more(
    stage: Stage,
) -> None:
    async def scenario() -> tuple[list[Answer], Answer]:
        claims = [
            asyncio.create_task(
                stage.aask(
                    "POST",
                    "/v1/claim",
                    stage.claim_message(worker=f"w{n}", queues=[f"q{n}"], wait_s=60),
                    token=stage.of(W),
                )
            )
            for n in range(3)
        ]
        await auntil(lambda: _waiting(stage) == 3)
        stage.services.stop()
        answered = list(await asyncio.gather(*claims))
        late = await stage.aask("POST", "/v1/claim", stage.claim_message(), token=stage.of(W))
        return answered, late

    stage.enqueue()
    answered, late = stage.run(scenario())

    assert [(each.status, each.json["grants"]) for each in answered] == [(200, [])] * 3
    assert (late.status, late.code, late.json["verdict"]) == (503, "shutting_down", None)
    assert stage.ask("GET", "/readyz").status == 503
    assert stage.ask("GET", "/healthz").status == 200


@spec("H35")
def test_a_waiting_caller_that_disconnects_receives_no_grant(stage: Stage) -> None:
    async def scenario() -> None:
        caller = stage.caller(
            "POST", "/v1/claim", stage.claim_message(wait_s=60), token=stage.of(W)
        )
        claim = asyncio.create_task(caller.run(stage.app))
        await auntil(lambda: _waiting(stage) == 1)
        caller.hang_up()
        await claim

    stage.run(scenario())
    job_id = stage.enqueue()

    assert _waiting(stage) == 0
    assert stage.job(job_id).attempt == 0


@spec("H35", "T11")
def test_a_grant_whose_caller_has_gone_is_taken_back_and_costs_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = stage.enqueue()
    caller = stage.caller("POST", "/v1/claim", stage.claim_message(), token=stage.of(W))
    submit = stage.coordinator.submit_claim

    def hang_up_meanwhile(request: Any) -> Any:
        caller.hang_up()
        return submit(request)

    monkeypatch.setattr(stage.coordinator, "submit_claim", hang_up_meanwhile)

    async def scenario() -> None:
        await caller.run(stage.app)
        await auntil(lambda: stage.job(job_id).status is JobStatus.QUEUED)

    stage.run(scenario())
    stalled = stage.events(job_id)[2]
    assert (stalled.type, stalled.cause) == (EventType.STALLED, EventCause.UNDELIVERED)
    assert stalled.actor == "system"
    job = stage.job(job_id)
    assert (job.attempt, job.failures, job.releases) == (1, 0, 0)


@spec("H35", "Q1")
def test_a_grant_is_not_taken_back_when_the_same_claim_was_sent_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = stage.enqueue()
    message = stage.claim_message()
    first = stage.caller("POST", "/v1/claim", message, token=stage.of(W))
    again = stage.caller("POST", "/v1/claim", message, token=stage.of(W))
    submit = stage.coordinator.submit_claim
    held: list[tuple[Any, Future[ClaimAnswer]]] = []

    def hold(request: Any) -> Any:
        held.append((request, Future()))
        return held[-1][1]

    monkeypatch.setattr(stage.coordinator, "submit_claim", hold)

    async def scenario() -> Answer:
        tasks = [asyncio.create_task(each.run(stage.app)) for each in (first, again)]
        await auntil(lambda: len(held) == 2)
        first.hang_up()
        for request, future in held:
            future.set_result(submit(request).result())
        _, answer = await asyncio.gather(*tasks)
        return answer

    answer = stage.run(scenario())

    assert [grant["job_id"] for grant in answer.json["grants"]] == [job_id]
    assert stage.job(job_id).status is JobStatus.CLAIMED


@spec("H35", "T11")
def test_a_grant_that_could_not_be_written_is_taken_back(stage: Stage) -> None:
    job_id = stage.enqueue()
    caller = stage.caller("POST", "/v1/claim", stage.claim_message(), token=stage.of(W))

    async def fail_to_write(message: Message) -> None:
        if message.get("body"):
            caller.hang_up()  # the connection was reset under the answer

    async def scenario() -> None:
        await stage.app(caller.scope, caller.receive, fail_to_write)
        await auntil(lambda: stage.job(job_id).status is JobStatus.QUEUED)

    stage.run(scenario())

    assert stage.events(job_id)[2].cause is EventCause.UNDELIVERED


@spec("H35", "N4")
@pytest.mark.parametrize("is_written", [True, False])
def test_a_started_grant_is_taken_back_only_if_no_byte_was_written(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    job_id = stage.enqueue()
    message = stage.claim_message(start=True)
    caller = stage.caller("POST", "/v1/claim", message, token=stage.of(W))
    submit = stage.coordinator.submit_claim

    def granted(request: Any) -> Any:
        if not is_written:
            caller.hang_up()
        return submit(request)

    async def lose(part: Message) -> None:
        if part["type"] == "http.response.start":
            caller.hang_up()

    async def scenario() -> None:
        await stage.app(caller.scope, caller.receive, lose)
        # Whatever was sent to take it back has been decided when this has.
        await stage.aask("POST", "/v1/jobs", {"queue": "z", "kind": "k"}, token=stage.of(C))

    monkeypatch.setattr(stage.coordinator, "submit_claim", granted)
    stage.run(scenario())

    stays = JobStatus.RUNNING if is_written else JobStatus.QUEUED
    assert stage.job(job_id).status is stays
    causes = [event.cause for event in stage.events(job_id)]
    assert (EventCause.UNDELIVERED in causes) is not is_written


@spec("H35", "T11")
def test_a_grant_that_nobody_reads_is_taken_back() -> None:
    quick = Stage(settings=replace(SETTINGS, send_within_s=0.05, slowest_bytes_per_s=1 << 30))
    job_id = quick.enqueue()
    caller = quick.caller("POST", "/v1/claim", quick.claim_message(), token=quick.of(W))

    async def never_read(message: Message) -> None:
        if message.get("body"):
            await asyncio.Event().wait()

    async def scenario() -> None:
        await quick.app(caller.scope, caller.receive, never_read)
        await auntil(lambda: quick.job(job_id).status is JobStatus.QUEUED)

    quick.run(scenario())

    quick.close()
    assert quick.events(job_id)[2].cause is EventCause.UNDELIVERED


@spec("H35", "Q1")
def test_a_grant_that_the_same_claim_received_meanwhile_is_not_taken_back(stage: Stage) -> None:
    job_id = stage.enqueue()
    message = stage.claim_message()
    caller = stage.caller("POST", "/v1/claim", message, token=stage.of(W))
    again: list[Answer] = []

    async def lose_and_repeat(part: Message) -> None:
        if part.get("body"):
            again.append(await stage.aask("POST", "/v1/claim", message, token=stage.of(W)))
            caller.hang_up()

    async def scenario() -> None:
        await stage.app(caller.scope, caller.receive, lose_and_repeat)

    stage.run(scenario())

    assert [grant["job_id"] for grant in again[0].json["grants"]] == [job_id]
    assert stage.job(job_id).status is JobStatus.CLAIMED


@spec("H35", "Q8")
@pytest.mark.parametrize("is_started", [True, False])
def test_a_grant_that_another_server_delivered_is_not_taken_back(
    stage: Stage, is_started: bool
) -> None:
    job_id, token = stage.enqueue(), stage.of(W)
    message = stage.claim_message()
    lost = stage.caller("POST", "/v1/claim", message, token=token)
    others = Services(stage.coordinator, SETTINGS, monotonic=stage.clock)
    other = make_app(others, authenticated=True)

    async def start_elsewhere(part: Message) -> None:
        if part.get("body"):
            again = await stage.caller("POST", "/v1/claim", message, token=token).run(other)
            [grant] = again.json["grants"]
            start = {"job_id": job_id, "lease_id": grant["lease_id"], "request_id": "s"}
            if is_started:
                await stage.caller("POST", "/v1/start", start, token=token).run(other)
            lost.hang_up()

    async def scenario() -> None:
        await stage.app(lost.scope, lost.receive, start_elsewhere)
        # Whatever was sent to take it back has been decided when this has.
        await stage.aask("POST", "/v1/jobs", {"queue": "z", "kind": "k"}, token=stage.of(C))

    stage.run(scenario())
    others.close()

    assert stage.job(job_id).status is (JobStatus.RUNNING if is_started else JobStatus.CLAIMED)


@spec("H25")
def test_a_revoked_token_ends_a_claim_that_waits(stage: Stage) -> None:
    token, text = stage.new_token(W)

    async def scenario() -> Answer:
        message = stage.claim_message(wait_s=60)
        claim = asyncio.create_task(stage.aask("POST", "/v1/claim", message, token=text))
        await auntil(lambda: _waiting(stage) == 1)
        stage.store.tokens.revoke(token.id)
        async with asyncio.timeout(5):
            return await claim

    answer = stage.run(scenario())

    assert answer.status == 401


@spec("H26")
def test_a_token_has_no_more_open_claims_than_it_may(stage: Stage) -> None:
    token = stage.token(W, "few", max_polls=2)

    async def scenario() -> tuple[Answer, Answer]:
        def ask(worker: str) -> Any:
            message = stage.claim_message(worker=worker, wait_s=60)
            return stage.aask("POST", "/v1/claim", message, token=token)

        open_claims = [asyncio.create_task(ask(worker)) for worker in ("a", "b")]
        await auntil(lambda: _waiting(stage) == 2)
        third = await ask("c")
        stage.services.waiting_claims.stop()
        first, _ = await asyncio.gather(*open_claims)
        return third, first

    third, first = stage.run(scenario())

    assert (third.status, third.code) == (429, "too_many_polls")
    assert first.status == 200


@spec("H26")
def test_a_claimer_without_room_lets_the_others_go_first(stage: Stage) -> None:
    full = stage.token(W, "full", max_leases=1)

    def claim(worker: str, token: str, **fields: Any) -> "asyncio.Task[Answer]":
        message = stage.claim_message(worker=worker, **fields)
        return asyncio.create_task(stage.aask("POST", "/v1/claim", message, token=token))

    async def enqueue(queue: str) -> None:
        new = {"queue": queue, "kind": "k"}
        await stage.aask("POST", "/v1/jobs", new, token=stage.of(C))

    async def take_the_room() -> None:
        """Claim until there is a grant: while the first claim asks the store, the only lease is
        reserved for it."""
        while (aside := await claim("aside", full, queues=["aside"])).status == 429:
            pass
        assert len(aside.json["grants"]) == 1

    async def scenario() -> tuple[Answer, bool, Answer]:
        # It waits at the head while there is room; then its other lease takes that.
        first = claim("first", full, wait_s=60)
        await auntil(lambda: _waiting(stage) == 1)
        await enqueue("aside")
        async with asyncio.timeout(PATIENCE_S):
            await take_the_room()
        second = claim("second", stage.token(W, "roomy"), wait_s=60)
        await auntil(lambda: _waiting(stage) == 2)
        await enqueue("q")
        answer = await second
        is_open = not first.done() and _waiting(stage) == 1
        stage.services.waiting_claims.stop()
        return answer, is_open, await first

    answer, is_open, first = stage.run(scenario())

    assert len(answer.json["grants"]) == 1
    assert is_open
    assert (first.status, first.json["grants"]) == (200, [])


@spec("H35", "T11")
def test_a_grant_that_cannot_be_encoded_is_taken_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = stage.enqueue()

    def fail(found: ClaimAnswer) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(replies, "claim_reply", fail)

    async def scenario() -> Answer:
        message = stage.claim_message()
        answer = await stage.aask("POST", "/v1/claim", message, token=stage.of(W))
        await auntil(lambda: stage.job(job_id).status is JobStatus.QUEUED)
        return answer

    assert stage.run(scenario()).status == 500
    assert stage.events(job_id)[2].cause is EventCause.UNDELIVERED


# --- hints ---------------------------------------------------------------------------------------


Hints = list[tuple[str, set[str]]]


@pytest.fixture
def hints(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Hints:
    return hints_of(stage, monkeypatch)


def hints_of(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Hints:
    """What waiting claims are told; what they do with it is in `test_waiting_claims`."""
    found: Hints = []
    monkeypatch.setattr(
        stage.services.waiting_claims,
        "enqueued",
        lambda namespace, queues: found.append((str(namespace), {*queues})),
    )
    return found


@spec("H10")
def test_a_batch_wakes_claims_in_each_of_its_namespaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(authenticated=False)
    hints = hints_of(stage, monkeypatch)
    jobs = [("a", "x"), ("b", "y"), ("a", "z")]

    new = [{"namespace": name, "queue": queue, "kind": "k"} for name, queue in jobs]
    stage.ask("POST", "/v1/jobs/batch", {"jobs": new})

    stage.close()
    assert sorted(hints) == [("a", {"x", "z"}), ("b", {"y"})]


@spec("H10")
def test_a_queue_that_grants_more_wakes_waiting_claims(stage: Stage, hints: Hints) -> None:
    stage.call("pause", role=O, queue="q")
    hints.clear()

    stage.call("resume", role=O, queue="q")
    stage.call("limit", {"limit": 5}, role=O, queue="z")

    assert hints == [("default", {"q"}), ("default", {"z"})]


@spec("H10")
def test_a_job_that_is_ready_again_wakes_waiting_claims(stage: Stage, hints: Hints) -> None:
    held = stage.leased(1, policy={"on_lost": "hold"})
    stage.clock.advance(61)
    stage.coordinator.execute(Sweep(job_id=JobId(held["job_id"])))
    cancelled = stage.enqueue(2, queue="z")
    hints.clear()

    stage.call("requeue", {"request_id": "r"}, role=O, job_id=held["job_id"])
    stage.call("cancel", {"request_id": "r"}, role=C, job_id=cancelled)

    assert hints == [("default", {"q"})]


# --- what takes too long -------------------------------------------------------------------------


@spec("H62")
def test_a_body_that_does_not_come_is_not_waited_for(stage: Stage) -> None:
    slow = Stage(settings=replace(SETTINGS, body_within_s=0.05))

    async def scenario() -> Answer:
        caller = slow.caller(
            "POST",
            "/v1/jobs",
            token=slow.of(C),
            headers={"content-type": "application/json"},
            pieces=[],
        )
        return await caller.run(slow.app)

    answer = slow.run(scenario())

    slow.close()
    assert (answer.status, answer.code, answer.json["verdict"]) == (408, "too_slow", None)
    assert answer.headers["connection"] == "close"


@spec("H62")
def test_only_what_was_read_of_an_answer_gives_time_for_the_rest() -> None:
    slow = Stage(settings=replace(SETTINGS, send_within_s=0.05, slowest_bytes_per_s=1))
    job_id = slow.enqueue(payload="x" * 200_000)

    async def scenario() -> None:
        path = f"/v1/jobs/{job_id}?bodies=true"
        caller = slow.caller("GET", path, token=slow.of(C))

        async def never_read(message: Message) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async with asyncio.timeout(PATIENCE_S):
            await slow.app(caller.scope, caller.receive, never_read)

    slow.run(scenario())
    slow.close()

    assert slow.services.memory.used_bytes == 0


@spec("H62")
def test_an_answer_that_nobody_reads_is_given_up() -> None:
    quick = Stage(
        settings=replace(SETTINGS, send_within_s=0.05, slowest_bytes_per_s=1 << 30),
    )
    job_id = quick.enqueue(payload="x" * 200_000)

    async def scenario() -> int:
        path = f"/v1/jobs/{job_id}?bodies=true"
        caller = quick.caller("GET", path, token=quick.of(C))
        taken: list[int] = []

        async def take(message: Message) -> None:
            if len(taken) == 2:  # the head and one piece; then it reads no more
                await asyncio.Event().wait()
            taken.append(len(message.get("body", b"")))

        await quick.app(caller.scope, caller.receive, take)
        return sum(taken)

    taken_bytes = quick.run(scenario())

    quick.close()
    assert taken_bytes == 64 << 10
