"""The screens and keys of `tenure top`, without a terminal."""

from typing import Any

import click
import pytest
from msgspec.structs import replace

from tenure.cli.full_screen import DOWN, END, ENTER, ESCAPE, HOME, PAGE_DOWN, TAB, UP
from tenure.cli.output import display_width
from tenure.cli.top_view import (
    TOO_SMALL,
    Action,
    Deed,
    OpenJob,
    Pane,
    Pressed,
    Snapshot,
    View,
    pressed,
    screen,
    shares,
    sparkline,
)
from tenure.conformance.spec import spec
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName, WorkerId, worker_actor
from tenure.core.instants import Instant
from tenure.core.job import Job, JobError, Progress
from tenure.core.overview import OverviewFilter, TimeRange
from tenure.core.vocabulary import ErrorClass
from tenure.core.workers import WorkerSeen
from tests.support.coordinators import World

HOSTILE = "\x1b[2J\x1b]0;x\x07\u202e\u2066\r\n\x00"


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
    jobs = [world.store.load_jobs([each])[each] for each in ids]
    world.enqueue(queue=QueueName("slow"))
    wanted = OverviewFilter(namespace=DEFAULT_NAMESPACE, range=TimeRange.QUARTER_HOUR)
    overview = world.store.overview(wanted)
    workers = [worker("w1", overview.now), worker("w2", overview.now)]
    return Snapshot(overview=overview, jobs=jobs, workers=workers)


def drawn(
    snapshot: Snapshot, view: View | None = None, *, columns: int = 100, rows: int = 40
) -> str:
    lines = screen(snapshot, view or View(), title="top", columns=columns, rows=rows)
    return "\n".join(click.unstyle(line).rstrip() for line in lines)


def after(snapshot: Snapshot, *keys: str, columns: int = 100, rows: int = 40) -> Pressed:
    """What a row of keys leads to."""
    result = Pressed(view=View())
    for key in keys:
        result = pressed(result.view, key, snapshot, columns=columns, rows=rows)
    return result


@spec("LV6")
def test_the_screen_has_queues_jobs_workers_and_what_needs_attention(snapshot: Snapshot) -> None:
    shown = drawn(snapshot)

    assert "! ready jobs that no live worker takes: 1, kind demo, queue slow" in shown
    assert "1 queues (2)\nQUEUE  STATE  READY  RUNNING" in shown
    assert "work   open   0      3" in shown
    assert "slow   open   1      0" in shown
    assert "2 running jobs (3)" in shown
    assert shown.count("demo  work   running") == 3
    assert "3 workers (2)" in shown
    assert "w1      alive  3     4      work" in shown
    assert shown.splitlines()[-1].startswith("Tab pane")


@spec("LV6")
@pytest.mark.parametrize("columns", [1, 20, 60, 100, 300])
@pytest.mark.parametrize("rows", [1, 2, 5, 12, 24, 60])
@pytest.mark.parametrize("keys", [(), ("?",), (TAB, ENTER), (TAB, "c")])
def test_a_screen_of_any_size_is_full_and_never_wider(
    snapshot: Snapshot, columns: int, rows: int, keys: tuple[str, ...]
) -> None:
    view = after(snapshot, *keys).view
    opened = OpenJob(
        now=snapshot.jobs[0].enqueued_at, job=snapshot.jobs[0], events=(), observations=()
    )

    for given in (
        snapshot,
        Snapshot(),
        Snapshot(problem="x" * 500),
        replace(snapshot, opened=opened),
    ):
        lines = screen(given, view, title="tenure top " * 9, columns=columns, rows=rows)

        assert len(lines) == rows
        assert all(display_width(click.unstyle(line)) <= columns for line in lines)


@spec("LV2")
def test_nothing_hostile_reaches_the_screen(snapshot: Snapshot) -> None:
    job = _hostile(snapshot.jobs[0])
    assert snapshot.overview is not None
    evil = replace(
        snapshot,
        jobs=[job],
        workers=[
            worker(HOSTILE, snapshot.overview.now, host=HOSTILE, queues=(QueueName(HOSTILE),))
        ],
        opened=OpenJob(now=snapshot.overview.now, job=job, events=(), observations=()),
        problem=HOSTILE,
    )
    views = [
        View(),
        View(opened=job.id),
        View(message=HOSTILE),
        View(asking=Action(Deed.DRAIN, HOSTILE)),
        View(pane=Pane.WORKERS),
    ]

    for view in views:
        for line in screen(evil, view, title=HOSTILE, columns=200, rows=60):
            assert click.unstyle(line).isprintable(), line


def _hostile(job: Job) -> Job:
    error = JobError(error_class=ErrorClass.TRANSIENT, message=HOSTILE, traceback=HOSTILE)
    return replace(
        job,
        kind=Kind(HOSTILE),
        queue=QueueName(HOSTILE),
        owner=WorkerId(HOSTILE),
        progress=Progress(done=1, total=2, note=HOSTILE),
        last_error=error,
        cancel_reason=HOSTILE,
    )


@spec("LV7")
def test_a_queue_is_paused_and_resumed_after_a_question(snapshot: Snapshot) -> None:
    asked = after(snapshot, "p")
    done = after(snapshot, "p", "y")
    refused = after(snapshot, "p", "n")

    assert "pause queue slow? y/n" in drawn(snapshot, asked.view)
    assert asked.action is None
    assert done.action == Action(Deed.PAUSE, "slow")
    assert refused.action is None
    assert refused.view.message == "nothing was changed"
    assert snapshot.overview is not None
    queues = tuple(replace(each, paused=True) for each in snapshot.overview.queues)
    paused = replace(snapshot, overview=replace(snapshot.overview, queues=queues))
    assert after(paused, "p", "y").action == Action(Deed.RESUME, "slow")


