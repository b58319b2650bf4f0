"""The clock of stores that live in this process or in a file: the host's wall clock."""

import time

from tenure.core.instants import Instant


def host_clock() -> Instant:
    """The host's wall clock, which is the store's clock for a store in this process."""
    return Instant(time.time_ns() // 1000)
