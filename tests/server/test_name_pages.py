"""Queues, workers and schedules are listed in pages, and a page names nothing out of scope."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from tenure.core.ids import QueueName
from tenure.core.vocabulary import Role
from tenure.core.workers import ListedWorker
from tenure_conformance.spec import spec
from tests.server.harness import SETTINGS, Answer, Stage

C, W, O, V = Role.CLIENT, Role.WORKER, Role.OPERATOR, Role.VIEWER  # noqa: E741 - as in the table
NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def make_queue(stage: Stage, number: int, name: str) -> None:
    stage.enqueue(number, queue=name)


def make_worker(stage: Stage, number: int, name: str) -> None:
    about = {"host": "h", "pid": 1, "concurrency": 1, "version": "1", "uptime_s": 1}
    stage.call("alive", {**about, "queues": [name]}, role=W, worker=f"w-{name}")


def alive(stage: Stage, worker: str, **names: list[str]) -> Answer:
    about = {"host": "h", "pid": 1, "concurrency": 1, "version": "1", "uptime_s": 1}
    message = {**about, "queues": ["q"], **names}
    return stage.ask("POST", f"/v1/workers/{worker}/alive", message, token=stage.of(W))


def make_schedule(stage: Stage, number: int, name: str) -> None:
    spec_ = {"kind": "k", "queue": name, "every_s": 3600}
    made = stage.ask("PUT", f"/v1/schedules/{name}/spec", spec_, token=stage.of(O))
    assert made.status == 200, made


MAKE: dict[str, Callable[[Stage, int, str], None]] = {
    "queues": make_queue,
    "workers": make_worker,
    "schedules": make_schedule,
}


def pages(stage: Stage, what: str, token: str, *, limit: int) -> list[list[str]]:
    """The names on each page."""
    found: list[list[str]] = []
    after: str | None = ""
    while after is not None:
        place = f"&after={quote(after)}" if after else ""
        answer = stage.ask("GET", f"/v1/{what}?limit={limit}{place}", token=token)
        assert answer.status == 200, answer
        found.append([each.get("worker") or each["name"] for each in answer.json[what]])
        after = answer.json["next_after"]
    return found


@spec("H86")
@pytest.mark.parametrize("what", MAKE)
def test_a_list_has_pages_that_leave_nothing_out(stage: Stage, what: str) -> None:
    for number, name in enumerate(NAMES):
        MAKE[what](stage, number, name)
    expected = [f"w-{name}" if what == "workers" else name for name in NAMES]

    found = pages(stage, what, stage.of(V), limit=2)

    assert found == [expected[:2], expected[2:4], expected[4:]]


@spec("H86")
@pytest.mark.parametrize("what", MAKE)
def test_a_page_of_a_limited_token_names_only_what_it_may_see(stage: Stage, what: str) -> None:
    for number, name in enumerate(NAMES):
        MAKE[what](stage, number, name)
    limited = stage.token(V, "limited", queues=(QueueName("b"), QueueName("d")))
    answer = stage.ask("GET", f"/v1/{what}?limit=1", token=limited)

    found = pages(stage, what, limited, limit=1)

    assert [name[-1] for page in found for name in page] == ["b", "d"]
    assert answer.json["next_after"].startswith("w-b " if what == "workers" else "b")


@spec("H86")
@pytest.mark.parametrize("what", MAKE)
def test_a_page_reads_no_more_rows_than_it_has(
    stage: Stage, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(NAMES):
        MAKE[what](stage, number, name)
    read: list[int] = []
    subject = stage.store.settings if what == "queues" else getattr(stage.store, what)
    name = "queues" if what == "queues" else "page"
    listed = getattr(subject, name)

    def counted(*args: Any, **more: Any) -> Any:
        found = listed(*args, **more)
        read.append(len(found))
        return found

    token = stage.of(V)
    monkeypatch.setattr(subject, name, counted)
    stage.ask("GET", f"/v1/{what}?limit=2", token=token)

    assert read == [2]


@spec("H86")
@pytest.mark.parametrize(
    "query",
    [
        "queues?limit=501",
        "queues?limit=0",
        "queues?after=%20",
        "workers?after=w",
        "workers?after=x%00",
    ],
)
def test_a_page_that_cannot_be_is_refused(stage: Stage, query: str) -> None:
    assert stage.ask("GET", f"/v1/{query}", token=stage.of(V)).status == 422


@spec("H87")
@pytest.mark.parametrize("field", ["kinds", "schedules"])
def test_the_names_in_a_sign_of_life_are_limited_together(stage: Stage, field: str) -> None:
    names = [f"{number:03}" + "n" * 61 for number in range(1000)]

    heard = alive(stage, "w", **{field: names})
    refused = alive(stage, "w", **{field: names, "queues": names[:64]})
    listed = stage.ask("GET", "/v1/workers", token=stage.of(V)).json["workers"]

    assert heard.status == 200, heard
    assert (refused.status, refused.json["code"]) == (422, "invalid_input")
    assert "65536" in refused.json["message"]
    assert "shorter names" in refused.json["hint"]
    assert [each["queues"] for each in listed] == [["q"]]


@spec("H86")
@pytest.mark.slow
def test_a_page_of_workers_with_many_names_ends_before_its_limit(stage: Stage) -> None:
    kinds = [f"{number:03}" + "n" * 57 for number in range(1000)]
    workers = [f"w{number:03}" for number in range(110)]
    for worker in workers:
        assert alive(stage, worker, kinds=kinds).status == 200

    first = stage.ask("GET", "/v1/workers?limit=500", token=stage.of(V))
    found = pages(stage, "workers", stage.of(V), limit=500)

    assert len(first.body) < 10 << 20
    assert len(found) > 1
    assert [worker for page in found for worker in page] == workers


@spec("H45")
def test_asking_about_one_worker_does_not_read_all(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(settings=replace(SETTINGS, max_live_workers=120))
    for number in range(120):
        assert alive(stage, f"w{number:03}").status == 200
    read: list[int] = []
    listed = stage.store.workers.page

    def counted(*args: Any, **more: Any) -> list[ListedWorker]:
        found = listed(*args, **more)
        read.append(len(found))
        return found

    monkeypatch.setattr(stage.store.workers, "page", counted)
    refused = alive(stage, "w")
    drained = stage.call("drain", role=O, worker="w003")
    unknown = stage.call("drain", role=O, worker="w")
    stage.close()

    assert (refused.status, refused.code) == (422, "too_many_workers")
    assert (drained.status, unknown.status) == (200, 404)
    assert len(read) == 3
    assert max(read) <= 50
