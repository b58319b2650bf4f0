"""The model of a join: two parents that end at any moment, processes that die, and sweepers.

The jobs are decided by the real core. The store is a value: an end marks its edge in the same step,
as a transaction does, and everything else happens one read or one write at a time, so that any two
processes can come between each other. `explore` visits every state that can be reached.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from tenure.core.commands import (
    Cancel,
    Command,
    DeadLetter,
    Enqueue,
    EnqueueFlow,
    FlowMember,
    Parent,
    ParentEnd,
    Unblock,
)
from tenure.core.flow_rows import Edge
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    ENTROPY_BYTES,
    Epoch,
    FlowId,
    JobId,
    Kind,
    QueueName,
    RequestId,
    client_actor,
    operator_actor,
)
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.lifecycle import decide
from tenure.core.outcomes import Applied, Change, DecisionContext
from tenure.core.vocabulary import EventType, JobStatus, ReasonCode
from tests.model.search import Step, reachable

ONE, TWO, CHILD = (JobId(f"00000000-0000-7000-8000-00000000000{number}") for number in (1, 2, 3))
PARENTS = (ONE, TWO)
CHILD_CANCELLED = "the child is cancelled"
CLIENT, OPERATOR = client_actor("carl"), operator_actor("olga")


class Process(NamedTuple):
    """Who looks after a parent's end: what it still has to do, as it remembers it."""

    looks_at: JobId | None = None
    decided: Change | None = None


class State(NamedTuple):
    """The rows, the edges, the notes, and what each process is about to do."""

    rows: tuple[Job, ...]
    edges: tuple[Edge, ...]
    noted: frozenset[JobId]
    processes: tuple[Process, ...]
    ready_events: int = 0

    def job(self, job_id: JobId) -> Job:
        return next(job for job in self.rows if job.id == job_id)


def birth(*, whatever: bool) -> State:
    """A flow of two parents and their child, which may need their success or only their ends."""
    needs = None if whatever else JobStatus.SUCCEEDED
    after = tuple(Parent(job_id=each, step=each[-1], needs=needs) for each in PARENTS)
    members = (
        FlowMember(job=_job(ONE), step="1"),
        FlowMember(job=_job(TWO), step="2"),
        FlowMember(job=_job(CHILD), step="3", after=after),
    )
    command = EnqueueFlow(flow_id=FlowId(ONE), name="join", members=members)
    outcome = decide(command, at())
    assert isinstance(outcome, Applied)
    change = outcome.change
    rows = (change.job, *(spawned.job for spawned in change.spawned))
    return State(rows, change.edges, frozenset(), (Process(), Process(), Process()))


def _job(job_id: JobId) -> Enqueue:
    return Enqueue(
        job_id=job_id,
        namespace=DEFAULT_NAMESPACE,
        queue=QueueName("main"),
        kind=Kind("work"),
        actor=CLIENT,
    )


def at(job: Job | None = None) -> DecisionContext:
    """The one instant at which everything happens."""
    return DecisionContext(now=Instant(1000), epoch=Epoch(1), entropy=bytes(ENTROPY_BYTES), job=job)


def steps(state: State) -> Iterator[Step[State]]:
    """Everything that can happen next."""
    for number, parent_id in enumerate(PARENTS):
        yield from _ends(state, number, parent_id)
    for number, process in enumerate(state.processes):
        yield from continuations(state, number, process)
    yield from _cancels_child(state)


