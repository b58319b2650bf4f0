"""`tenure flows …`: list flows, show one with its jobs, wait for it, cancel it."""

import time

import click

from tenure.cli.common import (
    client,
    coordination,
    duration_value,
    find_flow_id,
    json_option,
    namespace_option,
    new_request_id,
    refuse,
    request_id_option,
    url_option,
)
from tenure.cli.output import ago, print_json, print_table, printable, say
from tenure.core.checks import check_name
from tenure.core.commands import Cancel
from tenure.core.flow_rows import FlowStep, FlowView
from tenure.core.ids import Namespace
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import CancelMode, Cause, JobStatus
from tenure.ports import Coordination
from tenure.protocol.replies import FlowRecord, FlowReply, flow_record, flow_reply

CANCELLED_TOGETHER = 500
PAUSE_S = 0.25
SHOWN_PARENTS = 3


@click.group()
def flows() -> None:
    """List flows, show their jobs, wait for them, cancel them."""


@flows.command(name="ls")
@url_option
@json_option(list[FlowRecord])
@namespace_option
@click.option("--limit", type=click.IntRange(1, 500), default=50, help="How many at most.")
def list_flows(url: str | None, as_json: bool, namespace: str, limit: int) -> None:
    """List flows, newest first."""
    with coordination(url) as serving:
        check_name("namespace", namespace)
        found = serving.store.list_flows(Namespace(namespace), before=None, limit=limit)
        now = serving.store.now()
    if as_json:
        print_json([flow_record(each.flow, is_live=each.is_live) for each in found])
        return
    print_table(
        ["ID", "NAME", "JOBS", "STATE", "MADE"],
        [
            (
                each.flow.id,
                each.flow.name,
                each.flow.jobs,
                "live" if each.is_live else "ended",
                ago(each.flow.made_at, now),
            )
            for each in found
        ],
    )


@flows.command(name="show")
@url_option
@json_option(FlowReply)
@namespace_option
@click.argument("flow_id")
def show_flow(url: str | None, as_json: bool, namespace: str, flow_id: str) -> None:
    """Show a flow: its jobs, what each waits for, and their statuses."""
    with coordination(url) as serving:
        view = _find(serving, namespace, flow_id)
    if as_json:
        print_json(flow_reply(view))
        return
    click.echo(f"{printable(view.flow.name)}: {_counted(view)}")
    click.echo()
    print_table(
        ["NAME", "STATUS", "AFTER", "JOB"],
        [(step.step, step.status, _after(step.after), step.job_id) for step in view.steps],
    )


@flows.command(name="wait")
@url_option
@json_option(FlowReply)
@namespace_option
@click.option("--timeout", callback=duration_value, help="Give up after this long, as in 10m.")
@click.argument("flow_id")
def wait_for_flow(
    url: str | None, as_json: bool, namespace: str, timeout: Duration | None, flow_id: str
) -> None:
    """Wait until every job of a flow has ended.

    Exits with 0 if all of them succeeded, 1 if not, or if they did not end in time.
    """
    began = time.monotonic()
    with coordination(url) as serving:
        view = _find(serving, namespace, flow_id)
        while _live(view):
            waited_us = (time.monotonic() - began) * MICROSECONDS_PER_SECOND
            if timeout is not None and waited_us >= timeout:
                refuse(f"the flow has not ended: {_counted(view)}")
            time.sleep(PAUSE_S)
            view = _find(serving, namespace, view.flow.id)
    if as_json:
        print_json(flow_reply(view))
    else:
        click.echo(_counted(view))
    if any(step.status is not JobStatus.SUCCEEDED for step in view.steps):
        raise SystemExit(1)


@flows.command(name="cancel")
@url_option
@json_option(FlowReply)
@namespace_option
@request_id_option
@click.option("--hard", is_flag=True, help="Do not wait for running handlers.")
@click.option("--reason", default="", help="Shown with each job.")
@click.argument("flow_id")
def cancel_flow(
    url: str | None,
    as_json: bool,
    namespace: str,
    request_id: str | None,
    hard: bool,
    reason: str,
    flow_id: str,
) -> None:
    """Cancel every job of a flow that has not ended.

    Handlers of running jobs are asked to stop and have a grace period to do so; --hard does not
    wait for them. It is safe to run again.
    """
    asked_as = new_request_id(request_id)
    mode = CancelMode.HARD if hard else CancelMode.SOFT
    with coordination(url) as serving:
        view = _find(serving, namespace, flow_id)
        live = _live(view)
        refused = 0
        for start in range(0, len(live), CANCELLED_TOGETHER):
            answers = serving.execute_many(
                [
                    Cancel(
                        job_id=step.job_id,
                        actor=client(),
                        request_id=asked_as,
                        mode=mode,
                        reason=reason,
                    )
                    for step in live[start : start + CANCELLED_TOGETHER]
                ]
            )
            refused += sum(
                isinstance(each, Reply) and each.cause not in (None, Cause.JOB_FINISHED)
                for each in answers
            )
        view = _find(serving, namespace, view.flow.id)
    if as_json:
        print_json(flow_reply(view))
    else:
        click.echo(_counted(view))
    if refused:
        say(f"{refused} jobs were refused")
        raise SystemExit(1)


def _find(serving: Coordination, namespace: str, flow_id: str) -> FlowView:
    check_name("namespace", namespace)
    wanted = find_flow_id(serving, flow_id, namespace)
    found = serving.store.load_flow(Namespace(namespace), wanted)
    if found is None:
        refuse(f"there is no flow {wanted} in namespace {namespace}")
    return found


def _live(view: FlowView) -> list[FlowStep]:
    return [step for step in view.steps if not step.status.is_terminal]


def _counted(view: FlowView) -> str:
    """`3 jobs: 2 succeeded, 1 waiting`."""
    numbers = dict.fromkeys(JobStatus, 0)
    for step in view.steps:
        numbers[step.status] = numbers.get(step.status, 0) + 1
    parts = [f"{number} {status}" for status, number in numbers.items() if number]
    return f"{len(view.steps)} jobs: {', '.join(parts)}"


def _after(steps: tuple[str, ...]) -> str:
    shown = ", ".join(steps[:SHOWN_PARENTS])
    more = len(steps) - SHOWN_PARENTS
    return f"{shown} and {more} more" if more > 0 else shown
