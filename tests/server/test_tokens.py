"""Tokens: who is let in, as whom, and how far."""

import asyncio
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.core.ids import JobId, Namespace, QueueName
from tenure.core.instants import seconds
from tenure.core.job import Job
from tenure.core.tokens import (
    TOKEN_ENTROPY_BYTES,
    LoadedToken,
    NewToken,
    TokenId,
    check_new_token,
    mint,
    read_token,
)
from tenure.core.vocabulary import Role
from tenure.errors import InvalidInput
from tenure.protocol.routes import ROUTES, Route
from tenure.server.limits import Quotas
from tenure_conformance.spec import spec
from tests.server.harness import JOB, SETTINGS, Answer, Stage
from tests.server.test_roles import name_of, send
from tests.support.cases import each_case
from tests.support.waiting import auntil

C, W, O, V = Role.CLIENT, Role.WORKER, Role.OPERATOR, Role.VIEWER  # noqa: E741 - as in the table

OTHER = Namespace("other")


def refused_soon(stage: Stage, token: str) -> None:
    """As soon as what is remembered of the token is old enough to be read again."""

    async def scenario() -> None:
        async with asyncio.timeout(5):
            while (await stage.aask("GET", "/v1/time", token=token)).status != 401:
                await asyncio.sleep(SETTINGS.recheck_token_s)

    stage.run(scenario())


@spec("H72")
def test_only_the_right_secret_is_a_use_of_a_token(stage: Stage) -> None:
    token, text = stage.new_token(C)

    def last_used_at() -> object:
        loaded = stage.store.tokens.load(token.id).token
        assert loaded is not None
        return loaded.last_used_at

    async def ask(shown: str) -> int:
        answer = await stage.aask("GET", "/v1/time", token=shown)
        await asyncio.gather(*stage.services.authenticator.recording)
        return answer.status

    assert stage.run(ask(text[:-4] + "0000")) == 401
    assert last_used_at() is None
    assert stage.run(ask(text)) == 200
    assert last_used_at() is not None


@spec("H73")
def test_two_authorization_headers_are_refused(stage: Stage) -> None:
    caller = stage.caller("GET", "/v1/time", token=stage.of(C))
    caller.scope["headers"].append((b"authorization", f"Bearer {stage.of(O)}".encode()))

    answer = stage.run(caller.run(stage.app))

    assert (answer.status, answer.code) == (401, "unauthenticated")


@spec("H20")
def test_a_token_must_be_whole_known_and_in_time(stage: Stage) -> None:
    token, text = stage.new_token(C, expires_in_us=seconds(60))
    wrong_secret = text[:-1] + ("0" if text[-1] != "0" else "1")
    unknown = mint(b"\xee" * TOKEN_ENTROPY_BYTES)[2]
    headers = [
        None,
        "",
        text,
        f"Basic {text}",
        "Bearer",
        "Bearer nonsense",
        f"Bearer {text} {text}",
        f"Bearer {wrong_secret}",
        f"Bearer {unknown}",
        f"Bearer {token.id}",
        f"Bearer {token.secret_sha256}",
    ]

    refused = [
        stage.ask("GET", "/v1/time", headers={} if given is None else {"authorization": given})
        for given in headers
    ]
    welcome = stage.ask("GET", "/v1/time", headers={"authorization": f"bearer  {text}"})
    stage.clock.advance(60)

    assert [answer.status for answer in refused] == [401] * len(headers)
    assert {answer.code for answer in refused} == {"unauthenticated"}
    assert welcome.status == 200
    refused_soon(stage, text)


@spec("H20")
def test_an_unknown_token_and_a_wrong_secret_get_the_same_answer(stage: Stage) -> None:
    text = stage.token(C)
    wrong_secret = text[:-1] + ("0" if text[-1] != "0" else "1")
    unknown = mint(b"\xee" * TOKEN_ENTROPY_BYTES)[2]

    answers = [stage.ask("GET", "/v1/time", token=each) for each in (wrong_secret, unknown)]

    assert len({(answer.status, answer.json["message"]) for answer in answers}) == 1


