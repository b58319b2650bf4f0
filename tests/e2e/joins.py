"""Handlers of flows: parts that may be killed or fail, and a join that reads their results."""

import os
import signal

from tenure import Context, PermanentError, Retry, Tenure


def add_to(app: Tenure, *, lease: str, retry: Retry) -> None:
    """Register the handlers."""

    @app.job(lease=lease, retry=retry)
    def part(number: int, ctx: Context, crash: bool = False, fail: bool = False) -> int:
        """Squares a number; the first attempt may die without a word."""
        if crash and ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if fail:
            raise PermanentError("as asked")
        return number * number

    @app.job(lease=lease, retry=retry)
    def join(ctx: Context) -> int:
        """The sum of what the parts returned."""
        return sum(ctx.parents.values())

    @app.job(lease=lease, retry=retry, isolation="thread")
    def join_in_thread(ctx: Context) -> int:
        """The same beside others, in a thread."""
        return sum(ctx.parents.values())

    @app.job(lease=lease, retry=retry)
    async def join_in_loop(ctx: Context) -> int:
        """The same in an event loop."""
        return sum(ctx.parents.values())

    @app.job(lease=lease, retry=retry)
    def ends(ctx: Context) -> dict[str, str]:
        """How the parents ended."""
        return {name: str(status) for name, status in ctx.parents.statuses.items()}
