"""Handlers for the end-to-end tests: each misbehaves in one way people know from production."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from tenure import Context, Retry, Tenure
from tests.e2e import followers, joins, ledger, papers, trouble

app = Tenure()
LEASE = "2s"
CALM = "6s"  # where no lease has to run out, a busy machine should not make one
QUICK = Retry(max_attempts=3, initial="100ms", cap="200ms")
PATIENT = Retry(max_attempts=30, initial="100ms", cap="200ms")  # whoever is killed
ONCE = Retry(max_attempts=1, initial="100ms", cap="2s")  # the cap also spreads what an outage hit
ledger.add_to(app, lease=LEASE, retry=QUICK)
papers.add_to(app, lease=CALM, retry=QUICK)
trouble.add_to(app, lease=CALM)
followers.add_to(app, lease=CALM, retry=QUICK)
joins.add_to(app, lease=CALM, retry=PATIENT)


@app.job(lease=LEASE, retry=QUICK)
def add(one: int, two: int) -> int:
    """Well behaved."""
    return one + two


@app.job(lease=CALM, retry=QUICK)
def chat(name: str, note: str) -> None:
    """Says something in pieces, waits for a note, and says something more."""
    for number in range(20):
        for piece in (f"{name} ", f"says {number}", "\n"):
            sys.stdout.write(piece)
            sys.stdout.flush()
            time.sleep(0.005)
    while not Path(note).exists():
        time.sleep(0.02)
    sys.stdout.write(f"{name} is done")


@app.job(lease=CALM, retry=QUICK)
def delegate(to: str) -> str:
    """Enqueues another job, for somebody else's queue."""
    return app.enqueue("add", {"one": 1, "two": 2}, queue=to).id


@app.job(lease=CALM, retry=QUICK)
def linger(seconds: float, ctx: Context) -> int:
    """Works for a while and says so; stops when asked."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ctx.check()
        time.sleep(0.05)
    return ctx.attempt


@app.job(lease=LEASE, retry=ONCE)
def fragile(seconds: float, ctx: Context) -> str:
    """May not fail even once."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ctx.check()
        time.sleep(0.05)
    return "whole"


@app.job(lease="2m", retry=ONCE)
def unhurried(pid_file: str, ctx: Context) -> None:
    """Its lease is long, and so its heartbeats are half a minute apart."""
    Path(pid_file).write_text(str(os.getpid()))
    while True:
        ctx.check()
        time.sleep(0.05)


@app.job(lease=LEASE, retry=ONCE)
def deaf(pid_file: str) -> None:
    """An infinite loop that never looks up."""
    Path(pid_file).write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)


@app.job(lease="5s", retry=ONCE)  # a busy disk holds a renewal up for more than a second
def hog(seconds: int) -> str:
    """Holds the interpreter lock in a C call: no thread of this process can run."""
    ctypes.PyDLL(None).sleep(seconds)
    return "still mine"


@app.job(lease=LEASE, retry=ONCE)
def poison(how: str) -> None:
    """Takes its process down."""
    match how:
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":
            bytearray(2**30)
        case _:
            poison(how)  # for ever
