"""`tenure demo`: real workers, one killed and one frozen, and a check of the history at the end.

The store is a SQLite file in a temporary directory; `tenure worker` processes run the jobs below.
Every line shown is an event of the log, a row of the store or a line that a worker logged. Leases
are far shorter than a real application needs, so that one expires within seconds.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import TextIO

import click

from tenure.app import Tenure
from tenure.cli.output import coloured, printable
from tenure.client.channel import Link
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Cancel, Command, Enqueue
from tenure.core.events import Event
from tenure.core.ids import JobId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.job import Job
from tenure.core.observations import Observation
from tenure.core.verdicts import Answer, Reply
from tenure.core.vocabulary import EventCause, EventType, JobStatus, ObservationType
from tenure.errors import TransientError
from tenure.handlers.context import Context
from tenure.handlers.options import Retry
from tenure.protocol import URL_VARIABLE
from tenure.settings import LEASE_BOUNDS_VARIABLE, limits_from_environment
from tenure.verify import AckWriter, answer_line, request_line
from tenure.wiring import open_store

STEP_S, LOOK_EVERY_S, STOP_WITHIN_S, GIVE_UP_AFTER_S = 0.4, 0.1, 10.0, 90.0
LEASE_BOUNDS = {LEASE_BOUNDS_VARIABLE: "1s,120s"}
BAR_CELLS, LEAST_TERMINAL_LINES = 12, 24
TABLE_LINE = "  {:<10} {:<13} {:<7} {:<6} {:<5} {}"
SIGNALS = {
    signal.SIGKILL: ("is killed: kill -9", "red", "✖ killed"),
    signal.SIGSTOP: ("freezes: kill -STOP", "red", "❄ frozen"),
    signal.SIGCONT: ("wakes up: kill -CONT", None, "● working"),
}
"""What is told of a signal, in which colour, and what the worker then is."""

# --- The application that the workers run --------------------------------------------------------

app = Tenure(name="demo")
SOON = Retry(max_attempts=3, initial="200ms", cap="500ms")


@app.job(lease="4s", retry=SOON)
def quick(number: int) -> int:
    """Ends at once."""
    return number * number


@app.job(lease="4s", retry=SOON)
def flaky(ctx: Context) -> str:
    """Fails in its first attempt."""
    if ctx.attempt == 1:
        raise TransientError("the upstream did not answer")
    return "the upstream answered"


@app.job(lease="4s", retry=Retry(max_attempts=2, initial="200ms"))
def poison() -> None:
    """Kills its process, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(lease="4s", retry=SOON, grace="5s")
def endless(ctx: Context) -> None:
    """Runs until it is cancelled."""
    done = 0
    while True:
        ctx.check()
        time.sleep(STEP_S)
        done += 1
        ctx.progress(done)


@app.job(lease="4s", retry=SOON)
def slow(ctx: Context, steps: int) -> list[int]:
    """Saves a checkpoint after every step; returns which attempt did each step."""
    done_in: list[int] = ctx.checkpoint or []
    while len(done_in) < steps:
        ctx.check()
        time.sleep(STEP_S)
        done_in.append(ctx.attempt)
        ctx.save(done_in)
        ctx.progress(len(done_in), steps)
    return done_in


# A worker's keeper kills a handler whose lease has ended. The lease is long enough for the handler
# to finish after its worker froze, on a busy machine too.
@app.job(lease="8s", retry=SOON)
def precious(ctx: Context, steps: int) -> dict[str, int]:
    """Never checks whether it should stop, so it always brings a result."""
    for step in range(steps):
        time.sleep(STEP_S)
        ctx.progress(step + 1, steps)
    return {"from_attempt": ctx.attempt}


# --- The screen ----------------------------------------------------------------------------------


class Screen:
    """Lines that stay and, on a terminal, a table below them that is redrawn. Elsewhere only the
    lines are printed, so that a log of the demo is readable."""

    def __init__(self) -> None:
        is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._is_live = is_terminal and shutil.get_terminal_size().lines >= LEAST_TERMINAL_LINES
        self._frame: list[str] = []

    def say(self, *lines: str) -> None:
        """Print lines that stay."""
        if self._is_live:
            self._write([*lines, *self._frame])
        else:
            click.echo("\n".join(lines))
            sys.stdout.flush()

    def draw(self, frame: list[str]) -> None:
        """Replace the table."""
        if self._is_live and frame != self._frame:
            self._write(frame)
            self._frame = frame

    def close(self) -> None:
        """Show the cursor again."""
        if self._is_live:
            sys.stdout.write("\x1b[?25h")
            sys.stdout.flush()

    def _write(self, lines: list[str]) -> None:
        """Write over the old table in one piece: parts of it would flicker."""
        up = f"\x1b[{len(self._frame)}F" if self._frame else ""
        text = "".join(f"{line}\n" for line in lines)
        # Hide the cursor, clear what is below, and cut long lines off instead of wrapping them.
        sys.stdout.write(f"\x1b[?25l{up}\x1b[J\x1b[?7l{text}\x1b[?7h")
        sys.stdout.flush()


