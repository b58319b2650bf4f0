"""The keeper: kills handlers whose deadline has passed, and what a dead supervisor leaves behind.

It works while the supervisor cannot: stopped by SIGSTOP, or killed. The kernel kills a child with
its supervisor, but not the programs that a handler started. Reads lines from its standard input:

    +GROUP            watch this process group
    -GROUP            forget it
    =GROUP DEADLINE   kill it when the boot clock (microseconds) says so; 0: there is no deadline

When the input ends, the groups that are left are killed. Run as a file, without site or package:
it must be small and start fast. Imports nothing of Tenure.
"""

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress

STDIN = 0
READ_BYTES = 64 * 1024
PR_SET_DUMPABLE = 4
LONGEST_SLEEP_MS = 1000
"""A poll does not count the time that the machine sleeps, the boot clock does."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # as in tenure.clock


def kill(group: int) -> None:
    """SIGKILL for every process of the group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def apply(line: bytes, groups: set[int], deadlines: dict[int, int]) -> None:
    """One line from the supervisor."""
    group, _, deadline = line[1:].partition(b" ")
    number = int(group)
    deadlines.pop(number, None)
    word = line[:1]
    if word == b"+":
        groups.add(number)
    elif word == b"-":
        groups.discard(number)
    elif int(deadline):
        deadlines[number] = int(deadline)


def kill_overdue(deadlines: dict[int, int]) -> int | None:
    """Kill the groups whose deadline has passed; how long to sleep then, in milliseconds."""
    now = time.clock_gettime_ns(_CLOCK) // 1000
    for group in [each for each, deadline in deadlines.items() if now >= deadline]:
        del deadlines[group]
        kill(group)
    if not deadlines:
        return None
    return min(LONGEST_SLEEP_MS, (min(deadlines.values()) - now) // 1000 + 1)


def main() -> None:
    """Watch process groups until the supervisor is gone."""
    if sys.platform == "linux":  # no other process of this user may read its memory
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    deadlines: dict[int, int] = {}
    poll = select.poll()
    poll.register(STDIN, select.POLLIN)
    rest = b""
    while True:
        if not poll.poll(kill_overdue(deadlines)):
            continue
        data = os.read(STDIN, READ_BYTES)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            apply(line, groups, deadlines)
    for group in groups:
        kill(group)


if __name__ == "__main__":
    main()
