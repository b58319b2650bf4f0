"""`tenure flows …`: list flows, show one with its jobs, wait for it, cancel it, redrive it."""

from collections import Counter
from collections.abc import Mapping
from functools import partial

import click

from tenure.cli.errors import INTERRUPTED, OUTPUT_CLOSED, REFUSED, Interrupted, refuse
from tenure.cli.following import Reconnecting, following, give_up, keeps_running, pause
from tenure.cli.invocation import Invocation, Listing, command, find_flow_id, list_command
from tenure.cli.options import flag, limit_option, request_id_option, timeout_option
from tenure.cli.output import ago, print_json, print_table, printable, say
from tenure.core.flow_rows import FlowRow, FlowStep, FlowSummary, FlowView, in_order
from tenure.core.ids import DEFAULT_NAMESPACE, FlowId, JobId
from tenure.core.instants import Duration
from tenure.core.vocabulary import JobStatus, counted
from tenure.errors import Conflict, InvalidInput, UnreadableRow
from tenure.protocol.replies import FlowRecord, FlowReply, flow_reply, flow_summary_record

PAUSE_S = 0.25
SHOWN_PARENTS = 3
SHOWN_PROBLEMS = 20

flow_argument = click.argument("flow_id")


@click.group()
def flows() -> None:
    """List flows, show their jobs, wait for them, cancel them, redrive them."""


@list_command(flows, json=list[FlowRecord])
@limit_option(500)
def list_flows(cli: Invocation, limit: int) -> Listing[FlowSummary]:
    """List flows, newest first."""
    found = cli.store.flows.page(cli.namespace, before=None, limit=limit)
    now = cli.now
    return Listing(
        found,
        {
            "ID": lambda each: each.flow.id,
            "NAME": lambda each: each.flow.name,
            "JOBS": lambda each: each.flow.jobs,
            "STATE": lambda each: "live" if each.is_live else "ended",
            "STATUSES": lambda each: (
                "not counted" if each.statuses is None else _in_words(each.statuses)
            ),
            "MADE": lambda each: ago(each.flow.made_at, now),
        },
        document=flow_summary_record,
    )


@command(flows, "show", json=FlowReply)
@flow_argument
def show_flow(cli: Invocation, flow_id: str) -> None:
    """Show a flow: its jobs, what each waits for, and their statuses.

    A job that was replaced by a redrive is shown beside its replacement; --json lists all of them.
    """
    _show(cli, _find(cli, flow_id))


def _show(cli: Invocation, view: FlowView) -> None:
    if cli.as_json:
        print_json(flow_reply(view))
        return
    click.echo(f"{printable(view.flow.name)}: {_counted(view)}")
    for redrive in view.redrives:
        who, when = printable(redrive.actor), ago(redrive.ts, cli.now)
        click.echo(f"redriven {when} by {who}: {counted(redrive.jobs, 'new job')}")
    click.echo()
    statuses = {step.job_id: step.status for step in view.steps}
    rows = [
        (
            step.step,
            step.status,
            _after(step.after),
            step.job_id,
            "" if step.replaces is None else _replaced(step.replaces, statuses),
        )
        for step in in_order(view.current)
    ]
    header = ["NAME", "STATUS", "AFTER", "JOB", "REPLACES"]
    columns = len(header) if any(step.replaces for step in view.current) else len(header) - 1
    print_table(header[:columns], [row[:columns] for row in rows])


def _replaced(job_id: JobId, statuses: dict[JobId, JobStatus]) -> str:
    return f"{job_id} {statuses.get(job_id, 'purged')}"


@command(flows, "wait", json=FlowReply)
@timeout_option
@flow_argument
def wait_for_flow(cli: Invocation, timeout: Duration | None, flow_id: str) -> None:
    """Wait until every job of a flow has ended.

    Exits with 0 if all of them succeeded, 1 if not, if they did not end in time, or if some were
    purged or are not visible to your token, so that their end is not known; 130 if you press
    Ctrl-C. The jobs continue.
    """
    view = _find(cli, flow_id)
    remark = _keeps_running(view.flow)
    with following(interrupted=INTERRUPTED, remark=remark, output_closed=OUTPUT_CLOSED):
        view = _ended(cli, view, timeout)
    _show_counted(cli, view)
    of_all = f"of {counted(view.flow.jobs, 'job')} of the flow"
    if view.hidden:
        refuse(f"not visible to this token: {view.hidden} {of_all}; they may not have ended")
    if view.purged:
        refuse(f"ended and purged: {view.purged} {of_all}; how they ended is no longer known")
    if any(step.status is not JobStatus.SUCCEEDED for step in view.current):
        raise SystemExit(REFUSED)