def bar(done: int, total: int | None) -> str:
    """A progress bar, or the number of steps where the total is unknown."""
    if not total:
        return f"step {done}"
    filled = min(BAR_CELLS, BAR_CELLS * done // total)
    return click.style("█" * filled, fg="cyan") + "░" * (BAR_CELLS - filled) + f" {done}/{total}"


def short(text: str | bytes | None, most: int = 60) -> str:
    """The beginning of the first line, safe to print."""
    text = text.decode() if isinstance(text, bytes) else text or ""
    first = printable(text.partition("\n")[0])
    return first if len(first) <= most else first[: most - 1] + "…"


# --- The store and the workers -------------------------------------------------------------------


class RecordingCoordinator(Coordinator):
    """Records what the client asked and what it was answered, for `tenure verify --acks`."""

    acks: AckWriter

    def submit_many(
        self, commands: Sequence[Command], *, bodies_are_ijson: bool = False
    ) -> "Future[list[Answer]]":
        """Submit as always; write a line before and a line after."""
        asked = [each for each in commands if isinstance(each, Enqueue | Cancel)]
        self.acks.write(*(request_line(each, at=self.acks.clock()) for each in asked))
        answered = super().submit_many(commands, bodies_are_ijson=bodies_are_ijson)
        for command, answer in zip(asked, answered.result(), strict=True):
            assert isinstance(answer, Reply)
            self.acks.write(answer_line(command, answer, at=self.acks.clock()))
        return answered


class Demo:
    """The store and the workers; tells on the screen what happens to the jobs."""

    def __init__(self, directory: Path, screen: Screen) -> None:
        self.screen, self.file, self.acks = screen, directory / "demo.db", directory / "demo.acks"
        self.url = f"sqlite:///{self.file.resolve()}"
        self.store = open_store(self.url, migrate=True)
        limits = limits_from_environment(LEASE_BOUNDS)
        self.coordinator = RecordingCoordinator(self.store, limits=limits)
        self.coordinator.acks = AckWriter(self.acks)
        self.names: dict[JobId, str] = {}
        self.rows: dict[JobId, Job] = {}
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.states: dict[str, str] = {}
        self.logs: dict[str, TextIO] = {}
        self.logged: list[str] = []
        self._last_seq: dict[JobId, int] = {}
        self._lost: set[JobId] = set()
        self._began = self.store.now()

    def start_worker(self, name: str) -> None:
        """Start a `tenure worker`. Jobs wait in the queue until it is ready."""
        words = ["worker", f"{__name__}:app", "--name", name, "-c", "2", "--grace", "3s"]
        environment = os.environ | {URL_VARIABLE: self.url} | LEASE_BOUNDS
        log, null = self.file.with_name(f"{name}.log"), subprocess.DEVNULL
        command = [sys.executable, "-m", "tenure", *words]
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                command, env=environment, stdin=null, stdout=null, stderr=stderr
            )
        self.workers[name], self.states[name] = process, "● working"
        self.logs[name] = log.open(encoding="utf-8", errors="backslashreplace")
        self.tell(f"{name} is started: tenure worker, pid {process.pid}")

    def send(self, number: signal.Signals, name: str) -> None:
        """Send a worker a signal while nobody writes: a machine that freezes holds no lock on
        another machine's disk, but this worker could hold SQLite's only write lock."""
        pid, (told, colour, state) = self.workers[name].pid, SIGNALS[number]
        with closing(sqlite3.connect(self.file, timeout=GIVE_UP_AFTER_S)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            self.workers[name].send_signal(number)
            os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)  # every thread has had it
        self.states[name] = state
        self.tell(click.style(f"{name} {told} {pid}", fg=colour))

    def close(self) -> None:
        """Stop every worker by its pid: ask, wait, then kill."""
        ignore_interrupts()
        deadline = time.monotonic() + STOP_WITHIN_S
        for process in self.workers.values():
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
        for process in self.workers.values():
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self.logs.values():
            log.close()
        self.coordinator.acks.close()
        self.coordinator.close()
        self.store.close()

    # --- What it waits for ---------------------------------------------------------------------

    def follow(self, name: str, job_id: JobId) -> JobId:
        """Show this job from now on, under this name."""
        self.names[job_id] = name
        return job_id

    def until(self, is_true: Callable[[], bool], what: str) -> None:
        """Tell what happens until a condition is true."""
        deadline = time.monotonic() + GIVE_UP_AFTER_S
        while True:
            self.tell_news()
            if is_true():
                return
            if time.monotonic() > deadline:
                raise click.ClickException(f"the demo gave up waiting until {what}")
            time.sleep(LOOK_EVERY_S)

    def until_ended(self) -> None:
        """Wait for every job."""
        self.until(
            lambda: all(self.rows[each].status.is_terminal for each in self.names),
            "every job had ended",
        )

    def owner_at_step(self, job_id: JobId, step: int) -> str:
        """The worker that runs the job, once the job has come to this step."""

        def has_come() -> bool:
            row = self.rows[job_id]
            return row.owner is not None and row.progress is not None and row.progress.done >= step

        self.until(has_come, f"{self.names[job_id]} was at step {step}")
        return str(self.rows[job_id].owner)

    def late_results(self, job_id: JobId) -> list[Observation]:
        """The results of a job that the coordinator refused."""
        found = self.store.load_observations(job_id)
        return [each for each in found if each.type is ObservationType.RESULT_DISCARDED]

    # --- What it tells -------------------------------------------------------------------------

    def tell_news(self) -> None:
        """Tell what is new in the log and in the workers' output, and redraw the table."""
        loaded = self.store.load(list(self.names))
        self.rows, seen = loaded.jobs, self._last_seq
        changed = [job_id for job_id, row in self.rows.items() if row.rev > seen.get(job_id, 0)]
        histories = self.store.load_histories(changed).values()
        events = [e for events in histories for e in events if e.seq > seen.get(e.job_id, 0)]
        for event in sorted(events, key=lambda each: (each.ts, each.seq)):
            seen[event.job_id] = event.seq
            if sentence := self._sentence(event):
                self.tell(sentence, at=event.ts)
        for name, log in self.logs.items():
            for line in log:
                self._tell_log_line(name, line)
        self.screen.draw(self.table(loaded.now))

    def title(self, text: str) -> None:
        """The title of a part of the story."""
        self.screen.say("", click.style(text, bold=True))

    def tell(self, text: str, *, at: Instant | None = None) -> None:
        """A line with the time since the beginning, by the store's clock."""
        passed_s = ((at or self.store.now()) - self._began) / MICROSECONDS_PER_SECOND
        self.screen.say(f"  {passed_s:5.1f}s  {text}")

    def _sentence(self, event: Event) -> str:
        name, facts, error = self.names[event.job_id], event.payload, event.payload.error
        match event.type:
            case EventType.CLAIMED:
                verb = "takes over" if event.job_id in self._lost else "takes"
                self._lost.discard(event.job_id)
                return f"{event.owner} {verb} {name} (attempt {event.attempt})"
            case EventType.STALLED if event.cause is EventCause.LEASE_EXPIRED:
                self._lost.add(event.job_id)
                return click.style(f"the lease of {event.owner} on {name} has expired", fg="yellow")
            case EventType.STALLED:
                why = "" if error is None else short(f"{error.type}: {error.message}", 76)
                return f"{name} fails in attempt {event.attempt}: {why}"
            case EventType.CANCEL_REQUESTED:
                return f"{name} is asked to stop: {facts.reason}"
            case EventType.SUCCEEDED:
                return f"{event.owner} finishes {name}: {click.style('COMMITTED', fg='green')}"
            case EventType.CANCELLED:
                return f"{name} is {coloured('cancelled')} ({event.cause})"
            case EventType.DEAD_LETTERED:
                return f"{name} is {coloured('dead_lettered')} ({facts.reason_code})"
            case _:
                return ""

    def _tell_log_line(self, name: str, line: str) -> None:
        if " INFO " in line:
            return  # the table shows that it works
        line = line.partition(" WARNING ")[2] or line  # without its date and time
        for job_id, known_as in self.names.items():
            line = line.replace(job_id, known_as)
        self.logged.append(f"{name} logs: {short(line, 90)}")
        self.tell(click.style(self.logged[-1], fg="yellow"))

    def table(self, now: Instant) -> list[str]:
        """The jobs, and below them the workers."""
        columns = ("JOB", "STATUS", "ATTEMPT", "OWNER", "LEASE", "PROGRESS, RESULT")
        head = click.style(TABLE_LINE.format(*columns), bold=True)
        rows = [self._table_line(self.names[each], row, now) for each, row in self.rows.items()]
        workers = "   ".join(f"{name} {state}" for name, state in self.states.items())
        return ["", head, *rows, "", f"  workers  {workers}"]

    def _table_line(self, name: str, job: Job, now: Instant) -> str:
        left_s = max(0, job.lease.expires_at - now) / MICROSECONDS_PER_SECOND if job.lease else None
        lease = "" if left_s is None else f"{left_s:.1f}s"
        error = job.error or job.last_error
        last = "" if job.progress is None else bar(job.progress.done, job.progress.total)
        if job.result is not None:
            last = f"{last} {short(job.result, 44 - len(click.unstyle(last)))}".strip()
        elif error is not None and job.progress is None:
            last = short(f"{error.type}: {error.message}", 44)
        owner = str(job.owner or job.last_owner or "")
        line = TABLE_LINE.format(name, job.status, job.attempt or "", owner, lease, last)
        return line.replace(job.status, coloured(job.status), 1).rstrip()