@spec("H20")
def test_the_secret_is_nowhere_in_the_store() -> None:
    token_id, digest, text = mint(bytes(range(TOKEN_ENTROPY_BYTES)))
    presented = read_token(text)

    assert presented is not None
    assert (presented.id, presented.digest) == (token_id, digest)
    assert text.rpartition("_")[2] not in (digest, token_id)
    assert len(text.rpartition("_")[2]) == 64


@spec("H25")
def test_a_revoked_token_is_refused(stage: Stage) -> None:
    token, text = stage.new_token(C)
    before = stage.ask("GET", "/v1/time", token=text)
    stage.store.tokens.revoke(token.id)

    refused_soon(stage, text)
    assert before.status == 200


def loads_of(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[TokenId]:
    """The tokens that are read from the store from now on."""
    loaded: list[TokenId] = []
    load = stage.store.tokens.load

    def noted(token_id: TokenId) -> LoadedToken:
        loaded.append(token_id)
        return load(token_id)

    monkeypatch.setattr(stage.store.tokens, "load", noted)
    return loaded


@spec("H30")
def test_made_up_tokens_do_not_delay_known_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(SETTINGS, unknown_tokens_at_once=1, max_unknown_tokens=2, recheck_token_s=0)
    stage = Stage(settings=settings)
    made_up = [mint(bytes([number]) * TOKEN_ENTROPY_BYTES) for number in range(200, 203)]
    known, newcomer = stage.of(C), stage.token(V)
    stage.ask("GET", "/v1/time", token=known)
    load = stage.store.tokens.load
    held: list[TokenId] = []
    goes_on = threading.Event()

    def hold(token_id: TokenId) -> LoadedToken:
        if token_id in [each[0] for each in made_up]:
            held.append(token_id)
            goes_on.wait(30)
        return load(token_id)

    monkeypatch.setattr(stage.store.tokens, "load", hold)

    async def scenario() -> tuple[list[int], list[Answer]]:
        def ask(token: str) -> "asyncio.Task[Answer]":
            return asyncio.create_task(stage.aask("GET", "/v1/time", token=token))

        waiting = [ask(made_up[0][2]), ask(made_up[1][2])]
        try:
            async with asyncio.timeout(10):
                await auntil(lambda: len(held) == 1)
                others = [await ask(each) for each in (made_up[2][2], newcomer, known)]
                assert len(held) == 1
        finally:
            goes_on.set()
        return [(await each).status for each in waiting], others

    waited, (third, stranger, friend) = stage.run(scenario())
    later = stage.ask("GET", "/v1/time", token=newcomer)

    stage.close()
    assert waited == [401, 401]
    assert [(each.status, each.code) for each in (third, stranger)] == [(503, "busy")] * 2
    assert (third.headers["retry-after"], third.json["verdict"]) == ("1", None)
    assert (friend.status, later.status) == (200, 200)


def test_the_cache_of_tokens_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, max_remembered_tokens=2, recheck_token_s=3600)
    stage = Stage(settings=settings)
    tokens = [stage.new_token(C, f"c{number}") for number in range(3)]
    loaded = loads_of(stage, monkeypatch)

    for position in (0, 1, 2, 2, 1, 0):
        stage.ask("GET", "/v1/time", token=tokens[position][1])

    stage.close()
    assert loaded == [tokens[position][0].id for position in (0, 1, 2, 0)]


