"""`tenure queues …`: look at queues, pause them, limit them."""

import click

from tenure.cli.common import administration, json_option, namespace_option, url_option
from tenure.cli.printing import print_json, print_table, printable
from tenure.core.claims import QueueState
from tenure.core.ids import Namespace, QueueName
from tenure.core.validation import check_name


@click.group()
def queues() -> None:
    """Look at queues, pause them, limit them."""


@queues.command(name="ls")
@url_option
@json_option
@namespace_option
def list_queues(url: str | None, as_json: bool, namespace: str) -> None:
    """List queues with their live leases."""
    with administration(url) as serving:
        check_name("namespace", namespace)
        found = serving.list_queues(Namespace(namespace))
    if as_json:
        print_json(found)
        return
    print_table(
        ["QUEUE", "STATE", "LIVE", "LIMIT"],
        [(q.name, "paused" if q.paused else "open", q.live, q.limit) for q in found],
    )


def _put(
    url: str | None, namespace: str, name: str, *, paused: bool | None, limit: int | None
) -> QueueState:
    with administration(url) as serving:
        check_name("namespace", namespace)
        check_name("QUEUE", name)
        return serving.put_queue(Namespace(namespace), QueueName(name), paused=paused, limit=limit)


@queues.command(name="pause")
@url_option
@namespace_option
@click.argument("queue")
def pause_queue(url: str | None, namespace: str, queue: str) -> None:
    """Grant nothing from QUEUE until it is resumed; running jobs go on."""
    state = _put(url, namespace, queue, paused=True, limit=None)
    click.echo(f"{printable(queue)}: paused, {state.live} still running")


@queues.command(name="resume")
@url_option
@namespace_option
@click.argument("queue")
def resume_queue(url: str | None, namespace: str, queue: str) -> None:
    """Grant from QUEUE again."""
    _put(url, namespace, queue, paused=False, limit=None)
    click.echo(f"{printable(queue)}: open")


@queues.command(name="limit")
@url_option
@namespace_option
@click.argument("queue")
@click.argument("limit", type=click.IntRange(0, 1_000_000))
def limit_queue(url: str | None, namespace: str, queue: str, limit: int) -> None:
    """Allow at most LIMIT live leases in QUEUE at any time; 0 means no limit."""
    state = _put(url, namespace, queue, paused=None, limit=limit)
    shown = "no limit" if state.limit is None else f"at most {state.limit} at a time"
    click.echo(f"{printable(queue)}: {shown}, {state.live} running")
