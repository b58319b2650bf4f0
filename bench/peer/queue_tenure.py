"""Tenure's applications, one for each lane, and its Python API as a producer.

Which lane the producer enqueues for is in the environment; the URL and the token are where Tenure
looks for them.
"""

import os

from marks import mark, mark_with_others

from tenure import Tenure

QUEUE = "bench"
LANE = "BENCH_LANE"

async_app = Tenure()
process_app = Tenure()


@async_app.job(queue=QUEUE)
async def anoop(sent_ns: int) -> None:
    """In an event loop with others."""
    mark(sent_ns)


@process_app.job(queue=QUEUE)
def noop(sent_ns: int) -> None:
    """In a process of its own."""
    mark(sent_ns)


@process_app.job(queue=QUEUE)
def together(others: int) -> None:
    """Keeps its process until so many have started."""
    mark_with_others(others)


def enqueue_together(number: int, others: int) -> None:
    """Jobs that take a process each."""
    process_app.enqueue_many(together.call(others) for _ in range(number))


def enqueue_one(sent_ns: int) -> None:
    """One durable job."""
    if os.environ[LANE] == "async":
        anoop.enqueue(sent_ns)
    else:
        noop.enqueue(sent_ns)


def enqueue_many(number: int) -> None:
    """A call of `enqueue_many`."""
    if os.environ[LANE] == "async":
        async_app.enqueue_many(anoop.call(0) for _ in range(number))
    else:
        process_app.enqueue_many(noop.call(0) for _ in range(number))