def test_the_use_of_a_token_is_noted_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(settings=replace(SETTINGS, recheck_token_s=0))
    token, text = stage.new_token(C)
    used: list[int] = []
    use = stage.store.tokens.use

    def noted(token_id: TokenId) -> None:
        used.append(stage.clock() - token.created_at)
        use(token_id)

    monkeypatch.setattr(stage.store.tokens, "use", noted)

    async def scenario() -> None:
        for passes_s in (0, 59, 1, 1):
            stage.clock.advance(passes_s)
            await stage.aask("GET", "/v1/time", token=text)
            await auntil(lambda: not stage.services.authenticator.recording)

    stage.run(scenario())

    stage.close()
    assert used == [0, seconds(60)]


@spec("H23")
def test_a_lease_can_be_used_only_by_its_principal(stage: Stage) -> None:
    lease = stage.leased()
    thief = stage.token(W, "thief")
    before = (stage.job(lease["job_id"]), stage.events(lease["job_id"]))
    report = {**lease, "request_id": "r"}
    beat = {"leases": [{**lease, "hb_seq": 1}]}

    answers = [
        stage.ask("POST", f"/v1/{name}", message, token=thief)
        for name, message in (
            ("start", report),
            ("complete", report),
            ("fail", {**report, "error": {}}),
            ("release", report),
        )
    ]
    beaten = stage.ask("POST", "/v1/heartbeat", beat, token=thief)
    output = stage.ask("POST", "/v1/output", {**lease, "text": "x"}, token=thief)

    heard = [(a.status, a.json["verdict"], a.json["cause"]) for a in (*answers, output)]
    assert heard == [(200, "REJECTED", "invalid_lease")] * 5
    assert beaten.json["verdicts"][0]["cause"] == "invalid_lease"
    assert (stage.job(lease["job_id"]), stage.events(lease["job_id"])) == before


@spec("H23")
def test_a_second_token_of_the_same_principal_keeps_its_leases(stage: Stage) -> None:
    old, new = stage.token(W, "fleet"), stage.token(W, "fleet")
    stage.enqueue()
    [grant] = stage.claim(token=old)

    done = stage.ask(
        "POST",
        "/v1/complete",
        {"job_id": grant["job_id"], "lease_id": grant["lease_id"], "request_id": "c"},
        token=new,
    )

    assert done.json["verdict"] == "COMMITTED"
    assert {event.actor for event in stage.events(grant["job_id"])[1:]} == {"worker:fleet"}


@spec("H21")
def test_the_namespace_of_a_request_is_that_of_its_token(stage: Stage) -> None:
    there = stage.token(C, namespace=OTHER)
    job_id = stage.enqueue(token=there)

    believed = {"queue": "q", "kind": "k", "namespace": "default"}
    wrong = stage.ask("POST", "/v1/jobs", believed, token=there)
    right = stage.ask("POST", "/v1/jobs", {**believed, "namespace": "other"}, token=there)

    assert stage.job(job_id).namespace == "other"
    assert (wrong.status, wrong.json["field"]) == (403, "namespace")
    assert stage.job(right.json["job"]["id"]).namespace == "other"


@spec("H21")
@pytest.mark.parametrize("route", [each for each in ROUTES if "job" in each.finds], ids=name_of)
def test_a_job_of_another_namespace_is_unknown(stage: Stage, route: Route) -> None:
    unknown = [send(stage, route, token=stage.of(role)) for role in route.roles]
    job_id = stage.enqueue(1, token=stage.token(C, namespace=OTHER))
    before = (stage.job(job_id), stage.events(job_id))

    elsewhere = [send(stage, route, token=stage.of(role)) for role in route.roles]

    assert {(answer.status, answer.code) for answer in elsewhere} == {(404, "unknown_job")}
    heard = [
        {**answer.json, "request_id": None, "status": answer.status}
        for answer in (*unknown, *elsewhere)
    ]
    assert heard == heard[:1] * len(heard)
    assert (stage.job(job_id), stage.events(job_id)) == before


