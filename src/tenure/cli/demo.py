"""`tenure demo`: half a minute with real workers and real kills, ending in a proof.

A SQLite file in a temporary directory, `tenure worker` processes that share it, one of them killed
with SIGKILL and one frozen past its lease. Nothing is staged: what is shown is what the log, the
rows and the workers themselves say.
"""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from tenure.cli.demo_app import app, endless, flaky, poison, precious, quick, slow
from tenure.cli.demo_screen import Screen, short
from tenure.cli.demo_stage import Stage
from tenure.core.ids import JobId
from tenure.core.observations import Observation
from tenure.core.vocabulary import JobStatus, ObservationType

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def act(stage: Stage, title: str) -> None:
    """A headline."""
    stage.screen.say("", click.style(title, bold=True))


def owner_once(stage: Stage, job_id: JobId, *, steps: int) -> str:
    """Who runs the job, once it has come this far."""

    def has_come_far() -> bool:
        row = stage.rows[job_id]
        return row.owner is not None and row.progress is not None and row.progress.done >= steps

    stage.until(has_come_far, f"{stage.names[job_id]} is at step {steps}")
    return str(stage.rows[job_id].owner)


def until_ended(stage: Stage) -> None:
    """Wait for every job there is."""
    stage.until(
        lambda: all(stage.rows[job_id].status.is_terminal for job_id in stage.names),
        "every job has ended",
    )


def act_one(stage: Stage) -> None:
    """Everyday life."""
    act(stage, "1. Two workers and a mix of jobs: quick, flaky, poisonous, endless")
    stage.hire("anna")
    stage.hire("boris")
    unwanted = endless.enqueue()
    endless_id = stage.follow("endless", unwanted)
    stage.follow("flaky", flaky.enqueue())
    stage.follow("poison", poison.enqueue())
    for number, job in enumerate([quick.enqueue(7), quick.enqueue(8)], start=1):
        stage.follow(f"quick-{number}", job)
    owner_once(stage, endless_id, steps=3)
    unwanted.cancel(reason="nobody needs it any more")
    until_ended(stage)


def act_two(stage: Stage) -> None:
    """A worker is killed; its job goes on elsewhere, from its checkpoint."""
    act(stage, "2. kill -9 in the middle of a job")
    job_id = stage.follow("slow", slow.enqueue(steps=12))
    stage.kill(owner_once(stage, job_id, steps=4))
    stage.tell("nobody is left to report it: slow waits until the lease has run out")
    stage.hire("clara")
    until_ended(stage)
    result = stage.rows[job_id].result or b""
    stage.tell(f"which attempt did each step of slow: {short(result.decode())}")


def act_three(stage: Stage) -> None:
    """A worker freezes, its job is done by another, and what it brings later is refused."""
    act(stage, "3. A worker freezes, its lease ends, it wakes up with a result")
    job_id = stage.follow("precious", precious.enqueue(steps=8))
    zombie = owner_once(stage, job_id, steps=1)
    stage.freeze(zombie)
    stage.tell("its handler, a process of its own, finishes, and nobody hears of it")
    until_ended(stage)
    stage.thaw(zombie)

    def is_told() -> bool:
        return any(name == zombie and "CANCELLED" in line for name, line in stage.heard)

    stage.until(lambda: is_told() and bool(refused(stage, job_id)), f"{zombie} is refused")
    late = refused(stage, job_id)[0]
    stage.tell(
        f"{zombie}'s late result {click.style('refused', fg='red')} ({late.cause}): "
        f"{short((late.body or b'').decode())}, kept beside the log"
    )
    stands = stage.rows[job_id]
    stage.tell(
        f"the result of {stands.last_owner} stands: {short((stands.result or b'').decode())}"
    )


def refused(stage: Stage, job_id: JobId) -> list[Observation]:
    """The results of a job that came too late."""
    return [
        seen
        for seen in stage.store.load_observations(job_id)
        if seen.type is ObservationType.RESULT_DISCARDED
    ]


def epilogue(stage: Stage) -> bool:
    """How everything ended, and whether the history holds."""
    act(stage, "4. How they ended")
    stage.screen.keep(stage.picture(stage.store.now()))
    act(stage, "5. tenure verify")
    verify = [sys.executable, "-m", "tenure", "verify", "--url", stage.url]
    proof = subprocess.run([*verify, "--acks", str(stage.acks_file)], check=False)
    wanted = {JobStatus.SUCCEEDED, JobStatus.CANCELLED, JobStatus.DEAD_LETTERED}
    return proof.returncode == 0 and {row.status for row in stage.rows.values()} == wanted


def ignore_interrupts() -> None:
    """A second Ctrl-C must not leave workers behind; stopping them takes seconds at most."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: what it started is stopped first, and only once."""

    def end(number: int, _: FrameType | None) -> None:
        ignore_interrupts()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command()
def demo() -> None:
    """Watch jobs survive a killed and a frozen worker, then check the history."""
    screen = Screen()
    try:
        with ending_in_order(), tempfile.TemporaryDirectory(prefix="tenure-demo-") as directory:
            stage = Stage(Path(directory), screen)
            try:
                with app.channel.diverted(stage.link):
                    act_one(stage)
                    act_two(stage)
                    act_three(stage)
                    holds = epilogue(stage)
            finally:
                ignore_interrupts()
                stage.close()
    finally:
        screen.close()
    if not holds:
        raise click.ClickException("something does not hold; see above")
    click.secho("\nEvery job ended, every invariant of the history holds.", fg="green")
