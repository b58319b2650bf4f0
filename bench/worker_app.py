"""The applications of `worker-memory` and `worker-drain`: jobs that do nothing, by lane."""

import asyncio

from bench.peer.marks import mark_with_others
from tenure import Tenure


def noop() -> None:
    """In a process of its own."""


def together(others: int) -> None:
    """Keeps its process until so many have started."""
    mark_with_others(others)


async def anoop() -> None:
    """In a loop with others."""


async def asleep() -> None:
    """Runs until its worker ends."""
    await asyncio.sleep(24 * 3600)


def tnoop() -> None:
    """In a thread beside others."""


app = Tenure()
app.job(queue="bench")(noop)
app.job(queue="bench")(anoop)

process_app = Tenure()
process_app.job(queue="bench")(noop)
process_app.job(queue="bench")(together)

async_app = Tenure()
async_app.job(queue="bench")(anoop)
async_app.job(queue="bench")(asleep)

thread_app = Tenure()
thread_app.job(queue="bench", isolation="thread")(tnoop)
