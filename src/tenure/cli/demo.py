"""`tenure demo`: real workers, one killed and one frozen, and a check of the history at the end.

The store is a SQLite file in a temporary directory; `tenure worker` processes run the jobs below.
Every line shown is a step of this script, an event of a job or a line that a worker logged. Leases
are far shorter than a real application needs, so that one expires within seconds.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click
import msgspec

from tenure.app import Tenure
from tenure.cli.output import print_table, printable, shortened, terminal_columns
from tenure.client.jobs import Job
from tenure.core.commands import Cancel, Enqueue
from tenure.core.observations import Observation
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import EventCause, EventType, JobStatus, ObservationType
from tenure.errors import TransientError
from tenure.handlers.context import Call, Context
from tenure.handlers.options import Retry
from tenure.protocol import URL_VARIABLE
from tenure.settings import LEASE_BOUNDS_VARIABLE
from tenure.verify import AckWriter, answer_line, request_line
from tenure.wiring import open_store

STEP_S, POLL_EVERY_S, STOP_WITHIN_S, GIVE_UP_AFTER_S = 0.4, 0.1, 10.0, 90.0
LOG_COLUMNS = 120
SOON = Retry(max_attempts=3, initial="200ms", cap="500ms")

TOLD: dict[str, tuple[str, str | None]] = {
    EventType.CLAIMED: ("{event.owner} takes{over} {name} (attempt {event.attempt})", None),
    EventCause.LEASE_EXPIRED: ("the lease of {event.owner} on {name} has expired", "yellow"),
    EventCause.ATTEMPT_FAILED: ("{name} fails in attempt {event.attempt}: {error.message}", None),
    EventType.CANCEL_REQUESTED: ("{name} is asked to stop: {event.payload.reason}", None),
    EventType.SUCCEEDED: ("{event.owner} finishes {name}: COMMITTED", "green"),
    EventType.CANCELLED: ("{name} is cancelled ({event.cause})", "yellow"),
    EventType.DEAD_LETTERED: ("{name} is dead_lettered ({event.payload.reason_code})", "red"),
}
"""What is told of an event, and in which colour. A stalled job is told by the cause."""

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


class Demo:
    """The jobs and the workers; prints what happens to them."""

    def __init__(self, directory: Path) -> None:
        self.file, self.acks = directory / "demo.db", AckWriter(directory / "demo.acks")
        # For the client here, the workers and `tenure verify`.
        os.environ[URL_VARIABLE] = f"sqlite:///{self.file.resolve()}"
        os.environ[LEASE_BOUNDS_VARIABLE] = "1s,120s"
        self.jobs: dict[str, Job[Any]] = {}
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._told: set[str] = set()
        self._last_told: dict[str, str] = {}
        self._began = datetime.now(UTC)

    def start_worker(self, name: str) -> None:
        """Start a `tenure worker`. Jobs wait in the queue until it is ready."""
        words = ["worker", f"{__name__}:app", "--name", name, "-q", "default", "-c", "2"]
        command = [sys.executable, "-m", "tenure", *words, "--grace", "3s"]
        null = subprocess.DEVNULL
        with self.log(name).open("wb") as log:
            self.workers[name] = subprocess.Popen(command, stdin=null, stdout=null, stderr=log)
        self.tell(f"{name} is started: tenure worker, pid {self.workers[name].pid}")

    def log(self, worker: str) -> Path:
        """The file that a worker logs to."""
        return self.file.with_name(f"{worker}.log")

    def send(self, number: signal.Signals, name: str) -> int:
        """Send a worker a signal while nobody writes: a machine that freezes holds no lock on
        another machine's disk, but this worker could hold SQLite's only write lock."""
        pid = self.workers[name].pid
        with closing(sqlite3.connect(self.file, timeout=GIVE_UP_AFTER_S)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            self.workers[name].send_signal(number)
            os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)  # every thread has had it
        return pid

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
        self.acks.close()

    def enqueue(self, name: str, call: Call[Any]) -> None:
        """Enqueue a job and follow it under this name."""
        command = app.command(call)
        self.ask(command)
        self.jobs[name] = app.get(command.job_id)

    def ask(self, command: Enqueue | Cancel) -> None:
        """Send a command; record it and its answer for `tenure verify --acks`."""
        self.acks.write(request_line(command, at=self.acks.clock()))
        answer = app.coordination.execute(command)
        assert isinstance(answer, Reply)
        self.acks.write(answer_line(command, answer, at=self.acks.clock()))

    def until(self, look: Callable[[], T | None], what: str) -> T:
        """Tell what happens until `look` finds something; returns that."""
        deadline = time.monotonic() + GIVE_UP_AFTER_S
        while time.monotonic() < deadline:
            found = look()  # before the news: they include what made it true
            self.tell_news()
            if found:
                return found
            time.sleep(POLL_EVERY_S)
        logs = "\n".join(self.log(name).read_text() for name in self.workers)
        raise click.ClickException(f"the demo gave up waiting until {what}; workers log:\n{logs}")

    def until_ended(self) -> None:
        """Wait for every job."""
        jobs = self.jobs.values()
        self.until(lambda: all(job.status.is_terminal for job in jobs), "every job had ended")

    def owner_at_step(self, name: str, step: int) -> str:
        """The worker that runs a job, once the job has come to this step."""

        def look() -> str | None:
            job = self.jobs[name].refresh()
            return job.owner if job.progress and job.progress.done >= step else None

        return self.until(look, f"{name} was at step {step}")

    def tell_news(self) -> None:
        """Tell what is new in the jobs' histories."""
        events = [(e, name) for name, job in self.jobs.items() for e in job.events()]
        news = [each for each in events if each[0].id not in self._told]
        for event, name in sorted(news, key=lambda each: (each[0].ts, each[0].seq)):
            self._told.add(event.id)
            key = event.cause if event.type is EventType.STALLED else event.type
            if key not in TOLD:
                continue
            over = " over" if self._last_told.get(name) == EventCause.LEASE_EXPIRED else ""
            self._last_told[name], (text, colour) = key, TOLD[key]
            facts = {"event": event, "name": name, "over": over, "error": event.payload.error}
            self.tell(text.format(**facts), colour, at=event.ts)

    def tell(self, text: str, colour: str | None = None, *, at: datetime | None = None) -> None:
        """Print the time since the beginning and the first line of a text, as one line."""
        passed_s = ((at or datetime.now(UTC)) - self._began).total_seconds()
        line = f"  {passed_s:5.1f}s  {printable(text.splitlines()[0])}"
        click.secho(shortened(line, terminal_columns() or LOG_COLUMNS), fg=colour)


