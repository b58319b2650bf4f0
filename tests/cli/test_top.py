"""`tenure top` in a terminal: its screen compared, its keys pressed, and what it leaves behind."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tenure.cli.top_feed import MAX_PENDING, Feed, read
from tenure.cli.top_view import Action, Deed
from tenure.conformance.spec import spec
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Heartbeat
from tenure.core.ids import DEFAULT_NAMESPACE, JobId, QueueName, WorkerId, worker_actor
from tenure.core.instants import Duration
from tenure.core.job import Job, Progress
from tenure.core.job_search import JobFilter
from tenure.core.overview import OverviewFilter
from tenure.core.vocabulary import JobStatus
from tenure.core.workers import WorkerProcess
from tenure.errors import InvalidInput, StoreUnavailable
from tenure.ports import JobStore
from tests.cli.harness import WORKER, Run, enqueued, started
from tests.remote.sites import RemoteSite
from tests.support.coordinators import World
from tests.support.terminals import CTRL_BACKSLASH, CTRL_C, Terminal
from tests.support.waiting import until

process = pytest.mark.process


@pytest.fixture
def busy(run: Run, serving: Coordinator) -> dict[str, Any]:
    """A store with a running job, a ready one, and a worker; how the worker names its job."""
    enqueued(run, "mail")
    held = started(serving)
    said = Progress(done=1, total=4, note="page 1")
    serving.execute(Heartbeat(**held, hb_seq=1, progress=said))
    enqueued(run, "scan", "--queue", "slow")
    serving.store.see_worker(
        WorkerProcess(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId("w"),
            actor=WORKER,
            host="here",
            pid=7,
            queues=(QueueName("default"),),
            kinds=(),
            concurrency=2,
            version="1",
            uptime_us=Duration(0),
        )
    )
    return held


@process
@spec("LV6")
def test_the_screen_of_a_fixed_size(busy: dict[str, Any], store_path: Path) -> None:
    job_id = str(busy["job_id"])

    with Terminal("top", directory=store_path.parent, columns=80, rows=24) as terminal:
        terminal.until("slow     open")
        lines = terminal.lines

    assert lines[0].startswith("tenure top  sqlite:///")
    assert lines[1].startswith("enqueued 0.0/s  succeeded 0.0/s  retried 0.0/s")
    assert lines[2].startswith("wait p50 ")
    assert lines[3].startswith("succeeded, last 15m")
    assert lines[4:8] == [
        "",
        "! ready jobs that no live worker takes: 1, kind scan, queue slow",
        "",
        "1 queues (2)",
    ]
    assert lines[8].startswith("QUEUE    STATE  READY  RUNNING  DELAYED  WAITING  OLDEST")
    assert lines[9].split()[:5] == ["default", "open", "0", "1", "0"]
    assert lines[10].split()[:5] == ["slow", "open", "1", "0", "0"]
    assert lines[11:13] == ["", "2 running jobs (1)"]
    assert lines[14].startswith(f"{job_id[:18]}…  mail  ")
    assert "██░░░░░░░░  25% 1/4" in lines[14]
    assert lines[16] == "3 workers (1)"
    assert lines[18].split()[:4] == ["w", "alive", "1", "2"]
    assert (
        lines[23]
        == "Tab pane  Up/Down choose  Enter open  p pause  d drain  c cancel  ? help  q quit"
    )


@process
@spec("LV7")
def test_keys_pause_a_queue_drain_a_worker_open_a_job_and_cancel_it(
    busy: dict[str, Any], serving: Coordinator, store_path: Path
) -> None:
    job_id = JobId(busy["job_id"])

    with Terminal("top", directory=store_path.parent, columns=100, rows=30) as terminal:
        terminal.until("slow     open")
        terminal.type("\x1b[Bp")
        terminal.until("pause queue slow? y/n")
        terminal.type("y")
        terminal.until("slow     paused")
        terminal.type("p")
        terminal.until("resume queue slow? y/n")
        terminal.type("n")
        terminal.until("nothing was changed")

        terminal.type("3d")
        terminal.until("drain worker w? y/n")
        terminal.type("y")
        terminal.until("draining")

        terminal.type("2\r")
        opened = terminal.until("lease until")
        terminal.type("c")
        terminal.until(f"cancel job {job_id}? y/n")
        terminal.type("y")
        terminal.until(f"job {job_id} was asked to stop")
        terminal.until("cancel_requested")
        terminal.type("\x1b")
        terminal.until("1 queues (2)")
        terminal.type("?")
        terminal.until("Pausing, draining and cancelling ask first")
        terminal.type("q")
        code = terminal.ended()

    assert code == 0
    assert "1    +0.000s" in opened
    assert "queued → claimed" in opened
    [slow] = [q for q in serving.store.list_queues(DEFAULT_NAMESPACE) if q.name == "slow"]
    assert slow.paused
    assert [each.draining for each in serving.store.list_workers(DEFAULT_NAMESPACE)] == [True]
    assert serving.store.load_jobs([job_id])[job_id].cancel_requested_at is not None


@process
@spec("LV6")
def test_a_new_size_is_drawn_at_once(busy: dict[str, Any], store_path: Path) -> None:
    with Terminal("top", directory=store_path.parent, columns=80, rows=24) as terminal:
        terminal.until("3 workers (1)")
        terminal.resize(60, 14)
        terminal.until_gone("3 workers (1)")
        small = terminal.until("1 queues (2)").splitlines()
        terminal.resize(120, 40)
        large = terminal.until("3 workers (1)")

    assert len(small) == 14
    assert small[-1].startswith("Tab pane")
    assert "LAST SEEN" in large


@process
@spec("LV7")
@pytest.mark.parametrize(
    "way", ["q", CTRL_C, CTRL_BACKSLASH, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
)
def test_the_terminal_is_restored(
    busy: dict[str, Any], store_path: Path, way: str | signal.Signals
) -> None:
    with Terminal("top", directory=store_path.parent) as terminal:
        terminal.until("1 queues (2)")
        during = terminal.settings_now()
        if isinstance(way, signal.Signals):
            terminal.signal(way)
        else:
            terminal.type(way)
        code = terminal.ended()
        until(lambda: terminal.raw.endswith(b"\x1b[?25h\x1b[?1049l"), "the screen is left")
        after = terminal.settings_now()

    by_signal = signal.SIGQUIT if way == CTRL_BACKSLASH else way
    assert code == (128 + by_signal if isinstance(by_signal, signal.Signals) else 0)
    assert during != terminal.settings
    assert after == terminal.settings


@process
@spec("LV6", "LV3")
def test_a_terminal_that_does_not_know_its_size_counts_as_a_common_one(
    busy: dict[str, Any], store_path: Path
) -> None:
    """So it is over a serial line, and in a container whose terminal nobody has resized."""
    with Terminal("top", directory=store_path.parent, knows_size=False) as terminal:
        top = terminal.until("1 queues (2)").splitlines()
    job_id = str(busy["job_id"])
    with Terminal(
        "jobs", "watch", job_id, directory=store_path.parent, knows_size=False
    ) as terminal:
        terminal.until(f"{job_id[:18]}…  mail  running  █████░░░░░░░░░░░░░░░  25%  1/4")

    assert len(top) == 24


@pytest.mark.parametrize("every", ["nan", "inf", "-inf", "0.4", "61"])
def test_a_pause_that_is_no_time_is_refused(busy: dict[str, Any], run: Run, every: str) -> None:
    refused = run("top", "--once", "--every", every)

    assert refused.exit_code == 2
    assert "--every" in refused.stderr


@spec("LV6", "LV1")
def test_elsewhere_it_is_printed_once(busy: dict[str, Any], run: Run) -> None:
    piped = run("top")
    document = json.loads(run("top", "--json").stdout)

    assert piped.exit_code == 0
    assert "\x1b" not in piped.stdout
    assert str(busy["job_id"]) in piped.stdout
    assert "! ready jobs that no live worker takes: 1, kind scan, queue slow" in piped.stdout
    assert [each["id"] for each in document["running"]] == [busy["job_id"]]
    assert [each["worker"] for each in document["workers"]] == ["w"]
    assert {each["queue"] for each in document["overview"]["queues"]} == {"default", "slow"}


@process
@spec("LV6")
def test_once_on_a_terminal_ends_by_itself(busy: dict[str, Any], store_path: Path) -> None:
    with Terminal("top", "--once", directory=store_path.parent) as terminal:
        code = terminal.ended()
        terminal.until("workers (1)")

    assert code == 0
    assert b"\x1b[?1049h" not in terminal.raw


@spec("LV6")
def test_it_runs_on_postgresql(
    postgres_url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_URL", postgres_url)
    assert run("migrate").exit_code == 0
    enqueued(run, "mail", "--queue", "post")

    shown = run("top")

    assert shown.exit_code == 0
    assert "post   open   1" in shown.stdout


# --- over HTTP -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteSite]:
    """A server over a file, with jobs in three queues."""
    directory: Path = tmp_path_factory.mktemp("top")
    site = RemoteSite(f"sqlite:///{directory / 'tenure.db'}", directory)
    site.serve()
    site.token("operator", "ann")
    yield site
    site.close()


@process
@spec("LV6", "H41")
def test_a_limited_token_sees_its_queues_only_and_a_viewer_changes_nothing(
    site: RemoteSite, tmp_path: Path
) -> None:
    address = site.servers[0].address
    ann = site.token("operator", "bea")
    for queue in ("mine", "also-mine", "theirs"):
        site.ask(address, ann, "enqueue", "mail", "-q", queue)
    limited = site.token("viewer", "vic", queues=(QueueName("mine"), QueueName("also-mine")))
    environment = {"TENURE_URL": address, "TENURE_TOKEN": limited}

    shown = site.ask(address, limited, "top")
    refused = site.ask(address, site.token("client", "cleo"), "top")
    with Terminal("top", directory=tmp_path, environment=environment) as terminal:
        screen = terminal.until("also-mine")
        terminal.type("py")
        said = terminal.until("out_of_scope").splitlines()[-1]

    assert shown.returncode == 0, shown.stderr
    for text in (shown.stdout, screen):
        assert "also-mine" in text
        assert "theirs" not in text
    assert refused.returncode == 1
    assert said.startswith("out_of_scope: only operators may pause a queue; this token")


# --- the thread that reads -----------------------------------------------------------------------


class Narrow:
    """A store as a server shows it to a token of several queues and kinds: a list of jobs has to
    name one of each. [H41]"""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list_jobs(self, wanted: JobFilter) -> list[Job]:
        for field in ("queue", "kind"):
            if getattr(wanted, field) is None:
                raise InvalidInput(field, "name one of your token's")
        found: list[Job] = self._store.list_jobs(wanted)
        return found


@spec("LV6", "H41")
def test_running_jobs_are_listed_for_a_token_of_several_queues_and_kinds() -> None:
    world = World()
    running = [world.running().job_id for _ in range(2)]
    world.enqueue(queue=QueueName("slow"))
    store = cast(JobStore, Narrow(world.store))

    snapshot = read(store, OverviewFilter(namespace=DEFAULT_NAMESPACE))

    assert [job.id for job in snapshot.jobs] == sorted(running, reverse=True)


class Failing:
    """A store that can be made to fail."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        if self.is_away:
            raise StoreUnavailable("it is away")
        return getattr(self._store, name)


