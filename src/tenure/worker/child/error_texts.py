"""What user code raises, made fit to travel: bounded, without secrets, NUL and lone surrogates."""

import asyncio
import concurrent.futures
import contextlib
import traceback
from pathlib import Path

from tenure.handlers import hooks
from tenure.telemetry.logs import without_secrets

MAX_MESSAGE = 2000
MAX_TRACEBACK = 6000
MAX_FRAMES = 40

_CALLING_FILES = (str(Path(__file__).with_name("execution.py")), hooks.__file__)
_LIBRARY_FILES = (
    contextlib.__file__,
    str(Path(asyncio.__file__).parent),
    str(Path(concurrent.futures.__file__).parent),
)
"""Frames of these files are between the worker and a handler, or between two hooks."""


def clean(text: str, *, most: int) -> str:
    """At most `most` characters of text that any store and any JSON can contain."""
    text = text[: most + 1].replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"


def message_of(error: BaseException) -> str:
    """The exception's message; its `__str__` is user code and may fail too."""
    try:
        # Cut first, with room for what is hidden: a message may be of any size.
        said = without_secrets(str(error)[: 2 * MAX_MESSAGE])
    except Exception as worse:  # stated in the message, never swallowed
        return f"(its message cannot be shown: {type(worse).__name__})"
    return clean(said, most=MAX_MESSAGE)


def traceback_of(error: BaseException) -> str:
    """The traceback without the frames that called the handler, without locals, its end if it is
    long."""
    try:
        shown = traceback.TracebackException.from_exception(error, limit=-MAX_FRAMES, compact=True)
        _cut_callers(shown)
        lines = list(shown.format())
    except Exception as worse:  # stated in the text, never swallowed
        return f"(its traceback cannot be shown: {type(worse).__name__})"
    text = without_secrets("".join(lines)[-10 * MAX_TRACEBACK :])
    if len(text) > MAX_TRACEBACK:
        text = "…" + text[-(MAX_TRACEBACK - 1) :]
    return clean(text, most=MAX_TRACEBACK)


def _cut_callers(shown: traceback.TracebackException) -> None:
    """Remove frames that only call handlers and hooks, also from the tracebacks of the causes. The
    frames at the end stay: there Tenure itself has failed."""
    left: list[traceback.TracebackException | None] = [shown]
    while left:
        each = left.pop()
        if each is None:
            continue
        kept: list[traceback.FrameSummary] = []
        calling: list[traceback.FrameSummary] = []
        for frame in each.stack:
            if frame.filename in _CALLING_FILES or frame.filename.startswith(_LIBRARY_FILES):
                calling.append(frame)
                continue
            # A handler may use asyncio and contextlib itself.
            if not any(called.filename in _CALLING_FILES for called in calling):
                kept += calling
            kept.append(frame)
            calling = []
        each.stack[:] = kept + calling
        left += [each.__cause__, each.__context__, *(each.exceptions or ())]
