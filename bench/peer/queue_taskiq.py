"""Taskiq over Redis: the broker of `taskiq worker`, and `kiq` as a producer.

RedisStreamBroker, which taskiq-redis recommends where a task may not be lost: the other brokers
have no acknowledgements. uvloop and hiredis are installed. Taskiq has no call that enqueues many.
"""

import os

import uvloop
from marks import mark
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(url=os.environ["BENCH_URL"])


@broker.task  # type: ignore[untyped-decorator]  # Taskiq is not here
async def noop(sent_ns: int) -> None:
    """In the event loop of a worker process."""
    mark(sent_ns)


_loop = uvloop.new_event_loop()
_started: list[bool] = []


async def _send(sent_ns: int, number: int) -> None:
    if not _started:
        await broker.startup()
        _started.append(True)
    for _ in range(number):
        await noop.kiq(sent_ns)


def enqueue_one(sent_ns: int) -> None:
    """One task."""
    _loop.run_until_complete(_send(sent_ns, 1))


def enqueue_many(number: int) -> None:
    """One by one."""
    _loop.run_until_complete(_send(0, number))
