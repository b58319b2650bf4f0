"""An application whose hooks write down what they see, and whose handlers wait in every lane."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from tenure import Attempt, Context, Retry, Tenure

app = Tenure()
ONCE = Retry(max_attempts=1)


def _note(attempt: Attempt, word: str) -> None:
    with Path(attempt.arguments["note"] + ".hooks").open("a") as file:
        file.write(f"{word}\n")


@app.around_attempt
def outer(attempt: Attempt) -> Iterator[None]:
    _note(attempt, "outer in")
    try:
        yield
    finally:
        _note(attempt, f"outer out {type(attempt.error).__name__} {attempt.result}")


@app.around_attempt
async def inner(attempt: Attempt) -> AsyncIterator[None]:
    await asyncio.sleep(0.001)
    _note(attempt, "inner in")
    if attempt.arguments["how"] == "refuse":
        raise SystemExit("a hook that would end the process")
    try:
        yield
    finally:
        await asyncio.sleep(0.001)
        _note(attempt, "inner out")


def _work(note: str, how: str, ctx: Context) -> str:
    Path(note + ".ready").touch()
    while how == "wait":
        ctx.check()
        time.sleep(0.02)
    return how


@app.job(lease="6s", retry=ONCE)
def process(note: str, how: str, ctx: Context) -> str:
    return _work(note, how, ctx)


@app.job(lease="6s", retry=ONCE, isolation="thread")
def thread(note: str, how: str, ctx: Context) -> str:
    return _work(note, how, ctx)


@app.job(lease="6s", retry=ONCE)
async def coroutine(note: str, how: str, ctx: Context) -> str:
    Path(note + ".ready").touch()
    while how == "wait":
        await asyncio.sleep(0.02)
    return how


@app.job(lease="6s", retry=ONCE, name="own_loop", isolation="process")
async def own_loop(note: str, how: str, ctx: Context) -> str:
    return await coroutine(note, how, ctx)
