"""Schedules and kinds that an application declared and that no live worker declares any more, as
after a move to another module or under another name."""

from collections.abc import Iterable

from tenure.core.ids import Kind, Namespace
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindSettings
from tenure.core.schedules import Schedule
from tenure.core.vocabulary import WorkerState
from tenure.core.workers import WorkerSeen
from tenure.errors import RequestRefused
from tenure.ports import JobStore


def live_workers(
    store: JobStore, namespace: Namespace, now: Instant
) -> tuple[WorkerSeen, ...] | None:
    """Workers that are not silent; None if this caller may not list workers, or sees not all of
    what they declare. [H80]"""
    try:
        found = store.workers.page(namespace)
    except RequestRefused:
        return None
    if any(each.schedules is None for each in found):
        return None
    return tuple(each for each in found if each.state(now) is not WorkerState.SILENT)


def undeclared(found: Schedule, workers: tuple[WorkerSeen, ...] | None) -> bool | None:
    """Whether an application declared it and none of these workers does; None if there are none,
    or none that the caller may list."""
    if found.declared_by is None:
        return False
    return (
        None if not workers else all(found.name not in (each.schedules or ()) for each in workers)
    )


def undeclared_kinds(
    stored: Iterable[KindSettings], workers: tuple[WorkerSeen, ...] | None
) -> list[Kind]:
    """Kinds that were declared and that none of these has; none if one of them runs all kinds. Only
    a declaration sets a policy: a kind without one was set by hand, or is a group of keys."""
    if workers is None or any(not each.kinds for each in workers):
        return []
    live = {kind for each in workers for kind in each.kinds}
    return [each.kind for each in stored if each.policy is not None and each.kind not in live]


def how_to_prune(former: Iterable[str | None]) -> str:
    """The command that removes schedules of applications under these former names."""
    options = "".join(f" --from {name}" for name in sorted(set(filter(None, former))))
    return f"`tenure schedules sync MODULE:APP --prune{options}`"
