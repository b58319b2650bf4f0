"""What happens to output that nobody reads any more. Small: every command imports it."""

import os
import sys


def discard_output() -> None:
    """Send what is still buffered to /dev/null: Python would try to write it once more at exit, and
    report that with a message and an exit code of its own."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