def _ended(cli: Invocation, view: FlowView, timeout: Duration | None) -> FlowView:
    """The flow once all of its jobs have ended. A lost store or server is waited for. [LV5]"""
    reading = Reconnecting(timeout=timeout, was_answered=True)
    flow = view.flow
    while _live(view):
        if reading.is_too_late:
            give_up(f"the flow has not ended: {_counted(view)}", remark=_keeps_running(flow))
        pause(PAUSE_S)
        view = reading.ask(partial(_load, cli, flow.id))
    return view


def _keeps_running(flow: FlowRow) -> str:
    elsewhere = "" if flow.namespace == DEFAULT_NAMESPACE else f" --namespace {flow.namespace}"
    return keeps_running(f"flow {flow.id}", shown_by=f"flows show {flow.id}{elsewhere}")


@command(flows, "cancel", json=FlowReply)
@request_id_option
@flag("--hard", help="Do not wait for running handlers.")
@click.option("--reason", default="", help="Shown with each job.")
@flow_argument
def cancel_flow(
    cli: Invocation, request_id: str | None, hard: bool, reason: str, flow_id: str
) -> None:
    """Cancel every job of a flow that has not ended.

    Handlers of running jobs are asked to stop and have a grace period to do so; --hard does not
    wait for them. It is safe to run again. Ctrl-C ends it with exit code 130 and says
    how far it is.
    """
    chosen = find_flow_id(cli, flow_id)
    try:
        cli.api.flows.cancel(chosen, hard=hard, reason=reason, request_id=request_id)
    except (Conflict, UnreadableRow) as problem:
        _show_counted(cli, _load(cli, chosen))
        every = problem.__cause__
        problems = every.exceptions if isinstance(every, ExceptionGroup) else (problem,)
        for each in problems[:SHOWN_PROBLEMS]:
            say(str(each))
        refuse(counted(len(problems), "job was not cancelled", "jobs were not cancelled"))
    except KeyboardInterrupt as interrupt:
        view = _load(cli, chosen)
        ended = f"ended: {len(view.steps) - len(_live(view))} of {_counted(view)}"
        raise Interrupted(f"interrupted; {ended}; run it again to cancel the rest") from interrupt
    _show_counted(cli, _load(cli, chosen))


@command(flows, "redrive", json=FlowReply)
@request_id_option
@flow_argument
def redrive_flow(cli: Invocation, request_id: str | None, flow_id: str) -> None:
    """Replace the jobs of a flow that did not succeed; prints the flow.

    A new job has the payload and the name of the one that it replaces. It waits for the same jobs,
    or for their replacements, and reads their results. Jobs that succeeded are not run again.
    The flow must have ended: wait for it, or cancel it.

    Exits with 0 if there are new jobs, 1 if not, 2 if it could not be done. It is safe to run
    again; under the same --request-id it makes nothing.
    """
    chosen = find_flow_id(cli, flow_id)
    try:
        cli.api.flows.redrive(chosen, request_id=request_id)
    except InvalidInput as limit:  # the flow's id is right: it was redriven too often
        refuse(f"flow {limit.problem}; {limit.hint}")
    _show(cli, _load(cli, chosen))


def _find(cli: Invocation, text: str) -> FlowView:
    return _load(cli, find_flow_id(cli, text))


def _load(cli: Invocation, flow_id: FlowId) -> FlowView:
    found = cli.store.flows.load(cli.namespace, flow_id)
    if found is None:
        refuse(f"there is no flow {flow_id} in namespace {cli.namespace}")
    return found


def _live(view: FlowView) -> list[FlowStep]:
    return [step for step in view.steps if not step.status.is_terminal]


def _show_counted(cli: Invocation, view: FlowView) -> None:
    if cli.as_json:
        print_json(flow_reply(view))
    else:
        click.echo(_counted(view))


def _counted(view: FlowView) -> str:
    """`3 jobs: 2 succeeded, 1 waiting`."""
    current = view.current
    statuses = Counter(step.status for step in current)
    return f"{counted(len(current), 'job')}: {_in_words(statuses)}"


def _in_words(statuses: Mapping[JobStatus, int]) -> str:
    """`2 succeeded, 1 failed`."""
    known = [status for status in JobStatus if status in statuses]
    newer = [status for status in statuses if status not in known]
    return ", ".join(f"{statuses[status]} {status}" for status in (*known, *newer))


def _after(steps: tuple[str, ...]) -> str:
    shown = ", ".join(steps[:SHOWN_PARENTS])
    more = len(steps) - SHOWN_PARENTS
    return f"{shown} and {more} more" if more > 0 else shown
