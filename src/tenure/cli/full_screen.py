"""A terminal as a screen with keys: a whole screen is drawn at a time, and keys come one by one.

The terminal is restored however the command ends, except by SIGKILL. What is drawn has to be
escaped and cut to the size already: nothing here knows what it shows.
"""

import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import NoReturn

from tenure.cli.output import terminal_size

ENTER, ESCAPE, TAB, BACKTAB = "enter", "escape", "tab", "backtab"
UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "pageup", "pagedown", "home", "end"

_NAMES = {
    "\r": ENTER,
    "\n": ENTER,
    "\t": TAB,
    "\x1b": ESCAPE,
    "\x1b[Z": BACKTAB,
    **{f"\x1b{bracket}A": UP for bracket in "[O"},
    **{f"\x1b{bracket}B": DOWN for bracket in "[O"},
    **{f"\x1b{bracket}H": HOME for bracket in "[O"},
    **{f"\x1b{bracket}F": END for bracket in "[O"},
    "\x1b[5~": PAGE_UP,
    "\x1b[6~": PAGE_DOWN,
    "\x1b[1~": HOME,
    "\x1b[4~": END,
}
_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)

_ENTER_SCREEN = "\x1b[?1049h\x1b[?25l"
_LEAVE_SCREEN = "\x1b[?25h\x1b[?1049l"
_TOP_LEFT = "\x1b[H"
_ERASE_LINE = "\x1b[K"
_ERASE_BELOW = "\x1b[J"
READ_BYTES = 1024
ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that would end the process without restoring the terminal. Ctrl-\\ sends the last."""


class FullScreen:
    """The alternate screen of the terminal on stdout, with the keys of the one on stdin."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._output = sys.stdout.fileno()
        self._settings = termios.tcgetattr(self._input)
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._handlers: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> "FullScreen":
        tty.setcbreak(self._input)
        settings = termios.tcgetattr(self._input)
        settings[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave the shell with this screen
        termios.tcsetattr(self._input, termios.TCSADRAIN, settings)
        self._handlers = {
            signal.SIGWINCH: signal.signal(signal.SIGWINCH, self._resized),
            **{number: signal.signal(number, _ended) for number in ENDS},
        }
        self._write(_ENTER_SCREEN)
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._write(_LEAVE_SCREEN)
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._settings)
        os.close(self._woken)
        os.close(self._wake)

    @property
    def size(self) -> os.terminal_size:
        """The size of the terminal now."""
        return terminal_size(self._output)

    def wake(self) -> None:
        """Let `keys` return: there is something new to draw. Any thread may call it."""
        try:
            os.write(self._wake, b"!")
        except BlockingIOError:  # it is awake already
            pass
        except OSError:  # the screen was closed meanwhile
            return

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, at most as many as the screen has."""
        shown = lines[: self.size.lines]
        drawn = "\r\n".join(line + _ERASE_LINE for line in shown)
        self._write(_TOP_LEFT + drawn + _ERASE_BELOW)

    def keys(self, within_s: float) -> list[str]:
        """The keys that were pressed: waits for one, a call of `wake`, a new size, or this long."""
        ready, _, _ = select.select([self._input, self._woken], [], [], within_s)
        if self._woken in ready:
            os.read(self._woken, READ_BYTES)
        if self._input not in ready:
            return []
        typed = os.read(self._input, READ_BYTES).decode("utf-8", "replace")
        if not typed:
            raise EOFError
        return [_NAMES.get(key, key) for key in _KEY.findall(typed)]

    def _resized(self, _: int, __: FrameType | None) -> None:
        self.wake()

    def _write(self, text: str) -> None:
        rest = memoryview(text.encode("utf-8", "replace"))
        while rest:
            rest = rest[os.write(self._output, rest) :]


def _ended(number: int, _: FrameType | None) -> NoReturn:
    """Leave by an exception, so that the terminal is restored on the way."""
    sys.exit(128 + number)
