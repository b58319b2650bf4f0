"""The way to the coordinator: opened once, per process, and patient within limits."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tenure import (
    InvalidInput,
    Job,
    OutcomeUnknown,
    StoreUnavailable,
    Tenure,
    UnknownStoreUrl,
)
from tenure.client.app import Application
from tenure.client.channel import IDS_PER_ENTROPY, Channel, Link, close_at_exit
from tenure.client.shells import pause
from tenure.core.commands import Command
from tenure.core.ids import DEFAULT_NAMESPACE, JobId
from tenure.core.job import Job as StoredJob
from tenure.core.verdicts import Answer
from tenure.ports import JobStore
from tenure_conformance.spec import spec
from tests.client.scene import Scene
from tests.support.doubles import Intercepted


class Flaky:
    """The scene's coordinator, silent for a number of calls. `writes` says whether these calls
    were carried out all the same."""

    def __init__(self, scene: Scene, failures: int, *, writes: bool = False) -> None:
        self._coordinator = scene.world.coordinator
        self._failures = failures
        self._writes = writes
        self.sent: list[Sequence[Command]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._coordinator, name)

    def submit_many(self, commands: Sequence[Command]) -> "Future[list[Answer]]":
        self.sent.append(commands)
        if len(self.sent) > self._failures:
            return self._coordinator.submit_many(commands)
        if self._writes:
            self._coordinator.submit_many(commands).result()
        silence: Future[list[Answer]] = Future()
        silence.set_exception(OutcomeUnknown("the connection was lost"))
        return silence

    def execute_many(self, commands: Sequence[Command]) -> list[Answer]:
        return self.submit_many(commands).result()


def flaky_app(scene: Scene, flaky: "Flaky | Away") -> Application:
    def connect() -> Link:
        link = scene.connect()
        link.coordination = flaky  # type: ignore[assignment]  # it forwards what it does not have
        return link

    return Application(connect, namespace="default", name="tests")


def test_a_request_without_an_answer_is_sent_again_under_the_same_id(scene: Scene) -> None:
    flaky = Flaky(scene, failures=2, writes=True)
    app = flaky_app(scene, flaky)

    job = app.enqueue("work", {})

    assert len(flaky.sent) == 3
    assert flaky.sent[0] == flaky.sent[2]
    first, second = scene.pauses
    assert 0.01 <= first <= 0.1
    assert 0.02 <= second <= 0.2
    assert len(job.events()) == 1
    assert len(list(scene.world.store.audit.records(page_size=9))) == 1


@spec("H54")
def test_patience_ends_after_a_minute_however_fast_each_try_fails(scene: Scene) -> None:
    flaky = Flaky(scene, failures=999)

    with pytest.raises(StoreUnavailable, match="connection was lost"):
        flaky_app(scene, flaky).enqueue("work", {})

    assert 50 <= sum(scene.pauses) <= 60


def test_async_requests_are_as_patient(scene: Scene) -> None:
    flaky = Flaky(scene, failures=1, writes=True)

    async def main() -> None:
        job = await flaky_app(scene, flaky).aenqueue("work", {})
        assert len(await job.aevents()) == 1

    asyncio.run(main())
    assert len(scene.pauses) == 1


class Away:
    """The scene's coordinator, whose store cannot be read for a number of calls."""

    def __init__(self, scene: Scene, failures: int) -> None:
        self._coordinator = scene.world.coordinator
        self.store = AwayStore(self._coordinator.store, failures)

    def __getattr__(self, name: str) -> object:
        return getattr(self._coordinator, name)

    def read_jobs(self, ids: Sequence[JobId]) -> dict[JobId, StoredJob]:
        found: dict[JobId, StoredJob] = self.store.jobs.read(ids)
        return found


