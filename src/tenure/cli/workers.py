"""`tenure workers …`: list workers, ask one of them to finish its jobs and stop."""

from collections.abc import Sequence

import click

from tenure.cli.common import coordination, json_option, namespace_option, refuse, url_option
from tenure.cli.output import ago, print_json, print_table, printable
from tenure.core.checks import check_name
from tenure.core.ids import Namespace, WorkerId
from tenure.protocol.records import WorkerRecord, worker_record

SHOWN_NAMES = 4


@click.group()
def workers() -> None:
    """List workers, ask them to stop."""


@workers.command(name="ls")
@url_option
@json_option(list[WorkerRecord])
@namespace_option
def list_workers(url: str | None, as_json: bool, namespace: str) -> None:
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
    with coordination(url) as serving:
        check_name("namespace", namespace)
        now = serving.store.now()
        found = serving.store.workers.page(Namespace(namespace))
    if as_json:
        print_json([worker_record(seen, now=now) for seen in found])
        return
    print_table(
        ["WORKER", "STATE", "HOST", "PID", "QUEUES", "KINDS", "SLOTS", "STARTED", "LAST SEEN"],
        [
            (
                seen.worker,
                seen.state(now),
                seen.host,
                seen.pid,
                _few(seen.queues),
                _few(seen.kinds),
                seen.concurrency,
                ago(seen.started_at, now),
                ago(seen.seen_at, now),
            )
            for seen in found
        ],
        optional=("HOST", "PID", "SLOTS", "STARTED", "KINDS"),
    )


def _few(names: Sequence[str]) -> str | None:
    """The first names; `--json` has them all."""
    more = len(names) - SHOWN_NAMES
    return ",".join(names[:SHOWN_NAMES]) + (f" +{more}" if more > 0 else "") or None


@workers.command(name="drain")
@url_option
@namespace_option
@click.argument("worker")
def drain_worker(url: str | None, namespace: str, worker: str) -> None:
    """Ask WORKER to claim no more jobs, finish those it runs, and stop.

    It is told within seconds. A process that starts under the same name later is not affected.
    """
    with coordination(url) as serving:
        check_name("namespace", namespace)
        check_name("WORKER", worker)
        if not serving.store.workers.drain(Namespace(namespace), WorkerId(worker)):
            refuse(f"there is no worker {worker}; see `tenure workers ls`")
    click.echo(f"{printable(worker)}: draining")
