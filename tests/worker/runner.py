"""A worker in a process of its own, for tests that stop, continue, kill and terminate it.

`python -m tests.worker.runner URL GRACE_S CONCURRENCY APP`; its last line on stdout is its stats.
"""

import sys

import msgspec

from tenure.coordinator.service import Coordinator
from tenure.core.instants import seconds
from tenure.wiring import open_store
from tenure.worker.session.messages import Stats
from tenure.worker.supervisor.options import WorkerOptions
from tenure.worker.supervisor.worker import run_worker
from tests.worker.harness import LIMITS


def main(url: str, grace_s: float, concurrency: int, app: str) -> int:
    store = open_store(url)
    coordinator = Coordinator(store, limits=LIMITS)
    stats = Stats()
    options = WorkerOptions(
        concurrency=concurrency,
        warm_children=1,
        grace_us=seconds(grace_s),
        longest_poll_us=seconds(0.1),
    )
    code = run_worker(coordinator, app, options, stats=stats)
    coordinator.close()
    store.close()
    sys.stdout.buffer.write(msgspec.json.encode(stats) + b"\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
