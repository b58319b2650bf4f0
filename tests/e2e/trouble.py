"""Handlers that fail, are stopped, leave traces and are undone, each in its own way."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tenure import Context, PermanentError, Retry, Tenure, TransientError

TWICE = Retry(max_attempts=2, initial="100ms", cap="200ms")


def add_to(app: Tenure, *, lease: str) -> None:
    """Register the handlers."""
    _add_failures(app, lease)
    _add_stops(app, lease)
    _add_crowds(app, lease)

    @app.job(lease=lease, retry=TWICE)
    def steps(ctx: Context) -> list[int]:
        """Fails half-way, and goes on where it was."""
        done = list(ctx.checkpoint or [])
        sys.stdout.write(f"attempt {ctx.attempt} begins with {done}\n")
        for step in range(len(done), 4):
            done.append(10 * ctx.attempt + step)
            ctx.save(done)
            ctx.progress(step + 1, 4)
            if ctx.attempt == 1 and step == 1:
                raise TransientError("half-way")
        return done

    @app.job(lease=lease)
    def refund(job_id: str, kind: str, status: str, payload: dict[str, int]) -> list[Any]:
        """Undoes a charge."""
        return [job_id, kind, status, payload["amount"]]

    @app.job(lease=lease, compensate=refund)
    def charge(amount: int) -> None:
        """Cannot be done."""
        raise PermanentError("card declined")

    @app.job(lease=lease)
    def pid() -> int:
        """Which process ran it."""
        return os.getpid()


def _add_failures(app: Tenure, lease: str) -> None:
    @app.job(lease=lease, retry=TWICE)
    def unlucky(how: str, ctx: Context) -> Any:
        """Raises, or returns what cannot travel."""
        match how:
            case "once" if ctx.attempt > 1:
                return "second"
            case "permanent":
                raise PermanentError("no such account")
            case "unencodable":
                return object()
            case _:
                raise RuntimeError("no luck")

    @app.job(lease=lease, retry=Retry(max_attempts=1, on_exhausted="fail"))
    def resigned() -> None:
        """Its policy wants no dead letter."""
        raise RuntimeError("no luck")

    @app.job(lease=lease, timeout="1s", retry=Retry(max_attempts=1))
    def endless() -> None:
        """Has a second."""
        time.sleep(600)


def _add_stops(app: Tenure, lease: str) -> None:
    @app.job(lease=lease)
    async def dream(note: str) -> None:
        """A coroutine that is told by an exception."""
        Path(note + ".ready").touch()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            Path(note + ".told").touch()
            raise

    @app.job(lease=lease, grace="1s")
    def obstinate(note: str) -> None:
        """Never looks up, and has a second to."""
        Path(note + ".here").write_text(str(os.getpid()))
        Path(note + ".here").rename(note + ".ready")  # whoever sees the file can read it
        while True:
            time.sleep(0.05)

    @app.job(lease=lease)
    def attentive(note: str, ctx: Context) -> None:
        """Looks up all the time."""
        Path(note + ".ready").touch()
        try:
            while True:
                ctx.check()
                time.sleep(0.05)
        finally:
            Path(note + ".told").touch()


def _add_crowds(app: Tenure, lease: str) -> None:
    @app.job(lease=lease, retry=Retry(max_attempts=1))
    def family(note: str) -> None:
        """Never looks up, and has started a program that does not either."""
        program = subprocess.Popen(["sleep", "600"])
        half = Path(note + ".half")
        half.write_text(f"{os.getpid()} {program.pid}")
        half.rename(note)
        while True:
            time.sleep(0.05)

    @app.job(lease=lease, concurrency=2)
    def scarce() -> tuple[float, float]:
        """Two of these at once are as many as a worker may run; from when to when this one did."""
        began = time.monotonic()
        time.sleep(0.3)
        return began, time.monotonic()
