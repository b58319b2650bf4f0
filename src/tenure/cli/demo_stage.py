"""The demo's stage: a store, real `tenure worker` processes, and somebody who tells what happens.

Everything told is an event of the log, a row of the store, or a line a worker wrote to its stderr.
What is started here is stopped here, by pid.
"""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import click

from tenure.cli.demo_screen import Screen, bar, short, table
from tenure.cli.output import coloured
from tenure.client.channel import Link
from tenure.client.jobs import Job
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Cancel, Command, Enqueue
from tenure.core.events import Event
from tenure.core.ids import JobId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.job import Job as JobRecord
from tenure.core.verdicts import Answer, Reply
from tenure.core.vocabulary import EventCause, EventType
from tenure.ports import Store
from tenure.protocol import URL_VARIABLE
from tenure.settings import LEASE_BOUNDS_VARIABLE, limits_from_environment
from tenure.verify import AckWriter, heard, sent
from tenure.wiring import open_store

LEASE_BOUNDS = "1s,120s"
PATIENCE_S = 90.0
LOOK_EVERY_S = 0.1
STOP_WITHIN_S = 10.0
_COLUMNS = ("JOB", "STATUS", "ATTEMPT", "OWNER", "LEASE", "PROGRESS, RESULT")
_DATED = re.compile(r"\S+ \S+ (?P<level>[A-Z]+) ")  # how a worker's log begins its lines
_WIDTHS = (10, 13, 7, 6, 5, 44)


class NotingCoordinator(Coordinator):
    """Writes down what a client asked and heard, so that verify can hold the store to it."""

    def __init__(self, store: Store, acks: AckWriter) -> None:
        limits = limits_from_environment({LEASE_BOUNDS_VARIABLE: LEASE_BOUNDS})
        super().__init__(store, limits=limits)
        self._acks = acks

    def submit_many(self, commands: Sequence[Command]) -> "Future[list[Answer]]":
        """As ever, with a line before and a line after."""
        for command in commands:
            assert isinstance(command, Enqueue | Cancel)  # all that the demo's client sends
            self._acks.write(sent(command, at=self._acks.clock()))
        answered = super().submit_many(commands)
        for command, answer in zip(commands, answered.result(), strict=True):
            assert isinstance(command, Enqueue | Cancel)
            assert isinstance(answer, Reply)
            self._acks.write(heard(command, answer, at=self._acks.clock()))
        return answered


