"""What an application declares for its kinds, and what the store has.

A worker that starts writes only what the store does not have yet: while two versions of the code
run side by side, each would overwrite the other's settings. `tenure kinds sync` writes all of it.
[RL6]
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from tenure.core.ids import Actor, Kind, Namespace, ScheduleName
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.policy import policy_in_words
from tenure.core.schedules import PutSchedule, Schedule, ScheduleSpec
from tenure.deadlines import retrying_for
from tenure.errors import InvalidInput, RequestRefused, StoreUnavailable
from tenure.handlers.registry import Handler
from tenure.ports import Coordination, JobStore

_log = logging.getLogger("tenure.worker")

RETRY_FOR_S = 5.0
"""A server that gives no answer for this long gets no declaration: jobs matter more. [F10]"""


class Difference(msgspec.Struct, frozen=True):
    """A kind for which the application and the store differ."""

    declared: KindSettings
    stored: KindSettings

    def __str__(self) -> str:
        return (
            f"kind {self.declared.kind} is declared with {self._said(self.declared)},"
            f" the store has {self._said(self.stored)}"
        )

    def _said(self, side: KindSettings) -> str:
        """The values of one of them where they differ."""
        said = []
        if self.declared.has_limits and not self.declared.has_limits_of(self.stored):
            said.append(side.limits_in_words)
        if self.declared.policy is not None and self.declared.policy != self.stored.policy:
            said.append("no policy" if side.policy is None else policy_in_words(side.policy))
        return ", ".join(said)


def stored_kinds(store: JobStore, namespace: Namespace) -> dict[Kind, KindSettings]:
    """What the store has for each kind."""
    return {each.kind: each for each in store.settings.kinds(namespace)}


def declare_kinds(
    store: JobStore,
    namespace: Namespace,
    handlers: Iterable[Handler],
    stored: Mapping[Kind, KindSettings] | None = None,
) -> Iterator[Difference]:
    """Write what is declared for kinds that the store does not have yet, and policies where the
    store has none; yields the kinds for which it has something else."""
    stored = stored_kinds(store, namespace) if stored is None else stored
    refused: RequestRefused | None = None
    unwritten: list[Kind] = []
    for wanted in [handler.settings for handler in handlers]:
        kept = stored.get(wanted.kind)
        if kept is None or _may_be_new(wanted, kept):
            try:
                kept = _written(store, namespace, wanted) if refused is None else None
            except RequestRefused as refusal:
                kept, refused = None, refusal
            if refused is not None:
                unwritten.append(wanted.kind)
        if kept is not None and not kept.is_declared_as(wanted):
            yield Difference(wanted, kept)
    if refused is not None:
        names = ", ".join(unwritten)
        _log.warning("what is declared for %s was not written: %s", names, refused)


def _may_be_new(wanted: KindSettings, kept: KindSettings) -> bool:
    """Whether the store may lack a part of what is declared; it knows what was ever set."""
    lacks_policy = wanted.policy is not None and kept.policy is None
    return lacks_policy or (wanted.has_limits and not kept.has_limits)


def _written(store: JobStore, namespace: Namespace, wanted: KindSettings) -> KindSettings | None:
    """What the store has after a declaration; None if it was refused. The worker runs anyway: it
    needs no declaration to run jobs. Raises if the server would refuse every other one, too. [F10]
    [H78]"""
    try:
        return store.settings.put_kind(namespace, wanted.as_change(), only_new=True)
    except (InvalidInput, RequestRefused) as refusal:
        if isinstance(refusal, RequestRefused) and refusal.is_about_all:
            raise
        _log.warning("what is declared for kind %s was not written: %s", wanted.kind, refusal)
        return None


def declare_and_warn(
    store: JobStore,
    namespace: Namespace,
    handlers: Collection[Handler],
    *,
    app: str,
    overwrites: bool = False,
) -> None:
    """What a starting worker does. Where the store has something else, perhaps an operator changed
    it, perhaps this code is old. A worker under development `overwrites` it and logs that."""
    try:
        with retrying_for(RETRY_FOR_S):
            stored = stored_kinds(store, namespace)
            for found in declare_kinds(store, namespace, handlers, stored):
                if overwrites:
                    kept = store.settings.put_kind(namespace, found.declared.as_change())
                    _log.info("kind %s: %s", kept.kind, change_in_words(found.stored, kept))
                else:
                    _log.warning("%s; `tenure kinds sync %s` writes what is declared", found, app)
            _warn_of_undeclared(handlers, app, stored)
    except (InvalidInput, RequestRefused, StoreUnavailable) as refusal:
        _log.warning("the settings of kinds were not written: %s", refusal)


def _warn_of_undeclared(
    handlers: Collection[Handler], app: str, stored: Mapping[Kind, KindSettings]
) -> None:
    """Where the store has limits for a kind and the code declares none: perhaps an operator made
    them, perhaps the code did before. Only for an application that declares limits at all: to
    others an operator's limits are no surprise."""
    declared = {each.kind for each in handlers if each.settings.has_limits}
    if not declared:
        return
    for kind in sorted({handler.kind for handler in handlers} - declared):
        if kind in stored and stored[kind].has_limits:
            _log.warning(
                "kind %s: the store has %s, which the code does not declare; `tenure kinds sync %s"
                " --prune` removes it",
                *(kind, stored[kind].limits_in_words, app),
            )