@spec("LV6")
def test_what_was_read_last_stays_while_the_store_is_away() -> None:
    world = World()
    world.enqueue()
    store = Failing(world.store)
    world.coordinator.store = store
    wanted = OverviewFilter(namespace=DEFAULT_NAMESPACE)
    feed = Feed(world.coordinator, wanted, every_s=60, wake=lambda: None)
    feed.start()
    until(lambda: feed.snapshot.overview, "it is read")

    store.is_away = True
    feed.refresh()
    until(lambda: feed.snapshot.problem, "it is away")
    feed.do(Action(Deed.PAUSE, "work"))
    said = until(feed.take_said, "the action has failed")
    away = feed.snapshot
    store.is_away = False
    feed.refresh()
    until(lambda: not feed.snapshot.problem, "it is back")
    feed.close()

    assert away.overview is not None
    assert (away.problem, said) == ("it is away", "it is away")


@spec("LV7")
def test_an_action_that_has_to_wait_too_long_is_refused_aloud() -> None:
    world = World()
    wanted = OverviewFilter(namespace=DEFAULT_NAMESPACE)
    feed = Feed(world.coordinator, wanted, every_s=60, wake=lambda: None)
    for number in range(MAX_PENDING):
        feed.do(Action(Deed.PAUSE, f"queue{number}"))

    feed.do(Action(Deed.PAUSE, "late"))
    refused = feed.take_said()
    feed.start()
    done = until(feed.take_said, "the others are done")
    feed.close()

    assert refused == "pause queue late is not done: 10 others wait"
    assert done.startswith("queue queue0 is paused")


@spec("LV7")
def test_what_a_key_asked_for_is_answered_as_the_coordinator_says() -> None:
    world = World()
    done = world.running()
    world.complete(done, actor=worker_actor("w1"))
    live = world.enqueue()
    wanted = OverviewFilter(namespace=DEFAULT_NAMESPACE)
    feed = Feed(world.coordinator, wanted, every_s=60, wake=lambda: None)
    feed.start()

    feed.do(Action(Deed.CANCEL, live.id))
    accepted = until(feed.take_said, "it is cancelled")
    feed.do(Action(Deed.CANCEL, done.job_id))
    refused = until(feed.take_said, "it is refused")
    feed.do(Action(Deed.DRAIN, "nobody"))
    missing = until(feed.take_said, "it is not there")
    feed.close()

    assert accepted == f"job {live.id} is cancelled"
    assert "it is succeeded already" in refused
    assert missing == "worker nobody is not there"
    assert world.store.load_jobs([live.id])[live.id].status is JobStatus.CANCELLED
