"""Procrastinate: the application of `procrastinate worker`, and `defer` as a producer.

PsycopgConnector, which also serves a synchronous producer; many jobs by `batch_defer`. Its
documentation has both ("Connector", "Batch defer").
"""

import os

from marks import mark
from procrastinate import App, PsycopgConnector

app = App(
    connector=PsycopgConnector(
        conninfo=os.environ["BENCH_URL"],
        min_size=1,
        max_size=int(os.environ.get("BENCH_POOL", "10")),
    )
)


@app.task(queue="bench")  # type: ignore[untyped-decorator]  # Procrastinate is not here
async def noop(sent_ns: int) -> None:
    """In the worker's event loop."""
    mark(sent_ns)


_opened: list[bool] = []


def _open() -> None:
    if not _opened:
        app.open()
        _opened.append(True)


def enqueue_one(sent_ns: int) -> None:
    """One durable job."""
    _open()
    noop.defer(sent_ns=sent_ns)


def enqueue_many(number: int) -> None:
    """One call for all."""
    _open()
    noop.batch_defer(*({"sent_ns": 0} for _ in range(number)))