@spec("LV7")
@pytest.mark.parametrize(
    ("columns", "rows", "shown"),
    [
        (80, 24, ["pause queue slow? y/n"]),
        (10, 3, ["pause queu", "e slow? y/", "n"]),
        (10, 2, None),
        (5, 3, None),
        (21, 1, ["pause queue slow? y/n"]),
    ],
)
def test_only_a_question_that_can_be_read_is_answered(
    snapshot: Snapshot, columns: int, rows: int, shown: list[str] | None
) -> None:
    asked = after(snapshot, "p")
    seen = drawn(snapshot, asked.view, columns=columns, rows=rows).splitlines()
    done = after(snapshot, "p", "y", columns=columns, rows=rows)

    if shown is None:
        assert seen[-1].startswith("too ")
        assert (done.action, done.view.message) == (None, TOO_SMALL)
    else:
        assert seen[-len(shown) :] == shown
        assert done.action == Action(Deed.PAUSE, "slow")


@spec("LV7")
def test_a_worker_is_drained_and_a_job_cancelled_after_a_question(snapshot: Snapshot) -> None:
    jobs = [job.id for job in snapshot.jobs]

    assert after(snapshot, "3", DOWN, "d", "y").action == Action(Deed.DRAIN, "w2")
    assert after(snapshot, TAB, END, "c", "y").action == Action(Deed.CANCEL, jobs[2])
    assert after(snapshot, "2", ENTER, "c", "y").action == Action(Deed.CANCEL, jobs[0])
    assert after(snapshot, "2", "c", ESCAPE).action is None


@spec("LV7")
def test_a_key_for_another_pane_says_what_to_choose_first(snapshot: Snapshot) -> None:
    assert after(snapshot, "c").view.message == "choose one of the running jobs first (Tab)"
    assert after(Snapshot(), "p").view.message == "there are no queues"
    assert after(snapshot, "2", "p").view.asking is None


@spec("LV7")
def test_keys_choose_open_and_leave(snapshot: Snapshot) -> None:
    jobs = [job.id for job in snapshot.jobs]

    opened = after(snapshot, "2", DOWN, ENTER)
    assert (opened.view.opened, opened.refreshes) == (jobs[1], True)
    assert after(snapshot, "2", DOWN, UP, UP, ENTER).view.opened == jobs[0]
    assert after(snapshot, "2", PAGE_DOWN, ENTER).view.opened == jobs[2]
    assert after(snapshot, "2", END, HOME, ENTER).view.opened == jobs[0]
    assert after(snapshot, "2", ENTER, ESCAPE).view.opened is None
    assert after(snapshot, ENTER).view.opened is None
    assert after(snapshot, "?").view.is_help
    assert not after(snapshot, "?", "x").view.is_help
    assert after(snapshot, "r").refreshes
    assert after(snapshot, "q").quits
    assert not after(snapshot, "p", "q").quits  # q answers the question


def test_the_chosen_line_stays_chosen_when_others_come_and_go(snapshot: Snapshot) -> None:
    view = after(snapshot, "2", DOWN).view
    chosen = snapshot.jobs[1].id
    fewer = replace(snapshot, jobs=[snapshot.jobs[1], snapshot.jobs[2]])
    without = replace(snapshot, jobs=[snapshot.jobs[2]])

    assert pressed(view, ENTER, fewer, columns=80, rows=24).view.opened == chosen
    assert pressed(view, ENTER, without, columns=80, rows=24).view.opened == snapshot.jobs[2].id


def test_a_long_table_shows_the_chosen_line(snapshot: Snapshot) -> None:
    many = replace(snapshot, jobs=[*snapshot.jobs, *(_numbered(snapshot, n) for n in range(50))])

    shown = drawn(many, after(many, "2", END).view, rows=30)

    assert "of 53)" in shown
    assert "kind-49" in shown
    assert "kind-0 " not in shown


def _numbered(snapshot: Snapshot, number: int) -> Job:
    job_id = f"01890000-0000-7000-8000-{number:012}"
    return replace(snapshot.jobs[0], id=job_id, kind=Kind(f"kind-{number}"))


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


def test_rates_are_those_of_the_last_minute_that_is_over() -> None:
    world = World()
    for _ in range(120):
        world.enqueue()
    world.clock.advance(20)
    wanted = OverviewFilter(namespace=DEFAULT_NAMESPACE, range=TimeRange.QUARTER_HOUR)

    shown = drawn(Snapshot(overview=world.store.overview(wanted)))

    assert "enqueued 2.0/s" in shown


@spec("OB28")
def test_a_busy_range_says_from_when_on_it_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.stores.memory.overview.MAX_TALLIED", 50)
    world = World()
    world.clock.advance(600)
    for _ in range(101):
        world.enqueue()
        world.clock.advance(0.125)
    wanted = OverviewFilter(namespace=DEFAULT_NAMESPACE, range=TimeRange.WEEK)

    shown = drawn(Snapshot(overview=world.store.overview(wanted)))

    assert "counted from 6 s ago on" in shown
    assert "enqueued 7.8/s" in shown  # 50 in the 6.375 s since the newest that is not counted
