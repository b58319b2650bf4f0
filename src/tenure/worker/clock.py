"""The worker's clock: one that goes on while the machine sleeps.

`time.monotonic` stands still during a suspend on Linux, so a laptop that slept for an hour would
believe its leases fresh. Supervisor and children read the same clock and may compare readings.
"""

import time
from typing import NewType

Boot = NewType("Boot", int)  # microseconds since the machine started, sleep included

NEVER = Boot(2**62)

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS's monotonic counts sleep


def boot_now() -> Boot:
    """Now, on the clock that every deadline of a worker is kept on."""
    return Boot(time.clock_gettime_ns(_CLOCK) // 1000)


class JumpWatch:
    """Whether the wall clock ran ahead of the boot clock since the last look.

    A virtual machine that was paused may have lost time on every clock but the wall's. A jump is
    only a suspicion (somebody may have set the clock), so it asks for heartbeats and ends nothing.
    """

    def __init__(self, *, threshold_us: int) -> None:
        self._threshold_us = threshold_us
        self._last: tuple[int, Boot] | None = None

    def jumped(self, *, wall_us: int, now: Boot) -> bool:
        """Take a pair of readings."""
        last, self._last = self._last, (wall_us, now)
        if last is None:
            return False
        return (wall_us - last[0]) - (now - last[1]) > self._threshold_us
