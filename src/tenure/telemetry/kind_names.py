"""Kinds that are known: to a worker, to a setting or to a job. An unknown kind is more often
mistyped than one that comes later."""

from tenure.core.ids import Kind, Namespace
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import closest
from tenure.errors import RequestRefused
from tenure.ports import JobStore

NEWEST_JOBS = 100
"""How many jobs are read to find the name that may have been meant."""


def is_known_kind(store: JobStore, namespace: Namespace, kind: str) -> bool:
    """Whether a worker, a setting or a job has this kind."""
    if kind in _declared_kinds(store, namespace):
        return True
    wanted = JobFilter(namespace=namespace, kind=Kind(kind), limit=1, bodies=False)
    return bool(store.views.jobs(wanted).jobs)


def meant_kind(store: JobStore, namespace: Namespace, kind: str) -> str | None:
    """A known kind that is written nearly like this one."""
    newest = store.views.jobs(JobFilter(namespace=namespace, limit=NEWEST_JOBS, bodies=False)).jobs
    known = _declared_kinds(store, namespace) | {job.kind for job in newest}
    return closest(kind, known - {Kind(kind)})


def kind_hint(store: JobStore, namespace: Namespace, kind: str) -> str | None:
    """`no worker or job has kind chrage so far. Did you mean charge?`; None for a known kind."""
    if is_known_kind(store, namespace, kind):
        return None
    meant = meant_kind(store, namespace, kind)
    suggestion = "" if meant is None else f" Did you mean {meant}?"
    return f"no worker or job has kind {kind} so far.{suggestion}"


def _declared_kinds(store: JobStore, namespace: Namespace) -> set[Kind]:
    known = {each.kind for each in store.settings.kinds(namespace)}
    try:
        workers = store.workers.page(namespace)
    except RequestRefused:  # this token may not list them
        return known
    return known.union(*(each.kinds for each in workers))
