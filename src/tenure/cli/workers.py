"""`tenure workers …`: list workers, ask one of them to finish its jobs and stop."""

from collections.abc import Sequence

import click

from tenure.cli.invocation import Invocation, Listing, command, list_command
from tenure.cli.output import ago, printable
from tenure.core.workers import ListedWorker
from tenure.protocol.records import WorkerRecord, worker_record

SHOWN_NAMES = 4


@click.group()
def workers() -> None:
    """List workers, ask them to stop."""


@list_command(workers, json=list[WorkerRecord])
def list_workers(cli: Invocation) -> Listing[ListedWorker]:
    """List the workers that run, and those that vanished within the last day.

    A worker sends a sign of life every 10 seconds and takes itself off the list when it stops.
    STATE is:

    \b
    alive     its last sign of life is at most 60 seconds old
    draining  the same, and it was asked to stop, by a signal or an operator
    silent    no sign of life for more than 60 seconds: it was killed, hangs,
              or cannot reach the store or server

    So a worker that was killed is listed as alive for up to a minute, which LAST SEEN shows.
    Its jobs do not wait for that: each is taken from it when its own lease ends.
    """
    now = cli.now
    return Listing(
        cli.store.workers.page(cli.namespace),
        {
            "WORKER": lambda seen: seen.worker,
            "STATE": lambda seen: seen.state(now),
            "HOST": lambda seen: seen.host,
            "PID": lambda seen: seen.pid,
            "QUEUES": lambda seen: _few(seen.queues),
            "KINDS": lambda seen: _few(seen.kinds),
            "SLOTS": lambda seen: seen.concurrency,
            "STARTED": lambda seen: ago(seen.started_at, now),
            "LAST SEEN": lambda seen: ago(seen.seen_at, now),
        },
        document=lambda seen: worker_record(seen, now=now),
        optional=("HOST", "PID", "SLOTS", "STARTED", "KINDS"),
    )


def _few(names: Sequence[str]) -> str | None:
    """The first names; `--json` has them all."""
    more = len(names) - SHOWN_NAMES
    return ",".join(names[:SHOWN_NAMES]) + (f" +{more}" if more > 0 else "") or None


@command(workers, "drain")
@click.argument("worker")
def drain_worker(cli: Invocation, worker: str) -> None:
    """Ask WORKER to claim no more jobs, finish those it runs, and stop.

    It notices within seconds. A process that starts under the same name later is not affected.
    """
    cli.api.workers.drain(worker)
    click.echo(f"{printable(worker)}: draining")
