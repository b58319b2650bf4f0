"""The model of a redrive: two operators who redrive the same flow, cancels and expiries, a purge,
and the jobs that run.

Decided by the real core. Reading a flow, deciding and saving are steps of their own, so that the
operators, the purge and the ends of jobs can come between each other in every order.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from tenure.core.commands import RedriveFlow
from tenure.core.flow_rows import Edge, FlowRedrive, FlowRow, FlowStep, FlowView, replaced_job_id
from tenure.core.ids import DEFAULT_NAMESPACE, FlowId, JobId, RequestId
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.lifecycle import decide
from tenure.core.outcomes import Applied, Change, FlowToRedrive
from tenure.core.vocabulary import JobStatus
from tests.model.flows import CHILD, ONE, OPERATOR, TWO, at, birth
from tests.model.search import Step, reachable

FLOW = FlowId(ONE)
OPERATORS = (0, 1)
MOST_REDRIVES = 2
BY_A_CLIENT = "a client cancels"


class State(NamedTuple):
    """The rows and edges, the redrives, and what each operator has decided to write."""

    rows: tuple[Job, ...]
    edges: tuple[Edge, ...]
    redrives: tuple[FlowRedrive, ...] = ()
    decided: tuple[Change | None, ...] = (None, None)
    is_purged: bool = False

    def job(self, job_id: JobId) -> Job | None:
        return next((job for job in self.rows if job.id == job_id), None)


def failed() -> State:
    """One succeeded, two failed, so the child was cancelled."""
    born = birth(whatever=False)
    ends = {ONE: JobStatus.SUCCEEDED, TWO: JobStatus.FAILED, CHILD: JobStatus.CANCELLED}
    rows = tuple(_ended(job, ends[job.id]) for job in born.rows)
    edges = tuple(replace(edge, outcome=ends[edge.parent_id]) for edge in born.edges)
    return State(rows, edges)


def _ended(job: Job, status: JobStatus) -> Job:
    # How a job ends is another model's matter: only its status counts here.
    return replace(job, status=status, rev=job.rev + 1, finished_at=Instant(1000), run_at=None)


def view(state: State) -> FlowView:
    """The flow as a store shows it."""
    return FlowView(
        flow=FlowRow(
            id=FLOW, namespace=DEFAULT_NAMESPACE, name="join", made_at=Instant(1000), jobs=3
        ),
        steps=tuple(
            FlowStep(
                job_id=job.id,
                step=job.flow_step or "",
                kind=job.kind,
                queue=job.queue,
                status=job.status,
                replaces=replaced_job_id(job.origin_id, job.origin_cause),
            )
            for job in state.rows
        ),
        redrives=state.redrives,
    )


def found(state: State) -> FlowToRedrive:
    """What a service reads of it."""
    shown = view(state)
    jobs = {
        job.id: job
        for step in shown.current
        if step.status is not JobStatus.SUCCEEDED and (job := state.job(step.job_id)) is not None
    }
    return FlowToRedrive(
        view=shown,
        jobs=jobs,
        edges=tuple(edge for edge in state.edges if edge.child_id in jobs),
        present=frozenset(job.id for job in state.rows),
    )


def steps(state: State) -> Iterator[Step[State]]:
    """Everything that can happen next."""
    for operator in OPERATORS:
        yield from _operates(state, operator)
    for job in state.rows:
        yield from _runs(state, job)
    has_ended = all(job.status.is_terminal for job in state.rows)
    if has_ended and not state.is_purged:
        kept = tuple(job for job in state.rows if job.id != ONE)
        yield Step("a purge takes one", state._replace(rows=kept, is_purged=True))


def _operates(state: State, operator: int) -> Iterator[Step[State]]:
    change = state.decided[operator]
    if change is not None:
        yield Step(f"operator {operator} saves", after_saving(state, operator, change))
    elif len(state.redrives) < MOST_REDRIVES:
        command = RedriveFlow(
            flow_id=FLOW,
            namespace=DEFAULT_NAMESPACE,
            actor=OPERATOR,
            request_id=RequestId(f"r{operator}-{len(state.redrives)}"),
        )
        outcome = decide(command, replace(at(), flow=found(state)))
        if isinstance(outcome, Applied):
            decided = with_decision(state.decided, operator, outcome.change)
            yield Step(f"operator {operator} decides", state._replace(decided=decided))


def after_saving(state: State, operator: int, change: Change) -> State:
    """What a store writes: nothing if a job has the first id, or one that is needed is gone."""
    state = state._replace(decided=with_decision(state.decided, operator, None))
    is_late = state.job(change.job.id) is not None
    if is_late or any(state.job(each) is None for each in change.needed):
        return state
    assert change.redrive is not None
    rows = (*state.rows, change.job, *(spawned.job for spawned in change.spawned))
    assert len({job.id for job in rows}) == len(rows), "an id was written twice"
    by_id = {job.id: job for job in rows}
    edges = tuple(
        replace(edge, outcome=by_id[edge.parent_id].status)
        if by_id[edge.parent_id].status.is_terminal
        else edge
        for edge in change.edges
    )
    return state._replace(
        rows=rows, edges=state.edges + edges, redrives=(*state.redrives, change.redrive)
    )


def with_decision(
    all_: tuple[Change | None, ...], place: int, new: Change | None
) -> tuple[Change | None, ...]:
    return (*all_[:place], new, *all_[place + 1 :])


def _runs(state: State, job: Job) -> Iterator[Step[State]]:
    """A queued job ends well or badly, or is cancelled or expires, and marks its edges; a waiting
    one goes on if it can, or is cancelled."""
    own = [edge for edge in state.edges if edge.child_id == job.id]
    if job.status is JobStatus.WAITING:
        if all(edge.is_met for edge in own):
            ready = replace(job, status=JobStatus.QUEUED, rev=job.rev + 1, run_at=Instant(1000))
            yield Step(f"{job.flow_step} is ready", _changed(state, ready))
        cancelled = _changed(state, _ended(job, JobStatus.CANCELLED))
        if any(edge.is_broken for edge in own):
            yield Step(f"{job.flow_step} is cancelled", cancelled)
        else:
            yield Step(f"{BY_A_CLIENT} {job.flow_step}", cancelled)
    elif job.status is JobStatus.QUEUED:
        for status in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED):
            yield Step(f"{job.flow_step} ends as {status}", _changed(state, _ended(job, status)))


def _changed(state: State, job: Job) -> State:
    rows = tuple(job if each.id == job.id else each for each in state.rows)
    edges = state.edges
    if job.status.is_terminal:
        edges = tuple(
            replace(edge, outcome=job.status) if edge.parent_id == job.id else edge
            for edge in edges
        )
    return state._replace(rows=rows, edges=edges)


def wrong(state: State) -> str | None:
    """What must never be."""
    replaced = [job.origin_id for job in state.rows if job.origin_id is not None]
    if len(set(replaced)) < len(replaced):
        return "a job was replaced twice"
    for job in state.rows:
        old = None if job.origin_id is None else state.job(job.origin_id)
        if old is not None and old.status is JobStatus.SUCCEEDED:
            return f"{old.flow_step} was replaced although it succeeded"
        own = [edge for edge in state.edges if edge.child_id == job.id]
        went_on = job.status in (JobStatus.QUEUED, JobStatus.SUCCEEDED, JobStatus.FAILED)
        if went_on and not all(edge.is_met for edge in own):
            return f"{job.flow_step} went on before its parents"
        is_waiting = job.status is JobStatus.WAITING
        if is_waiting and any(state.job(edge.parent_id) is None for edge in own):
            return f"{job.flow_step} waits for a job that is gone"
    return None


def explore() -> list[State]:
    """Every state that can be reached. Raises for one that must not be, with the way there."""
    return reachable(failed(), steps, wrong)