# --- The story -----------------------------------------------------------------------------------


def mixed_jobs(demo: Demo) -> None:
    """Jobs that succeed, fail, crash and are cancelled."""
    demo.title("1. Two workers and a mix of jobs: quick, flaky, poisonous, endless")
    demo.start_worker("anna")
    demo.start_worker("boris")
    unwanted = endless.enqueue()
    endless_id = demo.follow("endless", unwanted.id)
    demo.follow("flaky", flaky.enqueue().id)
    demo.follow("poison", poison.enqueue().id)
    demo.follow("quick-1", quick.enqueue(7).id)
    demo.follow("quick-2", quick.enqueue(8).id)
    demo.owner_at_step(endless_id, 3)
    unwanted.cancel(reason="nobody needs it any more")
    demo.until_ended()


def killed_worker(demo: Demo) -> None:
    """Another worker continues the job of a killed one from its checkpoint."""
    demo.title("2. kill -9 in the middle of a job")
    job_id = demo.follow("slow", slow.enqueue(steps=12).id)
    demo.send(signal.SIGKILL, demo.owner_at_step(job_id, 4))
    demo.tell("a killed worker reports nothing: slow waits until the lease expires")
    demo.start_worker("clara")
    demo.until_ended()
    demo.tell(f"which attempt did each step of slow: {short(demo.rows[job_id].result)}")


