"""`tenure demo`: real workers, one killed and one frozen, and a check of the history at the end.

The store is a SQLite file in a temporary directory; `tenure worker` processes run the jobs below.
Every line shown is a step of this script, an event of a job or a line that a worker logged. Leases
are far shorter than a real application needs, so that one expires within seconds.
"""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click

from tenure.app import Tenure
from tenure.cli.output import print_table, printable, shortened, terminal_columns
from tenure.core.commands import Cancel, Enqueue
from tenure.core.ids import JobId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.job import Job
from tenure.core.verdicts import Reply
from tenure.core.views.events import EventPosition
from tenure.core.vocabulary import EventCause, EventType, JobStatus
from tenure.errors import TransientError
from tenure.handlers.calls import Call
from tenure.handlers.context import Context
from tenure.handlers.options import Retry
from tenure.protocol import URL_VARIABLE
from tenure.settings import LEASE_BOUNDS_VARIABLE
from tenure.verify import AckWriter, answer_line, request_line
from tenure.wiring import open_store

STEP_S, POLL_EVERY_S, STOP_WITHIN_S, GIVE_UP_AFTER_S = 0.4, 0.1, 10.0, 90.0
LOG_COLUMNS, MAX_NEWS = 120, 1000
SOON = Retry(max_attempts=3, initial="200ms", cap="500ms")
TENURE = [sys.executable, "-m", "tenure"]

NEWS: dict[EventType | EventCause, tuple[str, str | None]] = {
    EventType.CLAIMED: ("{event.owner} takes{over} {name} (attempt {event.attempt})", None),
    EventCause.LEASE_EXPIRED: ("the lease of {event.owner} on {name} has expired", "yellow"),
    EventCause.ATTEMPT_FAILED: ("{name} fails in attempt {event.attempt}: {error.message}", None),
    EventType.CANCEL_REQUESTED: ("{name} is asked to stop: {event.payload.reason}", None),
    EventType.SUCCEEDED: ("{event.owner} finishes {name}: COMMITTED", "green"),
    EventType.CANCELLED: ("{name} is cancelled ({event.cause})", "yellow"),
    EventType.DEAD_LETTERED: ("{name} is dead_lettered ({event.payload.reason_code})", "red"),
}
"""The line for an event and its colour. Stalled events have one for each cause."""

T = TypeVar("T")
app = Tenure(name="demo")


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
    """Never checks whether it should stop, so it always returns a result."""
    for step in range(steps):
        time.sleep(STEP_S)
        ctx.progress(step + 1, steps)
    return {"from_attempt": ctx.attempt}


def as_text(result: bytes | None) -> str | None:
    """A result, which is stored as JSON."""
    return None if result is None else result.decode()


