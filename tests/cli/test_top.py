"""`tenure top`: its screen, in a terminal and elsewhere, and what a limited token sees of it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import click
import pytest
from msgspec.structs import replace

from tenure.cli.output import display_width
from tenure.cli.top import Snapshot, read, refresh, screen, shares, sparkline
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Heartbeat
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName, WorkerId, worker_actor
from tenure.core.instants import Duration, Instant
from tenure.core.job import Progress
from tenure.core.overview import OverviewFilter, TimeRange
from tenure.core.workers import WorkerProcess, WorkerSeen
from tenure.errors import InvalidInput, StoreUnavailable
from tenure.ports import JobStore
from tenure_conformance.spec import spec
from tests.cli.harness import WORKER, Run, enqueued, started
from tests.remote.sites import RemoteSite
from tests.support.coordinators import World
from tests.support.doubles import Intercepted
from tests.support.terminals import CTRL_C, Terminal

process = pytest.mark.process


@pytest.fixture
def busy(run: Run, serving: Coordinator) -> dict[str, Any]:
    """A store with a running job, a ready one, and a worker; how the worker names its job."""
    enqueued(run, "mail")
    held = started(serving)
    said = Progress(done=1, total=4, note="page 1")
    serving.execute(Heartbeat(**held, hb_seq=1, progress=said))
    enqueued(run, "scan", "--queue", "slow")
    serving.store.workers.see(
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
@spec("LV10")
def test_the_screen_of_a_fixed_size(busy: dict[str, Any], store_path: Path) -> None:
    job_id = str(busy["job_id"])

    with Terminal("top", directory=store_path.parent, columns=80, rows=24) as terminal:
        terminal.until("slow     open")
        lines = terminal.lines

    assert lines[0].startswith("tenure top  sqlite:///")
    assert lines[1].startswith("enqueued 0.0/s  succeeded 0.0/s  retried 0.0/s")
    assert lines[2].startswith("wait p50 ")
    assert lines[3].startswith("succeeded, last 15m")
    assert lines[4:7] == [
        "! ready jobs that no live worker takes: 1, kind scan, queue slow",
        "",
        "queues (2)",
    ]
    assert lines[7].startswith("QUEUE    STATE  READY  RUNNING  DELAYED  WAITING  OLDEST")
    assert lines[8].split()[:5] == ["default", "open", "0", "1", "0"]
    assert lines[9].split()[:5] == ["slow", "open", "1", "0", "0"]
    assert lines[10:12] == ["", "running jobs (1)"]
    assert lines[13].startswith(f"{job_id[:18]}…  mail  ")
    assert "██░░░░░░░░  25% 1/4" in lines[13]
    assert lines[15] == "workers (1)"
    assert lines[17].split()[:4] == ["w", "alive", "1", "2"]


@process
@spec("LV10")
def test_the_next_screen_has_the_new_size_of_the_terminal_and_ctrl_c_ends_it(
    busy: dict[str, Any], run: Run, store_path: Path
) -> None:
    with Terminal("top", "--every", "0.5", directory=store_path.parent) as terminal:
        terminal.until("workers (1)")
        terminal.resize(60, 12)
        small = terminal.until("queues (0 of 2)").splitlines()
        terminal.resize(120, 40)
        terminal.until("LAST SEEN")
        enqueued(run, "scan", "--queue", "slow")
        terminal.until("slow     open   2")
        terminal.type(CTRL_C)
        code = terminal.ended()
        after = terminal.settings_now()

    assert code == 0
    assert len(small) <= 12
    assert after == terminal.settings


@process
@spec("LV10", "LV3")
def test_a_terminal_that_does_not_know_its_size_counts_as_a_common_one(
    busy: dict[str, Any], store_path: Path
) -> None:
    """So it is over a serial line, and in a container whose terminal nobody has resized."""
    with Terminal("top", directory=store_path.parent, knows_size=False) as terminal:
        top = terminal.until("queues (2)").splitlines()
    job_id = str(busy["job_id"])
    with Terminal(
        "jobs", "watch", job_id, directory=store_path.parent, knows_size=False
    ) as terminal:
        terminal.until(f"{job_id[:18]}…  mail  running  █████░░░░░░░░░░░░░░░  25%  1/4")

    assert 17 < len(top) < 24


@pytest.mark.parametrize("every", ["nan", "inf", "-inf", "0.4", "61"])
def test_a_pause_that_is_no_time_is_refused(busy: dict[str, Any], run: Run, every: str) -> None:
    refused = run("top", "--once", "--every", every)

    assert refused.exit_code == 2
    assert "--every" in refused.stderr


@spec("LV10", "LV1")
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
@spec("LV10")
def test_once_on_a_terminal_ends_by_itself(busy: dict[str, Any], store_path: Path) -> None:
    with Terminal("top", "--once", directory=store_path.parent) as terminal:
        code = terminal.ended()
        terminal.until("workers (1)")

    assert code == 0
    assert b"\x1b[H" not in terminal.raw


@spec("LV10")
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
@spec("LV10", "H41")
def test_a_limited_token_sees_its_queues_only(site: RemoteSite, tmp_path: Path) -> None:
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

    assert shown.returncode == 0, shown.stderr
    for text in (shown.stdout, screen):
        assert "also-mine" in text
        assert "theirs" not in text
    assert refused.returncode == 1


# --- what is read and printed, without a terminal ------------------------------------------------


class Narrow(Intercepted):
    """A store as a server shows it to a token of several queues and kinds: a list of jobs has to
    name one of each. [H41]"""

    def __init__(self, store: Any) -> None:
        super().__init__(store, self._check)

    def _check(self, place: str, method: Callable[..., Any], *given: Any) -> Any:
        for field in ("queue", "kind"):
            if place == "views.jobs" and getattr(given[0], field) is None:
                raise InvalidInput(field, "name one of your token's")
        return method(*given)


@spec("LV10", "H41")
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


@spec("LV10")
def test_what_was_read_last_stays_while_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World()
    world.enqueue(queue=QueueName("slow"))
    store = Failing(world.store)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        store.is_away = len(pauses) == 1
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("tenure.cli.top.time.sleep", pause)
    monkeypatch.setattr("tenure.cli.top.terminal_size", lambda _: (80, 24))
    refresh(cast(JobStore, store), WANTED, title="top", every_s=2.0)

    first, away, back = ("top " + each for each in capsys.readouterr().out.split("top ")[1:])
    assert all("slow   open   1" in each for each in (first, away, back))
    assert "! it is away" in away
    assert "it is away" not in first + back


HOSTILE = "\x1b[2J\x1b]0;x\x07\u202e\u2066\r\n\x00"
WANTED = OverviewFilter(namespace=DEFAULT_NAMESPACE, range=TimeRange.QUARTER_HOUR)


def worker(name: str, now: Instant, **fields: Any) -> WorkerSeen:
    given: dict[str, Any] = {
        "namespace": DEFAULT_NAMESPACE,
        "worker": WorkerId(name),
        "actor": worker_actor("w"),
        "host": "here",
        "pid": 7,
        "queues": (QueueName("work"),),
        "kinds": (),
        "schedules": (),
        "concurrency": 4,
        "version": "1",
        "started_at": now,
        "seen_at": now,
    }
    return WorkerSeen(**(given | fields))


@pytest.fixture
def snapshot() -> Snapshot:
    """Two queues, three running jobs, two workers."""
    world = World()
    ids = [world.running().job_id for _ in range(3)]
    jobs = [world.store.jobs.read([each])[each] for each in ids]
    world.enqueue(queue=QueueName("slow"))
    overview = world.store.views.overview(WANTED)
    workers = [worker("w1", overview.now), worker("w2", overview.now)]
    return Snapshot(overview=overview, jobs=jobs, workers=workers)


def drawn(snapshot: Snapshot | None) -> str:
    lines = screen(snapshot, title="top", columns=100, rows=40)
    return "\n".join(click.unstyle(line).rstrip() for line in lines)


@spec("LV10")
@pytest.mark.parametrize("columns", [1, 20, 60, 100, 300])
@pytest.mark.parametrize("rows", [1, 2, 5, 12, 24, 60])
def test_a_screen_of_any_size_is_never_longer_or_wider(
    snapshot: Snapshot, columns: int, rows: int
) -> None:
    for given in (snapshot, None):
        lines = screen(given, title="top " * 9, columns=columns, rows=rows, problem="x" * 500)

        assert 1 <= len(lines) <= rows
        assert all(display_width(click.unstyle(line)) <= columns for line in lines)


@spec("LV2")
def test_nothing_hostile_reaches_the_screen(snapshot: Snapshot) -> None:
    job = replace(
        snapshot.jobs[0],
        kind=Kind(HOSTILE),
        queue=QueueName(HOSTILE),
        owner=WorkerId(HOSTILE),
        progress=Progress(done=1, total=2, note=HOSTILE),
    )
    now = snapshot.overview.now
    silent = worker(HOSTILE, now, host=HOSTILE, queues=(QueueName(HOSTILE),))
    evil = replace(snapshot, jobs=[job], workers=[silent])

    for line in screen(evil, title=HOSTILE, columns=200, rows=60, problem=HOSTILE):
        assert click.unstyle(line).isprintable(), line


@pytest.mark.parametrize(
    ("room", "wanted", "given"),
    [
        (10, [2, 3, 1], [2, 3, 1]),
        (5, [9, 1, 9], [2, 1, 2]),
        (0, [1, 1], [0, 0]),
        (-4, [1], [0]),
        (7, [0, 9, 0], [0, 7, 0]),
    ],
)
def test_tables_share_the_room(room: int, wanted: list[int], given: list[int]) -> None:
    assert shares(room, wanted) == given


def test_a_plot_has_a_bar_for_every_bucket() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▁▄█"
    assert sparkline([0, 0]) == "  "
    assert sparkline([]) == ""
    assert sparkline([5]) == "▇"


@spec("OB50", "LV10")
def test_kinds_have_their_waits_and_runs() -> None:
    world = World()
    world.enqueue()
    world.clock.advance(4)
    world.claim()
    snapshot = Snapshot(overview=world.store.views.overview(WANTED))

    shown = drawn(snapshot)

    assert "kinds, last 15m (1)" in shown
    [kind] = snapshot.overview.kinds
    assert f"{kind.kind}  0      1        4.1 s     4.1 s     -        -" in shown


def test_rates_are_those_of_the_last_minute_that_is_over() -> None:
    world = World()
    for _ in range(120):
        world.enqueue()
    world.clock.advance(20)
    shown = drawn(Snapshot(overview=world.store.views.overview(WANTED)))

    assert "enqueued 2.0/s" in shown


@spec("OB28")
def test_a_busy_range_says_from_when_on_it_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.stores.sql.overview.MAX_TALLIED", 50)
    world = World()
    world.clock.advance(600)
    for _ in range(101):
        world.enqueue()
        world.clock.advance(0.125)
    wanted = OverviewFilter(namespace=DEFAULT_NAMESPACE, range=TimeRange.WEEK)

    shown = drawn(Snapshot(overview=world.store.views.overview(wanted)))

    assert "counted from 6 s ago on" in shown
    assert "enqueued 7.8/s" in shown  # 50 in the 6.375 s since the newest that is not counted