def frozen_worker(demo: Demo) -> None:
    """Another worker does the job of a frozen one, whose late result is refused."""
    demo.title("3. A worker freezes, its lease expires, it wakes up with a result")
    job_id = demo.follow("precious", precious.enqueue(steps=8).id)
    frozen = demo.owner_at_step(job_id, 1)
    demo.send(signal.SIGSTOP, frozen)
    demo.tell("its handler is a process of its own: it finishes, but nobody reads its result")
    demo.until_ended()
    demo.send(signal.SIGCONT, frozen)
    demo.until(
        lambda: (
            bool(demo.late_results(job_id))
            and any(line.startswith(frozen) and "CANCELLED" in line for line in demo.logged)
        ),
        f"the late result of {frozen} was refused",
    )
    late, row = demo.late_results(job_id)[0], demo.rows[job_id]
    refused = click.style("refused", fg="red")
    demo.tell(f"{frozen}'s late result {refused} ({late.cause}): {short(late.body)}")
    demo.tell(f"the result of {row.last_owner} stands: {short(row.result)}")


def check_history(demo: Demo) -> bool:
    """Show how the jobs ended; whether `tenure verify` finds nothing wrong."""
    demo.title("4. How they ended")
    demo.screen.draw([])
    demo.screen.say(*demo.table(demo.store.now()))
    demo.title("5. tenure verify")
    verify = ["tenure", "verify", "--url", demo.url, "--acks", str(demo.acks)]
    is_verified = subprocess.run([sys.executable, "-m", *verify], check=False).returncode == 0
    expected = {JobStatus.SUCCEEDED, JobStatus.CANCELLED, JobStatus.DEAD_LETTERED}
    return is_verified and {row.status for row in demo.rows.values()} == expected


def ignore_interrupts() -> None:
    """A second Ctrl-C must not leave workers behind; stopping them takes seconds at most."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def interrupt(number: int, _: FrameType | None) -> None:
    """SIGTERM ends the demo as Ctrl-C does: it stops its workers first."""
    ignore_interrupts()
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


@click.command()
def demo() -> None:
    """Watch jobs survive a killed and a frozen worker, then check the history."""
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    with (
        closing(Screen()) as screen,
        tempfile.TemporaryDirectory(prefix="tenure-demo-") as directory,
        closing(Demo(Path(directory), screen)) as shown,
        app.channel.diverted(Link(coordination=shown.coordinator, close=shown.coordinator.close)),
    ):
        mixed_jobs(shown)
        killed_worker(shown)
        frozen_worker(shown)
        holds = check_history(shown)
    if not holds:
        raise click.ClickException("something does not hold; see above")
    click.secho("\nEvery job ended, every invariant of the history holds.", fg="green")
