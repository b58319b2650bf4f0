"""Huey: the instance of `huey_consumer`, and a task call as a producer.

SqliteHuey with `fsync=True`, which its documentation asks for where no task may be lost after a
crash of the system. Huey has no call that enqueues many.
"""

import os

from huey import SqliteHuey
from marks import mark

huey = SqliteHuey(filename=os.environ["BENCH_URL"], fsync=True)


@huey.task()  # type: ignore[untyped-decorator]  # Huey has no types
def noop(sent_ns: int) -> None:
    """In a thread of the consumer."""
    mark(sent_ns)


def enqueue_one(sent_ns: int) -> None:
    """One durable task."""
    noop(sent_ns)


def enqueue_many(number: int) -> None:
    """One by one."""
    for _ in range(number):
        noop(0)
