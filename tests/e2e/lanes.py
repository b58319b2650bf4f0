"""An application with threads, noise, and a handler that its children do not have."""

import os
import sys
import threading
import time
from pathlib import Path

from tenure import Cancelled, Context, DeadLetter, Retry, Tenure

app = Tenure()
CALM = "6s"  # soon told of a cancel, and longer than a busy machine holds its breath
BRISK = "12s"  # a heartbeat every four seconds, and time to freeze a worker between two
LONG = "120s"  # no heartbeat is due while a test does something else
ONCE = Retry(max_attempts=1)
SEASON = "E2E_SEASON"
LINE = "x" * 1023 + "\n"


def _wait(note: str, ctx: Context) -> int:
    """Say where it runs; wait for the note, and look up all the time."""
    here = Path(note + ".here")
    here.write_text(f"{os.getpid()} {threading.get_native_id()}")
    here.rename(note + ".ready")
    try:
        while not Path(note).exists():
            ctx.check()
            time.sleep(0.02)
    except Cancelled:
        Path(note + ".told").touch()
        raise
    return ctx.attempt


def _shout(kibibytes: int) -> int:
    sys.stdout.write("begins\n")
    for number in range(kibibytes):
        (sys.stderr if number % 2 else sys.stdout).write(LINE)
    sys.stdout.write("ends\n")
    return kibibytes


@app.job(lease=CALM, retry=ONCE)
def steady(note: str, ctx: Context) -> int:
    """Waits in a process of its own."""
    return _wait(note, ctx)


@app.job(lease=CALM, retry=ONCE, isolation="thread")
def patient(note: str, ctx: Context) -> int:
    """Waits in a thread."""
    return _wait(note, ctx)


@app.job(lease=CALM, retry=ONCE, isolation="thread")
def stumble() -> None:
    """Fails in a thread."""
    raise ValueError("tripped")


@app.job(lease=CALM)
def bury() -> None:
    """Gives up its job for good in a process of its own."""
    raise DeadLetter("policy_violation", "not here")


@app.job(lease=CALM, isolation="thread")
def bury_in_thread() -> None:
    raise DeadLetter("infrastructure_failure", "no disk")


@app.job(lease=CALM)
async def bury_in_loop() -> None:
    raise DeadLetter("policy_violation", "not here")


@app.job(lease=CALM, retry=ONCE)
def shout(kibibytes: int) -> int:
    """Prints more than anybody wants to read."""
    return _shout(kibibytes)


@app.job(lease=CALM, retry=ONCE, isolation="thread")
def shout_in_thread(kibibytes: int) -> int:
    """The same beside others."""
    return _shout(kibibytes)


@app.job(lease=LONG, retry=ONCE)
def last_word(note: str, ctx: Context) -> int:
    """Ends when the note is there, long before anything has to be said about its lease."""
    return _wait(note, ctx)


@app.job(lease=BRISK, retry=ONCE)
def deaf(note: str) -> None:
    """Never looks up, and never ends."""
    Path(note + ".here").write_text(str(os.getpid()))
    Path(note + ".here").rename(note + ".ready")
    while True:
        time.sleep(0.05)


if SEASON in os.environ:

    @app.job(lease=CALM, retry=ONCE)
    def seasonal() -> None:
        """Known to a worker with the setting. Its children, who are not given it, lack it."""
