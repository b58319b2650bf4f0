"""Text out of user code, made fit to travel: bounded, without secrets, NUL and lone surrogates."""

import traceback

from tenure.telemetry.secrets import without_secrets

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
        # Cut first, with room for what is hidden: a message may be of any size.
        said = without_secrets(str(error)[: 2 * MAX_MESSAGE])
    except Exception as worse:  # said in the message, never swallowed
        return f"(its message cannot be shown: {type(worse).__name__})"
    return clean(said, most=MAX_MESSAGE)


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
    text = without_secrets("".join(lines)[-10 * MAX_TRACEBACK :])
    if len(text) > MAX_TRACEBACK:
        text = "…" + text[-(MAX_TRACEBACK - 1) :]
    return clean(text, most=MAX_TRACEBACK)
