"""Sweeps and fires schedules until it is killed: `python -m tests.chaos.firer URL`."""

import sys
import time

from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import Sweeper
from tenure.wiring import open_store

HOURS = 3600


def main(url: str) -> None:
    store = open_store(url)
    coordinator = Coordinator(store)
    sweeper = Sweeper(coordinator)
    sweeper.start()
    sys.stdout.write("going\n")
    sys.stdout.flush()
    time.sleep(HOURS)


if __name__ == "__main__":
    main(sys.argv[1])
