"""Celery over Redis: the application of `celery worker`, and `apply_async` as a producer.

As the guide "Optimizing" has it for many short tasks: a large prefetch multiplier, results ignored;
hiredis as the parser. Celery has no call that enqueues many.
"""

import os

from celery import Celery
from marks import mark

app = Celery("bench", broker=os.environ["BENCH_URL"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=128,
    worker_disable_rate_limits=True,
    worker_hijack_root_logger=False,
)


@app.task  # type: ignore[untyped-decorator]  # Celery is not here
def noop(sent_ns: int) -> None:
    """In a process of the pool."""
    mark(sent_ns)


def enqueue_one(sent_ns: int) -> None:
    """One task."""
    noop.apply_async((sent_ns,))


def enqueue_many(number: int) -> None:
    """One by one."""
    for _ in range(number):
        noop.apply_async((0,))
