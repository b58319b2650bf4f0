"""The application of `worker-memory`: jobs that do nothing, in a process and in a loop."""

from tenure import Tenure

app = Tenure()


@app.job(queue="bench")
def noop() -> None:
    """In a process of its own."""


@app.job(queue="bench")
async def anoop() -> None:
    """In a loop with others."""
