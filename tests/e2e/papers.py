"""A handler that stores an artifact and then ends in one of the ways attempts end."""

import time
from pathlib import Path

from tenure import Context, PermanentError, Retry, Tenure


def paper(attempt: int) -> bytes:
    """What an attempt leaves: no text, so that nothing on its way may touch a byte of it."""
    return bytes(range(256)) * 4 + str(attempt).encode()


def add_to(app: Tenure, *, lease: str, retry: Retry) -> None:
    """Register the handler."""

    @app.job(lease=lease, retry=retry)
    def write(how: str, ctx: Context, note: str = "") -> int:
        """`how` says what becomes of the first attempt; the others go well."""
        ctx.artifact(f"paper-{ctx.attempt}", paper(ctx.attempt))
        match how if ctx.attempt == 1 else "well":
            case "waits":
                Path(note + ".ready").touch()
                while not Path(note).exists():
                    time.sleep(0.02)
            case "raises":
                raise RuntimeError("the ink ran out")
            case "fails":
                raise PermanentError("no such paper")
            case _:
                pass
        return ctx.attempt
