"""The demo's application: small jobs that behave, misbehave and take their time.

An ordinary application, run by ordinary `tenure worker` processes. Leases are far shorter than
anybody should want, so that losing one takes seconds and not a minute.
"""

import os
import signal
import time

from tenure.app import Tenure
from tenure.client.options import Retry
from tenure.errors import TransientError
from tenure.handlers.context import Context

LEASE = "4s"
SOON = Retry(max_attempts=3, initial="200ms", cap="500ms")
STEP_S = 0.4
PRECIOUS_LEASE = "8s"
"""Long enough for the handler to end within it after its worker is frozen, on a busy machine too:
the worker's keeper kills a handler whose lease is over."""

app = Tenure(name="demo")


@app.job(lease=LEASE, retry=SOON)
def quick(number: int) -> int:
    """Done before you look."""
    return number * number


@app.job(lease=LEASE, retry=SOON)
def flaky(ctx: Context) -> str:
    """Fails once, as networks do."""
    if ctx.attempt == 1:
        raise TransientError("the upstream did not answer")
    return "the upstream answered"


@app.job(lease=LEASE, retry=Retry(max_attempts=2, initial="200ms"))
def poison() -> None:
    """Takes its process down, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(lease=LEASE, retry=SOON, grace="5s")
def endless(ctx: Context) -> None:
    """Goes on until somebody asks it to stop."""
    done = 0
    while True:
        ctx.check()
        time.sleep(STEP_S)
        done += 1
        ctx.progress(done)


@app.job(lease=LEASE, retry=SOON)
def slow(ctx: Context, steps: int) -> list[int]:
    """Saves what it has after every step; returns which attempt did each of them."""
    done_in: list[int] = ctx.checkpoint or []
    while len(done_in) < steps:
        ctx.check()
        time.sleep(STEP_S)
        done_in.append(ctx.attempt)
        ctx.save(done_in)
        ctx.progress(len(done_in), steps)
    return done_in


@app.job(lease=PRECIOUS_LEASE, retry=SOON)
def precious(ctx: Context, steps: int) -> dict[str, int]:
    """Never asks whether it should stop: it brings a result, wanted or not."""
    for step in range(steps):
        time.sleep(STEP_S)
        ctx.progress(step + 1, steps)
    return {"from_attempt": ctx.attempt}
