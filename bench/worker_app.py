"""The applications of `worker-memory` and `worker-drain`: jobs that do nothing, by lane."""

import asyncio

from tenure import Tenure


def noop() -> None:
    """In a process of its own."""


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

async_app = Tenure()
async_app.job(queue="bench")(anoop)
async_app.job(queue="bench")(asleep)

thread_app = Tenure()
thread_app.job(queue="bench", isolation="thread")(tnoop)
