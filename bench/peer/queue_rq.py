"""RQ: the functions of `rq worker`, and `Queue.enqueue` and `enqueue_many` as a producer.

Results of functions that return nothing are not kept longer than needed (`result_ttl=0`); hiredis
as the parser.
"""

import os

from marks import mark
from redis import Redis
from rq import Queue

queue = Queue("bench", connection=Redis.from_url(os.environ["BENCH_URL"]))


def noop(sent_ns: int) -> None:
    """In the worker process."""
    mark(sent_ns)


def enqueue_one(sent_ns: int) -> None:
    """One job."""
    queue.enqueue("queue_rq.noop", sent_ns, result_ttl=0)


def enqueue_many(number: int) -> None:
    """One pipeline for all."""
    queue.enqueue_many(
        [Queue.prepare_data("queue_rq.noop", (0,), result_ttl=0) for _ in range(number)]
    )
