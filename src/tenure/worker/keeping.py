"""The supervisor's end of its keeper: tells it which process groups are alive."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_FILE = Path(__file__).with_name("keeper.py")
WAIT_S = 5.0


class Keeper:
    """A small process that kills the children's groups if the supervisor dies without a word."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_FILE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def watch(self, group: int) -> None:
        """Kill this group with the supervisor."""
        self._tell(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        """It is gone; its number may soon be a stranger's."""
        self._tell(b"-%d\n" % group)

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        # Without a keeper the kernel still kills the children themselves.
        with suppress(BrokenPipeError):
            self._process.stdin.write(line)

    def close(self) -> None:
        """Let it go; it kills what it was not told to forget. One that does not go, because
        somebody stopped it, is killed: it must not hold up the end of its worker."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
