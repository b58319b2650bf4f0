"""Checks jobs that wait for others: none runs too early, none waits for nothing, and a redrive
replaces only what did not succeed.

Edges are read after the rows, because an edge is marked by the transaction that ends its parent.
A job whose wait is over and that has a row in `edge_check` is not reported: a sweeper is about to
queue it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from tenure.core.flow_rows import Edge
from tenure.core.ids import JobId, replacement_id
from tenure.core.job import Job
from tenure.core.vocabulary import EventCause, JobStatus
from tenure.ports import JobHistory, RecordSource
from tenure.verify.checking import JobProblems, Problems, temporary_database

TOGETHER = 100
"""How many children, or parents, are read at once."""

_Rows = dict[JobId, Job]


def children_follow_parents(store: RecordSource) -> JobProblems:
    """A job that left `waiting` to run has only parents that ended as it needs them, as its edges
    state. [I32]"""
    for child, edges, rows in _children(store):
        for edge in edges:
            if _has_continued(child) and not edge.is_met:
                what = f"is {child.status}, its parent {edge.parent_id} "
                what += f"ended as {edge.outcome}" if edge.outcome else "has not ended"
                yield _of(child, what)
            elif edge.outcome and (parent := _disagreeing_parent(store, edge, rows)) is not None:
                what = f"its edge states that {parent.id} ended as {edge.outcome}, "
                yield _of(child, f"{what}which is {parent.status}")


def no_job_waits_for_ended_parents(store: RecordSource) -> JobProblems:
    """A job that waits has a live parent and none that ended otherwise than it needs; or
    `edge_check` has a row for it. [I33]"""
    for child, edges, rows in _children(store):
        if child.status is not JobStatus.WAITING:
            continue
        unmarked = next((edge for edge in edges if _is_unmarked(edge, rows)), None)
        gone = next((edge for edge in edges if _is_gone(edge, rows)), None)
        if gone is not None:
            yield _of(child, f"waits for {gone.parent_id}, which does not exist")
        elif unmarked is not None:
            what = f"waits for {unmarked.parent_id}, which has ended and did not mark its edge"
            yield _of(child, what)
        elif all(edge.outcome for edge in edges) or any(edge.is_broken for edge in edges):
            near = [child.id, *(edge.parent_id for edge in edges)]
            # In this order: a note is deleted after what it asks for is committed.
            has_check = bool(store.flows.checks(limit=1, of=near))
            if not has_check and _still_waits(store, child):
                yield _of(child, "waits, although its parents have ended")


def replacements_follow_from_their_jobs(record: JobHistory) -> Problems:
    """A job that a redrive of a flow made has the id that follows from the one it replaces: so each
    is replaced at most once. [I37]"""
    first = record.events[0] if record.events else None
    if first is None or first.payload.flow_id is None or first.cause is not EventCause.REDRIVE:
        return
    replaced = first.payload.origin_id
    if replaced is None or record.job_id != replacement_id(replaced):
        what = f"its id does not follow from {replaced}, the job of the flow that it replaces"
        yield first.seq, what


class Replacements:
    """Jobs that replace others of their flow. Such a job has the name of the one that it replaces,
    which ended without success. [I37]"""

    def __init__(self) -> None:
        self._database = temporary_database(
            "CREATE TABLE replacement (job_id TEXT, rev INTEGER, flow_id TEXT, flow_step TEXT,"
            " replaced TEXT)"
        )
        self.close = self._database.close

    def add(self, record: JobHistory) -> None:
        """Keep the job if it replaces another one."""
        job = record.job
        if job is not None and job.flow_id is not None and job.origin_cause is EventCause.REDRIVE:
            self._database.execute(
                "INSERT INTO replacement VALUES (?, ?, ?, ?, ?)",
                (job.id, job.rev, job.flow_id, job.flow_step, job.origin_id),
            )

    def problems(self, store: RecordSource) -> JobProblems:
        """The jobs that should not have replaced what they replaced."""
        # One that was purged is not checked; a job without one is reported by the check above.
        found = self._database.execute("SELECT * FROM replacement WHERE replaced IS NOT NULL")
        while some := found.fetchmany(TOGETHER):
            rows = _load(store, [JobId(each[-1]) for each in some])
            for job_id, rev, flow_id, flow_step, replaced in some:
                old = rows.get(replaced)
                if old is None:
                    continue
                if (old.flow_id, old.flow_step) != (flow_id, flow_step):
                    what = f"replaces {old.id}, which is {old.flow_step} of flow {old.flow_id}"
                    yield job_id, rev, what
                if not old.status.is_terminal or old.status is JobStatus.SUCCEEDED:
                    yield job_id, rev, f"replaces {old.id}, which is {old.status}"


def _has_continued(child: Job) -> bool:
    """Whether it has left `waiting` to run. A job that was never claimed may have ended before."""
    ended_early = child.status in (JobStatus.CANCELLED, JobStatus.DEAD_LETTERED)
    return child.status is not JobStatus.WAITING and (child.attempt > 0 or not ended_early)


def _disagreeing_parent(store: RecordSource, edge: Edge, rows: _Rows) -> Job | None:
    """The parent of an edge with an outcome, if it did not end so. Its row was read before the edge
    and may have ended in between; an end is final, so it is read again."""
    parent = rows.get(edge.parent_id)
    if parent is None or parent.status is edge.outcome:
        return None
    now = _load(store, [parent.id]).get(parent.id)
    return None if now is None or now.status is edge.outcome else now


def _is_unmarked(edge: Edge, rows: _Rows) -> bool:
    """Whether the parent ended without an outcome on the edge. One outside the flow writes none."""
    parent = rows.get(edge.parent_id)
    has_ended = parent is not None and parent.status.is_terminal
    return has_ended and edge.outcome is None and not edge.is_outside


def _is_gone(edge: Edge, rows: _Rows) -> bool:
    """Whether the edge can never be marked."""
    return edge.outcome is None and edge.parent_id not in rows


def _still_waits(store: RecordSource, child: Job) -> bool:
    found = store.jobs.load([child.id]).jobs.get(child.id)
    return found is not None and found.status is JobStatus.WAITING


def _children(store: RecordSource) -> Iterator[tuple[Job, Sequence[Edge], _Rows]]:
    """Each job that has parents, with its edges and the rows of its parents."""
    by_child = groupby(store.flows.edges(), key=lambda edge: edge.child_id)
    known = ((child_id, [edge.parent_id for edge in edges]) for child_id, edges in by_child)
    while some := list(islice(known, TOGETHER)):
        wanted = [job_id for child_id, parents in some for job_id in (child_id, *parents)]
        rows = _load(store, list(dict.fromkeys(wanted)))
        edges = store.flows.edges([child_id for child_id, _ in some])
        for child_id, found in groupby(edges, key=lambda edge: edge.child_id):
            child = rows.get(child_id)
            if child is not None and child.status.is_known:
                yield child, list(found), rows


def _load(store: RecordSource, ids: Sequence[JobId]) -> _Rows:
    found: _Rows = {}
    for start in range(0, len(ids), TOGETHER):
        loaded = store.jobs.load(ids[start : start + TOGETHER]).jobs
        found.update((job_id, job.without_bodies) for job_id, job in loaded.items())
    return found


def _of(child: Job, what: str) -> tuple[JobId, int, str]:
    return child.id, child.rev, what
