"""What an application declares for its kinds, and what the store has.

A worker that starts writes only what the store has never seen: while two versions of the code run
side by side, each would overwrite the other's settings. `tenure kinds sync` writes all of it. [RL6]
"""

import logging
from collections.abc import Collection, Iterable, Iterator

import msgspec

from tenure.core.ids import Kind, Namespace
from tenure.core.kind_settings import KindSettings
from tenure.errors import InvalidInput, RequestRefused
from tenure.handlers.registry import Handler
from tenure.ports import JobStore

_log = logging.getLogger("tenure.worker")


class Difference(msgspec.Struct, frozen=True):
    """A kind for which the application and the store say different things."""

    declared: KindSettings
    stored: KindSettings

    def __str__(self) -> str:
        return (
            f"kind {self.declared.kind} is declared with {self.declared},"
            f" the store has {self.stored}"
        )


def declare_kinds(
    store: JobStore, namespace: Namespace, handlers: Iterable[Handler]
) -> Iterator[Difference]:
    """Write what is declared for kinds that the store has never seen; yields the kinds for which it
    has something else."""
    declared = list(settings_of(handlers))
    if not declared:
        return
    stored = {each.kind: each for each in store.list_kinds(namespace)}
    for wanted in declared:
        kept = stored.get(wanted.kind)
        if kept is None:
            kept = store.put_kind(namespace, wanted.as_change(), only_new=True)
        if not kept.is_declared_as(wanted):
            yield Difference(wanted, kept)


def declare_and_warn(
    store: JobStore,
    namespace: Namespace,
    handlers: Collection[Handler],
    *,
    app: str,
    overwrites: bool = False,
) -> None:
    """What a starting worker does. Where the store has something else, perhaps an operator changed
    it, perhaps this code is old. A worker under development `overwrites` it and says so."""
    try:
        for found in declare_kinds(store, namespace, handlers):
            if overwrites:
                kept = store.put_kind(namespace, found.declared.as_change())
                changed = change_in_words(found.stored, kept)
                _log.info("kind %s: %s", kept.kind, changed)
            else:
                _log.warning("%s; `tenure kinds sync %s` writes what is declared", found, app)
        _warn_of_undeclared(store, namespace, handlers, app)
    except RequestRefused as refusal:
        _log.warning("the settings of kinds were not written: %s", refusal)


def _warn_of_undeclared(
    store: JobStore, namespace: Namespace, handlers: Collection[Handler], app: str
) -> None:
    """Where the store has settings for a kind and the code declares none: perhaps an operator made
    them, perhaps the code did before."""
    declared = {each.kind for each in settings_of(handlers)}
    if not declared:  # an application without settings asks its server for nothing
        return
    own = {handler.kind for handler in handlers} - declared
    for stored in store.list_kinds(namespace):
        if stored.kind in own and not stored.is_declared_as(KindSettings(kind=stored.kind)):
            _log.warning(
                "kind %s: the store has %s, which the code does not declare; `tenure kinds sync %s"
                " --prune` removes it",
                *(stored.kind, stored, app),
            )


def change_in_words(before: KindSettings | None, after: KindSettings) -> str:
    """What is set now and what was: `rate 5/s, burst 1 (was rate 2/s, burst 1)`."""
    if before is None:
        return str(after)
    limit = after.concurrency_limit
    if msgspec.structs.replace(before, concurrency_limit=limit).is_declared_as(after):
        return f"{after.concurrency_limit or 1} per key (was {before.concurrency_limit or 1})"
    return f"{after} (was {before})"


def settings_of(handlers: Iterable[Handler]) -> Iterator[KindSettings]:
    """What is declared, for each kind and group for which something is."""
    found: dict[Kind, KindSettings] = {}
    for handler in handlers:
        for wanted in handler.settings:
            found[wanted.kind] = _joined(found.get(wanted.kind), wanted)
    yield from found.values()


def _joined(before: KindSettings | None, wanted: KindSettings) -> KindSettings:
    """What two declarations say together; kinds of one group must declare the same limit."""
    if before is None:
        return wanted
    limits = {before.concurrency_limit, wanted.concurrency_limit} - {None}
    if len(limits) > 1:
        raise InvalidInput(
            "concurrency_limit",
            f"kinds of the group {wanted.kind} declare {before.concurrency_limit} and"
            f" {wanted.concurrency_limit}",
            hint="declare the same limit for all kinds of a group",
        )
    return msgspec.structs.replace(
        before,
        rate=before.rate or wanted.rate,
        concurrency_limit=next(iter(limits), None),
        fair=before.fair or wanted.fair,
    )
