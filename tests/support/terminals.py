"""A terminal of a fixed size in which a command runs: what its screen shows, and keys for it."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import pyte

from tests.support.waiting import PATIENCE_S, until

_IN_ITS_TERMINAL = (
    "import fcntl, runpy, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "runpy.run_module('tenure', run_name='__main__', alter_sys=True)"
)
"""Makes it the controlling terminal, as a shell does: Ctrl-C and changes of size are signals."""

READ_BYTES = 1 << 16
CTRL_C = "\x03"
CTRL_BACKSLASH = "\x1c"


class Terminal:
    """`tenure WORDS…` in a terminal."""

    def __init__(
        self,
        *words: str,
        directory: Path,
        columns: int = 80,
        rows: int = 24,
        environment: Mapping[str, str] | None = None,
        knows_size: bool = True,
    ) -> None:
        """Without `knows_size` the command hears of no size: 0 columns and 0 rows."""
        self.screen = pyte.Screen(columns, rows)
        self.raw = b""
        self._lock = threading.Lock()
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        self._set_size(*((columns, rows) if knows_size else (0, 0)))
        self.settings = termios.tcgetattr(self._ours)
        self._theirs = theirs
        self._process = subprocess.Popen(
            [sys.executable, "-c", _IN_ITS_TERMINAL, *words],
            cwd=directory,
            env=_without_size(os.environ) | {"TERM": "xterm-256color", **(environment or {})},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._theirs)  # the reader ends when nobody can write any more
        self._reader.join(PATIENCE_S)
        os.close(self._ours)

    @property
    def lines(self) -> list[str]:
        """The screen, without the spaces at the end of its lines."""
        with self._lock:
            return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        """The screen as one text."""
        return "\n".join(self.lines).rstrip("\n")

    def until(self, text: str) -> str:
        """Wait until the screen shows this, and return the screen."""
        until(lambda: text in self.text, f"the screen shows {text!r}", seen=lambda: self.text)
        return self.text

    def until_gone(self, text: str) -> str:
        """Wait until the screen no longer shows this, and return the screen."""
        until(lambda: text not in self.text, f"{text!r} is gone", seen=lambda: self.text)
        return self.text

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the window."""
        with self._lock:
            self.screen.resize(rows, columns)
        self._set_size(columns, rows)

    def signal(self, number: int) -> None:
        """Send the command a signal."""
        self._process.send_signal(number)

    def ended(self) -> int:
        """Wait for the end of the command. Returns its exit code."""
        return self._process.wait(PATIENCE_S)

    def settings_now(self) -> list[object]:
        """The terminal's settings, as `stty` shows them."""
        return termios.tcgetattr(self._ours)

    def _set_size(self, columns: int, rows: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, READ_BYTES)
            except OSError:  # EIO: the last writer has closed the terminal
                return
            with self._lock:
                self.raw += data
                self._stream.feed(data)


def _without_size(environment: Mapping[str, str]) -> dict[str, str]:
    """These variables, without those that would stand for the size of the terminal."""
    return {name: text for name, text in environment.items() if name not in ("COLUMNS", "LINES")}