def as_json(value: object) -> str:
    """A result as it is stored."""
    return msgspec.json.encode(value).decode()


def mixed_jobs(demo: Demo) -> None:
    """Jobs that succeed, fail, crash and are cancelled."""
    click.secho("\n1. Two workers and a mix of jobs: quick, flaky, poisonous, endless", bold=True)
    demo.start_worker("anna")
    demo.start_worker("boris")
    demo.enqueue("endless", slow.call(steps=10_000))
    demo.enqueue("flaky", flaky.call())
    demo.enqueue("poison", poison.call())
    demo.enqueue("quick-1", quick.call(7))
    demo.enqueue("quick-2", quick.call(8))
    demo.owner_at_step("endless", 3)
    job_id, channel = demo.jobs["endless"].id, app.channel
    request_id, reason = channel.new_request_id(), "nobody needs it any more"
    demo.ask(Cancel(job_id=job_id, actor=channel.actor, request_id=request_id, reason=reason))
    demo.until_ended()


def killed_worker(demo: Demo) -> None:
    """Another worker continues the job of a killed one from its checkpoint."""
    click.secho("\n2. kill -9 in the middle of a job", bold=True)
    demo.enqueue("slow", slow.call(steps=12))
    owner = demo.owner_at_step("slow", 4)
    demo.tell(f"{owner} is killed: kill -9 {demo.send(signal.SIGKILL, owner)}", "red")
    demo.tell("a killed worker reports nothing: slow waits until the lease expires")
    demo.start_worker("clara")
    demo.until_ended()
    demo.tell(f"which attempt did each step of slow: {as_json(demo.jobs['slow'].result())}")


def frozen_worker(demo: Demo) -> None:
    """Another worker does the job of a frozen one, whose late result is refused."""
    click.secho("\n3. A worker freezes, its lease expires, it wakes up with a result", bold=True)
    demo.enqueue("precious", precious.call(steps=8))
    frozen = demo.owner_at_step("precious", 1)
    demo.tell(f"{frozen} freezes: kill -STOP {demo.send(signal.SIGSTOP, frozen)}", "red")
    demo.tell("its handler, a process of its own, finishes; nobody reads the result")
    demo.until_ended()
    demo.tell(f"{frozen} wakes up: kill -CONT {demo.send(signal.SIGCONT, frozen)}")

    def log_line() -> str | None:
        lines = demo.log(frozen).read_text().splitlines()
        return next((line for line in lines if " CANCELLED " in line), None)

    def refused() -> Observation | None:
        seen = store.load_observations(job.id)
        return next((each for each in seen if each.type is ObservationType.RESULT_DISCARDED), None)

    job, what = demo.jobs["precious"].refresh(), f"the late result of {frozen} was refused"
    logged = demo.until(log_line, what).partition(" WARNING ")[2].replace(job.id, "precious")
    demo.tell(f"{frozen} logs: {logged}", "yellow")
    with closing(open_store(os.environ[URL_VARIABLE])) as store:
        late = demo.until(refused, what)
    body = (late.body or b"").decode()
    demo.tell(f"{frozen}'s late result refused ({late.cause}): {body}", "red")
    demo.tell(f"the result of {job.last_owner} stands: {as_json(job.result)}", "green")


def check_history(demo: Demo) -> bool:
    """Show how the jobs ended; whether `tenure verify` finds nothing wrong."""
    click.secho("\n4. How they ended", bold=True)
    jobs = {name: job.refresh() for name, job in demo.jobs.items()}
    rows = [
        (name, job.status, job.attempt, job.last_owner, as_json(job.result) if job.result else None)
        for name, job in jobs.items()
    ]
    print_table(["JOB", "STATUS", "ATTEMPT", "OWNER", "RESULT"], rows)
    click.secho("\n5. tenure verify", bold=True)
    verify = ["verify", "--acks", str(demo.file.with_suffix(".acks"))]
    is_verified = (
        subprocess.run([sys.executable, "-m", "tenure", *verify], check=False).returncode == 0
    )
    expected = {JobStatus.SUCCEEDED, JobStatus.CANCELLED, JobStatus.DEAD_LETTERED}
    return is_verified and {job.status for job in jobs.values()} == expected


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
