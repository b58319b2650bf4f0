"""The keeper: kills what a supervisor leaves behind when it dies without a word.

The kernel kills a child with its supervisor, but not the programs that a handler started. This
process outlives the supervisor by a moment: it reads `+GROUP` and `-GROUP` lines from its standard
input and, when that ends, kills the groups that are left. Run as a file, without site or package:
it must be small and start fast. Imports nothing of Tenure.
"""

import os
import signal
import sys
from contextlib import suppress


def keep() -> None:
    """Remember process groups until the supervisor is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    keep()