def without_limits(declared: KindSettings) -> KindChange:
    """The change to what is declared that also removes limits which are not declared."""
    return KindChange(
        kind=declared.kind,
        rate=None,
        concurrency_limit=None,
        policy=declared.as_change().policy,
    )


def change_in_words(before: KindSettings | None, after: KindSettings) -> str:
    """What is set now and what was: `rate 5/s, burst 1 (was rate 2/s, burst 1)`."""
    if before is None:
        return str(after)
    said: tuple[list[str], list[str]] = ([], [])
    if not after.has_limits_of(before):
        limit = after.concurrency_limit
        if msgspec.structs.replace(before, concurrency_limit=limit).has_limits_of(after):
            said[0].append(f"{after.concurrency_limit or 1} per key")
            said[1].append(str(before.concurrency_limit or 1))
        else:
            said[0].append(after.limits_in_words)
            said[1].append(before.limits_in_words)
    if after.policy != before.policy:
        for each, side in zip(said, (after, before), strict=True):
            each.append("no policy" if side.policy is None else policy_in_words(side.policy))
    now, was = (", ".join(each) for each in said)
    return f"{now} (was {was})"


# --- schedules -----------------------------------------------------------------------------------


def declare_schedules(
    coordination: Coordination,
    declared: Mapping[ScheduleName, ScheduleSpec],
    *,
    namespace: Namespace,
    actor: Actor,
    app: str,
    overwrites: bool = False,
) -> None:
    """Write the new ones; log what became of each. A worker under development `overwrites` what the
    store has otherwise."""
    for number, (name, spec) in enumerate(declared.items()):
        command = PutSchedule(
            namespace=namespace,
            name=name,
            actor=actor,
            spec=spec,
            declared_by=app,
            only_new=not overwrites,
        )
        try:
            reply = coordination.change_schedule(command)
        except RequestRefused as refusal:  # the token is limited: an operator may write it
            if refusal.is_about_all:
                names = ", ".join(list(declared)[number:])
                _log.warning("schedules not written: %s: %s", names, refusal)
                return
            _log.warning("schedule %s was not written: %s", name, refusal)
            continue
        assert reply.schedule is not None
        if reply.changed:
            _log.info("schedule %s: %s", name, "new" if reply.schedule.rev == 1 else "changed")
        else:
            _tell_difference(reply.schedule, spec, app)


def _tell_difference(stored: Schedule, spec: ScheduleSpec, app: str) -> None:
    if stored.removed_at is not None:
        _log.warning(
            "schedule %s was removed; `tenure schedules sync %s` writes it again", stored.name, app
        )
    elif stored.spec != spec:
        differs = [
            name.removesuffix("_us")
            for name in ScheduleSpec.__struct_fields__
            if getattr(stored.spec, name) != getattr(spec, name)
        ]
        _log.warning(
            "schedule %s: the store has another %s than this worker's code;"
            " `tenure schedules sync %s` writes the code's",
            stored.name,
            " and ".join(differs),
            app,
        )
