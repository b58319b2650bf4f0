"""An application for the worker's tests: jobs that succeed, fail, crash, hog, print and wait.

Imported by real children as `tests.worker.sample:app`.
"""

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenure.errors import (
    DeadLetter,
    LeaseConflictError,
    PermanentError,
    Snooze,
    TransientError,
    ValidationError,
)
from tenure.handlers.context import Context
from tenure.handlers.registry import Isolation, Registry, make_handler
from tenure.worker.child.confinement import MEMORY
from tenure.worker.child.context import AttemptContext
from tenure.worker.frames import Ask, SelfCompleted, StoreArtifact

APP = "tests.worker.sample:app"
SHARED = "tests.worker.sample:shared"


class App:
    """What a worker needs of an application: its registry."""

    def __init__(self) -> None:
        self.registry = Registry()

    def job(
        self, isolation: Isolation | None = None, concurrency: int | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.registry.add(make_handler(function, isolation=isolation, concurrency=concurrency))
            return function

        return register


app = App()  # handlers with a process each
shared = App()  # coroutines and threads


# --- results, errors ---------------------------------------------------------------------------


@app.job()
def add(a: int, b: int) -> int:
    return a + b


@app.job()
def pid() -> int:
    return os.getpid()


@app.job()
def fail(how: str, ctx: Context) -> str:
    match how:
        case "permanent":
            raise PermanentError("no such account")
        case "transient":
            raise TransientError("try later", retry_after_s=3600)
        case "dependency":
            raise TransientError("database away", dependency_unavailable=True)
        case "validation":
            raise ValidationError("bad row", path="rows[3]")
        case "policy":
            raise DeadLetter("policy_violation", "may not leave the EU")
        case "conflict":
            raise LeaseConflictError("a newer fence was seen")
        case "snooze":
            raise Snooze(3600)
        case "once":
            if ctx.attempt == 1:
                raise RuntimeError("the first attempt fails")
            return "second"
        case "exit":
            sys.exit(7)
        case _:
            raise RuntimeError(how)


@app.job()
def unencodable() -> Any:
    return object()


@app.job()
def huge() -> str:
    return "x" * (2 * 1024 * 1024)


@app.job()
def environment() -> dict[str, str]:
    return dict(os.environ)


@app.job()
def leak(url: str) -> None:
    token = _connect(url)
    assert token


def _connect(url: str) -> str:
    raise ConnectionError(f"cannot connect to {url}")


@app.job()
def mute() -> str:
    sys.stdout = sys.stderr = None
    return "said nothing"


# --- crashes -----------------------------------------------------------------------------------


@app.job()
def crash(how: str) -> None:
    match how:
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "recursion":
            _recurse(0)
        case "fork":
            if os.fork() == 0:  # a copy that keeps every descriptor open, the socket too
                time.sleep(600)
            os._exit(4)
        case "deaf":
            os.closerange(3, 100)
            time.sleep(600)
        case "thread":  # nothing to report over, and a thread that outlives its handler
            threading.Thread(target=time.sleep, args=(600,)).start()
            os.closerange(3, 100)
        case _:
            raise AssertionError(how)


@app.job()
def eat(megabytes: int) -> int:
    return len(bytearray(megabytes * 1024 * 1024))


@app.job()
def litter() -> int:
    """Leaves what would hit the next job in its process."""
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir("/")
    return os.getpid()


@app.job()
def find() -> list[Any]:
    """What the job before it left."""
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    return [os.getpid(), str(Path.cwd())]


@app.job()
def standing() -> dict[str, int]:
    """What this process may take, and how soon it goes when memory runs out."""
    return {
        "memory": resource.getrlimit(MEMORY)[1],
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "oom": int(Path("/proc/self/oom_score_adj").read_text()),
    }


def _recurse(depth: int) -> int:
    return _recurse(depth + 1) + 1


# --- time and cancellation -----------------------------------------------------------------------


@app.job()
def forever(file: str) -> None:
    """Never listens; leaves its process id and a child of its own behind."""
    program = subprocess.Popen(["sleep", "600"])
    Path(file).write_text(f"{os.getpid()} {program.pid}")
    while True:
        time.sleep(0.01)


@app.job()
def nap(amount_s: float, file: str = "") -> str:
    if file:
        Path(file).write_text(str(os.getpid()))
    time.sleep(amount_s)
    return "rested"


@app.job()
def waiting(file: str, until: str) -> str:
    """Takes as long as the test likes."""
    Path(file).write_text(str(os.getpid()))
    while not Path(until).exists():
        time.sleep(0.01)
    return "it came"


@app.job()
def careful(amount_s: float, journal: str, ctx: Context) -> None:
    """Looks at its lease all the time, and writes down from when to when it believed in it."""
    began = last = time.monotonic()
    try:
        while last < began + amount_s:
            time.sleep(0.01)
            ctx.check()
            last = time.monotonic()
    finally:
        with Path(journal).open("a") as file:
            file.write(f"{ctx.job_id} {ctx.attempt} {began} {last}\n")


@app.job()
def polite(ctx: Context, file: str = "") -> str:
    if file:
        Path(file).write_text(str(os.getpid()))
    while True:
        ctx.check()
        time.sleep(0.01)


@app.job()
def hog(amount_s: int) -> str:
    """Holds the GIL: a C call through PyDLL does not let go of it."""
    ctypes.PyDLL(None).sleep(amount_s)
    return "hogged"


@app.job()
def saver(ctx: Context) -> list[int]:
    done = list(ctx.checkpoint or [])
    for step in range(len(done), 6):
        done.append(step * 10 + ctx.attempt)
        ctx.save(done)
        ctx.progress(step + 1, 6, note=f"step {step}")
        if ctx.attempt == 1 and step == 2:
            raise RuntimeError("half-way")
    return done


@app.job()
def fences(ctx: Context) -> list[Any]:
    return [ctx.fence, ctx.attempt, ctx.still_mine(), str(ctx.job_id)]


@app.job()
def leave(how: str, ctx: Context, file: str = "") -> str:
    ctx.artifact("notes.txt", f"attempt {ctx.attempt}")
    match how:
        case "large":
            ctx.artifact("large.bin", bytes(2_000_000), media_type="application/zip")
        case "fails once":
            if ctx.attempt == 1:
                raise RuntimeError("the first attempt fails")
        case "badly":
            ctx.artifact("notes.txt", "x", media_type="not a media type")
        case "waits":
            Path(file).write_text(str(os.getpid()))
            time.sleep(600)
        case _:
            raise AssertionError(how)
    return how


@app.job()
def flood(ctx: Context) -> str:
    """What user code could do that found the way to its supervisor."""
    assert isinstance(ctx, AttemptContext)
    for number in range(300):
        file = StoreArtifact(f"file-{number}", "text/plain", bytes(10_000))
        ctx._send(Ask(ctx._run, number, file))
        ctx._send(SelfCompleted(ctx._run + 1000, b"1"))
    return "flooded"


@app.job()
def chatty(lines: int) -> str:
    for number in range(lines):
        sys.stdout.write(f"line {number} " + "x" * 80 + "\n")
    sys.stderr.write("the end\n")
    return "said"


@app.job(concurrency=2)
def limited(directory: str) -> int:
    """How many of its kind ran at once, as seen by files."""
    mark = Path(directory) / str(os.getpid())
    mark.touch()
    time.sleep(0.1)
    seen = len(list(Path(directory).iterdir()))
    mark.unlink()
    return seen


# --- coroutines and threads ----------------------------------------------------------------------


@shared.job()
async def anap(amount_s: float) -> str:
    sys.stdout.write(f"sleeping {amount_s}\n")
    await asyncio.sleep(amount_s)
    return "rested"


@shared.job()
async def apid() -> int:
    return os.getpid()


@shared.job()
async def stubborn(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    while True:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


@shared.job()
async def acrash() -> None:
    await asyncio.sleep(0.5)
    os._exit(5)


@shared.job()
async def stop_loop() -> str:
    asyncio.get_running_loop().stop()
    return "stopped"


@shared.job()
async def cancel_all() -> str:
    for task in asyncio.all_tasks():
        task.cancel()
    return "cancelled"


@shared.job()
async def ablock(amount_s: float) -> str:
    time.sleep(amount_s)  # on purpose: blocks the loop
    return "blocked"


@shared.job(Isolation.THREAD)
def tnap(amount_s: float) -> str:
    sys.stdout.write(f"sleeping {amount_s}\n")
    time.sleep(amount_s)
    return "rested"


@shared.job(Isolation.THREAD)
def tuntil(file: str) -> str:
    """Works until the test writes the file."""
    sys.stdout.write("waiting\n")
    while not Path(file).exists():
        time.sleep(0.02)
    return "rested"


@shared.job(Isolation.THREAD)
def tforever(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)