class Demo:
    """The jobs and the workers; prints what happens to them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        # For the client here, the workers and `tenure verify`.
        os.environ[URL_VARIABLE] = url = f"sqlite:///{self.directory}/demo.db"
        os.environ[LEASE_BOUNDS_VARIABLE] = "1s,120s"
        self.store, self.acks = open_store(url), AckWriter(self.directory / "demo.acks")
        self.names: dict[JobId, str] = {}
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._last_read: EventPosition | None = None
        self._last_told: dict[str, EventType | EventCause] = {}
        self._began = self.acks.clock()

    def start_worker(self, name: str) -> None:
        """Start a `tenure worker`. Jobs wait in the queue until it is ready."""
        words = ["worker", f"{__name__}:app", "--name", name, "-q", "default", "-c", "2"]
        command, null = [*TENURE, *words, "--grace", "3s"], subprocess.DEVNULL
        with (self.directory / f"{name}.log").open("wb") as log:
            self.workers[name] = subprocess.Popen(command, stdin=null, stdout=null, stderr=log)
        self.tell(f"{name} is started: tenure worker, pid {self.workers[name].pid}")

    def send(self, number: signal.Signals, name: str) -> int:
        """Send a worker a signal while no process writes: a machine that freezes holds no lock on
        another machine's disk, but this worker could hold SQLite's only write lock."""
        worker = self.workers[name]
        file = self.directory / "demo.db"
        with closing(sqlite3.connect(file, timeout=GIVE_UP_AFTER_S)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            worker.send_signal(number)
            os.waitpid(worker.pid, os.WUNTRACED | os.WCONTINUED)  # every thread has had it
        return worker.pid

    def close(self) -> None:
        """Stop every worker by its pid: ask, wait, then kill."""
        on_interrupt(signal.SIG_IGN)
        for process in self.workers.values():
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
        for process in self.workers.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=STOP_WITHIN_S)
            process.kill()  # does nothing if it has ended
            process.wait()
        self.store.close()
        self.acks.close()

    def enqueue(self, name: str, call: Call[Any]) -> JobId:
        """Enqueue a job and follow it under this name."""
        command = app.command(call)
        self.names[command.job_id] = name
        self.execute(command)
        return command.job_id

    def execute(self, command: Enqueue | Cancel) -> None:
        """Send a command; record it and its answer for `tenure verify --acks`."""
        self.acks.write(request_line(command, at=self.acks.clock()))
        answer = app.coordination.execute(command)
        assert isinstance(answer, Reply)
        self.acks.write(answer_line(command, answer, at=self.acks.clock()))

    def jobs(self) -> list[Job]:
        """The jobs in the order in which they were enqueued."""
        found = self.store.jobs.read(list(self.names))
        return [found[job_id] for job_id in self.names]

    def until(self, look: Callable[[], T | None]) -> T:
        """Print news until `look` finds something; returns that."""
        deadline = time.monotonic() + GIVE_UP_AFTER_S
        while time.monotonic() < deadline:
            found = look()  # before the news, so that they include what made it true
            self.tell_news()
            if found:
                return found
            time.sleep(POLL_EVERY_S)
        logs = "\n".join(path.read_text() for path in self.directory.glob("*.log"))
        raise click.ClickException(f"the demo gave up waiting; the workers log:\n{logs}")

    def until_ended(self) -> Job:
        """Wait for every job; returns the last one."""
        self.until(lambda: all(job.status.is_terminal for job in self.jobs()))
        return self.jobs()[-1]

    def owner_at_step(self, job_id: JobId, step: int) -> str:
        """The worker that runs a job, once the job has come to this step."""

        def look() -> str | None:
            job = self.store.jobs.read([job_id])[job_id]
            return job.owner if job.progress and job.progress.done >= step else None

        return self.until(look)

    def tell_news(self) -> None:
        """Print what is new in the store's log."""
        for tailed in self.store.events.tail(after=self._last_read, limit=MAX_NEWS):
            self._last_read, event = tailed.position, tailed.event
            name = self.names[event.job_id]
            key = event.cause if event.type is EventType.STALLED else event.type
            if key not in NEWS:
                continue
            over = " over" if self._last_told.get(name) is EventCause.LEASE_EXPIRED else ""
            self._last_told[name], (text, colour) = key, NEWS[key]
            text = text.format(event=event, name=name, over=over, error=event.payload.error)
            self.tell(text, colour, at=event.ts)

    def tell(self, text: str, colour: str | None = None, *, at: Instant | None = None) -> None:
        """Print the time since the beginning and the first line of a text, as one line."""
        passed_s = ((at or self.acks.clock()) - self._began) / MICROSECONDS_PER_SECOND
        line = f"  {passed_s:5.1f}s  {printable(text.splitlines()[0])}"
        click.secho(shortened(line, terminal_columns() or LOG_COLUMNS), fg=colour)


