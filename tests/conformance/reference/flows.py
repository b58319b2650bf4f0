"""Flows and edges in dictionaries. A part of the reference store, which owns the jobs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from tenure.core.flow_rows import (
    PARENTS_PER_PAGE,
    Edge,
    EdgeCheck,
    Flow,
    FlowRedrive,
    FlowStep,
    FlowSummary,
    FlowView,
    ParentPage,
    ParentResult,
    Unblocked,
    UnblockedJobs,
    counted_flows,
    parent_page,
    replaced_job_id,
)
from tenure.core.ids import Actor, FlowId, JobId, Namespace, last_instant_of
from tenure.core.job import Job
from tenure.core.leases import HeldLease, why_not_held
from tenure.core.outcomes import Change, Moment, NeedsHistory
from tenure.core.vocabulary import JobStatus
from tests.conformance.reference.part import MemoryPart


class MemoryFlows(MemoryPart):
    """The part of `tenure.ports.Store` about jobs that wait for other jobs."""

    def __init__(self) -> None:
        super().__init__()
        self._flows: dict[FlowId, Flow] = {}
        self._redrives: dict[FlowId, list[FlowRedrive]] = {}
        self._edges: dict[JobId, list[Edge]] = {}  # by child, in order of position
        self._children: dict[JobId, list[JobId]] = {}
        self._checks: set[EdgeCheck] = set()

    def unblocked(self, ids: Sequence[JobId], *, limit: int) -> UnblockedJobs:
        """Those of these jobs and of their children that wait and can go on. [FL5]"""
        with self._lock:
            self._open()
            near = [child for job_id in ids for child in (job_id, *self._children.get(job_id, ()))]
            found: list[Unblocked] = []
            for job_id in dict.fromkeys(near):
                job, edges = self._jobs.get(job_id), self._edges.get(job_id, [])
                if job is None or job.status is not JobStatus.WAITING:
                    continue
                broken = next((edge for edge in edges if edge.is_broken), None)
                if broken is not None:
                    found.append(Unblocked(job_id, broken.parent_id, broken.outcome))
                elif all(edge.is_met for edge in edges):
                    found.append(Unblocked(job_id))
            return UnblockedJobs(tuple(found[:limit]), len(found) >= limit)

    def edge_checks(self, *, limit: int) -> list[EdgeCheck]:
        """Mark edges from outside parents that have ended, and return the checks. [FL5]"""
        with self._lock:
            self._open()
            outside = [
                edge.parent_id
                for edges in self._edges.values()
                for edge in edges
                if edge.is_outside and edge.outcome is None
            ]
            self._note_checks(self._mark_edges(outside))
            return sorted(self._checks, key=lambda each: (each.noted_at, each.job_id))[:limit]

    def delete_edge_checks(self, checks: Sequence[EdgeCheck]) -> None:
        """Delete these notes: their jobs were checked."""
        with self._lock:
            self._open()
            self._checks.difference_update(checks)

    def noted_checks(self, ids: Sequence[JobId]) -> list[EdgeCheck]:
        """The checks that are noted of these jobs."""
        with self._lock:
            self._open()
            return [check for check in self._checks if check.job_id in ids]

    def edges(self) -> Iterator[Edge]:
        """Every edge, by child and position."""
        with self._lock:
            self._open()
            children = sorted(self._edges)
        for child in children:
            yield from self.load_edges([child])

    def load_edges(self, children: Sequence[JobId]) -> list[Edge]:
        """The edges of these jobs, by child and position."""
        with self._lock:
            self._open()
            return [edge for child in sorted(children) for edge in self._edges.get(child, ())]

    def list_flows(
        self,
        namespace: Namespace,
        *,
        before: FlowId | None,
        limit: int,
        id_prefix: str | None = None,
    ) -> list[FlowSummary]:
        """A page of flows, newest first. [FL9]"""
        with self._lock:
            self._open()
            live = {job.flow_id for job in self._jobs.values() if job.finished_at is None}
            found = sorted(
                (
                    each
                    for each in self._flows.values()
                    if each.namespace == namespace and each.id.startswith(id_prefix or "")
                ),
                key=lambda each: (each.made_at, each.id),
                reverse=True,
            )
            if before is not None:
                last = self._flows.get(before)
                is_here = last is not None and last.namespace == namespace
                at = last.made_at if last is not None and is_here else last_instant_of(before)
                found = [each for each in found if (each.made_at, each.id) < (at, before)]
            page = found[:limit]
            statuses = self._flow_statuses(
                counted_flows((each, each.jobs + self._redriven_jobs(each.id)) for each in page)
            )
            return [
                FlowSummary(flow=each, is_live=each.id in live, statuses=statuses.get(each.id))
                for each in page
            ]

    def _redriven_jobs(self, flow_id: FlowId) -> int:
        return sum(redrive.jobs for redrive in self._redrives.get(flow_id, ()))

    def _flow_statuses(self, flows: Sequence[FlowId]) -> dict[FlowId, Counter[JobStatus]]:
        """The statuses of the jobs of these flows without those that others replace."""
        found: dict[FlowId, Counter[JobStatus]] = {each: Counter() for each in flows}
        jobs = [job for job in self._jobs.values() if job.flow_id in found]
        replaced = {replaced_job_id(job.origin_id, job.origin_cause) for job in jobs}
        for job in jobs:
            if job.id not in replaced and job.flow_id is not None:
                found[job.flow_id][job.status] += 1
        return found

    def load_flow(self, namespace: Namespace, flow_id: FlowId) -> FlowView | None:
        """A flow with its jobs and what they wait for. [FL9]"""
        with self._lock:
            self._open()
            flow = self._flows.get(flow_id)
            if flow is None or flow.namespace != namespace:
                return None
            jobs = sorted(
                (job for job in self._jobs.values() if job.flow_id == flow_id),
                key=lambda job: job.id,
            )
            return FlowView(
                flow=flow,
                steps=tuple(
                    FlowStep(
                        job_id=job.id,
                        step=job.flow_step or "",
                        kind=job.kind,
                        queue=job.queue,
                        status=job.status,
                        after=tuple(edge.step for edge in self._edges.get(job.id, ())),
                        replaces=replaced_job_id(job.origin_id, job.origin_cause),
                    )
                    for job in jobs
                ),
                redrives=tuple(self._redrives.get(flow_id, ())),
            )

    def existing_flows(self, ids: Sequence[FlowId]) -> frozenset[FlowId]:
        """Those of these flows that exist. [FL3] [FL13]"""
        with self._lock:
            self._open()
            return frozenset(each for each in ids if each in self._flows)

    def load_parents(self, held: HeldLease, actor: Actor, *, after: int) -> ParentPage:
        """The next parents of a leased job, with their results. [FL7]"""
        with self._lock:
            self._open()
            job, history = self._jobs.get(held.job_id), self._events.get(held.job_id, [])
            at = Moment(now=self._clock(), epoch=self._epoch, entropy=b"")
            cause = why_not_held(job, held.lease_id, actor, at, history)
            assert not isinstance(cause, NeedsHistory)
            if cause is not None:
                return ParentPage(cause=cause)
            edges = [edge for edge in self._edges.get(held.job_id, ()) if edge.position > after]
            found = [(edge, self._jobs.get(edge.parent_id)) for edge in edges[:PARENTS_PER_PAGE]]
            return parent_page(
                [
                    ParentResult(
                        edge.position, edge.step, edge.outcome, None if job is None else job.result
                    )
                    for edge, job in found
                ]
            )

    def _write_flow(self, change: Change) -> None:
        """What a change says of flows; its jobs are written."""
        if change.flow is not None:
            self._flows[change.flow.id] = change.flow
        if change.redrive is not None:
            self._redrives.setdefault(change.redrive.flow_id, []).append(change.redrive)
        for edge in change.edges:
            self._edges.setdefault(edge.child_id, []).append(edge)
            self._children.setdefault(edge.parent_id, []).append(edge.child_id)
        for edge in change.edges:
            if edge.is_outside:
                self._mark_edges([edge.parent_id], child=edge.child_id)
                self._note_checks([edge.child_id])
        if change.ends_member:
            self._note_checks(self._mark_edges([change.job.id]))

    def _note_checks(self, ids: Iterable[JobId]) -> None:
        now = self._clock()
        self._checks.update(EdgeCheck(job_id, now) for job_id in ids)

    def _mark_edges(self, parents: Iterable[JobId], *, child: JobId | None = None) -> set[JobId]:
        """Copy the status of these jobs, if they have ended, to the edges that lead from them, or
        only to those to one child. Returns those that had any."""
        marked: set[JobId] = set()
        for parent_id in list(dict.fromkeys(parents)):
            parent = self._jobs.get(parent_id)
            if parent is None or parent.finished_at is None:
                continue
            children = self._children.get(parent_id, ()) if child is None else (child,)
            for child_id in children:
                edges = self._edges[child_id]
                for place, edge in enumerate(edges):
                    if edge.parent_id == parent_id and edge.outcome is None:
                        edges[place] = replace(edge, outcome=parent.status)
                        marked.add(parent_id)
        return marked

    def _kept_for_flows(self, is_due: Callable[[Job], bool]) -> set[JobId]:
        """The jobs that a purge keeps: of flows of which a job is not due, and their parents.
        [FL6]"""
        kept = {job.flow_id for job in self._jobs.values() if not is_due(job)}
        members = {
            job.id for job in self._jobs.values() if job.flow_id is not None and job.flow_id in kept
        }
        parents = {edge.parent_id for child in members for edge in self._edges.get(child, ())}
        return members | parents

    def _purge_flows(self, gone: set[JobId]) -> None:
        for child in gone & self._edges.keys():
            for edge in self._edges.pop(child):
                self._children[edge.parent_id].remove(child)
        named = {job.flow_id for job in self._jobs.values()}
        self._flows = {flow_id: flow for flow_id, flow in self._flows.items() if flow_id in named}
        self._redrives = {each: made for each, made in self._redrives.items() if each in named}
        self._checks = {each for each in self._checks if each.job_id not in gone}
