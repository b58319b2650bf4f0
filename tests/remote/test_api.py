"""The Python API and the commands, over HTTP: the same words, and clear ones for what cannot be."""

import asyncio
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tenure import InvalidInput, JobFailed, Retry, Tenure
from tenure.cli.main import main
from tenure.core.ids import LeaseId, QueueName, worker_actor
from tenure.core.verdicts import Observation
from tenure.core.vocabulary import JobStatus, ObservationType
from tenure.errors import RequestRefused, UnknownJob
from tenure.protocol import TOKEN_VARIABLE, URL_VARIABLE
from tenure_conformance.spec import spec
from tests.remote.sites import RemoteSite
from tests.server.processes import Process

pytestmark = pytest.mark.process

UNKNOWN = "01900000-0000-7000-8000-000000000001"


class Shop:
    """A server on SQLite with a worker, and a client and an operator to ask it."""

    def __init__(self, site: RemoteSite) -> None:
        self.site = site
        self.server: Process = site.serve()
        self.client = site.token("client", "shop")
        self.operator = site.token("operator", "olga")
        site.work("worker", self.server.address, "tests.remote.app:app")
        self.app = Tenure(self.server.address, token=self.client)

    def tenure(self, *words: str, token: str | None = None) -> tuple[int, str, str]:
        """A command: its exit code and what it said. In this process, with the server far away: to
        start another one takes longer than nearly every command."""
        ours = dict.fromkeys(name for name in os.environ if name.startswith("TENURE_"))
        asked_by = {URL_VARIABLE: self.server.address, TOKEN_VARIABLE: token or self.operator}
        done = CliRunner().invoke(main, words, env={**ours, **asked_by}, catch_exceptions=False)
        return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    directory: Path = tmp_path_factory.mktemp("shop")
    site = RemoteSite(f"sqlite:///{directory / 'shop.db'}", directory)
    shop = Shop(site)
    yield shop
    shop.app.close()
    site.close()


def test_a_job_is_enqueued_awaited_and_read(shop: Shop) -> None:
    job = shop.app.enqueue("page", {"text": "hello"}, key="page-1", correlation_id="c-1")

    assert job.result(timeout="2m") == "hello"
    assert [artifact.name for artifact in job.artifacts()] == ["page.txt"]
    assert job.artifact("page.txt") == b"hello"
    assert job.artifact("none.txt") is None
    assert [event.type for event in job.events()][-1] == "succeeded"
    assert job.events()[0].actor == "client:shop"


def test_a_running_job_is_cancelled(shop: Shop) -> None:
    job = shop.app.enqueue("idle", lease="6s")  # a heartbeat brings the news, every third of it
    shop.site.until_status(job.id, JobStatus.RUNNING)

    assert job.cancel(reason="enough") is JobStatus.RUNNING
    assert job.wait(timeout="2m") is JobStatus.CANCELLED


def test_many_jobs_go_in_few_requests(shop: Shop) -> None:
    calls = [shop.app.call("patient", {"number": number}) for number in range(120)]

    jobs = shop.app.enqueue_many(calls)
    again = shop.app.enqueue_many(calls)

    assert [job.result(timeout="2m") for job in jobs] == list(range(120))
    assert [job.id for job in again] == [job.id for job in jobs]
    ended = shop.app.enqueue_many(calls)
    assert [job.result(timeout="2m") for job in ended] == list(range(120))


async def _made_without_blocking(app: Tenure) -> int:
    job = await app.aenqueue("patient", {"number": 5})
    return int(await job.aresult(timeout="2m"))


def test_async_methods_work_too(shop: Shop) -> None:
    assert asyncio.run(_made_without_blocking(shop.app)) == 5


def test_an_unknown_job_is_said_to_be_unknown(shop: Shop) -> None:
    job = shop.app.get(UNKNOWN)

    with pytest.raises(UnknownJob):
        job.refresh()
    with pytest.raises(UnknownJob):
        job.cancel()


def test_a_transaction_cannot_span_a_server_and_says_so(shop: Shop) -> None:
    with pytest.raises(InvalidInput, match="omit connection="):
        shop.app.enqueue("patient", {"number": 1}, connection=sqlite3.connect(":memory:"))

    job = shop.app.enqueue("entangled", retry=Retry(max_attempts=1))
    with pytest.raises(JobFailed, match="sqlite: or postgresql: URL"):
        job.result(timeout="2m")