@spec("H21")
def test_lists_and_claims_have_nothing_of_another_namespace(stage: Stage) -> None:
    job_id = stage.enqueue(token=stage.token(C, namespace=OTHER))

    looked_up = stage.call("lookup", {"job_ids": [job_id]}, role=C)

    assert looked_up.json["jobs"] == []
    assert stage.call("jobs", role=C).json["jobs"] == []
    assert stage.call("queues", role=C).json["queues"] == []
    assert stage.claim() == []


@spec("H21")
def test_wrong_leases_of_a_batch_are_read_in_one_call(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = stage.token(C, namespace=OTHER)
    jobs = [stage.enqueue(1), stage.enqueue(2, token=there), JOB.format(3)]
    beats = [
        {"job_id": job_id, "lease_id": "1-" + "ab" * 16, "hb_seq": number}
        for number, job_id in enumerate((*jobs, *jobs), 1)
    ]
    stored = stage.coordinator.store.jobs
    read = stored.read
    loaded: list[list[str]] = []

    def noted(ids: list[JobId], *, bodies: bool) -> dict[JobId, Job]:
        loaded.append([*ids])
        return read(ids, bodies=bodies)

    monkeypatch.setattr(stored, "read", noted)
    answer = stage.call("heartbeat", {"leases": beats}, role=W)

    causes = [verdict["cause"] for verdict in answer.json["verdicts"]]
    assert causes == ["invalid_lease", "unknown_job", "unknown_job"] * 2
    assert loaded == [jobs[:2]]


@spec("H21", "H23")
def test_workers_of_two_namespaces_with_one_name_are_two(stage: Stage) -> None:
    lease = stage.leased()
    namesake = stage.token(W, "worker-1", namespace=OTHER)

    stolen = stage.ask("POST", "/v1/complete", {**lease, "request_id": "r"}, token=namesake)
    beat = {"leases": [{**lease, "hb_seq": 1}]}
    beaten = stage.ask("POST", "/v1/heartbeat", beat, token=namesake)

    assert (stolen.status, stolen.code) == (404, "unknown_job")
    assert beaten.json["verdicts"][0]["cause"] == "unknown_job"


@spec("H21")
def test_an_id_that_is_taken_elsewhere_shows_nothing_of_the_other_job(stage: Stage) -> None:
    stage.enqueue(1, token=stage.token(C, namespace=OTHER), payload="theirs")

    taken = stage.call("enqueue", {"job_id": JOB.format(1), "queue": "q", "kind": "k"}, role=C)

    assert taken.status == 409
    assert taken.json["job"] is None


@spec("H46")
def test_a_viewer_sees_no_bodies(stage: Stage) -> None:
    job_id = stage.enqueue(payload={"password": "hunter2"})
    paths = [
        f"/v1/jobs/{job_id}?bodies=true",
        "/v1/jobs?bodies=true",
        "/v1/dead-letters?bodies=true",
    ]

    answers = [stage.ask("GET", path, token=stage.of(V)) for path in paths]
    without = stage.ask("GET", "/v1/jobs", token=stage.of(V))
    client = stage.ask("GET", paths[0], token=stage.of(C))

    assert {(answer.status, answer.json["field"]) for answer in answers} == {(403, "bodies")}
    assert b"hunter2" not in without.body
    assert client.json["job"]["payload"] == {"password": "hunter2"}


@spec("H26")
def test_a_token_has_no_more_leases_than_it_may(stage: Stage) -> None:
    token = stage.token(W, "greedy", max_leases=3)
    for number in range(1, 8):
        stage.enqueue(number)
    first = stage.claim_message(limit=2)

    granted = stage.ask("POST", "/v1/claim", first, token=token)
    too_many = stage.ask("POST", "/v1/claim", stage.claim_message(limit=2), token=token)
    one_more = stage.claim(token=token, limit=1)
    full = stage.ask("POST", "/v1/claim", stage.claim_message(), token=token)
    others = stage.claim(limit=1)

    assert len(granted.json["grants"]) == 2
    assert (too_many.status, too_many.code) == (429, "too_many_leases")
    assert too_many.headers["retry-after"] == "1"
    assert too_many.json["verdict"] is None
    assert (len(one_more), full.status, len(others)) == (1, 429, 1)


@spec("H26")
def test_ended_leases_do_not_count_towards_the_limit(stage: Stage) -> None:
    token = stage.token(W, "busy", max_leases=2)
    for number in range(1, 7):
        stage.enqueue(number)

    for number in range(6):
        [grant] = stage.claim(token=token)
        done = {"job_id": grant["job_id"], "lease_id": grant["lease_id"], "request_id": "c"}
        stage.ask("POST", "/v1/complete", done, token=token)
        stage.clock.advance(0.6)  # counted anew after every second claim

        assert stage.job(grant["job_id"]).status == "succeeded", number


@spec("H26")
def test_leases_granted_while_the_store_counts_are_counted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, _ = stage.new_token(W, "busy", max_leases=2)
    quotas = stage.services.quotas

    async def scenario() -> tuple[bool, bool]:
        loop = asyncio.get_running_loop()

        def count(*_: object) -> int:
            # On its own thread, while the loop goes on: the number is too old once it is there.
            loop.call_soon_threadsafe(quotas.settle, token, 0, 1)
            return 1

        monkeypatch.setattr(stage.store.tokens, "count_leases", lambda *_: 0)
        empty = await quotas.reserve(token, 2)
        quotas.settle(token, 2, 0)
        monkeypatch.setattr(stage.store.tokens, "count_leases", count)
        stage.clock.advance(5)
        return empty, await quotas.reserve(token, 1)

    assert stage.run(scenario()) == (True, False)


@spec("H26")
def test_a_second_server_counts_what_the_first_one_granted(stage: Stage) -> None:
    token, text = stage.new_token(W, "greedy", max_leases=3)
    second = Quotas(stage.store, stage.services.blocking, stage.clock)
    for number in range(1, 8):
        stage.enqueue(number)

    was_empty = stage.run(second.reserve(token, 1))
    second.settle(token, 1, 0)
    stage.claim(token=text, limit=2)

    assert was_empty
    assert not stage.run(second.reserve(token, 2))
    assert stage.run(second.reserve(token, 1))


@spec("H26")
def test_a_token_that_is_far_from_its_limit_is_counted_once_a_second(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, _ = stage.new_token(W, "modest", max_leases=1000)
    counted: list[object] = []

    def count(*holder: object) -> int:
        counted.append(holder)
        return 0

    monkeypatch.setattr(stage.store.tokens, "count_leases", count)
    for _ in range(5):
        assert stage.run(stage.services.quotas.reserve(token, 10))
    assert len(counted) == 1
    stage.clock.advance(1.1)
    assert stage.run(stage.services.quotas.reserve(token, 10))
    assert len(counted) == 2


@spec("H26", "Q1")
def test_a_repeated_claim_gets_its_grants_at_the_lease_limit(
    stage: Stage,
) -> None:
    token = stage.token(W, "greedy", max_leases=1)
    stage.enqueue()
    message = stage.claim_message()

    first = stage.ask("POST", "/v1/claim", message, token=token)
    again = stage.ask("POST", "/v1/claim", message, token=token)

    assert again.status == 200
    assert again.json["repeated"] is True
    assert [each["lease_id"] for each in again.json["grants"]] == [
        each["lease_id"] for each in first.json["grants"]
    ]


@spec("H26", "H41", "Q2")
@pytest.mark.parametrize("other", [{"queues": ["other"]}, {"kinds": ["z"]}, {"limit": 2}])
def test_at_the_lease_limit_a_claim_with_another_body_gets_no_grants(
    stage: Stage, other: dict[str, Any]
) -> None:
    token = stage.token(W, "fleet", max_leases=1)
    rotated = stage.token(W, "fleet", max_leases=1, queues=(QueueName("q"), QueueName("other")))
    stage.enqueue()
    message = stage.claim_message()
    stage.ask("POST", "/v1/claim", message, token=token)

    heard = stage.ask("POST", "/v1/claim", message | other, token=rotated).json

    assert (heard["verdict"], heard["cause"]) == ("REJECTED", "idempotency_key_reuse")
    assert heard["grants"] == []


@each_case(
    "fields",
    [
        {"name": "a/b"},
        {"name": ""},
        {"name": "x" * 65},
        {"namespace": "a b"},
        {"queues": ("a", "a")},
        {"kinds": ("a b",)},
        {"expires_in_us": 0},
        {"expires_in_us": -1},
        {"max_leases": 0},
        {"max_polls": 0},
        {"may_declare": True},
    ],
)
def test_an_inconsistent_token_is_refused(fields: dict[str, Any]) -> None:
    given = {"id": "0" * 16, "secret_sha256": "0" * 64, "name": "n", "role": C} | fields

    with pytest.raises(InvalidInput):
        check_new_token(NewToken(**given))


@spec("H28")
@each_case(
    ("host", "is_ours"),
    [
        ("localhost", True),
        ("LOCALHOST:7717", True),
        ("127.0.0.1:7717", True),
        ("127.9.9.9", True),
        ("[::1]:7717", True),
        ("", False),
        ("evil.example", False),
        ("evil.example:7717", False),
        ("localhost.evil.example", False),
        ("10.0.0.1", False),
        ("192.0.2.1:7717", False),
        ("127.0.0.1.evil.example", False),
    ],
)
def test_without_tokens_only_requests_to_this_machines_names_are_answered(
    host: str, is_ours: bool
) -> None:
    stage = Stage(authenticated=False)

    answer = stage.ask("GET", "/v1/jobs", headers={"host": host})

    stage.close()
    assert answer.status == (200 if is_ours else 403)


@spec("H28")
@pytest.mark.parametrize(
    ("origin", "is_ours"),
    [
        ("http://localhost:7717", True),
        ("http://localhost:3000", False),
        ("https://evil.example", False),
        ("null", False),
        ("", False),
    ],
)
def test_without_tokens_requests_from_other_websites_are_refused(
    origin: str, is_ours: bool
) -> None:
    stage = Stage(authenticated=False)
    stage.ask("POST", "/v1/jobs", {"queue": "q", "kind": "k"})

    # Neither a body nor a header that a browser would have to ask about first.
    paused = stage.ask("POST", "/v1/queues/q/pause", headers={"origin": origin})
    [queue] = stage.ask("GET", "/v1/queues").json["queues"]

    stage.close()
    assert paused.status == (200 if is_ours else 403)
    assert queue["paused"] is is_ours


@spec("H28")
@pytest.mark.parametrize(
    ("site", "is_ours"),
    [("same-origin", True), ("none", True), ("cross-site", False), ("same-site", False)],
)
def test_without_tokens_a_page_of_another_site_can_load_nothing(site: str, is_ours: bool) -> None:
    """An image or a script of a page is asked for without an `Origin`."""
    stage = Stage(authenticated=False)

    answer = stage.ask("GET", "/v1/events/tail", headers={"sec-fetch-site": site})

    stage.close()
    assert answer.status == (200 if is_ours else 403)


@spec("H28")
def test_without_tokens_everybody_here_may_do_everything() -> None:
    stage = Stage(authenticated=False)
    message = {"queue": "q", "kind": "k", "namespace": "elsewhere"}

    made = stage.ask("POST", "/v1/jobs", message)
    claim = stage.claim_message(namespace="elsewhere")
    [grant] = stage.ask("POST", "/v1/claim", claim).json["grants"]
    events = stage.events(grant["job_id"])

    stage.close()
    assert made.json["job"]["namespace"] == "elsewhere"
    assert [event.actor for event in events] == ["client:anonymous", "worker:anonymous"]
