"""An interrupt at each place where CPython runs signal handlers: where a function of Python starts,
and where a call of C returns."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import tenure

_FILES = (tenure.__path__[0], threading.__file__, contextlib.__file__)


def interrupted_everywhere(call: Callable[[], object]) -> Iterator[int]:
    """Call it again and again, interrupted a little later each time, until it is not. Yields after
    each interrupt."""
    number = 1
    while _is_interrupted(call, number):
        yield number
        number += 1


def _is_interrupted(call: Callable[[], object], number: int) -> bool:
    seen = 0

    def interrupt(frame: FrameType, event: str, _: Any) -> None:
        nonlocal seen
        if event in {"call", "c_return"} and frame.f_code.co_filename.startswith(_FILES):
            seen += 1
            if seen == number:
                raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False
