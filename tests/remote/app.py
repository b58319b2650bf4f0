"""Handlers whose leases are long, but for one: a lost one would be waited for until the test gives
up."""

import sqlite3
import time

from tenure import Context, Retry, Tenure

app = Tenure()


@app.job
def patient(number: int) -> int:
    """Well behaved."""
    return number


@app.job
def page(text: str, ctx: Context) -> str:
    """Leaves a file."""
    ctx.artifact("page.txt", text.encode())
    return text


@app.job
def idle(ctx: Context) -> None:
    """Works until it is told to stop."""
    while True:
        ctx.check()
        time.sleep(0.05)


@app.job(lease="2s", retry=Retry(max_attempts=2, initial="100ms"))
def second_time(ctx: Context) -> int:
    """Ends at its second attempt, and never at its first: not even when its lease does."""
    while ctx.attempt == 1:
        time.sleep(0.05)
    return ctx.attempt


@app.job
def entangled(ctx: Context) -> None:
    """Wants to complete in a transaction of its own."""
    with ctx.transaction(sqlite3.connect(":memory:")):
        pass


@app.job(retry=Retry(max_attempts=1))
def unlucky() -> None:
    """Becomes a dead letter."""
    raise RuntimeError("no luck today")
