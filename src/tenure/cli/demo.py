"""`tenure demo`: a minute with real processes and real kills, ending in a proof.

A SQLite file in a temporary directory, worker processes that share it, one of them killed with
SIGKILL and one put to sleep past its lease. Everything printed is what the coordinator answered
or what the event log says; nothing is staged.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import click
import msgspec

from tenure.cli.demo_worker import QUEUE, Task
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Cancel, Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE, JobId, Kind, RequestId, client_actor, new_job_id
from tenure.core.instants import MICROSECONDS_PER_SECOND, seconds
from tenure.core.policy import Backoff, Policy
from tenure.core.verdicts import Reply
from tenure.ports import Store
from tenure.verify import State, verify
from tenure.wiring import limits_from_environment, open_store

LEASE_BOUNDS = "1s,120s"
LEASE_S = 2.0
PATIENCE_S = 60.0
CLIENT = client_actor("demo")
POLICY = Policy(
    lease_us=seconds(LEASE_S),
    max_attempts=3,
    backoff=Backoff(initial_us=seconds(0.2), cap_us=seconds(0.5)),
)


class Said(msgspec.Struct, frozen=True):
    """One line of a worker."""

    worker: str
    what: str
    job_id: str
    attempt: int = 0
    verdict: dict[str, object] = {}


class Stage:
    """The store, the workers and the line they speak on."""

    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:////{str(directory / 'demo.db').lstrip('/')}"
        self.store: Store = open_store(self.url, migrate=True)
        self.coordinator = Coordinator(self.store, limits=limits_from_environment())
        self.names: dict[str, str] = {}
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._lines: Queue[Said] = Queue()
        self._began = time.monotonic()

    def hire(self, name: str) -> None:
        """Start a worker process and wait until it is ready."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure.cli.demo_worker", self.url, name],
            stdout=subprocess.PIPE,
        )
        self.workers[name] = process
        Thread(target=self._listen, args=(process,), daemon=True).start()
        self.until(lambda said: said.worker == name and said.what == "ready")

    def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(msgspec.json.decode(line, type=Said))

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a worker a signal; the demo's only tool of destruction."""
        self.workers[name].send_signal(number)

    def until(self, is_it: Callable[[Said], bool]) -> Said:
        """Show what workers say until one says what we wait for."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                said = self._lines.get(timeout=0.2)
            except Empty:
                continue
            self.show(said)
            if is_it(said):
                return said
        raise click.ClickException("a worker did not do what the demo waits for")

    def show(self, said: Said) -> None:
        """One line of the timeline."""
        if said.what == "ready":
            return
        name = self.names.get(said.job_id, said.job_id)
        if said.what == "claimed":
            self.tell(f"{said.worker:<6} takes {name} (attempt {said.attempt})")
            return
        kind = str(said.verdict.get("kind"))
        detail = said.verdict.get("disposition") or said.verdict.get("cause") or ""
        colour = {"COMMITTED": "green", "CANCELLED": "yellow"}.get(kind, "red")
        did = "reports" if said.what == "reported" else "asks about"
        self.tell(f"{said.worker:<6} {did} {name}: {click.style(kind, fg=colour)} ({detail})")

    def tell(self, text: str) -> None:
        """A line with the time since the beginning."""
        click.echo(f"  {time.monotonic() - self._began:5.1f}s  {text}")

    def enqueue(self, name: str, task: Task) -> JobId:
        """One job under a name people can follow."""
        job_id = new_job_id(self.store.now(), os.urandom(16))
        self.names[job_id] = name
        reply = self.coordinator.execute(
            Enqueue(
                job_id=job_id,
                namespace=DEFAULT_NAMESPACE,
                queue=QUEUE,
                kind=Kind(name),
                actor=CLIENT,
                payload=msgspec.json.encode(task),
                policy=POLICY,
            )
        )
        assert isinstance(reply, Reply)
        return job_id

    def close(self) -> None:
        """Stop what was started, by pid."""
        for process in self.workers.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self.coordinator.close()
        self.store.close()


def act_one(stage: Stage) -> None:
    """Everyday life: quick, flaky, poisonous and cancelled jobs."""
    click.secho("\n1. A mix of jobs, one worker", bold=True)
    stage.enqueue("quick", Task())
    stage.enqueue("flaky", Task(fails=1))
    poison = stage.enqueue("poison", Task(is_poison=True))
    unwanted = stage.enqueue("unwanted", Task())
    stage.coordinator.execute(
        Cancel(job_id=unwanted, actor=CLIENT, request_id=RequestId("demo:cancel"))
    )
    stage.tell("client cancels unwanted before anybody took it")
    stage.hire("anna")
    stage.until(
        lambda said: said.job_id == poison and said.verdict.get("disposition") == "dead_lettered"
    )


def act_two(stage: Stage) -> None:
    """A worker is killed; its job is taken over."""
    click.secho("\n2. kill -9 in the middle of a job", bold=True)
    job_id = stage.enqueue("long", Task(steps=15))
    stage.until(lambda said: said.job_id == job_id and said.what == "claimed")
    time.sleep(0.5)
    stage.signal("anna", signal.SIGKILL)
    stage.tell(click.style("anna is killed with SIGKILL", fg="red"))
    stage.hire("boris")
    stage.until(lambda said: said.job_id == job_id and said.what == "reported")


def act_three(stage: Stage) -> None:
    """A worker sleeps through its lease; its late result is refused."""
    click.secho("\n3. A worker freezes, its lease ends, it wakes up", bold=True)
    job_id = stage.enqueue("precious", Task(steps=10))
    stage.until(lambda said: said.job_id == job_id and said.what == "claimed")
    time.sleep(0.5)
    stage.signal("boris", signal.SIGSTOP)
    stage.tell(click.style("boris freezes (SIGSTOP)", fg="red"))
    stage.hire("clara")
    stage.until(lambda said: said.worker == "clara" and said.what == "reported")
    stage.signal("boris", signal.SIGCONT)
    stage.tell("boris wakes up (SIGCONT) and goes on as if nothing had happened")
    stage.until(lambda said: said.worker == "boris" and bool(said.verdict))


def epilogue(stage: Stage) -> bool:
    """What the log says of the precious job, and whether everything holds."""
    click.secho("\n4. What the event log says about precious", bold=True)
    job_id = next(job_id for job_id, name in stage.names.items() if name == "precious")
    first = None
    for event in stage.store.load_histories([JobId(job_id)])[JobId(job_id)]:
        first = first or event.ts
        moved = f"{event.from_status or '-'} -> {event.to_status}"
        when_s = (event.ts - first) / MICROSECONDS_PER_SECOND
        click.echo(
            f"  {event.seq:>3}  +{when_s:5.2f}s  {event.type:<14} {moved:<22} "
            f"attempt {event.attempt}  {event.owner or '':<6} {event.cause or ''}"
        )
    click.secho("\n5. tenure verify", bold=True)
    report = verify(stage.store)
    holding = [finding.id for finding in report.findings if finding.state is State.HOLDS]
    click.echo(f"  {report.jobs} jobs, {report.events} events read")
    click.echo(f"  {click.style('holds', fg='green')}        {' '.join(holding)}")
    if report.violated:
        click.echo(f"  {click.style('violated', fg='red')}     {' '.join(report.violated)}")
    click.echo(f"  not checked  {' '.join(report.not_checked)} (need the clients' own records)")
    rows = stage.store.load([JobId(job_id) for job_id in stage.names]).jobs.values()
    return report.holds and all(row.status.is_terminal for row in rows)


@click.command()
def demo() -> None:
    """Watch jobs survive a killed and a frozen worker, then check the history."""
    os.environ.setdefault("TENURE_LEASE_BOUNDS", LEASE_BOUNDS)
    with tempfile.TemporaryDirectory(prefix="tenure-demo-") as directory:
        stage = Stage(Path(directory))
        try:
            act_one(stage)
            act_two(stage)
            act_three(stage)
            holds = epilogue(stage)
        finally:
            stage.close()
    if not holds:
        raise click.ClickException("something does not hold; see above")
    click.secho("\nEvery job ended, every invariant holds.", fg="green")
