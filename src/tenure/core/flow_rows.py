"""Flows as they are stored, listed and rendered: the flow, the edges along which its jobs wait for
each other, and its redrives.

Values, and what follows from them alone: which jobs are current, their order, what fits a page.
`flows` decides. A store keeps these beside the jobs, writes an edge once and its outcome once, when
its parent has ended. [FL4]
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from tenure.core.ids import Actor, FlowId, JobId, Kind, Namespace, QueueName, RequestId
from tenure.core.instants import Instant
from tenure.core.vocabulary import Cause, EventCause, JobStatus

_K = TypeVar("_K", bound=Hashable)


class FlowRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Jobs that were made together. `jobs` does not count replacements."""

    id: FlowId
    namespace: Namespace
    name: str
    made_at: Instant
    jobs: int


class FlowRedrive(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One redrive of a flow: who asked for it, and how many jobs it made. [FL11]"""

    flow_id: FlowId
    number: int  # from 1
    ts: Instant
    actor: Actor
    request_id: RequestId
    jobs: int


class Edge(msgspec.Struct, frozen=True, gc=False):
    """One job waits for another.

    Not keyword-only, for the row mapper: a row's columns are its arguments.
    """

    child_id: JobId
    position: int  # among the edges of its child
    parent_id: JobId
    step: str  # the parent's name, for the child
    needs: JobStatus | None  # how the parent has to end; None: any end will do
    is_outside: bool = False  # the parent was there before the child: they were not made together
    outcome: JobStatus | None = None  # how the parent ended; None while it is live

    @property
    def is_met(self) -> bool:
        """Whether the parent has ended as the child needs it."""
        return self.outcome is not None and self.needs in (None, self.outcome)

    @property
    def is_broken(self) -> bool:
        """Whether the parent has ended otherwise."""
        return self.outcome is not None and not self.is_met


class Unblocked(msgspec.Struct, frozen=True, gc=False):
    """A waiting job whose wait is over: all its parents have ended as it needs them, or it is to be
    cancelled because `parent_id` ended otherwise."""

    job_id: JobId
    parent_id: JobId | None = None
    outcome: JobStatus | None = None


MAX_COUNTED_JOBS = 20_000
"""How many jobs are read to count the jobs of one list of flows by status. A flow has up to half
of this number, and each redrive of it up to the same number again."""


class FlowSummary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A flow as it is listed. `statuses` counts its jobs without replaced ones; None if the list
    has too many jobs for that."""

    flow: FlowRow
    is_live: bool  # whether a job of it has not ended
    statuses: Mapping[JobStatus, int] | None = None


def counted_flows(flows: Iterable[tuple[FlowRow, int]]) -> list[FlowId]:
    """From these flows, the ones whose jobs are counted for a list. Each comes with the number of
    its jobs, replaced ones included; one that has more than may still be read is left out, so that
    a flow that was redriven often does not keep older ones from being counted. [FL15]"""
    found, left = [], MAX_COUNTED_JOBS
    for flow, jobs in flows:
        if jobs <= left:
            left -= jobs
            found.append(flow.id)
    return found


class FlowStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job of a flow as a list has it, the names of its parents, and the job that it replaces."""

    job_id: JobId
    step: str
    kind: Kind
    queue: QueueName
    status: JobStatus
    after: tuple[str, ...] = ()
    replaces: JobId | None = None


def replaced_job_id(origin_id: JobId | None, cause: EventCause | None) -> JobId | None:
    """The job that a job of a flow replaces, from the origin in its row. Only a redrive makes jobs
    of a flow from other jobs of it. [FL12]"""
    return origin_id if cause is EventCause.REDRIVE else None


class _Replacing(Protocol):
    """A job of a flow, as a row or as a message has it."""

    @property
    def job_id(self) -> JobId: ...
    @property
    def replaces(self) -> JobId | None: ...


_R = TypeVar("_R", bound=_Replacing)


def without_replaced(steps: Sequence[_R]) -> tuple[_R, ...]:
    """These jobs of a flow without jobs that others among them replace. [FL10]"""
    replaced = {step.replaces for step in steps}
    return tuple(step for step in steps if step.job_id not in replaced)


class FlowView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A flow with its jobs, in the order of their ids, and its redrives, oldest first. `hidden` of
    its jobs, besides these, are out of the reader's scope. [FL9]"""

    flow: FlowRow
    steps: tuple[FlowStep, ...]
    redrives: tuple[FlowRedrive, ...] = ()
    hidden: int = 0

    @property
    def current(self) -> tuple[FlowStep, ...]:
        """Its jobs without replaced ones: one for each name."""
        return without_replaced(self.steps)

    @property
    def to_replace(self) -> list[JobId]:
        """The jobs that a redrive replaces, once all have ended: the current ones that did
        not succeed. [FL10]"""
        return [step.job_id for step in self.current if step.status is not JobStatus.SUCCEEDED]

    @property
    def is_live(self) -> bool:
        """Whether one of its jobs has not ended, as far as they are in the reader's scope."""
        return any(not step.status.is_terminal for step in self.steps)

    @property
    def purged(self) -> int:
        """How many of its jobs are no longer kept."""
        return max(0, self.flow.jobs - len(self.current) - self.hidden)


def parents_first(waits_for: Mapping[_K, Collection[_K]]) -> list[_K]:
    """Stable topological order: each job after its parents, otherwise in this order. Jobs of a
    cycle, and jobs that wait for one, are left out. Parents that are not among these jobs do not
    count."""
    children: dict[_K, list[_K]] = {job: [] for job in waits_for}
    unmet: dict[_K, int] = {}
    for job, parents in waits_for.items():
        inside = [parent for parent in parents if parent in children]
        unmet[job] = len(inside)
        for parent in inside:
            children[parent].append(job)
    ordered = [job for job, number in unmet.items() if not number]
    for job in ordered:  # grows while it is read
        for child in children[job]:
            unmet[child] -= 1
            if not unmet[child]:
                ordered.append(child)
    return ordered


def in_order(steps: Sequence[FlowStep]) -> list[FlowStep]:
    """These jobs of a flow, parents before their children, otherwise in this order. People read a
    flow like this; a cancel of the flow uses the reverse order. [FL14]"""
    by_name = {step.step: step for step in steps}
    placed = parents_first({step.step: step.after for step in steps})
    # A parent outside the flow may have the name of a job in it, so that some seem to form a cycle.
    left = by_name.keys() - set(placed)
    return [by_name[name] for name in placed] + [step for step in steps if step.step in left]


PARENTS_PER_PAGE = 20
PAGE_BYTES = 512 * 1024


class ParentResult(msgspec.Struct, frozen=True, gc=False):
    """How a parent ended, and what it returned."""

    position: int
    step: str
    outcome: JobStatus | None
    result: bytes | None = None


class ParentPage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Some parents of a job, in order of position; or why its lease does not allow that. [FL7]"""

    parents: tuple[ParentResult, ...] = ()
    is_last: bool = True
    cause: Cause | None = None


def parent_page(found: Sequence[ParentResult]) -> ParentPage:
    """The first of these that fit a page, at least one; the first `PARENTS_PER_PAGE` were read."""
    size_bytes, fitting = 0, 0
    for parent in found:
        size_bytes += len(parent.result or b"")
        if fitting and size_bytes > PAGE_BYTES:
            break
        fitting += 1
    is_last = fitting == len(found) < PARENTS_PER_PAGE
    return ParentPage(parents=tuple(found[:fitting]), is_last=is_last)


class UnblockedJobs(msgspec.Struct, frozen=True, gc=False):
    """The result of one search. If it hit its limit, there may be more."""

    jobs: tuple[Unblocked, ...]
    hit_limit: bool


class EdgeCheck(msgspec.Struct, frozen=True, gc=False):
    """A row that states that the wait of a job, or of its children, may be over. A sweeper deletes
    it after it has checked them. [FL5]"""

    job_id: JobId
    noted_at: Instant