class AwayStore(Intercepted):
    """A store that fails a number of reads."""

    def __init__(self, store: JobStore, failures: int) -> None:
        super().__init__(store, self._read)
        self.failures = failures

    def _read(self, place: str, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if "." in place:
            self.failures -= 1
            if self.failures >= 0:
                raise StoreUnavailable("the server restarts")
        return method(*given, **named)


@pytest.mark.parametrize(
    "ask",
    [
        lambda app, _: app.queues.als(),
        lambda app, _: app.schedules.apause("nightly"),
        lambda app, job_id: app.dead_letters.adiscard(job_id),
        lambda app, job_id: app.flows.acancel(job_id),
    ],
)
def test_an_async_request_that_is_cancelled_is_not_sent_again(
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[Application, str], Coroutine[Any, Any, object]],
) -> None:
    away, job = Away(scene, failures=10**6), scene.app().enqueue("work", {})
    monkeypatch.setattr(scene, "pause", pause)  # real: the loop's time ends the wait
    app = flaky_app(scene, away)

    async def main() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(app, job.id), 0.5)
        return time.monotonic()

    given_up_s = asyncio.run(main())

    assert time.monotonic() - given_up_s < 1  # the loop waits for its threads
    assert 0 < 10**6 - away.store.failures < 20


def test_what_was_cancelled_between_a_read_and_a_write_does_not_write(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, job = Away(scene, failures=0), scene.app().enqueue("work", {}).id
    reads, goes_on = threading.Event(), threading.Event()

    def read(ids: Sequence[JobId]) -> dict[JobId, StoredJob]:
        reads.set()
        goes_on.wait(10)
        return scene.world.coordinator.read_jobs(ids)

    written: list[object] = []
    monkeypatch.setattr(away, "read_jobs", read)
    monkeypatch.setattr(away, "execute_many", written.append, raising=False)

    async def main() -> None:
        asked = asyncio.create_task(flaky_app(scene, away).dead_letters.aredrive(job))
        await asyncio.to_thread(reads.wait, 10)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        goes_on.set()

    asyncio.run(main())

    assert written == []


@pytest.mark.parametrize(
    "look",
    [
        lambda job: job.status,
        lambda job: job.events(),
        lambda job: job.artifacts(),
        lambda job: job.artifact("x"),
        lambda job: job.wait(),
    ],
)
def test_looking_at_a_job_outlives_a_short_outage(
    scene: Scene, look: Callable[[Job[Any]], object]
) -> None:
    job = flaky_app(scene, Away(scene, failures=3)).enqueue("work", {})
    job.cancel()
    lost = flaky_app(scene, Away(scene, failures=99)).get(job.id)

    look(flaky_app(scene, Away(scene, failures=3)).get(job.id))

    assert len(scene.pauses) == 3
    with pytest.raises(StoreUnavailable):
        look(lost)


def test_threads_that_start_together_open_one_link(scene: Scene, app: Application) -> None:
    together = threading.Barrier(8)

    def work() -> str:
        together.wait()
        return app.enqueue("work", {}).id

    with ThreadPoolExecutor(8) as pool:
        ids = {future.result() for future in [pool.submit(work) for _ in range(8)]}

    assert len(ids) == 8
    assert scene.opened == 1


def test_closing_lets_go_and_the_next_use_opens_again(scene: Scene) -> None:
    app = scene.app()
    app.close()
    with app:
        app.enqueue("work", {})
    app.close()

    assert (scene.opened, scene.closed) == (1, 1)
    app.enqueue("work", {})
    assert scene.opened == 2


def test_a_link_that_cannot_be_opened_is_tried_again_next_time(scene: Scene) -> None:
    outcomes: list[Exception | Link] = [StoreUnavailable("down"), scene.connect()]

    def connect() -> Link:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    app = Application(connect, namespace="default", name="tests")
    with pytest.raises(StoreUnavailable):
        app.enqueue("work", {})

    assert app.enqueue("work", {}).status == "queued"


@pytest.mark.process
def test_a_forked_child_opens_a_link_of_its_own(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path}/jobs.db")
    parent_job = app.enqueue("work", {"who": "parent"})
    reader, writer = os.pipe()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        pid = os.fork()
    if pid == 0:
        try:
            child_job = app.enqueue("work", {"who": "child"})
            assert app.get(parent_job.id).status == "queued"
            os.write(writer, child_job.id.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)

    assert app.get(told).status == "queued"
    assert app.enqueue("work", {"who": "parent again"}).status == "queued"
    app.close()


def test_the_environment_is_read_when_the_link_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Tenure()
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{tmp_path}/env.db")

    with app:
        app.enqueue("work", {})

    assert (tmp_path / "env.db").exists()


def test_a_wrong_url_is_an_error_at_the_first_use_not_before() -> None:
    app = Tenure("redis://nowhere")

    with pytest.raises(UnknownStoreUrl):
        app.enqueue("work", {})


def test_names_are_checked_at_once() -> None:
    with pytest.raises(InvalidInput, match="namespace"):
        Tenure(namespace="no spaces")
    with pytest.raises(InvalidInput, match="name"):
        Tenure(name="")


def test_a_sqlite_application_keeps_its_jobs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Tenure(url) as app:

        @app.job
        def add(a: int, b: int) -> int:
            return a + b

        job = add.using(key="sum").enqueue(1, b=2)
        again = add.using(key="sum").enqueue(5, b=5)

    with Tenure(url) as later:
        found = later.get(job.id)
        assert found.kind == "add"
        assert found.refresh().payload == {"a": 1, "b": 2}
    assert again == job
    assert again.deduplicated


def test_a_memory_application_is_one_store_of_its_own() -> None:
    with Tenure("memory://") as one, Tenure("memory://") as other:
        job = one.enqueue("work", {})

        assert one.get(job.id).status == "queued"
        assert other.coordination.store.jobs.read([job.id]) == {}


def test_ids_take_their_random_bytes_from_one_reading_but_never_those_of_the_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings: list[int] = []

    def entropy(size: int) -> bytes:
        readings.append(size)
        return os.urandom(size)

    channel = Channel(
        lambda: pytest.fail("no link is needed"),
        namespace=DEFAULT_NAMESPACE,
        name="c",
        entropy=entropy,
    )
    ids = {channel.new_job_id() for _ in range(IDS_PER_ENTROPY)}
    assert len(readings) == 1
    assert len(ids) == IDS_PER_ENTROPY

    channel.new_job_id()
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as after a fork
    channel.new_job_id()

    assert len(readings) == 3


@pytest.mark.process
def test_a_link_that_nobody_closed_is_closed_before_the_process_ends_its_threads() -> None:
    """At the end of a process Python stops daemon threads wherever they are, also while they hold
    a lock. A store that is closed after that can wait for such a lock for ever."""
    code = """
import sys, threading
from types import SimpleNamespace
from tenure.client.channel import Channel, Link

lock, is_held = threading.Lock(), threading.Event()

def hold():
    with lock:
        is_held.set()
        stop.wait()

def close():
    stop.set()
    with lock:
        print("closed, finalizing:", sys.is_finalizing())

stop = threading.Event()
threading.Thread(target=hold, daemon=True).start()
is_held.wait()
coordination = SimpleNamespace(store=SimpleNamespace(now=lambda: 0))
channel = Channel(lambda: Link(coordination=coordination, close=close), namespace="n", name="app")
channel.link()
"""

    ended = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )

    assert ended.stdout == "closed, finalizing: False\n"


def test_a_channel_that_is_closed_at_exit_still_opens_a_link_for_exit_handlers(
    scene: Scene,
) -> None:
    channel = Channel(scene.connect, namespace=DEFAULT_NAMESPACE, name="app")
    channel.link()

    close_at_exit(weakref.ref(channel))
    channel.link()

    assert (scene.opened, scene.closed) == (2, 1)


def test_a_channel_that_nobody_refers_to_is_not_kept_for_the_exit(scene: Scene) -> None:
    channel = Channel(scene.connect, namespace=DEFAULT_NAMESPACE, name="app")
    channel.link()
    seen = weakref.ref(channel)

    del channel
    gc.collect()

    assert seen() is None
