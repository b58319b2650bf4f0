"""Handlers of flows: parts that may be killed or fail, and a join that reads their results."""

import os
import signal

from tenure import Context, HandlerFlow, PermanentError, Retry, Tenure


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

    def plan(flow: HandlerFlow, ctx: Context, depth: int, width: int) -> None:
        parts = [flow.add(part.call(number, crash=number == 0)) for number in range(width)]
        inner = (
            [flow.add(app.call(ctx.kind, {"depth": depth - 1, "width": width}))] if depth else []
        )
        flow.add(join.call(), after=parts, name="joined")
        flow.add(ends.call(), after=[*parts, *inner], when="ended", name="last")

    def fail_first(ctx: Context, flow: HandlerFlow) -> list[str]:
        """The first attempt dies after it made its flow, the second fails, the third succeeds."""
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if ctx.attempt == 2:
            raise RuntimeError("after the flow was made")
        assert not flow.is_new
        return [job.id for job in flow.jobs]

    @app.job(lease=lease, retry=retry)
    def nest(depth: int, width: int, ctx: Context) -> list[str]:
        """A flow, within which the same handler makes another one, in a process."""
        with ctx.flow() as flow:
            plan(flow, ctx, depth, width)
        return fail_first(ctx, flow)

    @app.job(lease=lease, retry=retry, isolation="thread")
    def nest_in_thread(depth: int, width: int, ctx: Context) -> list[str]:
        """The same beside others, in a thread: it only fails."""
        with ctx.flow("in a thread", step=1) as flow:
            plan(flow, ctx, depth, width)
        if ctx.attempt == 1:
            raise RuntimeError("after the flow was made")
        return [job.id for job in flow.jobs]

    @app.job(lease=lease, retry=retry)
    async def nest_in_loop(depth: int, width: int, ctx: Context) -> list[str]:
        """The same in an event loop."""
        async with ctx.flow(step="loop") as flow:
            plan(flow, ctx, depth, width)
        if ctx.attempt == 1:
            raise RuntimeError("after the flow was made")
        return [job.id for job in flow.jobs]

    @app.job(lease=lease, retry=retry)
    def spread(width: int, ctx: Context) -> str:
        """Many jobs and their join: more than one frame can hold."""
        with ctx.flow("spread") as flow:
            parts = [flow.add(part.call(number % 10)) for number in range(width)]
            flow.add(join.call(), after=parts, name="joined")
        return flow.id