def mixed_jobs(demo: Demo) -> None:
    """Jobs that succeed, fail, crash and are cancelled."""
    click.secho("\n1. Two workers and a mix of jobs: quick, flaky, poisonous, endless", bold=True)
    demo.start_worker("anna")
    demo.start_worker("boris")
    endless = demo.enqueue("endless", slow.call(steps=10_000))
    demo.enqueue("flaky", flaky.call())
    demo.enqueue("poison", poison.call())
    demo.enqueue("quick-1", quick.call(7))
    demo.enqueue("quick-2", quick.call(8))
    demo.owner_at_step(endless, 3)
    actor, request_id = app.channel.actor, app.channel.new_request_id()
    reason = "it is not needed any more"
    demo.execute(Cancel(job_id=endless, actor=actor, request_id=request_id, reason=reason))
    demo.until_ended()


def killed_worker(demo: Demo) -> None:
    """Another worker continues the job of a killed one from its checkpoint."""
    click.secho("\n2. kill -9 in the middle of a job", bold=True)
    owner = demo.owner_at_step(demo.enqueue("slow", slow.call(steps=12)), 4)
    demo.tell(f"{owner} is killed: kill -9 {demo.send(signal.SIGKILL, owner)}", "red")
    demo.tell("a killed worker reports nothing: slow waits until the lease expires")
    demo.start_worker("clara")
    demo.tell(f"which attempt did each step of slow: {as_text(demo.until_ended().result)}")


def frozen_worker(demo: Demo) -> None:
    """Another worker does the job of a frozen one, whose late result is refused."""
    click.secho("\n3. A worker freezes, its lease expires, it wakes up with a result", bold=True)
    frozen = demo.owner_at_step(demo.enqueue("precious", precious.call(steps=8)), 1)
    demo.tell(f"{frozen} freezes: kill -STOP {demo.send(signal.SIGSTOP, frozen)}", "red")
    demo.tell("its handler, a process of its own, finishes; its result is not read")
    job = demo.until_ended()
    demo.tell(f"{frozen} wakes up: kill -CONT {demo.send(signal.SIGCONT, frozen)}")
    log, refusal = demo.directory / f"{frozen}.log", re.compile(" WARNING (.* CANCELLED .*)")
    logged = demo.until(lambda: refusal.search(log.read_text()))[1].replace(job.id, "precious")
    demo.tell(f"{frozen} logs: {logged}", "yellow")
    [late] = demo.until(lambda: demo.store.jobs.observations(job.id))
    demo.tell(f"{frozen}'s late result refused ({late.cause}): {as_text(late.body)}", "red")
    demo.tell(f"the result of {job.last_owner} stands: {as_text(job.result)}", "green")


def check_history(demo: Demo) -> bool:
    """Show how the jobs ended; whether `tenure verify` finds nothing wrong."""
    click.secho("\n4. How they ended", bold=True)
    jobs = demo.jobs()
    rows = [(demo.names[j.id], j.status, j.attempt, j.last_owner, as_text(j.result)) for j in jobs]
    print_table(["JOB", "STATUS", "ATTEMPT", "OWNER", "RESULT"], rows)
    click.secho("\n5. tenure verify", bold=True)
    verify = [*TENURE, "verify", "--acks", f"{demo.directory}/demo.acks"]
    is_verified = subprocess.run(verify, check=False).returncode == 0
    expected = {JobStatus.SUCCEEDED, JobStatus.CANCELLED, JobStatus.DEAD_LETTERED}
    return is_verified and {job.status for job in jobs} == expected


def on_interrupt(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """What Ctrl-C and SIGTERM do from now on."""
    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)


def interrupt(number: int, _: FrameType | None) -> None:
    """End the demo, which stops its workers. A second signal must not leave workers behind."""
    on_interrupt(signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


@click.command()
def demo() -> None:
    """Watch jobs survive a killed and a frozen worker, then check the history."""
    on_interrupt(interrupt)
    with (
        tempfile.TemporaryDirectory(prefix="tenure-demo-") as directory,
        closing(Demo(Path(directory))) as shown,
        app,
    ):
        mixed_jobs(shown)
        killed_worker(shown)
        frozen_worker(shown)
        holds = check_history(shown)
    if not holds:
        raise click.ClickException("something does not hold; see above")
    click.secho("\nEvery job ended, every invariant of the history holds.", fg="green")
