"""Huey's side of the comparison. Runs in Huey's environment, imports nothing of ours.

SqliteHuey as its documentation has it for durability: write-ahead log, `fsync=True`; results of
tasks that return None are not stored, which is its default and its fastest. Worker threads of its
own consumer, no scheduler for periodic tasks.
"""

import argparse
import json
import logging
import sys
import threading
import time

from huey import SqliteHuey
from huey.consumer import Consumer


def _ready() -> tuple[float, float]:
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    return time.monotonic(), time.process_time()


def main() -> None:
    """Enqueue and drain, report both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["enqueue", "drain"])
    parser.add_argument("--file", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    huey = SqliteHuey(filename=asked.file, fsync=True)
    done = 0
    last = threading.Event()
    counting = threading.Lock()

    @huey.task()  # type: ignore[untyped-decorator]  # Huey has no types
    def noop() -> None:
        nonlocal done
        with counting:
            done += 1
            if done == asked.jobs:
                last.set()

    if asked.what == "enqueue":
        began_s, cpu_before_s = _ready()
        for _ in range(asked.jobs):
            noop()
        ended_s = time.monotonic()
        done = asked.jobs
    else:
        consumer = Consumer(huey, workers=asked.workers, periodic=False)
        began_s, cpu_before_s = _ready()
        consumer.start()
        last.wait()
        ended_s = time.monotonic()
        consumer.stop(graceful=True)
    cpu_s = time.process_time() - cpu_before_s
    report = {"began_s": began_s, "ended_s": ended_s, "jobs": done, "cpu_s": cpu_s}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main()