def test_an_operator_administers_from_python(shop: Shop) -> None:
    dead = shop.app.enqueue("unlucky", retry=Retry(max_attempts=1))
    dead.wait(timeout="2m")

    with Tenure(shop.server.address, token=shop.operator) as olga:
        assert olga.queues.pause("unused", create=True).to_dict()["paused"]
        assert "unused" in [queue.name for queue in olga.queues.ls()]
        assert [seen.worker for seen in olga.workers.ls()]
        assert dead.id in [letter.job.id for letter in olga.dead_letters.ls()]
        olga.dead_letters.discard(dead.id, note="known")
        [resolved] = olga.dead_letters.ls(resolved=True, limit=1)
        [listed] = olga.jobs.ls(status="dead_lettered", kind="unlucky", limit=1)

    assert resolved.resolution is not None
    assert resolved.resolution.note == "known"
    assert listed.error is not None
    assert listed.error.type == "RuntimeError"
    with pytest.raises(RequestRefused) as caught:
        shop.app.queues.pause("unused")
    assert caught.value.reason == "out_of_scope"


@spec("E8", "E9")
def test_an_operator_lists_events_from_python_and_by_the_command(shop: Shop) -> None:
    job = shop.app.enqueue("patient", {"number": 3})
    job.wait(timeout="2m")

    with Tenure(shop.server.address, token=shop.operator) as olga:
        found = olga.events(job_id=job.id, oldest_first=True)
        [claimed] = olga.events(correlation_id=job.id, type="job_claimed")
    code, said, _ = shop.tenure("events", "--job", job.id, "--type", "claimed", "--json")

    assert [event.to_dict() for event in found] == [event.to_dict() for event in job.events()]
    assert claimed == found[1]
    assert code == 0
    assert json.loads(said)["events"] == [claimed.to_dict()]
    with pytest.raises(RequestRefused) as caught:
        shop.app.events()
    assert caught.value.reason == "out_of_scope"


def test_a_record_over_http_is_the_servers_document(shop: Shop) -> None:
    job = shop.app.enqueue("patient", {"number": 3})
    job.wait(timeout="2m")

    code, said, _ = shop.tenure("jobs", "show", job.id, "--bodies", "--json")

    record = job.refresh()
    assert (record.payload, record.result) == ({"number": 3}, 3)
    assert code == 0
    assert json.loads(said)["job"] == record.to_dict()


def test_a_lease_outside_the_servers_bounds_is_refused_by_name(shop: Shop) -> None:
    with pytest.raises(InvalidInput, match="lease"):
        shop.app.enqueue("patient", {"number": 1}, lease="1h")


def test_without_a_token_the_error_says_what_to_set(shop: Shop) -> None:
    with Tenure(shop.server.address) as nobody, pytest.raises(RequestRefused) as caught:
        nobody.enqueue("patient", {"number": 1})

    assert caught.value.reason == "unauthenticated"
    assert "TENURE_TOKEN" in str(caught.value)


def test_commands_ask_the_server(shop: Shop) -> None:
    code, said, _ = shop.tenure("enqueue", "patient", '{"number": 7}', "--wait", token=shop.client)
    assert (code, said) == (0, "7\n")

    _, listed, _ = shop.tenure("jobs", "ls", "--json", "-n", "1", token=shop.client)
    [job] = json.loads(listed)
    assert (job["kind"], job["status"]) == ("patient", "succeeded")
    code, shown, _ = shop.tenure("jobs", "show", job["id"], "--bodies", token=shop.client)
    assert code == 0
    assert '{"number": 7}' in shown
    assert shop.tenure("jobs", "cancel", job["id"])[0] == 1
    assert shop.tenure("jobs", "cancel", UNKNOWN)[0] == 1
    assert "worker" in shop.tenure("workers", "ls")[1]


def test_dead_letters_and_queues_are_operated_through_the_server(shop: Shop) -> None:
    _, made, _ = shop.tenure("enqueue", "nobody_serves", "-q", "lonely")
    job_id = made.strip()

    assert shop.tenure("jobs", "dead-letter", job_id)[0] == 0
    [letter] = json.loads(shop.tenure("dlq", "ls", "--json", "-q", "lonely")[1])
    code, redriven, _ = shop.tenure("dlq", "redrive", "--all", "-q", "lonely", "--yes")
    again = shop.tenure("dlq", "discard", job_id)

    assert letter["id"] == job_id
    assert code == 0
    assert again[0] == 1
    assert f"redriven as job {redriven.strip()} by operator:olga" in again[2]
    assert "paused" in shop.tenure("queues", "pause", "lonely")[1]
    code, shown, _ = shop.tenure("jobs", "show", redriven.strip())
    assert "queue lonely is paused" in shown
    assert "at most 3" in shop.tenure("queues", "limit", "lonely", "3")[1]
    assert "open" in shop.tenure("queues", "resume", "lonely")[1]


