"""Text out of user code, made fit to travel: bounded, without NUL and lone surrogates."""

import traceback

MAX_MESSAGE = 2000
MAX_TRACEBACK = 6000
MAX_FRAMES = 40


def clean(text: str, *, most: int) -> str:
    """At most `most` characters of text that any store and any JSON can hold."""
    text = text[: most + 1].replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"


def message_of(error: BaseException) -> str:
    """What the exception says; its `__str__` is user code and may fail too."""
    try:
        return clean(str(error), most=MAX_MESSAGE)
    except Exception as worse:  # said in the message, never swallowed
        return f"(its message cannot be shown: {type(worse).__name__})"


def traceback_of(error: BaseException, *, skip: int) -> str:
    """The traceback without our own first frames, without locals, its end if it is long."""
    frames = error.__traceback__
    for _ in range(skip):
        if frames is None or frames.tb_next is None:
            break
        frames = frames.tb_next
    try:
        lines = traceback.format_exception(type(error), error, frames, limit=-MAX_FRAMES)
    except Exception as worse:  # said in the text, never swallowed
        return f"(its traceback cannot be shown: {type(worse).__name__})"
    text = "".join(lines)
    if len(text) > MAX_TRACEBACK:
        text = "…" + text[-(MAX_TRACEBACK - 1) :]
    return clean(text, most=MAX_TRACEBACK)
