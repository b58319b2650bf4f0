"""Counts the steps of the interpreter, so that a test can compare costs without a clock."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(body: Callable[[], object]) -> int:
    """How many instructions of Python code run in `body`, whatever it calls included."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        body()
    finally:
        sys.settrace(before)
    return count
