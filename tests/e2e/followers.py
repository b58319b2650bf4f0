"""Handlers that enqueue the next job and fail afterwards, in each lane."""

from tenure import Context, Retry, Tenure


def add_to(app: Tenure, *, lease: str, retry: Retry) -> None:
    """Register the handlers."""

    @app.job(lease=lease, retry=retry)
    def followed(by: str, attempt: int) -> str:
        """What the others enqueue."""
        return f"{by} {attempt}"

    def enqueue_and_fail(ctx: Context) -> str:
        first = ctx.enqueue(followed.call(ctx.kind, ctx.attempt))
        second = ctx.enqueue(followed.call(ctx.kind, ctx.attempt), step="again")
        if ctx.attempt == 1:
            raise RuntimeError("after the enqueue")
        assert [first.is_new, second.is_new] == [False, False]
        return f"{first.id} {second.id}"

    @app.job(lease=lease, retry=retry)
    def lead(ctx: Context) -> str:
        """In a process of its own."""
        return enqueue_and_fail(ctx)

    @app.job(lease=lease, retry=retry, isolation="thread")
    def lead_in_thread(ctx: Context) -> str:
        """Beside others, in a thread."""
        return enqueue_and_fail(ctx)

    @app.job(lease=lease, retry=retry)
    async def lead_in_loop(ctx: Context) -> str:
        """Beside others, in an event loop."""
        first = await ctx.aenqueue(followed.call(ctx.kind, ctx.attempt))
        second = await ctx.aenqueue(followed.call(ctx.kind, ctx.attempt), step="again")
        if ctx.attempt == 1:
            raise RuntimeError("after the enqueue")
        return f"{first.id} {second.id}"