@pytest.mark.parametrize("words", [["migrate"], ["verify"], ["doctor"], ["tokens", "ls"]])
def test_what_needs_the_store_says_where_to_run_it(shop: Shop, words: list[str]) -> None:
    code, _, said = shop.tenure(*words)

    assert code == 2
    assert "give the sqlite: or postgresql: URL of the store itself" in said


@spec("H22")
def test_a_role_that_may_not_ask_hears_which_may(shop: Shop) -> None:
    code, _, said = shop.tenure("workers", "ls", token=shop.client)

    assert code == 1
    assert (
        "out_of_scope: only operators and viewers may list workers; this token is a client" in said
    )


@spec("FL9")
def test_a_flow_with_jobs_that_the_token_does_not_see_is_not_taken_for_ended(shop: Shop) -> None:
    with shop.app.flow("shared") as flow:
        seen = flow.add(shop.app.call("page", {"text": "hello"}))
        flow.add(shop.app.call("nobody", queue="elsewhere"))
    limited = shop.site.token("viewer", "limited", queues=(QueueName("default"),))
    shop.site.until_status(seen.id, JobStatus.SUCCEEDED)

    code, out, said = shop.tenure("flows", "wait", flow.id, token=limited)

    assert (code, out) == (1, "1 job: 1 succeeded\n")
    assert "not visible to this token: 1 of 2 jobs of the flow; they may not have ended" in said


def test_a_viewer_sees_jobs_without_their_bodies(shop: Shop) -> None:
    job = shop.app.enqueue("patient", {"number": 424242})
    job.wait(timeout="2m")
    viewer = shop.site.token("viewer", "vera")

    code, shown, _ = shop.tenure("jobs", "show", job.id, "--bodies", token=viewer)

    assert code == 0
    assert "succeeded" in shown
    assert "424242" not in shown


@spec("U3", "H46")
def test_observations_come_over_http_without_bodies_for_a_viewer(shop: Shop) -> None:
    job = shop.app.enqueue("patient", {"number": 1})
    job.wait(timeout="2m")
    viewer = shop.site.token("viewer", "vesna")
    late = Observation(
        job_id=job.id,
        type=ObservationType.RESULT_DISCARDED,
        ts=shop.site.store.now(),
        actor=worker_actor("w"),
        lease_id=LeaseId("1-" + "ab" * 16),
        cause="superseded",
        size=6,
        sha256="ab" * 32,
        body=b'"late"',
    )
    shop.site.store.jobs.observe([late])

    [seen] = job.observations()
    with Tenure(shop.server.address, token=viewer) as app:
        [by_viewer] = app.get(job.id).observations()
    _, shown, _ = shop.tenure("jobs", "show", job.id, token=viewer)

    assert (seen.type, seen.cause, seen.size) == ("result_discarded", "superseded", 6)
    assert (seen.body, seen.sha256, seen.lease_id) == ('"late"', "ab" * 32, "1-abababab…")
    assert (by_viewer.body, by_viewer.sha256, by_viewer.size) == (None, None, 6)
    assert "result_discarded  beside the log" in shown


def test_bodies_that_a_viewer_may_not_see_are_absent_and_not_null(shop: Shop) -> None:
    job = shop.app.enqueue("patient", {"number": 6})
    job.wait(timeout="2m")
    viewer = shop.site.token("viewer", "vivian")

    with Tenure(shop.server.address, token=viewer) as app:
        record = app.get(job.id).refresh()
    _, document, _ = shop.tenure("jobs", "wait", job.id, "--json", token=viewer)

    bodies = {"payload", "result", "checkpoint"}
    assert record.payload is msgspec.UNSET
    assert not bodies & record.to_dict().keys()
    assert not bodies & json.loads(document).keys()


def test_a_viewer_is_told_that_a_result_is_hidden(shop: Shop) -> None:
    job = shop.app.enqueue("patient", {"number": 5})
    job.wait(timeout="2m")
    viewer = shop.site.token("viewer", "victor")

    with (
        Tenure(shop.server.address, token=viewer) as app,
        pytest.raises(RequestRefused, match="hidden from a viewer"),
    ):
        app.get(job.id).result(timeout="2m")
    code, shown, said = shop.tenure("jobs", "wait", job.id, token=viewer)

    assert (code, shown) == (0, "")
    assert "a token of the role viewer does not see its result" in said
