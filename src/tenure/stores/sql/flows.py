"""Flows and edges in SQL.

An edge is written once, its outcome once: when its parent is ended, or by the sweeper.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from tenure.core.flow_rows import (
    PARENTS_PER_PAGE,
    Edge,
    EdgeCheck,
    FlowRedrive,
    FlowRow,
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
from tenure.core.ids import Actor, FlowId, JobId, Namespace, job_id_range, last_instant_of
from tenure.core.instants import Instant
from tenure.core.leases import LeaseRef, why_no_lease
from tenure.core.outcomes import Change, History, NeedsHistory
from tenure.core.vocabulary import EventCause, JobStatus
from tenure.stores.sql.database import Database, Part, Transaction
from tenure.stores.sql.events import decision_histories
from tenure.stores.sql.rows import WITHOUT_BODIES, Row, job_from, moment_from, value_from
from tenure.stores.sql.statements import Query, Shape

EDGE_COLUMNS = Edge.__struct_fields__
COLUMN_PLACEHOLDERS = {
    "edge_columns": ", ".join(EDGE_COLUMNS),
    "waiting_status": f"'{JobStatus.WAITING.value}'",
}
REDRIVE_COLUMNS = FlowRedrive.__struct_fields__
EDGES_PER_PAGE = 2000

_BEFORE = (
    "AND (f.made_at, f.id) < (coalesce((SELECT last.made_at FROM {t}flow AS last"
    " WHERE last.id = :before AND last.namespace = :namespace), :before_at), :before)"
)
_OF_PREFIX = "AND f.id >= :id_from AND f.id <= :id_to"
_FROM_THE_FIRST: Shape = (("after_edge", ""),)
_FROM_THE_LAST: Shape = (
    ("after_edge", "WHERE (child_id, position) > (CAST(:child_id AS {uuid}), :position)"),
)


class SqlFlows(Part):
    """`tenure.ports.StoredFlows`, and how a change writes what flows need."""

    def __init__(
        self, database: Database, edge_insertion: Callable[[Sequence[Edge]], Query]
    ) -> None:
        super().__init__(database)
        self._edge_insertion = edge_insertion

    def unblocked(self, ids: Sequence[JobId], *, limit: int) -> UnblockedJobs:
        """The waiting jobs among these and their children whose wait is over. [FL5]"""
        packed = self._pack(ids)
        names = ("unblocked_by_one", "unblocked_by_all")
        queries = [self._query(name, ids=packed, limit=limit) for name in names]
        by_one, by_all = self._read(lambda tx: tx.fetch(*queries, last=True))
        found: dict[JobId, Unblocked] = {}
        for job_id, parent_id, outcome in (*by_one, *by_all):
            status = None if outcome is None else _status(outcome)
            found.setdefault(job_id, Unblocked(job_id, parent_id, status))
        hit_limit = limit in (len(by_one), len(by_all)) or len(found) > limit
        return UnblockedJobs(tuple(found.values())[:limit], hit_limit)

    def checks(self, *, limit: int, of: Sequence[JobId] | None = None) -> list[EdgeCheck]:
        """Mark edges from outside parents that have ended, and return the checks. [FL5]"""
        if of is not None:
            noted = self._rows(self._query("noted_among", ids=self._pack(of), limit=limit))
            return [EdgeCheck(job_id, Instant(noted_at)) for job_id, noted_at in noted]
        ended, rows = self._read(
            lambda tx: tx.fetch(
                self._query("ended_outside", limit=limit),
                self._query("load_edge_checks", limit=limit),
                last=True,
            )
        )
        if ended:
            marks = self.edge_marks([row[0] for row in ended])
            self._write(lambda tx: tx.fetch(*marks, last=True))
            rows = self._rows(self._query("load_edge_checks", limit=limit))
        return [EdgeCheck(job_id, Instant(noted_at)) for job_id, noted_at in rows]

    def delete_checks(self, checks: Sequence[EdgeCheck]) -> None:
        """Delete these checks: their jobs were checked."""
        queries = [
            self._query("delete_edge_check", job_id=each.job_id, noted_at=each.noted_at)
            for each in checks
        ]
        if queries:
            self._write(lambda tx: tx.fetch(*queries, last=True))

    def edges(self, children: Sequence[JobId] | None = None) -> Iterator[Edge]:
        """The edges of these jobs, or every edge, by child and position."""
        if children is not None:
            rows = self._rows(self._query("load_edges", ids=self._pack(children)))
            yield from map(_edge_from, rows)
            return
        shape, last = _FROM_THE_FIRST, dict[str, object]()
        while True:
            query = self._query("page_of_edges", shape, limit=EDGES_PER_PAGE, **last)
            page = [_edge_from(row) for row in self._rows(query, listing=True)]
            yield from page
            if len(page) < EDGES_PER_PAGE:
                return
            shape = _FROM_THE_LAST
            last = {"child_id": page[-1].child_id, "position": page[-1].position}

    def page(
        self,
        namespace: Namespace,
        *,
        before: FlowId | None,
        limit: int,
        id_prefix: str | None = None,
    ) -> list[FlowSummary]:
        """A page of flows, newest first. [FL9] [FL16]"""
        given: dict[str, object] = {"namespace": namespace, "limit": limit}
        clauses, index = "", ""
        if before is not None:
            clauses += _BEFORE
            given |= {"before": before, "before_at": last_instant_of(before)}
        if id_prefix is not None:
            clauses, index = clauses + _OF_PREFIX, "{by_flow_id}"
            given["id_from"], given["id_to"] = job_id_range(id_prefix)
        query = self._query("list_flows", (("index", index), ("clauses", clauses)), **given)
        return self._read(lambda tx: self._with_statuses(tx, query), snapshot=True, listing=True)

    def _with_statuses(self, tx: Transaction, query: Query) -> list[FlowSummary]:
        [rows] = tx.fetch(query)
        flows = [_flow_from(row[:5]) for row in rows]
        counted = counted_flows((flow, int(row[6])) for flow, row in zip(flows, rows, strict=True))
        ids = self._pack([JobId(each) for each in counted])
        jobs, replaced = tx.fetch(
            self._query("count_flow_jobs", ids=ids),
            self._query("count_replaced_jobs", ids=ids, redrive=EventCause.REDRIVE),
            last=True,
        )
        counts: dict[FlowId, Counter[JobStatus]] = {each: Counter() for each in counted}
        for flow_id, status, count in jobs:
            counts[flow_id][_status(status)] += count
        for flow_id, status, count in replaced:
            counts[flow_id][_status(status)] -= count
        return [
            FlowSummary(
                flow=flow,
                is_live=bool(row[5]),
                statuses=+counts[flow.id] if flow.id in counts else None,
            )
            for flow, row in zip(flows, rows, strict=True)
        ]

    def load(self, namespace: Namespace, flow_id: FlowId) -> FlowView | None:
        """A flow with its jobs and what they wait for. [FL9]"""
        flows, jobs, edges, redrives = self._read(
            lambda tx: tx.fetch(
                self._query("load_flow", flow_id=flow_id, namespace=namespace),
                self._query("load_flow_jobs", flow_id=flow_id),
                self._query("load_flow_edges", flow_id=flow_id),
                self._query("load_flow_redrives", flow_id=flow_id),
                last=True,
            ),
            snapshot=True,
            listing=True,
        )
        if not flows:
            return None
        after: dict[str, list[str]] = {}
        for child_id, step in edges:
            after.setdefault(child_id, []).append(step)
        return FlowView(
            flow=_flow_from(flows[0]),
            steps=tuple(
                FlowStep(
                    job_id=job_id,
                    step=step or "",
                    kind=kind,
                    queue=queue,
                    status=_status(status),
                    after=tuple(after.get(job_id, ())),
                    replaces=replaced_job_id(origin_id, _cause(cause)),
                )
                for job_id, step, kind, queue, status, origin_id, cause in jobs
            ),
            redrives=tuple(
                FlowRedrive(**dict(zip(REDRIVE_COLUMNS, row, strict=True))) for row in redrives
            ),
        )

    def existing(self, ids: Sequence[FlowId]) -> frozenset[FlowId]:
        """Which of these flows exist. [FL3] [FL13]"""
        packed = self._pack([JobId(each) for each in ids])
        return frozenset(row[0] for row in self._rows(self._query("existing_flows", ids=packed)))

    def parents(self, held: LeaseRef, actor: Actor, *, after: int) -> ParentPage:
        """The next parents of a leased job, with their results. [FL7]"""
        found = self._read(lambda tx: self._parent_page(tx, held, actor, after))
        if isinstance(found, NeedsHistory):  # the lease is over: read its end, too
            found = self._read(
                lambda tx: self._parent_page(
                    tx, held, actor, after, decision_histories(tx, self._query, [held.job_id])
                ),
                snapshot=True,
            )
            assert not isinstance(found, NeedsHistory)  # row and log are of one snapshot
        return found

    def _parent_page(
        self,
        tx: Transaction,
        held: LeaseRef,
        actor: Actor,
        after: int,
        histories: Mapping[JobId, History] | None = None,
    ) -> ParentPage | NeedsHistory:
        jobs, [moment], rows = tx.fetch(
            self._query("load_jobs", WITHOUT_BODIES, ids=self._pack([held.job_id])),
            self._query("moment_to_decide"),
            self._query("load_parents", child_id=held.job_id, after=after, limit=PARENTS_PER_PAGE),
            last=True,
        )
        job = job_from(jobs[0]) if jobs else None
        history = None if histories is None else histories[held.job_id]
        cause = why_no_lease(job, held.lease_id, actor, moment_from(moment), history)
        if isinstance(cause, NeedsHistory):
            return cause
        if cause is not None:
            return ParentPage(cause=cause)
        return parent_page([_parent_from(row) for row in rows])

    def whose_parents_exist(self, tx: Transaction, changes: Sequence[Change]) -> list[Change]:
        """The changes, except changes that need a job which was purged since it was read. No purge
        deletes the jobs of the others before the end of this transaction. [FL3] [FL6] [FL10]"""
        ids = needed_jobs(changes)
        if not ids:
            return list(changes)
        [rows] = tx.fetch(self._query("present_parents", ids=self._pack(ids)))
        gone = {*ids} - {JobId(str(row[0])) for row in rows}
        return [each for each in changes if gone.isdisjoint(each.needed)]

    def write(self, tx: Transaction, changes: Sequence[Change]) -> None:
        """Write the new flows and redrives of changes that were applied; their jobs are written."""
        for change in changes:
            queries = self._flow_insertions(change)
            if not queries:
                continue
            if change.edges:
                queries.append(self._edge_insertion(change.edges))
            children = sorted({edge.child_id for edge in change.edges if edge.is_outside})
            if children:
                # If a parent ends from now on, the sweeper writes its outcome: it knows no child.
                packed = self._pack(children)
                queries.append(self._query("mark_edges_of", ids=packed))
                queries.append(self._query("note_children", ids=packed))
            tx.fetch(*queries)

    def _flow_insertions(self, change: Change) -> list[Query]:
        made: list[Query] = []
        if change.flow is not None:
            made.append(self._query("insert_flow", **msgspec.structs.asdict(change.flow)))
        if change.redrive is not None:
            facts = msgspec.structs.asdict(change.redrive)
            made.append(self._query("insert_flow_redrive", **facts))
        return made

    def edge_marks(self, ended: Sequence[JobId]) -> list[Query]:
        """Statements that write the outcomes of ended jobs on their edges. None for no jobs.
        [FL4]"""
        if not ended:
            return []
        ids = self._pack(ended)
        return [self._query("mark_edges", ids=ids), self._query("note_ended_parents", ids=ids)]


def ended_members(changes: Sequence[Change]) -> list[JobId]:
    """The jobs of flows that these changes end, in the order of ids."""
    return sorted(change.job.id for change in changes if change.ends_member)


def needed_jobs(changes: Iterable[Change]) -> list[JobId]:
    """The jobs without which these changes are not applied, in the order of ids."""
    with_edges = [each for each in changes if each.flow is not None or each.redrive is not None]
    return sorted({job_id for change in with_edges for job_id in change.needed})


def _flow_from(row: Row) -> FlowRow:
    flow_id, namespace, name, made_at, jobs = row
    return FlowRow(id=flow_id, namespace=namespace, name=name, made_at=Instant(made_at), jobs=jobs)


def _cause(value: str | None) -> EventCause | None:
    return None if value is None else value_from(EventCause, value, where="the origin of a job")


def _parent_from(row: Row) -> ParentResult:
    position, step, outcome, result = row
    return ParentResult(
        position,
        step,
        None if outcome is None else _status(outcome),
        None if result is None else result.encode(),
    )


def _status(value: str) -> JobStatus:
    return value_from(JobStatus, value, where="the outcome of an edge")


def _edge_from(row: Row) -> Edge:
    child_id, position, parent_id, step, needs, is_outside, outcome = row
    return Edge(
        child_id,
        position,
        parent_id,
        step,
        None if needs is None else _status(needs),
        bool(is_outside),
        None if outcome is None else _status(outcome),
    )