class Stage:
    """The store, the workers and the screen."""

    def __init__(self, directory: Path, screen: Screen) -> None:
        self.file = directory / "demo.db"
        self.url = f"sqlite:///{self.file.resolve()}"
        self.acks_file = directory / "demo.acks"
        self.screen = screen
        self.store = open_store(self.url, migrate=True)
        self._acks = AckWriter(self.acks_file)
        self._coordinator = NotingCoordinator(self.store, self._acks)
        self.link = Link(coordination=self._coordinator, close=self._coordinator.close)
        self.names: dict[JobId, str] = {}
        self.rows: dict[JobId, JobRecord] = {}
        self.workers: dict[str, subprocess.Popen[str]] = {}
        self.condition: dict[str, str] = {}
        self.heard: list[tuple[str, str]] = []
        self._lines: Queue[tuple[str, str]] = Queue()
        self._told: dict[JobId, int] = {}
        self._lost: set[JobId] = set()
        self._began = self.store.now()

    # --- workers -------------------------------------------------------------------------------

    def hire(self, name: str) -> None:
        """Start a worker; jobs wait for it, so nobody else has to."""
        words = ["worker", "tenure.cli.demo_app:app", "--name", name, "-c", "2", "--grace", "3s"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure", *words],
            env=os.environ | {URL_VARIABLE: self.url, LEASE_BOUNDS_VARIABLE: LEASE_BOUNDS},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
        )
        self.workers[name] = process
        self.condition[name] = "at work"
        Thread(target=self._listen, args=(name, process), daemon=True).start()
        self.tell(f"{name} is hired: tenure worker, pid {process.pid}")

    def _listen(self, name: str, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._lines.put((name, line.rstrip()))

    def kill(self, name: str) -> None:
        """SIGKILL: no last words."""
        self.workers[name].kill()
        self.workers[name].wait()
        self.condition[name] = "killed"
        self.tell(click.style(f"{name} is killed: kill -9 {self.workers[name].pid}", fg="red"))

    def freeze(self, name: str) -> None:
        """SIGSTOP, at a moment in which it does not hold SQLite's only write lock: a machine that
        freezes takes no other machine's lock with it, a process beside us would."""
        process = self.workers[name]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            process.send_signal(signal.SIGSTOP)
            # Until every thread is stopped, one of them may still take the lock.
            os.waitpid(process.pid, os.WUNTRACED)
            if self._is_writable():
                break
            process.send_signal(signal.SIGCONT)
            if time.monotonic() > deadline:
                raise click.ClickException("the store stayed locked")
            time.sleep(LOOK_EVERY_S)
        self.condition[name] = "frozen"
        self.tell(click.style(f"{name} freezes: kill -STOP {process.pid}", fg="red"))

    def _is_writable(self) -> bool:
        with closing(sqlite3.connect(self.file, timeout=1, isolation_level=None)) as probe:
            try:
                probe.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            probe.execute("ROLLBACK")
            return True

    def thaw(self, name: str) -> None:
        """SIGCONT: it goes on as if nothing had happened."""
        self.workers[name].send_signal(signal.SIGCONT)
        self.condition[name] = "at work"
        self.tell(f"{name} wakes up: kill -CONT {self.workers[name].pid}")

    def close(self) -> None:
        """Stop what was started, by pid: ask, wait, then kill."""
        running = [each for each in self.workers.values() if each.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + STOP_WITHIN_S
        for process in running:
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._acks.close()
        self._coordinator.close()
        self.store.close()

    # --- watching ------------------------------------------------------------------------------

    def follow(self, name: str, job: Job[Any]) -> JobId:
        """Show this job from now on, under a name people can follow."""
        self.names[job.id] = name
        return job.id

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Look, tell and draw until it is so."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.look()
            if is_so():
                return
            if time.monotonic() > deadline:
                raise click.ClickException(f"the demo waited in vain until {what}")
            time.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Read rows, events and what workers said; tell what is new."""
        loaded = self.store.load(list(self.names))
        changed = [
            job_id for job_id, row in loaded.jobs.items() if row.rev > self._told.get(job_id, 0)
        ]
        self.rows = loaded.jobs
        news = [
            event
            for events in self.store.load_histories(changed).values()
            for event in events
            if event.seq > self._told.get(event.job_id, 0)
        ]
        for event in sorted(news, key=lambda each: (each.ts, each.seq)):
            self._told[event.job_id] = event.seq
            said = self._in_words(event)
            if said:
                self.tell(said, at=event.ts)
        self._pass_on_what_workers_said()
        self.screen.draw(self.picture(loaded.now))

    def _pass_on_what_workers_said(self) -> None:
        while True:
            try:
                name, line = self._lines.get_nowait()
            except Empty:
                return
            dated = _DATED.match(line)
            if dated is not None and dated["level"] == "INFO":
                continue  # that it is up, and what it listens to: the table shows it
            line = line if dated is None else line[dated.end() :]
            for job_id, known_as in self.names.items():
                line = line.replace(job_id, known_as)
            self.heard.append((name, line))
            self.tell(click.style(f"{name} logs: {short(line, 90)}", fg="yellow"))

    def tell(self, text: str, *, at: Instant | None = None) -> None:
        """A line with the time since the beginning, on the store's clock."""
        passed_s = ((at or self.store.now()) - self._began) / MICROSECONDS_PER_SECOND
        self.screen.say(f"  {passed_s:5.1f}s  {text}")

    def _in_words(self, event: Event) -> str:
        name, facts = self.names[event.job_id], event.payload
        error = "" if facts.error is None else f"{facts.error.type}: {facts.error.message}"
        match event.type:
            case EventType.CLAIMED if event.job_id in self._lost:
                self._lost.discard(event.job_id)
                return f"{event.owner} takes over {name} (attempt {event.attempt})"
            case EventType.CLAIMED:
                return f"{event.owner} takes {name} (attempt {event.attempt})"
            case EventType.STALLED if event.cause is EventCause.LEASE_EXPIRED:
                self._lost.add(event.job_id)
                said = f"the lease of {event.owner} on {name} has run out"
                return click.style(said, fg="yellow")
            case EventType.STALLED:
                return f"{name} fails in attempt {event.attempt}: {short(error, 76)}"
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

    # --- the picture ---------------------------------------------------------------------------

    def picture(self, now: Instant) -> list[str]:
        """The table of jobs and the line of workers."""
        rows = [self._row(self.names[job_id], row, now) for job_id, row in self.rows.items()]
        people = []
        for name, condition in self.condition.items():
            colour = {"at work": "green", "frozen": "cyan"}.get(condition, "red")
            sign = {"at work": "●", "frozen": "❄"}.get(condition, "✖")
            people.append(click.style(f"{sign} {name} {condition}", fg=colour))
        return ["", *table(_COLUMNS, rows, _WIDTHS), "", "  workers  " + "   ".join(people)]

    def _row(self, name: str, job: JobRecord, now: Instant) -> list[str]:
        lease = ""
        if job.lease is not None:
            left_s = max(0, job.lease.expires_at - now) / MICROSECONDS_PER_SECOND
            lease = click.style(f"{left_s:.1f}s", fg="red" if left_s < 1 else None)
        told = "" if job.progress is None else bar(job.progress.done, job.progress.total)
        error = job.error or job.last_error
        if job.result is not None:
            told = f"{told} {short(job.result.decode(), 44 - len(click.unstyle(told)))}".strip()
        elif error is not None and job.progress is None:
            told = short(f"{error.type}: {error.message}", 44)
        owner = str(job.owner or job.last_owner or "")
        return [name, coloured(job.status), str(job.attempt or ""), owner, lease, told]