def _ends(state: State, number: int, parent_id: JobId) -> Iterator[Step[State]]:
    """A parent ends well or badly, by the process of this number: one transaction."""
    parent = state.job(parent_id)
    if parent.status.is_terminal:
        return
    bury = DeadLetter(
        job_id=parent_id,
        actor=OPERATOR,
        request_id=RequestId("bury"),
        reason_code=ReasonCode.POLICY_VIOLATION,
    )
    outcome = decide(bury, at(parent))
    assert isinstance(outcome, Applied)
    assert outcome.change.ends_member
    # How a worker's success is reported is another model's matter: only the row counts here.
    good = replace(outcome.change.job, status=JobStatus.SUCCEEDED)
    for ended in (good, outcome.change.job):
        edges = tuple(
            replace(edge, outcome=ended.status) if edge.parent_id == parent_id else edge
            for edge in state.edges
        )
        yield Step(
            f"{parent_id[-1]} ends as {ended.status}",
            _process(
                state._replace(
                    rows=_with(state.rows, ended),
                    edges=edges,
                    noted=state.noted | {parent_id},
                ),
                number,
                Process(looks_at=parent_id),
            ),
        )


def continuations(state: State, number: int, process: Process) -> Iterator[Step[State]]:
    """A process looks, saves what it decided, or dies; the last one is the sweeper."""
    is_sweeper = number == len(PARENTS)
    if is_sweeper and process == Process() and state.noted:
        for parent_id in sorted(state.noted):
            yield Step("the sweeper looks", _process(state, number, Process(looks_at=parent_id)))
    if process.decided is not None:
        change = process.decided
        saved = _process(state, number, Process(looks_at=process.looks_at))
        if state.job(CHILD).rev == change.expected_rev:
            is_ready = any(event.type is EventType.READY for event in change.events)
            saved = saved._replace(
                rows=_with(saved.rows, change.job),
                ready_events=saved.ready_events + is_ready,
            )
        yield Step(f"process {number} saves", saved)
    elif process.looks_at is not None:
        command = _found(state)
        outcome = None if command is None else decide(command, at(state.job(CHILD)))
        if isinstance(outcome, Applied):
            looked = _process(state, number, process._replace(decided=outcome.change))
        else:
            # Nothing to do: a sweeper forgets the note, the others go on with their own work.
            noted = state.noted - {process.looks_at} if is_sweeper else state.noted
            looked = _process(state._replace(noted=noted), number, Process())
        yield Step(f"process {number} looks", looked)
    if process != Process():
        yield Step(f"process {number} dies", _process(state, number, Process()))


def _found(state: State) -> Command | None:
    """What a look at the store finds to do for the child."""
    broken = next((edge for edge in state.edges if edge.is_broken), None)
    if broken is not None and broken.outcome is not None:
        ended = ParentEnd(job_id=broken.parent_id, status=broken.outcome)
        return Unblock(job_id=CHILD, ended_otherwise=ended)
    all_met = all(edge.is_met for edge in state.edges)
    return Unblock(job_id=CHILD) if all_met else None


def _cancels_child(state: State) -> Iterator[Step[State]]:
    child = state.job(CHILD)
    if child.status is JobStatus.WAITING:
        command = Cancel(job_id=CHILD, actor=CLIENT, request_id=RequestId("stop"))
        outcome = decide(command, at(child))
        assert isinstance(outcome, Applied)
        rows = _with(state.rows, outcome.change.job)
        yield Step(CHILD_CANCELLED, state._replace(rows=rows))


def _with(rows: tuple[Job, ...], new: Job) -> tuple[Job, ...]:
    return tuple(new if job.id == new.id else job for job in rows)


def _process(state: State, number: int, process: Process) -> State:
    before = state.processes
    return state._replace(processes=(*before[:number], process, *before[number + 1 :]))


def wrong(state: State) -> str | None:
    """What must never be."""
    child = state.job(CHILD)
    if state.ready_events > 1:
        return f"{state.ready_events} ready events"
    if child.status is JobStatus.QUEUED and not all(edge.is_met for edge in state.edges):
        return "the child went on before its parents"
    ended = {edge.parent_id for edge in state.edges if edge.outcome is not None}
    if ended != {each for each in PARENTS if state.job(each).status.is_terminal}:
        return "an edge and its parent disagree"
    return None


def explore(*, whatever: bool) -> list[State]:
    """Every state that can be reached. Raises for one that must not be, with the way there."""
    return reachable(birth(whatever=whatever), steps, wrong)
