"""What `tenure top` shows, and what its keys mean. Pure: from values to lines, from keys to values.

Every text that comes from a job, a worker or a queue is escaped before it is placed. A line may
contain styles of ours, never more columns than the screen has.
"""

from collections.abc import Sequence
from enum import StrEnum
from itertools import accumulate

import click
import msgspec

from tenure.cli.full_screen import (
    BACKTAB,
    DOWN,
    END,
    ENTER,
    ESCAPE,
    HOME,
    PAGE_DOWN,
    PAGE_UP,
    TAB,
    UP,
)
from tenure.cli.job_view import TIMELINE, job_facts, timeline_rows
from tenure.cli.live_lines import bar
from tenure.cli.output import (
    GAP,
    SHORTEST_ID,
    ago,
    display_width,
    in_words,
    printable,
    shortened,
    table_lines,
)
from tenure.core.events import Event
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant
from tenure.core.job import Job
from tenure.core.observations import Observation
from tenure.core.overview import Attention, Matter, OutcomeBucket, Overview, QueueOverview
from tenure.core.workers import WorkerSeen

RATE_BUCKETS = 4
"""A rate is that of so many of the last buckets that are over: a minute of the shortest range."""

MAX_ATTENTION = 4
PAGE_LINES = 10
FEW_ROWS = 3
"""If there is no room for so many rows of each table, only the chosen one is shown."""
TOO_SMALL = "too small: enlarge the terminal, then ask again"
_STEPS = "▁▂▃▄▅▆▇█"
_MATTERS = {
    Matter.UNCLAIMED: "ready jobs that no live worker takes",
    Matter.SUSPECT: "running jobs whose worker is silent",
    Matter.STALLED: "stalled jobs that wait for `tenure jobs requeue`",
    Matter.DEAD_LETTERS: "dead letters without a resolution",
    Matter.SCHEDULE_FAILED: "schedules whose last job did not succeed",
    Matter.PAUSED: "paused queue, jobs in it",
}
HELP = (
    "Tab, 1, 2, 3   choose queues, running jobs or workers",
    "Up, Down       choose a line (also k and j)",
    "Enter          open the job: its life, its events and its error",
    "p              pause the queue, or resume it",
    "d              drain the worker: it finishes its jobs and stops",
    "c              cancel the job",
    "r              refresh now",
    "?              this help",
    "q              quit",
    "",
    "Pausing, draining and cancelling ask first: y does it, any other key does not.",
    "A number of jobs that has reached the limit of counting means that many or more.",
)


class Pane(StrEnum):
    """What can be chosen from."""

    QUEUES = "queues"
    JOBS = "running jobs"
    WORKERS = "workers"


class Deed(StrEnum):
    """What a key can do to something."""

    PAUSE = "pause queue"
    RESUME = "resume queue"
    DRAIN = "drain worker"
    CANCEL = "cancel job"


class Action(msgspec.Struct, frozen=True):
    """Something to do, and to what."""

    deed: Deed
    target: str

    @property
    def words(self) -> str:
        """The action for people."""
        return f"{self.deed} {self.target}"


class OpenJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its history, read at `now`."""

    now: Instant
    job: Job
    events: Sequence[Event]
    observations: Sequence[Observation]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What was read last; `problem` says why there is nothing newer."""

    overview: Overview | None = None
    jobs: Sequence[Job] = ()
    workers: Sequence[WorkerSeen] = ()
    opened: OpenJob | None = None
    problem: str | None = None


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What the user looks at."""

    pane: Pane = Pane.QUEUES
    chosen: dict[Pane, str] = {}
    opened: str | None = None
    scrolled: int = 0
    is_help: bool = False
    asking: Action | None = None
    message: str = ""


class Pressed(msgspec.Struct, frozen=True, kw_only=True):
    """What a key leads to."""

    view: View
    action: Action | None = None
    quits: bool = False
    refreshes: bool = False


# --- Keys ----------------------------------------------------------------------------------------


def pressed(view: View, key: str, snapshot: Snapshot, *, columns: int, rows: int) -> Pressed:
    """What the user sees and what happens after a key, on a screen of this size."""
    if view.asking is not None:
        return _answered(view, view.asking, key, is_readable=bool(_question(view, columns, rows)))
    view = _with(view, message="")
    if key == "q":
        return Pressed(view=view, quits=True)
    if view.is_help:
        return Pressed(view=_with(view, is_help=False))
    if key == "?":
        return Pressed(view=_with(view, is_help=True))
    if key == "r":
        return Pressed(view=view, refreshes=True)
    if view.opened is not None:
        return _pressed_in_job(view, key)
    return _pressed_in_list(view, key, snapshot)


def _answered(view: View, asked: Action, key: str, *, is_readable: bool) -> Pressed:
    """Only y to a question that can be read does something. [LV7]"""
    is_meant = key in ("y", "Y") and is_readable
    message = "" if is_meant else "nothing was changed" if is_readable else TOO_SMALL
    done = asked if is_meant else None
    return Pressed(view=_with(view, asking=None, message=message), action=done)


def _pressed_in_job(view: View, key: str) -> Pressed:
    assert view.opened is not None
    moves = {UP: -1, "k": -1, DOWN: 1, "j": 1, PAGE_UP: -PAGE_LINES, PAGE_DOWN: PAGE_LINES}
    if key in moves:
        return Pressed(view=_with(view, scrolled=max(0, view.scrolled + moves[key])))
    if key == HOME:
        return Pressed(view=_with(view, scrolled=0))
    if key in (ESCAPE, ENTER):
        return Pressed(view=_with(view, opened=None, scrolled=0), refreshes=True)
    if key == "c":
        return Pressed(view=_with(view, asking=Action(Deed.CANCEL, view.opened)))
    return Pressed(view=view)


def _pressed_in_list(view: View, key: str, snapshot: Snapshot) -> Pressed:
    panes = list(Pane)
    if key in (TAB, BACKTAB, "1", "2", "3"):
        step = {TAB: 1, BACKTAB: -1}.get(key)
        at = int(key) - 1 if step is None else (panes.index(view.pane) + step) % len(panes)
        return Pressed(view=_with(view, pane=panes[at]))
    names = names_of(view.pane, snapshot)
    at = _place(view, names)
    moves = {UP: at - 1, "k": at - 1, DOWN: at + 1, "j": at + 1, HOME: 0, END: len(names) - 1}
    moves |= {PAGE_UP: at - PAGE_LINES, PAGE_DOWN: at + PAGE_LINES}
    if key in moves and names:
        name = names[min(max(0, moves[key]), len(names) - 1)]
        return Pressed(view=_with(view, chosen={**view.chosen, view.pane: name}))
    if key == ENTER and view.pane is Pane.JOBS and names:
        return Pressed(view=_with(view, opened=names[at], scrolled=0), refreshes=True)
    if key in _DEEDS:
        return _asked(view, key, snapshot)
    return Pressed(view=view)


_DEEDS = {"p": Pane.QUEUES, "d": Pane.WORKERS, "c": Pane.JOBS}


def _asked(view: View, key: str, snapshot: Snapshot) -> Pressed:
    """Ask whether what a key does to the chosen line is meant."""
    pane = _DEEDS[key]
    names = names_of(pane, snapshot)
    if view.pane is not pane or not names:
        words = f"choose one of the {pane} first (Tab)" if names else f"there are no {pane}"
        return Pressed(view=_with(view, message=words))
    target = names[_place(view, names)]
    deed = {"d": Deed.DRAIN, "c": Deed.CANCEL}.get(key)
    if deed is None:
        deed = Deed.RESUME if _queue(snapshot, target).paused else Deed.PAUSE
    return Pressed(view=_with(view, asking=Action(deed, target)))


def _queue(snapshot: Snapshot, name: str) -> QueueOverview:
    assert snapshot.overview is not None
    return next(each for each in snapshot.overview.queues if each.queue == name)


def names_of(pane: Pane, snapshot: Snapshot) -> list[str]:
    """What can be chosen in a pane."""
    if pane is Pane.JOBS:
        return [job.id for job in snapshot.jobs]
    if pane is Pane.WORKERS:
        return [worker.worker for worker in snapshot.workers]
    return [] if snapshot.overview is None else [each.queue for each in snapshot.overview.queues]


def _place(view: View, names: Sequence[str]) -> int:
    """Where the chosen line is: the first one if it is gone."""
    chosen = view.chosen.get(view.pane)
    return names.index(chosen) if chosen in names else 0


def _with(view: View, **fields: object) -> View:
    return msgspec.structs.replace(view, **fields)


# --- Lines ---------------------------------------------------------------------------------------


def screen(snapshot: Snapshot, view: View, *, title: str, columns: int, rows: int) -> list[str]:
    """The whole screen: at most so many lines, none wider than it."""
    foot = _question(view, columns, rows) or [_foot(view, columns)]
    head = [_styled(title, columns, bold=True)]
    if snapshot.problem is not None:
        head.append(_styled(f"! {snapshot.problem}", columns, fg="red"))
    room = rows - len(head) - len(foot)
    if view.is_help:
        body = [_styled(line, columns) for line in ("", *HELP)]
    elif view.opened is not None:
        body = _job_lines(snapshot.opened, view, columns, room)
    elif snapshot.overview is None:
        body = ["", "reading …" if snapshot.problem is None else ""]
    else:
        body = _list_lines(snapshot, snapshot.overview, view, columns, room)
    filled = [*body[: max(0, room)], *[""] * (room - len(body))]
    above = [*head, *filled][: max(0, rows - len(foot))]
    return [_clipped(line, columns) for line in [*above, *foot][:rows]]


def _clipped(line: str, columns: int) -> str:
    """The line, without its styles if it has to be cut: a table has a least width."""
    plain = click.unstyle(line)
    return line if display_width(plain) <= columns else shortened(plain, columns)


def _question(view: View, columns: int, rows: int) -> list[str]:
    """The lines of what is asked, all of it; none if nothing is asked, or if a screen of this size
    has no room for the whole question."""
    if view.asking is None:
        return []
    rest = printable(f"{view.asking.words}? y/n")
    lines: list[str] = []
    while rest and len(lines) < rows:
        fits = _fitting(rest, columns)
        lines.append(click.style(rest[:fits], fg="yellow", bold=True))
        rest = rest[fits:]
    return [] if rest else lines


def _fitting(text: str, columns: int) -> int:
    """How many of its characters fit into a line; at least one."""
    taken = accumulate(map(display_width, text))
    return max(1, sum(width <= columns for width in taken))


def _foot(view: View, columns: int) -> str:
    message = TOO_SMALL if view.asking is not None else view.message
    if message:
        return _styled(message, columns, fg="yellow")
    keys = "Esc back  Up/Down scroll  c cancel  ? help  q quit"
    if view.opened is None:
        keys = "Tab pane  Up/Down choose  Enter open  p pause  d drain  c cancel  ? help  q quit"
    return _styled(keys, columns, dim=True)


def _list_lines(
    snapshot: Snapshot, overview: Overview, view: View, columns: int, room: int
) -> list[str]:
    lines = summary(overview, columns)
    matters = attention_lines(overview.attention)
    lines += [""] if matters else []
    for line in matters[:MAX_ATTENTION]:
        lines.append(_styled(f"! {line}", columns, fg="yellow"))
    if len(matters) > MAX_ATTENTION:
        lines.append(f"  and {len(matters) - MAX_ATTENTION} more")
    tables = {
        Pane.QUEUES: queue_lines(overview, columns),
        Pane.JOBS: job_list_lines(snapshot.jobs, overview.now, columns),
        Pane.WORKERS: worker_lines(snapshot.workers, snapshot.jobs, overview.now, columns),
    }
    # A blank line, a title and a head above each table.
    least = sum(3 + min(FEW_ROWS, len(table) - 1) for table in tables.values())
    if room - len(lines) < least:
        tables = {view.pane: tables[view.pane]}
    rooms = shares(room - len(lines) - 3 * len(tables), [len(each) - 1 for each in tables.values()])
    for (pane, table), most in zip(tables.items(), rooms, strict=True):
        names = names_of(pane, snapshot)
        place = _place(view, names) if pane is view.pane else None
        number = f"{most} of {len(names)}" if most < len(names) else str(len(names))
        title = f"{list(Pane).index(pane) + 1} {pane} ({number})"
        lines += ["", _styled(title, columns, bold=True, underline=pane is view.pane)]
        lines += _window(table, most, place, columns)
    return lines


def _window(table: Sequence[str], most: int, place: int | None, columns: int) -> list[str]:
    """The head of a table and so many of its rows that the chosen one is among them."""
    head, *lines = table
    begin = 0 if place is None else max(0, min(place - most + 1, len(lines) - most))
    shown = [
        _styled(click.unstyle(line).ljust(columns), columns, reverse=True) if at == place else line
        for at, line in enumerate(lines)
    ]
    return [click.style(head, dim=True), *shown[begin : begin + max(0, most)]]


def shares(room: int, wanted: Sequence[int]) -> list[int]:
    """How many lines each table gets: all that it wants, or a fair part of what there is."""
    given = [0] * len(wanted)
    for _ in range(max(0, room)):
        hungry = [at for at, most in enumerate(wanted) if given[at] < most]
        if not hungry:
            break
        given[min(hungry, key=lambda at: given[at])] += 1
    return given


def summary(overview: Overview, columns: int) -> list[str]:
    """Rates of the last minute, the time that jobs wait and run, workers, and the last buckets."""
    lately, span_s = _lately(overview)
    rates = GAP.join(
        f"{name} {_rate(lately, field, span_s)}"
        for name, field in (
            ("enqueued", "enqueued"),
            ("succeeded", "succeeded"),
            ("retried", "requeued"),
            ("failed", "failed"),
            ("dead", "dead_lettered"),
            ("cancelled", "cancelled"),
        )
    )
    wait, run, workers = overview.wait, overview.run, overview.workers
    spans = (
        f"wait p50 {_span(wait.p50_us)} p95 {_span(wait.p95_us)}{GAP}"
        f"run p50 {_span(run.p50_us)} p95 {_span(run.p95_us)}{GAP}"
        f"workers {workers.alive} alive, {workers.draining} draining, {workers.silent} silent"
    )
    succeeded = [bucket.succeeded for bucket in overview.buckets]
    every = in_words(overview.bucket_us / MICROSECONDS_PER_SECOND)
    label, most = f"succeeded, last {overview.range}", f"most {max(succeeded)} in {every}"
    if overview.counted_since > overview.since:
        most += f", counted from {ago(overview.counted_since, overview.now)} on"
    room = columns - len(f"{label}{GAP}{GAP}{most}")
    plot = f"{label}{GAP}{sparkline(succeeded[-max(1, room) :])}{GAP}{most}"
    return [_styled(line, columns) for line in (rates, spans, plot)]


def _lately(overview: Overview) -> tuple[Sequence[OutcomeBucket], float]:
    """The buckets that say how fast jobs come and go, and their length in seconds: the last ones
    that are over, as far as they were counted, else what was counted of the present one."""
    ended = [each for each in overview.buckets[:-1] if each.at >= overview.counted_since]
    lately = ended[-RATE_BUCKETS:]
    if lately:
        return lately, len(lately) * overview.bucket_us / MICROSECONDS_PER_SECOND
    present = overview.buckets[-1:]
    counted_us = overview.now - max(overview.counted_since, *(each.at for each in present))
    return present, max(1, counted_us) / MICROSECONDS_PER_SECOND


def sparkline(counts: Sequence[int]) -> str:
    """Numbers as bars of eight heights; the highest is full, and nothing is a blank."""
    most = max(counts, default=0)
    return "".join(
        " " if not count else _STEPS[min(7, count * 8 // (most + 1))] for count in counts
    )


def _rate(buckets: Sequence[OutcomeBucket], field: str, span_s: float) -> str:
    rate = sum(int(getattr(bucket, field)) for bucket in buckets) / span_s
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def _span(span_us: Duration | None) -> str:
    return "-" if span_us is None else in_words(span_us / MICROSECONDS_PER_SECOND)


def attention_lines(matters: Sequence[Attention]) -> list[str]:
    """What needs attention, a line each."""
    lines = []
    for each in matters:
        where = [f"kind {each.kind}"] if each.kind is not None else []
        where += [f"queue {each.queue}"] if each.queue is not None else []
        where += [f"schedule {each.schedule}"] if each.schedule is not None else []
        where += [f"job {each.job_id}"] if each.job_id is not None else []
        lines.append(f"{_MATTERS[each.matter]}: {each.jobs}, {', '.join(where)}")
    return lines


def queue_lines(overview: Overview, columns: int | None) -> list[str]:
    """The queues as a table."""
    head = ["QUEUE", "STATE", "READY", "RUNNING", "DELAYED", "WAITING"]
    head += ["OLDEST", "WORKERS", "LIMIT"]
    rows = [
        (
            each.queue,
            "paused" if each.paused else "open",
            each.ready,
            each.leased,
            each.delayed,
            each.waiting,
            ago(each.oldest_ready_at, overview.now),
            each.workers,
            each.limit,
        )
        for each in overview.queues
    ]
    return table_lines(head, rows, columns, optional=("OLDEST", "WAITING", "DELAYED", "LIMIT"))


def job_list_lines(jobs: Sequence[Job], now: Instant, columns: int | None) -> list[str]:
    """The running jobs as a table."""
    head = ["JOB", "KIND", "QUEUE", "STATUS", "FOR", "PROGRESS", "ATTEMPT", "WORKER"]
    rows = [
        (
            job.id if columns is None else shortened(job.id, SHORTEST_ID),
            job.kind,
            job.queue,
            job.status,
            _since(job, now),
            _progress(job),
            job.attempt,
            job.owner,
        )
        for job in jobs
    ]
    return table_lines(head, rows, columns, optional=("QUEUE", "ATTEMPT", "WORKER"))


def _since(job: Job, now: Instant) -> str | None:
    begin = job.started_at or job.claimed_at
    return None if begin is None else in_words(max(0, now - begin) / MICROSECONDS_PER_SECOND)


def _progress(job: Job) -> str | None:
    said = job.progress
    if said is None:
        return None
    drawn = f"{bar(said.done, said.total, 10)} " if said.total else ""
    return f"{drawn}{said.done}/{said.total or '?'} {said.note}".rstrip()


def worker_lines(
    workers: Sequence[WorkerSeen], jobs: Sequence[Job], now: Instant, columns: int | None
) -> list[str]:
    """The workers as a table."""
    head = ["WORKER", "STATE", "RUNS", "SLOTS", "QUEUES", "HOST", "LAST SEEN"]
    rows = [
        (
            each.worker,
            each.state(now),
            sum(job.owner == each.worker for job in jobs),
            each.concurrency,
            ",".join(each.queues),
            each.host,
            ago(each.seen_at, now),
        )
        for each in workers
    ]
    return table_lines(head, rows, columns, optional=("HOST", "LAST SEEN", "QUEUES"))


def _job_lines(opened: OpenJob | None, view: View, columns: int, room: int) -> list[str]:
    """One job: its facts, its events and its error, scrolled."""
    if opened is None or opened.job.id != view.opened:
        return ["", "reading …"]
    job, events = opened.job, opened.events
    known = job_facts(job, now=opened.now, bodies=False)
    facts = [(name, value) for name, value in known if value not in (None, "")]
    width = max(len(name) for name, _ in facts)
    lines = [_styled(f"{name.ljust(width)}{GAP}{value}", columns) for name, value in facts]
    rows = timeline_rows(events, opened.observations, folded=True)
    lines += ["", *table_lines(TIMELINE, rows, columns, optional=("ATTEMPT", "CHANGE"))]
    error = job.error or job.last_error
    if error is not None:
        text = f"{error.message}\n{error.traceback}"
        lines += ["", *(_styled(line, columns) for line in text.splitlines())]
    begin = max(0, min(view.scrolled, len(lines) - room))
    return lines[begin : begin + room]


def _styled(text: str, columns: int, **styles: object) -> str:
    """A text from anywhere: escaped, cut, then styled."""
    cut = shortened(printable(text), columns)
    return click.style(cut, **styles) if styles else cut  # type: ignore[arg-type]  # styles of click
