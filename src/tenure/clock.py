"""The host's clocks. One measures spans: microseconds since it started, time asleep included.

`time.monotonic` does not count a suspend on Linux: a laptop that slept for an hour would
believe its leases fresh, and a coordinator would grant leases that end sooner than it says.
Processes of one host read the same clock and may compare readings.
"""

import time
from collections.abc import Callable
from typing import NewType

from tenure.core.instants import Instant

Boot = NewType("Boot", int)
"""Microseconds since the host started."""

Monotonic = Callable[[], int]
"""Microseconds from anywhere, never backwards: `boot_now`, or a virtual clock."""

NEVER = Boot(2**62)

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS's monotonic counts sleep


def boot_now() -> Boot:
    """Now, on the host's clock."""
    return Boot(time.clock_gettime_ns(_CLOCK) // 1000)


def host_clock() -> Instant:
    """The host's wall clock: the store's clock, if the store is in this process or in a file."""
    return Instant(time.time_ns() // 1000)
