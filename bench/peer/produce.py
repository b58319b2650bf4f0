"""A producer in a process of its own, in the environment of the queue that it enqueues into.

It is given a module with `enqueue_one(sent_ns)` and `enqueue_many(number)`, says `"ready"` and then
does what it is told by JSON lines. It answers each with the seconds and the CPU that it took.
"""

import importlib
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import marks

PATIENCE_S = 60.0
LOOK_EVERY_S = 0.002


def singles(queue: Any, *, jobs: int) -> None:
    """One job a call, the next call after the answer to the last one."""
    for _ in range(jobs):
        queue.enqueue_one(0)


def together(queue: Any, *, jobs: int, others: int) -> None:
    """Jobs that end when this many handlers have started; only of queues with processes."""
    queue.enqueue_together(jobs, others)


def bulk(queue: Any, *, jobs: int, batch: int) -> None:
    """`batch` jobs a call, or one by one where a queue has no such call."""
    for start in range(0, jobs, batch):
        queue.enqueue_many(min(batch, jobs - start))


def probes(queue: Any, *, jobs: int, gap_s: float) -> None:
    """One job at a time: the next when the last has started and the worker is idle again."""
    for _ in range(jobs):
        before = marks.count()
        queue.enqueue_one(time.monotonic_ns())
        give_up_at_s = time.monotonic() + PATIENCE_S
        while marks.count() == before:
            if time.monotonic() > give_up_at_s:
                raise SystemExit(f"no handler started within {PATIENCE_S:.0f} s")
            time.sleep(LOOK_EVERY_S)
        # Not in step with anything that polls.
        time.sleep(gap_s * random.uniform(0.5, 1.5))


def stream(queue: Any, *, jobs: int, per_s: float) -> None:
    """Jobs that arrive at a steady rate, whether or not the queue keeps up."""
    began_s = time.monotonic()
    for number in range(jobs):
        time.sleep(max(0.0, began_s + number / per_s - time.monotonic()))
        queue.enqueue_one(time.monotonic_ns())


TASKS: dict[str, Callable[..., None]] = {
    "singles": singles,
    "together": together,
    "bulk": bulk,
    "probes": probes,
    "stream": stream,
}


def main() -> None:
    """Until standard input ends."""
    queue = importlib.import_module(sys.argv[1])
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        task = TASKS[told.pop("task")]
        began_s, cpu_began_s = time.monotonic(), time.process_time()
        task(queue, **told)
        took = {
            "elapsed_s": time.monotonic() - began_s,
            "cpu_s": time.process_time() - cpu_began_s,
        }
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
