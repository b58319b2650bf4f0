"""Dramatiq over Redis: the actors of `dramatiq`, and `send` as a producer.

The middleware is its default; hiredis as the parser. Dramatiq has no call that enqueues many.
"""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from marks import mark

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_URL"]))


@dramatiq.actor  # type: ignore[untyped-decorator]  # Dramatiq is not here
def noop(sent_ns: int) -> None:
    """In a thread of a worker process."""
    mark(sent_ns)


def enqueue_one(sent_ns: int) -> None:
    """One message."""
    noop.send(sent_ns)


def enqueue_many(number: int) -> None:
    """One by one."""
    for _ in range(number):
        noop.send(0)
